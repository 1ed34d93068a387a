"""The `capacity` command: the model, and the example of docs/capacity.md."""

from __future__ import annotations

import pytest

from greenstalkctl.commands import capacity
from greenstalkctl.commands.capacity import COMMANDS, OWN_US, Load, cpu, estimate, fewest_shards, forwarded_us
from tests.ctl.world import run
from tests.support.pages import block

LOAD = Load(jobs=1000, size=100, connections=10, backlog=0, shards=1, standbys=0, busiest=0)


def load(**changes: float | None) -> Load:
    return Load(**({name: getattr(LOAD, name) for name in LOAD.__slots__} | changes))


def test_page_shows_the_output_of_its_command() -> None:
    _, *words = block("capacity.md", "sh", "greenstalkctl capacity").split()
    assert run(*words).text == block("capacity.md", "text", "commands-per-second")


def test_json_has_the_same_values() -> None:
    found = run("capacity", "--jobs", "1000", "--json").json
    assert found["commands-per-second"] == 3000
    assert "database-cpu" not in found


def test_single_process_serves_all_commands_itself() -> None:
    assert cpu(LOAD, 1) == pytest.approx((1000 * COMMANDS * OWN_US / 1e6,) * 2)


def test_clients_that_connect_anywhere_use_their_own_shard_for_the_nth_part() -> None:
    average, busiest = cpu(LOAD, 4)
    assert average == busiest == pytest.approx(1000 * COMMANDS * (OWN_US / 4 + forwarded_us(4, 2.5) * 3 / 4) / 4 / 1e6)


def test_costs_are_interpolated_between_those_that_were_simulated() -> None:
    for connections, row in capacity.FORWARDED.items():
        for processes, factor in row.items():
            assert forwarded_us(processes, connections) == OWN_US * factor
    assert forwarded_us(7, 16) == pytest.approx(OWN_US * (4.5 + 6.1) / 2)
    assert forwarded_us(2, 108) == pytest.approx(OWN_US * (3.0 + 1.5) / 2)
    assert forwarded_us(1000, 1) == forwarded_us(100, 16)
    assert forwarded_us(2, 10_000) == forwarded_us(2, 200)


def test_own_clients_scale_linearly() -> None:
    assert cpu(load(own=1.0), 10)[0] == pytest.approx(cpu(LOAD, 1)[0] / 10)


def test_busiest_tube_keeps_its_shard_busy_whatever_the_number() -> None:
    average, busiest = cpu(load(busiest=0.5), 100)
    assert busiest > 20 * average
    assert fewest_shards(load(jobs=100_000, busiest=1.0)) is None
    assert "\nshards-for-60-percent       -\n" in run("capacity", "--jobs", "100000", "--busiest", "100").text


def test_fewest_shards_are_enough_and_one_less_is_not() -> None:
    many = load(jobs=100_000)
    shards = fewest_shards(many)
    assert shards is not None
    assert cpu(many, shards)[1] <= capacity.BUSY < cpu(many, shards - 1)[1]


def test_commits_of_a_shard_are_limited_and_its_records_share_them() -> None:
    assert estimate(load(jobs=10), has_database=True)["database-commits-per-second"] == 30
    assert estimate(load(jobs=10_000), has_database=True)["database-commits-per-second"] == 300
    assert estimate(load(jobs=10_000, shards=3), has_database=True)["database-commits-per-second"] == 900


def test_backlog_and_connections_are_divided() -> None:
    one = estimate(load(backlog=10**6, connections=10_000), has_database=False)["memory-of-a-process"]
    two = estimate(load(backlog=10**6, connections=10_000, shards=2), has_database=False)["memory-of-a-process"]
    assert one == 60 + 305 + 55
    assert two == round(60 + (305 + 55) / 2)
