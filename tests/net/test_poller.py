"""The poller serves handlers in the order in which something arrived for them, in small batches, and in turns."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

import gevent
import pytest

from greenstalk_server.net.poller import BATCH_SIZE, BUDGET, DEFER_ABOVE, MAX_BATCHES, PORTION, Poller
from greenstalk_server.protocol.session import COMMAND_SLICE
from greenstalk_server.runtime.clock import steady_clock
from tests.support.daemon import PATIENCE

SIZE = 8
"""Bytes that a handler receives at once."""


class Handler:
    """One end of a pair of sockets, with a poller.Handler that records the calls.

    cost   of a portion.
    left   portions that are left to be served, besides the first.
    """

    def __init__(self, number: int, poller: Poller, calls: list[tuple[str, int]]) -> None:
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.number = number
        self.poller = poller
        self.calls = calls
        self.wakes: list[Handler] = []
        self.limits: list[range] = []
        self.cost = 0
        self.cost_of_receive = 0
        self.left = 0
        self.is_unread = False
        self.deferred: bytes | None = None
        self.raises_in = ""

    def add(self) -> None:
        self.poller.add(self.near.fileno(), self)

    def send_from_peer(self, data: bytes = b"x") -> None:
        self.far.send(data)

    def receive(self) -> bytes | None:
        self._record("receive")
        self.poller.spend(self.cost_of_receive)
        try:
            data = self.near.recv(SIZE)
        except BlockingIOError:
            return None
        if len(data) == SIZE:
            self.note_unread()
        return data

    def serve(self, data: bytes, now: int, limit: range) -> bytes:
        self._record("serve" if data else "end")
        self.limits.append(limit)
        for other in self.wakes:
            self.poller.queue(other)
        self.poller.spend(self.cost)
        if self.left:
            self.poller.note_unfinished(self)
            return b""
        return b"reply" if data != b"-" else b""

    def resume(self, now: int, limit: range) -> bytes:
        data, self.deferred = self.deferred, None
        if data is None and self.is_unread:
            self.is_unread = False
            data = self.receive()
        if data is not None:
            return self.serve(data, now, limit)
        self._record("resume")
        if self.left:
            self.poller.note_unfinished(self)
        return b"reply"

    def serve_more(self, now: int) -> bool:
        self._record("more")
        self.poller.spend(self.cost)
        self.left -= 1
        return self.left > 0

    def collect(self) -> bytes:
        self._record("collect")
        return b"reply"

    def send(self, out: bytes) -> None:
        self._record("send")

    def defer(self, data: bytes) -> None:
        self._record("defer")
        self.deferred = data
        self.poller.queue(self)

    def note_unread(self) -> None:
        self.is_unread = True
        self.poller.queue(self)

    def note_hang_up(self) -> None:
        self.note_unread()

    def fail(self, error: Exception) -> None:
        self.calls.append(("fail", self.number))

    def _record(self, call: str) -> None:
        self.calls.append((call, self.number))
        if call == self.raises_in:
            raise RuntimeError(call)


class Stage:
    """A poller, and three batches of handlers."""

    def __init__(self) -> None:
        self.poller = Poller(steady_clock())
        self.calls: list[tuple[str, int]] = []
        self.handlers = [Handler(number, self.poller, self.calls) for number in range(3 * BATCH_SIZE)]

    def add_all(self) -> None:
        for handler in self.handlers:
            handler.add()

    def wait_for(self, call: str, count: int) -> list[int]:
        """Wait for *count* such calls, assert that there are no more, and return their handlers in order."""
        with gevent.Timeout(PATIENCE):
            while len(numbers := self.numbers(call)) < count:
                gevent.sleep(0.001)
        assert len(numbers) == count
        return numbers

    def numbers(self, call: str) -> list[int]:
        return [number for made, number in self.calls if made == call]


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    made.poller.start()
    yield made
    made.poller.stop()
    for handler in made.handlers:
        handler.near.close()
        handler.far.close()


@pytest.mark.parametrize("count", [1, 2, 5, BATCH_SIZE, BATCH_SIZE + 1, 3 * BATCH_SIZE])
def test_handlers_are_served_in_order_of_arrival(stage: Stage, count: int) -> None:
    stage.add_all()
    for _ in range(3):
        stage.calls.clear()
        order = random.sample(stage.handlers, count)
        for handler in order:
            handler.send_from_peer()
        assert stage.wait_for("send", count) == [handler.number for handler in order]


def test_order_of_arrival_does_not_depend_on_what_was_served_before(stage: Stage) -> None:
    """With level-triggered registrations the handler served last would stand first."""
    stage.add_all()
    first, second = stage.handlers[:2]
    first.send_from_peer()
    stage.wait_for("send", 1)
    second.send_from_peer()
    first.send_from_peer()
    assert stage.wait_for("send", 3) == [0, 1, 0]


def test_a_batch_is_received_then_served_then_sent(stage: Stage) -> None:
    stage.add_all()
    for handler in stage.handlers:
        handler.send_from_peer()
    stage.wait_for("send", 3 * BATCH_SIZE)
    numbers = range(3 * BATCH_SIZE)
    batches = [numbers[start : start + BATCH_SIZE] for start in range(0, len(numbers), BATCH_SIZE)]
    passes = ("receive", "serve", "send")
    assert stage.calls == [(call, number) for batch in batches for call in passes for number in batch]


def test_input_left_unread_shares_each_batch_with_what_arrives(stage: Stage) -> None:
    stage.add_all()
    for handler in stage.handlers:
        handler.send_from_peer(b"x" * (2 * SIZE - 1))
    numbers = stage.wait_for("receive", 6 * BATCH_SIZE)
    first, half = list(range(BATCH_SIZE)), BATCH_SIZE // 2
    assert numbers[:BATCH_SIZE] == first
    assert sorted(numbers[BATCH_SIZE : 2 * BATCH_SIZE]) == [*range(half), *range(BATCH_SIZE, BATCH_SIZE + half)]
    assert sorted(numbers) == sorted(2 * list(range(3 * BATCH_SIZE)))


def test_data_and_the_end_that_arrive_together_are_both_received(stage: Stage) -> None:
    stage.add_all()
    stage.handlers[0].send_from_peer()
    stage.handlers[0].far.close()
    assert stage.wait_for("end", 1) == [0]
    assert stage.numbers("serve") == [0]


def test_a_handler_that_is_queued_is_not_served_twice_in_a_batch(stage: Stage) -> None:
    """Otherwise the data received by `resume` would overtake the data received earlier in the batch."""
    stage.add_all()
    stage.handlers[0].send_from_peer()
    stage.handlers[0].note_unread()
    stage.wait_for("serve", 1)
    assert stage.calls[-3:] == [("receive", 0), ("serve", 0), ("send", 0)]


@pytest.mark.parametrize("call", ["receive", "serve", "more", "collect", "send"])
def test_an_exception_ends_its_handler_and_loses_no_event_of_the_others(stage: Stage, call: str) -> None:
    """The kernel reports each event once: a handler whose event is lost would wait without end."""
    stage.add_all()
    bad = stage.handlers[3]
    bad.raises_in = call
    for handler in stage.handlers:
        handler.left = 1 if handler.number % 2 else 0
        handler.send_from_peer()
    numbers = set(range(3 * BATCH_SIZE))
    sent = stage.wait_for("send", len(numbers) - (call != "send"))
    assert set(sent) | {bad.number} == numbers
    assert stage.numbers("fail") == [bad.number]


def test_an_exception_of_a_queued_handler_ends_it_alone(stage: Stage) -> None:
    stage.handlers[1].raises_in = "resume"
    for handler in stage.handlers[:3]:
        stage.poller.queue(handler)
    assert stage.wait_for("send", 2) == [0, 2]
    assert stage.numbers("fail") == [1]


def test_a_handler_that_was_removed_is_not_served(stage: Stage) -> None:
    one, other = stage.handlers[:2]
    for handler in (one, other):
        handler.add()
        handler.send_from_peer()
    stage.poller.remove(one.near.fileno())
    stage.poller.remove(one.near.fileno())
    assert stage.wait_for("send", 1) == [1]
    one.add()
    assert stage.wait_for("send", 2) == [1, 0]


def test_sockets_are_not_served_after_stop_but_queued_handlers_are(stage: Stage) -> None:
    one, other = stage.handlers[:2]
    one.add()
    other.add()
    one.send_from_peer()
    assert stage.wait_for("send", 1) == [0]
    stage.poller.stop()
    one.send_from_peer()
    other.send_from_peer()
    stage.poller.queue(stage.handlers[2])
    stage.wait_for("resume", 1)
    gevent.sleep(0.001)
    assert stage.wait_for("receive", 1) == [0]


def test_nothing_is_sent_where_there_is_no_reply(stage: Stage) -> None:
    stage.add_all()
    stage.handlers[0].send_from_peer(b"-")
    stage.handlers[1].send_from_peer()
    assert stage.wait_for("send", 1) == [1]
    assert stage.wait_for("serve", 2) == [0, 1]


def test_a_handler_that_is_woken_resumes_in_the_next_batch(stage: Stage) -> None:
    stage.add_all()
    for handler in stage.handlers:
        handler.send_from_peer()
    woken = stage.handlers[-1]
    stage.handlers[5].wakes = [woken]
    stage.wait_for("serve", 3 * BATCH_SIZE)
    next_batch = stage.calls[3 * BATCH_SIZE :]
    calls = [call for call in next_batch if call[0] != "receive"]
    assert calls[:2] == [("resume", woken.number), ("serve", BATCH_SIZE)]
    assert len(next_batch[: next_batch.index(calls[0])]) == BATCH_SIZE - 1


def test_handlers_queued_from_outside_resume_in_order_and_once(stage: Stage) -> None:
    for number in (3, 1, 3):
        stage.poller.queue(stage.handlers[number])
    assert stage.wait_for("resume", 2) == [3, 1]
    stage.poller.queue(stage.handlers[2])
    assert stage.wait_for("resume", 3) == [3, 1, 2]


def test_queued_handlers_resume_in_batches(stage: Stage) -> None:
    for handler in stage.handlers:
        stage.poller.queue(handler)
    stage.wait_for("send", 3 * BATCH_SIZE)
    numbers = range(3 * BATCH_SIZE)
    batches = [numbers[start : start + BATCH_SIZE] for start in range(0, len(numbers), BATCH_SIZE)]
    assert stage.calls == [(call, number) for batch in batches for call in ("resume", "send") for number in batch]


def test_a_handler_alone_is_served_a_slice_and_several_a_portion_each(stage: Stage) -> None:
    stage.add_all()
    stage.handlers[0].send_from_peer()
    stage.wait_for("send", 1)
    for handler in stage.handlers[:2]:
        handler.send_from_peer()
    stage.wait_for("send", 3)
    assert [handler.limits for handler in stage.handlers[:2]] == [[COMMAND_SLICE, PORTION], [PORTION]]


def test_handlers_with_pipelined_input_take_turns(stage: Stage) -> None:
    stage.add_all()
    for number, left in ((0, 3), (1, 1), (2, 2)):
        stage.handlers[number].left = left
        stage.handlers[number].send_from_peer()
    stage.handlers[3].send_from_peer()
    assert stage.wait_for("send", 4) == [3, 0, 1, 2]
    assert stage.numbers("serve") == [0, 1, 2, 3]
    assert stage.numbers("more") == [0, 1, 2, 0, 2, 0]


def test_a_short_input_does_not_wait_for_the_end_of_a_long_one(stage: Stage) -> None:
    """When the long input has used up the budget, the loop runs, and the short input is served in the next call."""
    stage.add_all()
    long, short = stage.handlers[:2]
    long.left, long.cost = 100, BUDGET // 4
    long.send_from_peer()
    while not stage.numbers("more"):
        gevent.sleep(0.000001)
    short.send_from_peer()
    before = len(stage.numbers("more"))
    while not stage.numbers("serve").count(1):
        gevent.sleep(0.000001)
    assert len(stage.numbers("more")) - before <= 2 * BUDGET // long.cost
    stage.wait_for("more", 100)


def test_a_batch_whose_budget_is_used_up_is_deferred_and_none_of_it_lost(stage: Stage) -> None:
    stage.add_all()
    for handler in stage.handlers[:BATCH_SIZE]:
        handler.cost = DEFER_ABOVE // 2
        handler.send_from_peer()
    stage.wait_for("send", BATCH_SIZE)
    assert stage.numbers("serve") == list(range(BATCH_SIZE))
    assert stage.numbers("defer")


def test_a_handler_that_always_has_input_leaves_turns_to_others(stage: Stage) -> None:
    """To the sockets polled after it, and, after some batches, to the other watchers of the loop."""
    stage.add_all()
    busy, other = stage.handlers[:BATCH_SIZE], stage.handlers[BATCH_SIZE]
    for handler in busy:
        handler.send_from_peer(b"x" * SIZE * 10 * len(MAX_BATCHES))
    other.send_from_peer()
    turns = 0
    while ("serve", other.number) not in stage.calls:
        gevent.sleep(0.000001)
        turns += 1
    assert turns <= 3
    assert len(stage.numbers("receive")) <= turns * 2 * len(MAX_BATCHES) * BATCH_SIZE


def test_queued_handlers_that_cost_much_are_served_one_in_a_call(stage: Stage) -> None:
    """The other watchers of the loop have their turn between them; the order stays."""
    calls = 0
    poll = stage.poller._poll

    def count() -> None:
        nonlocal calls
        calls += 1
        poll()

    stage.poller._poll = count  # type: ignore[method-assign]
    for handler in stage.handlers:
        handler.cost = BUDGET
        handler.deferred = b"x"
        stage.poller.queue(handler)
    assert stage.wait_for("serve", len(stage.handlers)) == list(range(len(stage.handlers)))
    assert calls == len(stage.handlers)


def test_of_handlers_that_cost_much_to_receive_from_two_are_served_in_a_call(stage: Stage) -> None:
    """One that has just arrived, and the first of the queue, which so does not starve."""
    stage.add_all()
    for handler in stage.handlers:
        handler.cost_of_receive = BUDGET
        handler.send_from_peer()
    served: list[int] = []
    while len(served) < len(stage.handlers):
        stage.calls.clear()
        stage.poller._poll()
        assert len(stage.numbers("receive")) <= 2
        served += stage.numbers("serve")
    assert sorted(served) == list(range(len(stage.handlers)))
    assert served.index(1) < BATCH_SIZE
