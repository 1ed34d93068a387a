"""Restarts of real processes: ours against beanstalkd's, and ours on a directory that beanstalkd wrote."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import greenstalk
import pytest

from greenstalk_server.core import job_history
from greenstalk_server.core.job import BURIED, READY
from greenstalk_server.journal.beanstalkd import find
from greenstalk_server.journal.files import Directory
from greenstalk_server.journal.startup import IMPORTED_DIRECTORY
from greenstalk_server.runtime.exit_codes import StartError
from tests.journal.disk import Chance, Disk, Fault, PowerLostError, nothing, power_lost_at, seeded
from tests.journal.test_beanstalkd import V7, binlog_files, change_all_ways, client_of, full, gone, made, start
from tests.journal.workload import recovered
from tests.support.daemon import PATIENCE
from tests.support.servers import Kind, Server, ours, peer
from tests.support.world import START

LARGE = ("-z", "300000")

Snapshot = dict[int, dict[str, object]]
"""By id: what stats-job says, and `body`; times that pass are left out."""

SLACK = 20
"""Seconds that may pass between two looks."""


@pytest.fixture(params=["on disk", "in PostgreSQL"])
def url(request: pytest.FixtureRequest) -> str | None:
    """The address of the database that is to have our journal, None if it is on disk."""
    if request.param == "on disk":
        return None
    found: str = request.getfixturevalue("cluster").url
    return found


@contextlib.contextmanager
def serving(kind: Kind, directory: Path, *flags: str, url: str | None = None) -> Iterator[Server]:
    directory.mkdir(exist_ok=True)
    where = ("-b", str(directory)) if url is None else ("--journal", url, "--journal-name", str(directory))
    server = Server(kind, (*where, *LARGE, *flags))
    try:
        yield server
    finally:
        server.close()


def snapshot(server: Server, last: int) -> Snapshot:
    """All jobs up to id *last*."""
    found: Snapshot = {}
    with client_of(server) as client:
        for id in range(1, last + 1):
            with contextlib.suppress(greenstalk.NotFoundError):
                found[id] = dict(client.stats_job(id))
                found[id]["body"] = client.peek(id).body
    return found


def steady(shown: Snapshot) -> Snapshot:
    """Without what depends on the time, or on the server's files."""
    return {id: {key: job[key] for key in job if key not in ("age", "time-left", "file")} for id, job in shown.items()}


def assert_times_agree(first: Snapshot, second: Snapshot) -> None:
    for id, job in first.items():
        for key in ("age", "time-left"):
            assert abs(int(str(job[key])) - int(str(second[id][key]))) <= SLACK, (id, key)


def orders(server: Server, shown: Snapshot) -> dict[str, list[list[int]]]:
    """By tube: its ready, buried and delayed jobs, in the order in which they are given out. All are deleted."""
    found = {}
    for tube in sorted({str(job["tube"]) for job in shown.values()}):
        with client_of(server, use=tube, watch=tube) as client:
            finds = (partial(client.reserve, timeout=0), client.peek_buried, client.peek_delayed)
            found[tube] = [list(taken(client, find)) for find in finds]
    return found


def taken(client: greenstalk.Client[bytes], find: Callable[[], greenstalk.Job[bytes]]) -> Iterator[int]:
    """The ids of what *find* finds, each deleted, until there is no more."""
    with contextlib.suppress(greenstalk.NotFoundError, greenstalk.TimedOutError):
        while True:
            id = find().id
            client.delete(id)
            yield id


def last_id(server: Server) -> int:
    """The highest id so far, of a job that is deleted again."""
    with client_of(server) as client:
        id = client.put(b"last")
        client.delete(id)
        return id


# The same restart

JOBS_A_TUBE = 16
"""That `change_all_ways` puts."""

UNRECORDED = {
    5: {"pri", "reserves", "releases"},  # released without a delay
    11: {"reserves"},  # its holder has gone
}
"""What version 1.12 of beanstalkd does not write, by the place of the job in its tube."""


def differing(job: dict[str, object], other: dict[str, object]) -> set[str]:
    return {key for key in job if job[key] != other[key]}


def wait_for_delays(server: Server, last: int) -> None:
    """Until the delays of a second have run out."""
    until = time.monotonic() + PATIENCE
    with client_of(server) as client:
        for id in range(1, last):
            with contextlib.suppress(greenstalk.NotFoundError):
                while (stats := client.stats_job(id))["state"] == "delayed" and stats["delay"] == 1:
                    assert time.monotonic() < until
                    time.sleep(0.02)


