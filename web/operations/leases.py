"""Leases: jobs reserved by who comes and goes with each request, held by a token until the ttr ends.

**A reserve is a client.** Each request that reserves is one client of the broker: it is there while it waits, and then
while it holds one of the jobs that it got. It ends with the last of them, whether that was deleted, released or buried,
its ttr ran out, or an admin took it. So it waits in line with all other clients, counts as one connection, a worker
that watches the tubes it named, and its jobs time out as any do. Not a client for each worker: nobody would say when it
has gone, and what it holds would keep one request from waiting for the sake of another (DEADLINE_SOON).

**A lease is a token.** It names one reservation of one job, by how often that had been reserved, and is signed with a
key of this process; nothing is kept of it. So it ends with its reservation by itself, whatever ended that, cannot be
guessed, and is told from one that never was. It is a secret: it belongs in no log.

**An end is noticed**, since the broker takes a job from its holder by `del client.reserved[id]`, and nothing else: the
dict of these clients tells when it is empty. That costs other clients nothing.

Knows no HTTP: of who asks it is told a name, an address, and a Peer.
"""

from __future__ import annotations

import hmac
import re
import secrets
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Final

from gevent import get_hub
from gevent.event import Event

from greenstalk_server.core.body_cache import held_bodies
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.job import RESERVED, STATE_NAMES, Job
from greenstalk_server.core.limits import LIMIT_NAMES
from greenstalk_server.core.outcomes import WaitOutcome
from greenstalk_server.core.transitions import DEFAULT_TUBE
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.jobs.bodies import read
from greenstalk_server.web.live.peer import Peer

BYTES_AT_MOST: Final = 1024 * 1024
"""Bytes of bodies after which a reserve takes no further job; a single one may be larger."""

ASKING_AT_MOST: Final = 1000
"""Reserves under way at once, most of them waiting."""

CLIENTS_AT_MOST: Final = 10_000
"""Reserves that wait or have jobs out. It bounds what a page of connections has to look through."""

RESERVATION: Final = struct.Struct(">QQ")
"""What a token names: the job's id, and how often that has been reserved."""

SIGNATURE_SIZE: Final = 17
"""Bytes; what follows is base64, which goes by threes."""

TOKEN_LENGTH: Final = (RESERVATION.size + SIGNATURE_SIZE) // 3 * 4
"""Characters of a token: A–Z, a–z, 0–9, `-` and `_`."""

_FORM: Final = re.compile(rf"[A-Za-z0-9_-]{{{TOKEN_LENGTH}}}")


class Refused(Exception):
    """A reserve that cannot be served now; the message says why. Nothing was reserved."""


class NoLease(Exception):
    """There is no such lease; the message says why."""


class LeaseEnded(NoLease):
    """There was, and its reservation is over."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What one reserve asks for.

    tubes           names, at least one.
    count           of jobs, at most.
    wait            nanoseconds, until it gives up.
    worker, address whom it is for, as an operator is shown it; the name may be empty.
    """

    tubes: tuple[bytes, ...]
    count: int
    wait: int
    worker: str
    address: str


@dataclass(frozen=True, slots=True)
class Lease:
    """A reserved job with its body, and the token of that reservation."""

    job: Job
    body: bytes
    token: str = field(repr=False)


