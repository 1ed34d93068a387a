"""Each line is a command, or the same error as in beanstalkd: UNKNOWN_COMMAND or BAD_FORMAT."""

from __future__ import annotations

import string
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.protocol import codec
from greenstalk_server.protocol.arguments import BadFormat, ProtocolError, UnknownCommand
from greenstalk_server.protocol.session_state import META_FIELDS, Command
from greenstalk_server.protocol.verbs import VERBS
from tests.support.talk import Talk

pytestmark = pytest.mark.each_build

NAME_200 = b"n" * 200
EVERY_NAME_BYTE = (string.ascii_letters + string.digits + "-+/;.$_()").encode()


def parse(line: bytes) -> Command:
    return _plain(codec.parse(line))


def _plain(command: Command) -> Command:
    """Return *command* with the verb replaced by its name."""
    verb, *arguments = command
    return (verb.name, *arguments)


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
    **{
        b"reserve-with-timeout" + zero: (b"reserve-with-timeout", 0)
        for zero in (b" -0", b"  -00", b" -0x", b"  0", b" 00", b" " + b"0" * 150, b" 0 ", b" 0\t", b" 0.x")
    },
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
    **{verb + b" " + NAME_200: (verb, NAME_200) for verb in (b"use", b"watch", b"ignore", b"stats-tube")},
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
    b"pause-tubedefault  0": (b"pause-tube", b"default", 0, True),
    b"pause-tube a5 0": (b"pause-tube", b"a5", 0, True),
    b"pause-tube -a 5": (b"pause-tube", b"-a", 5 * SECOND, False),
    b"pause-tube " + NAME_200 + b" 0": (b"pause-tube", NAME_200, 0, True),
    b"pause-tube " + NAME_200 + b"n 0": (b"pause-tube", NAME_200 + b"n", 0, False),
}

