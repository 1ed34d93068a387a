"""Faults: leaders that lose power, locks, broken connections, late statements, and changed clocks and settings."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from uuid import UUID

import psycopg
import pytest

from greenstalk_server.cluster.leadership import TAKEOVER_DELAY, Candidate
from greenstalk_server.journal.postgresql.connection import (
    APPLICATION,
    MAX_LOCK_TIMEOUTS,
    DatabaseConnection,
    DatabaseRefused,
    DatabaseUnavailable,
    Hosts,
    LockTimeout,
    NotLeader,
    conninfo_of,
)
from greenstalk_server.journal.postgresql.follower import PositionLost
from greenstalk_server.journal.postgresql.lease import LeaderLease, LeaseState
from greenstalk_server.journal.postgresql.rows import MAX_ROW_SIZE
from greenstalk_server.journal.postgresql.schema import MIGRATE, SCHEMA_LOCK
from greenstalk_server.journal.segment import name_of
from greenstalk_server.journal.startup import write_out
from tests.failover.test_process import CyclicQueue
from tests.journal.workload import record_rewrite_step
from tests.postgresql.test_journal import Member, bodies, take_over
from tests.support.cluster import Cluster
from tests.support.daemon import TIMEOUT
from tests.support.nodes import wait_until

DURATION = 2.0
"""Seconds of a lease."""


@pytest.fixture
def members(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[tuple[Member, Member]]:
    """Two servers of a journal that only this test uses, with a short lease that neither renews."""
    both = tuple([Member(cluster.url, request.node.name, name, DURATION) for name in ("one", "two")])
    yield both[0], both[1]
    for member in both:
        member.close()


def session_of(member: Member, cluster: Cluster) -> psycopg.Connection:
    """Return a session that *member* has left open at PostgreSQL, as after a loss of power of its machine."""
    return psycopg.connect(cluster.url, application_name=f"{APPLICATION} {member.lease.holder_id} append")


def insert(connection: psycopg.Connection, member: Member, segment: int) -> None:
    """Insert an incomplete row into *segment*, as the first statement of a large batch does."""
    query = "INSERT INTO greenstalk_batch VALUES (%s, %s, 0, true, '')"
    connection.execute(query, (member.lease.journal, segment))


def expire_lease(cluster: Cluster, member: Member) -> None:
    cluster.ask(f"UPDATE greenstalk_journal SET lease_until = 'epoch' WHERE id = {member.lease.journal}")  # noqa: S608


def in_thread(function: Callable[[], None]) -> threading.Thread:
    """Run *function* in a new thread, and return the thread."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def test_half_sent_batch_of_the_former_leader_does_not_block_a_takeover(
    members: tuple[Member, Member], cluster: Cluster
) -> None:
    """The batch has rows of the segment that the next leader begins, and a lock on the journal's row."""
    one, two = members
    one.lead()
    one.put(b"a")
    one.commit()
    expire_lease(cluster, one)
    with session_of(one, cluster) as left:
        insert(left, one, 2)
        left.execute("SELECT 1 FROM greenstalk_journal WHERE id = %s FOR SHARE", (one.lease.journal,))
        began = time.monotonic()
        two.lead()
        two.put(b"b")
        two.commit()
        assert time.monotonic() - began < DURATION
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
    assert cluster.ask(f"SELECT data <> '' FROM greenstalk_batch WHERE journal = {one.lease.journal}") == [(True,)]  # noqa: S608


def test_connections_from_before_exec_are_terminated(members: tuple[Member, Member], cluster: Cluster) -> None:
    one, two = members
    one.lead()
    former = str(one.lease.holder_id)
    lease = LeaderLease(conninfo_of(cluster.url, "--journal"), "default", "again", DURATION, former=former)
    lease.open()
    names = {name for (name,) in cluster.ask("SELECT application_name FROM pg_stat_activity")}
    assert not any(str(one.lease.holder_id) in str(name) for name in names)
    assert any(str(two.lease.holder_id) in str(name) for name in names)
    lease.close()


def test_start_does_not_wait_for_a_migration_by_another_server(
    cluster: Cluster, members: tuple[Member, Member]
) -> None:
    with psycopg.connect(cluster.url) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", (SCHEMA_LOCK,))
        members[0].lease.open()


def test_migration_waits_for_another_migration_until_the_lock_timeout(cluster: Cluster) -> None:
    cluster.ask("CREATE DATABASE migrated")
    url = cluster.url.replace("/greenstalk", "/migrated")
    lease = LeaderLease(conninfo_of(url, "--journal"), "default", "one", DURATION)
    with psycopg.connect(url) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", (SCHEMA_LOCK,))
        with pytest.raises(LockTimeout):
            lease.open()
    lease.open()
    lease.close()


def test_servers_that_start_together_on_a_new_database_migrate_it_once(cluster: Cluster) -> None:
    cluster.ask("CREATE DATABASE together")
    url = cluster.url.replace("/greenstalk", "/together")
    lease = LeaderLease(conninfo_of(url, "--journal"), "default", "second", TIMEOUT)
    query = "SELECT FROM pg_stat_activity WHERE datname = 'together' AND wait_event_type = 'Lock'"
    with psycopg.connect(url) as first, ThreadPoolExecutor() as pool:
        first.execute(MIGRATE.encode())
        second = pool.submit(lease.open)
        wait_until(lambda: bool(cluster.ask(query)), lambda: "the second server does not wait")
        first.commit()
        second.result()
    lease.close()


