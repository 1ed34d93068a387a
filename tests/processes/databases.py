"""The database of a cluster: one PostgreSQL server, or a primary and a standby that Patroni promotes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import psutil
import psycopg

from tests.support.cluster import SETTINGS, Cluster, bin_directory
from tests.support.nodes import wait_until
from tests.support.ports import free_ports
from tests.support.processes import end

TTL: Final = 20
"""Seconds after which Patroni promotes the standby of a primary that has failed; the least that it allows."""

OUTAGE: Final = (0.0, 5.0)

Fault = tuple[Callable[[], AbstractContextManager[None]], tuple[float, float]]
"""A fault that ends with its context, and for how many seconds it lasts at least, and at most."""


class Database(Protocol):
    """A database in which servers keep a queue.

    ports   of its PostgreSQL servers, of which one is writable.
    faults  by name.
    """

    @property
    def ports(self) -> Sequence[int]: ...
    @property
    def faults(self) -> Mapping[str, Fault]: ...
    def ask(self, query: str) -> list[tuple[object, ...]]: ...


class Single:
    """One PostgreSQL server."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster: Cluster = cluster
        self.ports: Sequence[int] = [cluster.port]
        self.faults: Mapping[str, Fault] = {
            "restart of the database": (self._stop, OUTAGE),
            "crash of the database": (self._kill, OUTAGE),
        }

    def ask(self, query: str) -> list[tuple[object, ...]]:
        """Run *query*; return its rows."""
        return self._cluster.ask(query)

    @contextmanager
    def _stop(self) -> Iterator[None]:
        self._cluster.stop()
        yield
        self._cluster.start()

    @contextmanager
    def _kill(self) -> Iterator[None]:
        self._cluster.kill()
        yield
        self._cluster.start()


class Patroni:
    """A primary and a synchronous standby on this machine, with an etcd of one node. Ends with its context."""

    def __init__(self) -> None:
        self._etcd_port, etcd_peer_port = free_ports(2)
        self.ports: Sequence[int] = free_ports(2)
        self._api_ports: Sequence[int] = free_ports(2)
        self.faults: Mapping[str, Fault] = {
            "switchover of the database": (self._switch_over, (0.0, 0.0)),
            "failover of the database": (self._fail_over, (0.0, 0.0)),
        }
        self._directory: Path = Path(tempfile.mkdtemp(prefix="greenstalk-patroni-", dir="/tmp"))
        if os.geteuid() == 0:
            shutil.chown(self._directory, "postgres", "postgres")
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{etcd_peer_port}"
        urls = {"listen-client-urls": client, "advertise-client-urls": client, "listen-peer-urls": peer}
        urls |= {"initial-advertise-peer-urls": peer, "initial-cluster": f"default={peer}"}
        options = [f"--{name}={value}" for name, value in urls.items()]
        self._etcd: subprocess.Popen[bytes] = self._run("etcd", "--data-dir", str(self._directory / "etcd"), *options)
        for number in range(2):
            self._start(number)
        self._settled()
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute("CREATE DATABASE greenstalk")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in range(2):
            self._kill(number)
        end(self._etcd)
        shutil.rmtree(self._directory, ignore_errors=True)

    def ask(self, query: str) -> list[tuple[object, ...]]:
        """Run *query* on the primary; return its rows."""
        with psycopg.connect(self._url("greenstalk"), autocommit=True) as connection:
            return connection.execute(query.encode()).fetchall()

    def _url(self, database: str) -> str:
        hosts = ",".join([f"127.0.0.1:{port}" for port in self.ports])
        return f"postgresql://postgres@{hosts}/{database}?target_session_attrs=read-write"

    @property
    def log(self) -> str:
        """The ends of all logs."""
        return "\n".join([file.read_text(errors="replace")[-3000:] for file in self._directory.glob("*.log")])

    def _start(self, number: int) -> None:
        file = self._directory / f"{number}.yml"
        file.write_text(json.dumps(self._configuration(number)))  # which is YAML too
        self._processes[number] = self._run("patroni", str(file))

    def _run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
        with (self._directory / f"{program}-{Path(arguments[-1]).stem}.log").open("ab") as log:
            return subprocess.Popen(
                [*as_postgres, program, *arguments],
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _configuration(self, number: int) -> dict[str, Any]:
        parameters = dict(line.split(" = ") for line in SETTINGS if "listen_addresses" not in line)
        return {
            "scope": "rounds",
            "name": f"database-{number}",
            "restapi": {"listen": f"127.0.0.1:{self._api_ports[number]}"},
            "etcd3": {"host": f"127.0.0.1:{self._etcd_port}"},
            "bootstrap": {
                "dcs": {"ttl": TTL, "loop_wait": 1, "retry_timeout": 3, "synchronous_mode": True},
                "initdb": [{"auth": "trust"}, {"encoding": "UTF8"}, "no-sync"],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{self.ports[number]}",
                "data_dir": str(self._directory / f"data-{number}"),
                "bin_dir": str(bin_directory()),
                "pgpass": str(self._directory / f"pgpass-{number}"),
                "use_pg_rewind": True,
                "pg_hba": ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"],
                "authentication": {name: {"username": "postgres"} for name in ("superuser", "replication", "rewind")},
                "parameters": parameters | {"unix_socket_directories": str(self._directory)},
            },
        }

    def _members(self) -> dict[str, str]:
        """Return the role of each server that runs, by its name."""
        for port in self._api_ports:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/cluster", timeout=5) as page:
                    members = json.load(page)["members"]
            except OSError:
                continue
            return {each["name"]: each["role"] for each in members if each["state"] in ("running", "streaming")}
        return {}

    def _number_of(self, role: str) -> int | None:
        """Return the number of the server in *role*; None if there is none."""
        found = [int(name[-1]) for name, its in self._members().items() if its == role]
        return found[0] if found else None

    def _kill(self, number: int) -> None:
        """Kill Patroni and PostgreSQL, as when their machine fails."""
        process = self._processes.pop(number, None)
        if process is None:
            return
        data = str(self._directory / f"data-{number}")
        postgres = [each for each in psutil.process_iter(["cwd"]) if each.info["cwd"] == data]
        for each in (process, *postgres):
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait(60)
        psutil.wait_procs(postgres, 60)

    # Faults

    @contextmanager
    def _switch_over(self) -> Iterator[None]:
        """Have the standby take over from the primary, which becomes the standby."""
        leader, standby = self._settled()
        body = json.dumps({"leader": f"database-{leader}", "candidate": f"database-{standby}"}).encode()
        url = f"http://127.0.0.1:{self._api_ports[leader]}/switchover"
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=60) as page:
            page.read()
        yield
        wait_until(self._is_writable, lambda: self.log)

    @contextmanager
    def _fail_over(self) -> Iterator[None]:
        """Kill the primary; when the standby has taken over, start it again."""
        leader, standby = self._settled()
        self._kill(leader)
        yield
        wait_until(lambda: self._number_of("leader") == standby, lambda: self.log)
        self._start(leader)
        wait_until(self._is_writable, lambda: self.log)

    def _is_writable(self) -> bool:
        with suppress(psycopg.OperationalError):
            return bool(self.ask("SELECT 1"))
        return False

    def _settled(self) -> tuple[int, int]:
        """Wait until there is a standby that has each commit; return the numbers of the primary and the standby."""
        found: list[int | None] = []

        def is_settled() -> bool:
            found[:] = self._number_of("leader"), self._number_of("sync_standby")
            return None not in found

        wait_until(is_settled, lambda: self.log)
        leader, standby = found
        assert leader is not None and standby is not None
        return leader, standby
