"""drain-to between all pairs of servers loses no job, also after crashes and interrupts."""

from __future__ import annotations

import signal
import subprocess
from typing import Any

import pytest

from greenstalk_client import PutId
from greenstalkctl.address import parse
from greenstalkctl.queue import Stats
from greenstalkctl.server import Server as Connection
from greenstalkctl.transfer import Outcome, Transfer, TransferCounts
from tests.ctl.test_jobs import fill
from tests.ctl.world import Client, address, connect, ctl, finish, ids, jobs, old_server, run, spawn
from tests.support.daemon import TIMEOUT
from tests.support.peer import eventually
from tests.support.servers import Server, peer

JOB_COUNT = 900


def test_drain_moves_every_job_with_its_body_pri_ttr_and_delay(server: Server, other: Server, mail: Client) -> None:
    fill(mail)
    mail.use("post")
    mail.put(b"\xff\x00\r\n", priority=2**32 - 1, ttr=9)
    before = jobs(server, "mail"), jobs(server, "post")
    done = ctl(server, "--yes", "drain-to", address(other), "--json")
    moved = {"ready": 3, "delayed": 2, "buried": 2}
    assert (done.code, done.json) == (0, {"moved": moved, "taken": 0, "doubled": 0, "left": {}})
    assert (jobs(other, "mail"), jobs(other, "post")) == before
    assert (jobs(server, "mail"), jobs(server, "post")) == ([], [])
    with connect(other, "mail") as there:
        left = [there.stats_job(job_id)["time-left"] for job_id in ids(there, "mail", "delayed")]
        assert len(left) == 2 and all(900 < seconds <= 1000 for seconds in left)


def test_drain_moves_only_the_named_tubes(server: Server, other: Server, mail: Client) -> None:
    mail.put(b"")
    mail.use("post")
    mail.put(b"")
    assert ctl(server, "--yes", "drain-to", address(other), "post").code == 0
    assert (len(jobs(server, "mail")), len(jobs(other, "post")), len(jobs(server, "post"))) == (1, 1, 0)
    assert ctl(server, "--yes", "drain-to", address(other), "nothing").code == 1


def test_drain_copies_the_pause(server: Server, other: Server, mail: Client) -> None:
    mail.put(b"")
    mail.pause_tube("mail", 500)
    assert ctl(server, "--yes", "drain-to", address(other)).code == 0
    with connect(other) as there:
        assert 490 < there.stats_tube("mail")["pause-time-left"] <= 500


def test_reserved_jobs_stay_and_are_reported(server: Server, other: Server, mail: Client) -> None:
    mail.put(b"held")
    mail.put(b"free")
    job = mail.reserve(0)
    done = ctl(server, "--yes", "drain-to", address(other), "--json")
    held = {"ready": 0, "delayed": 0, "buried": 0, "reserved": 1}
    assert (done.code, done.json["left"]) == (1, {"mail": held})
    assert "run the command again" in done.err
    mail.release(job)
    assert ctl(server, "--yes", "drain-to", address(other)).code == 0
    assert [job[1] for job in jobs(other, "mail")] == [b"free", b"held"]


def test_killed_drain_can_be_repeated_without_loss(server: Server, other: Server) -> None:
    all_bodies = fill_many(server)
    process = start_drain(server, other)
    assert finish(process, signal.SIGKILL).code == -signal.SIGKILL
    wait_until_released(server)
    assert jobs(server, "mail"), "the command was killed too late: all jobs have been moved"
    assert ctl(server, "--yes", "drain-to", address(other)).code == 0
    bodies = [job[1] for job in jobs(other, "mail")]
    assert set(bodies) == all_bodies
    assert len(bodies) - JOB_COUNT <= 1, "more than one job is duplicated"
    assert jobs(server, "mail") == []


def test_interrupted_drain_reports_counts_and_duplicates_no_job(server: Server, other: Server) -> None:
    all_bodies = fill_many(server)
    done = finish(start_drain(server, other), signal.SIGINT)
    moved = sum(done.json["moved"].values())
    assert (done.code, 0 < moved < JOB_COUNT) == (130, True)
    assert "run the same command again" in done.err
    wait_until_released(server)
    assert (len(jobs(other, "mail")), len(jobs(server, "mail"))) == (moved, JOB_COUNT - moved)
    assert ctl(server, "--yes", "drain-to", address(other)).code == 0
    assert sorted(job[1] for job in jobs(other, "mail")) == sorted(all_bodies)