class Leases:
    """The leases of one broker.

    *commit* returns when what has been changed is as safe as an acknowledged command's; False if it takes too long.
    """

    def __init__(self, broker: Broker, clock: Clock, commit: Callable[[], bool]) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._commit: Callable[[], bool] = commit
        self._tokens: _Tokens = _Tokens()
        self._clients: dict[int, Client] = {}
        self._asking: set[int] = set()
        self._emptied: list[int] = []
        self._is_stopped: bool = False

    def reserve(self, ask: Ask, peer: Peer) -> list[Lease]:
        """Reserve jobs for *peer*, as soon as there is one; none if time is up, or if it is gone. Switches.

        Raise Refused if there are too many, if the server stops, or if the journal is too late to make sure of the
        jobs: these are ready again then. Those whose bodies are lost are buried, or it would get them again and again.
        """
        if self._is_stopped:
            raise Refused("The server is stopping.")
        if ask.wait and len(self._asking) >= ASKING_AT_MOST:
            raise Refused(f"{ASKING_AT_MOST:,} requests to reserve are waiting, and no more do at once.")
        if len(self._clients) >= CLIENTS_AT_MOST:
            raise Refused(f"{CLIENTS_AT_MOST:,} requests have jobs reserved, and no more may until some are finished.")
        woken = Event()
        client = self._connect(ask, woken)
        has_jobs, bodies = False, dict[int, bytes]()
        try:
            if self._await_jobs(client, ask, woken, peer):
                bodies = self._read(client)
                has_jobs = bool(client.reserved) and not peer.is_gone
        finally:
            self._asking.discard(client.number)
            if not has_jobs:
                self._end(client.number)
        if self._is_stopped:
            raise Refused("The server is stopping.")
        return [Lease(job, bodies[id], self._tokens.make(job)) for id, job in client.reserved.items()]

    def job(self, token: str) -> Job:
        """The job that is reserved by *token*; raise NoLease if none is, or none any more."""
        return self._held(token)[1]

    def delete(self, token: str) -> None:
        """Remove the job for good. This, and all below, raises NoLease as `job` does, and does not switch.

        The journal is told, and to be waited for before anybody hears that it is done; but not for `touch`.
        """
        client, job = self._held(token)
        self._broker.delete(client, job.id, self._clock())

    def release(self, token: str, pri: int | None, delay: int) -> None:
        """Make the job ready, or delayed for *delay* nanoseconds; None leaves its pri as it is."""
        client, job = self._held(token)
        self._broker.release(client, job.id, job.pri if pri is None else pri, delay, self._clock())

    def bury(self, token: str, pri: int | None) -> None:
        """Set the job aside; None leaves its pri as it is."""
        client, job = self._held(token)
        self._broker.bury(client, job.id, job.pri if pri is None else pri, self._clock())

    def touch(self, token: str) -> Job:
        """Give the job its whole ttr from now, and return it."""
        client, job = self._held(token)
        self._broker.touch(client, job.id, self._clock())
        return job

    def stop(self) -> None:
        """End every wait and every lease, as the server does with connections, and begin no more. Does not switch."""
        self._is_stopped = True
        for number in [*self._asking, *self._clients]:  # those who wait first, or they would be given what others held
            self._hang_up(number)

    # One reserve

    def _connect(self, ask: Ask, woken: Event) -> Client:
        """The client of a reserve, which watches what *ask* says; raise Refused if it may not watch so many."""
        broker = self._broker
        client = broker.connect(woken.set)
        client.reserved = _Held(client.number, self._note_emptied)
        client.is_http = True
        client.name, client.address, client.connected_at = ask.worker, ask.address, self._clock()
        client.hang_up = partial(self._hang_up, client.number)
        for name in ask.tubes:
            watched = broker.watch(client, name)
            if watched < 0:
                broker.disconnect(client, self._clock())
                raise Refused(f"A limit of the server is reached: {LIMIT_NAMES[watched]}.")
        if DEFAULT_TUBE not in ask.tubes:
            broker.ignore(client, DEFAULT_TUBE)
        broker.note_worker(client)
        self._clients[client.number] = client
        self._asking.add(client.number)
        return client

    def _await_jobs(self, client: Client, ask: Ask, woken: Event, peer: Peer) -> bool:
        """Have *client* hold jobs that are safe to tell *peer* of; False if it comes to nothing. Switches."""
        journal, until = self._broker.journal, self._clock() + ask.wait
        while not (client.is_closed or peer.is_gone):
            promised = journal.promised
            self._take(client, ask)
            if not client.reserved:
                if not self._park(client, until, woken, peer):
                    return False
                promised = journal.safe  # whoever has put the job that it may have been given
                if client.reserved:
                    self._take(client, ask)
            if client.reserved and journal.promised > promised and not self._commit():
                raise Refused(f"The journal is late{_because(journal.trouble)}, and the jobs may not outlive a crash.")
            if client.reserved and not peer.is_gone:
                return True
        return False

    def _take(self, client: Client, ask: Ask) -> None:
        """Reserve for *client* what is ready of what it asks for."""
        held, now = client.reserved, self._clock()
        size = sum([job.size for job in held.values()])
        while len(held) < ask.count and size < BYTES_AT_MOST:
            job = self._broker.reserve(client, now)
            if job is None:
                return
            size += job.size

    def _read(self, client: Client) -> dict[int, bytes]:
        """The bodies of the jobs of *client* by id; raise Refused if it keeps none, as all are lost. May switch."""
        broker, held = self._broker, client.reserved
        if broker.bodies is not None:
            for tube in {job.tube for job in held.values() if job.body is None}:
                broker.bodies.read_ahead(tube)
        bodies = read(broker, held.values())
        bodies |= held_bodies(held.values())  # some may have been edited meanwhile
        lost = [job for id, job in held.items() if id not in bodies]
        for job in lost:
            broker.bury(client, job.id, job.pri, self._clock())
        if lost and not self._commit():
            raise Refused(f"The journal is late{_because(broker.journal.trouble)}, and the body of a job is lost.")
        if lost and not held:
            raise Refused(
                f"The body of job {lost[0].id} cannot be read back from the disk, and the job was buried. The server's"
                " log says why."
            )
        return bodies

    def _park(self, client: Client, until: int, woken: Event, peer: Peer) -> bool:
        """Wait in line until a job comes, time is up, or *client* or *peer* is gone; False if it is late. Switches."""
        if self._broker.wait(client, until, self._clock()) != WaitOutcome.WAITING:
            return False
        woken.clear()
        with peer.watched(woken.set):
            woken.wait()
        return True

    # One lease

    def _held(self, token: str) -> tuple[Client, Job]:
        """The client that has a job by *token*, and the job; raise NoLease if there is none such."""
        named = self._tokens.read(token)
        if named is None:
            raise NoLease("This is no token of a lease that this server has given since it started.")
        id, reserves = named
        job = self._broker.jobs.get(id)
        if job is None:
            raise LeaseEnded(f"The lease of job {id} has ended: the job is deleted.")
        if job.holder is not None and job.reserves == reserves:
            return job.holder, job
        now = "reserved by another" if job.state == RESERVED else STATE_NAMES[job.state]
        raise LeaseEnded(
            f"The lease of job {id} has ended: its ttr ran out, it was finished, or somebody took it back."
            f" The job is {now} now."
        )

    # Ends

    def _note_emptied(self, number: int) -> None:
        """Part with client *number* in the next turn of the loop: the broker is in the middle of something."""
        if not self._emptied:
            get_hub().loop.run_callback(self._end_emptied)
        self._emptied.append(number)

    def _end_emptied(self) -> None:
        emptied, self._emptied = self._emptied, []
        for number in emptied:
            client = self._clients.get(number)
            if client is not None and not client.reserved and number not in self._asking:
                self._end(number)

    def _end(self, number: int) -> None:
        """Part with client *number*, unless that is done; what it holds turns ready."""
        client = self._clients.pop(number, None)
        if client is not None:
            self._broker.disconnect(client, self._clock())

    def _hang_up(self, number: int) -> None:
        """End client *number* for its operator: its wait, and its leases. Does not switch."""
        client = self._clients.get(number)
        if client is not None:
            wake = client.wake
            self._end(number)
            wake()


