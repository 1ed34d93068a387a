"""Exit codes, the same as beanstalkd's where beanstalkd has one, and the exception StartError."""

from __future__ import annotations

from typing import Final

EXIT_OK: Final = 0
EXIT_DAMAGED: Final = 1
"""The journal to check, export or import is damaged; returned by `journal` only."""

EXIT_USAGE: Final = 5
EXIT_JOURNAL: Final = 10
EXIT_NO_SUCH_USER: Final = 33
EXIT_PRIVILEGES: Final = 34
EXIT_BUILD: Final = 70
"""The compiled core of this installation does not fit its sources or cannot be loaded, or the system is neither Linux
nor macOS."""

EXIT_INTERNAL: Final = 75
"""A service of the running server has failed (see runtime.supervisor); another start may succeed."""

EXIT_LISTEN: Final = 111

MEMORY_ADVICE: Final = "free some, or raise the limit of this process (ulimit -v, MemoryMax=)"
"""The end of a message about too little memory."""


class StartError(Exception):
    """The server cannot start, or the command cannot be run; str() is the message to the operator."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
