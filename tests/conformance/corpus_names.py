"""Recognition of commands by prefix, and valid tube names.

The lines that the tests of the parser list are played here too, so that beanstalkd confirms the expected results.
"""

import string
from collections.abc import Iterator

from greenstalk_server.protocol.verbs import VERBS
from tests.protocol import test_parse

from .script import parse_corpus

PLAIN = (string.ascii_letters + string.digits + "-").encode()
EXTENSIONS = [verb.name for verb in VERBS if verb.is_extension]
ZERO = (b"reserve-with-timeout", 0)
NAME_BYTES = bytes(byte for byte in range(256) if byte != ord("\r"))
LINES: dict[str, list[bytes]] = {
    "unknown": [line for line in test_parse.UNKNOWN if line != b"\n"],  # see newline-then-carriage-return
    "bare-verbs": test_parse.BARE_VERB_PREFIXES,
    "numbers": [line for line in test_parse.BAD_NUMBERS if not line.startswith(b"reserve-with-timeout")],
    "ids": test_parse.BAD_IDS,
    "names": test_parse.BAD_NAMES,
    "pauses": test_parse.BAD_PAUSES,
    "nul": test_parse.WITH_NUL,
    "timeouts-of-zero": [line for line, command in test_parse.COMMANDS.items() if command == ZERO],
    "names-of-one-byte": [b"use %c" % byte for byte in NAME_BYTES],
    "names-of-two-bytes": [b"use a%c" % byte for byte in NAME_BYTES],
}


def _lines() -> Iterator[str]:
    for name, lines in LINES.items():
        yield f"== lines-{name}"
        for line in lines:
            if line.split(b" ")[0] not in EXTENSIONS:
                yield "a> " + "".join(chr(byte) if byte in PLAIN else rf"\x{byte:02x}" for byte in line)
        yield "a> list-tube-used"


CONVERSATIONS = parse_corpus("\n".join(_lines())) + parse_corpus(r"""
== refused-arguments-do-not-count
a> stats\x20
a> reserve 0
a> list-tubes\x20
a> list-tube-used\x20
a> list-tubes-watched\x20
a> peek-ready\x20
a> peek-delayed\x20
a> peek-buried\x20
a> peek x
a> delete x
a> release x
a> bury x
a> touch x
a> use *
a> watch *
a> ignore *
a> stats-job x
a> stats-tube *
a> kick x
a> kick-job x
a> reserve-job x
a> stats

== names-that-begin-with-a-hyphen
a> use -
a> use -a
a> use --
a> watch -a
a> ignore -a
a> stats-tube -a
a> use a-
a> list-tube-used

== names-that-yaml-misreads
a> use 123
a> watch true
a> watch null
a> watch 0x1f
a> watch 1.5
a> watch 1e3
a> watch no
a> watch 2024-01-01
a> list-tubes
a> list-tubes-watched
a> stats-tube 123
a> stats-tube true
a> put 0 0 60 1\r\nx
a> stats-job {1}

== names-are-case-sensitive
a> use Foo
a> watch foo
a> watch FOO
a> list-tubes
a> stats-tube FoO

== names-that-look-like-commands
a> use quit
a> watch stats
a> list-tubes-watched
a> stats-tube quit
""")
