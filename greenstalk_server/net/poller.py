"""Polls sockets with one epoll instance, and serves them in the order in which they became ready.

The instance has all beanstalk sockets, including the listening ones. So new connections, commands and closes take
effect in the order in which they arrived, across all connections. The registrations are edge-triggered: the kernel puts
a socket on its ready list when input arrives, and removes the socket when a poll reports it. (A level-triggered socket
stays on the list after it was served, so its next input would overtake earlier input on other sockets. libev, the loop
of gevent, calls the watchers of one poll in reverse order.) The loop watches only the epoll's descriptor.

A batch has up to `BATCH_SIZE` handlers that are queued with work left, and then as many that the kernel reports. It
runs in three passes: receive, serve, send. This keeps the code and the data of a pass in the CPU caches, and saves
about a tenth of the CPU per command. No pass switches greenlets, so one timestamp is valid for the whole batch. Between
the last two passes the committer may write the journal's records of the whole batch, so that its replies need not be
held.

With few connections, each command would cost an iteration of gevent's loop: a second `epoll_wait`, a `getpid`, and its
callbacks. So when commands follow each other quickly, the poller waits for the next one itself: at most `MAX_WAIT` ms
at a time, and for about `WAIT_PERIOD` in total before the loop runs. It does not wait while the loop has work: a
callback or a watcher, a greenlet that has yielded, a held reply. Timers, other sockets and threads are served after the
wait, up to 4.5 ms late.

Handlers with pipelined commands take turns of `COMMAND_QUANTUM` commands, so that a long pipeline does not delay a
short one. A handler that is alone in its batch is served up to a whole slice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from gevent import get_hub
from mypy_extensions import mypyc_attr

from greenstalk_server.core.timers import NEVER
from greenstalk_server.protocol.costs import COMMAND_SLICE, OUTPUT_SLICE
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.runtime.scheduling import FairQueue, has_yielding
from greenstalk_server.runtime.supervisor import abort
from greenstalk_server.runtime.system import EDGE_EVENTS, INPUT, IS_PORTABLE, YIELD_DELAY, open_poll

BATCH_SIZE: Final = 16
"""Queued handlers, and reported ones, per batch. Larger batches cost less CPU per command, but raise p99 latency."""

MAX_BATCHES: Final = range(4)
"""Batches per call of the loop; then its other watchers run."""

COMMAND_QUANTUM: Final = 8
"""Pipelined commands served for one handler per turn, before the other handlers of its batch get their turns."""

BUDGET: Final = OUTPUT_SLICE
"""Cost of pipelined commands (see `Poller.spend`) per call of the loop; a slice, about a millisecond."""

DEFER_ABOVE: Final = 2 * BUDGET
"""Cost of a batch above which the handlers not yet served wait for the next call of the loop."""

QUICK: Final = 300_000
"""Maximum nanoseconds between two batches that follow each other quickly."""

QUICK_BATCHES: Final = 8
"""Number of quick batches in succession after which the poller itself waits for input."""

MAX_WAIT: Final = 4
"""Maximum milliseconds that the poller waits for input. A timer that expires before the kernel's next tick (4 ms with
HZ=250) costs more CPU than the wait saves."""

WAIT_PERIOD: Final = 500_000
"""Nanoseconds after which the loop runs, even if commands keep arriving."""

try:
    from greenstalk_server.net._plain_socket import poll
except ImportError:  # not compiled
    poll = None  # type: ignore[assignment]


@mypyc_attr(allow_interpreted_subclasses=True)  # the tests define subclasses
class Handler:
    """Serves one socket. No method may switch; an exception from any method except `fail` ends only this handler.

    A base class, not a Protocol: the compiled poller calls the methods of a subclass without a lookup by name.

    is_queued   the poller is going to call `resume`. Set by the poller.
    """

    __slots__ = ("is_queued",)

    def __init__(self) -> None:
        self.is_queued: bool = False

    def receive(self) -> bytes | None:
        """Return the bytes that have arrived, b"" at the end of the stream, or None if nothing is to be served."""
        raise NotImplementedError

    def serve(self, data: bytes, now: int, limit: int) -> bytes:
        """Serve what `receive` returned, at most *limit* commands of it; return the replies to be sent."""
        raise NotImplementedError

    def resume(self, now: int, limit: int) -> bytes:
        """Do the work that the handler was queued for, if it is still due; return the replies to be sent."""
        raise NotImplementedError

    def serve_more(self, now: int) -> bool:
        """Serve another turn of pipelined commands, and keep the replies; return whether more input is left."""
        raise NotImplementedError

    def collect(self) -> bytes:
        """Return the replies kept by `serve_more` that are to be sent now."""
        raise NotImplementedError

    def send(self, out: bytes) -> None:
        """Send *out*, which is not empty."""
        raise NotImplementedError

    def defer(self, data: bytes) -> None:
        """Keep what `receive` returned, and have the poller call `resume`, which serves it."""
        raise NotImplementedError

    def note_unread(self) -> None:
        """Have the poller call `resume`, which receives again: there may be more than `receive` has returned."""
        raise NotImplementedError

    def note_hang_up(self) -> None:
        """Like `note_unread`, repeated until all input is read or the stream ends.

        No further event announces the rest.
        """
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """Log *error*, which another method has raised, and close the socket, now or later. Must not raise."""
        raise NotImplementedError

    def is_client(self) -> bool:
        """Whether the handler serves a client, so that `Poller.serve_for` concerns it."""
        return False


class Poller:
    """Serves handlers in the hub. No method switches.

    turns       shared by the greenlets that send large replies.
    before_send called with the handlers that have replies in a batch, before these are sent; it must not switch. None
                if there is nothing to do.
    after_batches   called after up to MAX_BATCHES batches, when their replies are sent, if `is_output_due`; must not
                    switch.
    is_output_due   `after_batches` has something to do.
    is_serving      a batch is being served.
    has_held_replies    returns whether there are held replies, which the loop must send. None if replies are never
                        held.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock: Clock = clock
        self._quick_poll: Callable[[int, int, int], list[tuple[int, int]]] | None = None if IS_PORTABLE else poll
        self._handlers: dict[int, Handler] = {}
        self._queue: list[Handler] = []
        self._unfinished: list[Handler] = []
        self._serve_until: int = NEVER
        self._aside: list[Handler] = []  # handlers that `serve_for` queues
        self._late: list[tuple[Handler, int]] = []  # handlers with their events, reported after the budget was spent
        self._spent: int = 0
        self._now: int = 0  # time of the last batch
        self._batch_at: int = 0  # time of the last batch of the previous call
        self._quick_batches: int = 0
        self._is_due: bool = False  # `_poll` runs, or the loop is going to call it
        self._is_timed: bool = False  # the timer is armed, and will call `_poll`
        self._is_stopped: bool = False
        self._loop: Any = get_hub().loop
        polling = open_poll(self._loop, priority=self._loop.MAXPRI)  # its watcher runs before the timer
        self._epoll: Any = polling[0]
        self._watcher: Any = polling[1]
        self._epoll_fd: int = -1 if IS_PORTABLE else self._epoll.fileno()
        self._timer: Any = self._loop.timer(YIELD_DELAY)
        # Callbacks of the loop's next iteration. Without them, or without an epoll instance, the poller never waits.
        self._callbacks: Any = None if IS_PORTABLE else getattr(self._loop, "_callbacks", None)
        self.turns: FairQueue = FairQueue()
        self.before_send: Callable[[list[Handler]], None] | None = None
        self.after_batches: Callable[[], None] | None = None
        self.is_output_due: bool = False
        self.is_serving: bool = False
        self.has_held_replies: Callable[[], bool] | None = None

    def start(self) -> None:
        """Begin to serve sockets."""
        self._watcher.start(self._poll)

    def stop(self) -> None:
        """Stop polling sockets; queued handlers are still served."""
        self._is_stopped = True
        self._watcher.stop()

    def add(self, fd: int, handler: Handler) -> None:
        """Serve *handler* whenever something arrives at the socket *fd*, or its peer closes.

        Raise OSError, and change nothing, if the system cannot poll another socket. A handler that leaves something
        unread has to call `queue` when it is to be served again.
        """
        self._epoll.register(fd, EDGE_EVENTS)
        self._handlers[fd] = handler

    def remove(self, fd: int) -> None:
        """Undo `add`, if it was called; to be called before *fd* is closed."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def arm(self, fd: int) -> None:
        """Expect more input at the socket *fd*. Call this after each recv or accept, except at the end of the stream.

        An epoll instance needs no such call.
        """
        if IS_PORTABLE:
            self._epoll.arm(fd)

    def queue(self, handler: Handler) -> None:
        """Call *handler*'s `resume` once, after the handlers that are queued before it."""
        if not handler.is_queued:
            handler.is_queued = True
            self._queue.append(handler)
            if not self._is_due:
                self._is_due = True
                self._loop.run_callback(self._poll)

    def serve_for(self, duration: int) -> None:
        """Serve clients for *duration* nanoseconds from now, if it is positive; then what they send waits.

        All other handlers are always served.
        """
        self._serve_until = self._clock() + duration
        if duration <= 0:
            return
        aside, self._aside = self._aside, []
        for handler in aside:
            handler.is_queued = False
            self.queue(handler)

    def _set_aside(
        self, queued: list[Handler], receivers: list[Handler], inputs: list[bytes]
    ) -> tuple[list[Handler], list[Handler], list[bytes]]:
        """Set the clients in *queued* aside, and defer the clients in *receivers*; return what is left of all.

        A handler that is set aside counts as queued, so it notes what else arrives.
        """
        self._aside += [handler for handler in queued if handler.is_client()]
        left: list[Handler] = []
        left_inputs: list[bytes] = []
        for number, handler in enumerate(receivers):
            if handler.is_client():
                handler.defer(inputs[number])
            else:
                left.append(handler)
                left_inputs.append(inputs[number])
        return [handler for handler in queued if not handler.is_client()], left, left_inputs

    def note_unfinished(self, handler: Handler) -> None:
        """Have *handler*, which is being served and has input left, take turns with the others of its batch."""
        self._unfinished.append(handler)

    def spend(self, cost: int) -> None:
        """Add the *cost* of a handler's work to the budget, in the unit of costs.OUTPUT_SLICE."""
        self._spent += cost

    def _poll(self) -> None:
        self._is_due = True  # what is queued from now on is served without another call of the loop
        self._spent = 0
        if self._is_timed:  # else one iteration of the loop may call `_poll` twice, and spend two budgets
            self._is_timed = False
            self._timer.stop()
        is_drained = False
        try:
            for _ in MAX_BATCHES:
                events: list[tuple[int, int]] = []
                if is_drained or self._is_stopped:
                    is_drained = False  # the handlers that this batch has queued are served without another poll
                else:
                    events = self._events(0, BATCH_SIZE)
                    is_drained = len(events) < BATCH_SIZE
                self._serve_batch(events)
                if self._spent >= BUDGET or not (self._queue or (events and not is_drained)):
                    break
            self._send_shared()
            self._serve_quick_batches()
        except Exception as error:  # noqa: BLE001  logged by `abort`; gevent would stop the watcher for good
            abort("poller", error)
        finally:
            self._is_due = bool(self._queue)
            if self._is_due:
                self._is_timed = True
                self._timer.start(self._poll)

    def _serve_quick_batches(self) -> None:
        """Wait for input that follows quickly, and serve it, while the loop has no other work."""
        if self._now - self._batch_at > QUICK:
            self._quick_batches = 0
        self._quick_batches += 1
        self._batch_at = self._now
        if self._quick_batches <= QUICK_BATCHES or self._callbacks is None or self._is_stopped:
            return
        if self._loop.pendingcnt or has_yielding():  # neither can change until the loop runs
            return
        until = self._now + WAIT_PERIOD
        while self._now < until and not (self._queue or self._callbacks or self._spent >= BUDGET):
            if self.has_held_replies is not None and self.has_held_replies():
                break
            events = self._events(MAX_WAIT, BATCH_SIZE)
            if not events:
                self._quick_batches = 0
                return
            self._serve_batch(events)
            self._send_shared()
        self._batch_at = self._now

    def _events(self, milliseconds: int, limit: int) -> list[tuple[int, int]]:
        """Return up to *limit* sockets with their events; wait *milliseconds* at most for the first one."""
        if self._quick_poll is None:
            events: list[tuple[int, int]] = self._epoll.poll(milliseconds / 1000, limit)
            return events
        return self._quick_poll(self._epoll_fd, milliseconds, limit)

    def _serve_batch(self, events: list[tuple[int, int]]) -> None:
        """Serve the queued handlers, then the handlers of *events*."""
        self.is_serving = True
        queued = self._queue[:BATCH_SIZE]  # before `_receive` queues more
        del self._queue[: len(queued)]
        receivers: list[Handler] = []
        inputs: list[bytes] = []
        if events:
            self._receive(events, receivers, inputs)
        self._now = now = self._clock()
        if now > self._serve_until:
            queued, receivers, inputs = self._set_aside(queued, receivers, inputs)
        limit = COMMAND_SLICE if len(queued) + len(receivers) == 1 else COMMAND_QUANTUM
        senders: list[Handler] = []
        outputs: list[bytes] = []
        for number, handler in enumerate(queued):
            if number and self._spent >= BUDGET:  # serve one at least: new events must not starve the queue
                self._queue[:0] = queued[number:]
                break
            handler.is_queued = False
            try:
                out = handler.resume(now, limit)
            except Exception as error:  # noqa: BLE001  `fail` logs it
                handler.fail(error)
                continue
            if out:
                senders.append(handler)
                outputs.append(out)
        self._serve_received(receivers, inputs, now, limit, senders, outputs)
        if self._late:
            self._queue_late()
        if self._unfinished:
            self._take_turns(now, senders, outputs)
        self._send(senders, outputs)
        self.is_serving = False

    def _serve_received(
        self,
        receivers: list[Handler],
        inputs: list[bytes],
        now: int,
        limit: int,
        senders: list[Handler],
        outputs: list[bytes],
    ) -> None:
        """Serve what `_receive` has received; add the handlers with replies to *senders*, the replies to *outputs*."""
        for number, handler in enumerate(receivers):
            if self._spent >= DEFER_ABOVE:
                handler.defer(inputs[number])
                continue
            try:
                out = handler.serve(inputs[number], now, limit)
            except Exception as error:  # noqa: BLE001  `fail` logs it
                handler.fail(error)
                continue
            if out:
                senders.append(handler)
                outputs.append(out)

    def _send_shared(self) -> None:
        """Send the output that the batches since the last call share, such as that for other processes."""
        if self.is_output_due and self.after_batches is not None:
            self.is_output_due = False
            self.after_batches()

    def _send(self, senders: list[Handler], outputs: list[bytes]) -> None:
        if self.before_send is not None:
            self.before_send(senders)
        for number, handler in enumerate(senders):
            try:
                handler.send(outputs[number])
            except Exception as error:  # noqa: BLE001  `fail` logs it
                handler.fail(error)

    def _receive(self, events: list[tuple[int, int]], receivers: list[Handler], inputs: list[bytes]) -> None:
        """Receive what *events* announce; add the handlers to *receivers*, and what each has received to *inputs*.

        Skip handlers that are queued, so that a batch serves each only once.
        """
        handlers = self._handlers
        for fd, what in events:
            handler = handlers.get(fd)
            if handler is None:
                continue
            if handler.is_queued:
                handler.note_hang_up() if what != INPUT else handler.note_unread()
                continue
            if self._spent >= BUDGET:
                self._late.append((handler, what))
                continue
            try:
                data = handler.receive()
            except Exception as error:  # noqa: BLE001  `fail` logs it
                handler.fail(error)
                continue
            if data is not None:
                receivers.append(handler)
                inputs.append(data)
            if what != INPUT and data != b"":
                handler.note_hang_up()

    def _queue_late(self) -> None:
        """Queue the handlers that were not received from, behind those that were deferred."""
        late, self._late = self._late, []
        for handler, what in late:
            handler.note_hang_up() if what != INPUT else handler.note_unread()

    def _take_turns(self, now: int, senders: list[Handler], outputs: list[bytes]) -> None:
        """Serve unfinished handlers in turns until the budget is spent; queue those that are still unfinished."""
        served, self._unfinished = self._unfinished, []
        left = deque(served)
        while left and self._spent < BUDGET:
            handler = left.popleft()
            try:
                if handler.serve_more(now):
                    left.append(handler)
            except Exception as error:  # noqa: BLE001  `fail` logs it
                served.remove(handler)
                handler.fail(error)
        for handler in served:
            try:
                out = handler.collect()
            except Exception as error:  # noqa: BLE001  `fail` logs it
                handler.fail(error)
                continue
            if out:
                senders.append(handler)
                outputs.append(out)
        for handler in left:
            self.queue(handler)


