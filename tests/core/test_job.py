"""The packed fields of a job hold every value exactly."""

from __future__ import annotations

import pytest

from greenstalk_server.core.jobs.job import DEFAULT_COLD_STATE, SECOND, Job
from greenstalk_server.core.tubes.tube import Tube

FIELDS = ("size", "segment", "ttr", "reserves")


def make_job(ttr: int = SECOND) -> Job:
    return Job(1, Tube(b"t", {}), b"body", 0, 0, ttr, 0)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    "value", [0, 1, 2**15 - 1, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63, 2**64 - 1, 2**70]
)
def test_a_field_holds_any_value_and_leaves_the_others_unchanged(field: str, value: int) -> None:
    job = make_job()
    expected = {name: getattr(job, name) for name in FIELDS} | {field: value}
    setattr(job, field, value)
    assert {name: getattr(job, name) for name in FIELDS} == expected
    setattr(job, field, 7)
    assert getattr(job, field) == 7
    assert DEFAULT_COLD_STATE.size == DEFAULT_COLD_STATE.segment == 0
    assert DEFAULT_COLD_STATE.ttr == DEFAULT_COLD_STATE.reserves == 0


@pytest.mark.parametrize("ttr", [1, SECOND - 1, SECOND, (2**31 - 1) * SECOND, 2**31 * SECOND, (2**32 - 1) * SECOND])
def test_a_new_job_has_any_ttr(ttr: int) -> None:
    assert make_job(ttr).ttr == ttr


def test_reserves_are_counted_beyond_sixteen_bits() -> None:
    job = make_job()
    for count in range(1, 2**15 + 10):
        job.reserves += 1
        assert job.reserves == count


def test_a_usual_job_needs_no_cold_state() -> None:
    job = make_job(120 * SECOND)
    job.segment, job.reserves = 12, 100
    assert job.cold is DEFAULT_COLD_STATE
