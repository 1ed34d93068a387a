"""One connection to a server, by the protocol, and what the server at the other end can do.

What is said in `queue` of answers and errors holds here. Not for two threads.

Whatever is at the other end, an answer is bounded in time (the deadline of its request) and in memory (MAX_*).
"""

from __future__ import annotations

import io
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeAlias, TypeVar

import greenstalk

from greenstalkctl import link, tls
from greenstalkctl.address import Address
from greenstalkctl.exits import Refused, Unreachable
from greenstalkctl.queue import (
    BURIED,
    DELAYED,
    MAX_BODY,
    MAX_TUBES,
    OF_JOB,
    OF_SERVER,
    OF_TUBE,
    READY,
    TUBE_NAME,
    Seen,
    Stats,
    checked,
)
from greenstalkctl.text import printable

Job: TypeAlias = "greenstalk.Job[bytes]"
P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_TUBE: Final = greenstalk.DEFAULT_TUBE
DEFAULT_PRI: Final = greenstalk.DEFAULT_PRIORITY
DEFAULT_TTR: Final = greenstalk.DEFAULT_TTR

MAX_LINE: Final = 1024
"""Bytes of the first line of a reply; that of `list-tube-used` is the longest, with a name of 200."""

MAX_STATS: Final = 2**16
"""Bytes of the figures of a server, a tube or a job, which are some 2,000."""

MAX_LIST: Final = 2**26
"""Bytes of a list of tubes."""

_TLS_ALERT: Final = b"\x15\x03"
_NAMES: Final = ("name", "tube", "hostname", "os", "platform", "version", "greenstalk-version", "id")
_REASONS: Final[dict[type, tuple[str, str]]] = {
    greenstalk.BadFormatError: ("BAD_FORMAT", "it does not understand the command"),
    greenstalk.BuriedError: ("BURIED", "it had no memory to queue the job, and has buried it"),
    greenstalk.DrainingError: ("DRAINING", "it is being shut down and takes no new jobs; put them to another server"),
    greenstalk.ExpectedCrlfError: ("EXPECTED_CRLF", "it does not understand the command"),
    greenstalk.InternalError: ("INTERNAL_ERROR", "it has found a mistake in itself; see its log"),
    greenstalk.JobTooBigError: ("JOB_TOO_BIG", "the body is larger than it takes; its flag -z sets the limit"),
    greenstalk.OutOfMemoryError: ("OUT_OF_MEMORY", "it has no room for the job, in memory or on its disk"),
    greenstalk.UnknownCommandError: ("UNKNOWN_COMMAND", "it is too old for this command"),
}


@dataclass(frozen=True, slots=True)
class Abilities:
    """What the server at the other end can do, where servers differ."""

    reserves_by_id: bool
    """It knows `reserve-job`, as ours does and beanstalkd from 1.12 on; without it no job can be buried by its id."""


class _Lines(io.BufferedReader):
    """Replies, whose lines end somewhere."""

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(MAX_LINE)
        if len(line) == MAX_LINE:
            raise link.TooLargeError(f"it answers with a line of more than {MAX_LINE - 1} bytes")
        if line.startswith(_TLS_ALERT):
            raise ConnectionError("it answers with an alert of TLS")
        return line


