"""Leases over a broker in fake time: which jobs a reserve gets, what ends a lease, and that nothing is left behind."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from greenstalk_server.core.client import Client
from greenstalk_server.core.counters import COUNTERS
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, SECOND, Job
from greenstalk_server.core.journal import NullJournal
from greenstalk_server.core.operations import connecting, editing, finishing, putting, reserving, ticking
from greenstalk_server.web.features.leases import leases as module
from greenstalk_server.web.features.leases.leases import (
    TOKEN_LENGTH,
    Lease,
    LeaseEnded,
    Leases,
    NoLease,
    ReserveRefused,
    ReserveRequest,
)
from greenstalk_server.web.live.peer import Peer
from tests.support import invariants
from tests.support.daemon import TIMEOUT

from .conftest import Queue

TTR = 60
"""The ttr in seconds of the jobs that a Queue puts."""

NEVER_GONE = Peer(None)

TUBES = st.sampled_from(["default", "mail", "post"])


class LeaseDriver:
    """Leases of a queue, with short methods for tests. Every method ends with `invariants.check`."""

    def __init__(self, queue: Queue, commit: Callable[[], bool] = lambda: True) -> None:
        self.queue = queue
        self.broker = queue.broker
        self.leases = Leases(queue.broker, queue.clock, commit)

    def reserve(self, *tubes: str, count: int = 1, wait: int = 0, peer: Peer = NEVER_GONE) -> list[Lease]:
        try:
            names = tuple(tube.encode() for tube in tubes or ("default",))
            return self.leases.reserve(ReserveRequest(names, count, wait * SECOND, "mailer", "192.0.2.7"), peer)
        finally:
            invariants.check(self.broker)

    def begin(self, *tubes: str, **options: Any) -> gevent.Greenlet:
        """Reserve in another greenlet; return once it waits."""
        before = self.broker.waiting_count
        greenlet = gevent.spawn(self.reserve, *tubes, **{"wait": 30} | options)
        with gevent.Timeout(TIMEOUT):
            while self.broker.waiting_count == before:
                gevent.sleep(0)
        return greenlet

    def one(self, *tubes: str) -> Lease:
        (lease,) = self.reserve(*tubes)
        return lease

    def advance(self, seconds: float) -> None:
        """Advance time, and tick."""
        self.queue.now += round(seconds * SECOND)
        ticking.tick(self.broker, self.queue.now)
        self.settle()

    def settle(self) -> None:
        """Let the event loop run once."""
        gevent.sleep(0)
        gevent.sleep(0)
        invariants.check(self.broker)

    def holds(self, lease: Lease) -> bool:
        """Return whether the token is still valid."""
        try:
            return self.leases.job(lease.token) is self.broker.jobs[lease.job.id]
        except LeaseEnded:
            return False

    def is_empty(self) -> bool:
        """Return whether nothing is left of any lease."""
        self.settle()
        return not (self.broker.clients or self.leases._clients or self.leases._waiting or self.leases._emptied)


@pytest.fixture
def driver(queue: Queue) -> LeaseDriver:
    return LeaseDriver(queue)


@pytest.fixture
def line() -> Iterator[tuple[socket.socket, Peer]]:
    """The client's end of a socket, and the Peer for the server's end."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield theirs, Peer(ours.fileno())


def ids(leases: list[Lease]) -> list[int]:
    return [lease.job.id for lease in leases]


def counted(queue: Queue) -> dict[str, int]:
    """Return the server's counts of connections, current and total, and of commands."""
    broker = queue.broker
    now = {"connections": len(broker.clients), "workers": broker.worker_count, "waiting": broker.waiting_count}
    return now | {name: getattr(broker.counters, name) for name in COUNTERS}


def waiting(queue: Queue, *tubes: str) -> Client:
    """Return a client of the protocol that waits for a job of *tubes*."""
    client = queue.connect()
    for tube in tubes:
        connecting.watch(queue.broker, client, tube.encode())
    assert reserving.reserve(queue.broker, client, queue.now) is None
    reserving.wait(queue.broker, client, None, queue.now)
    return client


# Selection of jobs


def test_jobs_of_several_tubes_come_in_order_of_priority(queue: Queue, driver: LeaseDriver) -> None:
    late, soon = queue.put("a", pri=9)[0], queue.put("b", pri=1)[0]
    queue.put("c", pri=0)
    assert ids(driver.reserve("a", "b")) == [soon]
    assert ids(driver.reserve("a", "b")) == [late]
    assert driver.reserve("a", "b") == []


