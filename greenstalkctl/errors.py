"""Exit codes, and the exceptions that carry one. The message of an exception is one line that says what to do."""

from __future__ import annotations

from typing import Final

EXIT_DONE: Final = 0
EXIT_NO_RESULT: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3
EXIT_REFUSED: Final = 4
EXIT_INTERRUPTED: Final = 130


class CommandError(Exception):
    """The command failed; str() is the message to the user, `exit_code` the status of the process."""

    exit_code: int


class NoResult(CommandError):
    """There is no such tube or job, or nothing was changed."""

    exit_code = EXIT_NO_RESULT


class InvalidUsage(CommandError):
    """The options, arguments or input are invalid for this command, or cannot be combined."""

    exit_code = EXIT_USAGE


class Unreachable(CommandError):
    """No connection to the server, the connection was lost, or it is not a beanstalk server or its API."""

    exit_code = EXIT_UNREACHABLE


class Refused(CommandError):
    """The server returned an error; `word` is a reply of the protocol, such as JOB_TOO_BIG, or an HTTP status."""

    exit_code = EXIT_REFUSED

    def __init__(self, word: str, message: str) -> None:
        super().__init__(message)
        self.word = word


class Interrupted(CommandError):
    """Ctrl-C or SIGTERM ended the command after the current job; the rest is unchanged."""

    exit_code = EXIT_INTERRUPTED
