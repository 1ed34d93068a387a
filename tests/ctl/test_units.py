"""Durations with units in options and arguments."""

from __future__ import annotations

import pytest

from greenstalkctl import units
from tests.ctl.world import connect, ctl
from tests.support.servers import Server


@pytest.mark.parametrize(
    ("written", "expected"),
    [("0", 0), ("90", 90), ("0.5", 0.5), (".5", 0.5), ("50ms", 0.05), ("30s", 30), ("5m", 300), ("1h30m", 5400),
     ("2d", 172800), ("1d2h3m4s5ms", 93784.005), ("90m", 5400), ("0s", 0)],
)  # fmt: skip
def test_duration_is_parsed(written: str, expected: float) -> None:
    assert units.seconds(written) == expected


@pytest.mark.parametrize(
    "written",
    ["", " ", "s", "5x", "-1", "-5m", "+5", "1e3", "nan", "inf", "30m1h", "1m1m", "1.5h", "1 h", "1H", "5M", "٣s",
     "9" * 5000],
)  # fmt: skip
def test_invalid_duration_is_rejected(written: str) -> None:
    with pytest.raises(ValueError, match="is not a duration such as"):
        units.seconds(written)


def test_commands_accept_durations(server: Server) -> None:
    with connect(server, "mail") as mail:
        job_id = ctl(server, "put", "x", "--tube", "mail", "--delay", "1h30m", "--ttr", "2m").json
        stats = mail.stats_job(job_id)
        assert (stats["delay"], stats["ttr"]) == (5400, 120)
        assert ctl(server, "pause", "mail", "1h30m", "--json").json == {"tube": "mail", "pause": 5400}
    assert ctl(server, "top", "--once", "--interval", "100ms").code == 0
    assert ctl(server, "--timeout", "1m", "tail", "mail", "--interval", "50ms").code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("pause mail 0.0005", "is not a whole number of milliseconds"),
        ("put x --delay 1.0005", "is not a whole number of milliseconds"),
        ("put x --idempotency-key a --idempotency-ttl 1.5", "is not a whole number of seconds"),
        ("put x --ttr 50000d", "up to 4294967295"),
        ("put x --ttr 1y", "such as 90, 50ms, 30s, 5m, 1h30m or 2d"),
        ("tail mail --interval 10ms", "at least 0.05 s and at most 60 s"),
        ("--timeout 0s stats", "more than 0 s"),
        ("--timeout 2d stats", "at most 86400 s"),
    ],
)
def test_invalid_duration_is_exit_code_2(one: Server, arguments: str, message: str) -> None:
    done = ctl(one, *arguments.split())
    assert (done.code, len(done.err.splitlines()), message in done.err) == (2, 1, True), done.err
