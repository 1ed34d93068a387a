"""The store of a dashboard, without a dashboard."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from greenstalk_server.web.store.sqlite import NAME, SqliteRows
from greenstalk_server.web.store.store import Store


def local_store(directory: Path | None = None) -> Store:
    """Return a store in the file of *directory*, or in memory. It is not restored."""
    return Store(SqliteRows(str(directory) if directory is not None else None), is_kept=directory is not None)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Let another program lock the file of *directory*, so that writes fail after BUSY_TIMEOUT."""
    with closing(sqlite3.connect(directory / NAME, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")
