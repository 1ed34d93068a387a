"""Connections to PostgreSQL: where the primary is, how a session is set up, and when an answer is overdue.

Invariants:
- A `DatabaseConnection` has at most one session with an unanswered statement. A new session first terminates the
  backend of its predecessor, and is not used until that backend has ended. PostgreSQL may keep the backend for hours if
  the predecessor died silently.
- All connections of a server lead to the same host: when one of them moves to another host, or finds its session dead,
  the sessions of all others count as stale and are replaced.
- A commit whose wait for a synchronous standby was cancelled is not reported as done. PostgreSQL answers it with
  success and a warning.

Everything here blocks, and may be called from any thread. Nothing here knows gevent, or the meaning of a statement.
"""

from __future__ import annotations

import os
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import errors, pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ConnStatus, PollingStatus
from psycopg.pq.abc import PGconn

from greenstalk_server.runtime.exit_codes import EXIT_USAGE, StartError

APPLICATION: Final = "greenstalk-server"
"""The beginning of the application_name of every session."""

DATABASE_RETRY_INTERVAL: Final = 0.1
"""Seconds between attempts to reach the database, and between attempts at a host while another host is tried."""

CONNECT_TIMEOUT: Final = 2
"""Seconds until an attempt to connect fails, unless the address has a connect_timeout."""

MAX_TIMEOUT: Final = 20.0
"""Maximum timeout in seconds of a statement, after several statements in a row were overdue."""

MAX_CONNECT_TIMEOUT: Final = 30.0
"""Maximum timeout in seconds of a connection that PostgreSQL accepts and does not serve. PostgreSQL keeps a slot for
each of these until its own authentication_timeout, a minute by default, so there must be few attempts in that time."""

SLOWEST_TRANSFER: Final = 4 * 2**20
"""Bytes per second: each statement gets the time that its data takes at this rate, in addition to its timeout."""

HOST_STAGGER: Final = 0.1
"""Seconds without an answer from a host after which the next one is tried as well."""

STUCK_RETRY_INTERVAL: Final = 5.0
"""Seconds between attempts while PostgreSQL cannot end the backend of the previous session."""

STUCK_CHECKS: Final = 25
STUCK_CHECK_INTERVAL: Final = 0.02
"""A new session checks up to 25 times, 20 ms apart, whether its predecessor's backend has ended."""

MAX_LOCK_TIMEOUTS: Final = 8
"""Consecutive lock timeouts of a session after which the next attempts try the other hosts first. The session may be on
a former primary, where a commit that waits for a lost standby holds the lock indefinitely."""

Row: TypeAlias = tuple[Any, ...]


class DatabaseUnavailable(OSError):
    """The database is unreachable, or the connection broke.

    The statement may have been executed, or may still be executed.
    """


class LockTimeout(DatabaseUnavailable):
    """Another session held a lock for too long. The statement was not executed."""


class NotLeader(OSError):
    """This server does not lead: another one does, or none."""


class DatabaseRefused(OSError):
    """The database has answered with an error. The statement was not executed."""


def conninfo_of(url: str, option: str) -> str:
    """Return *url*, the value of *option*, as a conninfo for libpq; raise StartError if it is malformed.

    Of several hosts, the one that accepts writes is used. libpq's message about a malformed address is not passed on,
    since it may contain a part of the password. If the password is not encoded, the host, port or database may contain
    a part too.
    """
    try:
        parameters = conninfo_to_dict(url)
    except (psycopg.Error, UnicodeError):
        parameters = {}
    is_torn = any("@" in str(parameters.get(part, "")) for part in ("host", "dbname"))
    if not parameters or is_torn or not re.fullmatch("[0-9,]*", str(parameters.get("port", ""))):
        form = "postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with %40 for @ in a password, %2F for /, %25 for %"
        raise StartError(f"{option}: the address cannot be read; it must be {form}", EXIT_USAGE)
    ours = {
        "application_name": APPLICATION,
        "connect_timeout": str(CONNECT_TIMEOUT),
        "keepalives_idle": "5",
        "keepalives_interval": "2",
        "keepalives_count": "3",
        "tcp_user_timeout": "11000",
        "target_session_attrs": "read-write",
    }
    return make_conninfo("", **(ours | parameters | {"client_encoding": "utf8"}))