class _Client(greenstalk.Client[bytes]):
    """The client of PyPI, but bounded; and a tube `1_0` of beanstalkd 1.12 stays a name, not the number 10."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, None)
        self._reader = _Lines(sock.makefile("rb", buffering=0))

    def _read_chunk(self, size: int) -> bytes:
        if not 0 <= size <= MAX_BODY:
            raise link.TooLargeError(f"it announces an answer of {size} bytes")
        return super()._read_chunk(size)

    def _stats_cmd(self, cmd: bytes) -> Any:
        body = self._document(cmd, MAX_STATS).decode(errors="replace")
        return dict(_stat(line) for line in body.split("\n")[1:] if line)

    def _list_cmd(self, cmd: bytes) -> list[str]:
        document = self._document(cmd, MAX_LIST)
        if document.count(b"\n") > MAX_TUBES:
            raise link.TooLargeError(f"it has a list of more than {MAX_TUBES} tubes")
        head, *lines = document.decode("ascii").splitlines()
        if head != "---" or not all(line.startswith("- ") for line in lines):
            raise ValueError(head)
        return [line.removeprefix("- ") for line in lines]

    def _document(self, cmd: bytes, limit: int) -> bytes:
        """Return the answer to *cmd*, of at most *limit* bytes."""
        size = self._int_cmd(cmd, b"OK")
        if size > limit:
            raise link.TooLargeError(f"it announces an answer of {size} bytes")
        return self._read_chunk(size)


class Server:
    """A connection to the server at *address*; an answer takes *timeout* seconds at most.

    *context* is that of TLS, for an address that is reached by TLS.
    """

    def __init__(self, address: Address, timeout: float, context: ssl.SSLContext | None = None) -> None:
        self.address = address
        self._timeout = timeout
        self._used = self._watched = DEFAULT_TUBE
        try:
            sock = address.connect(timeout)
        except (OSError, UnicodeError) as error:  # a host may be no name at all
            reason = getattr(error, "strerror", None) or str(error) or "it does not answer"
            message = f"cannot connect to {address}: {reason}; is it running, and --server right?"
            raise Unreachable(printable(message)) from error
        self._link = self._secured(sock, context) if context is not None else link.plain(sock)
        self._has_answered = False
        try:
            self._client = _Client(self._link)
        except OSError as error:  # it has hung up already
            self._link.close()
            raise Unreachable(self._ended(error)) from error

    def _secured(self, sock: socket.socket, context: ssl.SSLContext) -> link.Link:
        try:
            return link.secured(sock, self._timeout, context, self.address.host)
        except OSError as error:
            without = "leave out --tls, or write plain:HOST:PORT"
            message = tls.failed_handshake(self.address, error, self._timeout, without)
            raise Unreachable(printable(message)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    # What there is

    @cached_property
    def abilities(self) -> Abilities:
        """Found by asking for job 0, which there never is."""
        try:
            self.reserve_job(0)
        except Refused:
            return Abilities(reserves_by_id=False)
        return Abilities(reserves_by_id=True)

    def stats(self) -> Stats:
        """The figures of the server; its `version` is its own, also where it gives beanstalkd's to other clients."""
        stats = self._ask(lambda: checked(dict(self._client.stats()), OF_SERVER))
        own = stats.pop("greenstalk-version", None)
        return stats if own is None else stats | {"version": own}

    def tubes(self) -> list[str]:
        return self._ask(self._names)

    def figures(self) -> list[Stats]:
        """The figures of all tubes; one that ends meanwhile is left out."""
        return [stats for name in self.tubes() if (stats := self.tube(name)) is not None]

    def tube(self, name: str) -> Stats | None:
        return self._find(lambda: checked(dict(self._client.stats_tube(name)), OF_TUBE))

    def job(self, job_id: int) -> Stats | None:
        # In `stats`, the id is that of the server: a name.
        return self._find(lambda: checked(dict(self._client.stats_job(job_id)) | {"id": job_id}, OF_JOB))

    def peek(self, job_id: int) -> Job | None:
        return self._find(self._client.peek, job_id)

    def first(self, tube: str, state: str) -> Job | None:
        """The job of *tube* in *state* whose turn is next."""
        self.use(tube)
        peeks = {READY: self._client.peek_ready, DELAYED: self._client.peek_delayed, BURIED: self._client.peek_buried}
        return self._find(peeks[state])

    def see(self, job_id: int) -> Seen | None:
        return self._seen(self.peek(job_id))

    def see_first(self, tube: str, state: str) -> Seen | None:
        return self._seen(self.first(tube, state))

    # What changes something

    def use(self, tube: str) -> None:
        """Make there be *tube*, for as long as this connection uses it."""
        if tube != self._used:
            self._ask(self._client.use, tube)
            self._used = tube

    def put(self, tube: str, body: bytes, pri: int, delay: int, ttr: int) -> int:
        self.use(tube)
        return self._ask(self._client.put, body, pri, delay, ttr)

    def reserve(self, tube: str, wait: int = 0) -> Job | None:
        """Take the next ready job of *tube*, within *wait* seconds; None if there is none, or the tube is paused."""
        if tube != self._watched:
            self._ask(self._client.watch, tube)
            self._ask(self._client.ignore, self._watched)
            self._watched = tube
        try:
            with self._in_our_words(greenstalk.TimedOutError, greenstalk.DeadlineSoonError, wait=wait):
                return self._client.reserve(wait)
        except (greenstalk.TimedOutError, greenstalk.DeadlineSoonError):
            return None

    def reserve_job(self, job_id: int) -> Job | None:
        return self._find(self._client.reserve_job, job_id)

    def release(self, job: Job, pri: int) -> None:
        self._find(self._client.release, job, pri)

    def bury(self, job: Job, pri: int) -> bool:
        return self._does(self._client.bury, job, pri)

    def bury_job(self, job_id: int) -> bool:
        """Bury with the pri that it has; the protocol lets only who has reserved a job bury it."""
        stats = self.job(job_id)
        if stats is None or stats["state"] == BURIED or (job := self.reserve_job(job_id)) is None:
            return False
        return self.bury(job, stats["pri"])

    def delete(self, job_id: int) -> bool:
        return self._does(self._client.delete, job_id)

    def kick(self, tube: str, bound: int) -> int:
        self.use(tube)
        return self._ask(self._client.kick, bound)

    def kick_job(self, job_id: int) -> bool:
        return self._does(self._client.kick_job, job_id)

    def pause(self, tube: str, seconds: int) -> bool:
        return self._does(self._client.pause_tube, tube, seconds)

    # How it is asked

    def _names(self) -> list[str]:
        """The names of tubes; ValueError if one is none, since it goes into commands, maybe to another server."""
        names = self._client.tubes()
        if not all(TUBE_NAME.fullmatch(name) for name in names):
            raise ValueError(names)
        return names

    def _seen(self, job: Job | None) -> Seen | None:
        """*job* with its figures: with its id alone, if it has been deleted since."""
        if job is None:
            return None
        return Seen((self.job(job.id) or {"id": job.id}) | {"bytes": len(job.body)}, job.body)

    def _does(self, call: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> bool:
        """Whether the server did it; False if it answers NOT_FOUND."""
        try:
            with self._in_our_words(greenstalk.NotFoundError):
                call(*args, **kwargs)
        except greenstalk.NotFoundError:
            return False
        return True

    def _find(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            with self._in_our_words(greenstalk.NotFoundError):
                return call(*args, **kwargs)
        except greenstalk.NotFoundError:
            return None

    def _ask(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        with self._in_our_words():
            return call(*args, **kwargs)

    @contextmanager
    def _in_our_words(self, *ordinary: type[greenstalk.Error], wait: int = 0) -> Iterator[None]:
        """Make Refused or Unreachable of what is raised, save of replies that are *ordinary*.

        The request has *wait* seconds more than usual.
        """
        self._link.allow(self._timeout + wait, MAX_BODY + MAX_LINE)
        try:
            yield
        except TimeoutError as error:
            message = f"{self.address} has not answered within {self._timeout + wait:g} s; allow more with --timeout"
            raise Unreachable(message) from error
        except OSError as error:
            raise Unreachable(self._ended(error)) from error
        except link.TooLargeError as error:
            message = f"what answers at {self.address} is no beanstalk server ({error}); is --server right?"
            raise Unreachable(message) from error
        except (greenstalk.Error, AssertionError, ValueError) as error:
            if isinstance(error, ordinary):
                self._has_answered = True
                raise
            if type(error) in _REASONS:
                raise self._refusal(error) from error
            message = f"what answers at {self.address} does not speak the beanstalk protocol; is --server right?"
            raise Unreachable(message) from error
        self._has_answered = True

    def _ended(self, error: OSError) -> str:
        """Return what it means that the connection has ended with *error*."""
        if (refusal := tls.refusal(self.address, error)) is not None:
            return refusal
        if self._has_answered:
            advice = "is it still running?"
        elif self.address.is_secure:
            advice = "does it take only clients with a certificate (--cert, --key), or not this one?"
        else:
            advice = "is it still running? If it expects TLS, add --tls"
        return f"{self.address} has ended the connection: {error}; {advice}"

    def _refusal(self, error: Exception) -> Refused:
        word, reason = _REASONS[type(error)]
        number = f" as job {error.id}" if isinstance(error, greenstalk.BuriedError) and error.id else ""
        return Refused(word, f"{self.address} has answered {word}: {reason}{number}")


def _stat(line: str) -> tuple[str, int | str]:
    """One line of YAML; a figure is an int, a name is text whatever it looks like."""
    key, value = line.split(": ", 1)
    if key in _NAMES:
        return key, value[1:-1] if value[:1] == value[-1:] == '"' and len(value) > 1 else value
    return key, int(value) if value.lstrip("-").isdecimal() else value
