"""Lost leaders, locks, broken connections and late packets: servers cope with what these leave at PostgreSQL."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from uuid import UUID

import psycopg
import pytest

from greenstalk_server.cluster.leadership import TAKEOVER_DELAY, Candidate
from greenstalk_server.journal.postgresql.connection import (
    APPLICATION,
    DatabaseUnavailable,
    Locked,
    NotLeader,
    Refused,
    conninfo_of,
)
from greenstalk_server.journal.postgresql.follower import LostTrack
from greenstalk_server.journal.postgresql.lease import LeaderLease, Standing
from greenstalk_server.journal.postgresql.rows import MAX_ROW_SIZE
from greenstalk_server.journal.postgresql.schema import SCHEMA_LOCK
from greenstalk_server.journal.segment import name_of
from greenstalk_server.journal.startup import write_out
from tests.failover.test_process import Kept
from tests.journal.workload import rewrite_step
from tests.postgresql.test_journal import Member, bodies, take_over
from tests.support.cluster import Cluster
from tests.support.daemon import PATIENCE
from tests.support.nodes import wait_until

LEASE = 2.0


@pytest.fixture
def members(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[tuple[Member, Member]]:
    """Two servers of a journal of the test's own, with a short lease that nobody renews."""
    both = tuple([Member(cluster.url, request.node.name, name, LEASE) for name in ("one", "two")])
    yield both[0], both[1]
    for member in both:
        member.close()


def session_of(member: Member, cluster: Cluster) -> psycopg.Connection:
    """A session as *member* left it to PostgreSQL when its machine lost power."""
    return psycopg.connect(cluster.url, application_name=f"{APPLICATION} {member.seat.me} append")


def insert(connection: psycopg.Connection, member: Member, segment: int) -> None:
    """Do what the first half of a large batch does."""
    query = "INSERT INTO greenstalk_batch VALUES (%s, %s, 0, true, '')"
    connection.execute(query, (member.seat.journal, segment))


def expire_lease(cluster: Cluster, member: Member) -> None:
    cluster.ask(f"UPDATE greenstalk_journal SET lease_until = 'epoch' WHERE id = {member.seat.journal}")  # noqa: S608


