"""Lines of the wire format to commands, by the table of verbs. `replies` encodes the replies.

Where protocol.txt is silent, this follows beanstalkd 1.13: no space need follow a verb without arguments, for example.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from greenstalk_server.protocol.arguments import TAGGED_LENGTH, BadFormat, UnknownCommand, mode
from greenstalk_server.protocol.link_commands import LINK_VERBS
from greenstalk_server.protocol.replies import CRLF
from greenstalk_server.protocol.session_state import Command
from greenstalk_server.protocol.tag_syntax import BEGINS_TAG
from greenstalk_server.protocol.verb import MAX_LINE, Verb
from greenstalk_server.protocol.verbs import VERBS

NO_BODY: Final = -1
"""Result of `announced_size` that is not a size."""

_MAX_KNOWN: Final = 1024

known: Final[dict[bytes, Command]] = {}
"""A cache of parsed lines: parsing a put takes 2 us. In pure Python, jobs that are put by equal lines also share the
integer objects of their fields."""

_by_word: Final[dict[bytes, Verb]] = {}
"""The verbs that take arguments, and the extensions, by the word before the first space of a line."""

_numbered: Final[tuple[bytes | Verb, ...]] = tuple(
    part for verb in VERBS if verb.takes_id and not verb.is_extension for part in (verb.name, verb)
)
"""The words and verbs, in turn, of the commands with an id as their only argument."""

_by_prefix: Final = sorted(
    [verb for verb in VERBS if not (verb.is_extension or (verb.arguments and verb.needs_space))],
    key=lambda verb: -len(verb.name),
)
"""The verbs after which beanstalkd requires no space. The longest comes first, since a verb may begin with another
verb."""

_long_lines: Final = [(verb.name + b" ", verb.max_line) for verb in VERBS if verb.max_line > MAX_LINE]

_refused_put: Final = re.compile(rb"put(?: +[^ ]+){3} +([0-9]+).*%b" % BEGINS_TAG, re.DOTALL)
_refused_put_in_tube: Final = re.compile(rb"put-in-tube(?: +[^ ]+){4} +([0-9]+) ")


def set_strict(is_strict: bool) -> None:
    """Turn the extensions off or on for all connections of the process."""
    mode.is_strict = is_strict
    verbs = [verb for verb in VERBS if not (is_strict and verb.is_extension)] + list(LINK_VERBS)
    _by_word.clear()
    _by_word.update({verb.name: verb for verb in verbs if verb.arguments or verb.is_extension})
    known.clear()
    _forget()
    known.update({verb.name: (verb,) for verb in verbs if not verb.arguments})


def extensions() -> tuple[str, ...]:
    """Return the names of the extensions that are on: their verbs, `fractions`, `tags` and `weights`.

    docs/protocol-extensions.md describes them.
    """
    if mode.is_strict:
        return ()
    return tuple(sorted([*(verb.name.decode() for verb in VERBS if verb.is_extension), "fractions", "tags", "weights"]))


def next_command(data: bytes, pos: int) -> tuple[bytes, Command | None] | None:
    """Return the line at *pos* of *data*, and its command if that takes little time to find; else it is to be parsed.

    Return None if no line of up to MAX_LINE bytes, with its CRLF, begins there.
    """
    return _next_command(known, _numbered, data, pos, MAX_LINE)


def next_command_in_python(
    known: dict[bytes, Command], numbered: tuple[bytes | Verb, ...], data: bytes, pos: int, limit: int
) -> tuple[bytes, Command | None] | None:
    """See `next_command`: the command is in *known*, or a verb of *numbered* with a number."""
    line, end, _ = data[pos : pos + limit].partition(CRLF)  # takes a third of the time of `find`
    if not end:
        return None
    command = known.get(line)
    if command is None:
        word, _, number = line.partition(b" ")
        if word in numbered and len(number) < 20 and number.isdigit():
            command = (numbered[numbered.index(word) + 1], int(number))
    return line, command


def _fastest() -> tuple[
    Callable[[dict[bytes, Command], tuple[bytes | Verb, ...], bytes, int, int], tuple[bytes, Command | None] | None],
    Callable[[], None],
]:
    """Return a function that does what `next_command_in_python` does, and one that drops the results that it keeps."""
    try:
        from greenstalk_server.protocol import _scan  # noqa: PLC0415  not in the pure Python build
    except ImportError:
        return next_command_in_python, lambda: None
    return _scan.next_command, _scan.forget


_next_command: Final = _fastest()[0]
_forget: Final = _fastest()[1]


set_strict(False)


def parse(line: bytes) -> Command:
    """Return the command in *line*, which `next_command` has not found; raise ProtocolError if it has none.

    *line* has no CRLF, and is at most as long as `max_line` says.
    """
    word, space, rest = line.partition(b" ")
    verb = _by_word.get(word)
    if b"\0" in line:
        raise BadFormat
    if verb is None or not (space or verb.is_extension):
        return _parse_by_prefix(line)
    command = verb.parse(verb, rest)
    if verb.is_repeated and len(command) < TAGGED_LENGTH:
        if len(known) >= _MAX_KNOWN:
            set_strict(mode.is_strict)
        known[line] = command
    return command


def _parse_by_prefix(line: bytes) -> Command:
    for verb in _by_prefix:
        if line.startswith(verb.name):
            return verb.parse(verb, line[len(verb.name) :])
    raise UnknownCommand


def max_line(data: bytes, pos: int) -> int:
    """Return the maximum length of the line that begins at *pos* of *data*, in bytes, with its CRLF."""
    if not mode.is_strict:
        for start, limit in _long_lines:
            if data.startswith(start, pos):
                return limit
    return MAX_LINE


def announced_size(line: bytes) -> int:
    """Return the size of the body that follows the refused *line*; NO_BODY if the next bytes are a command.

    *line* ends with a space, or is the beginning of a longer line. The line of a put-in-tube announces a body if its
    fifth word is a size. The line of a put announces a body if a tag follows the size; otherwise the next bytes are a
    command, as in beanstalkd.
    """
    if not line.startswith(b"put") or mode.is_strict:
        return NO_BODY
    match = _refused_put.match(line) or _refused_put_in_tube.match(line)
    size = int(match[1]) if match is not None else NO_BODY
    return size if size < 2**32 else NO_BODY


def hides_size(line: bytes) -> bool:
    """Whether *line*, the first MAX_PUT_LINE bytes of a longer line, is a put-in-tube whose size comes later."""
    return line.startswith(b"put-in-tube ") and announced_size(line) == NO_BODY and not mode.is_strict
