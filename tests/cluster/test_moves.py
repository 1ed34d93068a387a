"""Dead letters that move to another process, while the processes are killed. Real processes, journals and kills."""

from __future__ import annotations

import itertools
import re
import signal
from pathlib import Path
from typing import Final

import psutil
import pytest

from greenstalk_server.journal.layout import directory_of
from greenstalk_server.journal.lock import holder_of
from tests.support.daemon import TIMEOUT, Daemon
from tests.support.shards import tube_on
from tests.support.wire import END, Connection

JOBS: Final = 30
MAX_KILL: Final = 60
"""Commands after which no process is killed any longer."""

SOURCE, TARGET = tube_on(0), tube_on(1)

CONFIG: Final = f"""\
processes = 3
listen = "127.0.0.1"
port = 0
web.enabled = false
log_level = "error"
sync_ms = 0
[policies.failing]
tubes = ["{SOURCE.decode()}"]
max_attempts = 1
dead_letter = "{TARGET.decode()}"
"""


def kill(directory: Path, shard: int) -> None:
    """Kill the process of *shard*; its parent starts it again."""
    found = re.search(r"\d+", holder_of(directory_of(str(directory), shard)))
    if found is not None:
        psutil.Process(int(found[0])).send_signal(signal.SIGKILL)


class Worker:
    """A client that connects again when its connection is closed."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.client = self.connect()

    def connect(self) -> Connection:
        client = Connection(("127.0.0.1", self.port), TIMEOUT)
        for line in (b"watch " + SOURCE, b"watch " + TARGET, b"ignore default"):
            client.ask(line)
        return client

    def ask(self, line: bytes) -> bytes:
        """Send *line*; return the reply, or b"" if the connection was closed."""
        reply = self.client.ask(line)
        if not reply.endswith(END):
            return reply
        self.client.close()
        self.client = self.connect()
        return b""

    def is_empty(self) -> bool:
        """Whether both tubes have no job, in any state, and are there to tell."""
        found = [self.ask(b"stats-tube " + tube) for tube in (SOURCE, TARGET)]
        return all(re.findall(rb"current-jobs-\w+: (\d+)", each) == [b"0"] * 5 for each in found)


@pytest.mark.timeout(120)
def test_killed_processes_lose_and_double_no_dead_letter(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    file = tmp_path / "greenstalk.toml"
    file.write_text(f'data_dir = "{data}"\n{CONFIG}')
    deleted, uncertain = set[int](), set[int]()
    with Daemon("--config", str(file)) as server:
        worker = Worker(server.port)
        ids = {int(worker.ask(b"put-in-tube %b 0 0 60 1\r\nx" % SOURCE).split()[1]) for _ in range(JOBS)}
        assert len(ids) == JOBS
        for turn in itertools.count(1):
            if turn % 20 == 0 and turn <= MAX_KILL:
                for shard in ((0,), (1,), (0, 1))[turn // 20 % 3]:
                    kill(data, shard)
            found = re.fullmatch(rb"RESERVED (\d+) 1\r\nx", worker.ask(b"reserve-with-timeout 1"))
            if found is None:
                if turn > MAX_KILL and worker.is_empty():
                    break
                continue
            id = int(found[1])
            assert id in ids - deleted, "a deleted job is back"
            if b"\ntube: %b\n" % SOURCE in worker.ask(b"stats-job %d" % id):
                worker.ask(b"release %d 0 0" % id)
                continue
            reply = worker.ask(b"delete %d" % id)
            assert reply in (b"DELETED", b"")
            (deleted if reply == b"DELETED" else uncertain).add(id)
        assert deleted | uncertain == ids
        assert len(deleted) > JOBS // 2
        assert not [id for id in ids if worker.ask(b"peek %d" % id) != b"NOT_FOUND"]
        worker.client.close()
