"""Leases over a broker at a known time: who gets which job, what ends a lease, and that nothing of it stays."""

from __future__ import annotations

import gc
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from greenstalk_server.core import job_history
from greenstalk_server.core.client import Client
from greenstalk_server.core.counters import COUNTERS
from greenstalk_server.core.job import BURIED, DELAYED, READY, RESERVED, SECOND, Job
from greenstalk_server.core.journal import NullJournal
from greenstalk_server.core.transitions import MAX_RECENT_WORKERS
from greenstalk_server.web.live.peer import Peer
from greenstalk_server.web.operations import leases as module
from greenstalk_server.web.operations.leases import TOKEN_LENGTH, Ask, Lease, LeaseEnded, Leases, NoLease, Refused
from tests.daemon import PATIENCE

from .conftest import Queue

TTR = 60
"""Of the jobs that a Queue puts."""

NOBODY_GONE = Peer(None)

TUBES = st.sampled_from(["default", "mail", "post"])


class Desk:
    """Leases of a queue, and words for what tests ask of them. Each word ends in `Broker.check`."""

    def __init__(self, queue: Queue, commit: Callable[[], bool] = lambda: True) -> None:
        self.queue = queue
        self.broker = queue.broker
        self.leases = Leases(queue.broker, queue.clock, commit)

    def reserve(self, *tubes: str, count: int = 1, wait: int = 0, peer: Peer = NOBODY_GONE) -> list[Lease]:
        try:
            names = tuple(tube.encode() for tube in tubes or ("default",))
            return self.leases.reserve(Ask(names, count, wait * SECOND, "mailer", "192.0.2.7"), peer)
        finally:
            self.broker.check()

    def begin(self, *tubes: str, **asked: Any) -> gevent.Greenlet:
        """Have another greenlet reserve, and return once it waits."""
        before = self.broker.waiting_count
        greenlet = gevent.spawn(self.reserve, *tubes, **{"wait": 30} | asked)
        with gevent.Timeout(PATIENCE):
            while self.broker.waiting_count == before:
                gevent.sleep(0)
        return greenlet

    def one(self, *tubes: str) -> Lease:
        (lease,) = self.reserve(*tubes)
        return lease

    def pass_by(self, seconds: float) -> None:
        """Let time pass, and what falls due happen."""
        self.queue.now += round(seconds * SECOND)
        self.broker.tick(self.queue.now)
        self.settle()

    def settle(self) -> None:
        """Let the loop come round."""
        gevent.sleep(0)
        gevent.sleep(0)
        self.broker.check()

    def holds(self, lease: Lease) -> bool:
        """Whether the token is still good."""
        try:
            return self.leases.job(lease.token) is self.broker.jobs[lease.job.id]
        except LeaseEnded:
            return False

    def is_empty(self) -> bool:
        """Whether nothing is left of any lease."""
        self.settle()
        return not (self.broker.clients or self.leases._clients or self.leases._asking or self.leases._emptied)


@pytest.fixture
def desk(queue: Queue) -> Desk:
    return Desk(queue)