class Hosts:
    """The hosts of an address, and which of them was the last primary; shared by all connections of a server.

    generation  incremented when the primary moves to another host, or when a session is found dead. A session of an
                earlier generation must no longer be used.
    """

    def __init__(self, conninfo: str) -> None:
        parameters = conninfo_to_dict(conninfo)
        self.timeout: float = _timeout(str(parameters.get("connect_timeout", "")))
        self.generation: int = 0
        self._hosts: list[dict[str, str]] = _split(parameters)
        self._first: int = 0
        self._lock: threading.Lock = threading.Lock()

    def suspect(self, generation: int) -> None:
        """Mark the sessions of *generation* as dead: the next attempts try the other hosts first."""
        with self._lock:
            if generation == self.generation:
                self.generation += 1
                self._first = (self._first + 1) % len(self._hosts)

    def connect(self, timeout: float, is_over: Callable[[], bool]) -> tuple[PGconn, int]:
        """Return a connection to the primary, and its generation.

        The hosts are tried in parallel, the last primary first. A host that fails is tried again while another one has
        not answered: it may have been promoted. Raise DatabaseUnavailable, or TimeoutError if a host hangs.
        """
        with self._lock:
            first, count = self._first, len(self._hosts)
        attempts, reason = [], ""
        for place in [(first + number) % count for number in range(count)]:
            try:
                attempts += [(place, conninfo) for conninfo in _resolve(self._hosts[place])]
            except (OSError, UnicodeError) as error:
                reason = f"{self._hosts[place]['host']}: {getattr(error, 'strerror', error)}"
        if not attempts:
            raise DatabaseUnavailable(f"PostgreSQL: {reason}")
        number, connection = _Race([conninfo for _, conninfo in attempts], timeout).run(is_over)
        with self._lock:
            if attempts[number][0] != self._first:
                self._first = attempts[number][0]
                self.generation += 1
            return connection, self.generation


def _timeout(text: str) -> float:
    """Return the connect_timeout *text* in seconds. For libpq, 0 means no limit."""
    try:
        seconds = int(text)
    except ValueError:
        return CONNECT_TIMEOUT
    return seconds if seconds > 0 else MAX_TIMEOUT


def _split(parameters: dict[str, Any]) -> list[dict[str, str]]:
    """Return the *parameters* of each host that they name."""
    whole = {name: str(value) for name, value in parameters.items()}
    lists = {name: whole[name].split(",") for name in ("host", "hostaddr", "port") if whole.get(name)}
    count = max([len(lists.get(name, "")) for name in ("host", "hostaddr")] + [1])
    if any(len(values) not in (1, count) for values in lists.values()):
        return [whole]  # libpq says what is wrong
    return [whole | {name: values[number % len(values)] for name, values in lists.items()} for number in range(count)]


def _resolve(parameters: dict[str, str]) -> list[str]:
    """Return a conninfo for each address of the host in *parameters*; raise OSError or UnicodeError."""
    host = parameters.get("host", "")
    if not host or host.startswith(("/", "@")) or parameters.get("hostaddr"):
        return [make_conninfo("", **parameters)]
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    addresses = dict.fromkeys([str(address[0]) for *_, address in found])
    return [make_conninfo("", **(parameters | {"hostaddr": address})) for address in addresses]


