"""greenstalk.Client with the extensions of Greenstalk Server.

Errors are greenstalk's: ConnectionError if the connection ends, and greenstalk.BeanstalkdError for an error
reply. Every method of an extension raises greenstalk.UnknownCommandError if the server lacks the extension. A
ValueError means that an argument is out of range and nothing was sent.

Unless noted, ids are integers, priorities are 0 (most urgent) to 4,294,967,295, and times are seconds from 0 to
4,294,967,295, rounded to milliseconds. Names of tubes and keys have 1 to 200 letters, digits and
`-+/;.$_()`, and do not start with `-`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from typing import Final, Literal, NamedTuple, Self, TypedDict, cast, overload

import greenstalk
from greenstalk import DEFAULT_DELAY, DEFAULT_PRIORITY, DEFAULT_TTR, DEFAULT_TUBE, TBody

MAX_BATCH: Final = 1000
"""Maximum number of jobs in one batch."""

_MAX_NUMBER: Final = 2**32 - 1
_NAME: Final = re.compile(r"[A-Za-z0-9+/;.$_()][A-Za-z0-9+/;.$_()-]{0,199}")


class JobMeta(TypedDict):
    """Metadata of a job at its reservation or peek, with the keys that `Client.meta` selected. Times are in seconds.

    No key is declared as optional, because type checkers would then reject `job.meta["tube"]`.
    """

    tube: str
    pri: int
    age: float
    ttr: float
    reserves: int
    timeouts: int
    releases: int
    attempts: int


_META_TYPES: Final[dict[str, Callable[[str], object]]] = {
    "tube": str,
    "pri": int,
    "age": float,
    "ttr": float,
    "reserves": int,
    "timeouts": int,
    "releases": int,
    "attempts": int,
}


class Job(greenstalk.Job[TBody]):
    """A job returned from the server. `meta` has the fields that `Client.meta` selected, and is empty without them."""

    def __init__(self, id: int, body: TBody, meta: JobMeta) -> None:
        super().__init__(id, body)  # type: ignore[arg-type]  # mypy expects a TypeVar here, not its value
        self.meta = meta


class PutId(int):
    """The id of a job that was put, or of the existing job with the same idempotency key.

    state       None for a new job; else the state of the existing job: ready, reserved, delayed, buried, or deleted.
    priority    the new priority of the existing job if the put made it more urgent, else None.
    """

    state: str | None = None
    priority: int | None = None

    @property
    def is_new(self) -> bool:
        """Whether the put added a job."""
        return self.state is None


class BatchResult(NamedTuple):
    """The reply to a `delete_batch`."""

    deleted: int
    not_found: int
    """Number of ids without a job, of jobs that another client holds, and of repeated ids."""


class AlreadyReservedError(greenstalk.BeanstalkdError):
    """The command requires a job that is not reserved, but a client holds the job."""


class BodyDecodeError(greenstalk.Error):
    """A body in a batch is not in the client's encoding. The client holds all `jobs`; their bodies are bytes."""

    def __init__(self, jobs: list[Job[bytes]]) -> None:
        super().__init__(f"cannot decode the body of one of the jobs {[job.id for job in jobs]}")
        self.jobs = jobs


