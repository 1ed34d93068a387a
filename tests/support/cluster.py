"""A PostgreSQL server of the tests' own, on a free port, in a directory of its own; and a standby of it.

root may not run one: it does so as the user `postgres`, which Debian's package makes.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psycopg

from tests.support.daemon import PATIENCE

SETTINGS: Final = (
    "listen_addresses = '127.0.0.1'",
    "max_connections = 60",
    "shared_buffers = '32MB'",
    "synchronous_commit = on",
    "wal_level = replica",
)


class Cluster:
    """One server; as a context manager it ends, and its directory goes, with the block."""

    def __init__(self, *settings: str, upstream: Cluster | None = None, port: int = 0) -> None:
        """*settings* are lines of its configuration file; with *upstream* it is a standby of that. 0 is any *port*."""
        self.directory: Path = Path(tempfile.mkdtemp(prefix="greenstalk-pg-", dir="/tmp"))
        self.port: int = port or _free_port()
        self._data: Path = self.directory / "data"
        if os.geteuid() == 0:
            shutil.chown(self.directory, "postgres", "postgres")
        if upstream is None:
            self._run("initdb", "-D", str(self._data), "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8")
        else:
            self._run("pg_basebackup", "-D", str(self._data), "-d", upstream.admin_url, "-R", "-c", "fast", "--no-sync")
        socket_directory = f"unix_socket_directories = '{self.directory}'"
        with (self._data / "postgresql.conf").open("a") as file:
            file.write("\n".join([*SETTINGS, socket_directory, f"port = {self.port}", *settings, ""]))
        self.start()
        if upstream is None:
            with psycopg.connect(self.admin_url, autocommit=True) as connection:
                connection.execute("CREATE DATABASE greenstalk")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """End it, and remove its directory."""
        if self.is_running():
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def admin_url(self) -> str:
        """The address of a database that is always there."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def url(self) -> str:
        """The address of the database for journals."""
        return self.url_by(self.port)

    @staticmethod
    def url_by(*ports: int) -> str:
        """The same by other *ports*, of which the one that can be written to counts."""
        hosts = ",".join([f"127.0.0.1:{port}" for port in ports])
        return f"postgresql://postgres@{hosts}/greenstalk"

    @property
    def log(self) -> str:
        """The log of PostgreSQL."""
        return (self.directory / "log").read_text(errors="replace")

    def start(self) -> None:
        """Start it; return once it serves."""
        self._run("pg_ctl", "-D", str(self._data), "-l", str(self.directory / "log"), "-w", "-t", "60", "start")

    def promote(self) -> None:
        """Have a standby be a primary; return once it is one."""
        self._run("pg_ctl", "-D", str(self._data), "-w", "-t", "60", "promote")

    def stop(self) -> None:
        """Stop it in order, connections or not."""
        self._run("pg_ctl", "-D", str(self._data), "-m", "fast", "-w", "-t", "60", "stop")

    def freeze(self) -> None:
        """Stop every process of it, as a machine that hangs would: connections stay open, and new ones are taken."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Have it go on after `freeze`."""
        self._signal(signal.SIGCONT)

    def has_synchronous_standby(self) -> bool:
        """Whether a commit waits for a standby that is there."""
        return self.ask("SELECT sync_state FROM pg_stat_replication") == [("sync",)]

    def _signal(self, number: signal.Signals) -> tuple[int, list[str]]:
        """Send *number* to every process of it, all at once; return their ids, the first process's apart."""
        main = self._pid()
        assert main is not None
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        os.kill(main, number)
        for pid in children:
            try:
                os.kill(int(pid), number)
            except ProcessLookupError:  # it has noticed
                continue
        return main, children

    def kill(self) -> None:
        """Kill every process of it, all at once, as a machine that fails would."""
        main, children = self._signal(signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE
        while any(Path(f"/proc/{pid}/stat").exists() for pid in (main, *children)):
            assert time.monotonic() < deadline, "PostgreSQL does not end"
            time.sleep(0.01)
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def is_running(self) -> bool:
        """Whether there is a process of it."""
        pid = self._pid()
        return pid is not None and Path(f"/proc/{pid}").exists()

    def ask(self, query: str) -> list[tuple[object, ...]]:
        """The rows of *query* in the database for journals."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(query.encode())
            return cursor.fetchall() if cursor.description is not None else []

    def _pid(self) -> int | None:
        try:
            return int((self._data / "postmaster.pid").read_text().split()[0])
        except FileNotFoundError:
            return None

    def _run(self, program: str, *arguments: str) -> None:
        became = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
        done = subprocess.run(
            [*became, str(bin_directory() / program), *arguments],
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if program != "pg_ctl" else subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            check=False,
        )
        said = done.stdout.decode() if done.stdout else ""
        log = self.directory / "log"
        assert done.returncode == 0, f"{program}: {said}{log.read_text() if log.exists() else ''}"


def bin_directory() -> Path:
    """Return the directory of the programs of the newest installed PostgreSQL, as Debian names it."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    assert found, "PostgreSQL is needed: apt-get install postgresql"
    return found[-1].parent


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port