class _Held(dict[int, Job]):
    """The reserved jobs of client *number*; *on_empty* is called with that when the last has gone.

    It refers to the client by its number, since a cycle would never be freed (see greenstalk_server.runtime.gc_tuning).
    """

    __slots__ = ("_number", "_on_empty")

    def __init__(self, number: int, on_empty: Callable[[int], None]) -> None:
        super().__init__()
        self._number: int = number
        self._on_empty: Callable[[int], None] = on_empty

    def __delitem__(self, id: int) -> None:
        super().__delitem__(id)
        if not self:
            self._on_empty(self._number)


class _Tokens:
    """Makes and reads tokens, with a key that is new at each start."""

    def __init__(self) -> None:
        self._key: bytes = secrets.token_bytes()

    def make(self, job: Job) -> str:
        """The token of the reservation of *job* that goes on."""
        named = RESERVATION.pack(job.id, job.reserves)
        return urlsafe_b64encode(named + self._sign(named)).decode()

    def read(self, token: str) -> tuple[int, int] | None:
        """The job's id, and how often that had been reserved, when *token* was made; None if it never was."""
        if _FORM.fullmatch(token) is None:
            return None
        given = urlsafe_b64decode(token)
        named, signature = given[: RESERVATION.size], given[RESERVATION.size :]
        return RESERVATION.unpack(named) if hmac.compare_digest(signature, self._sign(named)) else None

    def _sign(self, named: bytes) -> bytes:
        return blake2b(named, key=self._key, digest_size=SIGNATURE_SIZE).digest()


def _because(trouble: str | None) -> str:
    return f" ({trouble})" if trouble else ""
