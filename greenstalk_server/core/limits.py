"""Resource limits, and counters of how often each was hit.

`Limits` holds what the operator has set, `LimitCounters` counts refused and delayed requests, and `JobQuotas` compares
jobs and tubes with those limits that concern them. Each limit is checked by the owner of the resource: the broker, a
session, a connection, or the server (see greenstalk_server.net.admission). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from greenstalk_server.core.listener import BrokerListener
from greenstalk_server.core.outcomes import Refusal

if TYPE_CHECKING:
    from greenstalk_server.core.tubes.tube import Tube

LIMIT_DESCRIPTIONS: Final = {
    "access": "commands that the access rules refused",
    "connections": "connections closed on accept: the maximum was reached (--max-connections)",
    "connections_per_address": "connections closed on accept: too many of one address (--max-connections-per-address)",
    "handshake": "connections closed because the TLS handshake failed or timed out",
    "files": "times that accepting was paused: no file descriptor was free (ulimit -n)",
    "epoll": "connections closed on accept: epoll could not add another socket (fs.epoll.max_user_watches)",
    "jobs": "puts refused: the maximum number of jobs was reached (--max-jobs)",
    "bytes": "puts refused: the maximum total size of job bodies was reached (--max-bytes)",
    "tube_jobs": "puts refused: the maximum number of jobs in the tube was reached (--max-tube-jobs)",
    "tube_bytes": "puts refused: the maximum total size of the tube's job bodies was reached (--max-tube-bytes)",
    "tubes": "uses and watches refused: the maximum number of tubes was reached (--max-tubes)",
    "watched": "watches refused: the connection watched the maximum number of tubes (--max-watched; 512 with weights)",
    "shards": "puts refused: their policy copies jobs, or pushes them out, to a tube of another shard (--pin)",
    "rate": "times that a connection was throttled: it exceeded its commands per second (--max-rate)",
    "output": "times that reading from a connection was paused: too many replies waited for the disk (--max-output)",
    "listings": "commands list-tubes and list-tubes-watched refused, because too many long lists were being sent",
    "idle_timeout": "connections closed because they sent nothing for too long (--idle-timeout)",
    "command_timeout": "connections closed because a command was not completed in time (--command-timeout)",
    "dead_peer_timeout": "connections closed because the peer no longer responded (--dead-peer-timeout)",
    "request_timeout": "HTTP connections closed because a request was not received, or its response not read, in time",
}
"""Descriptions of the counters by limit name, as used in every output, with the option that sets the limit, if any."""

LIMIT_NAMES: Final = {
    Refusal.JOBS: "jobs",
    Refusal.BYTES: "bytes",
    Refusal.TUBE_JOBS: "tube_jobs",
    Refusal.TUBE_BYTES: "tube_bytes",
    Refusal.TUBES: "tubes",
    Refusal.WATCHED: "watched",
    Refusal.OTHER_SHARD: "shards",
}
"""For each refusal by a limit, the name of the limit in LIMIT_DESCRIPTIONS. MEMORY and JOURNAL are not limits of
`Limits`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The maximum of each resource; 0 means no limit.

    connections, connections_per_address   open connections of the beanstalk protocol.
    jobs, bytes             jobs in all tubes, and bytes of their bodies.
    tube_jobs, tube_bytes   jobs in one tube, and bytes of their bodies.
    tubes                   tubes in existence.
    watched                 tubes that one connection watches.
    rate                    commands of one connection per second.
    output                  bytes of replies to one connection that may wait for the disk; above this, the server pauses
                            reading from the connection.
    idle_timeout            seconds without input on a connection that neither waits for a job nor holds one.
    command_timeout         seconds from the first byte of a command to its last.
    dead_peer_timeout       seconds without an acknowledgement of data that TCP has sent.
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


class LimitCounters:
    """Counters of how often each limit was hit since the start."""

    def __init__(self, listeners: Iterable[BrokerListener] = ()) -> None:
        """*listeners* are notified of each hit; the list may grow."""
        self._counts: dict[str, int] = dict.fromkeys(LIMIT_DESCRIPTIONS, 0)
        self._listeners: Iterable[BrokerListener] = listeners

    def note(self, limit: str, address: str = "", what: str = "") -> None:
        """Count a hit of *limit*, a name in LIMIT_DESCRIPTIONS, and notify the listeners."""
        self._counts[limit] += 1
        for listener in self._listeners:
            listener.on_limit_hit(limit, address, what)

    def counts(self) -> dict[str, int]:
        """Return the number of hits by limit."""
        return dict(self._counts)


class JobQuotas:
    """The limits of jobs and tubes. Its methods are queries: they count nothing.

    body_bytes  size in bytes of the bodies of all jobs; the broker keeps it current.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits: Limits = limits
        self.body_bytes: int = 0

    def refuse_job(self, tube: Tube, size: int, jobs: int) -> int:
        """Return why *tube* may not have one more job with a body of *size* bytes, or 0 if it may.

        *jobs* is the number of jobs in all tubes.
        """
        limits = self._limits
        if limits.jobs and jobs >= limits.jobs:
            return Refusal.JOBS
        if limits.bytes and self.body_bytes + size > limits.bytes:
            return Refusal.BYTES
        return self.refuse_move(tube, 1, size)

    def refuse_move(self, tube: Tube, jobs: int, size: int) -> int:
        """Return why *jobs* jobs with bodies of *size* bytes in total may not move to *tube*, or 0 if they may."""
        limits = self._limits
        if limits.tube_jobs and tube.job_count + jobs > limits.tube_jobs:
            return Refusal.TUBE_JOBS
        if limits.tube_bytes and tube.body_bytes + size > limits.tube_bytes:
            return Refusal.TUBE_BYTES
        return 0

    def refuse_tube(self, tubes: int) -> int:
        """Return why a tube may not be created, or 0 if it may; *tubes* is the number of existing tubes."""
        limit = self._limits.tubes
        return Refusal.TUBES if limit and tubes >= limit else 0


def job_quotas(limits: Limits) -> JobQuotas | None:
    """Return the quotas that *limits* set for jobs and tubes, or None if they set none."""
    is_any = limits.jobs or limits.bytes or limits.tube_jobs or limits.tube_bytes or limits.tubes
    return JobQuotas(limits) if is_any else None
