"""Directories that a server cannot use, or whose files are damaged."""

from __future__ import annotations

import re
import signal
import subprocess
import time
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


def test_ids_of_deleted_jobs_are_not_reused(tmp_path: Path) -> None:
    """A server that is killed before its first record keeps the file with the next id."""
    flags = (*QUIET, "-b", str(tmp_path), "-f", "0")
    for id in (b"1", b"", b"2"):
        with Daemon(*flags) as server:
            if id:
                assert server.ask(b"put 0 0 1 0\r\n\r\n") == b"INSERTED " + id
                assert server.ask(b"delete %b\r\n" % id) == b"DELETED"
            else:
                time.sleep(3)  # in which files that nobody needs are removed
            server.stop(signal.SIGKILL)


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


def test_torn_tail_is_truncated_and_logged(written: tuple[Path, list[int]]) -> None:
    directory, ids = written
    path = max(directory.glob("journal.*"), key=lambda path: (any(path.read_bytes()), int(path.suffix[1:])))
    *_, (at, end, last) = records_of(path)
    data = bytearray(path.read_bytes())
    data[end - 2 :] = bytes(len(data) - end + 2)
    path.write_bytes(data)
    with serving(directory, "--strict-recovery") as server, Peer(server) as peer:
        assert list(jobs(peer, ids)) == [id for id in ids if id != last]
        _, said = server.stop()
    (line,) = [line for line in said.splitlines() if path.name in line]
    assert "torn tail" in line and re.search(rf"\boffset {at}\b", line)
    with serving(directory, "--strict-recovery") as server:
        assert path.name not in server.stop()[1]


def test_missing_segment_is_reported(written: tuple[Path, list[int]]) -> None:
    directory, ids = written
    path = directory / "journal.2"
    lost = [id for _, _, id in records_of(path)]
    path.unlink()
    refused = start(directory, "--strict-recovery")
    assert refused.returncode == 10
    with serving(directory) as server, Peer(server) as peer:
        assert list(jobs(peer, ids)) == [id for id in ids if id not in lost]
        _, said = server.stop()
    assert re.search(rf"journal\.3.*\b{len(lost)} records", said)
