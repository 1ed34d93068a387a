"""The load generator as a child process, driven step by step."""

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

_SETUP_SECONDS: Final = 300.0  # to fill a backlog, and to answer what is in flight, on a busy machine too


@dataclass(frozen=True)
class Outcome:
    """What the load generator measured."""

    ops: int  # commands answered
    seconds: float
    load_cpu_seconds: float
    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float


class Generator:
    """A load generator that stands ready, its connections open."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[str]) -> None:
        self._process = process
        self._errors = errors

    def await_ready(self) -> None:
        if self._next_line() != "ready\n":
            raise BenchError("load generator: expected its ready line")

    def measure(self) -> Outcome:
        """Run the measured part; the connections stay open."""
        self._continue()
        figures = json.loads(self._next_line())
        return Outcome(**{name: figures[name] for name in Outcome.__annotations__})

    def finish(self) -> None:
        """Close the connections; fail if anything was wrong with them."""
        self._continue()
        if self._process.wait() != 0:
            raise BenchError(self._complaint())

    def _continue(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise BenchError(self._complaint()) from error

    def _next_line(self) -> str:
        """Its next line of output; it comes, or the process ends: it has a deadline."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchError(self._complaint())
        return line

    def _complaint(self) -> str:
        status = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().strip()
        return said or f"load generator ended with status {status}"


@contextmanager
def running_generator(
    program: Path, port: int, arguments: list[str], seconds: float, cpu: int | None
) -> Iterator[Generator]:
    """A load generator against *port* on loopback, ready to measure for *seconds*."""
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
            generator.await_ready()
            yield generator
        finally:
            process.kill()
            process.communicate()
