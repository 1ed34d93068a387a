"""Play one conversation to one server, and return the transcript with its replies."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.support.servers import Server
from tests.support.wire import Connection

from .ids import Ids, LearnedIds
from .normalise import normalise
from .script import (
    Close,
    ContinueServer,
    Conversation,
    HalfClose,
    Open,
    PauseServer,
    Quiet,
    Read,
    ReadToEnd,
    Send,
    Signal,
    Step,
    Wait,
)

READ_TIMEOUT = 0.1
"""Short, because a read calls the barrier and receives once more before it reports SILENCE."""
TIMED_READ_TIMEOUT = 6.0


@dataclass(frozen=True, slots=True)
class Entry:
    """One step of a transcript: the line of the corpus, and the replies that the step read."""

    line: str
    replies: tuple[str, ...]
    at: float
    """Seconds from the start of the conversation to the last reply of the step."""

    def rewritten(self, rewrite: Callable[[str], str]) -> Entry:
        return dataclasses.replace(self, replies=tuple(map(rewrite, self.replies)))

    def __str__(self) -> str:
        indented = [f"    {line}" for reply in self.replies for line in reply.splitlines()]
        return "\n".join([self.line, *indented])


Transcript = list[Entry]


def play(server: Server, conversation: Conversation, expected: Sequence[str] = ()) -> Transcript:
    """Play *conversation* to *server* on new connections; half-close each at the end, in the order of opening.

    From *expected*, the expected replies, the ids of a server of several shards are learned.
    """
    player = _Player(server, conversation, expected)
    try:
        return player.play()
    finally:
        player.close()


def replies(transcript: Transcript) -> list[str]:
    return [reply for entry in transcript for reply in entry.replies]


class _Player:
    """Plays one conversation; `steps` has the steps taken so far: the line, its replies, and the time."""

    def __init__(self, server: Server, conversation: Conversation, expected: Sequence[str]) -> None:
        self.server = server
        self.baseline = base = server.reset()
        self.ids = Ids(base.last_id) if base.shards == 1 else LearnedIds(base.last_id, base.shards, expected)
        self.conversation = conversation
        self.steps: list[tuple[str, list[bytes], float]] = []
        self.connections: dict[str, Connection] = {}
        self.started_at = time.monotonic()

    def play(self) -> Transcript:
        """Take all steps; then half-close the open connections in the order of opening, and read what remains."""
        for line, step in self.conversation.steps:
            self._record(line, self._take(step))
        for name, connection in self.connections.items():
            connection.half_close()
            self._record(f"{name} at the end", connection.read_to_end())
        # Only now all ids are known.
        return [Entry(line, tuple(map(self._normalised, raw)), at) for line, raw, at in self.steps]

    def close(self) -> None:
        self.server.resume()
        for connection in self.connections.values():
            connection.close()

    def _connection(self, name: str) -> Connection:
        if name not in self.connections:
            timeout = TIMED_READ_TIMEOUT if self.conversation.is_timed else READ_TIMEOUT
            self.connections[name] = self.server.connect(timeout)
        return self.connections[name]

    def _take(self, step: Step) -> list[bytes]:
        match step:
            case Send(name, payload, reads_reply):
                self._connection(name).send(payload.render(self.ids))
                if reads_reply:
                    found = self._read(name, 1)
                    self.server.settle()
                    return found
                self.server.barrier()
            case Read(name, count):
                return self._read(name, count)
            case ReadToEnd(name):
                return self._connection(name).read_to_end()
            case Quiet(name):
                self.server.barrier()
                return self._connection(name).read_arrived()
            case Open(name):
                self._connection(name)
                self.server.barrier()
            case HalfClose(name):
                self._connection(name).half_close()
                self.server.barrier()
            case Close(name):
                self.connections.pop(name).close()
                self.server.barrier()
            case Wait() | Signal() | PauseServer() | ContinueServer():
                self._take_without_connection(step)
        return []

    def _take_without_connection(self, step: Wait | Signal | PauseServer | ContinueServer) -> None:
        match step:
            case Wait(seconds):
                time.sleep(seconds)
            case Signal(number):
                self.server.signal(number)
            case PauseServer():
                self.server.pause()
            case ContinueServer():
                self.server.resume()

    def _read(self, name: str, count: int) -> list[bytes]:
        connection = self._connection(name)
        return [connection.read_reply() for _ in range(count)]

    def _record(self, line: str, raw: list[bytes]) -> None:
        for reply in raw:
            self.ids.learn(reply)
        self.steps.append((line, raw, time.monotonic() - self.started_at))

    def _normalised(self, reply: bytes) -> str:
        return normalise(reply, self.baseline, self.ids)
