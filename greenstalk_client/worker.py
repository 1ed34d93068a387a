"""A worker loop: reserve jobs in batches, run a handler for each in threads, then delete, release or bury it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import math
import queue
import random
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import monotonic
from typing import Final, NamedTuple, TypeAlias

import greenstalk

from greenstalk_client.client import MAX_BATCH, Job, encode_name, encode_seconds, valid_priority, valid_weight
from greenstalk_client.link import LINK_ERRORS, REQUEST_TIMEOUT, Link

Handler: TypeAlias = Callable[[Job[bytes]], None]
"""Returns None, so that type checkers reject `async def` and generator functions, which `Worker` refuses."""

Tubes: TypeAlias = str | Iterable[str] | Mapping[str, int]
Server: TypeAlias = greenstalk.Address | Callable[[], socket.socket]

DEFAULT_SERVER: Final = ("127.0.0.1", 11300)
RESERVE_TIMEOUT: Final = 20
"""Seconds that one request waits for jobs."""

MIN_PAUSE: Final = 0.1
MAX_PAUSE: Final = 10.0
"""Shortest and longest pause before the next attempt to connect, in seconds."""

MAX_CONCURRENCY: Final = 1000

SIGNAL_INTERVAL: Final = 0.5
"""Seconds between checks for signals that have not interrupted a wait."""

log = logging.getLogger("greenstalk_client")


class Release(Exception):
    """Raised by a handler to release the job, so that it runs again after *delay* seconds.

    :param delay: 0 to 4,294,967,295 seconds. A fraction is rounded up if the server does not have the extensions.
    :param priority: 0 (most urgent) to 4,294,967,295. None keeps the job's priority.

    Raise ValueError if an argument is out of range.
    """

    def __init__(self, delay: float = 0, priority: int | None = None) -> None:
        encode_seconds(delay)
        if priority is not None:
            valid_priority(priority)
        super().__init__(f"release with a delay of {delay} s")
        self.delay = delay
        self.priority = priority


class Bury(Exception):
    """Raised by a handler to bury the job without logging a traceback.

    :param reason: Text for the log.
    :param priority: 0 (most urgent) to 4,294,967,295. None keeps the job's priority.

    Raise ValueError if the priority is out of range.
    """

    def __init__(self, reason: str = "", priority: int | None = None) -> None:
        if priority is not None:
            valid_priority(priority)
        super().__init__(reason)
        self.priority = priority


def work(
    tubes: Tubes,
    handler: Handler,
    *,
    server: Server = DEFAULT_SERVER,
    concurrency: int = 1,
    prefetch: int = 0,
    stop_timeout: float = 30.0,
    max_jobs: int | None = None,
    until_empty: bool = False,
    always_meta: bool = False,
) -> None:
    """Reserve jobs from *tubes* and call *handler* with each, until SIGTERM or SIGINT (Ctrl-C).

    If the handler returns, its job is deleted. If it raises Release, the job is released, with a delay. The job is
    buried if the handler raises Bury or any other exception, or returns an awaitable or a generator, which nothing
    runs. While a handler runs, its job is touched, so the handler may take longer than the TTR. A handler that never
    returns keeps its job.

    After a lost connection, the worker reconnects, with growing pauses of up to 10 seconds. Jobs whose connection was
    lost are not deleted, because the server gives them to other workers: each job runs at least once, and may run
    twice.

    After the first signal, no job is reserved, jobs that have not started are released, and running handlers finish.
    After *stop_timeout* seconds or a second signal, the function returns even if handlers still run; the server makes
    their jobs ready. Signals are handled only in the main thread; in other threads, use Worker.

    :param tubes: The tubes to watch: a name, several names, or a mapping of names to weights of 1 to 9999. With
        weights, each job comes from a random tube, in proportion to the weights. Weights need the extensions.
    :param handler: A function with one argument, the job; not `async def`, and no generator. It runs in *concurrency*
        threads at the same time. The body of the job is bytes. Its `meta` has tube, pri, ttr and attempts if the
        server has the extensions, else it is empty.
    :param server: (host, port), the path of a Unix socket, or a function that returns a connected socket, such as one
        with TLS. The function is called for each connection, and may raise OSError.
    :param concurrency: Number of threads that run the handler, 1 to 1000.
    :param prefetch: Number of jobs to reserve in addition to those that run, 0 or more. Use it only for short jobs,
        because other workers cannot get the prefetched jobs. The worker has at most
        concurrency + prefetch + 1 connections.
    :param stop_timeout: Seconds to wait for running handlers, 0 or more.
    :param max_jobs: Return after this number of jobs, 1 or more. None sets no limit.
    :param until_empty: Return when no job is ready and the running handlers have finished.
    :param always_meta: Give jobs their `meta` on a server without the extensions too, with one request per job.

    Raise greenstalk.UnknownCommandError or greenstalk.BadFormatError if the server refuses to serve these tubes,
    ValueError if an argument is out of range, and TypeError if the handler is not callable, `async def`, or a generator
    function.
    """
    worker = Worker(
        tubes,
        handler,
        server=server,
        concurrency=concurrency,
        prefetch=prefetch,
        stop_timeout=stop_timeout,
        max_jobs=max_jobs,
        until_empty=until_empty,
        always_meta=always_meta,
    )
    with _stopped_by_signals(worker):
        worker.run()


class _Task(NamedTuple):
    link: Link
    job: Job[bytes]


class Worker:
    """The loop of `work` as an object with the same arguments. Call `run` once, and `stop` from another thread.

    One thread reserves. It uses a link without jobs, because the server serves no other command of a connection
    during a reserve. *concurrency* threads run the handler and finish each job on its link. One thread touches the jobs
    of all links.
    """

    def __init__(
        self,
        tubes: Tubes,
        handler: Handler,
        *,
        server: Server = DEFAULT_SERVER,
        concurrency: int = 1,
        prefetch: int = 0,
        stop_timeout: float = 30.0,
        max_jobs: int | None = None,
        until_empty: bool = False,
        always_meta: bool = False,
    ) -> None:
        self._tubes = _weights(tubes)
        if not self._tubes:
            raise ValueError("there is no tube to watch")
        for tube, weight in self._tubes.items():
            encode_name(tube)
            if weight is not None:
                valid_weight(weight)
        if not 1 <= concurrency <= MAX_CONCURRENCY:
            raise ValueError(f"the concurrency {concurrency} is not 1 to {MAX_CONCURRENCY}")
        if prefetch < 0 or not stop_timeout >= 0:
            raise ValueError("prefetch and stop_timeout must be 0 or more")
        if max_jobs is not None and max_jobs < 1:
            raise ValueError(f"max_jobs is {max_jobs}, but must be 1 or more")
        _require_synchronous(handler)
        self._handler = handler
        self._server = server
        self._concurrency = concurrency
        self._prefetch = prefetch
        self._stop_timeout = stop_timeout
        self._until_empty = until_empty
        self._always_meta = always_meta
        self._left: float = math.inf if max_jobs is None else max_jobs
        """Number of jobs that may still be reserved."""
        self._orders: queue.SimpleQueue[None] = queue.SimpleQueue()  # signal handlers may call its put
        self._lock = threading.Lock()
        self._has_job = threading.Condition(self._lock)
        self._has_room = threading.Condition(self._lock)
        self._has_touch = threading.Condition(self._lock)
        self._tasks: deque[_Task] = deque()
        self._running: set[_Task] = set()
        self._links: list[Link] = []
        self._reserving: Link | None = None
        self._is_stopping = False
        self._has_ended = False
        self._has_finished = False
        self._error: BaseException | None = None

    def run(self) -> None:
        """Work until `stop` is called, or as `max_jobs` and `until_empty` say. Raise what `work` raises."""
        targets = [self._reserve_jobs, self._touch_jobs, *[self._handle_jobs] * self._concurrency]
        threads = [threading.Thread(target=each, name=f"greenstalk{each.__name__}", daemon=True) for each in targets]
        for thread in threads:
            thread.start()
        try:
            self._wait_for_stop(math.inf)
            self._begin_stop()
            self._wait_for_stop(self._stop_timeout)
        finally:
            self._end()
        if self._has_finished:
            for thread in threads:
                thread.join()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Make `run` finish the running jobs and return. A second call makes `run` return immediately.

        Any thread may call it, and so may signal handlers.
        """
        self._orders.put(None)

    def _wait_for_stop(self, seconds: float) -> None:
        """Wait for a call of `stop`, for at most *seconds*.

        Wait in steps: a signal that another thread receives, or that arrives just before a step, does not interrupt the
        step, and Python runs the handler of the signal only after the step.
        """
        until = monotonic() + seconds
        while (left := until - monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                self._orders.get(timeout=min(left, SIGNAL_INTERVAL))
                return

    def _begin_stop(self) -> None:
        with self._lock:
            self._is_stopping = True
            if self._reserving is not None:
                self._reserving.interrupt()
            self._has_room.notify_all()

    def _end(self) -> None:
        """End all threads that do not run a handler."""
        with self._lock:
            self._is_stopping = self._has_ended = True
            running = [task.job.id for task in self._running]
            links = [*self._links]
            for condition in (self._has_job, self._has_room, self._has_touch):
                condition.notify_all()
        if running:
            log.warning("stopping while jobs %s are running; the server makes them ready again", running)
        for link in links:
            link.close()

    # The thread that reserves

    def _reserve_jobs(self) -> None:
        try:
            self._reserve_until_stopped()
        except BaseException as error:  # noqa: BLE001  run() raises it
            self._error = error
        if not self._is_stopping:
            self.stop()
        with self._lock:
            self._is_stopping = True
            tasks = [*self._tasks]
            self._tasks.clear()
        for link, job in tasks:
            link.release(job, None, 0)
        with self._lock:
            self._has_room.wait_for(lambda: not self._running or self._has_ended)
            self._has_finished = not self._running
        self.stop()

    def _reserve_until_stopped(self) -> None:
        pause = MIN_PAUSE
        while (count := self._room()) > 0:
            try:
                tasks = self._reserve(count)
            except (greenstalk.UnknownCommandError, greenstalk.BadFormatError):
                raise
            except LINK_ERRORS as error:
                self._wait_to_reconnect(error, pause * random.uniform(0.5, 1))  # noqa: S311  not a secret
                pause = min(2 * pause, MAX_PAUSE)
            else:
                pause = MIN_PAUSE
                with self._lock:
                    self._left = 0 if self._until_empty and not tasks else self._left - len(tasks)
                    self._tasks.extend(tasks)
                    self._has_job.notify(len(tasks))
                    self._has_touch.notify()

    def _room(self) -> int:
        """Wait for room for jobs; return the number of jobs to reserve, or 0 when the worker stops."""
        with self._lock:
            self._has_room.wait_for(lambda: self._is_stopping or self._count() > 0 or self._is_done())
            return 0 if self._is_stopping else self._count()

    def _is_done(self) -> bool:
        return not (self._left or self._tasks or self._running)

    def _count(self) -> int:
        """Return the number of jobs to reserve now: 0 while more than half of the prefetch is waiting to start."""
        idle = self._concurrency - len(self._running)
        prefetched = len(self._tasks) - idle
        if prefetched > self._prefetch // 2:
            return 0
        return int(min(self._prefetch - prefetched, MAX_BATCH, self._left))

    def _reserve(self, count: int) -> list[_Task]:
        """Reserve up to *count* jobs on a link without jobs. Raise one of LINK_ERRORS."""
        link = self._idle_link()
        with self._lock:
            if self._is_stopping:
                return []
            self._reserving = link
        try:
            timeout = 0 if self._until_empty else RESERVE_TIMEOUT
            return [_Task(link, job) for job in link.reserve(count, timeout)]
        except BaseException:
            self._drop(link)
            raise
        finally:
            with self._lock:
                self._reserving = None

    def _idle_link(self) -> Link:
        for link in [*self._links]:
            if link.is_idle or link.is_lost:
                if not link.detect_loss():
                    return link
                self._drop(link)
        link = Link(self._connect(), self._tubes, always_meta=self._always_meta)
        with self._lock:
            if not self._has_ended:
                self._links.append(link)
                return link
        link.close()
        raise ConnectionError("the worker has stopped")

    def _drop(self, link: Link) -> None:
        with self._lock:
            self._links.remove(link)
        link.close()

    def _connect(self) -> socket.socket:
        if callable(self._server):
            return self._server()
        if isinstance(self._server, str):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.settimeout(REQUEST_TIMEOUT)
                sock.connect(self._server)
            except BaseException:
                sock.close()
                raise
            return sock
        sock = socket.create_connection(self._server, REQUEST_TIMEOUT)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return sock

    @property
    def _address(self) -> object:
        return "{}:{}".format(*self._server) if isinstance(self._server, tuple) else self._server

    def _wait_to_reconnect(self, error: Exception, seconds: float) -> None:
        with self._lock:
            if not self._is_stopping:
                reason = str(error) or type(error).__name__
                log.warning("cannot reserve from %s: %s; trying again in %.1f s", self._address, reason, seconds)
                self._has_room.wait_for(lambda: self._is_stopping, seconds)

    # The threads that run the handler

    def _handle_jobs(self) -> None:
        while (task := self._next_task()) is not None:
            if not task.link.detect_loss():
                self._handle(task)
            with self._lock:
                self._running.remove(task)
                self._has_room.notify_all()

    def _next_task(self) -> _Task | None:
        with self._lock:
            self._has_job.wait_for(lambda: self._has_ended or (self._tasks and not self._is_stopping))
            if self._has_ended:
                return None
            task = self._tasks.popleft()
            self._running.add(task)
            self._has_room.notify_all()
            return task

    def _handle(self, task: _Task) -> None:
        link, job = task
        try:
            _require_finished(self._handler(job))
        except Release as order:
            link.release(job, order.priority, order.delay)
        except Bury as order:
            log.warning("job %d is buried: %s", job.id, order)
            link.bury(job, order.priority)
        except BaseException:  # includes SystemExit, which would end this thread
            log.exception("job %d failed and is buried", job.id)
            link.bury(job, None)
        else:
            link.delete(job)

    # The thread that touches

    def _touch_jobs(self) -> None:
        while True:
            with self._lock:
                due = min((link.touch_at for link in self._links), default=math.inf)
                left = due - monotonic()
                if left > 0 and not self._has_ended:
                    self._has_touch.wait(None if math.isinf(left) else left)
                if self._has_ended:
                    return
                links = [link for link in self._links if link.touch_at <= monotonic()]
            for link in links:
                link.touch()


def _weights(tubes: Tubes) -> dict[str, int | None]:
    """Return the weight of each tube, or None for tubes without one."""
    if isinstance(tubes, Mapping):
        return {**tubes}
    return dict.fromkeys([tubes] if isinstance(tubes, str) else tubes)


def _require_synchronous(handler: Handler) -> None:
    """Raise TypeError if *handler* is not callable, or if a call would only create a coroutine or a generator."""
    if not callable(handler):
        raise TypeError(f"the handler {handler!r} is not a function")
    function: object = handler
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{handler!r} is async: pass a function that calls asyncio.run")
    if inspect.isgeneratorfunction(function):
        raise TypeError(f"{handler!r} is a generator function: pass a function without yield")


def _require_finished(result: object) -> None:
    """Raise Bury if *result* is an awaitable or a generator, whose code has not run to its end."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise Bury(f"the handler returned {result!r}, which nothing runs; call asyncio.run in the handler")


@contextlib.contextmanager
def _stopped_by_signals(worker: Worker) -> Iterator[None]:
    """Stop *worker* on SIGTERM and SIGINT. Does nothing in other threads than the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    saved = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in saved:
        signal.signal(number, lambda _number, _frame: worker.stop())
    try:
        yield
    finally:
        for number, handler in saved.items():
            # A handler that was not set by Python cannot be restored; without one, the signal ends the process.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
