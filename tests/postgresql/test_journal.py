"""The rows of a journal: appends by the leader, reads by a follower, and several journals in a database."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import psycopg
import pytest

from greenstalk_server.core.broker import Broker
from greenstalk_server.journal.postgresql.connection import DatabaseUnavailable, NotLeader, Refused, conninfo_of
from greenstalk_server.journal.postgresql.follower import Follower, LostTrack
from greenstalk_server.journal.postgresql.lease import LeaderLease
from greenstalk_server.journal.postgresql.rows import MAX_ROW_SIZE, Rows
from greenstalk_server.journal.postgresql.writer import SharedBinlog
from greenstalk_server.journal.recovery import Recovery
from greenstalk_server.journal.segment import name_of
from greenstalk_server.journal.startup import go_on, write_out
from greenstalk_server.runtime.exit_codes import StartError
from tests.support.cluster import Cluster
from tests.support.world import START, make_broker

SEGMENT = 4096
HOUR = 3600.0


class Member:
    """One server of a journal, without its sockets: it follows, leads, and puts jobs."""

    def __init__(self, url: str, journal: str, name: str, lease: float = HOUR) -> None:
        self.seat: LeaderLease = LeaderLease(conninfo_of(url, "--journal"), journal, name, lease)
        self.seat.open()
        self.rows: Rows = Rows(self.seat)
        self.binlog: SharedBinlog = SharedBinlog(self.rows, SEGMENT, 0, os.urandom)
        self.broker: Broker = Broker(make_broker().facts, self.binlog)
        self.follower: Follower = Follower(self.seat, Recovery(self.broker.tube, self.broker.jobs))

    def read(self) -> None:
        """Read all there is."""
        while rows := self.follower.fetch():
            self.follower.replay(rows)

    def take(self) -> int | None:
        """Take the lead, if it is free; return the epoch."""
        seen = self.seat.look()
        return self.seat.take(seen) if seen.is_free or seen.is_mine else None

    def lead(self) -> None:
        """Take over, which must be possible."""
        epoch = self.take()
        assert epoch is not None
        self.read()
        self.follower.finish(epoch)
        self.rows.begin(epoch)
        go_on(self.follower.recovery, self.broker, self.binlog, START)
        self.broker.restore(self.follower.recovery.next_id)
        self.client = self.broker.connect(lambda: None)

    def put(self, body: bytes) -> int:
        """Put a job; it is committed with the next batch."""
        id = self.broker.allocate_id()
        assert self.broker.put(self.client, id, 0, 0, 60 * 10**9, body, START) > 0
        return id

    def commit(self) -> None:
        """Commit all that was recorded, and let compaction go on and old segments go."""
        write_out(self.binlog)
        self.binlog.compact(SEGMENT)
        upkeep = self.binlog.upkeep()
        if upkeep is not None:
            upkeep.run()
            self.binlog.kept(upkeep)

    def close(self) -> None:
        self.rows.shut()
        self.follower.connection.close()
        self.seat.close()


@pytest.fixture
def members(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[tuple[Member, Member]]:
    """Two servers of a journal of the test's own."""
    both = (Member(cluster.url, request.node.name, "one"), Member(cluster.url, request.node.name, "two"))
    yield both
    for member in both:
        member.close()


def take_over(member: Member, cluster: Cluster) -> None:
    """Lead although the lease of another server has not ended."""
    cluster.ask(f"UPDATE greenstalk_journal SET lease_until = 'epoch' WHERE id = {member.seat.journal}")  # noqa: S608
    member.lead()


def bodies(member: Member) -> dict[int, bytes]:
    """Return the bodies of the jobs of *member* by id."""
    return {id: job.body for id, job in member.broker.jobs.items()}


def test_only_one_server_leads_until_its_lease_ends(members: tuple[Member, Member], cluster: Cluster) -> None:
    one, two = members
    one.lead()
    assert one.seat.look().is_mine and not one.seat.look().is_free
    assert two.take() is None
    assert not one.seat.renew()
    take_over(two, cluster)
    assert (two.seat.look().is_mine, two.seat.look().leader, two.seat.look().epoch) == (True, "two", 2)
    with pytest.raises(DatabaseUnavailable, match="terminating connection"):
        one.seat.renew()
    with pytest.raises(NotLeader, match="two leads now"):
        one.seat.renew()
    two.seat.release()
    assert one.seat.look().is_free
    assert one.take() == 3


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
        write_out(one.binlog)
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
        write_out(one.binlog)
    assert two.rows.list() == before