def test_session_is_replaced_after_many_lock_timeouts(cluster: Cluster) -> None:
    """The session may be one of a former primary, whose locks are held by commits that wait for a lost standby."""
    connection = DatabaseConnection(Hosts(conninfo_of(cluster.url, "--journal")), "locked", 0.1)
    with psycopg.connect(cluster.url) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", (SCHEMA_LOCK,))
        [(first,)] = connection.run("SELECT pg_backend_pid()")
        for _ in range(MAX_LOCK_TIMEOUTS):
            with pytest.raises(LockTimeout):
                connection.run("SELECT pg_advisory_lock(%s)", (SCHEMA_LOCK,))
        assert connection.run("SELECT pg_backend_pid()") != [(first,)]
    connection.close()


def test_late_copy_of_a_takeover_has_no_effect(members: tuple[Member, Member], cluster: Cluster) -> None:
    one, _ = members
    seen = one.lease.read_state()
    one.lead()
    assert one.lease.acquire(seen) is None
    one.put(b"a")
    one.commit()
    assert one.lease.read_state().epoch == 1


def test_leader_steps_down_when_another_process_raises_the_epoch(
    members: tuple[Member, Member], cluster: Cluster
) -> None:
    one, _ = members
    one.lead()
    assert not one.lease.renew()
    cluster.ask(f"UPDATE greenstalk_journal SET epoch = epoch + 1 WHERE id = {one.lease.journal}")  # noqa: S608
    with pytest.raises(NotLeader, match="the epoch is 2, which this server has not set"):
        one.lease.renew()
    one.put(b"a")
    with pytest.raises(NotLeader):
        write_out(one.journal)
    assert one.rows.lost == "another server has taken over"


def test_renewal_after_the_end_of_the_lease_has_no_effect(members: tuple[Member, Member], cluster: Cluster) -> None:
    one, two = members
    one.lead()
    expire_lease(cluster, one)
    with pytest.raises(NotLeader, match="the lease was over before it could be renewed"):
        one.lease.renew()
    assert two.lease.read_state().is_free


def test_append_in_doubt_blocks_appends_and_removals_until_the_epoch_is_raised(
    members: tuple[Member, Member], cluster: Cluster
) -> None:
    """A late copy of the append still has the current epoch, and could restore jobs that were deleted since."""
    one, two = members
    one.lead()
    one.put(b"a")
    one.commit()
    cluster.ask(
        f"""CREATE FUNCTION refuse() RETURNS trigger AS 'BEGIN RAISE ''not now''; END' LANGUAGE plpgsql;
            CREATE TRIGGER refuse BEFORE UPDATE OF epoch ON greenstalk_journal FOR EACH ROW
            WHEN (OLD.id = {one.lease.journal}) EXECUTE FUNCTION refuse()"""
    )
    refused: list[DatabaseRefused] = []

    def write() -> None:
        try:
            write_out(one.journal)
        except DatabaseRefused as error:
            refused.append(error)

    try:
        with psycopg.connect(cluster.url) as blocker:
            blocker.execute("SELECT 1 FROM greenstalk_journal WHERE id = %s FOR UPDATE", (one.lease.journal,))
            one.put(b"b")
            writer = in_thread(write)
            append = f"application_name = '{APPLICATION} {one.lease.holder_id} append' AND wait_event_type = 'Lock'"
            query = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {append}"  # noqa: S608
            wait_until(lambda: bool(cluster.ask(query)), lambda: "the append does not wait for the lock")
        writer.join(TIMEOUT)
        assert [str(error) for error in refused] == ["PostgreSQL: not now"]
        remover = in_thread(lambda: one.rows.remove(name_of(9)))
        one.journal.note_failure(refused[0])
        assert record_rewrite_step(one.journal)
        with pytest.raises(DatabaseRefused, match="not now"):
            write_out(one.journal)
        remover.join(0.3)
        assert remover.is_alive()
    finally:
        cluster.ask("DROP FUNCTION refuse CASCADE")
    one.journal.note_failure(refused[0])
    assert record_rewrite_step(one.journal)
    one.commit()
    remover.join(TIMEOUT)
    assert not remover.is_alive()
    assert one.lease.read_state().epoch == 2
    take_over(two, cluster)
    assert sorted(body for body in bodies(two).values() if body) == [b"a", b"b"]


