"""The place of one process among several: which shard of the queue it owns, and what its parent passes to it.

The parent executes the program with the placement as JSON in an environment variable. The process removes the variable,
because the placement has a secret.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import MutableMapping
from dataclasses import asdict, dataclass, field, replace
from typing import Final, Self

from greenstalk_server.config.options import Options
from greenstalk_server.core.jobs.id_sequence import IdSequence
from greenstalk_server.core.tube_shards import Pin
from greenstalk_server.journal.shard_file import ShardIdentity
from greenstalk_server.runtime.system import hide_secrets

PLACEMENT: Final = "_GREENSTALK_PLACEMENT"
"""Environment variable that passes the placement to a child."""

READY: Final = b"READY"
STOPPING: Final = b"STOPPING"
FAILED: Final = b"FAILED "
"""Reports of a child to its parent, each one a packet. The message of a failed start follows FAILED."""

MAX_REPORT: Final = 4096
"""Bytes of a report; a longer message is cut."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The shard that a process owns, and the file descriptors that it has inherited.

    queue       random id of the queue.
    shards      number of shards of the queue.
    shard       the own shard, from 0.
    process     random id of this start of the process.
    base        ids below it belong to shard 0.
    pins        pins of tubes to shards, as the parent has read them: a child may read a configuration file that was
                changed since.
    secret      what the processes of one start of the parent know, in hexadecimal; it proves to a process that a
                connection to its link socket comes from another one.
    directory   directory of the own journal; None: jobs are in memory only.
    listeners   name of each inherited socket of clients, and whether it uses TLS.
    link_fd     listening Unix socket for connections of the other processes.
    links       path of the link socket of each shard.
    control_fd  socket to the parent, which ends when the parent ends.
    """

    queue: str
    shards: int
    shard: int
    process: str
    base: int
    pins: tuple[Pin, ...]
    secret: str = field(repr=False)
    directory: str | None
    listeners: tuple[tuple[str, bool], ...]
    link_fd: int
    links: tuple[str, ...]
    control_fd: int

    @classmethod
    def take(cls, environ: MutableMapping[str, str]) -> Self | None:
        """Remove the placement from *environ* and return it; return None if there is none.

        The descriptors are no longer passed to programs that this process executes.
        """
        if (text := environ.get(PLACEMENT)) is None:
            return None
        hide_secrets([PLACEMENT])  # before the removal, after which the value could not be found and overwritten
        del environ[PLACEMENT]
        values = json.loads(text)
        values["listeners"] = tuple([(name, is_tls) for name, is_tls in values["listeners"]])
        values["links"] = tuple(values["links"])
        values["pins"] = tuple([Pin(tuple(patterns), shard) for patterns, shard in values["pins"]])
        placement = cls(**values)
        os.set_inheritable(placement.link_fd, False)
        os.set_inheritable(placement.control_fd, False)
        return placement

    @property
    def identity(self) -> ShardIdentity:
        """The shard, as its directory records it."""
        return ShardIdentity(self.queue, IdSequence(self.base, self.shards, self.shard))

    def as_json(self) -> str:
        """Return the value of the environment variable."""
        return json.dumps(asdict(self))

    def share_of(self, options: Options) -> Options:
        """Return the options of this process: *options* with the directory and limits of its shard.

        Limits of the whole server are divided by the number of shards and rounded up; 0, no limit, stays 0.
        """
        limits = options.limits
        divided = {name: self._part_of(getattr(limits, name)) for name in DIVIDED_LIMITS}
        return replace(
            options,
            data_dir=self.directory,
            pins=self.pins,
            limits=replace(limits, **divided),
            memory_limit=self._part_of(options.memory_limit),
        )

    def report_failure(self, message: str) -> None:
        """Tell the parent that this process cannot start, and why."""
        with socket.socket(fileno=os.dup(self.control_fd)) as control:
            control.send((FAILED + message.encode())[:MAX_REPORT])

    def _part_of(self, limit: int) -> int:
        return -(-limit // self.shards)


DIVIDED_LIMITS: Final = ("connections", "connections_per_address", "jobs", "bytes", "tubes")
"""Fields of Limits that are about the whole server. The others are about one tube or one connection."""
