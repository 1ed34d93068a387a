"""Expensive work does not starve other clients. The tests count their turns, and measure no time.

The server and its clients share one loop, and their sockets deliver at once. So the number of turns that the loop makes
during expensive work does not depend on the speed or the load of the machine.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import gevent
import pytest
from gevent import get_hub
from gevent import socket as patient
from werkzeug.routing import Map, RuleFactory

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.limits import Limits
from greenstalk_server.net.acceptor import DescriptorBudget
from greenstalk_server.net.connection import Connection
from greenstalk_server.net.idle import find_idle
from greenstalk_server.net.listeners import Listener
from greenstalk_server.net.poller import BATCH_SIZE, BUDGET
from greenstalk_server.net.server import CLOSE_BATCH, TIMEOUT_CHECK_BATCH, Server
from greenstalk_server.protocol.costs import CLOSE_COST
from greenstalk_server.runtime.scheduling import yield_to_loop
from greenstalk_server.web.app import create_dashboard
from greenstalk_server.web.auth.guard import RULES_SLICE
from tests.support.daemon import TIMEOUT
from tests.web.turns import LoopIterations


class Here:
    """A server of *broker* in this process, with a fixed time in `now`."""

    def __init__(self, broker: Broker, path: Path, limits: Limits) -> None:
        self.broker = broker
        self.now = broker.facts.started_at
        self._address = str(path / "socket")
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        sock.bind(self._address)
        sock.listen()
        files = DescriptorBudget(1000, broker.limit_counters)
        self.server = Server(broker, [Listener(sock, "here")], lambda: self.now, files=files, limits=limits)
        self.server.start()
        self._at_exit = ExitStack()
        self._at_exit.callback(self.server.stop)

    def connect(self) -> Client:
        client = Client(self._address)
        self._at_exit.callback(client.close)
        return client

    def stop(self) -> None:
        self._at_exit.close()


class Client:
    """A connection that one greenlet at a time uses."""

    def __init__(self, address: str) -> None:
        self._sock = patient.socket(socket.AF_UNIX)
        self._sock.settimeout(TIMEOUT)
        self._sock.connect(address)
        self._reader = self._sock.makefile("rb")

    def ask(self, request: bytes) -> bytes:
        """Send *request*; return its reply, one line."""
        self._sock.sendall(request)
        line: bytes = self._reader.readline()
        return line

    def close(self) -> None:
        self._reader.close()
        self._sock.close()


@pytest.fixture
def here(broker: Broker, tmp_path: Path) -> Iterator[Here]:
    server = Here(broker, tmp_path, Limits(idle_timeout=60))
    yield server
    server.stop()


def test_connections_that_close_together_do_not_starve_others(here: Here) -> None:
    others = [here.connect() for _ in range(300)]
    assert others[-1].ask(b"list-tube-used\r\n") == b"USING default\r\n"
    for other in others:
        other.close()
    assert most_closed_in_a_turn(here) <= BUDGET // CLOSE_COST + BATCH_SIZE


def test_connections_that_are_idle_too_long_together_do_not_starve_others(here: Here) -> None:
    others = [here.connect() for _ in range(300)]
    assert others[-1].ask(b"list-tube-used\r\n") == b"USING default\r\n"
    here.now += 61 * SECOND
    closing = gevent.spawn(here.server._close_found, find_idle)
    assert most_closed_in_a_turn(here) <= CLOSE_BATCH
    closing.get()


def test_checks_of_many_connections_do_not_starve_others(here: Here) -> None:
    others = [here.connect() for _ in range(3 * TIMEOUT_CHECK_BATCH)]
    assert others[-1].ask(b"list-tube-used\r\n") == b"USING default\r\n"
    checked = [0]

    def find(connections: Sequence[Connection], limits: Limits, now: int) -> Iterator[tuple[Connection, str]]:
        checked.append(checked[-1] + len(connections))
        return iter(())

    with LoopIterations(lambda: checked[-1]) as loop:
        here.server._close_found(find)
    assert checked[-1] >= len(others) and loop.max_progress <= 2 * TIMEOUT_CHECK_BATCH


def test_handshakes_that_time_out_together_do_not_starve_others(here: Here) -> None:
    ended = []

    def shake() -> None:
        try:
            get_hub().switch()
        except TimeoutError as error:
            ended.append(error)

    handshakes = [gevent.spawn(shake) for _ in range(3 * CLOSE_BATCH)]
    here.server._handshakes.update(dict.fromkeys(handshakes, here.now))
    ending = gevent.spawn(here.server._end_handshakes)
    turns = [0]
    while len(ended) < len(handshakes):
        yield_to_loop()
        turns.append(len(ended))
    ending.get()
    assert max(after - before for before, after in pairwise(turns)) <= CLOSE_BATCH


def test_creation_of_a_dashboard_does_not_starve_others(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that takes over a shard creates the dashboard while it serves the clients of other shards."""
    rules: list[object] = []

    def add(self: Map, rule: RuleFactory) -> None:
        rules.append(rule)
        add_rule(self, rule)

    add_rule = Map.add
    monkeypatch.setattr(Map, "add", add)
    with LoopIterations(lambda: len(rules)) as loop:
        dashboard = create_dashboard(broker, lambda: broker.facts.started_at)
        turns = loop.count
        dashboard.start()
        assert loop.count > turns, "the templates are loaded in one turn"
        dashboard.discard()
    assert len(rules) > 10 * RULES_SLICE and loop.max_progress <= 2 * RULES_SLICE


def most_closed_in_a_turn(here: Here) -> int:
    """Wait until all clients are disconnected; return the largest number of them between two turns of the loop."""
    left = [len(here.broker.clients)]
    while left[-1]:
        yield_to_loop()
        left.append(len(here.broker.clients))
    return max(before - after for before, after in pairwise(left))
