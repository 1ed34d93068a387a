"""Room for the dashboard's rows on the disk of the journal."""

from __future__ import annotations

import os
from typing import Final

from greenstalk_server.core.broker import Broker
from greenstalk_server.web.store.sqlite import MAX_WAL

DISK_FULL: Final = "the disk is full, and the rest of it is reserved for the journal"
LITTLE_SPACE: Final = "the disk has too little free space beyond what the journal needs"


def room_refusal(directory: str, broker: Broker, size: int) -> str:
    """Return why *size* bytes of rows must not be written to *directory* now; empty if they may be.

    The journal of *broker* is on the same disk, and needs a part of the room. A write needs twice its size: SQLite
    writes the rows to the write-ahead log and then to the file, together with up to MAX_WAL bytes of earlier writes.
    """
    stats = broker.journal.stats()
    if stats.is_full:
        return DISK_FULL
    try:
        disk = os.statvfs(directory)
    except OSError as error:
        return str(error)
    return LITTLE_SPACE if disk.f_bavail * disk.f_frsize - 2 * size - MAX_WAL < stats.bytes_reserved else ""


def no_refusal(size: int) -> str:
    """Return an empty text: the rows are in memory, or in a database, which reports an error if it has no room."""
    return ""