@pytest.mark.parametrize("size", [1, 2 * MAX_ROW_SIZE + 1])
def test_append_that_waits_for_a_lock_keeps_its_connection_and_is_not_in_doubt(
    members: tuple[Member, Member], cluster: Cluster, size: int
) -> None:
    one, two = members
    one.lead()
    name = f"{APPLICATION} {one.lease.holder_id} append"
    backends = f"SELECT pid FROM pg_stat_activity WHERE application_name = '{name}'"  # noqa: S608
    one.put(b"a")
    one.commit()
    before = cluster.ask(backends)
    with psycopg.connect(cluster.url) as other:
        other.execute("LOCK TABLE greenstalk_batch IN ACCESS EXCLUSIVE MODE")
        one.put(bytes(size))
        writer = in_thread(one.commit)
        writer.join(DURATION)
        assert writer.is_alive() and cluster.ask(backends) == before
    writer.join(TIMEOUT)
    assert not writer.is_alive() and cluster.ask(backends) == before
    take_over(two, cluster)
    assert two.lease.read_state().epoch == 2
    assert sorted(len(body) for body in bodies(two).values() if body) == [1, size]


def test_leader_steps_down_on_rows_that_it_has_not_read(members: tuple[Member, Member], cluster: Cluster) -> None:
    """Otherwise it would take these rows for its own, and acknowledge records that were never inserted."""
    one, _ = members
    one.lead()
    with psycopg.connect(cluster.url) as other:
        insert(other, one, 1)
    one.put(b"a")
    with pytest.raises(NotLeader, match="rows that this server has not read"):
        write_out(one.journal)
    assert one.rows.lost


def test_follower_restarts_on_a_server_that_lacks_rows_it_has_read(
    members: tuple[Member, Member], cluster: Cluster
) -> None:
    """An asynchronous standby that was promoted is an example."""
    one, two = members
    one.lead()
    one.put(b"a")
    one.commit()
    two.read()
    cluster.ask(f"UPDATE greenstalk_batch SET data = '' WHERE journal = {one.lease.journal}")  # noqa: S608
    two.read()
    reader = f"application_name = '{APPLICATION} {two.lease.holder_id} read'"
    cluster.ask(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {reader}")  # noqa: S608
    with pytest.raises(DatabaseUnavailable):
        two.read()
    with pytest.raises(PositionLost):
        two.read()


def test_takeover_fails_if_the_follower_has_read_from_another_server(
    members: tuple[Member, Member],
) -> None:
    one, two = members
    epoch = one.acquire()
    assert epoch == 1
    two.read()
    with pytest.raises(DatabaseUnavailable, match="the connection has changed while the journal was read"):
        two.follower.finish(epoch)


def test_commit_with_a_cancelled_standby_wait_is_not_acknowledged() -> None:
    """An operator who sees commits hang may cancel them. PostgreSQL then reports success, with a warning."""
    with Cluster() as cluster:
        one = Member(cluster.url, "default", "one", 3600.0)
        one.lead()
        set_standbys(cluster, "nobody")
        try:
            one.put(b"a")
            writer = in_thread(one.commit)
            append = f"application_name = '{APPLICATION} {one.lease.holder_id} append' AND wait_event = 'SyncRep'"
            query = f"SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE {append}"  # noqa: S608
            for _ in range(3):
                wait_until(lambda: bool(cluster.ask(query)), lambda: "the append does not wait for a standby")
                writer.join(0.3)
                assert writer.is_alive(), "a commit without a standby was acknowledged"
            set_standbys(cluster, "")
            writer.join(TIMEOUT)
            assert not writer.is_alive()
            assert len(cluster.ask("SELECT FROM greenstalk_batch")) == 1
        finally:
            one.close()


def set_standbys(cluster: Cluster, names: str) -> None:
    """Make commits wait for the synchronous standbys *names*."""
    cluster.ask(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
    cluster.ask("SELECT pg_reload_conf()")
    wait_until(partial(is_set, cluster, f"synchronous_standby_names = '{names}'"), partial(str, names))


def is_set(cluster: Cluster, change: str) -> bool:
    """Return whether a new session has the setting *change*."""
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
            lease = LeaderLease(conninfo_of(cluster.url, "--journal"), "default", "one", DURATION)
            assert lease.risk().startswith(risk) and bool(lease.risk()) == bool(risk)
            lease.close()


@pytest.mark.parametrize("duration", [1.0, 2.0, 600.0])
def test_slow_answer_does_not_lose_the_lead(cluster: Cluster, duration: float) -> None:
    """A renewal that times out leaves time for a second one, even with the shortest lease."""
    lease = LeaderLease(conninfo_of(cluster.url, "--journal"), "default", "one", duration)
    assert lease.heartbeat_interval + lease.connection.timeout < duration * 0.7


def test_unrenewed_lease_ends_after_the_database_clock_is_set_back(cluster: Cluster) -> None:
    """The clock of the primary, or of a standby that was promoted, is set back by 30 seconds."""
    lease = LeaderLease(conninfo_of(cluster.url, "--journal"), "default", "one", DURATION)
    candidate = Candidate(lease, CyclicQueue, is_strict=False)
    seen = LeaseState(1, False, False, "two", False, UUID(int=1), 10**15, 0.2)
    assert not candidate.may_lead(seen)
    assert not candidate.may_lead(replace(seen, remaining=30.2))
    time.sleep(0.2 + TAKEOVER_DELAY)
    assert candidate.may_lead(replace(seen, remaining=30.0))
    assert not candidate.may_lead(replace(seen, remaining=2.0, lease_until=10**15 + 1))
