"""The lock on a journal directory: one server at a time, this one or beanstalkd.

It is an fcntl lock on DIR/lock, the same lock that beanstalkd takes, so neither server opens a directory that the
other one uses. The kernel releases it when the process exits.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Final

from greenstalk_server.journal.files import FILE_MODE
from greenstalk_server.runtime.exit_codes import EXIT_JOURNAL, StartError
from greenstalk_server.runtime.system import lock_holder

LOCK_NAME: Final = "lock"


class DirectoryLock:
    """The lock on one directory, held from construction to close().

    The process must not open the lock file a second time: closing any descriptor of it releases the lock (fcntl(2)).
    """

    __slots__ = ("_fd", "directory")

    def __init__(self, directory: str) -> None:
        """Lock *directory*; raise StartError if it is missing, not writable, or locked by another process."""
        self.directory = directory
        path = Path(directory, LOCK_NAME)
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise directory_error(
                    directory, f"the file {LOCK_NAME!r} in it is a symbolic link; remove it"
                ) from error
            raise directory_error(directory, f"{error.strerror}; it must be a writable directory") from error
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            is_held = isinstance(error, BlockingIOError)
            holder = _holder(self._fd) or "another process"
            reason = f"in use by {holder}; only one server may use a directory at a time" if is_held else error.strerror
            os.close(self._fd)
            raise directory_error(directory, reason) from error

    def close(self) -> None:
        """Release the lock."""
        os.close(self._fd)


def holder_of(directory: str) -> str:
    """Return a phrase for the process that has locked *directory*, empty if none has; change nothing."""
    try:
        fd = os.open(Path(directory, LOCK_NAME), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"an unknown process, or none (cannot read the lock file: {error.strerror})"
    try:
        return _holder(fd)
    finally:
        os.close(fd)


def _holder(fd: int) -> str:
    """Return a phrase for the process that holds a lock on *fd*, empty if none does."""
    pid = lock_holder(fd)
    if pid == 0:
        return ""
    return f"process {pid}" if pid > 0 else "another process"


def directory_error(directory: str, reason: str | None) -> StartError:
    """Return the StartError for a *directory* that cannot be used."""
    return StartError(f"-b {directory}: {reason}", EXIT_JOURNAL)
