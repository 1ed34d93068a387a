"""Sketches of durations: quantiles within the stated error, however the sketches are merged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenstalk_server.core.tubes.durations import (
    MAX_BUCKET,
    MIN_DURATION,
    PARTS,
    RELATIVE_ERROR,
    DurationRows,
    Sketch,
    add_lengths,
    add_rows,
    add_sketch,
    bucket_seconds,
    count_duration,
    quantile_buckets,
)
from tests.support.world import World

QUANTILES = (0.5, 0.95, 0.99)

durations = st.one_of(
    st.integers(0, 2**62), st.integers(0, 2000), st.integers(0, 62).map(lambda bits: 2**bits), st.just(7 * 10**9)
)


def rows_of(values: Sequence[int]) -> DurationRows:
    rows: DurationRows = {}
    for value in values:
        count_duration(rows, value)
    return rows


def sketch_of(values: Sequence[int]) -> Sketch:
    sketch: Sketch = {}
    add_rows(sketch, rows_of(values))
    return sketch


@given(st.lists(durations, min_size=1, max_size=200))
def test_quantiles_are_exact_within_the_relative_error(values: list[int]) -> None:
    found = [bucket_seconds(bucket) * 1e9 for bucket in quantile_buckets(sketch_of(values), QUANTILES)]
    ordered = sorted(values)
    for part, estimate in zip(QUANTILES, found, strict=True):
        exact = ordered[ceil(part * len(ordered)) - 1]
        error = MIN_DURATION if exact < MIN_DURATION else exact * (RELATIVE_ERROR + 1e-9)
        assert abs(estimate - exact) <= error


@given(st.lists(st.lists(durations, max_size=30), max_size=10))
def test_merged_sketches_are_the_sketch_of_all_durations(minutes: list[list[int]]) -> None:
    hour: Sketch = {}
    for values in minutes:
        add_sketch(hour, sketch_of(values))
    together = [value for values in minutes for value in values]
    assert hour == sketch_of(together)
    lengths: dict[int, int] = {}
    add_lengths(lengths, rows_of(together))
    assert lengths == Counter(value.bit_length() for value in together)


@given(durations)
def test_buckets_are_ordered_and_bounded(value: int) -> None:
    [bucket], [larger] = sketch_of([value]), sketch_of([value + value // (PARTS - 1) + MIN_DURATION])
    assert 0 <= bucket <= larger <= MAX_BUCKET


def test_sketch_without_durations_has_no_quantiles() -> None:
    assert quantile_buckets({}, QUANTILES) == []
    assert bucket_seconds(0) == 0


@pytest.mark.parametrize("turns", [1, 3])
def test_times_of_a_tube_are_taken_once_and_stay_counted(world: World, turns: int) -> None:
    client = world.client()
    taken: Sketch = {}
    for _ in range(turns):
        id = client.put()
        world.advance(2)
        client.take(1)
        world.advance(3)
        client.delete(id)
        tube = world.broker.tubes[b"default"]
        add_rows(taken, tube.queue_times.take_recent())
        assert sum(map(sum, tube.processing_times.take_recent().values())) == 1
        assert tube.queue_times.take_recent() == tube.processing_times.take_recent() == {}
    assert taken == sketch_of([2 * 10**9] * turns)
    assert tube.queue_times.counts() == {(2 * 10**9).bit_length(): turns}
    assert tube.processing_times.counts() == {(3 * 10**9).bit_length(): turns}
