"""Each line is a command, or the same error as in beanstalkd: UNKNOWN_COMMAND or BAD_FORMAT."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenstalk_server.core.job import SECOND
from greenstalk_server.protocol import codec
from greenstalk_server.protocol.codec import BadFormat, Command, UnknownCommand, parse
from tests.support.talk import Talk

NAME_200 = b"n" * 200
EVERY_NAME_BYTE = b"ABCXYZabcxyz0189-+/;.$_()"

COMMANDS: dict[bytes, Command] = {
    b"put 1 2 3 4": (b"put", 1, 2 * SECOND, 3 * SECOND, 4, True),
    b"put 0 0 0 0": (b"put", 0, 0, SECOND, 0, True),
    b"put   01  002   003 0004": (b"put", 1, 2 * SECOND, 3 * SECOND, 4, True),
    b"put 4294967295 4294967295 4294967295 4294967295": (
        b"put",
        2**32 - 1,
        (2**32 - 1) * SECOND,
        (2**32 - 1) * SECOND,
        2**32 - 1,
        True,
    ),
    b"put 1 2 3 4 ": (b"put", 1, 2 * SECOND, 3 * SECOND, 4, False),
    b"put 1 2 3 4x": (b"put", 1, 2 * SECOND, 3 * SECOND, 4, False),
    b"put 1 2 3 4 5": (b"put", 1, 2 * SECOND, 3 * SECOND, 4, False),
    b"put 1 2 3 4\t": (b"put", 1, 2 * SECOND, 3 * SECOND, 4, False),
    b"peek 5": (b"peek", 5),
    b"peek-ready": (b"peek-ready",),
    b"peek-delayed": (b"peek-delayed",),
    b"peek-buried": (b"peek-buried",),
    b"reserve": (b"reserve",),
    b"reserve-with-timeout 0": (b"reserve-with-timeout", 0),
    b"reserve-with-timeout   007": (b"reserve-with-timeout", 7 * SECOND),
    b"reserve-with-timeout 2147483647": (b"reserve-with-timeout", (2**31 - 1) * SECOND),
    b"reserve-with-timeout 0x": (b"reserve-with-timeout", 0),
    b"reserve-with-timeout 0 5": (b"reserve-with-timeout", 0),
    b"reserve-with-timeout 5 ": (b"reserve-with-timeout", 5 * SECOND),
    b"reserve-with-timeout -1": (b"reserve-with-timeout", None),
    b"reserve-with-timeout   -001": (b"reserve-with-timeout", None),
    b"reserve-with-timeout -1x": (b"reserve-with-timeout", None),
    b"reserve-with-timeout -1 5": (b"reserve-with-timeout", None),
    b"reserve-with-timeout -2147483648": (b"reserve-with-timeout", None),
    b"reserve-with-timeout -0": (b"reserve-with-timeout", 0),
    b"reserve-job 5": (b"reserve-job", 5),
    b"delete 18446744073709551615": (b"delete", 2**64 - 1),
    b"delete   0005": (b"delete", 5),
    b"release 5 6 7": (b"release", 5, 6, 7 * SECOND),
    b"release   5   6   7": (b"release", 5, 6, 7 * SECOND),
    b"release 18446744073709551615 4294967295 4294967295": (
        b"release",
        2**64 - 1,
        2**32 - 1,
        (2**32 - 1) * SECOND,
    ),
    b"bury 5 6": (b"bury", 5, 6),
    b"bury 18446744073709551615 4294967295": (b"bury", 2**64 - 1, 2**32 - 1),
    b"kick 5": (b"kick", 5),
    b"kick   5": (b"kick", 5),
    b"kick +5": (b"kick", 5),
    b"kick -1": (b"kick", 2**32 - 1),
    b"kick \t\n 5": (b"kick", 5),
    b"kick 5x": (b"kick", 5),
    b"kick 5 6 7": (b"kick", 5),
    b"kick 4294967295": (b"kick", 2**32 - 1),
    b"kick 4294967296": (b"kick", 0),
    b"kick 18446744073709551615": (b"kick", 2**32 - 1),
    b"kick-job 5": (b"kick-job", 5),
    b"touch 5": (b"touch", 5),
    b"stats": (b"stats",),
    b"stats-job 5": (b"stats-job", 5),
    b"stats-tube a": (b"stats-tube", b"a"),
    b"use a": (b"use", b"a"),
    b"use " + NAME_200: (b"use", NAME_200),
    b"use " + EVERY_NAME_BYTE: (b"use", EVERY_NAME_BYTE),
    b"watch a": (b"watch", b"a"),
    b"ignore a": (b"ignore", b"a"),
    b"list-tubes": (b"list-tubes",),
    b"list-tube-used": (b"list-tube-used",),
    b"list-tubes-watched": (b"list-tubes-watched",),
    b"quit": (b"quit",),
    b"quitx": (b"quit",),
    b"quit now": (b"quit",),
    b"pause-tube a 5": (b"pause-tube", b"a", 5 * SECOND, True),
    b"pause-tube   a   05": (b"pause-tube", b"a", 5 * SECOND, True),
    b"pause-tubedefault 0": (b"pause-tube", b"default", 0, True),
    b"pause-tube a5 0": (b"pause-tube", b"a5", 0, True),
    b"pause-tube -a 5": (b"pause-tube", b"-a", 5 * SECOND, False),
    b"pause-tube " + NAME_200 + b" 0": (b"pause-tube", NAME_200, 0, True),
    b"pause-tube " + NAME_200 + b"n 0": (b"pause-tube", NAME_200 + b"n", 0, False),
}

UNKNOWN = [
    b"", b" ", b"\n", b" stats", b"STATS", b"Put 0 0 0 0", b"hello", b"stat", b"put", b"put\t0 0 0 0", b"putx 0 0 0 0",
    b"use", b"use\ta", b"watch", b"ignore", b"delete", b"delete\t5", b"release", b"bury", b"kick", b"kick-job",
    b"kick-jobs", b"touch", b"touch5", b"peek", b"peekx", b"peek-", b"peek-foo 1", b"peek\t5", b"reserv", b"list",
    b"list-tube", b"pause", b"pause-tub a 0", b"qui",
]  # fmt: skip

BARE_VERB_PREFIXES = [
    b"reservex", b"reserve ", b"reserve 0", b"reserve-job", b"reserve-foo 1", b"reserve-with-timeout",
    b"reserve-with-timeout\t5", b"stats ", b"statsx", b"stats-foo", b"stats-tube", b"stats-job", b"list-tubes ",
    b"list-tubesx", b"list-tube-usedx", b"list-tubes-watched ", b"peek-ready ", b"peek-readyx", b"peek-delayed 1",
    b"peek-buriedx",
]  # fmt: skip
"""Lines that begin with a verb without arguments, and are malformed."""

BAD_NUMBERS = [
    b"put ", b"put 0", b"put 0 0 0", b"put a 0 0 0", b"put 0 a 0 0", b"put 0 0 a 0", b"put 0 0 0 a", b"put -1 0 0 0",
    b"put +1 0 0 0", b"put 0 0 0 -1", b"put 0x10 0 0 0", b"put 1.5 0 0 0", b"put 5a 0 0 0", b"put 0\t0 0 0",
    b"put \t0 0 0 0", b"put 0 0 0 \t0", b"put 4294967296 0 0 0", b"put 0 4294967296 0 0", b"put 0 0 4294967296 0",
    b"put 0 0 0 4294967296", b"put 0 0 0 4294967296 x",
    b"release ", b"release 1", b"release 1 2", b"release 1 2 3 ", b"release 1 2 3 4", b"release a 2 3",
    b"release 1 -2 3", b"release 18446744073709551616 2 3", b"release 1 4294967296 3", b"release 1 2 4294967296",
    b"bury ", b"bury 1", b"bury 1 2 ", b"bury 1 2 3", b"bury 1 -2", b"bury 1 4294967296",
    b"bury 18446744073709551616 2",
    b"kick ", b"kick a", b"kick x5", b"kick -", b"kick + 5", b"kick 18446744073709551616",
    b"reserve-with-timeout ", b"reserve-with-timeout a", b"reserve-with-timeout -", b"reserve-with-timeout \t5",
    b"reserve-with-timeout 2147483648", b"reserve-with-timeout -2147483649", b"reserve-with-timeout +1",
    b"reserve-with-timeout --1", b"reserve-with-timeout - 1", b"reserve-with-timeout -\t1", b"reserve-with-timeout -x",
]  # fmt: skip

BAD_IDS = [
    verb + rest
    for verb in (b"delete", b"touch", b"peek", b"kick-job", b"reserve-job", b"stats-job")
    for rest in (
        b" ", b" a", b" -1", b" +5", b" 0x10", b" 1.5", b" 5a", b" 5 ", b" 5 6", b" \t5", b" 18446744073709551616",
    )
]  # fmt: skip

BAD_NAMES = [
    verb + rest
    for verb in (b"use", b"watch", b"ignore", b"stats-tube")
    for rest in (
        b" ", b"  a", b" a ", b" a b", b" -a", b" a\tb", b" \xe9", b" a\nb", b" a*b", b" " + NAME_200 + b"n",
    )
]  # fmt: skip

BAD_PAUSES = [
    b"pause-tube", b"pause-tube ", b"pause-tubes", b"pause-tube a", b"pause-tube a ", b"pause-tube a x",
    b"pause-tube a 5 ", b"pause-tube a 5 6", b"pause-tube a -1", b"pause-tube a 4294967296", b"pause-tube a\t5",
    b"pause-tube * 5", b"pause-tube a* 5", b"pause-tube 5", b"pause-tube a5", b"pause-tube -5",
]  # fmt: skip

WITH_NUL = [b"\0", b"stats\0", b"hello\0", b"put 0 0 0\0 0", b"use a\0b"]
"""A line with NUL is BAD_FORMAT, whatever its command."""


@pytest.mark.parametrize(("line", "command"), COMMANDS.items())
def test_well_formed_line_is_a_command(line: bytes, command: Command) -> None:
    assert parse(line) == command
    assert parse(line) == command  # a cached command is the same


@pytest.mark.parametrize("line", UNKNOWN)
def test_line_without_a_known_verb_is_an_unknown_command(line: bytes) -> None:
    for _ in range(2):
        with pytest.raises(UnknownCommand):
            parse(line)


@pytest.mark.parametrize("line", BARE_VERB_PREFIXES + BAD_NUMBERS + BAD_IDS + BAD_NAMES + BAD_PAUSES + WITH_NUL)
def test_malformed_line_is_bad_format(line: bytes) -> None:
    for _ in range(2):
        with pytest.raises(BadFormat):
            parse(line)


def test_cache_of_parsed_lines_is_bounded_and_correct() -> None:
    talk = Talk()
    for name in [b"%d" % number for number in range(3000)] * 2:
        assert talk.send(b"use %b\r\nlist-tube-used\r\n" % name) == b"USING %b\r\n" % name * 2
    assert len(codec.known) <= 2048


@given(st.binary(max_size=222) | st.from_regex(rb"[a-z-]{0,20}[ \t]*[-+ 0-9a-z]{0,30}", fullmatch=True))
def test_any_line_is_a_command_or_a_protocol_error(line: bytes) -> None:
    try:
        command = parse(line)
    except (BadFormat, UnknownCommand):
        return
    assert line.startswith(command[0])