class Client(greenstalk.Client[TBody]):
    """A connection to the server. See greenstalk.Client for the arguments and for the methods of plain beanstalkd.

    Not thread-safe: one thread at a time may use a client.
    """

    _has_extensions: bool | None = None
    _fields: tuple[str, ...] = ()
    _has_stats_mode = False

    @overload
    def __init__(
        self: Client[bytes],
        address: greenstalk.ConnectionTarget,
        encoding: None,
        use: str = DEFAULT_TUBE,
        watch: str | Iterable[str] = DEFAULT_TUBE,
    ) -> None: ...

    @overload
    def __init__(
        self: Client[str],
        address: greenstalk.ConnectionTarget,
        encoding: str = "utf-8",
        use: str = DEFAULT_TUBE,
        watch: str | Iterable[str] = DEFAULT_TUBE,
    ) -> None: ...

    def __init__(
        self,
        address: greenstalk.ConnectionTarget,
        encoding: str | None = "utf-8",
        use: str = DEFAULT_TUBE,
        watch: str | Iterable[str] = DEFAULT_TUBE,
    ) -> None:
        super().__init__(address, encoding, use, watch)  # type: ignore[misc]  # only the caller knows the overload

    def __enter__(self) -> Self:
        return self

    def has_extensions(self) -> bool:
        """Return whether the server has the extensions. Only the first call asks the server."""
        if self._has_extensions is None:
            with contextlib.suppress(greenstalk.UnknownCommandError):
                self.meta()
        return bool(self._has_extensions)

    # Put

    def put(
        self,
        body: TBody,
        priority: int = DEFAULT_PRIORITY,
        delay: float = DEFAULT_DELAY,
        ttr: float = DEFAULT_TTR,
        *,
        tube: str | None = None,
        idempotency_key: str | None = None,
        idempotency_ttl: float = 0,
        group: str | None = None,
        after: str | None = None,
        concurrency_key: str | None = None,
        concurrency_limit: int | None = None,
    ) -> PutId:
        """Put a job; return its id.

        :param priority: 0 (most urgent) to 4,294,967,295.
        :param delay: Seconds until the job is ready; may have a fraction.
        :param ttr: Seconds that a worker may hold the job without a touch. 0 is one second.
        :param tube: Tube to put into; None means the used tube.
        :param idempotency_key: If the tube has a job with this key, add no job and return the id of that job.
        :param idempotency_ttl: Seconds that the key stays taken after the job is deleted; may have a fraction.
        :param group: Group that the job belongs to.
        :param after: Group that must be empty before the job becomes ready.
        :param concurrency_key: Key whose reserved jobs are limited in number, over all tubes of the server.
        :param concurrency_limit: Maximum number of reserved jobs with the concurrency key; None means 1.

        Keyword arguments and fractions need the extensions. Raise UnknownCommandError, without putting the job, if the
        server does not have them.
        """
        data = self._encode(body)
        times: list[bytes] = [encode_seconds(delay), encode_seconds(ttr)]
        verb = b"put" if tube is None else b"put-in-tube " + encode_name(tube)
        words = [verb, b"%d" % valid_priority(priority), *times, b"%d" % len(data)]
        if idempotency_key is not None:
            words.append(_tag(b"idp", idempotency_key, encode_seconds(idempotency_ttl) if idempotency_ttl else b""))
        elif idempotency_ttl:
            raise ValueError("an idempotency_ttl requires an idempotency_key")
        if group is not None:
            words.append(_tag(b"grp", group))
        if after is not None:
            words.append(_tag(b"aft", after))
        if concurrency_key is not None:
            words.append(_tag(b"con", concurrency_key, b"" if concurrency_limit is None else _limit(concurrency_limit)))
        elif concurrency_limit is not None:
            raise ValueError("a concurrency_limit requires a concurrency_key")
        line = b" ".join(words)
        if tube is not None or len(words) > 5 or b"." in b"".join(times):
            self._need_extensions()  # a server without them would read the body as commands
        return _put_id(self._send_cmd(b"%b\r\n%b" % (line, data), b"INSERTED"))

    # Reserve and finish

    def reserve(self, timeout: float | None = None) -> Job[TBody]:
        """Reserve a job.

        :param timeout: Maximum seconds to wait; None waits indefinitely. A fraction needs the extensions.

        Raise TimedOutError if no job was ready in time, and DeadlineSoonError if none is ready and less than a second
        is left of the TTR of a job that this client holds.
        """
        if timeout is None:
            return self._job_cmd(b"reserve", b"RESERVED")
        return self._job_cmd(b"reserve-with-timeout " + self._extended_seconds(timeout), b"RESERVED")

    def reserve_batch(self, count: int, timeout: float = 0) -> list[Job[TBody]]:
        """Reserve up to *count* jobs, 1 to 1000; return [] if none was ready within *timeout* seconds.

        The server waits for the first job, and then adds the other jobs that are ready. It may return fewer jobs than
        are ready, because a reply ends once its bodies exceed 64 KiB.

        Raise DeadlineSoonError as `reserve` does. Raise BodyDecodeError, which contains the jobs, if a body is not in
        the encoding of this client.
        """
        if not 1 <= count <= MAX_BATCH:
            raise ValueError(f"the count must be 1 to {MAX_BATCH}, not {count}")
        self._need_extensions()
        size = self._int_cmd(b"reserve-batch %d %b" % (count, encode_seconds(timeout)), b"RESERVED_BATCH")
        jobs = [self._read_job(self._read_reply(b"RESERVED")) for _ in range(size)]
        try:
            return [self._decoded(job) for job in jobs]
        except UnicodeError as error:
            raise BodyDecodeError(jobs) from error

    def delete_batch(self, jobs: Iterable[greenstalk.JobOrID[TBody]]) -> BatchResult:
        """Delete up to 1000 jobs; return how many were deleted, and how many were not found.

        Not atomic: if the connection ends before the reply, some of the jobs may be deleted.
        """
        ids = [_id(job) for job in jobs]
        if len(ids) > MAX_BATCH:
            raise ValueError(f"a batch has at most {MAX_BATCH} jobs, not {len(ids)}")
        if not ids:
            return BatchResult(0, 0)
        deleted, not_found = self._send_cmd(b"delete-batch" + b"".join(b" %d" % id for id in ids), b"DELETED_BATCH")
        return BatchResult(int(deleted), int(not_found))

    def release(
        self,
        job: greenstalk.Job[TBody],
        priority: int = DEFAULT_PRIORITY,
        delay: float = DEFAULT_DELAY,
    ) -> None:
        """Release a job that this client holds. *delay* is in seconds and may have a fraction.

        Raise NotFoundError if this client does not hold the job.
        """
        command = b"release %d %d %b" % (job.id, valid_priority(priority), self._extended_seconds(delay))
        self._send_cmd(command, b"RELEASED")

    def touch_all(self) -> int:
        """Restart the TTR of every job that this client holds; return their number.

        If the number is smaller than expected, some jobs have exceeded their TTR or were deleted.
        """
        return self._int_cmd(b"touch-all", b"TOUCHED_ALL")

    def meta(self, *fields: str) -> None:
        """Select the keys of JobMeta that every later job has in its `meta`. Without *fields*, select none.

        Raise ValueError if a field does not exist or is repeated.
        """
        if not set(fields) <= _META_TYPES.keys() or len(set(fields)) < len(fields):
            raise ValueError(f"{fields} must be different names of {tuple(_META_TYPES)}")
        try:
            self._send_cmd(" ".join(("meta", *fields)).encode(), b"META")
        except greenstalk.UnknownCommandError:
            self._has_extensions = False
            raise
        self._fields = fields
        self._has_extensions = True

    # Watch

    def watch(self, tube: str, weight: int | None = None) -> int:
        """Watch *tube*; return the number of watched tubes.

        :param weight: 1 to 9999, for the weighted modes of `reserve_mode`. If the tube is already watched,
            its weight changes.
        """
        if weight is None:
            return super().watch(tube)
        valid_weight(weight)
        self._need_extensions()
        return self._int_cmd(b"watch %b %d" % (encode_name(tube), weight), b"WATCHING")

    def reserve_mode(self, mode: Literal["fifo", "weighted", "weighted-fair"]) -> None:
        """Set how reserves of this connection select a tube.

        fifo: the tube of the job with the best priority, as in beanstalkd. weighted: a random tube, in proportion to
        the weights. weighted-fair: like weighted, with each weight divided by the tube's average processing time.
        """
        self._need_extensions()
        self._send_cmd(b"reserve-mode " + mode.encode("ascii"), b"USING")

    # Jobs and tubes

    def wait(self, job: greenstalk.JobOrID[TBody], timeout: float | None = None) -> Literal["deleted", "buried"]:
        """Wait until a job is deleted or buried; return which.

        :param timeout: Maximum seconds to wait. None waits indefinitely.

        Raise TimedOutError after the timeout, and NotFoundError if the job does not exist, for example because it is
        already deleted.
        """
        command = b"wait %d" % _id(job)
        if timeout is not None:
            command += b" " + encode_seconds(timeout)
        try:
            self._send_cmd(command, b"DELETED")
        except greenstalk.BuriedError:
            return "buried"
        return "deleted"

    def reprioritize(self, job: greenstalk.JobOrID[TBody], priority: int) -> None:
        """Give a ready, delayed or buried job another priority.

        Raise AlreadyReservedError if a client holds the job, and NotFoundError if there is no such job.
        """
        try:
            self._send_cmd(b"reprioritize %d %d" % (_id(job), valid_priority(priority)), b"REPRIORITIZED")
        except greenstalk.UnknownResponseError as error:
            if error.status == b"ALREADY_RESERVED":
                raise AlreadyReservedError from error
            raise

    def peek_reserved(self) -> Job[TBody]:
        """Return the reserved job of the used tube with the lowest id; raise NotFoundError if there is none."""
        return self._job_cmd(b"peek-reserved", b"FOUND")

    def flush_tube(self, tube: str) -> int:
        """Delete all jobs of *tube*, including reserved ones; return their number.

        Raise NotFoundError if there is no such tube: no client uses or watches it, and it has no job.
        """
        return self._int_cmd(b"flush-tube " + encode_name(tube), b"FLUSHED")

    def flush_buried(self, tube: str) -> int:
        """Delete the buried jobs of *tube*; return their number. Raise NotFoundError if there is no such tube."""
        return self._int_cmd(b"flush-buried " + encode_name(tube), b"FLUSHED")

    def truncate(self, tube: str) -> int:
        """Delete all jobs of *tube*; each reserved job is deleted when its reservation ends.

        Return the number of jobs deleted immediately, which excludes reserved ones. Raise NotFoundError if there is no
        such tube.
        """
        return self._int_cmd(b"truncate " + encode_name(tube), b"TRUNCATED")

    def pause_tube(self, tube: str, delay: float) -> None:
        """Stop reserves from *tube* for *delay* seconds, which may have a fraction."""
        self._send_cmd(b"pause-tube %b %b" % (encode_name(tube), self._extended_seconds(delay)), b"PAUSED")

    def stats_mode(self, mode: Literal["standard", "extended"]) -> None:
        """Select the keys of later statistics: beanstalkd's keys, or all keys of the server.

        If this method was not called, the first request for statistics selects all keys, if the server has more than
        beanstalkd.
        """
        self._has_stats_mode = True
        try:
            self._send_cmd(b"stats-mode " + mode.encode("ascii"), b"USING")
        except greenstalk.BadFormatError as error:
            raise greenstalk.UnknownCommandError("the server has no stats-mode") from error

    def stats_group(self, group: str) -> dict[str, int | str]:
        """Return the number of jobs of *group* in each state, and the number of jobs that wait for the group.

        Raise NotFoundError if the group is empty and no job waits for it.
        """
        self._need_extensions()
        return cast("dict[str, int | str]", self._stats_cmd(b"stats-group " + encode_name(group)))

    def drain(self) -> None:
        """Make the server refuse puts. Requires an access rule with `administer = true`."""
        self._send_cmd(b"drain", b"DRAINING")

    def undrain(self) -> None:
        """Make the server accept puts again. Requires an access rule with `administer = true`."""
        self._send_cmd(b"undrain", b"NOT_DRAINING")

    # Commands and replies

    def _stats_cmd(self, cmd: bytes) -> greenstalk.Stats | greenstalk.StatsJob | greenstalk.StatsTube:
        self._extend_stats()
        return super()._stats_cmd(cmd)

    def _extend_stats(self) -> None:
        """Select all keys of statistics, unless a mode has been selected on this connection."""
        if not self._has_stats_mode:
            with contextlib.suppress(greenstalk.UnknownCommandError):
                self.stats_mode("extended")

    def _send_cmd(self, cmd: bytes, expected: bytes) -> list[bytes]:
        self._sock.sendall(cmd + b"\r\n")
        return self._read_reply(expected)

    def _read_reply(self, expected: bytes) -> list[bytes]:
        line = self._reader.readline()
        if line and not line.endswith(b"\n"):
            raise ConnectionError("the connection ended within a reply")
        return greenstalk._parse_response(line, expected)

    def _read_chunk(self, size: int) -> bytes:
        data = self._reader.read(size + 2)
        if len(data) < size + 2:
            raise ConnectionError("the connection ended within a body")
        return greenstalk._parse_chunk(data, size)

    def _job_cmd(self, cmd: bytes, expected: bytes) -> Job[TBody]:
        return self._decoded(self._read_job(self._send_cmd(cmd, expected)))

    def _read_job(self, values: list[bytes]) -> Job[bytes]:
        """Read the body of the job that a reply with *values* announces; return the job."""
        id, size, *facts = values
        meta = {name: _META_TYPES[name](fact.decode()) for name, fact in zip(self._fields, facts, strict=True)}
        return Job(int(id), self._read_chunk(int(size)), cast("JobMeta", meta))

    def _decoded(self, job: Job[bytes]) -> Job[TBody]:
        body = job.body if self.encoding is None else job.body.decode(self.encoding)
        return Job(job.id, cast("TBody", body), job.meta)

    def _encode(self, body: TBody) -> bytes:
        if isinstance(body, bytes):
            return body
        if self.encoding is None:
            raise TypeError("a client without an encoding requires bodies of type bytes")
        if not isinstance(body, str):
            raise TypeError(f"a body is str or bytes, not {type(body).__name__}; encode it first, for example as JSON")
        return body.encode(self.encoding)

    def _extended_seconds(self, seconds: float) -> bytes:
        """Format *seconds*; a fraction needs a server with the extensions."""
        text = encode_seconds(seconds)
        if b"." in text:
            self._need_extensions()
        return text

    def _need_extensions(self) -> None:
        """Raise UnknownCommandError without the extensions.

        The server would reply BAD_FORMAT, or run the body as commands.
        """
        if not self.has_extensions():
            raise greenstalk.UnknownCommandError("the server has no protocol extensions")


