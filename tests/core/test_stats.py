"""Counters and gauges in the stats of the server, tubes and jobs."""

from __future__ import annotations

from greenstalk_server.core.jobs.job import URGENT_BELOW
from greenstalk_server.core.operations import connecting, draining
from tests.support.world import START, World


def test_jobs_are_counted_by_state_and_only_ready_jobs_are_urgent(world: World) -> None:
    client = world.client(use=b"a", watch=[b"a"])
    for pri in (0, URGENT_BELOW - 1, URGENT_BELOW, URGENT_BELOW):
        client.put(pri)
    client.put(delay=9)
    client.put(pri=0, delay=9)
    for pri in (5, 9999):
        client.bury(int(client.reserve()), pri)
    client.reserve()
    tube, server = world.stats_tube(b"a"), world.stats()
    for stats in (tube, server):
        assert (
            stats.current_jobs_urgent,
            stats.current_jobs_ready,
            stats.current_jobs_reserved,
            stats.current_jobs_delayed,
            stats.current_jobs_buried,
            stats.total_jobs,
        ) == (0, 1, 1, 2, 2, 6)
    client.kick_job(1)
    assert world.stats().current_jobs_urgent == 1


def test_job_stats_show_its_history(world: World) -> None:
    client = world.client()
    id = client.put(pri=7, delay=2, ttr=30)
    world.advance(2.5)
    assert world.stats_job(id).age == 2
    client.reserve()
    client.release(id, pri=8, delay=4)
    world.advance(0.5)
    assert (world.stats_job(id).state, world.stats_job(id).time_left) == ("delayed", 3)
    world.advance(3.5)
    client.reserve()
    client.bury(id, pri=9)
    client.kick_job(id)
    client.reserve()
    world.advance(30)
    client.reserve()
    world.advance(0.1)
    stats = world.stats_job(id)
    assert (stats.id, stats.tube, stats.state, stats.pri, stats.age) == (id, "default", "reserved", 9, 36)
    assert (stats.delay, stats.ttr, stats.time_left, stats.file) == (4, 30, 29, 0)
    assert (stats.reserves, stats.timeouts, stats.releases, stats.buries, stats.kicks) == (4, 1, 1, 1, 1)


def test_tube_counts_its_pauses(world: World) -> None:
    client = world.client()
    for delay in (5, 0, 5):
        client.pause_tube(b"default", delay)
    assert world.stats_tube().cmd_pause_tube == 3


def test_producers_and_workers_are_counted_while_connected(world: World) -> None:
    client, other = world.client(), world.client()
    for _ in range(2):
        connecting.note_producer(world.broker, client.client)
        connecting.note_worker(world.broker, client.client)
    connecting.note_worker(world.broker, other.client)
    stats = world.stats()
    assert (stats.current_connections, stats.current_producers, stats.current_workers) == (2, 1, 2)
    client.disconnect()
    stats = world.stats()
    assert (stats.current_connections, stats.current_producers, stats.current_workers) == (1, 0, 1)
    assert stats.total_connections == 2


def test_uptime_and_facts_of_the_server(world: World) -> None:
    world.advance(61.5)
    stats = world.stats()
    assert (stats.uptime, stats.rusage_utime, stats.rusage_stime) == (61, 0.25, 1.5)
    assert world.broker.facts.started_at == START
    assert (stats.binlog_current_index, stats.binlog_max_size) == (0, 10485760)


def test_drain_is_shown_in_stats(world: World) -> None:
    assert not world.stats().draining
    draining.drain(world.broker)
    assert world.stats().draining
