"""A Queue over one connection with the beanstalk protocol.

Return values and errors are defined in `queue`. Every reply is bounded in time (the deadline of its request) and in
memory (MAX_*), whatever the server is. Not thread-safe.
"""

from __future__ import annotations

import io
import math
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from time import monotonic
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeAlias, TypeVar

import greenstalk

import greenstalk_client
from greenstalk_client import AlreadyReservedError, PutId
from greenstalkctl import bounded_socket
from greenstalkctl.address import Address
from greenstalkctl.errors import Refused, Unreachable
from greenstalkctl.queue import (
    BURIED,
    DELAYED,
    JOB_STATS,
    MAX_BODY,
    MAX_TUBES,
    READY,
    SERVER_STATS,
    TUBE_NAME,
    TUBE_STATS,
    JobView,
    Stats,
    validate_stats,
)

Job: TypeAlias = "greenstalk.Job[bytes]"
P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_TUBE: Final = greenstalk.DEFAULT_TUBE
DEFAULT_PRI: Final = greenstalk.DEFAULT_PRIORITY
DEFAULT_TTR: Final = greenstalk.DEFAULT_TTR

MAX_LINE: Final = 1024
"""Maximum bytes of the first line of a reply; the longest is `list-tube-used`'s, with a name of 200 bytes."""

MAX_STATS: Final = 2**16
"""Maximum bytes of the statistics of a server, a tube or a job, which take about 2,000."""

MAX_LIST: Final = 2**26
"""Maximum bytes of a list of tubes."""

WAIT_SLICE: Final = 60.0
"""Seconds that one request waits for the end of a job."""

DELETED: Final = "deleted"
TIMED_OUT: Final = "timed out"

_TLS_ALERT: Final = b"\x15\x03"
_NAMES: Final = (
    "name", "tube", "hostname", "os", "platform", "version", "greenstalk-version", "id",
    "idempotency-key", "group", "after-group", "concurrency-key",
)  # fmt: skip
"""Statistics whose values are text, even if a value looks like a number."""

_FRACTION: Final = re.compile(r"-?[0-9]+\.[0-9]+")
_BOOLEANS: Final = {"true": True, "false": False}
_REASONS: Final[dict[type, tuple[str, str]]] = {
    greenstalk.BadFormatError: ("BAD_FORMAT", "it does not understand the command"),
    greenstalk.BuriedError: ("BURIED", "it ran out of memory while queueing the job, and buried the job"),
    greenstalk.DrainingError: ("DRAINING", "it is shutting down and accepts no new jobs; put them on another server"),
    greenstalk.ExpectedCrlfError: ("EXPECTED_CRLF", "it does not understand the command"),
    greenstalk.InternalError: ("INTERNAL_ERROR", "it has an internal error; see its log"),
    greenstalk.JobTooBigError: ("JOB_TOO_BIG", "the body is larger than its limit, which its option -z sets"),
    greenstalk.OutOfMemoryError: ("OUT_OF_MEMORY", "it has no space for the job in memory or on its disk"),
    greenstalk.UnknownCommandError: (
        "UNKNOWN_COMMAND",
        "its access rules refuse the command, or it is too old for it, or does not have the protocol extensions",
    ),
}


class _Lines(io.BufferedReader):
    """A reader of replies that limits the length of a line."""

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(MAX_LINE)
        if len(line) == MAX_LINE:
            raise bounded_socket.TooLargeError(f"it sent a line of more than {MAX_LINE - 1} bytes")
        if line.startswith(_TLS_ALERT):
            raise ConnectionError("it sent a TLS alert")
        return line


