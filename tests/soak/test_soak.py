"""The audit of `make soak`, and its limits of growth."""

from __future__ import annotations

import pytest

from tests.soak.__main__ import _figures
from tests.soak.ledger import Ledger, audit, body_of, token_of


def put(*ids: int) -> Ledger:
    return Ledger(put={id: f"0.{id}" for id in ids})


def test_token_of_a_body() -> None:
    for size in (0, 1, 20, 1000):
        body = body_of("1.2.3", size)
        assert token_of(body) == "1.2.3"
        assert token_of(body + b"x") is None
        assert token_of(body[:-1]) is None
    assert token_of(b"") is None
    assert token_of(b"\xff:0:") is None


def test_audit_accepts_deleted_and_present_jobs() -> None:
    ledger = put(1, 2, 3)
    ledger.deleted[1] = "0.1"
    ledger.perhaps_deleted.add(2)
    sums = audit(ledger, {3: body_of("0.3", 5)})
    assert not ledger.wrong
    assert sums == {"put": 3, "deleted": 1, "deleted, unanswered": 1, "present": 1}


def test_audit_counts_a_put_without_a_reply_that_took_effect() -> None:
    ledger = Ledger(perhaps_put={"0.1", "0.2"})
    assert audit(ledger, {7: body_of("0.1", 5)})["put"] == 1
    assert not ledger.wrong


@pytest.mark.parametrize(
    ("present", "deleted", "said"),
    [
        ({}, {}, "job 1, 0.1, is lost"),
        ({1: body_of("0.1", 5)}, {1: "0.1"}, "job 1 was deleted, and is there"),
        ({1: b"another"}, {}, "job 1 has a body that nobody put"),
        ({1: body_of("0.9", 5)}, {}, "job 1 is 0.9, and was put as 0.1"),
        ({1: body_of("0.1", 5), 2: body_of("0.1", 5)}, {}, "job 2 is 0.1, and was put as None"),
        ({1: body_of("0.1", 5)}, {5: "0.5"}, "job 5 was 0.5 when it was deleted, and was put as None"),
    ],
)
def test_audit_reports_errors(present: dict[int, bytes], deleted: dict[int, str], said: str) -> None:
    ledger = put(1)
    ledger.deleted = deleted
    audit(ledger, present)
    assert any(line.startswith(said) for line in ledger.wrong), ledger.wrong


def samples(rss_growth: float, job_growth: float) -> list[dict[str, float]]:
    """Return a sample a second; memory and the part of it that jobs take grow by so many MiB in 100 s."""
    constant = dict.fromkeys(("puts", "deletes", "fds", "connections", "p50_ms", "p99_ms", "cpu_percent"), 1.0)
    return [
        constant
        | {"at": at, "journal_mib": 1, "rss_mib": 80 + rss_growth * at / 100, "jobs_mib": job_growth * at / 100}
        for at in range(100)
    ]


def test_memory_of_more_jobs_is_no_leak() -> None:
    wrong: list[str] = []
    _figures(samples(rss_growth=80, job_growth=80), seconds=100, wrong=wrong)
    assert not wrong


def test_memory_that_grows_without_jobs_is_a_leak() -> None:
    wrong: list[str] = []
    _figures(samples(rss_growth=80, job_growth=0), seconds=100, wrong=wrong)
    _figures(samples(rss_growth=80, job_growth=-80), seconds=100, wrong=wrong)
    assert [message.partition(" has grown by")[0] for message in wrong] == ["memory besides the jobs"] * 2
