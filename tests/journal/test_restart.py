"""Restarts of real servers: ours compared with beanstalkd, and ours on a directory that beanstalkd wrote."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import greenstalk
import pytest

from greenstalk_server.core.jobs.job import BURIED, READY
from greenstalk_server.journal.beanstalkd import find
from greenstalk_server.journal.startup import IMPORTED_DIRECTORY
from greenstalk_server.runtime.exit_codes import StartError
from tests.journal.disk import Chance, Disk, Fault, PowerLostError, no_fault, power_lost_at, seeded
from tests.journal.test_beanstalkd import V7, binlog_files, change_all_ways, client_of, deletion, full, header, make_job
from tests.journal.workload import recovered
from tests.support import invariants
from tests.support.peer import eventually
from tests.support.servers import Kind, Server, ours, peer
from tests.support.world import START

LARGE = ("-z", "300000")

JobStats = dict[int, dict[str, object]]
"""Replies of stats-job by id, each with the additional key `body`."""

TIME_TOLERANCE = 20
"""Maximum difference in seconds of an age or a remaining time between two replies of stats-job."""


@pytest.fixture(params=["on disk", "in PostgreSQL"])
def url(request: pytest.FixtureRequest) -> str | None:
    """The address of the database that holds our journal; None for a journal on disk."""
    if request.param == "on disk":
        return None
    found: str = request.getfixturevalue("cluster").url
    return found


@contextlib.contextmanager
def serving(kind: Kind, directory: Path, *flags: str, url: str | None = None) -> Iterator[Server]:
    """Run a server with its journal in *directory*, or in the database at *url* under that name."""
    directory.mkdir(exist_ok=True)
    where = ("-b", str(directory)) if url is None else ("--journal", url, "--journal-name", str(directory))
    server = Server(kind, (*where, *LARGE, *flags))
    try:
        yield server
    finally:
        server.close()


def snapshot(server: Server, last: int) -> JobStats:
    """Return the state of all jobs up to id *last*, by the keys that beanstalkd has."""
    found: JobStats = {}
    with client_of(server) as client:
        for id in range(1, last + 1):
            with contextlib.suppress(greenstalk.NotFoundError):
                found[id] = dict(client.stats_job(id))
                found[id]["body"] = client.peek(id).body
    return found


def without_times(shown: JobStats) -> JobStats:
    """Return *shown* without the keys that depend on the time, and without `file`."""
    return {id: {key: job[key] for key in job if key not in ("age", "time-left", "file")} for id, job in shown.items()}


def assert_times_agree(first: JobStats, second: JobStats) -> None:
    for id, job in first.items():
        for key in ("age", "time-left"):
            assert abs(int(str(job[key])) - int(str(second[id][key]))) <= TIME_TOLERANCE, (id, key)


def delete_in_order(server: Server, shown: JobStats) -> dict[str, list[list[int]]]:
    """Delete all jobs; return by tube the ids of the ready, the buried and the delayed ones, in their order."""
    found = {}
    for tube in sorted({str(job["tube"]) for job in shown.values()}):
        with client_of(server, use=tube, watch=tube) as client:
            finds = (partial(client.reserve, timeout=0), client.peek_buried, client.peek_delayed)
            found[tube] = [list(delete_each(client, find)) for find in finds]
    return found


def delete_each(client: greenstalk.Client[bytes], find: Callable[[], greenstalk.Job[bytes]]) -> Iterator[int]:
    """Delete each job that *find* returns, until it finds none; yield the ids."""
    with contextlib.suppress(greenstalk.NotFoundError, greenstalk.TimedOutError):
        while True:
            id = find().id
            client.delete(id)
            yield id


def last_id(server: Server) -> int:
    """Put and delete a job; return its id, which is the highest so far."""
    with client_of(server) as client:
        id = client.put(b"last")
        client.delete(id)
        return id


def wait_for_delays(server: Server, last: int) -> None:
    """Wait until no job below id *last* is delayed by a delay of one second."""
    with client_of(server) as client:
        for id in range(1, last):
            with contextlib.suppress(greenstalk.NotFoundError):
                eventually(partial(is_delay_over, client, id), f"the delay of job {id} is over")


def is_delay_over(client: greenstalk.Client[bytes], id: int) -> bool:
    """Return whether the job *id* is not delayed, or has a delay of more than a second; raise NotFoundError."""
    stats = client.stats_job(id)
    return stats["state"] != "delayed" or stats["delay"] != 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_restart_keeps_pauses_and_reuses_no_id(tmp_path: Path, number: signal.Signals, url: str | None) -> None:
    """A restarted beanstalkd has lost all pauses, and reuses the ids of deleted jobs."""
    directory = tmp_path / "b"
    with serving(ours(), directory, "-f", "0", url=url) as server:
        with client_of(server, use="paused") as client:
            client.put(b"in a paused tube")
            client.pause_tube("paused", 3600)
            assert last_id(server) == 2
            os.kill(server.pid, number)
        server.stop()
    with serving(ours(), directory, url=url) as server, client_of(server, use="paused", watch="paused") as client:
        stats = client.stats_tube("paused")
        assert stats["pause"] == 3600
        assert 3600 - TIME_TOLERANCE <= int(str(stats["pause-time-left"])) <= 3600
        with pytest.raises(greenstalk.TimedOutError):
            client.reserve(timeout=0)
        assert client.put(b"") == 3


# Import of beanstalkd's directory


def assert_migrated(directory: Path, copy: Path) -> None:
    """Start our server on *directory* twice; assert that it matches a beanstalkd on *copy*, a new copy of it."""
    shutil.copytree(directory, copy)
    files = {name: (directory / name).read_bytes() for name in binlog_files(directory)}
    with serving(peer(), copy) as oracle:
        last = last_id(oracle)
        expected = snapshot(oracle, last)
        order = delete_in_order(oracle, expected)
    for job in expected.values():
        job["buries"] = int(str(job["buries"])) - (job["state"] == "buried")
    for _ in range(2):
        with serving(ours(), directory, "-f", "0") as server:
            shown = snapshot(server, last)
            assert without_times(shown) == without_times(expected)
            assert_times_agree(shown, expected)
        assert binlog_files(directory) == []
        moved = {path.name: path.read_bytes() for path in (directory / IMPORTED_DIRECTORY).iterdir()}
        assert moved == files
    with serving(ours(), directory, "-f", "0") as server:
        assert last_id(server) >= last
        assert delete_in_order(server, expected) == order


def test_import_after_a_kill_of_beanstalkd(tmp_path: Path) -> None:
    with serving(peer(), tmp_path / "b", "-f", "0", "-s", "4096") as server, client_of(server) as client:
        change_all_ways(server)
        wait_for_delays(server, last_id(server))
        for index in range(200):
            client.put(b"x" * index)
            client.bury(client.reserve_job(client.put(b"to be buried %d" % index)), priority=index)
        for _ in range(30):
            client.reserve(timeout=0)
        os.kill(server.pid, signal.SIGKILL)
    assert len(binlog_files(tmp_path / "b")) > 1
    assert_migrated(tmp_path / "b", tmp_path / "copy")


# Interrupted imports


def beanstalkd_files() -> dict[str, bytes]:
    """Return two files of beanstalkd: ten jobs, two of them buried, and a deleted job with the highest id."""
    jobs = [
        make_job(id, b"%d" % id, created_at=START - id, state=BURIED if id % 5 == 0 else READY) for id in range(1, 12)
    ]
    first = b"".join(full(V7, job) for job in jobs[:6])
    second = b"".join(full(V7, job) for job in jobs[6:]) + deletion(V7, jobs[10])
    return {"binlog.3": header(V7) + first, "binlog.4": header(V7) + second + bytes(500)}


def assert_imported(disk: Disk) -> None:
    """Assert that two starts on *disk* recover all jobs, and that beanstalkd's files were moved unchanged."""
    for _ in range(2):
        broker = recovered(disk, START)
        invariants.check(broker)
        assert {id: job.body for id, job in broker.jobs.items()} == {id: b"%d" % id for id in range(1, 11)}
        assert list(broker.tubes[b"default"].buried) == [5, 10]
        assert broker.next_id == 12
        assert {f"{IMPORTED_DIRECTORY}/{name}": data for name, data in beanstalkd_files().items()}.items() <= (
            disk.contents().items()
        )
        assert not find(disk.list())
        disk = disk.crash(Chance(seeded(0), 1.0))