class _Client(greenstalk_client.Client[bytes]):
    """The client with bounded replies.

    It parses statistics itself, because greenstalk would read the tube name `1_0`, which beanstalkd 1.12 does not
    quote, as the number 10.
    """

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, None)
        self._reader = _Lines(sock.makefile("rb", buffering=0))

    def _read_chunk(self, size: int) -> bytes:
        if not 0 <= size <= MAX_BODY:
            raise bounded_socket.TooLargeError(f"it announces a reply of {size} bytes")
        return super()._read_chunk(size)

    def _stats_cmd(self, cmd: bytes) -> Any:
        self._extend_stats()
        body = self._document(cmd, MAX_STATS).decode(errors="replace")
        return dict(_stat(line) for line in body.split("\n")[1:] if line)

    def _list_cmd(self, cmd: bytes) -> list[str]:
        document = self._document(cmd, MAX_LIST)
        if document.count(b"\n") > MAX_TUBES:
            raise bounded_socket.TooLargeError(f"it lists more than {MAX_TUBES} tubes")
        head, *lines = document.decode("ascii").splitlines()
        if head != "---" or not all(line.startswith("- ") for line in lines):
            raise ValueError(head)
        return [line.removeprefix("- ") for line in lines]

    def exchange(self, request: bytes) -> tuple[str, bytes | None]:
        """Send *request*; return the first line of the reply, and its body if it has one."""
        self._sock.sendall(request + b"\r\n")
        line = self._reader.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the connection ended within a reply")
        words = line.decode("ascii").split()
        has_body = line.startswith((b"OK ", b"FOUND ", b"RESERVED "))
        return " ".join(words), self._read_chunk(int(words[-1])) if has_body else None

    def _document(self, cmd: bytes, limit: int) -> bytes:
        """Return the document in the reply to *cmd*, of at most *limit* bytes."""
        size = self._int_cmd(cmd, b"OK")
        if size > limit:
            raise bounded_socket.TooLargeError(f"it announces a reply of {size} bytes")
        return self._read_chunk(size)


