"""Rows in a SQLite file, or in memory."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Final, TypeVar

from greenstalk_server.journal.files import open_regular
from greenstalk_server.web.store.rows import Change

T = TypeVar("T")

NAME: Final = "dashboard.sqlite3"
VERSION: Final = 1
"""`user_version` of the file."""

BUSY_TIMEOUT: Final = 5.0
"""Seconds to wait while another program locks the file."""

PAGE_SIZE: Final = 4096
MAX_WAL: Final = 2**18
"""Bytes of the write-ahead log that SQLite keeps between transactions, and after which it writes them to the file."""

_SETTINGS: Final = f"""
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
    PRAGMA journal_size_limit = {MAX_WAL};
    PRAGMA wal_autocheckpoint = {MAX_WAL // PAGE_SIZE};"""

_SCHEMA: Final = f"""
    BEGIN IMMEDIATE;
    CREATE TABLE IF NOT EXISTS row (
        kind TEXT NOT NULL,
        number INTEGER NOT NULL,
        name BLOB NOT NULL,
        data BLOB NOT NULL,
        PRIMARY KEY (kind, number, name));
    PRAGMA user_version = {VERSION};
    COMMIT;"""

_RANGE: Final = "SELECT number, name, data FROM row WHERE kind = ? AND number BETWEEN ? AND ? ORDER BY number, name"
_ONE: Final = "SELECT number, name, data FROM row WHERE kind = ? AND number = ? AND name = ?"
_LATEST: Final = "SELECT number, name, data FROM row WHERE kind = ? AND number < ? ORDER BY number DESC LIMIT ?"
_SIZES: Final = "SELECT number, sum(length(data)) FROM row WHERE kind = ? GROUP BY number"
_PUT: Final = "INSERT OR REPLACE INTO row (kind, number, name, data) VALUES (?, ?, ?, ?)"
_REMOVE: Final = "DELETE FROM row WHERE kind = ? AND number = ? AND name = ?"
_TRIM: Final = "DELETE FROM row WHERE kind = ? AND number <= ?"

log = logging.getLogger(__name__)


class LaterVersion(sqlite3.DatabaseError):
    """A later version of the server has written the file."""


class SqliteRows:
    """Implements Rows. The file is opened by the first call, and again after a failure."""

    def __init__(self, directory: str | None, name: str = NAME) -> None:
        """*name* is the name of the file. *directory* is None for rows in memory."""
        self._path: Path | None = Path(directory, name) if directory is not None else None
        self._connection: sqlite3.Connection | None = None
        self._lock: Lock = Lock()

    def read(
        self, kind: str, first: int, last: int, names: Sequence[bytes] | None = None
    ) -> list[tuple[int, bytes, bytes]]:
        if names is None:
            return self._call(lambda connection: connection.execute(_RANGE, (kind, first, last)).fetchall())
        keys = [(kind, number, name) for number in range(first, last + 1) for name in names]
        return self._call(lambda connection: [row for key in keys for row in connection.execute(_ONE, key)])

    def latest(self, kind: str, before: int, limit: int) -> list[tuple[int, bytes, bytes]]:
        return self._call(lambda connection: connection.execute(_LATEST, (kind, before, limit)).fetchall())

    def sizes(self, kind: str) -> dict[int, int]:
        return self._call(lambda connection: dict(connection.execute(_SIZES, (kind,)).fetchall()))

    def write(self, changes: Sequence[Change], trims: Mapping[str, int]) -> None:
        def write(connection: sqlite3.Connection) -> None:
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(_REMOVE, [change[:3] for change in changes if change[3] is None])
                connection.executemany(_PUT, [change for change in changes if change[3] is not None])
                connection.executemany(_TRIM, trims.items())

        self._call(write)

    def close(self) -> None:
        """Close the file, if it is open. The next call opens it again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _call(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of *function*, called with the connection; raise OSError if SQLite fails.

        A damaged file is renamed, and *function* is called with a new one.
        """
        with self._lock:
            try:
                try:
                    return function(self._opened())
                except sqlite3.DatabaseError as error:
                    if self._path is None or not _is_damage(error):
                        raise
                    self._set_aside(self._path, error)
                    return function(self._opened())
            except sqlite3.Error as error:
                raise OSError(f"{self._path or 'SQLite'}: {error}") from error

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            if self._path is not None:
                os.close(open_regular(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW))
            self._connection = _connected(str(self._path or ":memory:"))
        return self._connection

    def _set_aside(self, path: Path, error: sqlite3.DatabaseError) -> None:
        """Rename the damaged file *path* and its write-ahead log."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        aside = path.with_name(f"{path.name}.damaged")
        log.error("dashboard: %s is damaged (%s): renaming it to %s, and starting without it", path, error, aside)
        for suffix in ("", "-wal"):
            old = path.with_name(path.name + suffix)
            if old.exists():
                old.replace(aside.with_name(aside.name + suffix))


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    return isinstance(error, LaterVersion) or error.sqlite_errorcode in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _connected(path: str) -> sqlite3.Connection:
    """Return a connection to the file *path*, which has the table; raise sqlite3.Error."""
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False)
    try:
        [(version,)] = connection.execute("PRAGMA user_version")
        if version > VERSION:
            raise LaterVersion(f"its version is {version}, and this server reads versions up to {VERSION}")
        if not version:
            connection.execute("PRAGMA auto_vacuum = FULL")  # writes to the file; ignored after the other statements
        connection.executescript(_SETTINGS)
        if version < VERSION:
            connection.executescript(_SCHEMA)
    except sqlite3.Error:
        connection.close()
        raise
    return connection
