"""A PostgreSQL server for the tests, on a free port in its own directory, and a standby of it.

PostgreSQL refuses to run as root. For root it runs as the user `postgres`, which Debian's package creates.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psycopg

from tests.support.daemon import REPOSITORY, TIMEOUT
from tests.support.ports import free_ports

SETTINGS: Final = (
    "listen_addresses = '127.0.0.1'",
    "max_connections = 60",
    "shared_buffers = '32MB'",
    "synchronous_commit = on",
    "wal_level = replica",
)


def _copy(directory: Path, target: Path) -> None:
    """Copy *directory* with its owner and permissions, which PostgreSQL checks."""
    subprocess.run(["cp", "-a", str(directory), str(target)], check=True)


def _exists(pid: int) -> bool:
    with suppress(ChildProcessError):  # forking.py has made this process adopt the processes that PostgreSQL leaves
        os.waitpid(pid, os.WNOHANG)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Cluster:
    """A PostgreSQL server. As a context manager it is killed, and its directory removed, at the end of the block."""

    def __init__(self, *settings: str, upstream: Cluster | None = None, port: int = 0) -> None:
        """*settings* are lines of postgresql.conf. *port* 0 is any free port. With *upstream*, this is its standby."""
        self.directory: Path = Path(tempfile.mkdtemp(prefix="greenstalk-pg-", dir="/tmp"))
        self.port: int = port or free_ports(1)[0]
        self._data: Path = self.directory / "data"
        if os.geteuid() == 0:
            shutil.chown(self.directory, "postgres", "postgres")
        if upstream is None:
            self._create()
        else:
            self._run("pg_basebackup", "-D", str(self._data), "-d", upstream.admin_url, "-R", "-c", "fast", "--no-sync")
        socket_directory = f"unix_socket_directories = '{self.directory}'"
        with (self._data / "postgresql.conf").open("a") as file:
            file.write("\n".join([*SETTINGS, socket_directory, f"port = {self.port}", *settings, ""]))
        self.start()
        if upstream is None:
            with psycopg.connect(self.admin_url, autocommit=True) as connection:
                connection.execute("CREATE DATABASE greenstalk")

    def _create(self) -> None:
        """Create the directory of the server: a copy of one that initdb made before, which takes a tenth of its CPU."""
        made = REPOSITORY / "build" / f"postgresql-{bin_directory().parent.name}"
        made.parent.mkdir(exist_ok=True)
        with made.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                self._run("initdb", "-D", str(self._data), "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8")
                part = made.with_suffix(".part")
                shutil.rmtree(part, ignore_errors=True)
                _copy(self._data, part)
                part.rename(made)
                return
        _copy(made, self._data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """Kill the server, and remove its directory."""
        if self.is_running():
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def admin_url(self) -> str:
        """The URL of the database `postgres`, which always exists."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def url(self) -> str:
        """The URL of the database for journals."""
        return self.url_by(self.port)

    @staticmethod
    def url_by(*ports: int) -> str:
        """Return a URL with several servers for the database of journals; a client connects to the writable server."""
        hosts = ",".join([f"127.0.0.1:{port}" for port in ports])
        return f"postgresql://postgres@{hosts}/greenstalk"

    @property
    def log(self) -> str:
        """The log of PostgreSQL so far."""
        return (self.directory / "log").read_text(errors="replace")

    def start(self) -> None:
        """Start the server; return once it accepts connections."""
        self._run("pg_ctl", "-D", str(self._data), "-l", str(self.directory / "log"), "-w", "-t", "60", "start")

    def promote(self) -> None:
        """Promote the standby; return once it is a primary."""
        self._run("pg_ctl", "-D", str(self._data), "-w", "-t", "60", "promote")

    def stop(self) -> None:
        """Shut the server down; open connections are closed."""
        self._run("pg_ctl", "-D", str(self._data), "-m", "fast", "-w", "-t", "60", "stop")

    def freeze(self) -> None:
        """Stop every process, like a machine that hangs: connections stay open, and the kernel accepts new ones."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume after `freeze`."""
        self._signal(signal.SIGCONT)

    def has_synchronous_standby(self) -> bool:
        """Return whether a commit waits for a connected standby."""
        return self.ask("SELECT sync_state FROM pg_stat_replication") == [("sync",)]

    def _signal(self, number: signal.Signals) -> tuple[int, list[str]]:
        """Send a signal to every process; return the id of the main process, and those of its children."""
        main = self._pid()
        assert main is not None
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        os.kill(main, number)
        for pid in children:
            try:
                os.kill(int(pid), number)
            except ProcessLookupError:  # it has ended after its parent
                continue
        return main, children

    def kill(self) -> None:
        """Kill every process, like a machine that fails."""
        main, children = self._signal(signal.SIGKILL)
        deadline = time.monotonic() + TIMEOUT
        while any(_exists(pid) for pid in (main, *map(int, children))):
            assert time.monotonic() < deadline, "PostgreSQL is still running"
            time.sleep(0.01)
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def is_running(self) -> bool:
        """Return whether the main process exists."""
        pid = self._pid()
        return pid is not None and _exists(pid)

    def ask(self, query: str) -> list[tuple[object, ...]]:
        """Run *query* in the database for journals; return its rows."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(query.encode())
            return cursor.fetchall() if cursor.description is not None else []

    def _pid(self) -> int | None:
        try:
            return int((self._data / "postmaster.pid").read_text().split()[0])
        except FileNotFoundError:
            return None

    def _run(self, program: str, *arguments: str) -> None:
        as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
        done = subprocess.run(
            [*as_postgres, str(bin_directory() / program), *arguments],
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if program != "pg_ctl" else subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            check=False,
        )
        output = done.stdout.decode() if done.stdout else ""
        log = self.directory / "log"
        assert done.returncode == 0, f"{program}: {output}{log.read_text() if log.exists() else ''}"


def bin_directory() -> Path:
    """Return the program directory of the newest installed PostgreSQL, in Debian's layout."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    assert found, "PostgreSQL is needed: apt-get install postgresql"
    return found[-1].parent
