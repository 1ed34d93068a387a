"""Leases: jobs reserved over HTTP, held by a token until the ttr ends.

**Each reserve is a client.** A request that reserves is one client of the broker. The client exists while the request
waits, and then until each job that it reserved is deleted, released, buried, timed out or taken by an admin. So a
reserve waits in line with all other clients, counts as one connection and as a worker that watches its tubes, and its
jobs time out as usual. The alternative was one client per worker. It has two flaws: the server could not detect that a
worker is gone, and the jobs that a worker holds would end the wait of its next request (DEADLINE_SOON).

**A lease is a token.** The token names one reservation: the job's id and its count of reserves, signed with a key of
this process. The server stores nothing for it. So a lease ends together with its reservation, its token cannot be
guessed, and the server can tell the token of an ended lease from a forged one. A token is a secret and must not be
logged.

**Detection of the end.** The broker takes a job from its holder only by `del client.reserved[id]`. For these clients
`reserved` is a dict subclass that calls back when its last item is removed. Other clients have a plain dict, at no
cost.

This module does not depend on HTTP. The caller passes a worker name, an address, and a Peer.
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
from typing import Any, Final

from gevent import get_hub
from gevent.event import Event

from greenstalk_server.core.broker import DEFAULT_TUBE, Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs.body_cache import resident_bodies
from greenstalk_server.core.jobs.job import RESERVED, STATE_NAMES, Job
from greenstalk_server.core.limits import LIMIT_NAMES
from greenstalk_server.core.operations import connecting, finishing, reserving
from greenstalk_server.core.outcomes import WaitOutcome
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.live.peer import Peer
from greenstalk_server.web.reads.jobs.bodies import load_bodies

MAX_BYTES: Final = 1024 * 1024
"""Bytes of bodies after which a reserve takes no further job. A single body may be larger."""

CONFIRM_TIMEOUT: Final = 10.0
"""Seconds after which a lease that its caller has not confirmed ends."""

MAX_WAITING: Final = 1000
"""Reserves in progress. Most of them wait for a job."""

MAX_CLIENTS: Final = 10_000
"""Reserves that wait or hold jobs. This bounds the work of a page that lists connections."""

RESERVATION: Final = struct.Struct(">QQ")
"""Payload of a token: the job's id, and its count of reserves."""

SIGNATURE_SIZE: Final = 17
"""Bytes. RESERVATION and the signature together are a multiple of 3 bytes, so their base64 needs no padding."""

TOKEN_LENGTH: Final = (RESERVATION.size + SIGNATURE_SIZE) // 3 * 4
"""Characters of a token: A–Z, a–z, 0–9, `-` and `_`."""

_FORM: Final = re.compile(rf"[A-Za-z0-9_-]{{{TOKEN_LENGTH}}}")


class ReserveRefused(Exception):
    """The server cannot serve a reserve now; the message is the reason. Nothing was reserved."""


class NoLease(Exception):
    """The token does not belong to a current lease; the message says why."""


class LeaseEnded(NoLease):
    """The token is genuine, but its reservation has ended."""


@dataclass(frozen=True, slots=True)
class ReserveRequest:
    """One request to reserve.

    tubes           tube names, at least one.
    count           the maximum number of jobs to reserve.
    wait            nanoseconds to wait for the first job.
    worker, address name and address of the worker, for operators; the name may be empty.
    must_confirm    the caller, another process, calls `confirm` when it has received the leases.
    """

    tubes: tuple[bytes, ...]
    count: int
    wait: int
    worker: str
    address: str
    must_confirm: bool = False


@dataclass(frozen=True, slots=True)
class Lease:
    """A reserved job, its body, and the token of the reservation; *number* is that of the reserve, for `confirm`."""

    job: Job
    body: bytes
    token: str = field(repr=False)
    number: int = 0


