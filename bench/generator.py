"""Run the load generator as a child process, one step at a time."""

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from .cpus import started_on
from .errors import BenchError

_SETUP_SECONDS: Final = 300.0  # time to put a backlog and to finish the commands in flight, even on a busy machine


@dataclass(frozen=True)
class Outcome:
    """The measurement of the load generator."""

    ops: int  # number of commands answered
    seconds: float
    load_cpu_seconds: float
    p50_us: float
    p99_us: float
    p999_us: float


class Generator:
    """A load generator whose connections are open."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[str]) -> None:
        self._process = process
        self._errors = errors

    def wait_until_ready(self) -> None:
        if self._next_line() != "ready\n":
            raise BenchError("load generator: expected its ready line")

    def measure(self) -> Outcome:
        """Run the measured part; the connections stay open."""
        self._continue()
        figures = json.loads(self._next_line())
        return Outcome(**{name: figures[name] for name in Outcome.__annotations__})

    def finish(self) -> None:
        """Close the connections; raise BenchError if any of them failed."""
        self._continue()
        if self._process.wait() != 0:
            raise BenchError(self._error_message())

    def _continue(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise BenchError(self._error_message()) from error

    def _next_line(self) -> str:
        """Return the next line of output. The load generator has a deadline, so this always returns."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchError(self._error_message())
        return line

    def _error_message(self) -> str:
        status = self._process.wait()
        self._errors.seek(0)
        return self._errors.read().strip() or f"load generator ended with status {status}"


@contextmanager
def running_generator(
    program: Path, port: int, arguments: list[str], seconds: float, cpu: int | None
) -> Iterator[Generator]:
    """Start a load generator against *port* on loopback, ready to measure for *seconds*."""
    argv = [str(program), "--port", str(port), "--stepwise", *arguments]
    argv += ["--deadline", str(seconds + _SETUP_SECONDS)]
    with tempfile.TemporaryFile("w+") as errors:
        with started_on(cpu):
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        try:
            generator = Generator(process, errors)
            generator.wait_until_ready()
            yield generator
        finally:
            process.kill()
            process.communicate()
