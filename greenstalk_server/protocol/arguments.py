"""Parsers of the arguments of commands, one for each form. Each takes the verb and the rest of the line after a space.

Where protocol.txt is silent, they follow beanstalkd 1.13, including which malformed line gets which error. They follow
1.12 where clients rely on that: a negative timeout waits without a limit.
"""

from __future__ import annotations

import re
from typing import ClassVar, Final

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.tags.tags import Tags
from greenstalk_server.core.tube_names import NAME, is_tube_name
from greenstalk_server.core.tubes.weighting import MAX_WEIGHT
from greenstalk_server.protocol import replies
from greenstalk_server.protocol.session_state import META_FIELDS, Command
from greenstalk_server.protocol.tag_syntax import has_tag, parse_tags
from greenstalk_server.protocol.verb import MAX_LINE, Verb

MAX_PUT_LINE: Final = 1200
"""Maximum length of the line of a put-in-tube, or of a put with tags, in bytes, with its CRLF: a name and four keys of
200 bytes each, and numbers."""

MAX_BATCH_LINE: Final = 21_015
"""Maximum length of a delete-batch line in bytes, with its CRLF: 1000 ids of 20 digits, and their spaces."""

MAX_BATCH: Final = 1000
"""Maximum number of jobs in a reserve-batch, and of ids in a delete-batch."""

TAGGED_LENGTH: Final = 8
"""Number of members of the command for a put with tags."""

RESERVE_MODES: Final = (b"fifo", b"weighted", b"weighted-fair")
"""Names of the reserve modes; the index is the number in core/tubes/weighting.py."""

STATS_MODES: Final = (b"standard", b"extended")
"""Names of the modes of the statistics: with only the keys of beanstalkd, and with all keys."""


class ProtocolError(Exception):
    """A line that is not a command. The connection stays open."""

    reply: ClassVar[bytes] = replies.INTERNAL_ERROR


class BadFormat(ProtocolError):
    """The line is not well-formed."""

    reply: ClassVar[bytes] = replies.BAD_FORMAT


class UnknownCommand(ProtocolError):
    """The line does not start with a verb."""

    reply: ClassVar[bytes] = replies.UNKNOWN_COMMAND


class Mode:
    """The strictness with which all connections of the process follow the published protocol.

    is_strict       the extensions are off; every line gets beanstalkd's reply.
    extends_stats   a new connection gets the extended keys of statistics without asking.
    """

    def __init__(self) -> None:
        self.is_strict: bool = False
        self.extends_stats: bool = False


mode: Final = Mode()

_U32: Final = 2**32 - 1
_U64: Final = 2**64 - 1
_I31: Final = 2**31 - 1
_MAX_DIGITS: Final = len(str(_U64))
_MILLISECOND: Final = SECOND // 1000
_MAX_PUT_ARGUMENTS: Final = MAX_LINE - len(b"put \r\n")

_SECONDS: Final = rb"([0-9]+(?:\.[0-9]+)?)"
_put_arguments: Final = re.compile(rb" *([0-9]+) +%b +%b +([0-9]+)(.*)" % (_SECONDS, _SECONDS), re.DOTALL)
_release_arguments: Final = re.compile(rb" *([0-9]+) +([0-9]+) +%b" % _SECONDS)
_bury_arguments: Final = re.compile(rb" *([0-9]+) +([0-9]+)")
_id: Final = re.compile(rb" *([0-9]+)")
_timeout: Final = re.compile(rb" *(-?)%b" % _SECONDS)
_lenient_number: Final = re.compile(rb"[ \t\n\v\f\r]*([+-]?)([0-9]+)")
_pause_arguments: Final = re.compile(rb" *([-A-Za-z0-9+/;.$_()]+) +%b" % _SECONDS)
_seconds_only: Final = re.compile(_SECONDS)


def _number(digits: bytes, maximum: int) -> int:
    value = int(digits)
    if value > maximum:
        raise BadFormat
    return value


