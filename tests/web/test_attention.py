"""The conditions that need attention: each measure, the tracker, the trends, the thresholds, and the monitor."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from flask.testing import FlaskClient

from greenstalk_server.cluster.status import ClusterStatus
from greenstalk_server.config.tables.thresholds import DEFAULTS, Thresholds, ThresholdSet, find_errors
from greenstalk_server.core.jobs.body_cache import Bodies
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.limits import Limits
from greenstalk_server.core.operations import connecting, editing, finishing, policy_changes, reserving, ticking
from greenstalk_server.core.policies.policy import parse_policy
from greenstalk_server.web.features.conditions import measures
from greenstalk_server.web.features.conditions.measures import (
    BURIED,
    CRITICAL,
    DISK,
    FAILURE,
    KINDS,
    LIMIT,
    NO_CONSUMERS,
    OLDEST_READY,
    WARNING,
    Link,
    LongestReservation,
    Measure,
    ServerSample,
    TubeSample,
    TubeTrend,
    rank,
    server_measures,
    tube_measures,
)
from greenstalk_server.web.features.conditions.monitor import ConditionMonitor
from greenstalk_server.web.features.conditions.tracker import CLEAR_TIME, Tracker
from greenstalk_server.web.features.conditions.trends import WINDOW, Growth, Trend
from tests.support.daemon import COMMAND, MINDING_SIGNALS, TIMEOUT, Daemon
from tests.support.log import Log
from tests.support.peer import eventually

from .conftest import Queue
from .visit import FLAGS

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE

CALM = TubeSample(
    name=b"mail",
    now=TubeTrend(),
    growth=Growth(WINDOW, TubeTrend()),
    watching=1,
    oldest=0,
    paused=0,
    pause_left=0,
    held_back="",
    limits=(),
    dead_letter=b"",
    held=None,
)


def tube(grown: TubeTrend | None = None, **changes: Any) -> TubeSample:
    sample = CALM._replace(**changes)
    return sample if grown is None else sample._replace(growth=Growth(WINDOW, grown))


def ready(count: int) -> TubeTrend:
    return TubeTrend(ready=count, jobs=count)


def found(sample: TubeSample, thresholds: Thresholds = DEFAULTS) -> dict[str, Measure]:
    """Return the measures of *sample* that have reached their threshold, by kind."""
    return {one.kind.name: one for one in tube_measures(sample, thresholds) if one.ratio >= 1}


def of_server(thresholds: Thresholds = DEFAULTS, **changes: Any) -> dict[str, Measure]:
    sample = ServerSample(**changes)
    return {one.kind.name: one for one in server_measures(sample, thresholds) if one.ratio >= 1}


def plain(measure: Measure) -> str:
    return measure.sentence.replace("\xa0", " ")


# Conditions of tubes: for each one, a sample beyond the threshold, one below it, and the sentence.

BEYOND: dict[str, tuple[TubeSample, TubeSample, str, dict[str, str]]] = {
    "no_consumers": (
        tube(now=ready(3), watching=0, oldest=7 * MINUTE),
        tube(now=ready(3), watching=1, oldest=7 * MINUTE),
        "3 jobs of “mail” are ready, but no worker watches the tube: the oldest has waited for 7 min.",
        {},
    ),
    "oldest_ready": (
        tube(now=ready(1), watching=2, oldest=15 * MINUTE),
        tube(now=ready(1), watching=2, oldest=15 * MINUTE - 1),
        "1 job of “mail” is ready, and the oldest has waited for 15 min: 2 workers watch the tube.",
        {},
    ),
    "held_back": (
        tube(now=ready(5), held_back="rate", oldest=HOUR),
        tube(now=ready(0), held_back="rate", oldest=0),
        "5 jobs of “mail” are ready, but the policy setting rate holds them back: the oldest has waited for 1 h.",
        {},
    ),
    "paused": (
        tube(now=ready(2), paused=HOUR, pause_left=90 * SECOND),
        tube(now=ready(2), paused=HOUR - 1, pause_left=90 * SECOND),
        "2 jobs of “mail” are ready, but the tube is paused: the pause began 1 h ago and ends in 1 min 30 s.",
        {},
    ),
    "backlog_growth": (
        tube(TubeTrend(ready=1000), now=ready(4000)),
        tube(TubeTrend(ready=999), now=ready(4000)),
        "4,000 jobs of “mail” are ready, 1,000 more than 15 minutes ago.",
        {},
    ),
    "buried": (
        tube(now=TubeTrend(buried=540), oldest_buried=2 * HOUR, buries=Growth(HOUR, (12,))),
        tube(now=TubeTrend(buried=0)),
        "540 jobs of “mail” are buried, the oldest for 2 h; 12 in the last hour.",
        {"state": "buried"},
    ),
    "waiting_dead_letters": (
        tube(now=TubeTrend(ready=2, jobs=3), reserved=1, is_dead_letter_tube=True, oldest=HOUR),
        tube(now=TubeTrend(ready=0, jobs=1), reserved=1, is_dead_letter_tube=True),
        "2 dead letters wait in “mail”, the oldest for 1 h.",
        {"tube": "mail"},
    ),
    "buried_growth": (
        tube(TubeTrend(buried=10), now=TubeTrend(buried=715)),
        tube(TubeTrend(buried=9), now=TubeTrend(buried=715)),
        "10 more jobs of “mail” are buried than 15 minutes ago: 715 in all.",
        {"state": "buried"},
    ),
    "timeouts": (
        tube(TubeTrend(timeouts=118, reserves=400)),
        tube(TubeTrend(timeouts=9, reserves=9)),
        "118 reservations of “mail” timed out in the last 15 minutes, in which 400 jobs were reserved.",
        {"state": "reserved"},
    ),
    "failed_attempts": (
        tube(TubeTrend(releases=900, timeouts=4, buries=6, reserves=1000, deletes=44)),
        tube(TubeTrend(releases=900, reserves=2000)),
        (
            "910 of 1,000 attempts of “mail” ended by release, timeout or burial in the last 15 minutes: a job takes 20"
            " on average."
        ),
        {},
    ),
    "dead_letters": (
        tube(TubeTrend(dead_letters=1), dead_letter=b"mail.failed"),
        tube(TubeTrend(dead_letters=0), dead_letter=b"mail.failed"),
        "1 job of “mail” became a dead letter in the last 15 minutes, which is in “mail.failed”.",
        {"tube": "mail.failed"},
    ),
    "held_job": (
        tube(held=LongestReservation(id=42, time=2 * HOUR, worker=7, workers=1)),
        tube(held=LongestReservation(id=42, time=HOUR - 1, worker=7, workers=0)),
        "Connection 7 has held job 42 of “mail” for 2 h.",
        {"number": "7"},
    ),
    "limit": (
        tube(now=ready(95), limits=(("max_jobs", 95, 100),)),
        tube(now=ready(89), limits=(("max_jobs", 89, 100),)),
        "“mail” has 95 of at most 100 jobs (max_jobs).",
        {},
    ),
}


FAILURES = {"buried", "waiting_dead_letters", "buried_growth"}


@pytest.mark.parametrize("kind", BEYOND)
def test_condition_of_a_tube_begins_at_its_threshold(kind: str) -> None:
    beyond, below, sentence, args = BEYOND[kind]
    measure = found(beyond)[kind]
    assert plain(measure) == sentence
    assert (measure.severity, measure.tube) == (FAILURE if kind in FAILURES else WARNING, b"mail")
    assert measure.link.args.items() >= args.items()
    assert kind not in found(below)


@pytest.mark.parametrize("kind", BEYOND)
def test_threshold_of_zero_turns_the_condition_off(kind: str) -> None:
    settings = {"limit_used": 0, "limit_within": 0} if kind == "limit" else {kind: 0}
    thresholds = ThresholdSet({"tubes": {"mail": settings}}).of_tube(b"mail")
    assert kind not in found(BEYOND[kind][0], thresholds)


def test_every_condition_of_a_tube_is_tested() -> None:
    assert {kind.name for kind in KINDS if kind.rest} == set(BEYOND)


def test_one_sentence_explains_why_jobs_wait() -> None:
    old: dict[str, Any] = {"now": ready(9), "oldest": 9 * HOUR}
    assert set(found(tube(**old))) == {"oldest_ready"}
    assert set(found(tube(watching=0, **old))) == {"no_consumers"}
    assert set(found(tube(paused=2 * HOUR, pause_left=HOUR, watching=0, **old))) == {"paused"}
    assert set(found(tube(paused=MINUTE, pause_left=HOUR, **old))) == set(), "the pause is the reason"
    assert set(found(tube(held_back="rate", **old))) == {"held_back"}


def test_few_timeouts_among_many_reservations_are_no_condition() -> None:
    assert "timeouts" not in found(tube(TubeTrend(timeouts=40, reserves=1000)))
    assert "timeouts" in found(tube(TubeTrend(timeouts=50, reserves=1000)))
    (near,) = tube_measures(tube(TubeTrend(timeouts=45, reserves=1000)), DEFAULTS)
    assert near.ratio == pytest.approx(0.9), "a condition that is active continues"


def test_growing_backlog_says_when_it_reaches_a_limit() -> None:
    limits = (("max_jobs", 40_000, 100_000), ("--max-tube-jobs", 40_000, 70_000))
    measure = found(tube(TubeTrend(ready=15_000, jobs=15_000), now=ready(40_000), limits=limits))["backlog_growth"]
    assert plain(measure).endswith("; at this rate it reaches --max-tube-jobs in 30 min.")


def test_limit_that_is_reached_soon_is_a_condition() -> None:
    limits = (("max_bytes", 500_000_000, 10**9),)
    soon = found(tube(TubeTrend(bytes=500_000_000), limits=limits))["limit"]
    assert plain(soon) == (
        "“mail” has 500 MB of at most 1.0 GB (max_bytes); at the rate of the last 15 minutes it is reached in 15 min."
    )
    assert soon.severity == WARNING
    assert "limit" not in found(tube(TubeTrend(bytes=100_000_000), limits=limits)), "it takes longer than an hour"
    assert "limit" not in found(tube(TubeTrend(bytes=-1), limits=limits)), "it shrinks"
    assert found(tube(TubeTrend(bytes=800_000_000), limits=limits))["limit"].severity == CRITICAL, "within ten minutes"


def test_several_workers_that_hold_for_long_are_counted() -> None:
    measure = found(tube(held=LongestReservation(id=42, time=2 * HOUR, worker=7, workers=3)))["held_job"]
    assert plain(measure) == ("3 workers have held a job of “mail” too long: connection 7 has held job 42 for 2 h.")
    assert measure.link == Link("connections", {"q": "mail", "sort": "held"})


# Conditions of the server


@pytest.mark.parametrize(
    ("kind", "severity", "beyond", "below", "sentence"),
    [
        (
            "journal", CRITICAL, {"journal_error": "disk gone"}, {},
            (
                "The journal cannot be written: disk gone. Puts are refused, and no change is acknowledged until writes"
                " succeed."
            ),
        ),
        ("disk", CRITICAL, {"is_disk_full": True}, {}, "The journal's disk is full: puts are refused."),
        (
            "disk", CRITICAL, {"disk_free": 999_000_000}, {"disk_free": 1_001_000_000},
            "999 MB are free on the journal's disk. Puts are refused when it is full.",
        ),
        (
            "disk", WARNING,
            {"disk_free": 10**10, "disk_growth": Growth(HOUR, (-(10**10) // 5,))},
            {"disk_free": 10**10, "disk_growth": Growth(HOUR, (-(10**10) // 7,))},
            (
                "10.0 GB are free on the journal's disk; at the rate of the last hour it is full in 5 h, and puts are"
                " refused then."
            ),
        ),
        (
            "memory", WARNING, {"memory": (900, 1000)}, {"memory": (899, 1000)},
            "Jobs use 900 bytes of the 1.0 kB that --memory-limit allows.",
        ),
        (
            "memory", CRITICAL, {"memory": (990, 1000), "is_memory_full": True}, {"memory": (100, 1000)},
            "Jobs use 990 bytes of the 1.0 kB that --memory-limit allows: puts are refused.",
        ),
        (
            "memory", WARNING, {"machine_memory": (15_200_000_000, 16_000_000_000)}, {"machine_memory": (15, 16)},
            (
                "15.2 GB of the machine's 16.0 GB of memory are in use. When no memory is left, the kernel kills"
                " processes."
            ),
        ),
        (
            "limit", WARNING,
            {"limits": (("--max-jobs", "job", 90, Growth(WINDOW, (0,)), 100),)},
            {"limits": (("--max-jobs", "job", 89, Growth(WINDOW, (0,)), 100),)},
            "The server has 90 of at most 100 jobs (--max-jobs).",
        ),
        (
            "refused", WARNING, {"refused": {"tubes": 2}}, {"refused": {"tubes": 0}},
            (
                "Uses and watches refused: the maximum number of tubes was reached (--max-tubes): 2 times in the last"
                " 15 minutes."
            ),
        ),
        (
            "shard", CRITICAL, {"silent_shards": (2,)}, {"silent_shards": ()},
            "The process of shard 2 does not answer: commands for its tubes and jobs wait.",
        ),
        (
            "standby", WARNING, {"standby": -1}, {"standby": None},
            "No standby follows this server: if it fails, no other server can take over.",
        ),
        (
            "standby", WARNING, {"standby": 20 * SECOND}, {"standby": SECOND},
            "The most recent standby is 20 s behind: a takeover would take that much longer.",
        ),
        (
            "moving", WARNING, {"moves": ((1, 3, SECOND), (2, 12, 90 * SECOND))}, {"moves": ((2, 12, 59 * SECOND),)},
            "12 jobs are moving to shard 2, the first for 1 min 30 s.",
        ),
    ],
)  # fmt: skip
def test_condition_of_the_server_begins_at_its_threshold(
    kind: str, severity: str, beyond: dict[str, Any], below: dict[str, Any], sentence: str
) -> None:
    measure = of_server(**beyond)[kind]
    assert (measure.severity, plain(measure), measure.tube) == (severity, sentence, b"")
    assert kind not in of_server(**below)


# Trends


def test_trend_measures_the_growth_since_the_beginning_of_the_window() -> None:
    trend = Trend(0, (0,), window=150)
    growths = {now: trend.note(now, (now,)) for now in range(0, 500, 5)}
    assert growths[100] == Growth(100, (100,))
    for now in range(200, 500, 5):
        time, (grown,) = growths[now]
        assert time == 150 and 150 <= grown <= 170


# The tracker


def measure(ratio: float, kind: measures.Kind = OLDEST_READY, delay: int = 0, name: bytes = b"mail") -> Measure:
    return Measure(kind, WARNING, name, "", ratio, delay, ratio, 1, f"ratio {ratio}", Link("tube", {}))


class Rounds:
    """A tracker and a clock, in seconds."""

    def __init__(self) -> None:
        self.tracker = Tracker()
        self.second = 100
        self.tubes = {b"mail"}

    def pass_round(self, *found: Measure) -> list[tuple[str, int]]:
        """Run a round of five seconds; return the sentence and the start, in seconds, of each active condition."""
        now = self.second * SECOND
        self.tracker.observe(found, now)
        self.tracker.end_round(now, exists=self.tubes.__contains__)
        self.second += 5
        return [(one.measure.sentence, one.since // SECOND) for one in self.tracker.active()]


def test_condition_begins_at_the_threshold_and_shows_the_newest_number() -> None:
    rounds = Rounds()
    assert rounds.pass_round(measure(0.99)) == []
    assert rounds.pass_round(measure(1.0)) == [("ratio 1.0", 105)]
    assert rounds.pass_round(measure(3.0)) == [("ratio 3.0", 105)]


def test_value_around_the_threshold_does_not_flicker() -> None:
    rounds = Rounds()
    rounds.pass_round(measure(1.0))
    for ratio in (0.81, 1.1, 0.9, 0.85, 1.0) * 4:
        assert [since for _, since in rounds.pass_round(measure(ratio))] == [100]
    for _ in range(5):
        assert len(rounds.pass_round()) == 1, "low for less than CLEAR_TIME"
        assert len(rounds.pass_round()) == 1
        assert len(rounds.pass_round(measure(0.9))) == 1


def test_condition_ends_when_the_value_has_been_low_for_a_while() -> None:
    rounds = Rounds()
    rounds.pass_round(measure(1.0))
    lasting = [len(rounds.pass_round()) for _ in range(6)]
    assert lasting == [1] * (CLEAR_TIME // SECOND // 5) + [0] * 3
    assert rounds.pass_round(measure(1.0)) == [("ratio 1.0", 135)], "a new condition"


def test_fact_begins_after_its_delay_and_ends_at_once() -> None:
    rounds = Rounds()
    fact = measure(1.0, NO_CONSUMERS, delay=10 * SECOND)
    assert [rounds.pass_round(fact) for _ in range(3)] == [[], [], [("ratio 1.0", 100)]]
    assert rounds.pass_round() == []
    assert [len(rounds.pass_round(fact)) for _ in range(3)] == [0, 0, 1]


def test_worst_condition_comes_first() -> None:
    tracker = Tracker()
    some = [
        measure(9.0, name=b"a")._replace(jobs=2),
        measure(1.5, name=b"b")._replace(jobs=3),
        measure(1.0, NO_CONSUMERS, name=b"c")._replace(jobs=2, age=1),
        measure(1.0, BURIED, name=b"e")._replace(jobs=1, severity=FAILURE),
        measure(1.0, LIMIT, name=b"d")._replace(severity=CRITICAL),
        measure(1.0, DISK, name=b""),
    ]
    tracker.observe(some, SECOND)
    order = [(one.measure.kind.name, one.measure.tube) for one in sorted(tracker.active(), key=rank)]
    assert order == [
        ("limit", b"d"), ("buried", b"e"), ("disk", b""), ("oldest_ready", b"b"), ("no_consumers", b"c"),
        ("oldest_ready", b"a"),
    ]  # fmt: skip


# Thresholds


def test_most_specific_pattern_wins_for_each_key() -> None:
    thresholds = ThresholdSet(
        {
            "oldest_ready": "1h",
            "tubes": {
                "mail.*": {"oldest_ready": 1, "paused": 1, "held_job": 1},
                "mail.out*": {"oldest_ready": 2, "paused": 2},
                "mail.out": {"oldest_ready": 3},
            },
        }
    )
    seen = {name: thresholds.of_tube(name) for name in (b"mail.out", b"mail.outgoing", b"mail.in", b"web")}
    assert [each.oldest_ready // SECOND for each in seen.values()] == [3, 2, 1, 3600]
    assert [each.paused // SECOND for each in seen.values()] == [2, 2, 1, 3600]
    assert [each.held_job // SECOND for each in seen.values()] == [1, 1, 1, 3600]
    assert thresholds.server.oldest_ready == HOUR
    assert thresholds.of_tube(b"web") == thresholds.server


def test_every_mistake_is_found() -> None:
    document = {"paused": "soon", "pause": 1, "tubes": {"a b": {}, "mail": {"refused": 1, "timeouts": -1}}}
    assert [key for key, _ in find_errors(document)] == [
        "paused", "pause", "tubes.a b", "tubes.mail.refused", "tubes.mail.timeouts",
    ]  # fmt: skip
    assert find_errors({}) == find_errors({"tubes": {}}) == []


# The monitor, on a real broker


class Watched:
    """A queue and its monitor."""

    def __init__(self, queue: Queue, **options: Any) -> None:
        self.queue = queue
        self.monitor = ConditionMonitor(queue.broker, queue.clock, **options)
        self.monitor.tick()

    def run(self, seconds: int) -> dict[tuple[str, str], str]:
        """Evaluate once a second; return the sentences of the active conditions by kind and tube."""
        for _ in range(seconds):
            self.queue.now += SECOND
            ticking.tick(self.queue.broker, self.queue.now)
            self.monitor.tick()
        return {(measure.kind.name, measure.tube.decode()): plain(measure) for measure, _ in self.monitor.conditions}


def test_monitor_sees_jobs_without_consumers_after_five_minutes(queue: Queue) -> None:
    watched = Watched(queue)
    queue.put("mail")
    assert watched.run(290) == {}
    assert set(watched.run(15)) == {("no_consumers", "mail")}
    connecting.watch(queue.broker, queue.connect(), b"mail")
    assert watched.run(10) == {}
    assert set(watched.run(600)) == {("oldest_ready", "mail")}


def test_monitor_counts_what_happened_in_new_and_old_tubes(queue: Queue) -> None:
    for id in queue.put("old", count=50):
        finishing.bury_job(queue.broker, id, queue.now)
    watched = Watched(queue)
    assert watched.run(60) == {("buried", "old"): "50 jobs of “old” are buried, the oldest for 1 min; none new."}
    for name in ("old", "new"):
        for id in queue.put(name, count=12):
            finishing.bury_job(queue.broker, id, queue.now)
    assert watched.run(10) == {
        ("buried", "old"): ("62 jobs of “old” are buried, the oldest for 1 min 10 s; 12 in the last 1 min 10 s."),
        ("buried", "new"): "12 jobs of “new” are buried, the oldest for 10 s.",
        ("buried_growth", "new"): "12 more jobs of “new” are buried than 15 minutes ago: 12 in all.",
        ("buried_growth", "old"): "12 more jobs of “old” are buried than 15 minutes ago: 62 in all.",
    }
    seen = watched.run(4200)
    assert seen == {
        ("buried", "old"): "62 jobs of “old” are buried, the oldest for 1 h 11 min; none new.",
        ("buried", "new"): "12 jobs of “new” are buried, the oldest for 1 h 10 min; none new.",
    }, "the growth has left the window"
    for id in list(queue.broker.tubes[b"new"].buried):
        finishing.delete(queue.broker, None, id, queue.now)
    assert set(watched.run(10)) == {("buried", "old")}


def test_monitor_sees_timeouts_and_held_jobs(queue: Queue) -> None:
    watched = Watched(queue)
    worker = queue.connect()
    connecting.watch(queue.broker, worker, b"mail")
    queue.put("mail", count=12)
    for _ in range(12):
        assert reserving.reserve(queue.broker, worker, queue.now) is not None
    assert [measure for key, measure in watched.run(70).items() if key[0] == "timeouts"] == [
        "12 reservations of “mail” timed out in the last 15 minutes, in which 12 jobs were reserved."
    ]
    (id,) = queue.put("slow")
    job = reserving.reserve_job(queue.broker, worker, id, queue.now)
    assert job is not None
    for _ in range(121):
        reserving.touch(queue.broker, worker, id, queue.now)
        conditions = watched.run(30)
    assert conditions["held_job", "slow"].startswith(f"Connection {worker.number} has held job {id} of “slow” for 1 h")


def test_monitor_sees_pauses_and_policies(queue: Queue) -> None:
    document = {"tubes": ["capped"], "max_jobs": 10}
    policy_changes.set_file_policies(queue.broker, [parse_policy("cap", document)], queue.now)
    watched = Watched(queue)
    editing.pause_tube(queue.broker, b"default", 9 * 3600 * SECOND, queue.now)
    queue.put("default")
    queue.put("capped", count=10)
    connecting.watch(queue.broker, queue.connect(), b"capped")
    seen = watched.run(3610)
    assert seen["limit", "capped"] == "“capped” has 10 of at most 10 jobs (max_jobs): more are refused."
    assert seen["paused", "default"].startswith(
        "1 job of “default” is ready, but the tube is paused: the pause began 1 h ago and ends in 7 h 59 min"
    )


def test_dead_letter_tube_needs_no_consumers(queue: Queue) -> None:
    document = {"tubes": ["mail"], "max_jobs": 10, "max_attempts": 1, "dead_letter": "failed"}
    policy_changes.set_file_policies(queue.broker, [parse_policy("mail", document)], queue.now)
    watched = Watched(queue)
    worker = queue.connect()
    connecting.watch(queue.broker, worker, b"mail")
    for id in queue.put("mail", count=3):
        assert reserving.reserve_job(queue.broker, worker, id, queue.now) is not None
        finishing.release(queue.broker, worker, id, 0, 0, queue.now)
    assert watched.run(10) == {
        ("dead_letters", "mail"): "3 jobs of “mail” became dead letters in the last 15 minutes, which are in “failed”.",
        ("waiting_dead_letters", "failed"): "3 dead letters wait in “failed”, the oldest for 10 s.",
    }
    assert watched.run(3600) == {
        ("waiting_dead_letters", "failed"): "3 dead letters wait in “failed”, the oldest for 1 h.",
    }


def test_monitor_sees_limits_of_the_server(queue: Queue) -> None:
    queue.broker.bodies = Bodies(10_000, can_evict=False)
    watched = Watched(queue, limits=Limits(jobs=10, connections=1))
    queue.connect()
    queue.put("default", count=9)
    queue.broker.limit_counters.note("access")
    queue.broker.limit_counters.note("rate")
    watched.run(2)
    details = [(one.measure.detail, one.measure.severity) for one in watched.monitor.conditions]
    assert details == [("--max-connections", CRITICAL), ("--max-jobs", WARNING), ("access", WARNING)]
    assert [plain(one.measure) for one in watched.monitor.conditions] == [
        "The server has 1 of at most 1 connection (--max-connections): more are refused.",
        "The server has 9 of at most 10 jobs (--max-jobs).",
        "Commands that the access rules refused: 1 time in the last 15 minutes.",
    ]


# A real server


def test_monitor_sees_that_there_is_no_standby(queue: Queue) -> None:
    standbys: list[tuple[str, float]] = [("b", 0.5)]
    watched = Watched(queue, role=lambda: ClusterStatus(True, "j", "a", standbys=tuple(standbys)))
    assert watched.run(5) == {}
    standbys.clear()
    assert watched.run(55) == {}
    assert set(watched.run(10)) == {("standby", "")}


def conditions(daemon: Daemon) -> set[tuple[str, str]]:
    """Return the kind and tube of each active condition."""
    with urlopen(f"{daemon.dashboard}api/v1/attention", timeout=TIMEOUT) as response:  # noqa: S310  our own server
        return {(one["condition"], one["tube"]) for one in json.load(response)["conditions"]}


def test_sighup_applies_changed_thresholds(tmp_path: Path) -> None:
    file = tmp_path / "greenstalk.toml"
    file.write_text("[attention]\nno_consumers = 0\n")
    with Daemon(*FLAGS, "--config", str(file), command=(*MINDING_SIGNALS, *COMMAND)) as daemon:
        log = Log(daemon.process)
        daemon.ask(b"use mail\r\nput 0 0 60 2\r\nhi\r\n")
        file.write_text("[attention]\nno_consumer = 1\n")
        daemon.process.send_signal(signal.SIGHUP)
        refused = f"keeping the present policies and other settings: {file}:2: attention: unknown key 'no_consumer'"
        assert refused in log.find("settings")
        assert conditions(daemon) == set()
        file.write_text("[attention]\nno_consumers = 1\n")
        daemon.process.send_signal(signal.SIGHUP)
        assert f"applied the reloadable settings of {file} (SIGHUP)" in log.find("applied")
        eventually(lambda: conditions(daemon) == {("no_consumers", "mail")}, "the condition begins")


# The API and the page


def test_api_lists_the_conditions(queue: Queue, client: FlaskClient) -> None:
    monitor = client.application.extensions["dashboard"].attention
    assert client.get("/api/v1/attention").json == {"evaluated_at": None, "total": 0, "conditions": []}
    queue.put("a+b", count=3)
    for _ in range(310):
        monitor.tick()
        queue.now += SECOND
    answer = client.get("/api/v1/attention").json
    (condition,) = answer["conditions"]
    assert answer["total"] == 1 and answer["evaluated_at"].startswith("2027-")
    assert condition["sentence"].startswith("3 jobs of “a+b” are ready, but no worker watches the tube")
    assert (condition["condition"], condition["tube"], condition["limit"]) == ("no_consumers", "a+b", None)
    assert client.get(condition["link"]).status_code == 200


def test_panel_shows_the_five_worst_tubes_and_counts_the_others(queue: Queue, client: FlaskClient) -> None:
    monitor = client.application.extensions["dashboard"].attention
    for number in range(1300):
        queue.put(f"tube{number}")
    for _ in range(31):
        monitor.tick()
        queue.now += 10 * SECOND
    page = " ".join(client.get("/").text.split())
    assert "<title>(1,300) Tubes" in page
    assert 'data-badge="alerts">1,300<' in page
    assert 'favicon-warning.svg"' in page
    assert page.count('class="condition"') == 6
    assert '<a class="sentence" href="/attention">1,295 more</a>' in page
    assert "1,300 warnings" in page
    lines = client.get("/metrics").text.splitlines()
    assert len([line for line in lines if line.startswith("greenstalk_attention{")]) == 1000
    assert 'greenstalk_attention_conditions{condition="no_consumers"} 1300.0' in lines
    assert len(client.get("/api/v1/attention?limit=7").json["conditions"]) == 7