def fill_many(server: Server) -> set[bytes]:
    """Put equal numbers of ready, delayed and buried jobs into `mail`; return their bodies."""
    with connect(server, "mail") as client:
        for number in range(JOB_COUNT // 3):
            client.put(b"buried %d" % number, priority=0)
            client.bury(client.reserve(0))
            client.put(b"delayed %d" % number, delay=1000)
        for number in range(JOB_COUNT // 3):
            client.put(b"ready %d" % number)
    return {
        b"%s %d" % (state, number) for state in (b"buried", b"delayed", b"ready") for number in range(JOB_COUNT // 3)
    }


def start_drain(server: Server, other: Server) -> subprocess.Popen[bytes]:
    """Start to drain *server* to *other*; return when some jobs have been moved."""
    with connect(other) as client:
        before = client.stats()["total-jobs"]
        process = spawn(server, "--yes", "drain-to", address(other), "--json")
        eventually(lambda: client.stats()["total-jobs"] - before >= 20, "some jobs are moved")
    return process


def wait_until_released(server: Server) -> None:
    """Return once the server has released the job that the ended command had reserved."""
    with connect(server) as client:
        eventually(lambda: not client.stats()["current-jobs-reserved"], "no job is reserved")


def test_too_big_job_stays_and_other_states_move(one: Server) -> None:
    small = Server(peer(), ("-z", "10"))
    try:
        with connect(one, "mail") as mail:
            mail.put(b"x" * 11, priority=5)
            mail.put(b"after it", priority=9)
            mail.put(b"delayed", delay=100)
            done = ctl(one, "--yes", "drain-to", address(small), "--json")
            assert (done.code, done.json["moved"]) == (4, {"ready": 0, "delayed": 1, "buried": 0})
            assert "JOB_TOO_BIG" in done.err
            assert "-z" in done.err
            assert done.json["left"] == {"mail": {"ready": 2, "delayed": 0, "buried": 0, "reserved": 0}}
            assert mail.stats_job(mail.peek_ready().id)["pri"] == 5
    finally:
        small.close()


def test_drain_to_the_same_server_is_refused(server: Server) -> None:
    done = ctl(server, "--yes", "drain-to", address(server))
    assert (done.code, "same server" in done.err) == (2, True)


def test_drain_to_an_old_server_keeps_buried_jobs_at_the_source(server: Server, other: Server, mail: Client) -> None:
    fill(mail)
    with old_server(other) as old:
        done = ctl(server, "--yes", "drain-to", old, "--json")
    assert (done.code, done.json["moved"]) == (1, {"ready": 2, "delayed": 2, "buried": 0})
    assert "too old" in done.err
    assert [job[0] for job in jobs(server, "mail")] == ["buried", "buried"]


def test_drain_from_an_old_server_moves_all_jobs(server: Server, other: Server, mail: Client) -> None:
    fill(mail)
    before = jobs(server, "mail")
    with old_server(server) as old:
        assert run("--server", old, "--yes", "drain-to", address(other)).code == 0
    assert jobs(other, "mail") == before


class TargetWithWorker(Connection):
    """During a put to this target, a worker reserves the job at the source; with `copier`, another one the copy."""

    worker: Client
    copier: Client | None = None

    def put(self, tube: str, body: bytes, pri: int, delay: float, ttr: float, **tags: Any) -> PutId:
        copy = super().put(tube, body, pri, delay, ttr, **tags)
        self.worker.kick(1)
        self.worker.reserve(0)
        if self.copier is not None:
            self.copier.kick_job(copy)
            self.copier.reserve(0)
        return copy


@pytest.mark.parametrize("is_quick", [False, True])
def test_job_taken_by_a_worker_during_the_move(server: Server, other: Server, mail: Client, is_quick: bool) -> None:
    mail.put(b"once", delay=100)
    here, there = (parse(address(each)) for each in (server, other))
    with (
        Connection(here, TIMEOUT) as source,
        TargetWithWorker(there, TIMEOUT) as target,
        connect(other, "mail") as copier,
    ):
        target.worker, target.copier = mail, copier if is_quick else None
        outcome = Transfer(source, "mail", target, "mail").move_next("delayed")
        assert outcome == (Outcome.DOUBLED if is_quick else Outcome.TAKEN)
        assert len(jobs(server, "mail")) == 1
        assert len(jobs(other, "mail")) == is_quick


class SourceWithKicker(Connection):
    """A source at which the job is kicked just before its next statistics are requested."""

    kicker: Client | None = None

    def job(self, job_id: int) -> Stats | None:
        if self.kicker is not None:
            self.kicker.kick_job(job_id)
            self.kicker = None
        return super().job(job_id)


def test_job_that_changes_state_during_the_move_is_skipped(server: Server, mail: Client) -> None:
    mail.put(b"", delay=100)
    here = parse(address(server))
    with SourceWithKicker(here, TIMEOUT) as source, Connection(here, TIMEOUT) as target:
        source.kicker = mail
        transfer = Transfer(source, "mail", target, "post")
        assert transfer.move_next("delayed") is None
        assert transfer.move_next("ready") == Outcome.MOVED
    assert [job[0] for job in jobs(server, "post")] == ["ready"]


def test_summary_lists_jobs_that_did_not_move() -> None:
    counts = TransferCounts()
    for state, outcome in (("ready", Outcome.MOVED), ("buried", Outcome.TAKEN), ("delayed", Outcome.DOUBLED)):
        counts.add(state, outcome)
    assert counts.to_json() == {"moved": {"ready": 1, "delayed": 0, "buried": 0}, "taken": 1, "doubled": 1}
    moved, taken, doubled = counts.summary_lines("there")
    assert moved == "moved 1 job to there: 1 ready"
    assert taken.startswith("1 job not moved")
    assert doubled.startswith("1 job in both")