@pytest.fixture
def line() -> Iterator[tuple[socket.socket, Peer]]:
    """The client's end of a socket, and the Peer that a server sees of it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield theirs, Peer(ours.fileno())


def ids(leases: list[Lease]) -> list[int]:
    return [lease.job.id for lease in leases]


def counted(queue: Queue) -> dict[str, int]:
    """What the server counts of its connections, now and so far, and of commands."""
    broker = queue.broker
    now = {"connections": len(broker.clients), "workers": broker.worker_count, "waiting": broker.waiting_count}
    return now | {name: getattr(broker.counters, name) for name in COUNTERS}


def waiting(queue: Queue, *tubes: str) -> Client:
    """A client of the protocol that waits for a job of *tubes*."""
    client = queue.connect()
    for tube in tubes:
        queue.broker.watch(client, tube.encode())
    assert queue.broker.reserve(client, queue.now) is None
    queue.broker.wait(client, None, queue.now)
    return client


# Which jobs


def test_reserves_in_the_order_of_priority_over_several_tubes(queue: Queue, desk: Desk) -> None:
    late, soon = queue.put("a", pri=9)[0], queue.put("b", pri=1)[0]
    queue.put("c", pri=0)
    assert ids(desk.reserve("a", "b")) == [soon]
    assert ids(desk.reserve("a", "b")) == [late]
    assert desk.reserve("a", "b") == []


def test_default_is_watched_only_if_asked_for(queue: Queue, desk: Desk) -> None:
    (id,) = queue.put("default")
    assert desk.reserve("mail") == []
    assert ids(desk.reserve("mail", "default")) == [id]


def test_reserves_several_at_once_as_far_as_there_are_some(queue: Queue, desk: Desk) -> None:
    all = queue.put("mail", count=5)
    assert ids(desk.reserve("mail", count=3)) == all[:3]
    assert ids(desk.reserve("mail", count=3)) == all[3:]
    assert len(desk.broker.clients) == 2


def test_stops_at_a_mebibyte_of_bodies_but_gives_a_larger_one(queue: Queue, desk: Desk) -> None:
    body = b"x" * (module.BYTES_AT_MOST // 2)
    all = [desk.broker.put_into(b"mail", 5, 0, 60 * SECOND, body * times, queue.now) for times in (1, 1, 1, 3, 1)]
    assert ids(desk.reserve("mail", count=9)) == all[:2]
    assert ids(desk.reserve("mail", count=9)) == all[2:4]
    assert ids(desk.reserve("mail", count=9)) == all[4:]


def test_paused_tube_gives_nothing(queue: Queue, desk: Desk) -> None:
    queue.put("mail")
    desk.broker.pause_tube(b"mail", 5 * SECOND, queue.now)
    assert desk.reserve("mail") == []
    waiting = desk.begin("mail")
    desk.pass_by(5)
    assert len(waiting.get(timeout=PATIENCE)) == 1


# What it counts as


def test_a_lease_counts_as_a_connection_of_a_worker_and_leaves_no_more_than_that(queue: Queue, desk: Desk) -> None:
    queue.put("mail", count=2)
    before = counted(queue)
    leases = desk.reserve("mail", "other", count=2)
    (client,) = desk.broker.clients
    assert (client.name, client.address, client.is_http) == ("mailer", "192.0.2.7", True)
    assert list(client.watched) == [b"mail", b"other"]
    now = before | {"connections": 1, "workers": 1, "total_connections": before["total_connections"] + 1}
    assert counted(queue) == now
    assert desk.broker.tubes[b"mail"].watching == desk.broker.tubes[b"default"].using == 1
    assert desk.broker.tubes[b"default"].watching == 0
    desk.leases.delete(leases[0].token)
    desk.settle()
    assert counted(queue) == now
    desk.leases.delete(leases[1].token)
    assert desk.is_empty()
    assert counted(queue) == now | {"connections": 0, "workers": 0}
    assert list(desk.broker.tubes) == [b"default"]
    assert desk.broker.recent_workers[client.number] == "192.0.2.7"


def test_one_that_waits_counts_as_waiting_and_then_not(queue: Queue, desk: Desk) -> None:
    before = counted(queue)
    greenlet = desk.begin("mail", wait=30)
    assert counted(queue).items() >= {"connections": 1, "workers": 1, "waiting": 1}.items()
    assert len(desk.broker.tubes[b"mail"].waiters) == 1
    desk.pass_by(30)
    assert greenlet.get(timeout=PATIENCE) == []
    assert desk.is_empty()
    assert counted(queue) == before | {"total_connections": before["total_connections"] + 1}
    assert list(desk.broker.tubes) == [b"default"]


# Waiting


def test_waits_in_line_with_all_others(queue: Queue, desk: Desk) -> None:
    first = waiting(queue, "mail")
    second = desk.begin("mail")
    third = waiting(queue, "mail")
    fourth = desk.begin("other", "mail")
    all = [queue.put("mail")[0] for _ in range(4)]
    assert list(first.reserved) == all[:1]
    assert ids(second.get(timeout=PATIENCE)) == all[1:2]
    assert list(third.reserved) == all[2:3]
    assert ids(fourth.get(timeout=PATIENCE)) == all[3:]


def test_wakes_with_the_first_job_and_takes_what_else_is_ready_by_then(queue: Queue, desk: Desk) -> None:
    greenlet = desk.begin("mail", count=3)
    all = queue.put("mail", count=5)
    assert ids(greenlet.get(timeout=PATIENCE)) == all[:3]


def test_takes_no_more_than_it_may_from_those_that_wait_behind_it(queue: Queue, desk: Desk) -> None:
    greedy, next_one = desk.begin("mail", count=9), waiting(queue, "mail")
    all = queue.put("mail", count=3)
    assert list(next_one.reserved) == all[1:2]
    assert ids(greedy.get(timeout=PATIENCE)) == [all[0], all[2]]


def test_a_job_that_is_gone_before_it_can_be_told_of_is_waited_on_from(queue: Queue, desk: Desk) -> None:
    greenlet = desk.begin("mail")
    (gone,) = queue.put("mail")
    assert desk.broker.delete_job(gone, queue.now, is_forced=True)
    desk.settle()
    assert desk.broker.waiting_count == 1
    (id,) = queue.put("mail")
    assert ids(greenlet.get(timeout=PATIENCE)) == [id]
    assert len(desk.broker.clients) == 1


# A client that goes


def test_who_goes_in_mid_wait_takes_no_job_along(queue: Queue, desk: Desk, line: tuple[socket.socket, Peer]) -> None:
    theirs, peer = line
    greenlet = desk.begin("mail", peer=peer)
    theirs.close()
    assert greenlet.get(timeout=PATIENCE) == []
    assert desk.is_empty()
    (id,) = queue.put("mail")
    assert desk.broker.jobs[id].state == READY


def test_who_closes_only_its_own_side_is_gone_too(desk: Desk, line: tuple[socket.socket, Peer]) -> None:
    theirs, peer = line
    greenlet = desk.begin("mail", peer=peer)
    theirs.shutdown(socket.SHUT_WR)
    assert greenlet.get(timeout=PATIENCE) == []


def test_who_goes_when_the_job_has_just_come_gives_it_back(
    queue: Queue, desk: Desk, line: tuple[socket.socket, Peer]
) -> None:
    theirs, peer = line
    greenlet = desk.begin("mail", peer=peer)
    (id,) = queue.put("mail")
    job = desk.broker.jobs[id]
    assert job.state == RESERVED
    theirs.close()
    assert greenlet.get(timeout=PATIENCE) == []
    assert job.state == READY
    assert [event.kind for event in job_history.unpack(job.events)] == [job_history.RESERVED, job_history.RETURNED]
    assert desk.is_empty()


def test_who_is_gone_from_the_first_gets_nothing(queue: Queue, desk: Desk, line: tuple[socket.socket, Peer]) -> None:
    theirs, peer = line
    (id,) = queue.put("mail")
    theirs.close()
    assert desk.reserve("mail", peer=peer) == []
    assert desk.broker.jobs[id].reserves == 0
    assert desk.is_empty()


class Counting(Peer):
    """Counts how often it is looked at."""

    looks = 0

    @property
    def is_gone(self) -> bool:
        self.looks += 1
        return super().is_gone


def test_who_sends_more_meanwhile_is_still_there(queue: Queue, desk: Desk, line: tuple[socket.socket, Peer]) -> None:
    theirs, peer = line
    counting = Counting(peer._descriptor)
    greenlet, behind = desk.begin("mail", peer=counting), waiting(queue, "mail")
    theirs.sendall(b"GET / HTTP/1.1\r\n")
    with gevent.Timeout(PATIENCE):
        while counting.looks < 2:
            gevent.sleep(0.001)
    for _ in range(20):
        gevent.sleep(0.001)
        desk.broker.check()
    assert counting.looks == 2, "it is not looked at again and again"
    all = [queue.put("mail")[0] for _ in range(2)]
    assert ids(greenlet.get(timeout=PATIENCE)) == all[:1]
    assert list(behind.reserved) == all[1:]


def test_killed_greenlet_leaves_nothing(queue: Queue, desk: Desk, line: tuple[socket.socket, Peer]) -> None:
    greenlet = desk.begin("mail", peer=line[1])
    greenlet.kill()
    assert desk.is_empty()
    (id,) = queue.put("mail")
    assert desk.broker.jobs[id].state == READY


# The ends of a lease

Ending = Callable[[Desk, Lease], object]

ENDINGS: dict[str, tuple[Ending, int]] = {
    "delete": (lambda desk, lease: desk.leases.delete(lease.token), 0),
    "release": (lambda desk, lease: desk.leases.release(lease.token, None, 0), READY),
    "release with delay": (lambda desk, lease: desk.leases.release(lease.token, 1, SECOND), DELAYED),
    "bury": (lambda desk, lease: desk.leases.bury(lease.token, None), BURIED),
    "ttr": (lambda desk, _: desk.pass_by(TTR), READY),
    "admin deletes": (lambda desk, lease: desk.broker.delete_job(lease.job.id, desk.queue.now, is_forced=True), 0),
    "admin releases": (lambda desk, lease: desk.broker.release_job(lease.job.id, desk.queue.now), READY),
    "admin buries": (lambda desk, lease: desk.broker.bury_job(lease.job.id, desk.queue.now, is_forced=True), BURIED),
    "admin hangs up": (lambda _, lease: holder(lease.job).hang_up(), READY),
    "stop": (lambda desk, _: desk.leases.stop(), READY),
}


def holder(job: Job) -> Client:
    assert job.holder is not None
    return job.holder


@pytest.mark.parametrize("how", ENDINGS)
def test_a_lease_that_has_ended_leaves_nothing_and_its_token_is_void(queue: Queue, desk: Desk, how: str) -> None:
    (id,) = queue.put("mail")
    lease = desk.one("mail")
    assert desk.holds(lease)
    end, state = ENDINGS[how]
    end(desk, lease)
    assert desk.is_empty()
    assert (desk.broker.jobs[id].state if state else id not in desk.broker.jobs) == (state or True)
    said = "deleted" if not state else "now"
    with pytest.raises(LeaseEnded, match=said):
        desk.leases.job(lease.token)


@pytest.mark.parametrize("how", ENDINGS)
def test_one_lease_of_two_ends_and_the_other_stays(queue: Queue, desk: Desk, how: str) -> None:
    queue.put("mail", count=2)
    first, second = desk.reserve("mail", count=2)
    if how == "ttr":
        queue.now += SECOND
        desk.leases.touch(second.token)
        queue.now -= SECOND
    ENDINGS[how][0](desk, first)
    desk.settle()
    assert not desk.holds(first)
    assert desk.holds(second) == (how not in ("admin hangs up", "stop"))


DEEDS: dict[str, Ending] = {
    "job": lambda desk, lease: desk.leases.job(lease.token),
    "delete": ENDINGS["delete"][0],
    "release": ENDINGS["release"][0],
    "bury": ENDINGS["bury"][0],
    "touch": lambda desk, lease: desk.leases.touch(lease.token),
}


@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize("is_http", [True, False])
def test_an_old_token_does_nothing_to_the_next_holder(queue: Queue, desk: Desk, deed: str, is_http: bool) -> None:
    queue.put("mail")
    old = desk.one("mail")
    desk.pass_by(TTR)
    if is_http:
        new = desk.one("mail")
        assert new.token != old.token
    else:
        desk.broker.reserve_job(queue.connect(), old.job.id, queue.now)
    job = desk.broker.jobs[old.job.id]
    before = (job.holder, job.state, job.deadline, job.pri)
    queue.now += SECOND
    with pytest.raises(LeaseEnded, match="The job is reserved by another now"):
        DEEDS[deed](desk, old)
    assert (job.holder, job.state, job.deadline, job.pri) == before


@pytest.mark.parametrize("deed", DEEDS)
def test_what_is_no_token_opens_nothing(queue: Queue, desk: Desk, deed: str) -> None:
    queue.put("mail", count=2)
    first, second = desk.reserve("mail", count=2)
    token = first.token
    half = TOKEN_LENGTH // 2
    foreign = Desk(queue).leases._tokens.make(first.job)
    tokens = ["", "x", "A" * TOKEN_LENGTH, "é" * TOKEN_LENGTH, "=" * TOKEN_LENGTH, "A===" * (TOKEN_LENGTH // 4),
              "\0" * TOKEN_LENGTH, token + "A", token + "\n", token[1:], token[:half] + second.token[half:],
              foreign]  # fmt: skip
    tokens += [token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :] for at in range(TOKEN_LENGTH)]
    for one in tokens:
        with pytest.raises(NoLease) as refusal:
            DEEDS[deed](desk, Lease(first.job, first.body, one))
        assert not isinstance(refusal.value, LeaseEnded), one
    assert desk.holds(first)
    assert desk.holds(second)


def test_the_token_shows_in_no_repr(queue: Queue, desk: Desk) -> None:
    queue.put("mail")
    lease = desk.one("mail")
    assert len(lease.token) == TOKEN_LENGTH
    assert lease.token not in repr(lease)


def test_touch_begins_the_ttr_anew(queue: Queue, desk: Desk) -> None:
    queue.put("mail")
    lease = desk.one("mail")
    for _ in range(3):
        desk.pass_by(TTR - 1)
        assert desk.leases.touch(lease.token).deadline == queue.now + TTR * SECOND
    desk.pass_by(TTR - 1)
    assert desk.holds(lease)
    desk.pass_by(1)
    assert not desk.holds(lease)
    assert desk.broker.jobs[lease.job.id].timeouts == 1


def test_release_and_bury_leave_the_priority_unless_told(queue: Queue, desk: Desk) -> None:
    (id,) = queue.put("mail", pri=7)
    job = desk.broker.jobs[id]
    lease = desk.one("mail")
    desk.leases.release(lease.token, None, 0)
    assert job.pri == 7
    lease = desk.one("mail")
    desk.leases.release(lease.token, 0, 0)
    assert job.pri == 0
    lease = desk.one("mail")
    desk.leases.bury(lease.token, 5)
    assert (job.pri, job.state) == (5, BURIED)


def test_an_edit_by_force_leaves_the_lease(queue: Queue, desk: Desk) -> None:
    (id,) = queue.put("mail")
    lease = desk.one("mail")
    desk.broker.edit_job(id, queue.now, tube=b"post", body=b"other", is_forced=True)
    assert desk.leases.job(lease.token).body == b"other"
    desk.leases.delete(lease.token)
    assert desk.is_empty()
    assert list(desk.broker.tubes) == [b"default"]


def test_hang_up_ends_a_wait(desk: Desk) -> None:
    greenlet = desk.begin("mail")
    (client,) = desk.broker.clients
    client.hang_up()
    assert greenlet.get(timeout=PATIENCE) == []
    assert desk.is_empty()


# Bounds


def test_no_more_wait_than_may(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASKING_AT_MOST", 2)
    greenlets = [desk.begin("mail") for _ in range(2)]
    with pytest.raises(Refused, match="2 requests to reserve are waiting"):
        desk.reserve("mail", wait=1)
    assert desk.reserve("mail", wait=0) == [], "it does not wait"
    desk.pass_by(30)
    gevent.joinall(greenlets, timeout=PATIENCE)
    assert desk.is_empty()


def test_no_more_have_jobs_out_than_may(queue: Queue, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLIENTS_AT_MOST", 2)
    queue.put("mail", count=3)
    leases = [desk.one("mail") for _ in range(2)]
    with pytest.raises(Refused, match="2 requests have jobs reserved"):
        desk.reserve("mail")
    desk.leases.delete(leases[0].token)
    desk.settle()
    assert len(desk.reserve("mail")) == 1


def test_stop_ends_all_and_begins_no_more(queue: Queue, desk: Desk) -> None:
    (id,) = queue.put("mail")
    desk.one("mail")
    greenlet = desk.begin("mail")
    desk.leases.stop()
    with pytest.raises(Refused, match="stopping"):
        greenlet.get(timeout=PATIENCE)
    assert desk.is_empty()
    assert [event.kind for event in job_history.unpack(desk.broker.jobs[id].events)] == [
        job_history.RESERVED,
        job_history.RETURNED,
    ]
    with pytest.raises(Refused, match="stopping"):
        desk.reserve("mail")


def test_nothing_is_left_of_those_that_were(queue: Queue, desk: Desk) -> None:
    def come_and_go(times: int) -> None:
        for at in range(times):
            queue.put("default")
            lease = desk.one("default")
            if at % 2:
                desk.leases.delete(lease.token)
            else:
                desk.broker.delete_job(lease.job.id, queue.now, is_forced=True)
            assert desk.reserve("default") == []
            gevent.sleep(0)

    come_and_go(MAX_RECENT_WORKERS)  # whose addresses are kept
    gc.collect()
    gc.disable()
    blocks = sys.getallocatedblocks()
    try:
        come_and_go(2000)
        assert gc.collect() < 200  # in cycles, which may stay for long
        assert sys.getallocatedblocks() - blocks < 1000
    finally:
        gc.enable()
    assert desk.is_empty()


# A journal


class Slow(NullJournal):
    """A journal that has each put safe when it is committed, as a Binlog under `-f 0`."""

    def put(self, job: Job) -> bool:
        self.promised += 1
        return True


@pytest.fixture
def slow(queue: Queue) -> Slow:
    journal = queue.broker.journal = Slow()
    return journal


def test_nobody_hears_of_a_job_that_a_crash_could_take_back(queue: Queue, slow: Slow) -> None:
    may_go_on = gevent.event.Event()

    def commit() -> bool:
        may_go_on.wait()
        slow.safe = slow.promised
        return True

    desk = Desk(queue, commit)
    greenlet = desk.begin("mail")
    (id,) = queue.put("mail")
    desk.settle()
    assert desk.broker.jobs[id].state == RESERVED
    assert not greenlet.ready()
    may_go_on.set()
    assert ids(greenlet.get(timeout=PATIENCE)) == [id]


def test_what_is_safe_waits_for_nothing(queue: Queue, slow: Slow) -> None:
    desk = Desk(queue, lambda: pytest.fail("nothing is to be waited for"))
    queue.put("mail")
    slow.safe = slow.promised
    assert len(desk.reserve("mail")) == 1


def test_jobs_are_given_back_if_the_journal_is_late(queue: Queue, slow: Slow) -> None:
    slow.trouble = "no space left"
    desk = Desk(queue, lambda: False)
    greenlet = desk.begin("mail")
    (id,) = queue.put("mail")
    with pytest.raises(Refused, match=r"The journal is late \(no space left\)"):
        greenlet.get(timeout=PATIENCE)
    assert desk.broker.jobs[id].state == READY
    assert desk.is_empty()


@pytest.mark.parametrize("is_later", [True, False])
def test_a_ttr_that_ends_while_the_journal_is_waited_for_is_no_lease(queue: Queue, slow: Slow, is_later: bool) -> None:
    def commit() -> bool:
        slow.safe = slow.promised
        queue.now += TTR * SECOND
        desk.broker.tick(queue.now)
        if is_later:
            desk.settle()
        return True

    desk = Desk(queue, commit)
    greenlet = desk.begin("mail", wait=2 * TTR)
    (id,) = queue.put("mail")
    (lease,) = greenlet.get(timeout=PATIENCE)
    assert (lease.job.id, lease.job.timeouts, lease.job.reserves) == (id, 1, 2)
    desk.settle()
    assert desk.holds(lease)


# Anything, in any order


class Crowd(RuleBasedStateMachine):
    """Workers over HTTP among those that speak the protocol, and an admin, all in each other's way."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = Queue()
        self.desk = Desk(self.queue)
        self.broker = self.queue.broker
        self.leases: list[Lease] = []
        self.others: list[Client] = []
        self.waiting: list[tuple[gevent.Greenlet, socket.socket, socket.socket]] = []

    def teardown(self) -> None:
        for client in self.others:
            self.broker.disconnect(client, self.queue.now)
        self.desk.leases.stop()
        self.come_to_rest()
        assert self.desk.is_empty()
        for greenlet, *sockets in self.waiting:
            assert greenlet.get() == []
            for sock in sockets:
                sock.close()

    def begin(self, *tubes: str, **asked: Any) -> list[Lease]:
        try:
            return self.desk.reserve(*tubes, **asked)
        except Refused:
            return []

    def come_to_rest(self) -> None:
        """Return when all who are under way are parked."""
        leases = self.desk.leases
        gevent.sleep(0)
        with gevent.Timeout(PATIENCE):
            while leases._emptied or not all(
                number in leases._clients and leases._clients[number].is_waiting for number in leases._asking
            ):
                gevent.sleep(0)
        self.broker.check()

    @rule(tube=TUBES, pri=st.integers(0, 2), delay=st.integers(0, 3), count=st.integers(1, 3))
    def put(self, tube: str, pri: int, delay: int, count: int) -> None:
        self.queue.put(tube, pri=pri, delay=delay, count=count)

    @rule(tubes=st.sets(TUBES, min_size=1), count=st.integers(1, 3))
    def reserve(self, tubes: set[str], count: int) -> None:
        self.leases += self.desk.reserve(*sorted(tubes), count=count)

    @rule(tubes=st.sets(TUBES, min_size=1), count=st.integers(1, 3), wait=st.sampled_from([1, 100]))
    def reserve_and_wait(self, tubes: set[str], count: int, wait: int) -> None:
        ours, theirs = socket.socketpair()
        asked = {"count": count, "wait": wait, "peer": Peer(ours.fileno())}
        self.waiting.append((gevent.spawn(self.begin, *sorted(tubes), **asked), ours, theirs))

    @precondition(lambda self: self.waiting)
    @rule(at=st.integers(0))
    def go_away(self, at: int) -> None:
        greenlet, _, theirs = self.waiting[at % len(self.waiting)]
        theirs.close()
        greenlet.join(PATIENCE)
        assert greenlet.get() == []

    @rule(tube=TUBES)
    def another_waits(self, tube: str) -> None:
        client = self.queue.connect()
        self.broker.watch(client, tube.encode())
        if self.broker.reserve(client, self.queue.now) is None:
            self.broker.wait(client, None, self.queue.now)
        self.others.append(client)

    @precondition(lambda self: self.others)
    @rule(at=st.integers(0))
    def another_goes(self, at: int) -> None:
        self.broker.disconnect(self.others.pop(at % len(self.others)), self.queue.now)

    @precondition(lambda self: self.leases)
    @rule(at=st.integers(0), deed=st.sampled_from(sorted(DEEDS)))
    def use_a_token(self, at: int, deed: str) -> None:
        lease = self.leases[at % len(self.leases)]
        is_held = self.desk.holds(lease)
        try:
            DEEDS[deed](self.desk, lease)
        except LeaseEnded:
            assert not is_held
        else:
            assert is_held

    @precondition(lambda self: self.leases)
    @rule(at=st.integers(0), how=st.sampled_from(["admin deletes", "admin releases", "admin buries"]))
    def force(self, at: int, how: str) -> None:
        ENDINGS[how][0](self.desk, self.leases[at % len(self.leases)])

    @precondition(lambda self: self.broker.clients)
    @rule(at=st.integers(0))
    def hang_up(self, at: int) -> None:
        client = list(self.broker.clients)[at % len(self.broker.clients)]
        if client.is_http:
            client.hang_up()

    @rule(tube=TUBES, seconds=st.integers(0, 5))
    def pause(self, tube: str, seconds: int) -> None:
        self.broker.pause_tube(tube.encode(), seconds * SECOND, self.queue.now)

    @rule(seconds=st.sampled_from([0.5, 2, 30, TTR]))
    def pass_by(self, seconds: float) -> None:
        self.desk.pass_by(seconds)

    @invariant()
    def all_is_well(self) -> None:
        self.come_to_rest()
        for one in [one for one in self.waiting if one[0].ready()]:
            self.waiting.remove(one)
            self.leases += one[0].get()
            for sock in one[1:]:
                sock.close()
        leases = self.desk.leases
        assert [client for client in self.broker.clients if client.is_http] == list(leases._clients.values())
        assert len(leases._asking) == len(self.waiting)
        for number, client in leases._clients.items():
            assert client.number == number
            assert client.reserved or number in leases._asking
        held = {(job.id, job.reserves) for client in leases._clients.values() for job in client.reserved.values()}
        named = [leases._tokens.read(lease.token) for lease in self.leases]
        assert len(set(named)) == len(named), "no two reservations have one token"
        assert {name for name, lease in zip(named, self.leases, strict=True) if self.desk.holds(lease)} == held


class TestCrowd(Crowd.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