def test_reserve_returns_up_to_count_ready_jobs(queue: Queue, driver: LeaseDriver) -> None:
    all = queue.put("mail", count=5)
    assert ids(driver.reserve("mail", count=3)) == all[:3]
    assert ids(driver.reserve("mail", count=3)) == all[3:]
    assert len(driver.broker.clients) == 2


def test_reserve_stops_at_a_mebibyte_of_bodies_but_returns_a_larger_one(queue: Queue, driver: LeaseDriver) -> None:
    body = b"x" * (module.MAX_BYTES // 2)
    all = [
        putting.put_into(driver.broker, b"mail", 5, 0, 60 * SECOND, body * times, queue.now)
        for times in (1, 1, 1, 3, 1)
    ]
    assert ids(driver.reserve("mail", count=9)) == all[:2]
    assert ids(driver.reserve("mail", count=9)) == all[2:4]
    assert ids(driver.reserve("mail", count=9)) == all[4:]


def test_paused_tube_yields_no_jobs(queue: Queue, driver: LeaseDriver) -> None:
    queue.put("mail")
    editing.pause_tube(driver.broker, b"mail", 5 * SECOND, queue.now)
    assert driver.reserve("mail") == []
    waiting = driver.begin("mail")
    driver.advance(5)
    assert len(waiting.get(timeout=TIMEOUT)) == 1


# Counts


def test_lease_counts_as_one_connection_of_a_worker(queue: Queue, driver: LeaseDriver) -> None:
    queue.put("mail", count=2)
    before = counted(queue)
    leases = driver.reserve("mail", "other", count=2)
    (client,) = driver.broker.clients
    assert (client.name, client.address, client.is_http) == ("mailer", "192.0.2.7", True)
    assert list(client.watched) == [b"mail", b"other"]
    now = before | {"connections": 1, "workers": 1, "total_connections": before["total_connections"] + 1}
    assert counted(queue) == now
    assert driver.broker.tubes[b"mail"].watching == driver.broker.tubes[b"default"].using == 1
    assert driver.broker.tubes[b"default"].watching == 0
    driver.leases.delete(leases[0].token)
    driver.settle()
    assert counted(queue) == now
    driver.leases.delete(leases[1].token)
    assert driver.is_empty()
    assert counted(queue) == now | {"connections": 0, "workers": 0}
    assert list(driver.broker.tubes) == [b"default"]
    assert driver.broker.recent_workers[client.number] == "192.0.2.7"


def test_waiting_reserve_counts_as_waiting_until_it_ends(queue: Queue, driver: LeaseDriver) -> None:
    before = counted(queue)
    greenlet = driver.begin("mail", wait=30)
    assert counted(queue).items() >= {"connections": 1, "workers": 1, "waiting": 1}.items()
    assert len(driver.broker.tubes[b"mail"].waiters) == 1
    driver.advance(30)
    assert greenlet.get(timeout=TIMEOUT) == []
    assert driver.is_empty()
    assert counted(queue) == before | {"total_connections": before["total_connections"] + 1}
    assert list(driver.broker.tubes) == [b"default"]


# Waiting


def test_reserves_wait_in_line_with_other_clients(queue: Queue, driver: LeaseDriver) -> None:
    first = waiting(queue, "mail")
    second = driver.begin("mail")
    third = waiting(queue, "mail")
    fourth = driver.begin("other", "mail")
    all = [queue.put("mail")[0] for _ in range(4)]
    assert list(first.reserved) == all[:1]
    assert ids(second.get(timeout=TIMEOUT)) == all[1:2]
    assert list(third.reserved) == all[2:3]
    assert ids(fourth.get(timeout=TIMEOUT)) == all[3:]


def test_reserve_waits_again_if_its_job_is_deleted_first(queue: Queue, driver: LeaseDriver) -> None:
    greenlet = driver.begin("mail")
    (gone,) = queue.put("mail")
    assert finishing.delete_job(driver.broker, gone, queue.now, is_forced=True)
    driver.settle()
    assert driver.broker.waiting_count == 1
    (id,) = queue.put("mail")
    assert ids(greenlet.get(timeout=TIMEOUT)) == [id]
    assert len(driver.broker.clients) == 1


# Clients that close the connection


def test_client_that_closes_during_the_wait_takes_no_job(
    queue: Queue, driver: LeaseDriver, line: tuple[socket.socket, Peer]
) -> None:
    theirs, peer = line
    greenlet = driver.begin("mail", peer=peer)
    theirs.close()
    assert greenlet.get(timeout=TIMEOUT) == []
    assert driver.is_empty()
    (id,) = queue.put("mail")
    assert driver.broker.jobs[id].state == READY


def test_client_that_closes_when_its_job_arrives_returns_the_job(
    queue: Queue, driver: LeaseDriver, line: tuple[socket.socket, Peer]
) -> None:
    theirs, peer = line
    greenlet = driver.begin("mail", peer=peer)
    (id,) = queue.put("mail")
    job = driver.broker.jobs[id]
    assert job.state == RESERVED
    theirs.close()
    assert greenlet.get(timeout=TIMEOUT) == []
    assert job.state == READY
    assert [event.kind for event in job_history.unpack(job.events)] == [job_history.RESERVED, job_history.RETURNED]
    assert driver.is_empty()


# The ends of a lease

Ending = Callable[[LeaseDriver, Lease], object]

ENDINGS: dict[str, tuple[Ending, int]] = {
    "delete": (lambda driver, lease: driver.leases.delete(lease.token), 0),
    "release": (lambda driver, lease: driver.leases.release(lease.token, None, 0), READY),
    "release with delay": (lambda driver, lease: driver.leases.release(lease.token, 1, SECOND), DELAYED),
    "bury": (lambda driver, lease: driver.leases.bury(lease.token, None), BURIED),
    "ttr": (lambda driver, _: driver.advance(TTR), READY),
    "admin deletes": (
        lambda driver, lease: finishing.delete_job(driver.broker, lease.job.id, driver.queue.now, is_forced=True),
        0,
    ),
    "admin releases": (
        lambda driver, lease: finishing.release_job(driver.broker, lease.job.id, driver.queue.now),
        READY,
    ),
    "admin buries": (
        lambda driver, lease: finishing.bury_job(driver.broker, lease.job.id, driver.queue.now, is_forced=True),
        BURIED,
    ),
    "admin hangs up": (lambda _, lease: holder(lease.job).hang_up(), READY),
    "stop": (lambda driver, _: driver.leases.stop(), READY),
}


def holder(job: Job) -> Client:
    assert job.holder is not None
    return job.holder


@pytest.mark.parametrize("how", ENDINGS)
def test_ended_lease_leaves_nothing_and_its_token_is_invalid(queue: Queue, driver: LeaseDriver, how: str) -> None:
    (id,) = queue.put("mail")
    lease = driver.one("mail")
    assert driver.holds(lease)
    end, state = ENDINGS[how]
    end(driver, lease)
    assert driver.is_empty()
    assert (driver.broker.jobs[id].state if state else id not in driver.broker.jobs) == (state or True)
    message = "deleted" if not state else "now"
    with pytest.raises(LeaseEnded, match=message):
        driver.leases.job(lease.token)


FINISHERS: dict[str, Ending] = {
    "job": lambda driver, lease: driver.leases.job(lease.token),
    "delete": ENDINGS["delete"][0],
    "release": ENDINGS["release"][0],
    "bury": ENDINGS["bury"][0],
    "touch": lambda driver, lease: driver.leases.touch(lease.token),
}


@pytest.mark.parametrize("operation", FINISHERS)
@pytest.mark.parametrize("is_http", [True, False])
def test_old_token_does_nothing_to_the_next_holder(
    queue: Queue, driver: LeaseDriver, operation: str, is_http: bool
) -> None:
    queue.put("mail")
    old = driver.one("mail")
    driver.advance(TTR)
    if is_http:
        new = driver.one("mail")
        assert new.token != old.token
    else:
        reserving.reserve_job(driver.broker, queue.connect(), old.job.id, queue.now)
    job = driver.broker.jobs[old.job.id]
    before = (job.holder, job.state, job.deadline, job.pri)
    queue.now += SECOND
    with pytest.raises(LeaseEnded, match="The job is reserved by another worker now"):
        FINISHERS[operation](driver, old)
    assert (job.holder, job.state, job.deadline, job.pri) == before


@pytest.mark.parametrize("operation", FINISHERS)
def test_invalid_token_is_refused(queue: Queue, driver: LeaseDriver, operation: str) -> None:
    queue.put("mail", count=2)
    first, second = driver.reserve("mail", count=2)
    token = first.token
    half = TOKEN_LENGTH // 2
    foreign = LeaseDriver(queue).leases._tokens.make(first.job)
    tokens = ["", "x", "A" * TOKEN_LENGTH, "é" * TOKEN_LENGTH, "=" * TOKEN_LENGTH, "A===" * (TOKEN_LENGTH // 4),
              "\0" * TOKEN_LENGTH, token + "A", token + "\n", token[1:], token[:half] + second.token[half:],
              foreign]  # fmt: skip
    tokens += [token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :] for at in range(TOKEN_LENGTH)]
    for one in tokens:
        with pytest.raises(NoLease) as refusal:
            FINISHERS[operation](driver, Lease(first.job, first.body, one))
        assert not isinstance(refusal.value, LeaseEnded), one
    assert driver.holds(first)
    assert driver.holds(second)


# Bounds


def test_number_of_waiting_reserves_is_bounded(driver: LeaseDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 2)
    greenlets = [driver.begin("mail") for _ in range(2)]
    with pytest.raises(ReserveRefused, match="2 requests to reserve are waiting"):
        driver.reserve("mail", wait=1)
    assert driver.reserve("mail", wait=0) == [], "a reserve without a wait is accepted"
    driver.advance(30)
    gevent.joinall(greenlets, timeout=TIMEOUT)
    assert driver.is_empty()


def test_stop_ends_all_leases_and_refuses_new_ones(queue: Queue, driver: LeaseDriver) -> None:
    (id,) = queue.put("mail")
    driver.one("mail")
    greenlet = driver.begin("mail")
    driver.leases.stop()
    with pytest.raises(ReserveRefused, match="stopping"):
        greenlet.get(timeout=TIMEOUT)
    assert driver.is_empty()
    assert [event.kind for event in job_history.unpack(driver.broker.jobs[id].events)] == [
        job_history.RESERVED,
        job_history.RETURNED,
    ]
    with pytest.raises(ReserveRefused, match="stopping"):
        driver.reserve("mail")


# Durability


class SlowJournal(NullJournal):
    """A journal that makes a put safe only when it is committed, as a JournalWriter under `-f 0`."""

    def put(self, job: Job) -> bool:
        self.promised += 1
        return True


@pytest.fixture
def slow_journal(queue: Queue) -> SlowJournal:
    journal = queue.broker.journal = SlowJournal()
    return journal


def test_job_that_a_crash_could_undo_is_not_returned_early(queue: Queue, slow_journal: SlowJournal) -> None:
    may_continue = gevent.event.Event()

    def commit() -> bool:
        may_continue.wait()
        slow_journal.safe = slow_journal.promised
        return True

    driver = LeaseDriver(queue, commit)
    greenlet = driver.begin("mail")
    (id,) = queue.put("mail")
    driver.settle()
    assert driver.broker.jobs[id].state == RESERVED
    assert not greenlet.ready()
    may_continue.set()
    assert ids(greenlet.get(timeout=TIMEOUT)) == [id]


def test_jobs_are_released_if_the_journal_is_late(queue: Queue, slow_journal: SlowJournal) -> None:
    slow_journal.write_error = "no space left"
    driver = LeaseDriver(queue, lambda: False)
    greenlet = driver.begin("mail")
    (id,) = queue.put("mail")
    with pytest.raises(ReserveRefused, match=r"The journal is late \(no space left\)"):
        greenlet.get(timeout=TIMEOUT)
    assert driver.broker.jobs[id].state == READY
    assert driver.is_empty()


@pytest.mark.parametrize("is_later", [True, False])
def test_job_whose_ttr_ends_during_the_commit_is_not_leased(
    queue: Queue, slow_journal: SlowJournal, is_later: bool
) -> None:
    def commit() -> bool:
        slow_journal.safe = slow_journal.promised
        queue.now += TTR * SECOND
        ticking.tick(late.broker, queue.now)
        if is_later:
            late.settle()
        return True

    late = LeaseDriver(queue, commit)
    greenlet = late.begin("mail", wait=2 * TTR)
    (id,) = queue.put("mail")
    (lease,) = greenlet.get(timeout=TIMEOUT)
    assert (lease.job.id, lease.job.timeouts, lease.job.reserves) == (id, 1, 2)
    late.settle()
    assert late.holds(lease)


# Random operations


class LeaseMachine(RuleBasedStateMachine):
    """Workers over HTTP, clients of the protocol, and an admin, all interleaved."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = Queue()
        self.driver = LeaseDriver(self.queue)
        self.broker = self.queue.broker
        self.leases: list[Lease] = []
        self.others: list[Client] = []
        self.waiting: list[tuple[gevent.Greenlet, socket.socket, socket.socket]] = []

    def teardown(self) -> None:
        for client in self.others:
            connecting.disconnect(self.broker, client, self.queue.now)
        self.driver.leases.stop()
        self.settle()
        assert self.driver.is_empty()
        for greenlet, *sockets in self.waiting:
            assert greenlet.get() == []
            for sock in sockets:
                sock.close()

    def begin(self, *tubes: str, **options: Any) -> list[Lease]:
        try:
            return self.driver.reserve(*tubes, **options)
        except ReserveRefused:
            return []

    def settle(self) -> None:
        """Return when every reserve has ended or is parked."""
        leases = self.driver.leases
        gevent.sleep(0)
        with gevent.Timeout(TIMEOUT):
            while leases._emptied or not all(
                number in leases._clients and leases._clients[number].is_waiting for number in leases._waiting
            ):
                gevent.sleep(0)
        invariants.check(self.broker)

    @rule(tube=TUBES, pri=st.integers(0, 2), delay=st.integers(0, 3), count=st.integers(1, 3))
    def put(self, tube: str, pri: int, delay: int, count: int) -> None:
        self.queue.put(tube, pri=pri, delay=delay, count=count)

    @rule(tubes=st.sets(TUBES, min_size=1), count=st.integers(1, 3))
    def reserve(self, tubes: set[str], count: int) -> None:
        self.leases += self.driver.reserve(*sorted(tubes), count=count)

    @rule(tubes=st.sets(TUBES, min_size=1), count=st.integers(1, 3), wait=st.sampled_from([1, 100]))
    def reserve_and_wait(self, tubes: set[str], count: int, wait: int) -> None:
        ours, theirs = socket.socketpair()
        options = {"count": count, "wait": wait, "peer": Peer(ours.fileno())}
        self.waiting.append((gevent.spawn(self.begin, *sorted(tubes), **options), ours, theirs))

    @precondition(lambda self: self.waiting)
    @rule(at=st.integers(0))
    def close_waiting_request(self, at: int) -> None:
        greenlet, _, theirs = self.waiting[at % len(self.waiting)]
        theirs.close()
        greenlet.join(TIMEOUT)
        assert greenlet.get() == []

    @rule(tube=TUBES)
    def start_waiting_client(self, tube: str) -> None:
        client = self.queue.connect()
        connecting.watch(self.broker, client, tube.encode())
        if reserving.reserve(self.broker, client, self.queue.now) is None:
            reserving.wait(self.broker, client, None, self.queue.now)
        self.others.append(client)

    @precondition(lambda self: self.others)
    @rule(at=st.integers(0))
    def close_waiting_client(self, at: int) -> None:
        connecting.disconnect(self.broker, self.others.pop(at % len(self.others)), self.queue.now)

    @precondition(lambda self: self.leases)
    @rule(at=st.integers(0), operation=st.sampled_from(sorted(FINISHERS)))
    def use_a_token(self, at: int, operation: str) -> None:
        lease = self.leases[at % len(self.leases)]
        is_held = self.driver.holds(lease)
        try:
            FINISHERS[operation](self.driver, lease)
        except LeaseEnded:
            assert not is_held
        else:
            assert is_held

    @precondition(lambda self: self.leases)
    @rule(at=st.integers(0), how=st.sampled_from(["admin deletes", "admin releases", "admin buries"]))
    def force(self, at: int, how: str) -> None:
        ENDINGS[how][0](self.driver, self.leases[at % len(self.leases)])

    @precondition(lambda self: self.broker.clients)
    @rule(at=st.integers(0))
    def hang_up(self, at: int) -> None:
        client = list(self.broker.clients)[at % len(self.broker.clients)]
        if client.is_http:
            client.hang_up()

    @rule(tube=TUBES, seconds=st.integers(0, 5))
    def pause(self, tube: str, seconds: int) -> None:
        editing.pause_tube(self.broker, tube.encode(), seconds * SECOND, self.queue.now)

    @rule(seconds=st.sampled_from([0.5, 2, 30, TTR]))
    def advance(self, seconds: float) -> None:
        self.driver.advance(seconds)

    @invariant()
    def check_leases(self) -> None:
        self.settle()
        for one in [one for one in self.waiting if one[0].ready()]:
            self.waiting.remove(one)
            self.leases += one[0].get()
            for sock in one[1:]:
                sock.close()
        leases = self.driver.leases
        assert [client for client in self.broker.clients if client.is_http] == list(leases._clients.values())
        assert len(leases._waiting) == len(self.waiting)
        for number, client in leases._clients.items():
            assert client.number == number
            assert client.reserved or number in leases._waiting
        held = {(job.id, job.reserves) for client in leases._clients.values() for job in client.reserved.values()}
        named = [leases._tokens.read(lease.token) for lease in self.leases]
        assert len(set(named)) == len(named), "no two reservations have one token"
        assert {name for name, lease in zip(named, self.leases, strict=True) if self.driver.holds(lease)} == held


class TestLeaseMachine(LeaseMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
