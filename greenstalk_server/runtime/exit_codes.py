"""Why the command ends: beanstalkd's exit codes and ours, and the error that carries one from where a start fails."""

from __future__ import annotations

from typing import Final

EXIT_OK: Final = 0
EXIT_DAMAGED: Final = 1
"""Of `journal` alone: what was to be checked, exported or imported is damaged."""

EXIT_USAGE: Final = 5
EXIT_BINLOG: Final = 10
EXIT_NO_SUCH_USER: Final = 33
EXIT_PRIVILEGES: Final = 34
EXIT_LISTEN: Final = 111

MORE_MEMORY: Final = "free some, or raise the limit of this process (ulimit -v, MemoryMax=)"
"""What to do where memory does not suffice."""


class StartError(Exception):
    """The daemon cannot start as asked: str() is for the operator, `exit_code` for whoever started it."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
