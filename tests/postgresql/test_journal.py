"""The rows of a journal: appends by the leader, reads by a follower, and several journals in a database."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import psycopg
import pytest

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import SECOND, Job
from greenstalk_server.core.operations import connecting, finishing, putting, reserving, restoring
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.journal.postgresql.connection import DatabaseRefused, DatabaseUnavailable, NotLeader, conninfo_of
from greenstalk_server.journal.postgresql.follower import Follower, PositionLost, slices
from greenstalk_server.journal.postgresql.lease import LeaderLease
from greenstalk_server.journal.postgresql.rows import MAX_ROW_SIZE, Rows
from greenstalk_server.journal.postgresql.writer import DatabaseJournalWriter
from greenstalk_server.journal.record import SEGMENT_HEADER_SIZE, Encoder, SegmentHeader
from greenstalk_server.journal.recovery import Recovery
from greenstalk_server.journal.segment import name_of
from greenstalk_server.journal.startup import resume_from, write_out
from greenstalk_server.runtime.exit_codes import StartError
from tests.support import invariants
from tests.support.cluster import Cluster
from tests.support.nodes import wait_until
from tests.support.processes import join
from tests.support.world import START, make_broker

SEGMENT = 4096
HOUR = 3600.0
"""Seconds."""


class Member:
    """One server of a journal, without sockets: it follows, leads, and puts jobs."""

    def __init__(self, url: str, journal: str, name: str, duration: float = HOUR) -> None:
        """*duration*: seconds of the lease."""
        self.lease: LeaderLease = LeaderLease(conninfo_of(url, "--journal"), journal, name, duration)
        self.lease.open()
        self.rows: Rows = Rows(self.lease)
        self.journal: DatabaseJournalWriter = DatabaseJournalWriter(self.rows, SEGMENT, 0, os.urandom)
        self.broker: Broker = Broker(make_broker().facts, self.journal)
        self.follower: Follower = Follower(self.lease, Recovery(self.broker.tube, self.broker.jobs))

    def read(self) -> None:
        """Read all rows of the journal."""
        while rows := self.follower.fetch():
            self.follower.replay(rows)

    def acquire(self) -> int | None:
        """Acquire the lease if it is free; return the epoch, or None."""
        seen = self.lease.read_state()
        return self.lease.acquire(seen) if seen.is_free or seen.is_mine else None

    def lead(self) -> None:
        """Acquire the lease, which must be free, and become the leader."""
        epoch = self.acquire()
        assert epoch is not None
        self.read()
        self.follower.finish(epoch)
        self.rows.begin(epoch)
        resume_from(self.follower.recovery, self.broker, self.journal, START)
        restoring.restore(self.broker, self.follower.recovery.next_id, START)
        self.client = connecting.connect(self.broker, lambda: None)

    def put(self, body: bytes) -> int:
        """Put a job, which `commit` commits; return its id."""
        id = self.broker.allocate_id()
        assert putting.put(self.broker, self.client, id, 0, 0, 60 * 10**9, body, START) > 0
        return id

    def commit(self) -> None:
        """Commit all records, run compaction, and remove old segments."""
        write_out(self.journal)
        self.journal.compact(SEGMENT)
        maintenance = self.journal.take_maintenance()
        if maintenance is not None:
            maintenance.run()
            self.journal.complete_maintenance(maintenance)

    def close(self) -> None:
        self.rows.stop()
        self.follower.connection.close()
        self.lease.close()


@pytest.fixture
def members(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[tuple[Member, Member]]:
    """Two servers of a journal that only this test uses."""
    both = (Member(cluster.url, request.node.name, "one"), Member(cluster.url, request.node.name, "two"))
    yield both
    for member in both:
        member.close()


def take_over(member: Member, cluster: Cluster) -> None:
    """Let *member* lead: end the lease of the other server first."""
    cluster.ask(f"UPDATE greenstalk_journal SET lease_until = 'epoch' WHERE id = {member.lease.journal}")  # noqa: S608
    member.lead()


def bodies(member: Member) -> dict[int, bytes]:
    """Return the bodies of the jobs of *member* by id."""
    return {id: job.body for id, job in member.broker.jobs.items()}


def test_only_one_server_leads_until_its_lease_ends(members: tuple[Member, Member], cluster: Cluster) -> None:
    one, two = members
    one.lead()
    assert one.lease.read_state().is_mine and not one.lease.read_state().is_free
    assert two.acquire() is None
    assert not one.lease.renew()
    take_over(two, cluster)
    assert (two.lease.read_state().is_mine, two.lease.read_state().leader, two.lease.read_state().epoch) == (
        True,
        "two",
        2,
    )
    with pytest.raises(DatabaseUnavailable, match="terminating connection"):
        one.lease.renew()
    with pytest.raises(NotLeader, match="two leads now"):
        one.lease.renew()
    two.lease.release()
    assert one.lease.read_state().is_free
    assert one.acquire() == 3


def test_former_leader_appends_nothing_after_a_takeover(members: tuple[Member, Member], cluster: Cluster) -> None:
    one, two = members
    one.lead()
    first = one.put(b"committed")
    one.commit()
    one.put(b"late")
    take_over(two, cluster)
    before = two.rows.list(), [two.rows.read(name) for name in two.rows.list()]
    one.rows.remove(name_of(1))
    with pytest.raises(NotLeader):
        write_out(one.journal)
    one.rows.remove(name_of(1))
    assert before == (two.rows.list(), [two.rows.read(name) for name in two.rows.list()])
    assert list(two.broker.jobs) == [first]
    assert two.put(b"next") == first + 1


def test_batch_of_several_rows_is_atomic(members: tuple[Member, Member], cluster: Cluster) -> None:
    one, two = members
    one.lead()
    body = os.urandom(2 * MAX_ROW_SIZE + 1)
    id = one.put(body)
    one.commit()
    two.read()
    assert two.broker.jobs[id].body == body
    one.put(body)
    take_over(two, cluster)
    before = two.rows.list()
    with pytest.raises(NotLeader):
        write_out(one.journal)
    assert two.rows.list() == before


def test_broken_connection_is_replaced_and_no_row_is_duplicated(
    members: tuple[Member, Member], cluster: Cluster
) -> None:
    """The backend of the connection ends before a batch, and during a batch that waits for a lock."""
    one, two = members
    one.lead()
    ids = [one.put(b"a")]
    one.commit()
    others = "FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
    cluster.ask(f"SELECT pg_terminate_backend(pid) {others} AND query LIKE '%INSERT INTO greenstalk_batch%'")
    ids.append(one.put(b"b"))
    one.commit()
    with psycopg.connect(cluster.url) as blocker:
        blocker.execute("SELECT 1 FROM greenstalk_journal WHERE id = %s FOR UPDATE", (one.lease.journal,))
        ids.append(one.put(b"c"))
        writer = threading.Thread(target=one.commit, daemon=True)
        writer.start()
        terminate = f"SELECT pg_terminate_backend(pid) {others} AND wait_event_type = 'Lock' AND query LIKE '%INSERT%'"
        wait_until(lambda: bool(cluster.ask(terminate)), lambda: "the append does not wait for the lock")
        blocker.rollback()
    join(writer)
    assert one.lease.read_state().epoch > 1, "the new connection has not raised the epoch"
    take_over(two, cluster)
    assert list(two.broker.jobs) == ids
    assert two.follower.recovery.is_sound and not two.follower.recovery.damage


def test_follower_has_the_same_state_as_the_leader(members: tuple[Member, Member], cluster: Cluster) -> None:
    """Segments are created and removed during the test, and the follower keeps no more of them than the leader."""
    one, two = members
    one.lead()
    for number in range(400):
        one.put(b"%d" % number * 20)
        if number % 3:
            job = reserving.reserve(one.broker, one.client, START)
            assert job is not None
            finishing.delete(one.broker, one.client, job.id, START)
        one.commit()
        two.read()
    assert one.journal.stats().oldest_index > 5, "no segment was removed"
    assert len(two.follower.recovery.segments) <= len(one.rows.list()) + 1
    assert bodies(two) == bodies(one)
    take_over(two, cluster)
    invariants.check(two.broker)
    assert two.broker.next_id == one.broker.next_id


def test_follower_detects_removed_segments_it_has_not_read(members: tuple[Member, Member]) -> None:
    one, two = members
    one.lead()
    one.put(b"a" * SEGMENT)
    one.commit()
    two.read()
    while two.follower.recovery.segments[-1].file in one.rows.list():
        one.put(b"a" * 1000)
        for id in list(one.broker.jobs):
            finishing.delete(one.broker, one.client, id, START)
        one.commit()
    with pytest.raises(PositionLost):
        two.read()


def test_journals_of_different_names_share_a_database(cluster: Cluster) -> None:
    mail, news = Member(cluster.url, "mail", "one"), Member(cluster.url, "news", "two")
    for member in (mail, news):
        member.lead()
        member.put(member.lease.journal_name.encode())
        member.commit()
    again = Member(cluster.url, "news", "three")
    again.read()
    assert [job.body for job in again.broker.jobs.values()] == [b"news"]
    for member in (mail, news, again):
        member.close()


def test_standbys_are_listed_until_they_leave_or_time_out(members: tuple[Member, Member], cluster: Cluster) -> None:
    one, two = members
    two.lease.report_standby(0.25)
    [standby] = one.lease.standbys()
    assert standby.name == "two" and 0.25 <= standby.behind < 60
    cluster.ask("UPDATE greenstalk_standby SET seen = 'epoch'")
    assert one.lease.standbys() == []
    two.lease.report_standby(0.0)
    two.lease.remove_standby()
    assert one.lease.standbys() == []


def test_tables_of_a_later_version_are_refused(cluster: Cluster, members: tuple[Member, Member]) -> None:
    cluster.ask("UPDATE greenstalk_schema SET version = version + 1")
    try:
        with pytest.raises(StartError, match="a later version of the server has made the tables"):
            members[0].lease.open()
    finally:
        cluster.ask("UPDATE greenstalk_schema SET version = version - 1")


def test_database_error_is_reported(members: tuple[Member, Member]) -> None:
    with pytest.raises(DatabaseRefused, match='relation "nothing" does not exist'):
        members[0].lease.connection.run("SELECT 1 FROM nothing")


def test_next_leader_has_moves_groups_policies_and_keys(members: tuple[Member, Member], cluster: Cluster) -> None:
    one, two = members
    one.lead()
    broker, journal = one.broker, one.journal
    ids = [broker.allocate_id() for _ in range(3)]
    group = [Job(id, broker.tube(b"t%d" % id), b"%d" % id, 0, 0, SECOND, START) for id in ids]
    assert journal.put_group(group)
    for job in group:
        broker.jobs.set(job)
    journal.policy("mail", b"{}")
    journal.key(b"mail", b"key", 10**6, 2**63)
    one.commit()
    two.read()
    moved, source = group[0], group[0].tube
    moved.tube, moved.expires_from = broker.tube(b"failed"), 7
    moved.events = job_history.add(b"", job_history.DEAD_LETTERED, START, job_history.NOBODY)
    journal.move(moved, source)
    one.commit()
    take_over(two, cluster)
    assert {id: (job.tube.name, job.expires_from) for id, job in two.broker.jobs.items()} == {
        ids[0]: (b"failed", 7),
        ids[1]: (b"t%d" % ids[1], 0),
        ids[2]: (b"t%d" % ids[2], 0),
    }
    recovery = two.follower.recovery
    assert (recovery.policies, recovery.keys) == ({"mail": b"{}"}, {(b"mail", b"key"): (10**6, 2**63)})


def test_large_batch_is_read_in_slices_of_whole_groups() -> None:
    """A standby serves clients between two slices. A group that is cut would count as damage."""
    encoder = Encoder(b"salt")
    jobs = [Job(id, Tube(b"t%d" % (id % 3), {}), bytes(id % 100), 0, 0, SECOND, START) for id in range(1, 3001)]
    parts, sequence = [SegmentHeader(b"salt", 1, 1, 1).encode()], 1
    for begin in range(0, len(jobs), 750):
        parts.append(encoder.group(750, sequence))
        parts += [encoder.job(job, sequence + number) for number, job in enumerate(jobs[begin : begin + 750], 1)]
        sequence += 751
    parts.append(encoder.delete(2, sequence))
    whole, sliced = _recovery(), _recovery()
    data = b"".join(parts)
    whole.replay(name_of(1), 1, data, is_newest=True)
    pieces = list(slices(data, SEGMENT_HEADER_SIZE))
    assert b"".join(pieces) == data and len(pieces) > 2
    sliced.replay(name_of(1), 1, pieces[0], is_newest=True)
    for piece in pieces[1:]:
        sliced.extend(piece)
    assert whole.damage == sliced.damage == []
    assert whole.jobs.keys() == sliced.jobs.keys() == {job.id for job in jobs} - {2}
    assert (whole.sequence, whole.records) == (sliced.sequence, sliced.records)
    torn = data[:100_000] + b"X" + data[100_001:]
    assert b"".join(slices(torn, SEGMENT_HEADER_SIZE)) == torn


def _recovery() -> Recovery:
    broker = make_broker()
    return Recovery(broker.tube, broker.jobs)


def test_standby_forgets_expired_keys(members: tuple[Member, Member]) -> None:
    """The leader records no expiry of a key: the standby drops the key when the segment with the key is removed."""
    one, two = members
    one.lead()
    kept = one.broker.retained_keys.table
    for at in range(100):
        name = b"key%d" % at
        if not at:
            kept[b"mail", name] = at + 1, 2**63
        one.journal.key(b"mail", name, at + 1, 2**63)
        assert finishing.delete(one.broker, None, one.put(bytes(SEGMENT // 10)), START)
        one.commit()
    two.read()
    assert (b"mail", b"key0") in two.follower.recovery.keys
    assert len(two.follower.recovery.keys) < 60
    assert two.follower.recovery.keys.keys() == two.follower.recovery.entries.keys()