class Leases:
    """The leases of one broker.

    *commit* waits until all changes so far are as durable as an acknowledged command; it returns False on a timeout.
    """

    def __init__(self, broker: Broker, clock: Clock, commit: Callable[[], bool]) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._commit: Callable[[], bool] = commit
        self._tokens: _Tokens = _Tokens()
        self._clients: dict[int, Client] = {}
        self._waiting: set[int] = set()
        self._emptied: list[int] = []
        self._unconfirmed: dict[int, Any] = {}  # timers, by the number of the client
        self._is_stopped: bool = False

    def reserve(self, request: ReserveRequest, peer: Peer) -> list[Lease]:
        """Reserve jobs for *peer*; return none if the wait ends first or *peer* is gone. Switches.

        Raise ReserveRefused if too many reserves are under way, if a limit of the server is reached, if the server is
        stopping, if the journal cannot make the jobs durable in time (the jobs are then ready again), or if the bodies
        of all the jobs are lost. Jobs whose bodies are lost are buried, so that the next reserve does not get them
        again.
        """
        if self._is_stopped:
            raise ReserveRefused("The server is stopping.")
        if request.wait and len(self._waiting) >= MAX_WAITING:
            raise ReserveRefused(f"{MAX_WAITING:,} requests to reserve are waiting, which is the maximum.")
        if len(self._clients) >= MAX_CLIENTS:
            raise ReserveRefused(
                f"{MAX_CLIENTS:,} requests hold reserved jobs, which is the maximum. Finish some of these jobs first."
            )
        woken = Event()
        client = self._connect(request, woken)
        has_jobs, bodies = False, dict[int, bytes]()
        try:
            if self._await_jobs(client, request, woken, peer):
                bodies = self._read(client)
                has_jobs = bool(client.reserved) and not peer.is_gone
        finally:
            self._waiting.discard(client.number)
            if not has_jobs:
                self._end(client.number)
        if self._is_stopped:
            raise ReserveRefused("The server is stopping.")
        if request.must_confirm and client.reserved:
            timer = self._unconfirmed[client.number] = get_hub().loop.timer(CONFIRM_TIMEOUT)
            timer.start(self.undo, client.number)
        return [Lease(job, bodies[id], self._tokens.make(job), client.number) for id, job in client.reserved.items()]

    def confirm(self, number: int) -> bool:
        """Note that the caller has the leases of the reserve *number*; return False if they have ended.

        Without this, a reserve with `must_confirm` is undone after CONFIRM_TIMEOUT. Does not switch.
        """
        return self._end_timer(number)

    def undo(self, number: int) -> None:
        """Undo the reserve *number*, unless it is confirmed: nobody has the leases. Does not switch.

        The jobs become ready. The reservations do not count, so later ones may have the same tokens.
        """
        if number in self._unconfirmed:
            for job in self._clients[number].reserved.values():
                job.reserves -= 1
            self._end(number)

    def job(self, token: str) -> Job:
        """Return the job reserved by *token*; raise NoLease if the lease does not exist or has ended."""
        return self._find(token)[1]

    def delete(self, token: str) -> None:
        """Delete the job.

        This method and the methods below raise NoLease as `job` does, and do not switch. Except after `touch`, the
        caller must wait for the journal before it reports success.
        """
        client, job = self._find(token)
        finishing.delete(self._broker, client, job.id, self._clock())

    def release(self, token: str, pri: int | None, delay: int) -> None:
        """Release the job, with a delay in nanoseconds; *pri* None keeps its priority."""
        client, job = self._find(token)
        finishing.release(self._broker, client, job.id, job.pri if pri is None else pri, delay, self._clock())

    def bury(self, token: str, pri: int | None) -> None:
        """Bury the job; *pri* None keeps its priority."""
        client, job = self._find(token)
        finishing.bury(self._broker, client, job.id, job.pri if pri is None else pri, self._clock())

    def touch(self, token: str) -> Job:
        """Restart the ttr of the job, and return the job."""
        client, job = self._find(token)
        reserving.touch(self._broker, client, job.id, self._clock())
        return job

    def stop(self) -> None:
        """End every wait and every lease, and refuse new ones. Call before the server stops. Does not switch."""
        self._is_stopped = True
        for number in [*self._waiting, *self._clients]:  # waiting clients first: they must not get the released jobs
            self._hang_up(number)

    # One reserve

    def _connect(self, request: ReserveRequest, woken: Event) -> Client:
        """Return a new client that watches the tubes of *request*; raise ReserveRefused if a limit forbids that."""
        broker = self._broker
        client = connecting.connect(broker, woken.set)
        client.reserved = _Held(client.number, self._note_emptied)
        client.is_http = True
        client.name, client.address, client.connected_at = request.worker, request.address, self._clock()
        client.hang_up = partial(self._hang_up, client.number)
        for name in request.tubes:
            watched = connecting.watch(broker, client, name)
            if watched < 0:
                connecting.disconnect(broker, client, self._clock())
                raise ReserveRefused(f"A limit of the server is reached: {LIMIT_NAMES[watched]}.")
        if DEFAULT_TUBE not in request.tubes:
            connecting.ignore(broker, client, DEFAULT_TUBE)
        connecting.note_worker(broker, client)
        self._clients[client.number] = client
        self._waiting.add(client.number)
        return client

    def _await_jobs(self, client: Client, request: ReserveRequest, woken: Event, peer: Peer) -> bool:
        """Wait until *client* holds durable jobs; return False if time is up or either side is gone. Switches."""
        journal, until = self._broker.journal, self._clock() + request.wait
        while not (client.is_closed or peer.is_gone):
            promised = journal.promised
            self._take(client, request)
            if not client.reserved:
                if not self._park(client, until, woken, peer):
                    return False
                promised = journal.safe  # the put of the job just received may not be durable yet
                if client.reserved:
                    self._take(client, request)
            if client.reserved and journal.promised > promised and not self._commit():
                raise ReserveRefused(
                    f"The journal is late{_because(journal.write_error)}, so the jobs might not survive a crash."
                )
            if client.reserved and not peer.is_gone:
                return True
        return False

    def _take(self, client: Client, request: ReserveRequest) -> None:
        """Reserve ready jobs for *client* until the request is filled."""
        held, now = client.reserved, self._clock()
        size = sum([job.size for job in held.values()])
        while len(held) < request.count and size < MAX_BYTES:
            job = reserving.reserve(self._broker, client, now)
            if job is None:
                return
            size += job.size

    def _read(self, client: Client) -> dict[int, bytes]:
        """Return the bodies of the jobs of *client* by id, and bury jobs with lost bodies. May switch.

        Raise ReserveRefused if *client* holds no job after that.
        """
        broker, held = self._broker, client.reserved
        if broker.bodies is not None:
            for tube in {job.tube for job in held.values() if job.body is None}:
                broker.bodies.read_ahead(tube)
        bodies = load_bodies(broker, held.values())
        bodies |= resident_bodies(held.values())  # a job may have been edited while this greenlet read
        lost = [job for id, job in held.items() if id not in bodies]
        for job in lost:
            finishing.bury(broker, client, job.id, job.pri, self._clock())
        if lost and not self._commit():
            raise ReserveRefused(
                f"The journal is late{_because(broker.journal.write_error)}, and the body of a job is lost."
            )
        if lost and not held:
            raise ReserveRefused(
                f"The body of job {lost[0].id} cannot be read back from the disk, and the job was buried. The server's"
                " log says why."
            )
        return bodies

    def _park(self, client: Client, until: int, woken: Event, peer: Peer) -> bool:
        """Wait for a job, the time *until*, or the end of *client* or *peer*. Switches.

        Return False at once if *client* cannot wait because *until* has passed.
        """
        if reserving.wait(self._broker, client, until, self._clock()) != WaitOutcome.WAITING:
            return False
        woken.clear()
        with peer.watched(woken.set):
            woken.wait()
        return True

    # One lease

    def _find(self, token: str) -> tuple[Client, Job]:
        """Return the client and the job of the lease *token*; raise NoLease if it does not exist or has ended."""
        reservation = self._tokens.read(token)
        if reservation is None:
            raise NoLease("This server has not issued the token since it started.")
        id, reserves = reservation
        job = self._broker.jobs.get(id)
        if job is None:
            raise LeaseEnded(f"The lease of job {id} has ended: the job is deleted.")
        if job.holder is not None and job.reserves == reserves:
            return job.holder, job
        now = "reserved by another worker" if job.state == RESERVED else STATE_NAMES[job.state]
        raise LeaseEnded(
            f"The lease of job {id} has ended: its ttr ran out, or the job was finished, released, buried or taken by"
            f" an admin. The job is {now} now."
        )

    # Ends

    def _note_emptied(self, number: int) -> None:
        """Disconnect client *number* in the next loop iteration: the broker is in the middle of an operation now."""
        if not self._emptied:
            get_hub().loop.run_callback(self._end_emptied)
        self._emptied.append(number)

    def _end_emptied(self) -> None:
        emptied, self._emptied = self._emptied, []
        for number in emptied:
            client = self._clients.get(number)
            if client is not None and not client.reserved and number not in self._waiting:
                self._end(number)

    def _end(self, number: int) -> None:
        """Disconnect client *number*, if it still exists. The jobs that it holds become ready."""
        self._end_timer(number)
        client = self._clients.pop(number, None)
        if client is not None:
            connecting.disconnect(self._broker, client, self._clock())

    def _end_timer(self, number: int) -> bool:
        """Confirm the reserve *number*; return False if it need not be confirmed, or has ended."""
        timer = self._unconfirmed.pop(number, None)
        if timer is None:
            return False
        timer.stop()
        timer.close()
        return True

    def _hang_up(self, number: int) -> None:
        """End client *number*, its wait and its leases. Does not switch."""
        client = self._clients.get(number)
        if client is not None:
            wake = client.wake
            self._end(number)
            wake()