class _Race:
    """Attempts at several addresses, each begun HOST_STAGGER after the previous one; the first that succeeds wins."""

    def __init__(self, conninfos: Sequence[str], timeout: float) -> None:
        """*timeout* in seconds."""
        now = time.monotonic()
        self._conninfos: Sequence[str] = conninfos
        self._timeout: float = timeout
        self._until: float = now + timeout
        self._due: dict[int, float] = {number: now + HOST_STAGGER * number for number in range(len(conninfos))}
        self._started: dict[int, tuple[PGconn, int]] = {}
        self._failures: dict[int, str] = {}

    def run(self, is_over: Callable[[], bool]) -> tuple[int, PGconn]:
        """Return the number of the winner and its connection.

        Raise DatabaseUnavailable if all fail, and TimeoutError if one was accepted and not served in time.
        """
        try:
            while True:
                now = time.monotonic()
                self._refuse_end(now, is_over)
                for number in [number for number, at in self._due.items() if at <= now]:
                    del self._due[number]
                    connection = pq.PGconn.connect_start(self._conninfos[number].encode())
                    self._started[number] = connection, select.POLLOUT
                for number in self._ready():
                    if self._resume(number):
                        return number, self._started.pop(number)[0]
        finally:
            for connection, _ in self._started.values():
                connection.finish()

    def _refuse_end(self, now: float, is_over: Callable[[], bool]) -> None:
        if is_over():
            raise DatabaseUnavailable("the server stops")
        if not self._started and len(self._failures) == len(self._conninfos):
            raise DatabaseUnavailable(f"PostgreSQL: {self._failures[0]}")
        if now > self._until:
            message = f"PostgreSQL: no answer to a new connection in {self._timeout:.0f} s"
            is_accepted = any(connection.status != ConnStatus.STARTED for connection, _ in self._started.values())
            raise TimeoutError(message) if is_accepted else DatabaseUnavailable(message)

    def _ready(self) -> list[int]:
        """Wait until sockets are ready or the next attempt is due; return the numbers of the ready ones."""
        poll, numbers = select.poll(), {}
        for number, (connection, wanted) in self._started.items():
            if connection.status == ConnStatus.BAD:
                return [number]
            numbers[connection.socket] = number
            poll.register(connection.socket, wanted)
        pause = min([self._until, *self._due.values()]) - time.monotonic()
        return [numbers[fd] for fd, _ in poll.poll(max(0.0, min(pause, DATABASE_RETRY_INTERVAL)) * 1000)]

    def _resume(self, number: int) -> bool:
        """Perform the next step of an attempt; return whether it has succeeded."""
        connection = self._started[number][0]
        status = PollingStatus.FAILED if connection.status == ConnStatus.BAD else connection.connect_poll()
        if status == PollingStatus.FAILED:
            self._fail(number)
        elif status != PollingStatus.OK:
            self._started[number] = connection, select.POLLIN if status == PollingStatus.READING else select.POLLOUT
        return status == PollingStatus.OK

    def _fail(self, number: int) -> None:
        """Begin all other attempts now, and schedule this one again if another has not failed yet."""
        connection, _ = self._started.pop(number)
        self._failures[number] = _one_line(connection.get_error_message())
        connection.finish()
        now = time.monotonic()
        self._due = {other: at if other in self._failures else now for other, at in self._due.items()}
        self._due[number] = now + DATABASE_RETRY_INTERVAL
        if not self._started:
            self._due = {other: at for other, at in self._due.items() if other not in self._failures}


