"""The simulation of many servers: known results, and costs that are found again from what they cause."""

from __future__ import annotations

import pytest

from bench import simulation
from bench.processes import Result
from bench.simulation import Costs, Load, Simulation, fitted

COSTS = Costs(turn=4.0, own=6.0, forwarded=12.0, message=5.0)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "COMMANDS", 300)


def cpu(servers: int, connections: int, own_share: float = 0.0) -> float:
    return Simulation(COSTS, Load(servers, connections, own_share)).run().cpu_us


def test_single_command_in_flight_takes_a_turn_of_its_own() -> None:
    assert cpu(1, 1) == COSTS.turn + COSTS.own


def test_many_commands_share_a_turn() -> None:
    assert cpu(1, 200) == pytest.approx(COSTS.turn / simulation.BATCH + COSTS.own, rel=0.01)


def test_forwarded_command_in_flight_alone_takes_three_turns_and_two_messages() -> None:
    found = Simulation(COSTS, Load(2, 1, 0.0, delay=1e6)).run()  # the clients of the two servers do not meet
    assert found.cpu_us == pytest.approx(3 * COSTS.turn + COSTS.forwarded + 2 * COSTS.message, rel=0.02)


def test_own_commands_scale_linearly() -> None:
    one, four = (Simulation(COSTS, Load(servers, 16, 1.0)).run().rate for servers in (1, 4))
    assert four / one == pytest.approx(4, rel=0.02)


def test_costs_are_found_from_measurements() -> None:
    measured = [Result(cpu(*load), 0.0) for load in ((1, 1), (1, 16), (2, 1), (2, 16))]
    found = fitted(*measured)
    assert found.turn == pytest.approx(COSTS.turn, rel=0.05)
    assert found.own == pytest.approx(COSTS.own, rel=0.05)
    assert found.forwarded + found.message == pytest.approx(COSTS.forwarded + COSTS.message, rel=0.1)