class _Held(dict[int, Job]):
    """The reserved jobs of client *number*; calls *on_empty* with the number when the last one is removed.

    It refers to the client by number, since a reference cycle would never be freed (see runtime.gc_tuning).
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


def job_of_token(token: str) -> int | None:
    """Return the id of the job of *token*, which may be forged; None if it is malformed."""
    if _FORM.fullmatch(token) is None:
        return None
    id, _ = RESERVATION.unpack(urlsafe_b64decode(token)[: RESERVATION.size])
    return int(id)


class _Tokens:
    """Makes and reads tokens, with a key that is created at each start."""

    def __init__(self) -> None:
        self._key: bytes = secrets.token_bytes()

    def make(self, job: Job) -> str:
        """Return the token of the current reservation of *job*."""
        payload = RESERVATION.pack(job.id, job.reserves)
        return urlsafe_b64encode(payload + self._sign(payload)).decode()

    def read(self, token: str) -> tuple[int, int] | None:
        """Return the payload of *token*, the job's id and its count of reserves; None if the token is forged."""
        if _FORM.fullmatch(token) is None:
            return None
        raw = urlsafe_b64decode(token)
        payload, signature = raw[: RESERVATION.size], raw[RESERVATION.size :]
        return RESERVATION.unpack(payload) if hmac.compare_digest(signature, self._sign(payload)) else None

    def _sign(self, payload: bytes) -> bytes:
        return blake2b(payload, key=self._key, digest_size=SIGNATURE_SIZE).digest()


def _because(trouble: str | None) -> str:
    return f" ({trouble})" if trouble else ""
