"""The load generator against real servers: the commands it sends, and the errors it detects."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import greenstalk
import pytest

from bench.modes import SUITES, Mode
from bench.programs import build
from bench.servers import Contender, free_port, running_server

FLOOR = Mode("floor", "cycle", "", body=100)


def run(port: int, *options: str) -> subprocess.CompletedProcess[str]:
    argv = [str(build("load")), "--port", str(port), "--deadline", "60", *options]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=90)


def measured(port: int, *options: str) -> dict[str, float]:
    done = run(port, *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def stats(port: int) -> Any:
    with greenstalk.Client(("127.0.0.1", port)) as client:
        return client.stats()


def test_tour_sends_six_commands_per_job_and_visits_all_tubes(port: int) -> None:
    before = stats(port)
    outcome = measured(port, "--mode", "tour", "--connections", "3", "--tubes", "9", "--backlog", "18", "--jobs", "30")
    assert outcome["ops"] == 6 * 30
    after = stats(port)
    assert after["current-jobs-ready"] == before["current-jobs-ready"] + 18
    assert after["cmd-delete"] == before["cmd-delete"] + 30
    drain_tubes(port, 9)


@pytest.mark.parametrize("mode", ["cycle", "fan"])
def test_watch_option_sets_the_number_of_watched_tubes(port: int, mode: str) -> None:
    before = stats(port)
    measured(port, "--mode", mode, "--connections", "4", "--watch", "25", "--jobs", "40")
    after = stats(port)
    assert after["cmd-watch"] == before["cmd-watch"] + 4 * 25
    assert after["cmd-ignore"] == before["cmd-ignore"] + 4
    assert after["current-jobs-ready"] == before["current-jobs-ready"]


def test_probe_ends_when_the_backlog_is_ready(port: int) -> None:
    outcome = measured(port, "--mode", "probe", "--watch", "1", "--due", "--backlog", "500")
    assert outcome["ops"] > 0
    left = stats(port)
    assert left["current-jobs-delayed"] == 0 and left["current-jobs-ready"] == 500 + 25
    with greenstalk.Client(("127.0.0.1", port), watch="default") as client:
        for _ in range(525):
            client.delete(client.reserve(timeout=0))


def test_varied_bodies_are_all_different(port: int) -> None:
    measured(port, "--mode", "preload", "--vary", "--jobs", "30", "--body", "20")
    with greenstalk.Client(("127.0.0.1", port), watch="default", encoding=None) as client:
        jobs = [client.reserve(timeout=0) for _ in range(30)]
        assert len({job.body for job in jobs}) == 30 and {len(job.body) for job in jobs} == {20}
        for job in jobs:
            client.delete(job)
    measured(port, "--mode", "cycle", "--vary", "--jobs", "30", "--body", "20")


def test_all_connections_use_the_chosen_tube(port: int) -> None:
    before = stats(port)
    measured(port, "--mode", "put", "--connections", "3", "--watch", "2", "--use", "0", "--jobs", "12")
    assert stats(port)["current-jobs-ready"] == before["current-jobs-ready"] + 12
    with greenstalk.Client(("127.0.0.1", port), watch="tube-000000") as client:
        for _ in range(12):
            client.delete(client.reserve(timeout=0))


@pytest.fixture
def floor() -> Iterator[int]:
    contender = Contender("floor", f"{build('floor')} {{port}} {{body}}", is_floor=True)
    with running_server(contender, FLOOR, "", None, has_dashboard=False) as server:
        yield server.port


def test_floor_server_supports_cycle(floor: int) -> None:
    assert measured(floor, "--mode", "cycle", "--body", "100", "--jobs", "20")["ops"] == 60


def test_unexpected_body_is_an_error(floor: int) -> None:
    done = run(floor, "--mode", "drain", "--body", "99", "--backlog", "20")
    assert done.returncode == 1
    assert "expected" in done.stderr


@pytest.mark.parametrize(
    "mode", {mode.name: mode for suite in SUITES.values() for mode in suite}.values(), ids=lambda mode: mode.name
)
def test_load_generator_accepts_the_arguments_of_each_mode(mode: Mode) -> None:
    done = run(free_port(), *mode.load_arguments(1.0))
    assert done.returncode == 1 and "Connection refused" in done.stderr, "status 2 would mean invalid arguments"


def drain_tubes(port: int, tubes: int) -> None:
    names = [f"tube-{number:06}" for number in range(tubes)]
    with greenstalk.Client(("127.0.0.1", port), watch=names) as client:
        while client.stats()["current-jobs-ready"]:
            client.delete(client.reserve(timeout=0))