def test_import_from_files_in_memory() -> None:
    assert_imported(Disk(beanstalkd_files()))


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_import_is_repeated_after_power_loss_at_any_call(share: float) -> None:
    for at in itertools.count(1):
        disk = Disk(beanstalkd_files())
        disk.before = power_lost_at(at)
        try:
            recovered(disk, START)
        except PowerLostError:
            assert_imported(disk.crash(Chance(seeded(at), share)))
        else:
            assert at > 5
            return


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
def test_import_is_repeated_by_the_next_start_after_failure_of_any_call(code: int) -> None:
    for at in itertools.count(1):
        disk = Disk(beanstalkd_files())
        disk.before = fault = Fault(at, code, is_lasting=False)
        if not fault_stops_start(disk) and not fault.has_triggered:
            assert at > 5
            return
        disk.before = no_fault
        assert_imported(disk)


def fault_stops_start(disk: Disk) -> bool:
    """Start on *disk*; return whether the start has failed."""
    try:
        recovered(disk, START)
    except StartError:
        return True
    return False


def test_import_of_ids_that_the_journal_uses_is_refused() -> None:
    disk = Disk(beanstalkd_files())
    recovered(disk, START)
    other = full(V7, make_job(3, b"another")) + full(V7, make_job(99))
    files = disk.contents() | {"binlog.1": header(V7) + other}
    with pytest.raises(StartError, match="have 1 jobs whose ids are in the journal too; the first is 3"):
        recovered(Disk(files), START)


def test_ids_of_jobs_deleted_before_the_import_are_not_reused() -> None:
    disk = Disk(beanstalkd_files())
    assert recovered(disk, START).next_id == 12
    assert recovered(disk, START).next_id == 12
