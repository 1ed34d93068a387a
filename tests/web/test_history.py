"""The history in fake time: rates, rings, gaps, tubes that come and go, and what it takes of memory and of the loop."""

from __future__ import annotations

import gc
import random
import sys
import types
import weakref
from math import isnan, nan

import gevent
import pytest

from greenstalk_server.core.client import Client
from greenstalk_server.core.job import BURIED, SECOND
from greenstalk_server.web.metrics.history import ITEMS_A_STEP, TUBES_AT_MOST, History, Rates
from greenstalk_server.web.metrics.rings import DAY, DEPTHS, HOUR, RATES, SERIES, Calendar, Points, quantile

from .conftest import Queue
from .turns import LoopIterations, until

CODE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)


class Watched:
    """A queue whose history ticks as time goes by."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.broker = queue.broker
        self.history = History(queue.broker, queue.clock)

    def go_on(self, seconds: int, step: int = 1) -> None:
        for _ in range(0, seconds, step):
            self.queue.now += step * SECOND
            self.history.tick()

    def pass_over(self, seconds: int) -> None:
        """Let time go by without a look, which is a gap."""
        self.queue.now += seconds * SECOND
        self.history.tick()

    def worker(self, tube: str) -> Client:
        client = self.queue.connect()
        self.broker.watch(client, tube.encode())
        self.broker.use(client, tube.encode())
        return client

    def put(self, client: Client, count: int = 1, ttr: int = 60) -> None:
        for _ in range(count):
            id = self.broker.allocate_id()
            assert self.broker.put(client, id, 0, 0, ttr * SECOND, b"", self.queue.now) > 0

    def delete(self, client: Client, count: int = 1) -> None:
        """Reserve and delete."""
        for _ in range(count):
            job = self.broker.reserve(client, self.queue.now)
            assert job is not None and self.broker.delete(client, job.id, self.queue.now)

    def size(self) -> int:
        """Bytes of the history and its broker, and all that they refer to, code aside."""
        seen: dict[int, object] = {}
        found: list[object] = [self.history]
        while found:
            seen |= {id(each): each for each in found}
            found = [each for each in gc.get_referents(*found) if id(each) not in seen and not isinstance(each, CODE)]
        return sum(map(sys.getsizeof, seen.values()))

    def last(self, tube: str | None, series: str, points: int = 1) -> list[float]:
        return self.history.spark(tube.encode() if tube else None, series, points)


@pytest.fixture
def watched(queue: Queue) -> Watched:
    return Watched(queue)


def loose(values: list[float]) -> list[float | None]:
    """Unknown as None, which equals itself."""
    return [None if isnan(value) else round(value, 4) for value in values]


# Rates


def test_rates_are_means_of_the_last_ten_seconds(watched: Watched) -> None:
    mail = watched.worker("mail")
    watched.go_on(20)
    for _ in range(10):
        watched.put(mail, 3)
        watched.delete(mail, 2)
        watched.go_on(1)
    assert watched.history.rates(b"mail") == Rates(put=3, reserve=2, delete=2)
    assert watched.history.total_rates() == Rates(put=3, reserve=2, delete=2)
    watched.go_on(5)
    assert watched.history.rates(b"mail") == Rates(put=1.5, reserve=1, delete=1)
    watched.go_on(5)
    assert watched.history.rates(b"mail") == Rates()
    watched.put(mail, 10)
    watched.go_on(1)
    assert watched.history.rates(b"mail") == Rates(put=1)


def test_rates_of_a_server_that_has_just_started(watched: Watched) -> None:
    mail = watched.worker("mail")
    assert watched.history.rates(b"mail") == Rates()
    watched.put(mail, 6)
    watched.go_on(2)
    assert watched.history.rates(b"mail").put == 3


def test_rates_of_an_unknown_tube(watched: Watched) -> None:
    assert watched.history.rates(b"nowhere") == Rates()
    assert watched.history.spark(b"nowhere", "put") == []


def test_what_was_before_does_not_count(queue: Queue) -> None:
    queue.put("mail", count=500)
    watched = Watched(queue)
    queue.put("mail", count=10)
    watched.go_on(10)
    assert watched.history.rates(b"mail").put == 1
    assert watched.last("mail", "ready") == [510]


def test_every_kind_counts(watched: Watched) -> None:
    mail, broker = watched.worker("mail"), watched.broker
    watched.go_on(10)
    watched.put(mail, 7, ttr=1)
    jobs = [broker.reserve(mail, watched.queue.now) for _ in range(7)]
    now = watched.queue.now
    ids = [job.id for job in jobs if job is not None]
    assert broker.delete(mail, ids[0], now)
    assert all(broker.bury(mail, id, 0, now) for id in ids[1:3])
    assert all(broker.release(mail, id, 0, 0, now) for id in ids[3:6])
    assert broker.kick(broker.tubes[b"mail"], BURIED, 1, now) == 1
    broker.tick(now + SECOND)  # the last one times out
    watched.go_on(10)
    expected = Rates(put=0.7, reserve=0.7, delete=0.1, bury=0.2, timeout=0.1, release=0.3, kick=0.1)
    assert watched.history.rates(b"mail") == pytest.approx(expected)
    assert [watched.last("mail", kind)[0] for kind in RATES] == pytest.approx(expected)
    assert [watched.last("mail", state) for state in DEPTHS] == [[5], [0], [0], [1], [0]]


# Points


def test_points_of_the_hour(watched: Watched) -> None:
    mail = watched.worker("mail")
    watched.put(mail, 20)
    watched.go_on(10)
    watched.put(mail, 5)
    watched.go_on(9)
    assert loose(watched.last("mail", "put", 3)) == [None, None, 2]
    watched.go_on(1)
    assert loose(watched.last("mail", "put", 3)) == [None, 2, 0.5]
    assert loose(watched.last("mail", "ready", 3)) == [None, 20, 25]
    watched.go_on(10)
    assert loose(watched.last("mail", "put", 3)) == [2, 0.5, 0]
    columns = watched.history.columns(b"mail", HOUR)
    assert columns.end == watched.queue.now // SECOND
    assert list(columns.series) == list(SERIES)
    assert {key for key, values in columns.series.items() if any(loose(values))} == {"put", "ready"}


def test_points_of_the_day(watched: Watched) -> None:
    mail = watched.worker("mail")
    watched.put(mail, 600)
    watched.go_on(300)
    watched.delete(mail, 300)
    watched.go_on(299)
    assert loose(watched.history.columns(b"mail", DAY).series["put"][-2:]) == [None, 2]
    watched.go_on(1)
    columns = watched.history.columns(b"mail", DAY)
    assert columns.step == 300
    assert columns.end == watched.queue.now // SECOND
    last = {key: loose(values[-3:]) for key, values in columns.series.items()}
    assert last["put"] == [None, 2, 0]
    assert last["delete"] == [None, 0, 1]
    assert last["ready"] == [None, 600, 300]
    assert last["wait_p50"][:2] == [None, None]
    assert last["wait_p50"][2] == pytest.approx(300, rel=1)


def test_rings_turn(watched: Watched) -> None:
    """After a day and more, each ring holds its last points and nothing older."""
    mail = watched.worker("mail")
    watched.put(mail, 1000)
    watched.go_on(DAY.step * DAY.points, step=2)
    assert watched.history.columns(b"mail", DAY).series["put"][0] == pytest.approx(1000 / 300)
    for at in range(HOUR.points):
        watched.put(mail, at)
        watched.go_on(10, step=2)
    hour = watched.history.columns(b"mail", HOUR)
    assert hour.series["put"] == pytest.approx([at / 10 for at in range(HOUR.points)])
    watched.go_on(10, step=2)
    assert watched.history.columns(b"mail", HOUR).series["put"][0] == pytest.approx(0.1)
    day = watched.history.columns(b"mail", DAY).series["put"]
    assert len(day) == DAY.points
    assert not any(day[:-12]), "the first five minutes of the day before are gone"
    assert day[-12:] == pytest.approx([(30 * at + 14.5) / 10 for at in range(12)])


def test_memory_stays_when_the_rings_are_full(watched: Watched) -> None:
    mail = watched.worker("mail")

    def day() -> int:
        for _ in range(DAY.points):
            watched.put(mail, 2)
            watched.go_on(100, step=2)
            watched.delete(mail, 2)
            watched.go_on(200, step=2)
        return watched.size()

    first, second, third = day(), day(), day()
    assert first > 20_000
    assert abs(second - first) < 200 and abs(third - second) < 200, (first, second, third)


def test_tube_used_once_takes_little_memory(watched: Watched) -> None:
    def use_once(names: range) -> int:
        for number in names:
            client = watched.worker(f"once-{number}")
            watched.put(client)
            watched.delete(client)
            watched.broker.disconnect(client, watched.queue.now)
        watched.go_on(DAY.step, step=2)
        return watched.size()

    before = use_once(range(100))
    assert use_once(range(100, 200)) - before < 100 * 3000


def test_points_kept_as_rows_read_like_rings() -> None:
    rng = random.Random(7)  # noqa: S311
    points, calendar = Points(HOUR), Calendar(HOUR, 0)
    expected: list[list[float]] = []
    for point in range(3 * HOUR.points):
        is_busy = rng.random() < (0.01 if point < HOUR.points else 0.2)
        values = [float(rng.randrange(3)) * is_busy for _ in SERIES[:-4]] + [float(is_busy) or nan] * 4
        points.write(point, values)
        calendar.close(point)
        expected.append(values)
        for series in (0, len(SERIES) - 1):
            read = calendar.read(points.ring(series), 0, 0.0 if series == 0 else nan, HOUR.points)
            known = [row[series] for row in expected[-HOUR.points :]]
            assert loose(read[-len(known) :]) == loose(known)


def test_a_gap_is_unknown(watched: Watched) -> None:
    mail = watched.worker("mail")
    watched.put(mail, 10)
    watched.go_on(25)
    watched.put(mail, 1000)
    watched.pass_over(40)
    assert watched.history.rates(b"mail") == Rates()
    watched.put(mail, 20)
    watched.go_on(5)
    assert watched.history.rates(b"mail").put == 4, "over the five seconds that are known"
    watched.go_on(10)
    # The first two points are known, the next four are not, and of the one after its last five seconds are.
    for name in ("mail", None):
        assert loose(watched.last(name, "put", 8)) == [1, 0, None, None, None, None, 4, 0]
    assert loose(watched.last("mail", "ready", 3)) == [None, 1030, 1030]


def test_a_gap_longer_than_the_ring(watched: Watched) -> None:
    mail = watched.worker("mail")
    watched.put(mail, 10)
    watched.go_on(600)
    watched.pass_over(3 * 86400)
    watched.go_on(310)
    for span, known in ((HOUR, 31), (DAY, 1)):
        columns = watched.history.columns(b"mail", span)
        assert columns.end == watched.queue.now // SECOND // span.step * span.step
        series = columns.series["ready"]
        assert [isnan(value) for value in series] == [True] * (span.points - known) + [False] * known


def test_a_late_look_is_no_gap(watched: Watched) -> None:
    mail = watched.worker("mail")
    watched.go_on(10)
    watched.put(mail, 30)
    watched.queue.now += 3 * SECOND
    watched.history.tick()
    assert watched.history.rates(b"mail").put == 3


# Tubes that come and go


def test_a_tube_of_a_moment_is_remembered(watched: Watched) -> None:
    """It is made, used and dropped between two looks."""
    watched.go_on(10)
    client = watched.worker("moment")
    watched.put(client)
    watched.delete(client)
    watched.broker.disconnect(client, watched.queue.now)
    assert b"moment" not in watched.broker.tubes
    watched.go_on(10)
    assert watched.history.rates(b"moment") == Rates(put=0.1, reserve=0.1, delete=0.1)
    for name in ("moment", None):
        assert [watched.last(name, key)[0] for key in ("put", "reserve", "delete")] == pytest.approx([0.1] * 3)
        assert watched.last(name, "run_p50") == [0]


def test_a_tube_that_comes_back_goes_on(watched: Watched) -> None:
    """Its counters start at zero each time, several times in a second."""
    watched.go_on(10)
    for _ in range(10):
        for _ in range(3):
            client = watched.worker("mail")
            watched.put(client, 2)
            watched.delete(client, 2)
            watched.broker.disconnect(client, watched.queue.now)
        watched.go_on(1)
    assert watched.history.rates(b"mail") == Rates(put=6, reserve=6, delete=6)
    assert watched.history.total_rates() == Rates(put=6, reserve=6, delete=6)
    assert watched.last("mail", "put") == [6]
    assert watched.last(None, "put") == [6]


def test_a_tube_that_is_only_used_leaves_nothing(watched: Watched) -> None:
    client = watched.worker("idle")
    watched.broker.disconnect(client, watched.queue.now)
    watched.go_on(10)
    assert not watched.history.has(b"idle")


def test_a_history_outlives_its_tube(watched: Watched) -> None:
    client = watched.worker("mail")
    watched.put(client, 10)
    watched.go_on(10)
    watched.delete(client, 10)
    watched.broker.disconnect(client, watched.queue.now)
    watched.go_on(50)
    assert loose(watched.last("mail", "delete", 6)) == [0, 1, 0, 0, 0, 0]
    assert loose(watched.last("mail", "ready", 6)) == [10, 0, 0, 0, 0, 0]


def test_a_flood_of_tubes_is_bounded(watched: Watched) -> None:
    """Tubes of one job each, ten times as many as may have a history; one that is worked with stays."""
    mail, count = watched.worker("mail"), 0

    def flood(tubes: int) -> int:
        nonlocal count
        for _ in range(tubes // 500):
            watched.put(mail)
            for _ in range(500):
                client = watched.worker(f"reply.{count}")
                watched.put(client)
                watched.delete(client)
                watched.broker.disconnect(client, watched.queue.now)
                count += 1
            watched.go_on(1)
        return watched.size()

    watched.go_on(9)
    full, later = flood(5000), flood(5000)
    assert later < full * 1.02, (full, later)
    assert watched.history.total_rates() == Rates(put=501, reserve=500, delete=500)
    assert sum(watched.history.has(b"reply.%d" % at) for at in range(count)) == TUBES_AT_MOST - 1
    watched.go_on(11)
    assert loose(watched.last("mail", "put", 4)) == [0.1, 1, 0.9, 0]


def test_who_gives_way(watched: Watched) -> None:
    """Those in use are kept; an hour after its last activity a tube gives way, the one that is quiet for longest."""
    clients = [watched.worker(f"t{at}") for at in range(TUBES_AT_MOST)]
    for _ in range(2):
        for client in clients:
            watched.put(client)
        watched.go_on(10, step=2)
    new = watched.worker("new")
    watched.put(new)
    watched.go_on(1)
    assert not watched.history.has(b"new")
    watched.pass_over(1800)
    for client in clients[1:]:
        watched.put(client)
    watched.go_on(1)
    watched.pass_over(1800)
    watched.put(new)
    watched.go_on(1)
    assert watched.history.has(b"new")
    assert not watched.history.has(b"t0")
    assert all(watched.history.has(b"t%d" % at) for at in range(1, TUBES_AT_MOST))


def test_rates_of_a_tube_without_history(watched: Watched) -> None:
    clients = [watched.worker(f"t{at}") for at in range(TUBES_AT_MOST + 5)]
    for _ in range(10):
        for client in clients:
            watched.put(client, 2)
        watched.go_on(1)
    names = [b"t%d" % at for at in range(TUBES_AT_MOST + 5)]
    assert sum(watched.history.has(name) for name in names) == TUBES_AT_MOST
    assert all(watched.history.rates(name).put == 2 for name in names)
    assert watched.last(None, "put") == [2 * len(names)]


# Times


@pytest.mark.parametrize("part", [0.5, 0.95])
def test_quantiles_are_right_within_a_factor_of_two(part: float) -> None:
    source = random.Random(part)  # noqa: S311
    for _ in range(200):
        count = source.randrange(1, 200)
        durations = sorted(int(source.lognormvariate(source.uniform(0, 40), 2)) for _ in range(count))
        lengths: dict[int, int] = {}
        for duration in durations:
            lengths[duration.bit_length()] = lengths.get(duration.bit_length(), 0) + 1
        exact = durations[-int(-part * count // 1) - 1] / SECOND
        assert exact / 2 <= quantile(lengths, part) <= exact * 2


def test_quantile_of_nothing_and_of_no_time() -> None:
    assert isnan(quantile({}, 0.5))
    assert quantile({0: 7}, 0.95) == 0


def test_wait_and_run_times(watched: Watched) -> None:
    mail = watched.worker("mail")
    watched.go_on(10)
    watched.put(mail, 4)
    watched.go_on(4)
    jobs = [watched.broker.reserve(mail, watched.queue.now) for _ in range(4)]
    watched.queue.now += SECOND // 4
    assert all(job is not None and watched.broker.delete(mail, job.id, watched.queue.now) for job in jobs)
    watched.queue.now += SECOND - SECOND // 4
    watched.history.tick()
    watched.go_on(5)
    for name in ("mail", None):
        for key, exact in (("wait_p50", 4), ("wait_p95", 4), ("run_p50", 0.25), ("run_p95", 0.25)):
            [value] = watched.last(name, key)
            assert exact / 2 <= value <= exact * 2, key
    watched.go_on(10)
    assert isnan(watched.last("mail", "wait_p50")[0])


# The loop


def test_a_look_at_many_tubes_lets_others_run(watched: Watched, short_steps: None) -> None:
    clients = [watched.worker(f"t{at}") for at in range(10_000)]
    for client in clients:
        watched.put(client)
    with LoopIterations() as turns:
        watched.go_on(10, step=2)
    assert turns.count >= 5 * 10_000 // ITEMS_A_STEP
    assert watched.last(None, "put") == [1000]
    assert watched.last(None, "ready") == [10_000]


def test_the_sampler_ticks_by_itself_and_ends_with_its_history() -> None:
    queue = Queue()
    queue.now += SECOND * 9 // 10  # it sleeps until the next second
    history = History(queue.broker, queue.clock)
    history.start()
    queue.put("mail", count=4)
    gevent.sleep(0.01)
    queue.now += SECOND * 9 // 10
    until(lambda watched=history: watched.rates(b"mail").put == 4)
    kept = weakref.ref(history)
    del history, queue
    gc.collect()
    assert kept() is None
