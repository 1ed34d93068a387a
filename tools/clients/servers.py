"""This server or beanstalkd on one port and with one journal, which a test kills and starts again."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import greenstalk

from tests.support import forking
from tests.support.daemon import TIMEOUT
from tests.support.peer import eventually
from tests.support.ports import free_ports
from tests.support.processes import end
from tests.support.servers import REPOSITORY, ours, peer

KINDS = {"greenstalk": ours, "beanstalkd": peer}


class QueueServer:
    """A server that keeps its jobs when it is killed."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.port = free_ports(1)[0]
        self._command = KINDS[kind]().arguments(self.port, ("-b", str(directory), "-f", "0"))
        self._log = (directory / "server.log").open("ab")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            end(self._process)
        self._log.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self._process = forking.Process(self._command, cwd=REPOSITORY, stdout=self._log, stderr=self._log)
        eventually(self._serves, "the server serves")

    def kill(self) -> None:
        """End the server by SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(TIMEOUT)

    def stats(self, tube: str = "") -> dict[str, Any]:
        """Return the statistics of *tube*, or of the server; empty if the tube does not exist."""
        with greenstalk.Client(("127.0.0.1", self.port)) as queue:
            try:
                found: Any = queue.stats_tube(tube) if tube else queue.stats()
            except greenstalk.NotFoundError:
                return {}
        return dict(found)

    def counts(self, tube: str) -> dict[str, int]:
        """Return the number of jobs in each state in which *tube* has any."""
        found = self.stats(tube)
        counts = {state: int(found.get(f"current-jobs-{state}", 0)) for state in _STATES}
        return {state: count for state, count in counts.items() if count}

    def client(self, tube: str) -> greenstalk.Client[bytes]:
        return greenstalk.Client(("127.0.0.1", self.port), encoding=None, use=tube, watch=tube)

    def _serves(self) -> bool:
        try:
            return bool(self.stats())
        except OSError:
            return False


_STATES = ("ready", "reserved", "delayed", "buried")
