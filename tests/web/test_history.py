"""The history in fake time: rates, rings, gaps, dropped tubes, memory and yielding to the event loop."""

from __future__ import annotations

import gc
import sys
import types
import weakref
from math import isnan, nan

import gevent
import pytest

from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs.job import BURIED, SECOND
from greenstalk_server.core.operations import connecting, finishing, kicking, putting, reserving, ticking
from greenstalk_server.core.tubes.durations import RELATIVE_ERROR
from greenstalk_server.web.features.history.archive import Archive
from greenstalk_server.web.features.history.figures import added, shifted
from greenstalk_server.web.features.history.history import MAX_TUBES, TUBE_BATCH, History, Rates
from greenstalk_server.web.features.history.rings import (
    DAY,
    DEPTHS,
    HOUR,
    NINETY_DAYS,
    RATES,
    SERIES,
    TEN,
    TEN_MINUTES,
    WEEK,
)

from .conftest import Queue
from .stored import local_store
from .turns import LoopIterations, until

CODE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)


class HistoryDriver:
    """A queue, and a history that ticks as time advances."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.broker = queue.broker
        self.store = local_store()
        self.store.restore()
        self.history = History(queue.broker, queue.clock, Archive(self.store))

    def advance(self, seconds: int, step: int = 1) -> None:
        for _ in range(0, seconds, step):
            self.queue.now += step * SECOND
            self.history.tick()

    def skip(self, seconds: int) -> None:
        """Advance time without a sample, which is a gap."""
        self.queue.now += seconds * SECOND
        self.history.tick()

    def worker(self, tube: str) -> Client:
        client = self.queue.connect()
        connecting.watch(self.broker, client, tube.encode())
        connecting.use(self.broker, client, tube.encode())
        return client

    def put(self, client: Client, count: int = 1, ttr: int = 60) -> None:
        for _ in range(count):
            id = self.broker.allocate_id()
            assert putting.put(self.broker, client, id, 0, 0, ttr * SECOND, b"", self.queue.now) > 0

    def delete(self, client: Client, count: int = 1) -> None:
        """Reserve and delete *count* jobs."""
        for _ in range(count):
            job = reserving.reserve(self.broker, client, self.queue.now)
            assert job is not None and finishing.delete(self.broker, client, job.id, self.queue.now)

    def size(self) -> int:
        """Return the bytes of the history, its broker and everything they refer to, without code."""
        self.store.save()
        seen: dict[int, object] = {}
        found: list[object] = [self.history]
        while found:
            seen |= {id(each): each for each in found}
            found = [each for each in gc.get_referents(*found) if id(each) not in seen and not isinstance(each, CODE)]
        return sum(map(sys.getsizeof, seen.values()))

    def last(self, tube: str | None, series: str, points: int = 1) -> list[float]:
        """Return the last *points* values of *series*, ten seconds apart."""
        name = tube.encode() if tube else None
        if series in RATES:
            return self.history.spark(name, series, points)
        values = self.history.columns(name, TEN_MINUTES).series[series]
        return values[::-TEN][:points][::-1]


@pytest.fixture
def driver(queue: Queue) -> HistoryDriver:
    return HistoryDriver(queue)


def loose(values: list[float]) -> list[float | None]:
    """Replace NaN by None, which equals itself."""
    return [None if isnan(value) else round(value, 4) for value in values]


# Rates


def test_rates_are_means_of_the_last_ten_seconds(driver: HistoryDriver) -> None:
    mail = driver.worker("mail")
    driver.advance(20)
    for _ in range(10):
        driver.put(mail, 3)
        driver.delete(mail, 2)
        driver.advance(1)
    assert driver.history.rates(b"mail") == Rates(put=3, reserve=2, delete=2)
    assert driver.history.total_rates() == Rates(put=3, reserve=2, delete=2)
    driver.advance(5)
    assert driver.history.rates(b"mail") == Rates(put=1.5, reserve=1, delete=1)
    driver.advance(5)
    assert driver.history.rates(b"mail") == Rates()
    driver.put(mail, 10)
    driver.advance(1)
    assert driver.history.rates(b"mail") == Rates(put=1)


def test_every_kind_of_event_counts(driver: HistoryDriver) -> None:
    mail, broker = driver.worker("mail"), driver.broker
    driver.advance(10)
    driver.put(mail, 7, ttr=1)
    jobs = [reserving.reserve(broker, mail, driver.queue.now) for _ in range(7)]
    now = driver.queue.now
    ids = [job.id for job in jobs if job is not None]
    assert finishing.delete(broker, mail, ids[0], now)
    assert all(finishing.bury(broker, mail, id, 0, now) for id in ids[1:3])
    assert all(finishing.release(broker, mail, id, 0, 0, now) for id in ids[3:6])
    assert kicking.kick(broker, broker.tubes[b"mail"], BURIED, 1, now) == 1
    ticking.tick(broker, now + SECOND)  # the last one times out
    driver.advance(10)
    expected = Rates(put=0.7, reserve=0.7, delete=0.1, bury=0.2, timeout=0.1, release=0.3, kick=0.1)
    assert driver.history.rates(b"mail") == pytest.approx(expected)
    assert [driver.last("mail", kind)[0] for kind in RATES] == pytest.approx(expected)
    assert [driver.last("mail", state) for state in DEPTHS] == [[5], [0], [0], [1], [0]]


# Points


def test_seconds_of_ten_minutes(driver: HistoryDriver) -> None:
    mail = driver.worker("mail")
    driver.put(mail, 20)
    driver.advance(3)
    driver.put(mail, 5)
    driver.advance(2)
    columns = driver.history.columns(b"mail", TEN_MINUTES)
    assert (columns.step, columns.end) == (1, driver.queue.now // SECOND)
    assert list(columns.series) == list(SERIES)
    assert {len(values) for values in columns.series.values()} == {600}
    assert loose(columns.series["put"][-7:]) == [None, None, 20, 0, 0, 5, 0]
    assert loose(columns.series["ready"][-7:]) == [None, None, 20, 20, 20, 25, 25]
    assert {key for key, values in columns.series.items() if any(loose(values))} == {"put", "ready"}


def test_seconds_wrap_around(driver: HistoryDriver) -> None:
    mail = driver.worker("mail")
    for at in range(1500):
        driver.put(mail, at % 7)
        driver.advance(1)
    series = driver.history.columns(b"mail", TEN_MINUTES).series
    assert series["put"] == [at % 7 for at in range(900, 1500)]
    puts = [at % 7 for at in range(1500)]
    assert series["ready"] == [sum(puts[: at + 1]) for at in range(900, 1500)]
    assert driver.last("mail", "put", 60) == pytest.approx(
        [sum(puts[at : at + 10]) / 10 for at in range(900, 1500, 10)]
    )


def test_hours_and_minutes_after_days(driver: HistoryDriver) -> None:
    """Each span has its last points, and nothing older; the hours have the quantiles of all their minutes."""
    mail = driver.worker("mail")
    for hour in range(50):
        driver.put(mail, 3600 + hour)
        driver.advance(1800, step=3)
        driver.delete(mail, 3600 + hour)
        driver.advance(1800, step=3)
    now = driver.queue.now // SECOND
    week = driver.history.columns(b"mail", WEEK)
    assert (week.step, week.end, len(week.series["put"])) == (3600, now, 168)
    assert loose(week.series["put"][-51:]) == [None, *[round(1 + hour / 3600, 4) for hour in range(50)]]
    assert week.series["wait_p99"][-1] == pytest.approx(1800, rel=RELATIVE_ERROR)
    day = driver.history.columns(b"mail", DAY)
    assert (day.step, day.end, len(day.series["put"])) == (60, now, 1440)
    expected = [(3600 + hour) / 60 if minute == 0 else 0 for hour in range(26, 50) for minute in range(60)]
    assert day.series["put"] == pytest.approx(expected)
    assert driver.history.columns(b"mail", NINETY_DAYS).series["put"][-50:] == week.series["put"][-50:]


def test_span_of_a_day_or_a_week_ago(driver: HistoryDriver) -> None:
    """A day ago, the minutes of one hour are exact; for a whole day, each minute has the rate of its hour."""
    mail = driver.worker("mail")
    for hour in range(49):
        driver.put(mail, 3600 + hour)
        driver.advance(3600, step=3)
    history, now = driver.history, driver.queue.now // SECOND
    hour_before = history.columns(b"mail", HOUR, 86400)
    assert (hour_before.step, hour_before.end) == (60, now - 86400)
    assert hour_before.series["put"][0] == (3600 + 24) / 60
    assert not any(hour_before.series["put"][1:])
    day_before = history.columns(b"mail", DAY, 86400)
    assert day_before.series["put"] == pytest.approx([1 + (1 + at // 60) / 3600 for at in range(1440)])
    ten_minutes = history.columns(b"mail", TEN_MINUTES, 86400)
    assert (ten_minutes.step, len(ten_minutes.series["put"])) == (1, 600)
    assert ten_minutes.series["ready"] == hour_before.series["ready"][-10:][0:1] * 600
    assert all(map(isnan, history.columns(b"mail", DAY, 7 * 86400).series["put"]))


def test_gap_is_unknown(driver: HistoryDriver) -> None:
    mail = driver.worker("mail")
    driver.put(mail, 10)
    driver.advance(25)
    driver.put(mail, 1000)
    driver.skip(40)
    assert driver.history.rates(b"mail") == Rates()
    driver.put(mail, 20)
    driver.advance(5)
    assert driver.history.rates(b"mail").put == 4, "over the five seconds that are known"
    driver.advance(10)
    # Five seconds of the third and of the seventh point are known.
    for name in ("mail", None):
        assert loose(driver.last(name, "put", 8)) == [1, 0, 0, None, None, None, 4, 0]
    assert loose(driver.last("mail", "ready", 3)) == [None, 1030, 1030]


# Dropped tubes


def test_tube_dropped_between_two_samples_is_recorded(driver: HistoryDriver) -> None:
    """The tube is created, used and dropped between two samples."""
    driver.advance(10)
    client = driver.worker("moment")
    driver.put(client)
    driver.delete(client)
    connecting.disconnect(driver.broker, client, driver.queue.now)
    assert b"moment" not in driver.broker.tubes
    driver.advance(10)
    assert driver.history.rates(b"moment") == Rates(put=0.1, reserve=0.1, delete=0.1)
    for name in ("moment", None):
        assert [driver.last(name, key)[0] for key in ("put", "reserve", "delete")] == pytest.approx([0.1] * 3)
        assert driver.last(name, "run_p50") == [0]


def test_recreated_tube_continues_its_series(driver: HistoryDriver) -> None:
    """The tube is created several times in a second, and its counters start at zero each time."""
    driver.advance(10)
    for _ in range(10):
        for _ in range(3):
            client = driver.worker("mail")
            driver.put(client, 2)
            driver.delete(client, 2)
            connecting.disconnect(driver.broker, client, driver.queue.now)
        driver.advance(1)
    assert driver.history.rates(b"mail") == Rates(put=6, reserve=6, delete=6)
    assert driver.history.total_rates() == Rates(put=6, reserve=6, delete=6)
    assert driver.last("mail", "put") == [6]
    assert driver.last(None, "put") == [6]


def test_flood_of_tubes_is_bounded(driver: HistoryDriver) -> None:
    """Ten times MAX_TUBES tubes of one job each; a tube in use keeps its series."""
    mail, count = driver.worker("mail"), 0

    def flood(tubes: int) -> int:
        nonlocal count
        for _ in range(tubes // 500):
            driver.put(mail)
            for _ in range(500):
                client = driver.worker(f"reply.{count}")
                driver.put(client)
                driver.delete(client)
                connecting.disconnect(driver.broker, client, driver.queue.now)
                count += 1
            driver.advance(1)
        return driver.size()

    driver.advance(9)
    full, later = flood(5000), flood(5000)
    assert later < full * 1.02, (full, later)
    assert driver.history.total_rates() == Rates(put=501, reserve=500, delete=500)
    assert sum(driver.history.has(b"reply.%d" % at) for at in range(count)) == MAX_TUBES - 1
    driver.advance(11)
    assert loose(driver.last("mail", "put", 4)) == [0.1, 1, 0.9, 0]


def test_order_of_eviction(driver: HistoryDriver) -> None:
    """Tubes in use are kept. An hour after its last activity a tube may be evicted, the longest idle one first."""
    clients = [driver.worker(f"t{at}") for at in range(MAX_TUBES)]
    for _ in range(2):
        for client in clients:
            driver.put(client)
        driver.advance(10, step=2)
    new = driver.worker("new")
    driver.put(new)
    driver.advance(1)
    assert not driver.history.has(b"new")
    driver.skip(1800)
    for client in clients[1:]:
        driver.put(client)
    driver.advance(1)
    driver.skip(1800)
    driver.put(new)
    driver.advance(1)
    assert driver.history.has(b"new")
    assert not driver.history.has(b"t0")
    assert all(driver.history.has(b"t%d" % at) for at in range(1, MAX_TUBES))


# Times


def test_wait_and_run_times(driver: HistoryDriver) -> None:
    mail = driver.worker("mail")
    driver.advance(10)
    driver.put(mail, 4)
    driver.advance(4)
    jobs = [reserving.reserve(driver.broker, mail, driver.queue.now) for _ in range(4)]
    driver.queue.now += SECOND // 4
    assert all(job is not None and finishing.delete(driver.broker, mail, job.id, driver.queue.now) for job in jobs)
    driver.queue.now += SECOND - SECOND // 4
    driver.history.tick()
    driver.advance(5)
    for name in ("mail", None):
        for key, exact in (("wait_p50", 4), ("wait_p99", 4), ("run_p50", 0.25), ("run_p95", 0.25)):
            assert driver.last(name, key) == [pytest.approx(exact, rel=RELATIVE_ERROR)], key
    driver.advance(10)
    assert isnan(driver.last("mail", "wait_p50")[0])


# Yielding


def test_sample_of_many_tubes_yields(driver: HistoryDriver, short_steps: None) -> None:
    clients = [driver.worker(f"t{at}") for at in range(10_000)]
    for client in clients:
        driver.put(client)
    with LoopIterations() as turns:
        driver.advance(10, step=2)
    assert turns.count >= 5 * 10_000 // TUBE_BATCH
    assert driver.last(None, "put") == [1000]
    assert driver.last(None, "ready") == [10_000]


def test_sampler_runs_and_ends_with_its_history() -> None:
    queue = Queue()
    queue.now += SECOND * 9 // 10  # the greenlet sleeps until the next second
    history = History(queue.broker, queue.clock, Archive(local_store()))
    history.start()
    queue.put("mail", count=4)
    gevent.sleep(0.01)
    queue.now += SECOND * 9 // 10
    until(lambda driver=history: driver.rates(b"mail").put == 4)  # type: ignore[misc]
    kept = weakref.ref(history)
    del history, queue
    gc.collect()
    assert kept() is None


def test_points_of_processes_add_up_from_their_end() -> None:
    assert added([1, 2], [10, 20]) == [11, 22]
    assert added([1, 2, 3], [10, 20]) == added([10, 20], [1, 2, 3]) == [1, 12, 23]
    assert added([1], []) == added([], [1]) == [1]
    assert str(added([nan, nan, 1], [nan, 5, nan])) == "[nan, 5, 1]"


def test_points_of_another_process_are_aligned_by_their_end() -> None:
    assert shifted([1, 2, 3], 0) == [1, 2, 3]
    assert str(shifted([1, 2, 3], 1)) == "[2, 3, nan]"
    assert str(shifted([1, 2, 3], -1)) == "[nan, 1, 2]"
    for late in (3, 5, -3, -5):
        assert str(shifted([1, 2, 3], late)) == "[nan, nan, nan]"
