"""`journal export --keep N`: a dated file in a directory of exports, of which only the newest are kept.

Invariant: only files that an earlier export wrote are removed: their names and their first lines identify them. Nothing
is removed unless the new export is whole and the journal is sound. The new export is kept, even if a wrong clock has
given a later time to another export.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from greenstalk_server.journal.archive import FORMAT
from greenstalk_server.runtime.exit_codes import EXIT_JOURNAL, EXIT_OK, StartError

NAME: Final = "greenstalk-%Y%m%dT%H%M%SZ.jsonl"
_NAMES: Final = re.compile(r"greenstalk-\d{8}T\d{6}Z\.jsonl")
_PARTS: Final = re.compile(_NAMES.pattern + r"\.part")
_HEAD: Final = b'{"type":"head","format":"%b"' % FORMAT.encode()


def export_dated(directory: str, keep: int, export: Callable[[str], int]) -> int:
    """Call *export* with the path of a new file in *directory*; return its exit code; raise StartError.

    If the export is whole and the journal is sound, remove all exports in *directory* except the newest *keep*.
    """
    try:
        with _locked(directory):
            for part in _files(directory, _PARTS):
                part.unlink()  # left by an export that was killed
            new = Path(directory) / datetime.now(UTC).strftime(NAME)
            code = export(str(new))
            if code == EXIT_OK:
                others = [file for file in _files(directory, _NAMES) if file != new and _is_export(file)]
                for old in others[: max(0, len(others) + 1 - keep)]:
                    old.unlink()
    except OSError as error:
        message = f"journal export: {error.filename or directory}: {error.strerror}"
        raise StartError(message, EXIT_JOURNAL) from error
    return code


@contextmanager
def _locked(directory: str) -> Iterator[None]:
    """Lock *directory* against other exports; raise StartError if one is running, or OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message = f"journal export: another export into {directory} is running; nothing was exported"
            raise StartError(message, EXIT_JOURNAL) from error
        yield
    finally:
        os.close(descriptor)


def _files(directory: str, names: re.Pattern[str]) -> list[Path]:
    """Return the regular files whose names match *names*, the oldest first."""
    paths = sorted(path for path in Path(directory).iterdir() if names.fullmatch(path.name))
    return [path for path in paths if stat.S_ISREG(path.lstat().st_mode)]


def _is_export(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_HEAD)) == _HEAD