EXTENSIONS = {
    b"put 1 0.5 2.25 4": (b"put", 1, SECOND // 2, 9 * SECOND // 4, 4, True),
    b"put 1 0.0019 0.001 4": (b"put", 1, SECOND // 1000, SECOND // 1000, 4, True),
    b"put 1 0.0 0.0009 4": (b"put", 1, 0, SECOND, 4, True),
    b"put 1 4294967295.9999 1.0 4": (b"put", 1, (2**32 - 1) * SECOND + 999 * SECOND // 1000, SECOND, 4, True),
    b"put 1 2 3 4.5": (b"put", 1, 2 * SECOND, 3 * SECOND, 4, False),
    b"release 5 6 0.25": (b"release", 5, 6, SECOND // 4),
    b"reserve-with-timeout 5.7": (b"reserve-with-timeout", 57 * SECOND // 10),
    b"reserve-with-timeout 5.": (b"reserve-with-timeout", 5 * SECOND),
    b"reserve-with-timeout -0.5": (b"reserve-with-timeout", None),
    b"reserve-with-timeout -0.0": (b"reserve-with-timeout", 0),
    b"pause-tube a 1.5": (b"pause-tube", b"a", 3 * SECOND // 2, True),
    b"put-in-tube a 1 2 3 4": (b"put-in-tube", 1, 2 * SECOND, 3 * SECOND, 4, True, b"a"),
    b"put-in-tube  a  01  0.5  0 4 ": (b"put-in-tube", 1, SECOND // 2, SECOND, 4, True, b"a"),
    b"put-in-tube " + NAME_200 + b" 1 2 3 4": (b"put-in-tube", 1, 2 * SECOND, 3 * SECOND, 4, True, NAME_200),
    b"stats-group g": (b"stats-group", b"g"),
    b"reserve-batch 1": (b"reserve-batch", 1, 0),
    b"reserve-batch 1000 0.25": (b"reserve-batch", 1000, SECOND // 4),
    b"delete-batch 1": (b"delete-batch", [1]),
    b"delete-batch  0 18446744073709551615 7 7 ": (b"delete-batch", [0, 2**64 - 1, 7, 7]),
    b"delete-batch" + b" 18446744073709551615" * 1000: (b"delete-batch", [2**64 - 1] * 1000),
    b"touch-all": (b"touch-all",),
    b"flush-tube a": (b"flush-tube", b"a"),
    b"flush-buried a": (b"flush-buried", b"a"),
    b"truncate a": (b"truncate", b"a"),
    b"peek-reserved": (b"peek-reserved",),
    b"reprioritize 5 4294967295": (b"reprioritize", 5, 2**32 - 1),
    b"wait 5": (b"wait", 5, None),
    b"wait 5 0.5": (b"wait", 5, SECOND // 2),
    b"watch a 1": (b"watch", b"a", 1),
    b"watch  a  9999 ": (b"watch", b"a", 9999),
    b"reserve-mode fifo": (b"reserve-mode", b"fifo"),
    b"reserve-mode weighted": (b"reserve-mode", b"weighted"),
    b"reserve-mode weighted-fair": (b"reserve-mode", b"weighted-fair"),
    b"stats-mode standard": (b"stats-mode", b"standard"),
    b"stats-mode  extended ": (b"stats-mode", b"extended"),
    b"drain": (b"drain",),
    b"undrain": (b"undrain",),
    b"meta": (b"meta", ()),
    b"meta pri tube": (b"meta", (b"pri", b"tube")),
    b"meta tube pri age ttr reserves timeouts releases attempts": (b"meta", tuple(META_FIELDS)),
}
"""Lines of extensions."""

BAD_EXTENSIONS = [
    b"put 1 .5 3 4", b"put 1 5. 3 4", b"put 1 0.5.5 3 4", b"put 0.5 0 3 4", b"put 1 4294967296.0 3 4", b"put 1 1e3 3 4",
    b"release 1 0 -0.5", b"release 1 0.5 0", b"bury 1 0.5", b"pause-tube a .5", b"reserve-with-timeout .5",
    b"reserve-with-timeout 2147483648.0", b"reserve-job 1.5", b"kick .5",
    b"put-in-tube", b"put-in-tube a 1 2 3", b"put-in-tube a 1 2 3 x", b"put-in-tube a 1 2 3 4294967296",
    b"reserve-batch", b"reserve-batch 0", b"reserve-batch 1001", b"reserve-batch -1", b"reserve-batch 1.5",
    b"reserve-batch 1 -1", b"reserve-batch 1 x", b"reserve-batch 1 2 3", b"reserve-batch 1 2147483648",
    b"delete-batch", b"delete-batch ", b"delete-batch x", b"delete-batch 1 x", b"delete-batch 18446744073709551616",
    b"delete-batch" + b" 1" * 1001, b"delete-batch 1,2", b"delete-batch 000000000000000000001",
    b"touch-all 1", b"peek-reserved 1", b"flush-tube", b"flush-tube ", b"flush-tube -a", b"flush-tube a b",
    b"truncate", b"truncate ", b"truncate -a", b"truncate a b",
    b"flush-buried", b"flush-buried " + NAME_200 + b"n",
    b"reprioritize", b"reprioritize 1", b"reprioritize 1 2 3", b"reprioritize 1 4294967296", b"reprioritize x 1",
    b"stats-group", b"stats-group ", b"stats-group a b", b"stats-group -a", b"stats-group a:1",
    b"wait", b"wait x", b"wait 1 x", b"wait 1 -1", b"wait 1 2 3", b"wait 18446744073709551616",
    b"watch a 0", b"watch a 10000", b"watch a x", b"watch a 1 2", b"watch -a 1", b"watch a 1.5", b"watch a ",
    b"reserve-mode", b"reserve-mode ", b"reserve-mode x", b"reserve-mode fifo weighted", b"reserve-mode FIFO",
    b"stats-mode", b"stats-mode ", b"stats-mode x", b"stats-mode fifo", b"stats-mode extended standard",
    b"stats-mode Extended", b"reserve-mode extended",
    b"drain x", b"undrain 1", b"meta x", b"meta pri pri", b"meta pri,tube", b"meta id",
]  # fmt: skip

STRICT = {
    b"put 1 0.5 3 4": BadFormat, b"put 1 0 2.5 4": BadFormat, b"release 1 2 0.5": BadFormat,
    b"pause-tube a 1.5": BadFormat, b"reserve-batch 1": BadFormat, b"reserve-batch": BadFormat,
    b"put-in-tube a 1 2 3 4": UnknownCommand, b"delete-batch 1": UnknownCommand, b"touch-all": UnknownCommand,
    b"flush-tube a": UnknownCommand, b"flush-buried a": UnknownCommand, b"peek-reserved": UnknownCommand,
    b"reprioritize 1 2": UnknownCommand, b"wait 1": UnknownCommand, b"meta": UnknownCommand,
    b"meta pri": UnknownCommand, b"truncate a": UnknownCommand, b"drain": UnknownCommand, b"undrain": UnknownCommand,
    b"stats-group g": BadFormat, b"watch a 1": BadFormat, b"reserve-mode fifo": BadFormat, b"reserve-mode": BadFormat,
    b"stats-mode extended": BadFormat, b"stats-mode": BadFormat,
}  # fmt: skip
"""Lines of extensions, and their results in strict mode."""

UNKNOWN = [
    b"", b" ", b"\n", b" stats", b"STATS", b"Put 0 0 0 0", b"hello", b"stat", b"put", b"put\t0 0 0 0", b"putx 0 0 0 0",
    b"use", b"use\ta", b"watch", b"ignore", b"delete", b"delete\t5", b"release", b"bury", b"kick", b"kick-job",
    b"kick-jobs", b"touch", b"touch5", b"peek", b"peekx", b"peek-", b"peek-foo 1", b"peek\t5", b"reserv", b"list",
    b"list-tube", b"pause", b"pause-tub a 0", b"qui", b"peek-read", b"peek-job 1", b"peek-held", b"put0 0 60 1",
    b"put,0 0 60 1", b"kick1", b"watch\ta", b"kick\t1", b"touch\t5", b"kick-job\t1", b"\x80\xff\xfe", b"\x01\x02\x1b",
    b"delet 1", b"releas 1 0 0", b"xlist-tube-used", b"list-", b"list-watched-tubes", b"job-stats 1", b"-", b"0",
    b"Use a", b" use a", b"List-Tube-Used", b"QUIT", b" quit",
]  # fmt: skip

BARE_VERB_PREFIXES = [
    b"reservex", b"reserve ", b"reserve 0", b"reserve-job", b"reserve-foo 1", b"reserve-with-timeout",
    b"reserve-with-timeout\t5", b"stats ", b"statsx", b"stats-foo", b"stats-tube", b"stats-job", b"list-tubes ",
    b"list-tubesx", b"list-tube-usedx", b"list-tubes-watched ", b"peek-ready ", b"peek-readyx", b"peek-delayed 1",
    b"peek-buriedx", b"reserve-", b"reserve-jobs 1", b"reserve-with-time 0", b"reserve-with-timeoutx",
    b"reserve-with-timeout0", b"stats-", b"stats default", b"stats-jobx 1", b"stats-tubes default", b"list-tubes-",
    b"list-tubes-watch", b"list-tubes 1", b"list-tube-used ", b"list-tube-used x", b"list-tubes-watchedx",
    b"list-tubes-watched x", b"peek-ready 1", b"peek-delayedx", b"peek-delayed ", b"peek-buried ", b"peek-buried 1",
    b"stats-job\t1", b"stats-tube\tdefault", b"reserve-job\t1",
]  # fmt: skip
"""Lines that begin with a verb without arguments, and are malformed."""

BAD_NUMBERS = [
    b"put ", b"put 0", b"put 0 0 0", b"put a 0 0 0", b"put 0 a 0 0", b"put 0 0 a 0", b"put 0 0 0 a", b"put -1 0 0 0",
    b"put +1 0 0 0", b"put 0 0 0 -1", b"put 0x10 0 0 0", b"put 1.5 0 0 0", b"put 5a 0 0 0", b"put 0\t0 0 0",
    b"put \t0 0 0 0", b"put 0 0 0 \t0", b"put 4294967296 0 0 0", b"put 0 4294967296 0 0", b"put 0 0 4294967296 0",
    b"put 0 0 0 4294967296", b"put 0 0 0 4294967296 x", b"put 0 0", b"put 0 0\t0 1", b"put 0 0 60\t1", b"put 0,0,60,1",
    b"release ", b"release 1", b"release 1 2", b"release 1 2 3 ", b"release 1 2 3 4", b"release a 2 3",
    b"release 1 -2 3", b"release 18446744073709551616 2 3", b"release 1 4294967296 3", b"release 1 2 4294967296",
    b"bury ", b"bury 1", b"bury 1 2 ", b"bury 1 2 3", b"bury 1 -2", b"bury 1 4294967296",
    b"bury 18446744073709551616 2",
    b"release 1 2 3 4 5", b"bury 1 2\t", b"delete \xb9", b"delete 1\n2",
    b"kick ", b"kick a", b"kick x5", b"kick -", b"kick + 5", b"kick 18446744073709551616", b"kick +", b"kick +-1",
    b"kick - 1", b"kick   ", b"kick .5", b"kick \x801",
    b"reserve-with-timeout ", b"reserve-with-timeout a", b"reserve-with-timeout -", b"reserve-with-timeout \t5",
    b"reserve-with-timeout 2147483648", b"reserve-with-timeout -2147483649", b"reserve-with-timeout +1",
    b"reserve-with-timeout 18446744073709551616", b"reserve-with-timeout -9223372036854775809",
    b"reserve-with-timeout --1", b"reserve-with-timeout - 1", b"reserve-with-timeout -\t1", b"reserve-with-timeout -x",
]  # fmt: skip

BAD_IDS = [
    verb + rest
    for verb in [verb.name for verb in VERBS if verb.arguments == "<id>"]
    for rest in (
        b" ", b" a", b" -1", b" +5", b" 0x10", b" 1.5", b" 5a", b" 5 ", b" 5 6", b" \t5", b" 18446744073709551616",
    )
]  # fmt: skip

BAD_NAMES = [
    verb + rest
    for verb in [verb.name for verb in VERBS if verb.arguments == "<tube>"]
    for rest in (
        b" ", b"  a", b" a ", b" a b", b" -a", b" a\tb", b" \ta", b" a\t", b" a\nb", b" " + NAME_200 + b"n",
    )
]  # fmt: skip

BAD_PAUSES = [
    b"pause-tube", b"pause-tube ", b"pause-tubes", b"pause-tube a", b"pause-tube a ", b"pause-tube a x",
    b"pause-tube a 5 ", b"pause-tube a 5 6", b"pause-tube a -1", b"pause-tube a 4294967296", b"pause-tube a\t5",
    b"pause-tube * 5", b"pause-tube a* 5", b"pause-tube 5", b"pause-tube a5", b"pause-tube -5", b"pause-tube a 0x",
    b"pause-tube a 0\t", b"pause-tube   ", b"pause-tubea", b"pause-tube\tdefault 0",
]  # fmt: skip

WITH_NUL = [
    b"\0", b"stats\0", b"hello\0", b"put 0 0 0\0 0", b"use a\0b", b"quit\0", b"put 0 0 60 1\0", b"delete 1\0",
    b"no\0such", b"list-tube\0-used", b"list-tube-used\0",
]  # fmt: skip
"""A line with NUL is BAD_FORMAT, whatever its command."""


def errors(lines: Iterable[bytes]) -> dict[bytes, type[ProtocolError] | None]:
    """Return the error of each line, None for a command; parse each twice, as some results are cached."""
    found: dict[bytes, type[ProtocolError] | None] = {}
    for line in lines:
        for _ in range(2):
            try:
                parse(line)
                found[line] = None
            except ProtocolError as error:
                found[line] = type(error)
    return found


def test_well_formed_line_is_a_command() -> None:
    for _ in range(2):  # a cached command is the same
        assert {line: parse(line) for line in COMMANDS} == COMMANDS


def test_name_has_letters_digits_and_some_other_bytes_and_does_not_begin_with_a_hyphen() -> None:
    names = [b"%c" % byte for byte in range(256)]
    found = errors([b"use " + name for name in names] + [b"use a" + name for name in names])
    accepted = {line.removeprefix(b"use ") for line, error in found.items() if error is None}
    expected = {b"%c" % byte for byte in EVERY_NAME_BYTE}
    assert accepted == expected - {b"-"} | {b"a" + name for name in expected}


def test_line_without_a_known_verb_is_an_unknown_command() -> None:
    assert errors(UNKNOWN) == dict.fromkeys(UNKNOWN, UnknownCommand)


def test_malformed_line_is_bad_format() -> None:
    lines = BARE_VERB_PREFIXES + BAD_NUMBERS + BAD_IDS + BAD_NAMES + BAD_PAUSES + WITH_NUL
    assert errors(lines) == dict.fromkeys(lines, BadFormat)


def test_well_formed_extension_is_a_command() -> None:
    assert {line: parse(line) for line in EXTENSIONS} == EXTENSIONS
    assert {line: _plain(codec.known.get(line) or codec.parse(line)) for line in EXTENSIONS} == EXTENSIONS


def test_malformed_extension_is_bad_format() -> None:
    assert errors(BAD_EXTENSIONS) == dict.fromkeys(BAD_EXTENSIONS, BadFormat)


def test_extension_is_an_error_in_strict_mode_even_if_it_was_parsed_before(request: pytest.FixtureRequest) -> None:
    errors(STRICT)
    request.getfixturevalue("strict")
    assert not codec.known.keys() & STRICT.keys()
    assert errors(STRICT) == STRICT
    assert codec.extensions() == ()


@pytest.mark.usefixtures("strict")
def test_strict_mode_parses_every_published_command() -> None:
    for line, command in COMMANDS.items():
        assert _plain(codec.known.get(line) or codec.parse(line)) == command
    assert parse(b"reserve-with-timeout 5.7") == (b"reserve-with-timeout", 5 * SECOND)
    assert parse(b"reserve-with-timeout -0.5") == (b"reserve-with-timeout", 0)


TAGS = {
    b"idp:k": (b"k", 0, b"", b"", b"", 0),
    b"idp:k:0": (b"k", 0, b"", b"", b"", 0),
    b"idp:k:2.5": (b"k", 5 * SECOND // 2, b"", b"", b"", 0),
    b"idp:k:4294967295": (b"k", (2**32 - 1) * SECOND, b"", b"", b"", 0),
    b"idp:" + NAME_200: (NAME_200, 0, b"", b"", b"", 0),
    b"grp:g": (b"", 0, b"g", b"", b"", 0),
    b"aft:a": (b"", 0, b"", b"a", b"", 0),
    b"con:c": (b"", 0, b"", b"", b"c", 1),
    b"con:c:7": (b"", 0, b"", b"", b"c", 7),
    b"con:c:4294967295": (b"", 0, b"", b"", b"c", 2**32 - 1),
    b" con:c:0003  aft:b grp:a idp:$k ": (b"$k", 0, b"a", b"b", b"c", 3),
}
"""Tags after the size of a put, and the fields of `Tags`."""

BAD_TAGS = [
    b"idp:", b"idp:-k", b"idp:k:", b"idp:k:x", b"idp:k:-1", b"idp:k:4294967296", b"idp:k:1:2", b"idp:k:.5", b"idp:k*",
    b"idp:" + NAME_200 + b"n", b"idp:a idp:b", b"grp:", b"grp:g:1", b"grp:g grp:h", b"aft:", b"aft:a:1", b"aft:a aft:a",
    b"con:", b"con:c:0", b"con:c:", b"con:c:x", b"con:c:1.5", b"con:c:-1", b"con:c:4294967296", b"con:c con:d",
    b"grp:g aft:g", b"idp:k x", b"idp:k x:y", b"idp:k IDP:k", b"x idp:k",
]  # fmt: skip


@pytest.mark.parametrize("start", [b"put 1 0.5 3 4", b"put-in-tube t 1 0.5 3 4"])
@pytest.mark.parametrize(("words", "fields"), TAGS.items())
def test_tags_of_a_put(start: bytes, words: bytes, fields: tuple[object, ...]) -> None:
    size = len(codec.known)
    *command, tags = parse(start + b" " + words)
    assert command == [start.split()[0], 1, SECOND // 2, 3 * SECOND, 4, True, b"t" if b"tube" in start else b""]
    found = (tags.idempotency_key, tags.idempotency_ttl, tags.group, tags.after)
    assert (*found, tags.concurrency_key, tags.concurrency_limit) == fields
    assert len(codec.known) == size  # keys are not repeated, so such a line is not worth a place in the cache


def test_put_with_a_bad_tag_announces_its_body() -> None:
    lines = [start + words for start in (b"put 1 0 3 4 ", b"put-in-tube t 1 0 3 4 ") for words in BAD_TAGS]
    assert errors(lines) == dict.fromkeys(lines, BadFormat)
    assert {line: codec.announced_size(line + b" ") for line in lines} == dict.fromkeys(lines, 4)


FAULTY_PUTS = {
    b"put 4294967296 0 3 4 idp:k": 4,
    b"put 1 4294967296 3 4 grp:g": 4,
    b"put 1 0 3 4x idp:k": 4,
    b"put a -1 x  4  con:c": 4,
    b"put 1 0 3 4 idp:k\0": 4,
    b"put 1 0 3 4 " + b"x" * 300 + b" aft:g": 4,
    b"put 1 0 3 4294967295 idp:": 2**32 - 1,
    b"put 1 0 3 4294967296 idp:k": codec.NO_BODY,
    b"put 1 0 3 x idp:k": codec.NO_BODY,
    b"put 1 0 3 idp:k": codec.NO_BODY,
    b"put 1 0 3 4 " + b"x" * 300: codec.NO_BODY,
    b"put" + b" " * 300 + b"1 0 3 4": codec.NO_BODY,
    b"put a 0 3 4": codec.NO_BODY,
    b"puts 1 0 3 4 idp:k": codec.NO_BODY,
    b"put-in-tube -t 1 0 3 4": 4,
    b"put-in-tube " + NAME_200 + b"n 1 0 3 4": 4,
    b"put-in-tube t\0 1 0 3 4": 4,
    b"put-in-tube t x 0 3 4": 4,
    b"put-in-tube t 1 0 3 4 x": 4,
    b"put-in-tube t 1 0 3": codec.NO_BODY,
    b"put-in-tube t 1 0 3 4x": codec.NO_BODY,
    b"put-in-tube t 1 0 3 4294967296": codec.NO_BODY,
}
"""Lines that are refused, and the sizes of the bodies that they announce."""


def test_refused_put_announces_a_body_if_it_is_an_extension() -> None:
    assert None not in errors(FAULTY_PUTS).values()
    assert {line: codec.announced_size(line + b" ") for line in FAULTY_PUTS} == FAULTY_PUTS


@pytest.mark.usefixtures("strict")
def test_refused_line_announces_no_body_in_strict_mode() -> None:
    assert {codec.announced_size(line + b" ") for line in FAULTY_PUTS} == {codec.NO_BODY}


def test_size_at_the_cut_end_of_a_line_is_not_read() -> None:
    assert codec.announced_size(b"put-in-tube t 1 0 3 4") == codec.NO_BODY


@pytest.mark.parametrize("words", [b"x", b"idp", b"IDP:k", b"xidp:k", b"idx:k", b"grp :g", b"k:1"])
def test_put_with_garbage_is_as_in_beanstalkd(words: bytes) -> None:
    assert parse(b"put 1 0 3 4 " + words) == (b"put", 1, 0, 3 * SECOND, 4, False)


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("words", [b"idp:k", b"idp:", b"grp:g con:c"])
def test_tags_are_garbage_in_strict_mode(words: bytes) -> None:
    assert parse(b"put 1 0 3 4 " + words) == (b"put", 1, 0, 3 * SECOND, 4, False)


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