def in_thread(function: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def test_half_sent_batch_of_the_former_leader_does_not_block_a_takeover(
    members: tuple[Member, Member], cluster: Cluster
) -> None:
    """It has rows of the very segment that the next leader begins, and a lock of the journal's row."""
    one, two = members
    one.lead()
    one.put(b"a")
    one.commit()
    expire_lease(cluster, one)
    with session_of(one, cluster) as left:
        insert(left, one, 2)
        left.execute("SELECT 1 FROM greenstalk_journal WHERE id = %s FOR SHARE", (one.seat.journal,))
        began = time.monotonic()
        two.lead()
        two.put(b"b")
        two.commit()
        assert time.monotonic() - began < LEASE
        with pytest.raises(psycopg.errors.AdminShutdown):
            left.execute("SELECT 1")
    assert sorted(body for body in bodies(two).values() if body) == [b"a", b"b"]


def test_leader_terminates_the_half_sent_batch_of_its_broken_connection(
    members: tuple[Member, Member], cluster: Cluster
) -> None:
    one, _ = members
    one.lead()
    with session_of(one, cluster) as left:
        insert(left, one, 1)
        one.put(b"a")
        one.commit()
        with pytest.raises(psycopg.errors.AdminShutdown):
            left.execute("SELECT 1")
    assert cluster.ask(f"SELECT data <> '' FROM greenstalk_batch WHERE journal = {one.seat.journal}") == [(True,)]  # noqa: S608


def test_connections_from_before_exec_are_terminated(members: tuple[Member, Member], cluster: Cluster) -> None:
    one, two = members
    one.lead()
    seat = LeaderLease(conninfo_of(cluster.url, "--journal"), "default", "again", LEASE, former=str(one.seat.me))
    seat.open()
    names = {name for (name,) in cluster.ask("SELECT application_name FROM pg_stat_activity")}
    assert not any(str(one.seat.me) in str(name) for name in names)
    assert any(str(two.seat.me) in str(name) for name in names)
    seat.close()


def test_start_does_not_wait_for_a_migration_elsewhere(cluster: Cluster, members: tuple[Member, Member]) -> None:
    with psycopg.connect(cluster.url) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", (SCHEMA_LOCK,))
        members[0].seat.open()


def test_migration_waits_for_another_at_most_its_timeout(cluster: Cluster) -> None:
    cluster.ask("CREATE DATABASE migrated")
    url = cluster.url.replace("/greenstalk", "/migrated")
    seat = LeaderLease(conninfo_of(url, "--journal"), "default", "one", LEASE)
    with psycopg.connect(url) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", (SCHEMA_LOCK,))
        with pytest.raises(Locked):
            seat.open()
    seat.open()
    seat.close()


def test_late_copy_of_a_takeover_has_no_effect(members: tuple[Member, Member], cluster: Cluster) -> None:
    one, _ = members
    seen = one.seat.look()
    one.lead()
    assert one.seat.take(seen) is None
    one.put(b"a")
    one.commit()
    assert one.seat.look().epoch == 1


def test_leader_steps_down_when_another_process_raises_the_epoch(
    members: tuple[Member, Member], cluster: Cluster
) -> None:
    one, _ = members
    one.lead()
    assert not one.seat.renew()
    cluster.ask(f"UPDATE greenstalk_journal SET epoch = epoch + 1 WHERE id = {one.seat.journal}")  # noqa: S608
    with pytest.raises(NotLeader, match="the epoch is 2, which this server has not set"):
        one.seat.renew()
    one.put(b"a")
    with pytest.raises(NotLeader):
        write_out(one.binlog)
    assert one.rows.lost == "another server has taken over"


def test_renewal_after_the_end_of_the_lease_has_no_effect(members: tuple[Member, Member], cluster: Cluster) -> None:
    one, two = members
    one.lead()
    expire_lease(cluster, one)
    with pytest.raises(NotLeader, match="the lease was over before it could be renewed"):
        one.seat.renew()
    assert two.seat.look().is_free


def test_append_in_doubt_blocks_appends_and_removals_until_the_epoch_is_raised(
    members: tuple[Member, Member], cluster: Cluster
) -> None:
    """A late copy of the append, which still counts, would bring back what was deleted since."""
    one, two = members
    one.lead()
    one.put(b"a")
    one.commit()
    cluster.ask(
        f"""CREATE FUNCTION refuse() RETURNS trigger AS 'BEGIN RAISE ''not now''; END' LANGUAGE plpgsql;
            CREATE TRIGGER refuse BEFORE UPDATE OF epoch ON greenstalk_journal FOR EACH ROW
            WHEN (OLD.id = {one.seat.journal}) EXECUTE FUNCTION refuse()"""
    )
    refused: list[Refused] = []

    def write() -> None:
        try:
            write_out(one.binlog)
        except Refused as error:
            refused.append(error)

    try:
        with psycopg.connect(cluster.url) as blocker:
            blocker.execute("SELECT 1 FROM greenstalk_journal WHERE id = %s FOR UPDATE", (one.seat.journal,))
            one.put(b"b")
            writer = in_thread(write)
            append = f"application_name = '{APPLICATION} {one.seat.me} append' AND wait_event_type = 'Lock'"
            query = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {append}"  # noqa: S608
            wait_until(lambda: bool(cluster.ask(query)), lambda: "the append waits for nothing")
        writer.join(PATIENCE)
        assert [str(error) for error in refused] == ["PostgreSQL: not now"]
        remover = in_thread(lambda: one.rows.remove(name_of(9)))
        one.binlog.failed(refused[0])
        assert rewrite_step(one.binlog)
        with pytest.raises(Refused, match="not now"):
            write_out(one.binlog)
        remover.join(0.3)
        assert remover.is_alive()
    finally:
        cluster.ask("DROP FUNCTION refuse CASCADE")
    one.binlog.failed(refused[0])
    assert rewrite_step(one.binlog)
    one.commit()
    remover.join(PATIENCE)
    assert not remover.is_alive()
    assert one.seat.look().epoch == 2
    take_over(two, cluster)
    assert sorted(body for body in bodies(two).values() if body) == [b"a", b"b"]


@pytest.mark.parametrize("size", [1, 2 * MAX_ROW_SIZE + 1])
def test_append_that_waits_for_a_lock_keeps_its_connection_and_is_not_in_doubt(
    members: tuple[Member, Member], cluster: Cluster, size: int
) -> None:
    one, two = members
    one.lead()
    backends = f"SELECT pid FROM pg_stat_activity WHERE application_name = '{APPLICATION} {one.seat.me} append'"  # noqa: S608
    one.put(b"a")
    one.commit()
    before = cluster.ask(backends)
    with psycopg.connect(cluster.url) as other:
        other.execute("LOCK TABLE greenstalk_batch IN ACCESS EXCLUSIVE MODE")
        one.put(bytes(size))
        writer = in_thread(one.commit)
        writer.join(LEASE)
        assert writer.is_alive() and cluster.ask(backends) == before
    writer.join(PATIENCE)
    assert not writer.is_alive() and cluster.ask(backends) == before
    take_over(two, cluster)
    assert two.seat.look().epoch == 2
    assert sorted(len(body) for body in bodies(two).values() if body) == [1, size]


def test_leader_steps_down_on_rows_that_it_has_not_read(members: tuple[Member, Member], cluster: Cluster) -> None:
    """Else what it acknowledges would be left out, as if it were there already."""
    one, _ = members
    one.lead()
    with psycopg.connect(cluster.url) as other:
        insert(other, one, 1)
    one.put(b"a")
    with pytest.raises(NotLeader, match="rows that this server has not read"):
        write_out(one.binlog)
    assert one.rows.lost


def test_follower_restarts_on_a_server_that_lacks_rows_it_has_read(
    members: tuple[Member, Member], cluster: Cluster
) -> None:
    """An asynchronous standby that was promoted, say."""
    one, two = members
    one.lead()
    one.put(b"a")
    one.commit()
    two.read()
    cluster.ask(f"UPDATE greenstalk_batch SET data = '' WHERE journal = {one.seat.journal}")  # noqa: S608
    two.read()
    reader = f"application_name = '{APPLICATION} {two.seat.me} read'"
    cluster.ask(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {reader}")  # noqa: S608
    with pytest.raises(DatabaseUnavailable):
        two.read()
    with pytest.raises(LostTrack):
        two.read()


def test_takeover_fails_if_the_follower_has_read_from_another_server(
    members: tuple[Member, Member],
) -> None:
    one, two = members
    epoch = one.take()
    assert epoch == 1
    two.read()
    with pytest.raises(DatabaseUnavailable, match="the connection has changed while the journal was read"):
        two.follower.finish(epoch)


def test_commit_with_a_cancelled_standby_wait_is_not_acknowledged() -> None:
    """PostgreSQL answers it with success, and a warning; so an operator may think of it who sees commits hang."""
    with Cluster() as cluster:
        one = Member(cluster.url, "default", "one", 3600.0)
        one.lead()
        set_standbys(cluster, "nobody")
        try:
            one.put(b"a")
            writer = in_thread(one.commit)
            append = f"application_name = '{APPLICATION} {one.seat.me} append' AND wait_event = 'SyncRep'"
            query = f"SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE {append}"  # noqa: S608
            for _ in range(3):
                wait_until(lambda: bool(cluster.ask(query)), lambda: "the append does not wait for a standby")
                writer.join(0.3)
                assert writer.is_alive(), "acknowledged, and on no standby"
            set_standbys(cluster, "")
            writer.join(PATIENCE)
            assert not writer.is_alive()
            assert len(cluster.ask("SELECT FROM greenstalk_batch")) == 1
        finally:
            one.close()


def set_standbys(cluster: Cluster, names: str) -> None:
    """Have commits wait for the standbys *names*."""
    cluster.ask(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
    cluster.ask("SELECT pg_reload_conf()")
    wait_until(partial(is_set, cluster, f"synchronous_standby_names = '{names}'"), partial(str, names))


def is_set(cluster: Cluster, change: str) -> bool:
    """Whether a new session has the setting *change*."""
    name, _, value = change.partition(" = ")
    return cluster.ask(f"SHOW {name}") == [(value.strip("'"),)]


def test_settings_that_may_lose_acknowledged_jobs_are_named() -> None:
    settings = ("fsync = off", "synchronous_standby_names = 'nobody'", "synchronous_commit = local")
    with Cluster(*settings) as cluster:
        for change, risk in (
            ("fsync = off", "fsync is off: "),
            ("fsync = on", "synchronous_commit is local: a failover"),
            ("synchronous_commit = off", "synchronous_commit is off: "),
            ("synchronous_standby_names = ''", "synchronous_commit is off: "),
            ("synchronous_commit = local", ""),
        ):
            cluster.ask(f"ALTER SYSTEM SET {change}")
            cluster.ask("SELECT pg_reload_conf()")
            wait_until(partial(is_set, cluster, change), partial(str, change))
            seat = LeaderLease(conninfo_of(cluster.url, "--journal"), "default", "one", LEASE)
            assert seat.risk().startswith(risk) and bool(seat.risk()) == bool(risk)
            seat.close()


@pytest.mark.parametrize("lease", [1.0, 2.0, 600.0])
def test_slow_answer_does_not_lose_the_lead(cluster: Cluster, lease: float) -> None:
    """Two renewals in a row may be without an answer, even with the shortest lease."""
    seat = LeaderLease(conninfo_of(cluster.url, "--journal"), "default", "one", lease)
    assert seat.heartbeat_interval + seat.connection.timeout < lease * 0.7


def test_unrenewed_lease_ends_after_the_database_clock_is_set_back(cluster: Cluster) -> None:
    """The primary's clock, or that of the standby which is promoted, is half a minute behind."""
    seat = LeaderLease(conninfo_of(cluster.url, "--journal"), "default", "one", LEASE)
    candidate = Candidate(seat, Kept, is_strict=False)
    seen = Standing(1, False, False, "two", False, UUID(int=1), 10**15, 0.2)
    assert not candidate.may_lead(seen)
    assert not candidate.may_lead(replace(seen, remaining=30.2))
    time.sleep(0.2 + TAKEOVER_DELAY)
    assert candidate.may_lead(replace(seen, remaining=30.0))
    assert not candidate.may_lead(replace(seen, remaining=2.0, lease_until=10**15 + 1))
