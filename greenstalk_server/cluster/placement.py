"""The place of one process among several: which of them it is, and what its parent passes to it.

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

from greenstalk_server.cluster.status import HOME
from greenstalk_server.config.options import Options
from greenstalk_server.core.jobs.id_sequence import IdSequence
from greenstalk_server.core.tube_shards import Pin
from greenstalk_server.journal.shard_file import ShardIdentity
from greenstalk_server.runtime.system import hide_secrets

PLACEMENT: Final = "_GREENSTALK_PLACEMENT"
"""Environment variable that passes the placement to a child."""

ACCEPTING: Final = b"ACCEPTING"
READY: Final = b"READY"
STOPPING: Final = b"STOPPING"
FAILED: Final = b"FAILED "
VACANT: Final = b"VACANT "
"""Reports of a child to its parent, each one a packet. A server of a cluster is ACCEPTING before it has reached the
database, and READY after that. The message of a failed start follows FAILED, and the numbers of the shards that have
neither an owner nor a standby follow VACANT, as JSON."""

MAX_REPORT: Final = 4096
"""Bytes of a report; a longer message is cut."""


@dataclass(frozen=True, slots=True)
class ShardPlacement:
    """The shard that a process owns as long as it lives, if the queue is in a directory or in memory.

    queue       random id of the queue.
    shards      number of shards of the queue, one for each process.
    shard       the own shard, from 0.
    base        ids below it belong to shard 0.
    pins        pins of tubes to shards, as the parent has read them: a child may read a configuration file that was
                changed since.
    secret      what the processes of one start of the parent know, in hexadecimal; it proves to a process that a
                connection to its link socket comes from another one.
    directory   directory of the own journal; None: jobs are in memory only.
    link_fd     listening Unix socket for connections of the other processes.
    links       path of the link socket of each shard.
    """

    queue: str
    shards: int
    shard: int
    base: int
    pins: tuple[Pin, ...]
    secret: str = field(repr=False)
    directory: str | None
    link_fd: int
    links: tuple[str, ...]

    @property
    def identity(self) -> ShardIdentity:
        """The shard, as its directory records it."""
        return ShardIdentity(self.queue, IdSequence(self.base, self.shards, self.shard))


@dataclass(frozen=True, slots=True)
class Placement:
    """One process of a parent, and the file descriptors that it has inherited.

    number      number of the process, from 0; an extra server has one that is not below `count`.
    count       number of processes without extra ones.
    process     random id of this start of the process.
    listeners   name of each inherited socket of clients, and whether it uses TLS.
    control_fd  socket to the parent, which ends when the parent ends.
    shard       the shard that it owns; None: it is a server of a cluster, which leads any shard, or none.
    sockets     directory of the Unix sockets of the links of servers of a cluster without --link.
    """

    number: int
    count: int
    process: str
    listeners: tuple[tuple[str, bool], ...]
    control_fd: int
    shard: ShardPlacement | None = None
    sockets: str = ""

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
        if (shard := values["shard"]) is not None:
            shard["links"] = tuple(shard["links"])
            shard["pins"] = tuple([Pin(tuple(patterns), number) for patterns, number in shard["pins"]])
            values["shard"] = ShardPlacement(**shard)
            os.set_inheritable(values["shard"].link_fd, False)
        placement = cls(**values)
        os.set_inheritable(placement.control_fd, False)
        return placement

    @property
    def name(self) -> str:
        """Name of the process in the log of its parent."""
        return f"server {self.number + 1}" if self.shard is None else f"shard {self.number}"

    @property
    def is_extra(self) -> bool:
        """Whether this is an extra server: see extra_server."""
        return self.number >= self.count

    @property
    def log_field(self) -> tuple[str, int]:
        """Name and value of the field that each line of its log has."""
        return ("server", self.number + 1) if self.shard is None else ("shard", self.number)

    @property
    def serves_dashboard(self) -> bool:
        """Whether this process listens on the web port, for all processes of the parent."""
        return self.number == HOME

    def as_json(self) -> str:
        """Return the value of the environment variable."""
        return json.dumps(asdict(self))

    def share_of(self, options: Options) -> Options:
        """Return the options of this process: *options* with its directory or the address of its links, and its limits.

        Limits of the whole server are divided by the number of processes and rounded up; 0, no limit, stays 0.
        """
        limits = options.limits
        names = DIVIDED_LIMITS if self.shard is not None else DIVIDED_LIMITS_OF_SERVERS
        divided = {name: self._part_of(getattr(limits, name)) for name in names}
        options = replace(
            options,
            limits=replace(limits, **divided),
            memory_limit=self._part_of(options.memory_limit),
        )
        if self.shard is not None:
            return replace(options, data_dir=self.shard.directory, pins=self.shard.pins)
        if options.link is None:
            return replace(options, link=f"unix:{self.sockets}/{self.number + 1}")
        listen = options.link_listen
        return replace(
            options,
            link=address_of(options.link, self.number),
            link_listen=address_of(listen, self.number) if listen is not None else None,
        )

    def report_failure(self, message: str) -> None:
        """Tell the parent that this process cannot start, and why."""
        with socket.socket(fileno=os.dup(self.control_fd)) as control:
            control.send((FAILED + message.encode())[:MAX_REPORT])

    def _part_of(self, limit: int) -> int:
        return -(-limit // self.count)


def address_of(link: str, number: int) -> str:
    """Return the address of the links of process *number*, from 0: each has the port after that of the one before.

    *link* is the address of the first one. With port 0, each gets a free one.
    """
    host, _, port = link.rpartition(":")
    has_port = port.isdigit() and int(port) != 0 and (":" not in host or host.endswith("]"))
    return f"{host}:{int(port) + number}" if has_port else link


DIVIDED_LIMITS: Final = ("connections", "connections_per_address", "jobs", "bytes", "tubes")
"""Fields of Limits that are about the whole server. The others are about one tube or one connection."""

DIVIDED_LIMITS_OF_SERVERS: Final = ("connections", "connections_per_address")
"""Those that are about all servers of a machine. In a cluster, the limits of jobs and tubes are about a shard."""
