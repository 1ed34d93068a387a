"""Run a command for each job, as the handler of a worker of `greenstalk_client`.

The body of the job is the standard input of the command, as a file in memory: a command that does not read it blocks
nothing. The exit code determines what happens to the job.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import IO, Final

from greenstalk_client import Bury, Job, Release

EX_DATAERR: Final = 65
EX_TEMPFAIL: Final = 75
KILL_DELAY: Final = 10.0
"""Seconds between SIGTERM and SIGKILL for a command that exceeds its time limit."""

VARIABLES: Final = {"TUBE": "tube", "PRI": "pri", "TTR": "ttr", "ATTEMPT": "attempts"}
"""Names of the variables without their prefix GREENSTALK_JOB_, and the keys of the job's `meta`."""

log = logging.getLogger("greenstalkctl")


@dataclass(frozen=True, slots=True)
class Retries:
    """The treatment of failed jobs.

    attempts            number of attempts before the job is buried; 0 sets no limit.
    backoff             delay in seconds after the first attempt; it doubles with each attempt, up to *max_backoff*.
    buries_failures     whether exit codes other than EX_TEMPFAIL bury the job at the first attempt.
    """

    attempts: int
    backoff: float
    max_backoff: float
    buries_failures: bool = False

    def refuse(self, code: int, why: str, attempt: int) -> Release | Bury:
        """Return the exception that ends a job whose command has failed with *code* at this *attempt*."""
        if code == EX_DATAERR or (self.buries_failures and code != EX_TEMPFAIL):
            return Bury(why)
        if self.attempts and attempt >= self.attempts:
            return Bury(f"{why} on attempt {attempt} of {self.attempts}")
        return Release(min(self.backoff * 2 ** min(attempt - 1, 32), self.max_backoff))


class Runner:
    """Runs *command* for each job, for at most *time_limit* seconds, in a process group of its own."""

    def __init__(self, command: Sequence[str], retries: Retries, time_limit: float | None) -> None:
        self._command = command
        self._retries = retries
        self._time_limit = time_limit
        self._running = set[subprocess.Popen[bytes]]()
        self._is_ending = False
        self._lock = threading.Lock()
        self.failed = 0
        """Number of jobs whose command has failed; changed with the lock."""

    def __call__(self, job: Job[bytes]) -> None:
        """Run the command for *job*; raise Release or Bury if it fails."""
        start, attempt = monotonic(), job.meta["attempts"]
        code, why = self._run(job)
        if code == 0:
            log.info("job %d of %s is done in %.1f s", job.id, job.meta["tube"], monotonic() - start)
            return
        if self._is_ending:
            log.info("job %d of %s is released: its command was ended", job.id, job.meta["tube"])
            raise Release
        with self._lock:
            self.failed += 1
        order = self._retries.refuse(code, why, attempt)
        if isinstance(order, Release):
            log.warning(
                "job %d of %s failed on attempt %d: %s; it runs again in %g s",
                job.id, job.meta["tube"], attempt, why, order.delay,
            )  # fmt: skip
        raise order

    def end(self, number: signal.Signals) -> None:
        """Send the signal *number* to the running commands; their jobs are released. Signal handlers may call it."""
        self._is_ending = True
        for process in tuple(self._running):
            _send(process, number)

    def _run(self, job: Job[bytes]) -> tuple[int, str]:
        """Run the command; return its exit code, and the reason of a failure."""
        try:
            process = self._start(job)
        except OSError as error:
            return -1, f"cannot run {self._command[0]}: {error.strerror}"
        self._running.add(process)
        if self._is_ending:  # the signal came before the process was in the set
            _send(process, signal.SIGTERM)
        try:
            return _outcome(process.wait(self._time_limit))
        except subprocess.TimeoutExpired:
            return _terminate(process), f"the command took more than {self._time_limit:g} s"
        finally:
            self._running.discard(process)

    def _start(self, job: Job[bytes]) -> subprocess.Popen[bytes]:
        facts = {f"GREENSTALK_JOB_{name}": _text(job.meta[key]) for name, key in VARIABLES.items()}  # type: ignore[literal-required]
        environ = os.environ | facts | {"GREENSTALK_JOB_ID": str(job.id)}
        with _file_in_memory() as body:
            body.write(job.body)
            body.seek(0)
            return subprocess.Popen(self._command, stdin=body, env=environ, process_group=0)  # noqa: S603


def _file_in_memory() -> IO[bytes]:
    """Return an empty file in memory. Only Linux has such files; on other systems, a temporary file without a name."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("job"), "w+b")
    return tempfile.TemporaryFile()


def _text(value: object) -> str:
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _outcome(code: int) -> tuple[int, str]:
    if code >= 0:
        return code, f"exit code {code}"
    try:
        return code, f"signal {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal without a name
        return code, f"signal {-code}"


def _terminate(process: subprocess.Popen[bytes]) -> int:
    """End the process group; return a code that is not 0."""
    _send(process, signal.SIGTERM)
    try:
        process.wait(KILL_DELAY)
    except subprocess.TimeoutExpired:
        _send(process, signal.SIGKILL)
        process.wait()
    return process.returncode or -1


def _send(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to the process group, unless it has ended, or belongs to another user, as with `sudo`."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