class Server:
    """A connection to the server at *address*.

    Each request, with its reply, may take *timeout* seconds. *context* is the TLS context of a secure address.
    """

    def __init__(self, address: Address, timeout: float, context: ssl.SSLContext | None = None) -> None:
        self.address = address
        self._timeout = timeout
        self._used = self._watched = DEFAULT_TUBE
        self._socket = bounded_socket.connect(address, timeout, context)
        self._has_answered = False
        try:
            self._client = _Client(self._socket)
        except OSError as error:  # the server has already closed the connection
            self._socket.close()
            raise bounded_socket.closed(address, error, has_answered=False) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    # Queries

    @cached_property
    def reserves_by_id(self) -> bool:
        """Whether the server has `reserve-job`, as Greenstalk Server and beanstalkd 1.12 do; burying by id needs it.

        The server is asked to reserve job 0, which never exists.
        """
        try:
            self.reserve_job(0)
        except Refused:
            return False
        return True

    @property
    def certificate_expires(self) -> float | None:
        """The end of the server's certificate in seconds since 1970; None without TLS."""
        certificate = self._socket.getpeercert() if isinstance(self._socket, ssl.SSLSocket) else None
        return ssl.cert_time_to_seconds(str(certificate["notAfter"])) if certificate else None

    def has_extensions(self) -> bool:
        """Return whether the server has the protocol extensions."""
        return self._ask(self._client.has_extensions)

    def stats(self) -> Stats:
        """Return the server's statistics; `version` is its own, even if other clients see beanstalkd's."""
        stats = self._ask(lambda: validate_stats(dict(self._client.stats()), SERVER_STATS))
        own = stats.pop("greenstalk-version", None)
        return stats if own is None else stats | {"version": own}

    def tubes(self) -> list[str]:
        return self._ask(self._names)

    def all_tube_stats(self) -> list[Stats]:
        """Return the statistics of all tubes, except those deleted while this runs."""
        return [stats for name in self.tubes() if (stats := self.tube(name)) is not None]

    def tube(self, name: str) -> Stats | None:
        return self._find(lambda: validate_stats(dict(self._client.stats_tube(name)), TUBE_STATS))

    def job(self, job_id: int) -> Stats | None:
        # The id is a number. It was parsed as text, because the `id` of the server, in `stats`, is a name.
        return self._find(lambda: validate_stats(dict(self._client.stats_job(job_id)) | {"id": job_id}, JOB_STATS))

    def peek(self, job_id: int) -> Job | None:
        return self._find(self._client.peek, job_id)

    def first(self, tube: str, state: str) -> Job | None:
        """Return the next job of *tube* in *state*, in the order of that state."""
        self.use(tube)
        peeks = {READY: self._client.peek_ready, DELAYED: self._client.peek_delayed, BURIED: self._client.peek_buried}
        return self._find(peeks[state])

    def view_job(self, job_id: int) -> JobView | None:
        return self._job_view(self.peek(job_id))

    def view_next(self, tube: str, state: str) -> JobView | None:
        return self._job_view(self.first(tube, state))

    # Changes

    def use(self, tube: str) -> None:
        """Use *tube*, which creates it for as long as this connection uses it."""
        if tube != self._used:
            self._ask(self._client.use, tube)
            self._used = tube

    def put(self, tube: str, body: bytes, pri: int, delay: float, ttr: float, **tags: Any) -> PutId:
        """Put a job.

        Raise Refused if a time has a fraction or there are tags, and the server does not have the protocol extensions.
        """
        self.use(tube)
        return self._ask(self._client.put, body, pri, delay, ttr, **tags)

    def reserve(self, tube: str, wait: int = 0) -> Job | None:
        """Reserve the next ready job of *tube*; return None after *wait* seconds without one, or while it is paused."""
        if tube != self._watched:
            self._ask(self._client.watch, tube)
            self._ask(self._client.ignore, self._watched)
            self._watched = tube
        try:
            with self._translated_errors(greenstalk.TimedOutError, greenstalk.DeadlineSoonError, wait=wait):
                return self._client.reserve(wait)
        except (greenstalk.TimedOutError, greenstalk.DeadlineSoonError):
            return None

    def reserve_job(self, job_id: int) -> Job | None:
        return self._find(self._client.reserve_job, job_id)

    def release(self, job: Job, pri: int) -> None:
        self._find(self._client.release, job, pri)

    def bury(self, job: Job, pri: int) -> bool:
        return self._succeeds(self._client.bury, job, pri)

    def bury_job(self, job_id: int) -> bool:
        """Bury a job without changing its pri; reserve it first, because the protocol buries only reserved jobs."""
        stats = self.job(job_id)
        if stats is None or stats["state"] == BURIED or (job := self.reserve_job(job_id)) is None:
            return False
        return self.bury(job, stats["pri"])

    def delete(self, job_id: int) -> bool:
        return self._succeeds(self._client.delete, job_id)

    def kick(self, tube: str, bound: int) -> int:
        self.use(tube)
        return self._ask(self._client.kick, bound)

    def kick_job(self, job_id: int) -> bool:
        return self._succeeds(self._client.kick_job, job_id)

    def pause(self, tube: str, seconds: float) -> bool:
        """Pause *tube* for *seconds*; 0 ends a pause."""
        return self._succeeds(self._client.pause_tube, tube, seconds)

    def flush(self, tube: str, *, is_buried: bool) -> int:
        """Delete all jobs of *tube*, including reserved ones, or only the buried ones; return their number.

        Return 0 if the tube is gone.
        """
        return self._find(self._client.flush_buried if is_buried else self._client.flush_tube, tube) or 0

    def truncate(self, tube: str) -> int | None:
        """Truncate *tube*; return the number of jobs deleted immediately, or None if there is no such tube."""
        return self._find(self._client.truncate, tube)

    def reprioritize(self, job_id: int, pri: int) -> bool:
        """Change the pri of a job; return False if it does not exist or is reserved."""
        ordinary = (greenstalk.NotFoundError, AlreadyReservedError)
        try:
            with self._translated_errors(*ordinary):
                self._client.reprioritize(job_id, pri)
        except ordinary:
            return False
        return True

    def group(self, name: str) -> Stats | None:
        """Return the numbers of jobs of a group, or None if there is no such group."""
        return self._find(lambda: dict(self._client.stats_group(name)))

    def drain(self) -> None:
        self._ask(self._client.drain)

    def undrain(self) -> None:
        self._ask(self._client.undrain)

    def exchange(self, line: bytes, body: bytes | None) -> tuple[str, bytes | None]:
        """Send a command, with a *body* whose size is appended; return the first line and the body of the reply."""
        request = line if body is None else b"%b %d\r\n%b" % (line, len(body), body)
        return self._ask(self._client.exchange, request)

    def wait(self, job_id: int, seconds: float | None) -> str | None:
        """Wait until a job is deleted or buried; return which, or TIMED_OUT after *seconds*.

        Return None if there is no such job.
        """
        end = math.inf if seconds is None else monotonic() + seconds
        has_existed = False
        while True:
            slice_seconds = max(0, min(end - monotonic(), WAIT_SLICE))
            try:
                with self._translated_errors(greenstalk.NotFoundError, greenstalk.TimedOutError, wait=slice_seconds):
                    return self._client.wait(job_id, slice_seconds)
            except greenstalk.NotFoundError:
                return DELETED if has_existed else None  # it was deleted between two requests
            except greenstalk.TimedOutError:
                if monotonic() >= end:
                    return TIMED_OUT
                has_existed = True

    # Requests

    def _names(self) -> list[str]:
        """Return the names of tubes; raise ValueError for an invalid one, because names are sent in commands."""
        names = self._client.tubes()
        if not all(TUBE_NAME.fullmatch(name) for name in names):
            raise ValueError(names)
        return names

    def _job_view(self, job: Job | None) -> JobView | None:
        """Return *job* with its statistics, or with only its id if it has been deleted since."""
        if job is None:
            return None
        return JobView((self.job(job.id) or {"id": job.id}) | {"bytes": len(job.body)}, job.body)

    def _succeeds(self, call: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> bool:
        """Return True, or False if the server replies NOT_FOUND."""
        try:
            with self._translated_errors(greenstalk.NotFoundError):
                call(*args, **kwargs)
        except greenstalk.NotFoundError:
            return False
        return True

    def _find(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            with self._translated_errors(greenstalk.NotFoundError):
                return call(*args, **kwargs)
        except greenstalk.NotFoundError:
            return None

    def _ask(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        with self._translated_errors():
            return call(*args, **kwargs)

    @contextmanager
    def _translated_errors(self, *ordinary: type[greenstalk.Error], wait: float = 0) -> Iterator[None]:
        """Translate errors to Refused or Unreachable, except the *ordinary* replies.

        The request may take *wait* seconds longer than the timeout.
        """
        self._socket.set_limits(self._timeout + wait, MAX_BODY + MAX_LINE)
        try:
            yield
        except TimeoutError as error:
            message = f"{self.address} did not answer within {self._timeout + wait:g} s; raise --timeout to wait longer"
            raise Unreachable(message) from error
        except OSError as error:
            raise bounded_socket.closed(self.address, error, has_answered=self._has_answered) from error
        except bounded_socket.TooLargeError as error:
            message = f"the server at {self.address} is not a beanstalk server ({error}); check --server"
            raise Unreachable(message) from error
        except (greenstalk.Error, AssertionError, ValueError) as error:
            if isinstance(error, ordinary):
                self._has_answered = True
                raise
            if type(error) in _REASONS:
                raise self._refusal(error) from error
            message = f"the server at {self.address} does not speak the beanstalk protocol; check --server"
            raise Unreachable(message) from error
        self._has_answered = True

    def _refusal(self, error: Exception) -> Refused:
        word, reason = _REASONS[type(error)]
        number = f" as job {error.id}" if isinstance(error, greenstalk.BuriedError) and error.id else ""
        return Refused(word, f"{self.address} answered {word}: {reason}{number}")


def _stat(line: str) -> tuple[str, str | int | float]:
    """Parse a line of YAML. Numbers and booleans get their type, but a name stays text whatever it looks like."""
    key, value = line.split(": ", 1)
    if key in _NAMES:
        return key, value[1:-1] if value[:1] == value[-1:] == '"' and len(value) > 1 else value
    if value in _BOOLEANS:
        return key, _BOOLEANS[value]
    if value.lstrip("-").isdecimal():
        return key, int(value)
    return key, float(value) if _FRACTION.fullmatch(value) else value