class AcceptHandler(Handler):
    """Accepts from a listening socket. Its receive and send passes do nothing."""

    __slots__ = ("_accept", "_on_error", "_poller")

    def __init__(self, poller: Poller, accept: Callable[[], bool], on_error: Callable[[Exception], None]) -> None:
        """*accept* accepts a batch of connections, and returns whether there may be more."""
        super().__init__()
        self._poller: Poller = poller
        self._accept: Callable[[], bool] = accept
        self._on_error: Callable[[Exception], None] = on_error

    def receive(self) -> bytes | None:
        """Return a value that makes the poller call `serve`, in order with the other handlers of the batch."""
        return b""

    def serve(self, data: bytes, now: int, limit: int) -> bytes:
        """Accept a batch of connections."""
        return self.resume(now, limit)

    def resume(self, now: int, limit: int) -> bytes:
        """Accept a batch of connections."""
        if self._accept():
            self._poller.queue(self)
        return b""

    def defer(self, data: bytes) -> None:
        """Accept in the next batch."""
        self._poller.queue(self)

    def note_unread(self) -> None:
        """Accept when the poller calls `resume`."""
        self._poller.queue(self)

    def note_hang_up(self) -> None:
        """Accept when the poller calls `resume`; `accept` reports the error, if there is one."""
        self._poller.queue(self)

    def fail(self, error: Exception) -> None:
        """Pass *error* to the function for errors."""
        self._on_error(error)
