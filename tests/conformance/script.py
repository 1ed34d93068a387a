r"""The language of the corpus: conversations as text, parsed into steps.

A corpus is a string of conversations. Each is a title, followed by one step per line::

    == release-with-delay  timed
    # Comments start with a hash.
    a> put 0 0 10 5\r\nhello      send this and CRLF, read one reply
    a>> reserve                   send this and CRLF, read nothing yet
    a+ list-tu                    send exactly this, read nothing
    a< 2                          read two replies (without a number: one)
    a open                        connect (the first step of a connection connects too)
    a quiet                       record what has arrived, expected to be nothing
    a half-close                  send FIN; replies can still be read
    a end                         read to the end of the stream
    a close                       close without reading
    wait 1.5                      sleep for 1.5 seconds
    signal SIGUSR1                send the server a signal
    pause-server                  stop the server's process; later input queues up in the kernel
    continue-server               resume the process

Names of connections are single letters. In payloads, ``\r \n \t \0 \\ \xHH`` are escapes, ``{3}`` is the third job
id that the conversation allocates, and ``{ab*100}`` is ``ab`` a hundred times. A trailing space is written ``\x20``.

Options follow the title: ``timed`` (elapsed times are compared too), ``own-server`` (the conversation changes its
server permanently), ``-z 100`` (server flags).
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from .ids import Ids


@dataclass(frozen=True, slots=True)
class Payload:
    """Bytes to send. An int n is replaced by the n-th job id that the conversation allocates."""

    parts: tuple[bytes | int, ...]

    def render(self, ids: Ids) -> bytes:
        return b"".join(part if isinstance(part, bytes) else b"%d" % ids.id(part) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Send:
    """Send *payload*, then read one reply if *reads_reply*."""

    connection: str
    payload: Payload
    reads_reply: bool


@dataclass(frozen=True, slots=True)
class Read:
    connection: str
    count: int


@dataclass(frozen=True, slots=True)
class Open:
    connection: str


@dataclass(frozen=True, slots=True)
class Quiet:
    """Record the replies that have arrived; normally there are none."""

    connection: str


@dataclass(frozen=True, slots=True)
class HalfClose:
    connection: str


@dataclass(frozen=True, slots=True)
class ReadToEnd:
    connection: str


@dataclass(frozen=True, slots=True)
class Close:
    connection: str


@dataclass(frozen=True, slots=True)
class Wait:
    seconds: float


@dataclass(frozen=True, slots=True)
class Signal:
    number: signal.Signals


@dataclass(frozen=True, slots=True)
class PauseServer:
    pass


@dataclass(frozen=True, slots=True)
class ContinueServer:
    pass


Step = Send | Read | Open | Quiet | HalfClose | ReadToEnd | Close | Wait | Signal | PauseServer | ContinueServer

_CONNECTION_VERBS: dict[str, type[Open | Quiet | HalfClose | ReadToEnd | Close]] = {
    "open": Open,
    "quiet": Quiet,
    "half-close": HalfClose,
    "end": ReadToEnd,
    "close": Close,
}


@dataclass(frozen=True, slots=True)
class Conversation:
    name: str
    steps: tuple[tuple[str, Step], ...]
    """Each step with the line of the corpus that it came from."""
    flags: tuple[str, ...] = ()
    """Command-line flags of its server."""
    is_timed: bool = False
    needs_own_server: bool = False

    @property
    def seconds(self) -> float:
        """Total time of the `wait` steps in seconds, for scheduling."""
        return sum(step.seconds for _, step in self.steps if isinstance(step, Wait))


class ScriptError(ValueError):
    """A line of the corpus is invalid."""


def parse_corpus(text: str) -> list[Conversation]:
    """Return the conversations in *text*; raise ScriptError on an invalid line."""
    return [_conversation(title, lines) for title, lines in _sections(text)]


def _sections(text: str) -> Iterator[tuple[str, list[str]]]:
    title, lines = "", list[str]()
    for line in (raw.strip() for raw in text.splitlines()):
        if line.startswith("== "):
            if title:
                yield title, lines
            title, lines = line[3:], []
        elif line and not line.startswith("#"):
            if not title:
                raise ScriptError(f"a step before the first title: {line!r}")
            lines.append(line)
    if title:
        yield title, lines


def _conversation(title: str, lines: list[str]) -> Conversation:
    name, _, options = title.partition(" ")
    words = options.split()
    marks = {"timed", "own-server"} & set(words)
    return Conversation(
        name=name,
        steps=tuple((line, parse_step(line)) for line in lines),
        flags=tuple(word for word in words if word not in marks),
        is_timed="timed" in marks,
        needs_own_server="own-server" in marks,
    )


_SEND = re.compile(r"([a-z])(>>|>|\+)(?: (.*))?$")
_READ = re.compile(r"([a-z])<(?: (\d+))?$")
_VERB = re.compile(r"([a-z]) ([a-z-]+)$")
_WAIT = re.compile(r"wait (\d+(?:\.\d+)?)$")
_SERVER_STEPS: dict[str, Step] = {"pause-server": PauseServer(), "continue-server": ContinueServer()}
_SIGNAL = re.compile(r"signal (SIG[A-Z0-9]+)$")


def parse_step(line: str) -> Step:
    """Return the step in *line*; raise ScriptError if it is invalid."""
    if found := _SEND.match(line):
        connection, arrow, text = found.groups()
        ending = "" if arrow == "+" else r"\r\n"
        return Send(connection, parse_payload((text or "") + ending), reads_reply=arrow == ">")
    if found := _READ.match(line):
        return Read(found[1], int(found[2] or 1))
    if (found := _VERB.match(line)) and found[2] in _CONNECTION_VERBS:
        return _CONNECTION_VERBS[found[2]](found[1])
    if found := _WAIT.match(line):
        return Wait(float(found[1]))
    if found := _SIGNAL.match(line):
        return Signal(signal.Signals[found[1]])
    if line in _SERVER_STEPS:
        return _SERVER_STEPS[line]
    raise ScriptError(f"not a step: {line!r}")


_TOKEN = re.compile(
    r"\{(?P<id>\d+)\}"
    r"|\{(?P<unit>[^{}]+)\*(?P<times>\d+)\}"
    r"|\\x(?P<hex>[0-9a-fA-F]{2})"
    r"|\\(?P<escape>.)"
)
_ESCAPES = {"r": b"\r", "n": b"\n", "t": b"\t", "0": b"\0", "\\": b"\\"}


def parse_payload(text: str) -> Payload:
    """Return the payload in *text*; raise ScriptError on an unknown escape or a stray brace."""
    parts: list[bytes | int] = []
    position = 0
    for token in _TOKEN.finditer(text):
        parts.append(_literal(text[position : token.start()]))
        parts.append(_token_value(token))
        position = token.end()
    parts.append(_literal(text[position:]))
    return Payload(tuple(_joined(parts)))


def _literal(text: str) -> bytes:
    if "{" in text or "}" in text:
        raise ScriptError(f"a stray brace in {text!r}")
    return text.encode("ascii")


def _token_value(token: re.Match[str]) -> bytes | int:
    if token["id"]:
        return int(token["id"])
    if token["unit"]:
        return parse_payload(token["unit"]).render(Ids(0)) * int(token["times"])
    if token["hex"]:
        return bytes.fromhex(token["hex"])
    if token["escape"] not in _ESCAPES:
        raise ScriptError(f"an unknown escape: {token[0]!r}")
    return _ESCAPES[token["escape"]]


def _joined(parts: list[bytes | int]) -> Iterator[bytes | int]:
    """Yield *parts* with adjacent bytes joined."""
    pending = b""
    for part in parts:
        if isinstance(part, bytes):
            pending += part
        else:
            if pending:
                yield pending
            yield part
            pending = b""
    if pending:
        yield pending