def test_restart_shows_the_same_as_beanstalkd(tmp_path: Path, url: str | None) -> None:
    """Jobs, states, orders and all of stats-job, but for what beanstalkd does not keep (UNRECORDED).

    And it counts the burial of a buried job once more, and has the buried in the order in which they were put.
    """
    before: list[Snapshot] = []
    after: list[Snapshot] = []
    order: list[dict[str, list[list[int]]]] = []
    for kind, where in ((ours(), url), (peer(), None)):
        directory = tmp_path / kind.name
        with serving(kind, directory, "-f", "0", url=where) as server:
            change_all_ways(server)
            last = last_id(server)
            wait_for_delays(server, last)
            before.append(snapshot(server, last))
        with serving(kind, directory, "-f", "0", url=where) as server:
            after.append(snapshot(server, last))
            order.append(orders(server, after[-1]))
    assert_times_agree(before[0], after[0])
    assert_times_agree(*after)
    assert steady(before[0]) == steady(before[1]) == steady(after[0])
    unlike = set()
    assert after[0].keys() == after[1].keys()
    for id, job in steady(after[0]).items():
        expected = set(UNRECORDED.get((id - 1) % JOBS_A_TUBE, ()))
        if job["state"] == "buried":
            expected.add("buries")
            assert after[1][id]["buries"] == int(str(job["buries"])) + 1
        assert differing(job, after[1][id]) == expected, id
        if "pri" in expected:
            unlike.add(id)
    for tube, (ready, buried, delayed) in order[0].items():
        first = min(id for id in after[0] if after[0][id]["tube"] == tube)
        assert buried == [first + 3, first + 1, first + 10]
        assert order[1][tube][1:] == [sorted(buried), delayed]
        assert [id for id in ready if id not in unlike] == [id for id in order[1][tube][0] if id not in unlike]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_restart_keeps_pauses_and_reuses_no_id(tmp_path: Path, number: signal.Signals, url: str | None) -> None:
    """As beanstalkd does not: its pauses are lost, and the ids of deleted jobs come again."""
    directory = tmp_path / "b"
    with serving(ours(), directory, "-f", "0", url=url) as server:
        with client_of(server, use="paused") as client:
            client.put(b"held back")
            client.pause_tube("paused", 3600)
            assert last_id(server) == 2
            os.kill(server.pid, number)
        server.stop()
    with serving(ours(), directory, url=url) as server, client_of(server, use="paused", watch="paused") as client:
        stats = client.stats_tube("paused")
        assert stats["pause"] == 3600
        assert 3600 - SLACK <= int(str(stats["pause-time-left"])) <= 3600
        with pytest.raises(greenstalk.TimedOutError):
            client.reserve(timeout=0)
        assert client.put(b"") == 3


# What has happened to a job


