"""How a command ends: its exit codes, and the errors that carry one. An error is one line that says what to do."""

from __future__ import annotations

from typing import Final

EXIT_DONE: Final = 0
EXIT_NOTHING: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3
EXIT_REFUSED: Final = 4
EXIT_INTERRUPTED: Final = 130


class Failure(Exception):
    """The command cannot do what it was asked; str() is for whoever asked, `exit_code` for the shell."""

    exit_code: int


class Nothing(Failure):
    """There is no such tube or job, or nothing was done."""

    exit_code = EXIT_NOTHING


class Misuse(Failure):
    """The command line asks for what makes no sense here."""

    exit_code = EXIT_USAGE


class Unreachable(Failure):
    """The server cannot be connected to, has gone away, or is none."""

    exit_code = EXIT_UNREACHABLE


class Refused(Failure):
    """The server answered with an error; `word` is the protocol's, such as JOB_TOO_BIG, or HTTP's, such as 503."""

    exit_code = EXIT_REFUSED

    def __init__(self, word: str, message: str) -> None:
        super().__init__(message)
        self.word = word


class Interrupted(Failure):
    """Ctrl-C, or SIGTERM: what was in hand is finished, and the rest left."""

    exit_code = EXIT_INTERRUPTED