def test_broken_connection_is_replaced_and_no_row_is_duplicated(
    members: tuple[Member, Member], cluster: Cluster
) -> None:
    """Its backend ends before a batch, and in the midst of one that waits for a lock."""
    one, two = members
    one.lead()
    ids = [one.put(b"a")]
    one.commit()
    others = "FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
    cluster.ask(f"SELECT pg_terminate_backend(pid) {others} AND query LIKE '%INSERT INTO greenstalk_batch%'")
    ids.append(one.put(b"b"))
    one.commit()
    with psycopg.connect(cluster.url) as blocker:
        blocker.execute("SELECT 1 FROM greenstalk_journal WHERE id = %s FOR UPDATE", (one.seat.journal,))
        ids.append(one.put(b"c"))
        writer = threading.Thread(target=one.commit)
        writer.start()
        waiting = f"SELECT pid {others} AND wait_event_type = 'Lock' AND query LIKE '%INSERT%'"
        while not (found := cluster.ask(waiting)):
            assert writer.is_alive()
        cluster.ask(f"SELECT pg_terminate_backend({found[0][0]})")
        blocker.rollback()
    writer.join()
    assert one.seat.look().epoch > 1, "each new connection raises the epoch"
    take_over(two, cluster)
    assert list(two.broker.jobs) == ids
    assert two.follower.recovery.is_sound and not two.follower.recovery.damage


def test_follower_has_the_same_state_as_the_leader(members: tuple[Member, Member], cluster: Cluster) -> None:
    """While segments come and go; and what it keeps of them is no more than the leader has."""
    one, two = members
    one.lead()
    for number in range(400):
        one.put(b"%d" % number * 20)
        if number % 3:
            job = one.broker.reserve(one.client, START)
            assert job is not None
            one.broker.delete(one.client, job.id, START)
        one.commit()
        two.read()
    assert one.binlog.stats().oldest_index > 5, "segments were removed"
    assert len(two.follower.recovery.segments) <= len(one.rows.list()) + 1
    assert bodies(two) == bodies(one)
    take_over(two, cluster)
    two.broker.check()
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
            one.broker.delete(one.client, id, START)
        one.commit()
    with pytest.raises(LostTrack):
        two.read()


def test_journals_of_different_names_share_a_database(cluster: Cluster) -> None:
    mail, news = Member(cluster.url, "mail", "one"), Member(cluster.url, "news", "two")
    for member in (mail, news):
        member.lead()
        member.put(member.seat.journal_name.encode())
        member.commit()
    again = Member(cluster.url, "news", "three")
    again.read()
    assert [job.body for job in again.broker.jobs.values()] == [b"news"]
    for member in (mail, news, again):
        member.close()


def test_standbys_are_listed_and_forgotten(members: tuple[Member, Member], cluster: Cluster) -> None:
    one, two = members
    two.seat.follow(0.25)
    [standby] = one.seat.standbys()
    assert standby.name == "two" and 0.25 <= standby.behind < 60
    cluster.ask("UPDATE greenstalk_standby SET seen = 'epoch'")
    assert one.seat.standbys() == []
    two.seat.follow(0.0)
    two.seat.leave()
    assert one.seat.standbys() == []


def test_tables_of_a_later_version_are_refused(cluster: Cluster, members: tuple[Member, Member]) -> None:
    cluster.ask("UPDATE greenstalk_schema SET version = version + 1")
    try:
        with pytest.raises(StartError, match="a later version of the server has made the tables"):
            members[0].seat.open()
    finally:
        cluster.ask("UPDATE greenstalk_schema SET version = version - 1")


def test_database_error_is_reported(members: tuple[Member, Member]) -> None:
    with pytest.raises(Refused, match='relation "nothing" does not exist'):
        members[0].seat.connection.run("SELECT 1 FROM nothing")
