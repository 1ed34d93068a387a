"""The load generator against real servers: the commands it sends, and the errors it detects."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import greenstalk
import pytest

from bench.modes import SUITES, Mode
from bench.programs import build
from bench.servers import free_port


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


def test_unexpected_body_is_an_error(port: int) -> None:
    with greenstalk.Client(("127.0.0.1", port), encoding=None) as client:
        id = client.put(b"x" * 99, priority=0)
        done = run(port, "--mode", "drain", "--body", "99", "--backlog", "1", "--jobs", "1", "--connections", "1")
        assert done.returncode == 1
        assert "expected" in done.stderr
        client.delete(greenstalk.Job(id, b""))
        client.delete(client.reserve(timeout=0))


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