class DatabaseConnection:
    """A session of the database, opened on demand and replaced after it broke. One statement at a time.

    timeout     seconds without an answer after which `break_if_overdue` breaks the connection. It doubles with each
                consecutive overdue statement, so that a slow database does not get the same statement forever.
    """

    def __init__(self, hosts: Hosts, name: str, timeout: float, former: str = "") -> None:
        """*name*: application_name. *former*: prefix of the names used before exec replaced this process."""
        self.timeout: float = timeout
        self._hosts: Hosts = hosts
        self._name: str = name
        self._former: str = former
        self._connection: psycopg.Connection[Row] | None = None
        self._generation: int = 0
        self._lock: threading.Lock = threading.Lock()
        self._guard: threading.Lock = threading.Lock()
        self._asked_at: float | None = None
        self._late_at: float = inf
        self._retry_at: float = 0.0
        self._late_statements: int = 0
        self._late_connects: int = 0
        self._lock_timeouts: int = 0
        self._is_connecting: bool = False
        self._is_unreplicated: bool = False
        self._is_closed: bool = False

    @property
    def waits(self) -> float:
        """Seconds since the pending statement or connection attempt was sent; 0.0 if none is pending."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else time.monotonic() - asked_at

    def run(self, query: str, parameters: Sequence[Any] = (), size: int = 0) -> list[Row]:
        """Execute and commit one statement; return its rows; raise as `call` does."""
        return self.call(lambda connection: _rows(connection.execute(query.encode(), parameters, binary=True)), size)

    def call(self, function: Callable[[psycopg.Connection[Row]], list[Row]], size: int = 0) -> list[Row]:
        """Call *function*, which sends *size* bytes, with the session; return its result.

        Raise DatabaseUnavailable, LockTimeout, DatabaseRefused or NotLeader.
        """
        with self._lock:
            try:
                connection = self._connected()
                self._begin(size)
                found = function(connection)
            except errors.LockNotAvailable as error:
                self._note_lock_timeout()
                raise LockTimeout("PostgreSQL: timed out waiting for a lock that another session holds") from error
            except errors.NotNullViolation as error:  # see _INSERT_AS_LEADER in rows.py: the epoch has changed
                raise NotLeader("another server has taken over") from error
            except errors.UniqueViolation as error:
                raise NotLeader("the journal has rows that this server has not read") from error
            except errors.InsufficientPrivilege as error:
                raise DatabaseRefused(f"PostgreSQL: {_first_line(error)}; {RIGHTS}") from error
            except psycopg.Error as error:
                connection_is_sound = self._connection is not None and not self._connection.broken
                if connection_is_sound and not isinstance(error, _SESSION_ENDED):
                    raise DatabaseRefused(f"PostgreSQL: {_first_line(error)}") from error
                self._drop()
                raise DatabaseUnavailable(f"PostgreSQL: {_first_line(error)}") from error
            finally:
                self._asked_at = None
            self._late_statements = self._lock_timeouts = 0
            if self._is_unreplicated:
                self._drop()
                raise DatabaseUnavailable("PostgreSQL: the wait for its synchronous standby was cancelled")
            return found

    def break_if_overdue(self, limit: float = inf) -> None:
        """Break the connection if an answer is overdue, or missing for *limit* seconds. Never waits for long.

        The caller that waits for the answer gets DatabaseUnavailable. A session of an earlier generation counts as
        overdue.
        """
        asked_at = self._asked_at
        if asked_at is None:
            return
        now = time.monotonic()
        if self._is_connecting:
            self._is_closed = self._is_closed or now >= asked_at + limit
            return
        is_late = now >= self._late_at
        is_stale = self._generation != self._hosts.generation and now >= asked_at + DATABASE_RETRY_INTERVAL
        if not (is_late or is_stale or now >= asked_at + limit):
            return
        if is_late:
            self._late_at = inf
            self._late_statements += 1
            self._hosts.suspect(self._generation)
        with self._guard, suppress(OSError, psycopg.Error):
            if self._connection is not None:
                with socket.socket(fileno=os.dup(self._connection.fileno())) as sock:
                    sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection for good, and interrupt a pending statement."""
        self._is_closed = True
        self.break_if_overdue(0.0)
        with self._lock:
            self._drop()

    def _begin(self, size: int = 0) -> None:
        """Start the timeout of a statement of *size* bytes, which is sent next."""
        timeout = min(self.timeout * 2**self._late_statements, max(self.timeout, MAX_TIMEOUT))
        self._is_unreplicated = False
        self._asked_at = time.monotonic()
        self._late_at = self._asked_at + timeout + size / SLOWEST_TRANSFER

    def _connected(self) -> psycopg.Connection[Row]:
        if self._connection is not None and self._generation != self._hosts.generation:
            self._drop()
        if self._is_closed:
            raise DatabaseUnavailable("the server stops")
        if self._connection is None:
            if time.monotonic() < self._retry_at:
                raise DatabaseUnavailable("PostgreSQL: it cannot end the backend of an earlier connection")
            self._connect()
        assert self._connection is not None
        return self._connection

    def _connect(self) -> None:
        self._asked_at, self._late_at = time.monotonic(), inf
        self._is_connecting = True
        timeout = self._hosts.timeout * 2**self._late_connects
        try:
            found, generation = self._hosts.connect(min(timeout, MAX_CONNECT_TIMEOUT), lambda: self._is_closed)
            self._late_connects = 0
        except TimeoutError as error:
            self._late_connects = min(self._late_connects + 1, 5)
            raise DatabaseUnavailable(str(error)) from error
        finally:
            self._is_connecting = False
        found.nonblocking = 1
        connection = psycopg.Connection[Row](found)
        connection.autocommit = True
        connection.add_notice_handler(self._note_warning)
        with self._guard:
            self._connection, self._generation = connection, generation
        try:
            self._begin()
            connection.execute(_SESSION, (self._name, f"{int(self.timeout * 500)}ms"))
            self._end_predecessors(connection)
        except BaseException:
            self._drop()
            raise

    def _end_predecessors(self, connection: psycopg.Connection[Row]) -> None:
        """Terminate the backends of earlier sessions; raise DatabaseUnavailable if one of them does not end."""
        parameters = (self._name, f"{self._former}%" if self._former else self._name)
        if not connection.execute(_TERMINATE_PREDECESSORS, parameters).fetchall():
            return
        for _ in range(STUCK_CHECKS):
            if not connection.execute(_PREDECESSORS, parameters).fetchall():
                return
            time.sleep(STUCK_CHECK_INTERVAL)
        self._retry_at = time.monotonic() + STUCK_RETRY_INTERVAL
        raise DatabaseUnavailable("PostgreSQL: it cannot end the backend of an earlier connection")

    def _note_lock_timeout(self) -> None:
        self._lock_timeouts += 1
        if not self._lock_timeouts % MAX_LOCK_TIMEOUTS:
            self._hosts.suspect(self._generation)

    def _note_warning(self, diagnostic: errors.Diagnostic) -> None:
        if diagnostic.source_function == "SyncRepWaitForLSN":
            self._is_unreplicated = True

    def _drop(self) -> None:
        with self._guard:
            connection, self._connection = self._connection, None
            if connection is not None:
                with suppress(psycopg.Error):
                    connection.close()


