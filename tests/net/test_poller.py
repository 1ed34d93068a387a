"""The poller serves handlers in the order of arrival of their input, in small batches, and in turns."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator

import gevent
import pytest
from gevent import get_hub

from greenstalk_server.net.connection import receive_and_arm
from greenstalk_server.net.poller import (
    BATCH_SIZE,
    BUDGET,
    COMMAND_QUANTUM,
    DEFER_ABOVE,
    MAX_BATCHES,
    MAX_WAIT,
    WAIT_PERIOD,
    Handler,
    Poller,
)
from greenstalk_server.protocol.costs import COMMAND_SLICE
from greenstalk_server.runtime.clock import steady_clock
from greenstalk_server.runtime.scheduling import yield_to_loop
from tests.support.daemon import TIMEOUT
from tests.support.processes import join

SIZE = 8
"""Maximum bytes per receive."""


class RecordingHandler(Handler):
    """One end of a socket pair, which records the calls.

    cost   cost of one turn.
    left   turns that follow the first one.
    """

    def __init__(self, number: int, poller: Poller, calls: list[tuple[str, int]]) -> None:
        super().__init__()
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.number = number
        self.poller = poller
        self.calls = calls
        self.wakes: list[RecordingHandler] = []
        self.limits: list[int] = []
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
            data = receive_and_arm(self.near.recv, self.poller, self.near.fileno(), SIZE)
        except BlockingIOError:
            return None
        if len(data) == SIZE:
            self.note_unread()
        return data

    def serve(self, data: bytes, now: int, limit: int) -> bytes:
        self._record("serve" if data else "end")
        self.limits.append(limit)
        for other in self.wakes:
            self.poller.queue(other)
        self.poller.spend(self.cost)
        if self.left:
            self.poller.note_unfinished(self)
            return b""
        return b"reply" if data != b"-" else b""

    def resume(self, now: int, limit: int) -> bytes:
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


class Rig:
    """A poller, and three batches of handlers."""

    def __init__(self) -> None:
        self.poller = Poller(steady_clock())
        self.calls: list[tuple[str, int]] = []
        self.handlers = [RecordingHandler(number, self.poller, self.calls) for number in range(3 * BATCH_SIZE)]

    def add_all(self) -> None:
        for handler in self.handlers:
            handler.add()

    def wait_for(self, call: str, count: int) -> list[int]:
        """Wait for *count* calls of the method *call*, and assert that there are not more; return their handlers."""
        with gevent.Timeout(TIMEOUT):
            while len(numbers := self.numbers(call)) < count:
                gevent.sleep(0.001)
        assert len(numbers) == count
        return numbers

    def numbers(self, call: str) -> list[int]:
        return [number for name, number in self.calls if name == call]


@pytest.fixture
def rig() -> Iterator[Rig]:
    created = Rig()
    created.poller.start()
    yield created
    created.poller.stop()
    for handler in created.handlers:
        handler.near.close()
        handler.far.close()


@pytest.mark.linux_form
@pytest.mark.parametrize("count", [1, 2, 5, BATCH_SIZE, BATCH_SIZE + 1, 3 * BATCH_SIZE])
def test_handlers_are_served_in_order_of_arrival(rig: Rig, count: int) -> None:
    rig.add_all()
    for _ in range(3):
        rig.calls.clear()
        order = random.sample(rig.handlers, count)
        for handler in order:
            handler.send_from_peer()
        assert rig.wait_for("send", count) == [handler.number for handler in order]


def test_order_of_arrival_does_not_depend_on_earlier_service(rig: Rig) -> None:
    """With level-triggered registrations the handler that was served last would come first."""
    rig.add_all()
    first, second = rig.handlers[:2]
    first.send_from_peer()
    rig.wait_for("send", 1)
    second.send_from_peer()
    first.send_from_peer()
    assert rig.wait_for("send", 3) == [0, 1, 0]


def test_batch_is_received_then_served_then_sent(rig: Rig) -> None:
    rig.add_all()
    for handler in rig.handlers:
        handler.send_from_peer()
    rig.wait_for("send", 3 * BATCH_SIZE)
    numbers = range(3 * BATCH_SIZE)
    batches = [numbers[start : start + BATCH_SIZE] for start in range(0, len(numbers), BATCH_SIZE)]
    passes = ("receive", "serve", "send")
    assert rig.calls == [(call, number) for batch in batches for call in passes for number in batch]


@pytest.mark.linux_form
def test_input_left_unread_shares_each_batch_with_what_arrives(rig: Rig) -> None:
    rig.add_all()
    for handler in rig.handlers:
        handler.send_from_peer(b"x" * (2 * SIZE - 1))
    numbers = rig.wait_for("receive", 6 * BATCH_SIZE)
    assert numbers[:BATCH_SIZE] == list(range(BATCH_SIZE))
    assert sorted(numbers[BATCH_SIZE : 3 * BATCH_SIZE]) == list(range(2 * BATCH_SIZE))
    assert sorted(numbers) == sorted(2 * list(range(3 * BATCH_SIZE)))


def test_data_and_the_end_that_arrive_together_are_both_received(rig: Rig) -> None:
    rig.add_all()
    rig.handlers[0].send_from_peer()
    rig.handlers[0].far.close()
    assert rig.wait_for("end", 1) == [0]
    assert rig.numbers("serve") == [0]


def test_queued_handler_is_not_served_twice_in_a_batch(rig: Rig) -> None:
    """Otherwise the data received by `resume` would overtake the data received earlier in the batch."""
    rig.add_all()
    rig.handlers[0].send_from_peer()
    rig.handlers[0].note_unread()
    rig.wait_for("serve", 1)
    assert rig.calls[-3:] == [("receive", 0), ("serve", 0), ("send", 0)]


@pytest.mark.parametrize("call", ["receive", "serve", "more", "collect", "send"])
def test_exception_ends_its_handler_and_loses_no_event_of_others(rig: Rig, call: str) -> None:
    """The kernel reports each event once: a handler whose event is lost would wait forever."""
    rig.add_all()
    bad = rig.handlers[3]
    bad.raises_in = call
    for handler in rig.handlers:
        handler.left = 1 if handler.number % 2 else 0
        handler.send_from_peer()
    numbers = set(range(3 * BATCH_SIZE))
    sent = rig.wait_for("send", len(numbers) - (call != "send"))
    assert set(sent) | {bad.number} == numbers
    assert rig.numbers("fail") == [bad.number]


def test_exception_of_a_queued_handler_ends_only_that_handler(rig: Rig) -> None:
    rig.handlers[1].raises_in = "resume"
    for handler in rig.handlers[:3]:
        rig.poller.queue(handler)
    assert rig.wait_for("send", 2) == [0, 2]
    assert rig.numbers("fail") == [1]


def test_removed_handler_is_not_served(rig: Rig) -> None:
    one, other = rig.handlers[:2]
    for handler in (one, other):
        handler.add()
        handler.send_from_peer()
    rig.poller.remove(one.near.fileno())
    rig.poller.remove(one.near.fileno())
    assert rig.wait_for("send", 1) == [1]
    one.add()
    assert rig.wait_for("send", 2) == [1, 0]


def test_sockets_are_not_served_after_stop_but_queued_handlers_are(rig: Rig) -> None:
    one, other = rig.handlers[:2]
    one.add()
    other.add()
    one.send_from_peer()
    assert rig.wait_for("send", 1) == [0]
    rig.poller.stop()
    one.send_from_peer()
    other.send_from_peer()
    rig.poller.queue(rig.handlers[2])
    rig.wait_for("resume", 1)
    gevent.sleep(0.001)
    assert rig.wait_for("receive", 1) == [0]


def test_handler_without_a_reply_sends_nothing(rig: Rig) -> None:
    rig.add_all()
    rig.handlers[0].send_from_peer(b"-")
    rig.handlers[1].send_from_peer()
    assert rig.wait_for("send", 1) == [1]
    assert rig.wait_for("serve", 2) == [0, 1]


def test_woken_handler_resumes_in_the_next_batch(rig: Rig) -> None:
    rig.add_all()
    for handler in rig.handlers:
        handler.send_from_peer()
    woken = rig.handlers[-1]
    rig.handlers[5].wakes = [woken]
    rig.wait_for("serve", 3 * BATCH_SIZE)
    next_batch = rig.calls[3 * BATCH_SIZE :]
    calls = [call for call in next_batch if call[0] != "receive"]
    assert calls[:2] == [("resume", woken.number), ("serve", BATCH_SIZE)]
    assert len(next_batch[: next_batch.index(calls[0])]) == BATCH_SIZE


def test_handlers_queued_from_outside_resume_in_order_and_once(rig: Rig) -> None:
    for number in (3, 1, 3):
        rig.poller.queue(rig.handlers[number])
    assert rig.wait_for("resume", 2) == [3, 1]
    rig.poller.queue(rig.handlers[2])
    assert rig.wait_for("resume", 3) == [3, 1, 2]


def test_queued_handlers_resume_in_batches(rig: Rig) -> None:
    for handler in rig.handlers:
        rig.poller.queue(handler)
    rig.wait_for("send", 3 * BATCH_SIZE)
    numbers = range(3 * BATCH_SIZE)
    batches = [numbers[start : start + BATCH_SIZE] for start in range(0, len(numbers), BATCH_SIZE)]
    assert rig.calls == [(call, number) for batch in batches for call in ("resume", "send") for number in batch]


def test_single_handler_gets_a_slice_and_several_get_a_quantum_each(rig: Rig) -> None:
    rig.add_all()
    rig.handlers[0].send_from_peer()
    rig.wait_for("send", 1)
    for handler in rig.handlers[:2]:
        handler.send_from_peer()
    rig.wait_for("send", 3)
    assert [handler.limits for handler in rig.handlers[:2]] == [[COMMAND_SLICE, COMMAND_QUANTUM], [COMMAND_QUANTUM]]


def test_handlers_with_pipelined_input_take_turns(rig: Rig) -> None:
    rig.add_all()
    for number, left in ((0, 3), (1, 1), (2, 2)):
        rig.handlers[number].left = left
        rig.handlers[number].send_from_peer()
    rig.handlers[3].send_from_peer()
    assert rig.wait_for("send", 4) == [3, 0, 1, 2]
    assert rig.numbers("serve") == [0, 1, 2, 3]
    assert rig.numbers("more") == [0, 1, 2, 0, 2, 0]


def test_short_input_does_not_wait_for_the_end_of_a_long_one(rig: Rig) -> None:
    """When the long input has used up the budget, the loop runs, and the short input is served in the next call."""
    rig.add_all()
    long, short = rig.handlers[:2]
    long.left, long.cost = 100, BUDGET // 4
    long.send_from_peer()
    while not rig.numbers("more"):
        gevent.sleep(0.000001)
    short.send_from_peer()
    before = len(rig.numbers("more"))
    while not rig.numbers("serve").count(1):
        gevent.sleep(0.000001)
    assert len(rig.numbers("more")) - before <= 2 * BUDGET // long.cost
    rig.wait_for("more", 100)


def test_rest_of_a_batch_is_deferred_when_the_budget_is_used_up(rig: Rig) -> None:
    rig.add_all()
    for handler in rig.handlers[:BATCH_SIZE]:
        handler.cost = DEFER_ABOVE // 2
        handler.send_from_peer()
    rig.wait_for("send", BATCH_SIZE)
    assert rig.numbers("serve") == list(range(BATCH_SIZE))
    assert rig.numbers("defer")


def test_handlers_that_always_have_input_do_not_starve_others(rig: Rig) -> None:
    """Neither the sockets that are polled after them nor the other watchers of the loop starve."""
    rig.add_all()
    busy, other = rig.handlers[:BATCH_SIZE], rig.handlers[BATCH_SIZE]
    for handler in busy:
        handler.send_from_peer(b"x" * SIZE * 10 * len(MAX_BATCHES))
    other.send_from_peer()
    turns = 0
    while ("serve", other.number) not in rig.calls:
        gevent.sleep(0.000001)
        turns += 1
    assert turns <= 3
    assert len(rig.numbers("receive")) <= turns * 2 * len(MAX_BATCHES) * BATCH_SIZE


@pytest.mark.pure
def test_one_expensive_queued_handler_is_served_per_call(rig: Rig) -> None:
    """The other watchers of the loop run between the calls. The order of the queue is kept."""
    calls = 0
    poll = rig.poller._poll

    def count() -> None:
        nonlocal calls
        calls += 1
        poll()

    rig.poller._poll = count  # type: ignore[method-assign]
    for handler in rig.handlers:
        handler.cost = BUDGET
        handler.deferred = b"x"
        rig.poller.queue(handler)
    assert rig.wait_for("serve", len(rig.handlers)) == list(range(len(rig.handlers)))
    assert calls == len(rig.handlers)


@pytest.mark.linux_form
def test_two_handlers_with_expensive_input_are_served_per_call(rig: Rig) -> None:
    """The poller serves one handler whose input has just arrived, and the first of the queue, which does not starve."""
    rig.add_all()
    for handler in rig.handlers:
        handler.cost_of_receive = BUDGET
        handler.send_from_peer()
    served: list[int] = []
    while len(served) < len(rig.handlers):
        rig.calls.clear()
        rig.poller._poll()
        assert len(rig.numbers("receive")) <= 2
        served += rig.numbers("serve")
    assert sorted(served) == list(range(len(rig.handlers)))
    assert served.index(1) < BATCH_SIZE


QUICK_COMMANDS = 2_000


class RepliesHandler(RecordingHandler):
    """Sends its replies."""

    def send(self, out: bytes) -> None:
        super().send(out)
        self.near.send(out)


class QuickClient:
    """A peer, in a thread, that sends the next input when it has the reply; and a count of the loop's iterations."""

    def __init__(self, rig: Rig) -> None:
        self.handler = RepliesHandler(0, rig.poller, rig.calls)
        self.handler.add()
        self.iterations = 0
        self._is_done = False
        self._thread = threading.Thread(target=self._send, daemon=True)

    def run(self) -> None:
        """Send QUICK_COMMANDS inputs. Switches."""
        before = get_hub().loop.iteration
        self._thread.start()
        with gevent.Timeout(TIMEOUT):
            while not self._is_done:
                gevent.sleep(0.01)
        join(self._thread)
        self.iterations = get_hub().loop.iteration - before
        self.handler.near.close()
        self.handler.far.close()

    def _send(self) -> None:
        for _ in range(QUICK_COMMANDS):
            self.handler.far.send(b"x")
            self.handler.far.recv(SIZE)
        self._is_done = True