def live(server: Server) -> None:
    """Have something happen to each of six jobs, by one client each, and kill the server while the last is held."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(client_of(server)) for _ in range(6)]
        released, buried, kicked, timed_out, returned, held = clients
        for id, client in enumerate(clients, 1):
            assert client.put(b"%d" % id, ttr=1 if client is timed_out else 3600) == id
            client.reserve_job(id)
        released.release(greenstalk.Job(1, b""), priority=7, delay=3600)
        buried.bury(greenstalk.Job(2, b""), priority=8)
        kicked.bury(greenstalk.Job(3, b""))
        kicked.kick_job(3)
        returned.close()
        until = time.monotonic() + PATIENCE
        while held.stats_job(4)["timeouts"] == 0 or held.stats_job(5)["state"] != "ready":
            assert time.monotonic() < until
            time.sleep(0.02)
        held.put(b"so that all before is written")
        os.kill(server.pid, signal.SIGKILL)
        server.stop()


LIFE = {
    1: ["reserved", "released"],
    2: ["reserved", "buried"],
    3: ["reserved", "buried", "kicked"],
    4: ["reserved", "timed out"],
    5: ["reserved", "returned"],
    6: ["reserved", "returned"],
    7: [],
}


def test_events_of_a_job_survive_restarts(tmp_path: Path) -> None:
    """The counts of stats-job over the wire; and, which no command tells, the events, as two restarts later found."""
    directory, began = tmp_path / "b", time.time_ns()
    with serving(ours(), directory, "-f", "0") as server:
        live(server)
    copy, killed = tmp_path / "copy", time.time_ns()
    shutil.copytree(directory, copy)
    counts = ("state", "pri", "delay", "reserves", "timeouts", "releases", "buries", "kicks")
    shown = {}
    for _ in range(2):
        with serving(ours(), directory, "-f", "0") as server:
            shown = {id: tuple(job[key] for key in counts) for id, job in snapshot(server, 7).items()}
        assert shown == {
            1: ("delayed", 7, 3600, 1, 0, 1, 0, 0),
            2: ("buried", 8, 0, 1, 0, 0, 1, 0),
            3: ("ready", 65536, 0, 1, 0, 0, 1, 1),
            4: ("ready", 65536, 0, 1, 1, 0, 0, 0),
            5: ("ready", 65536, 0, 1, 0, 0, 0, 0),
            6: ("ready", 65536, 0, 1, 0, 0, 0, 0),
            7: ("ready", 65536, 0, 0, 0, 0, 0, 0),
        }
    found = recovered(Directory(str(directory)), time.time_ns())
    told = {id: job_history.unpack(job.events) for id, job in found.jobs.items()}
    assert {id: [job_history.KINDS[event.kind] for event in events] for id, events in told.items()} == LIFE
    clients = [told[id][0].client for id in range(1, 7)]
    assert clients == sorted(set(clients)) and clients[0] > job_history.NOBODY
    for id in (1, 2, 4, 5):
        assert told[id][1].client == clients[id - 1]
        assert began < told[id][0].at <= told[id][1].at < killed
    assert (told[6][1].client, told[3][2].client) == (job_history.NOBODY, job_history.NOBODY)
    assert killed < told[6][1].at == found.jobs[6].deadline
    assert found.connect(lambda: None).number > max(clients)
    at_once = recovered(Directory(str(copy)), killed)
    assert {id: job_history.unpack(job.events) for id, job in at_once.jobs.items() if id != 6} == {
        id: events for id, events in told.items() if id != 6
    }


# From beanstalkd to us


def assert_taken_over(directory: Path, copy: Path) -> None:
    """Start ours on *directory*, twice, and hold it against beanstalkd started on a copy."""
    shutil.copytree(directory, copy)
    files = {name: (directory / name).read_bytes() for name in binlog_files(directory)}
    with serving(peer(), copy) as oracle:
        last = last_id(oracle)
        expected = snapshot(oracle, last)
        order = orders(oracle, expected)
    for job in expected.values():
        job["buries"] = int(str(job["buries"])) - (job["state"] == "buried")
    for _ in range(2):
        with serving(ours(), directory, "-f", "0") as server:
            shown = snapshot(server, last)
            assert steady(shown) == steady(expected)
            assert_times_agree(shown, expected)
        assert binlog_files(directory) == []
        moved = {path.name: path.read_bytes() for path in (directory / IMPORTED_DIRECTORY).iterdir()}
        assert moved == files
    with serving(ours(), directory, "-f", "0") as server:
        assert last_id(server) >= last
        assert orders(server, expected) == order


def test_import_after_an_orderly_stop_of_beanstalkd(tmp_path: Path) -> None:
    with serving(peer(), tmp_path / "b", "-f", "0", "-s", "300000") as server:
        change_all_ways(server)
        wait_for_delays(server, last_id(server))
    assert_taken_over(tmp_path / "b", tmp_path / "copy")


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
    assert_taken_over(tmp_path / "b", tmp_path / "copy")


# An import that is cut short


def foreign_files() -> dict[str, bytes]:
    """Two of beanstalkd's files: ten jobs, two of them buried, and one deleted that has the highest id."""
    jobs = [made(id, b"%d" % id, created_at=START - id, state=BURIED if id % 5 == 0 else READY) for id in range(1, 12)]
    first = b"".join(full(V7, job) for job in jobs[:6])
    second = b"".join(full(V7, job) for job in jobs[6:]) + gone(V7, jobs[10])
    return {"binlog.3": start(V7) + first, "binlog.4": start(V7) + second + bytes(500)}


def assert_imported(disk: Disk) -> None:
    """A start shows all jobs, and the files have been moved away, whole."""
    for _ in range(2):
        broker = recovered(disk, START)
        broker.check()
        assert {id: job.body for id, job in broker.jobs.items()} == {id: b"%d" % id for id in range(1, 11)}
        assert list(broker.tubes[b"default"].buried) == [5, 10]
        assert broker.next_id == 12
        assert {f"{IMPORTED_DIRECTORY}/{name}": data for name, data in foreign_files().items()}.items() <= (
            disk.everything().items()
        )
        assert not find(disk.list())
        disk = disk.crash(Chance(seeded(0), 1.0))


def test_import_from_files_in_memory() -> None:
    assert_imported(Disk(foreign_files()))


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_import_is_repeated_after_power_loss_at_any_call(share: float) -> None:
    for at in itertools.count(1):
        disk = Disk(foreign_files())
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
        disk = Disk(foreign_files())
        disk.before = fault = Fault(at, code, is_lasting=False)
        if not fault_stops_start(disk) and not fault.has_struck:
            assert at > 5
            return
        disk.before = nothing
        assert_imported(disk)


def fault_stops_start(disk: Disk) -> bool:
    try:
        recovered(disk, START)
    except StartError:
        return True
    return False


def test_import_of_ids_that_the_journal_uses_is_refused() -> None:
    disk = Disk(foreign_files())
    recovered(disk, START)
    other = full(V7, made(3, b"another")) + full(V7, made(99))
    files = disk.everything() | {"binlog.1": start(V7) + other}
    with pytest.raises(StartError, match="have 1 jobs whose ids are in the journal too; the first is 3"):
        recovered(Disk(files), START)


def test_ids_of_jobs_deleted_before_the_import_are_not_reused() -> None:
    disk = Disk(foreign_files())
    assert recovered(disk, START).next_id == 12
    assert recovered(disk, START).next_id == 12