def _seconds(text: bytes, maximum: int) -> int:
    """Return *text*, a number of seconds, in nanoseconds. Only three digits of a fraction count."""
    whole, point, fraction = text.partition(b".")
    if not point:
        return _number(whole, maximum) * SECOND
    if mode.is_strict:
        raise BadFormat
    return _number(whole, maximum) * SECOND + int(fraction[:3].ljust(3, b"0")) * _MILLISECOND


def _ttr(text: bytes) -> int:
    """Return *text*, a ttr in seconds, in nanoseconds. 0 seconds are 1 second, as in beanstalkd."""
    return _seconds(text, _U32) or SECOND


def _fully(pattern: re.Pattern[bytes], text: bytes) -> re.Match[bytes]:
    match = pattern.fullmatch(text)
    if match is None:
        raise BadFormat
    return match


def parse_put(verb: Verb, rest: bytes) -> Command:
    """Return (verb, pri, delay, ttr, size, is_well_formed), or, with tags, (..., True, b"", tags)."""
    pri, delay, ttr, size, garbage = _fully(_put_arguments, rest).groups()
    if garbage and has_tag(garbage) and not mode.is_strict:
        return (*_put_numbers(verb, pri, delay, ttr, size), b"", _tags(garbage.split(b" ")))
    if len(rest) > _MAX_PUT_ARGUMENTS:
        raise BadFormat
    return (
        verb,
        _number(pri, _U32),
        _seconds(delay, _U32),
        _ttr(ttr),
        _number(size, _U32),
        not garbage,
    )


def parse_put_in_tube(verb: Verb, rest: bytes) -> Command:
    """Return (verb, pri, delay, ttr, size, True, name), or, with tags, (..., name, tags)."""
    name, pri, delay, ttr, size, *tags = _words(rest, 5, MAX_PUT_LINE)
    put = (*_put_numbers(verb, pri, delay, ttr, size), _fully(NAME, name)[0])
    return (*put, _tags(tags)) if tags else put


def _put_numbers(verb: Verb, pri: bytes, delay: bytes, ttr: bytes, size: bytes) -> Command:
    """Return the command of a well-formed put with these arguments."""
    times = (_seconds_of(delay, _U32), _seconds_of(ttr, _U32) or SECOND)
    return (verb, _whole(pri, 0, _U32), *times, _whole(size, 0, _U32), True)


def _tags(words: list[bytes]) -> Tags:
    tags = parse_tags([word for word in words if word], _seconds_of)
    if tags is None:
        raise BadFormat
    return tags


def parse_id(verb: Verb, rest: bytes) -> Command:
    """Return (verb, id)."""
    return (verb, _number(_fully(_id, rest)[1], _U64))


def parse_release(verb: Verb, rest: bytes) -> Command:
    """Return (verb, id, pri, delay)."""
    id, pri, delay = _fully(_release_arguments, rest).groups()
    return (verb, _number(id, _U64), _number(pri, _U32), _seconds(delay, _U32))


def parse_bury(verb: Verb, rest: bytes) -> Command:
    """Return (verb, id, pri)."""
    id, pri = _fully(_bury_arguments, rest).groups()
    return (verb, _number(id, _U64), _number(pri, _U32))


def parse_kick(verb: Verb, rest: bytes) -> Command:
    """Return (verb, bound). Read the bound as C's strtoul does, modulo 2**32; ignore what follows the number."""
    match = _lenient_number.match(rest)
    if match is None:
        raise BadFormat
    bound = _number(match[2], _U64)
    return (verb, (-bound if match[1] == b"-" else bound) & _U32)


def parse_timeout(verb: Verb, rest: bytes) -> Command:
    """Return (verb, timeout or None for no limit). Read -2**31 to 2**31-1 seconds; negative ones mean no limit.

    Ignore the text after the number.
    """
    match = _timeout.match(rest)
    if match is None:
        raise BadFormat
    text: bytes = match[2].partition(b".")[0] if mode.is_strict else match[2]
    if not match[1]:
        return (verb, _seconds(text, _I31))
    return (verb, None if _seconds(text, _I31 + 1) else 0)


