"""The crash test of tests/crash with the journal in PostgreSQL: it kills the server under load, and audits the jobs."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.crash.rounds import Rounds
from tests.support.cluster import Cluster
from tests.support.daemon import Daemon
from tests.support.peer import eventually

SEED = 21


class SharedRounds(Rounds):
    """Rounds of a server with its journal in *cluster*. A round begins once the lease of the last one has ended."""

    def __init__(self, cluster: Cluster, name: str, directory: Path, end: signal.Signals) -> None:
        super().__init__(directory, SEED, [], end=end)
        self._cluster: Cluster = cluster
        self._name: str = name

    def _all_flags(self, flags: Sequence[str]) -> tuple[str, ...]:
        where = ("-l", "127.0.0.1", "-p", str(self._port), "--no-web")
        return (*where, "--journal", self._cluster.url, "--journal-name", self._name, *flags)

    def _start(self, flags: Sequence[str]) -> Daemon:
        server = super()._start(flags)
        eventually(lambda: is_listening(server), "the server leads")
        return server

    def _size(self) -> int:
        query = f"""SELECT coalesce(sum(octet_length(data)), 0)::bigint FROM greenstalk_batch
                    WHERE journal = (SELECT id FROM greenstalk_journal WHERE name = '{self._name}')"""  # noqa: S608
        [(size,)] = self._cluster.ask(query)
        assert isinstance(size, int)
        return size


def is_listening(server: Daemon) -> bool:
    """Return whether *server* accepts connections, which it does once it leads."""
    try:
        server.ask(b"list-tube-used\r\n")
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.parametrize(("end", "rounds"), [(signal.SIGKILL, 2), (signal.SIGTERM, 1)])
def test_nothing_acknowledged_is_lost(cluster: Cluster, tmp_path: Path, end: signal.Signals, rounds: int) -> None:
    shared = SharedRounds(cluster, f"crash-{end.name}", tmp_path, end)
    for number in range(1, rounds + 1):
        print(shared.run(is_whole=number == rounds))
