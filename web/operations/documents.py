"""The dashboard's small documents: files that are read at the start and replaced as a whole. All functions block."""

from __future__ import annotations

import logging
import os
import re
from math import isfinite
from pathlib import Path
from typing import Final

from greenstalk_server.journal.files import open_regular, sync_directory

log = logging.getLogger(__name__)

MAX_TIME: Final = 2**63
"""Times and numbers in documents are below this: nanoseconds since the Unix epoch until the year 2262."""


def is_storable(value: object) -> bool:
    """Return whether *value*, of a document, can be shown: an integer from 0 to MAX_TIME, a finite number, or text."""
    if isinstance(value, int):
        return 0 <= value < MAX_TIME
    if isinstance(value, float):
        return isfinite(value)
    return not isinstance(value, str) or _LONE_SURROGATE.search(value) is None


_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")
"""A lone surrogate: JSON may contain it, but a response may not."""


def read_document(path: Path, most: int) -> bytes:
    """Return the content of the regular file *path*; raise OSError, or ValueError if it has more than *most* bytes."""
    with os.fdopen(open_regular(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        document = file.read(most + 1)
    if len(document) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return document


def replace_document(path: Path, document: bytes) -> None:
    """Atomically replace the content of *path* with *document*, and sync; raise OSError."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)  # may be left over from a crash
    with os.fdopen(open_regular(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        file.write(document)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync_directory(path.parent)


def set_aside(path: Path, why: Exception, lost: str) -> None:
    """Rename the damaged file *path*, and log the reason *why* and the consequence *lost*; raise OSError."""
    aside = path.with_name(f"{path.name}.damaged")
    log.error("dashboard: %s is damaged (%s): renaming it to %s; %s", path, why, aside, lost)
    path.replace(aside)
