"""The dashboard's small documents: files that are read at the start and replaced as a whole."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Final, TypeVar

from gevent.lock import BoundedSemaphore

from greenstalk_server.journal.files import open_regular, sync_directory
from greenstalk_server.runtime.threads import run_in_thread

log = logging.getLogger(__name__)

T = TypeVar("T")

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


class DocumentFile:
    """One document. There is one write at a time, and the last state wins.

    is_kept         whether the document survives a restart.
    trouble         why the file differs from the state in memory; empty if it does not.
    """

    def __init__(self, directory: str | None, name: str, message: str) -> None:
        """*directory* is None to write no file. *message* is the log line about a failure, with a `%s` for it."""
        self.is_kept: bool = directory is not None
        self.trouble: str = ""
        self._name: str = name
        self._path: Path = Path(directory or "", name)
        self._message: str = message
        self._changes: int = 0
        self._saved: int = 0
        self._writing: BoundedSemaphore = BoundedSemaphore(1)

    @property
    def is_saved(self) -> bool:
        """Whether the file has all changes, or no file is written."""
        return self._saved == self._changes or not self.is_kept

    def note_change(self) -> None:
        """Note that the state in memory has changed. Does not switch."""
        self._changes += 1

    def load(self, parse: Callable[[bytes], T], most: int, lost: str) -> T | None:
        """Return what *parse* returns for the file; None if there is no usable file. Blocks.

        A file that has more than *most* bytes, or that *parse* cannot read, is renamed; *lost* is the consequence.
        """
        if not self.is_kept:
            return None
        try:
            return parse(read_document(self._path, most))
        except FileNotFoundError:
            pass
        except OSError as error:
            self._report(f"{self._name} cannot be read: {error}")
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            try:
                set_aside(self._path, error, lost)
            except OSError as failure:
                self._report(f"{self._name} cannot be moved: {failure}")
        return None

    def save(self, snapshot: Callable[[], Callable[[], bytes]]) -> None:
        """Write the present state, or set `trouble`. Switches.

        *snapshot* copies the state, and may switch. It returns a function that encodes the copy in a native thread.
        """
        wanted = self._changes
        if not self.is_kept:
            return
        with self._writing:
            if self._saved >= wanted and not self.trouble:
                return  # another call has written a later state
            changes, encode = self._changes, snapshot()
            try:
                run_in_thread(_replace, self._path, encode)
            except OSError as error:
                self._report(f"{self._name} cannot be written: {error}")
            else:
                self._saved, self.trouble = changes, ""

    def _report(self, trouble: str) -> None:
        """Set `trouble`, and log it if it is new."""
        if trouble != self.trouble:
            log.error(self._message, trouble)
        self.trouble = trouble


def _replace(path: Path, encode: Callable[[], bytes]) -> None:
    replace_document(path, encode())


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