def parse_name(verb: Verb, rest: bytes) -> Command:
    """Return (verb, name)."""
    return (verb, _fully(NAME, rest)[0])


def parse_watch(verb: Verb, rest: bytes) -> Command:
    """Return (verb, name), or (verb, name, weight)."""
    if b" " not in rest or mode.is_strict:
        return parse_name(verb, rest)
    name, weight = _words(rest, 2, 2)
    return (verb, _fully(NAME, name)[0], _whole(weight, 1, MAX_WEIGHT))


def parse_pause(verb: Verb, rest: bytes) -> Command:
    """Return (verb, name, delay, is_valid_name)."""
    name, delay = _fully(_pause_arguments, rest).groups()
    return (verb, name, _seconds(delay, _U32), is_tube_name(name))


def parse_bare(verb: Verb, rest: bytes) -> Command:
    """Return (verb,)."""
    if rest:
        raise BadFormat
    return (verb,)


def parse_quit(verb: Verb, rest: bytes) -> Command:
    """Return (verb,), whatever follows the verb."""
    return (verb,)


def _words(rest: bytes, least: int, most: int) -> list[bytes]:
    """Return the words of *rest*, which must be *least* to *most* in number."""
    words = [word for word in rest.split(b" ") if word]
    if not least <= len(words) <= most:
        raise BadFormat
    return words


def _whole(word: bytes, least: int, most: int) -> int:
    """Return the whole number in *word*, from *least* to *most*."""
    if not word.isdigit() or len(word) > _MAX_DIGITS or not least <= int(word) <= most:
        raise BadFormat
    return int(word)


def _seconds_of(word: bytes, maximum: int) -> int:
    """Return the seconds in *word* in nanoseconds."""
    _fully(_seconds_only, word)
    return _seconds(word, maximum)


def parse_reserve_batch(verb: Verb, rest: bytes) -> Command:
    """Return (verb, count, timeout or 0)."""
    words = _words(rest, 1, 2)
    return (verb, _whole(words[0], 1, MAX_BATCH), _seconds_of(words[1], _I31) if len(words) == 2 else 0)


def parse_delete_batch(verb: Verb, rest: bytes) -> Command:
    """Return (verb, ids)."""
    return (verb, [_whole(word, 0, _U64) for word in _words(rest, 1, MAX_BATCH)])


def parse_reprioritize(verb: Verb, rest: bytes) -> Command:
    """Return (verb, id, pri)."""
    id, pri = _words(rest, 2, 2)
    return (verb, _whole(id, 0, _U64), _whole(pri, 0, _U32))


def parse_wait(verb: Verb, rest: bytes) -> Command:
    """Return (verb, id, timeout or None)."""
    words = _words(rest, 1, 2)
    return (verb, _whole(words[0], 0, _U64), _seconds_of(words[1], _I31) if len(words) == 2 else None)


def parse_reserve_mode(verb: Verb, rest: bytes) -> Command:
    """Return (verb, name of the mode)."""
    return _choice(verb, rest, RESERVE_MODES)


def parse_stats_mode(verb: Verb, rest: bytes) -> Command:
    """Return (verb, name of the mode)."""
    return _choice(verb, rest, STATS_MODES)


def _choice(verb: Verb, rest: bytes, choices: tuple[bytes, ...]) -> Command:
    (name,) = _words(rest, 1, 1)
    if name not in choices:
        raise BadFormat
    return (verb, name)


def parse_meta(verb: Verb, rest: bytes) -> Command:
    """Return (verb, fields)."""
    fields = _words(rest, 0, len(META_FIELDS))
    if len(set(fields)) < len(fields) or not set(fields).issubset(META_FIELDS):
        raise BadFormat
    return (verb, tuple(fields))