@pytest.mark.linux_form
def test_quick_commands_are_served_without_an_iteration_of_the_loop_for_each(rig: Rig) -> None:
    for attempt in range(1, 11):  # on a busy machine the commands are not quick
        client = QuickClient(rig)
        client.run()
        assert len(rig.numbers("serve")) == QUICK_COMMANDS * attempt
        if client.iterations < QUICK_COMMANDS * 3 / 4:
            return
    pytest.fail("each command had an iteration of the loop")


def test_loop_runs_while_commands_are_quick(rig: Rig) -> None:
    gaps: list[float] = []

    def sleep() -> None:
        while True:
            began = time.monotonic()
            gevent.sleep(0.001)
            gaps.append(time.monotonic() - began)

    sleeper = gevent.spawn(sleep)
    QuickClient(rig).run()
    sleeper.kill()
    assert sorted(gaps)[len(gaps) // 2] < 0.001 + (MAX_WAIT / 1_000 + WAIT_PERIOD / 1e9) * 2


@pytest.mark.parametrize("reason", ["a greenlet yields", "replies are held", "a callback is pending"])
def test_poller_does_not_wait_while_the_loop_has_other_work(rig: Rig, reason: str) -> None:
    yields = 0

    def yield_forever() -> None:
        nonlocal yields
        while True:
            yield_to_loop()
            yields += 1

    greenlet = gevent.spawn(yield_forever) if reason == "a greenlet yields" else None
    if reason == "replies are held":
        rig.poller.has_held_replies = lambda: True
    if reason == "a callback is pending":
        rig.poller.before_send = lambda replies: get_hub().loop.run_callback(int)
    client = QuickClient(rig)
    client.run()
    if greenlet is not None:
        greenlet.kill()
        assert yields > QUICK_COMMANDS * 3 / 4
    assert client.iterations > QUICK_COMMANDS * 3 / 4
