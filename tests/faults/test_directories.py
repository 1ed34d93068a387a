"""Directories that a server cannot use, or whose files are damaged."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from greenstalk_server.journal import record
from tests.faults.conftest import SMALL
from tests.faults.disks import tmpfs
from tests.faults.serving import BATCH, id_of, jobs, put, serving
from tests.support.daemon import Daemon, run
from tests.support.peer import Peer

QUIET = ("-l", "127.0.0.1", "-p", "0", "--no-web")
COUNT = 600


def start(directory: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Start a server that is to end at once."""
    return run(*QUIET, "-b", str(directory), *flags)


def test_second_server_on_a_directory_names_the_first(tmp_path: Path) -> None:
    with Daemon(*QUIET, "-b", str(tmp_path)) as first:
        second = start(tmp_path)
        assert second.returncode == 10
        assert second.stderr.count("\n") == 1 and str(tmp_path) in second.stderr
        assert f"process {first.process.pid}" in second.stderr
        assert first.ask(b"put 0 0 1 0\r\n\r\n") == b"INSERTED 1"


def test_killed_server_releases_its_directory(tmp_path: Path) -> None:
    with Daemon(*QUIET, "-b", str(tmp_path)) as first:
        first.stop(signal.SIGKILL)
    with Daemon(*QUIET, "-b", str(tmp_path)):
        pass


def test_read_only_directory_is_refused(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", SMALL, "ro") as disk:
        refused = start(disk)
    assert refused.returncode == 10
    assert refused.stderr.count("\n") == 1
    assert f"-b {disk}: " in refused.stderr and "Read-only file system" in refused.stderr


def test_missing_directory_and_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, reason in (("missing", "No such file or directory"), ("file", "Not a directory")):
        refused = start(tmp_path / name)
        assert refused.returncode == 10
        assert refused.stderr.count("\n") == 1
        assert f"-b {tmp_path / name}: {reason}" in refused.stderr


def test_disk_without_room_for_a_journal_is_refused(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", 4096) as disk:
        refused = start(disk)
        assert refused.returncode == 10
        assert f"{disk}" in refused.stderr and "No space left on device" in refused.stderr


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, list[int]]:
    """A directory with several segments, and the jobs in it, in their order."""
    with serving(tmp_path, "-f", "0", "-s", "16384") as server, Peer(server) as peer:
        ids: list[int] = []
        for first in range(0, COUNT, BATCH):  # each batch is synced once
            bodies = [b"job %d" % number for number in range(first, first + BATCH)]
            peer.send(b"".join(b"put 0 0 600 %d\r\n%b\r\n" % (len(body), body) for body in bodies))
            ids += [id_of(peer.read_line()) for _ in bodies]
        server.stop()
    return tmp_path, ids


def records_of(path: Path) -> list[tuple[int, int, int]]:
    """Return the start, the end and the job of each JOB record of a segment."""
    data, at, found = path.read_bytes(), record.SEGMENT_HEADER_SIZE, []
    while at + record.HEADER_SIZE <= len(data):
        _, _, length, _, kind = record.HEADER.unpack_from(data, at)
        end = at + record.HEADER_SIZE + length
        if kind == record.JOB:
            found.append((at, end, record.JOB_FIELDS.unpack_from(data, at + record.HEADER_SIZE)[0]))
        at = end
    return found


def test_damage_loses_only_damaged_records_and_is_logged(written: tuple[Path, list[int]]) -> None:
    directory, ids = written
    path = directory / "journal.2"
    at, end, lost = records_of(path)[3]
    data = bytearray(path.read_bytes())
    data[end - 1] ^= 1
    path.write_bytes(data)

    refused = start(directory, "--strict-recovery")
    assert refused.returncode == 10
    for said in ("--strict-recovery", "journal.2", str(at)):
        assert said in refused.stderr.splitlines()[-1]
    assert path.read_bytes() == data, "a refusal changes nothing"

    with serving(directory) as server, Peer(server) as peer:
        sound = [id for id in ids if id != lost]
        assert jobs(peer, ids) == {id: b"job %d" % ids.index(id) for id in sound}
        assert id_of(put(peer, b"")) > max(ids)
        _, said = server.stop()
    (line,) = [line for line in said.splitlines() if "journal.2" in line]
    assert "WARNING" in line
    assert re.search(rf"\boffset {at}\b", line) and re.search(rf"\b{end - at} bytes\b", line)
    assert re.search(r"\b1 records?\b", line)