def _id(job: greenstalk.JobOrID[TBody]) -> int:
    return job.id if isinstance(job, greenstalk.Job) else job


def encode_name(name: str) -> bytes:
    """Encode the name of a tube or a key; raise ValueError if it is invalid."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a name of 1 to 200 letters, digits and -+/;.$_() that does not start with -")
    return name.encode("ascii")


def valid_priority(priority: int) -> int:
    """Return *priority*; raise ValueError if it is out of range."""
    if not 0 <= priority <= _MAX_NUMBER:
        raise ValueError(f"the priority {priority} is not 0 to {_MAX_NUMBER}")
    return priority


def valid_weight(weight: int) -> int:
    """Return *weight*; raise ValueError if it is out of range."""
    if not 1 <= weight <= 9999:
        raise ValueError(f"the weight {weight} is not 1 to 9999")
    return weight


def encode_seconds(seconds: float) -> bytes:
    """Format a time with at most three digits after the point, and none for whole seconds.

    Raise ValueError if it is out of range.
    """
    if not 0 <= seconds <= _MAX_NUMBER:
        raise ValueError(f"{seconds} is not a time of 0 to {_MAX_NUMBER} seconds")
    return f"{seconds:.3f}".rstrip("0").rstrip(".").encode()


def _limit(number: int) -> bytes:
    if not 1 <= number <= _MAX_NUMBER:
        raise ValueError(f"the concurrency limit {number} is not 1 to {_MAX_NUMBER}")
    return b"%d" % number


def _tag(kind: bytes, key: str, number: bytes = b"") -> bytes:
    """Format a tag of a put."""
    return b"%b:%b" % (kind, encode_name(key)) + (b":" + number if number else b"")


def _put_id(values: list[bytes]) -> PutId:
    id, *existing = values
    result = PutId(id)
    if existing:
        result.state = existing[0].decode().lower()
    if len(existing) > 1:
        result.priority = int(existing[1])
    return result
