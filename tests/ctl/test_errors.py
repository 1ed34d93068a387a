"""The command `errors`, with a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.ctl.world import HOSTILE, Client, WithApi, connect, ctl


@pytest.fixture
def failed(with_api: WithApi) -> Iterator[Client]:
    with connect(with_api, "failed") as client:
        yield client


def fail(client: Client, *bodies: object) -> list[int]:
    """Put and bury a job with each body."""
    found = []
    for body in bodies:
        found.append(client.put(json.dumps(body).encode()))
        client.bury(client.reserve_job(found[-1]))
    return found


def test_failed_jobs_are_counted_by_their_error(with_api: WithApi, failed: Client) -> None:
    ids = fail(failed, {"error": "late 1", "why": "a"}, {"error": "late 22", "why": "a"}, {"kind": "x", "why": "b"})
    done = ctl(with_api, "errors", "--tube", "failed")
    rows = [line.split() for line in done.text.splitlines()]
    assert (done.code, rows[0]) == (0, ["jobs", "last", "sample", "error"])
    assert [[row[0], *row[2:]] for row in rows[2:4]] == [
        ["2", str(ids[1]), "late", "#"],
        ["1", str(ids[2]), "no", "error"],
    ]
    lines = ctl(with_api, "errors", "failed", "--json").lines
    assert [(line["jobs"], line["error"], line["sample_error"]) for line in lines] == [
        (2, "late #", "late 22"),
        (1, None, ""),
    ]
    listed = ctl(with_api, "jobs", "--tube", "failed", "--query", lines[0]["q"], "--json").lines
    assert [line["id"] for line in listed] == ids[:2]
    [line, _] = ctl(with_api, "errors", "failed", "--field", "why", "--state", "buried", "--json").lines
    assert (line["error"], line["jobs"]) == ("a", 2)


def test_each_command_groups_the_jobs_that_there_are_now(with_api: WithApi, failed: Client) -> None:
    """The server reuses a result for ten times as long as the search for it took."""
    fail(failed, *({"error": f"{'late ' * 500}{number}"} for number in range(400)))
    assert ctl(with_api, "errors", "failed").code == 0
    assert failed.kick(400) == 400
    assert ctl(with_api, "errors", "failed").code == 1


def test_nothing_found_is_exit_code_1(with_api: WithApi, failed: Client) -> None:
    failed.put(b"ready")
    done = ctl(with_api, "errors", "failed")
    assert (done.code, "has no failed jobs" in done.err) == (1, True)
    assert ctl(with_api, "errors", "nothing").code == 1


def test_errors_cannot_control_the_terminal(with_api: WithApi, failed: Client) -> None:
    fail(failed, {"error": HOSTILE})
    assert ctl(with_api, "errors", "failed").text.replace("\n", "").isprintable()
