"""How much of everything there may be at most, and how often that was too little.

`Limits` is what the operator has set, `Limited` counts what was refused or held up and why, `Bounds` are those
limits that concern jobs and tubes. Each limit is checked by the owner of the resource: the broker, a session, a
connection, or the server (see greenstalk_server.net.admission).

Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from greenstalk_server.core.tube import Tube

LIMITED: Final = {
    "access": "commands that the access rules refused",
    "connections": "connections closed at once, because there were as many as there may be (--max-connections)",
    "connections_per_address": "connections closed at once: too many of one address (--max-connections-per-address)",
    "handshake": "connections closed because TLS was not agreed on, in time or at all",
    "files": "times that accepting had to wait, because no file descriptor was left (ulimit -n)",
    "epoll": "connections closed at once, because the system could not poll another one (fs.epoll.max_user_watches)",
    "jobs": "puts refused, because there were as many jobs as there may be (--max-jobs)",
    "bytes": "puts refused, because the bodies of all jobs were as large as they may be (--max-bytes)",
    "tube_jobs": "puts refused, because there were as many jobs in the tube as there may be (--max-tube-jobs)",
    "tube_bytes": "puts refused, because the bodies of the tube's jobs were as large as they may be (--max-tube-bytes)",
    "tubes": "uses and watches refused, because there were as many tubes as there may be (--max-tubes)",
    "watched": "watches refused, because the connection watched as many tubes as it may (--max-watched)",
    "rate": "times that a connection was held up, because it sent more commands in a second than it may (--max-rate)",
    "output": "times that a connection was read no further: too many replies to it waited for the disk (--max-output)",
    "listings": "commands list-tubes and list-tubes-watched refused, because too many long lists were being sent",
    "idle_timeout": "connections closed because nothing came from them for too long (--idle-timeout)",
    "command_timeout": "connections closed because a command did not come to its end in time (--command-timeout)",
    "dead_peer_timeout": "connections closed because the other side did not answer any more (--dead-peer-timeout)",
    "request_timeout": "HTTP connections closed because a request did not come, or its answer was not read, in time",
}
"""What is counted, by the name that every output has for it; and which option may be set."""

Complaint = Callable[[str, str, str], None]
"""Is told of a limit that was reached: which, the address of the client, and what it asked for."""


def _silent(limit: str, address: str, what: str) -> None:
    """Stand in for a Complaint where nobody keeps a log."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be at most; 0 is without limit.

    connections, connections_per_address   open ones of the beanstalk protocol.
    jobs, bytes             of all tubes; bytes are those of bodies.
    tube_jobs, tube_bytes   of one tube.
    tubes                   that there are.
    watched                 tubes that one connection watches.
    rate                    commands of one connection in a second.
    output                  bytes of replies to one connection that wait for the disk, before it is read no further.
    idle_timeout            seconds since anything came from a connection that neither waits for a job nor holds one.
    command_timeout         seconds from the first byte of a command to its last.
    dead_peer_timeout       seconds without an answer to what TCP sends.
    """

    connections: int = 0
    connections_per_address: int = 0
    jobs: int = 0
    bytes: int = 0
    tube_jobs: int = 0
    tube_bytes: int = 0
    tubes: int = 0
    watched: int = 0
    rate: int = 0
    output: int = 2**20
    idle_timeout: int = 0
    command_timeout: int = 0
    dead_peer_timeout: int = 0


class Limited:
    """How often each limit was reached since the start, and who is told of it."""

    __slots__ = ("_counts", "complain")

    def __init__(self) -> None:
        self._counts: dict[str, int] = dict.fromkeys(LIMITED, 0)
        self.complain: Complaint = _silent

    def note(self, limit: str, address: str = "", what: str = "") -> None:
        """Count *limit*, one of LIMITED, and tell of it."""
        self._counts[limit] += 1
        self.complain(limit, address, what)

    def counts(self) -> dict[str, int]:
        """How often, by LIMITED."""
        return dict(self._counts)


class Bounds:
    """What limits say of jobs and tubes.

    body_bytes  of the bodies of all jobs; kept by the broker.
    reached     the limit that refused what was asked for last; empty if none did.
    """

    __slots__ = ("_limited", "_limits", "body_bytes", "reached")

    def __init__(self, limits: Limits, limited: Limited) -> None:
        self._limits: Limits = limits
        self._limited: Limited = limited
        self.body_bytes: int = 0
        self.reached: str = ""

    def have_room(self, tube: Tube, size: int, jobs: int, address: str) -> bool:
        """Whether *tube* may have one more job, with a body of *size* bytes, while there are *jobs* in all."""
        limits = self._limits
        if limits.jobs and jobs >= limits.jobs:
            return self._refuse("jobs", address, tube.name)
        if limits.bytes and self.body_bytes + size > limits.bytes:
            return self._refuse("bytes", address, tube.name)
        if limits.tube_jobs and _jobs_of(tube) >= limits.tube_jobs:
            return self._refuse("tube_jobs", address, tube.name)
        if limits.tube_bytes and tube.body_bytes + size > limits.tube_bytes:
            return self._refuse("tube_bytes", address, tube.name)
        self.reached = ""
        return True

    def have_a_tube(self, tubes: int, name: bytes, address: str) -> bool:
        """Whether the tube *name* may be made while there are *tubes*."""
        return not self._limits.tubes or tubes < self._limits.tubes or self._refuse("tubes", address, name)

    def _refuse(self, limit: str, address: str, name: bytes) -> bool:
        self.reached = limit
        self._limited.note(limit, address, name.decode(errors="replace"))
        return False


def _jobs_of(tube: Tube) -> int:
    return tube.ready.count + tube.reserved_count + tube.delayed.count + len(tube.buried)


def bounds(limits: Limits, limited: Limited) -> Bounds | None:
    """The bounds that *limits* set to jobs and tubes; None if they set none, and nothing is to be looked at."""
    is_any = limits.jobs or limits.bytes or limits.tube_jobs or limits.tube_bytes or limits.tubes
    return Bounds(limits, limited) if is_any else None
