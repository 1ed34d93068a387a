"""Changes of all tubes that match a pattern: `pause`, `resume` and `kick` with --pattern, with a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ctl.world import Client, WithApi, connect, ctl

TUBES = ("billing.mail", "billing.sms", "other")


@pytest.fixture
def client(with_api: WithApi) -> Iterator[Client]:
    """A client; each of TUBES has a buried job and a ready one."""
    with connect(with_api) as found:
        for tube in TUBES:
            found.use(tube)
            found.bury(found.reserve_job(found.put(b"buried")))
            found.put(b"ready")
        yield found


def paused(client: Client) -> list[str]:
    return [tube for tube in TUBES if client.stats_tube(tube)["pause-time-left"]]


def buried(client: Client) -> list[str]:
    return [tube for tube in TUBES if client.stats_tube(tube)["current-jobs-buried"]]


def test_pause_and_resume(with_api: WithApi, client: Client) -> None:
    done = ctl(with_api, "pause", "--pattern", "billing.*", "5m", "--reason", "a $x; b", "--yes")
    assert (done.code, done.text, done.err) == (0, "paused 2 tubes\n", "")
    assert paused(client) == ["billing.mail", "billing.sms"]
    assert ctl(with_api, "tube", "billing.sms", "--json").json["pause-reason"] == "a $x; b"
    done = ctl(with_api, "resume", "--pattern", "*sms", "--yes", "--json")
    assert done.json == {"resumed": 1, "pattern": "*sms"}
    assert paused(client) == ["billing.mail"]


def test_kick(with_api: WithApi, client: Client) -> None:
    assert ctl(with_api, "kick", "--pattern", "*l*", "--yes").text == "kicked 2 jobs\n"
    assert buried(client) == ["other"]
    done = ctl(with_api, "kick", "--pattern", "*", "--state", "delayed", "--yes")
    assert (done.code, done.text) == (1, "")
    assert "no tube" in done.err


def test_confirmation(with_api: WithApi, client: Client) -> None:
    done = ctl(with_api, "kick", "--pattern", "*")
    assert done.code == 2
    assert "this would kick 3 tubes with 3 buried jobs" in done.err and "add --yes" in done.err
    assert buried(client) == list(TUBES)


@pytest.mark.parametrize(
    "words",
    [
        "pause --pattern *",
        "pause --pattern * mail 5m",
        "pause --pattern * soon",
        "pause mail",
        "pause",
        "pause --pattern é 5m",
        "resume",
        "resume mail --pattern *",
        "kick --pattern * --all",
        "kick --pattern * 17",
        "kick --pattern * --tube mail",
    ],
)
def test_usage_errors(with_api: WithApi, words: str) -> None:
    assert ctl(with_api, *words.split(), "--yes").code == 2