_SESSION: Final = b"""
    SELECT set_config(name, value, false)
    FROM (VALUES ('application_name', %s), ('lock_timeout', %s), ('statement_timeout', '0'),
                 ('idle_session_timeout', '0'), ('default_transaction_isolation', 'read committed'),
                 ('tcp_keepalives_idle', '5'), ('tcp_keepalives_interval', '2'), ('tcp_keepalives_count', '3'),
                 ('tcp_user_timeout', '11000'), ('client_connection_check_interval', '1000')) AS wanted (name, value)
    WHERE current_setting(name, true) IS NOT NULL"""
"""Overrides the settings of the role and the database. A statement_timeout could interrupt the wait for a synchronous
standby, which PostgreSQL reports as success. By the last five settings PostgreSQL detects a lost client; versions
before 14 lack some of them."""

_PREDECESSORS: Final = b"""
    SELECT pid FROM pg_stat_activity
    WHERE (application_name = %s OR application_name LIKE %s) AND usename = session_user AND pid <> pg_backend_pid()"""

_TERMINATE_PREDECESSORS: Final = _PREDECESSORS.replace(b"SELECT pid", b"SELECT pg_terminate_backend(pid)", 1)

RIGHTS: Final = "the role needs the right to create tables, or all rights on those that are there (greenstalk_*)"

_SESSION_ENDED: Final = (
    errors.AdminShutdown,
    errors.CannotConnectNow,
    errors.CrashShutdown,
    errors.ReadOnlySqlTransaction,
)
"""Errors after which another connection may succeed: PostgreSQL stops, or is no longer the primary."""


def _rows(cursor: psycopg.Cursor[Row]) -> list[Row]:
    return cursor.fetchall() if cursor.description is not None else []


def _first_line(error: psycopg.Error) -> str:
    return _one_line(str(error)) or type(error).__name__


def _one_line(message: str) -> str:
    return (message.strip().splitlines() or [""])[0]
