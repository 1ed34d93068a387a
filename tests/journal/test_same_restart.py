"""The state of a job after a restart by SIGTERM or SIGKILL, for every state. Both servers run the same script."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.journal.test_restart import TIME_TOLERANCE, serving
from tests.support.daemon import TIMEOUT
from tests.support.peer import eventually
from tests.support.servers import Kind, Server, ours, peer, yaml_mapping
from tests.support.wire import Connection

COUNTS = {"reserves", "timeouts", "releases", "buries", "kicks"}
SHOWN = {"state", "pri", "delay", "time-left", *COUNTS}
"""Keys of stats-job that are compared."""

UNCOUNTED_RESERVE = {"reserves"}
UNRECORDED_RELEASE = {"pri", "delay", "reserves", "releases"}
COUNTED_AGAIN = {"buries"}
UNRECORDED_END = {"state", "reserves", "buries"}
WAIT_READY = "until it is ready"


@dataclass(frozen=True, slots=True)
class Case:
    """The commands for one job before a restart, and its state afterwards.

    steps   commands of one client in a tube of its own; `@` is the job's id, WAIT_READY a wait until the job is ready.
    after   state after the restart of our server.
    differs     keys of stats-job that differ after a restart of beanstalkd, since it does not record them.
    """

    steps: tuple[str, ...]
    after: str
    differs: frozenset[str]


def case(*steps: str, after: str, differs: set[str] | None = None) -> Case:
    return Case(steps, after, frozenset(differs or ()))


PUT, DELAYED_PUT = "put 7 0 60 0", "put 7 1000 60 0"
SOON, SHORT = "put 7 1 60 0", "put 7 0 1 0"
TAKE, TAKE_BY_ID = "reserve-with-timeout 0", "reserve-job @"
BURIED = (PUT, TAKE, "bury @ 9")

CASES = {
    "put": case(PUT, after="ready"),
    "delayed": case(DELAYED_PUT, after="delayed"),
    "delay over": case(SOON, WAIT_READY, after="ready"),
    "released": case(PUT, TAKE, "release @ 5 0", after="ready", differs=UNRECORDED_RELEASE - {"delay"}),
    "released after a delay": case(SOON, WAIT_READY, TAKE, "release @ 5 0", after="ready", differs=UNRECORDED_RELEASE),
    "released with a delay": case(PUT, TAKE, "release @ 5 1000", after="delayed"),
    "released, delay over": case(PUT, TAKE, "release @ 5 1", WAIT_READY, after="ready"),
    "released twice": case(
        PUT, TAKE, "release @ 5 1", WAIT_READY, TAKE, "release @ 9 0", after="ready", differs=UNRECORDED_RELEASE
    ),
    "buried": case(*BURIED, after="buried", differs=COUNTED_AGAIN),
    "buried and kicked": case(*BURIED, "kick 1", after="ready"),
    "buried and kicked by id": case(*BURIED, "kick-job @", after="ready"),
    "delayed and kicked": case(DELAYED_PUT, "kick 1", after="ready"),
    "timed out": case(SHORT, TAKE, WAIT_READY, after="ready", differs={"reserves", "timeouts"}),
    # Reserved at the restart
    "held": case(PUT, TAKE, after="ready", differs=UNCOUNTED_RESERVE),
    "held by id": case(PUT, TAKE_BY_ID, after="ready", differs=UNCOUNTED_RESERVE),
    "held and touched": case(PUT, TAKE, "touch @", after="ready", differs=UNCOUNTED_RESERVE),
    "held after a delay": case(SOON, WAIT_READY, TAKE, after="ready", differs=UNCOUNTED_RESERVE),
    "held after a kick": case(*BURIED, "kick 1", TAKE, after="ready", differs=UNCOUNTED_RESERVE),
    "held from buried": case(*BURIED, TAKE_BY_ID, after="buried", differs=UNCOUNTED_RESERVE | COUNTED_AGAIN),
    "held from buried, touched": case(
        *BURIED, TAKE_BY_ID, "touch @", after="buried", differs=UNCOUNTED_RESERVE | COUNTED_AGAIN
    ),
    "held from delayed": case(DELAYED_PUT, TAKE_BY_ID, after="delayed", differs=UNCOUNTED_RESERVE),
    "held from a release with a delay": case(
        PUT, TAKE, "release @ 5 1000", TAKE_BY_ID, after="delayed", differs=UNCOUNTED_RESERVE
    ),
    "held from delayed, delay over": case(SOON, TAKE_BY_ID, after="ready", differs=UNCOUNTED_RESERVE),
    # Reserved by id while buried or delayed, and no longer reserved at the restart
    "from buried, released": case(
        *BURIED, TAKE_BY_ID, "release @ 3 0", after="ready", differs=UNRECORDED_END | {"pri", "releases"}
    ),
    "from buried, delayed": case(*BURIED, TAKE_BY_ID, "release @ 3 1000", after="delayed"),
    "from buried, buried again": case(*BURIED, TAKE_BY_ID, "bury @ 3", after="buried", differs=COUNTED_AGAIN),
    "from buried, timed out": case(
        SHORT, TAKE, "bury @ 9", TAKE_BY_ID, WAIT_READY, after="ready", differs=UNRECORDED_END | {"timeouts"}
    ),
    "from delayed, released": case(
        DELAYED_PUT,
        TAKE_BY_ID,
        "release @ 3 0",
        after="ready",
        differs=UNRECORDED_RELEASE | {"state", "time-left"},
    ),
    "from delayed, delayed": case(DELAYED_PUT, TAKE_BY_ID, "release @ 3 500", after="delayed"),
    "from delayed, buried": case(DELAYED_PUT, TAKE_BY_ID, "bury @ 3", after="buried", differs=COUNTED_AGAIN),
}

DISCONNECTED = {
    "from buried, closed": case(*BURIED, TAKE_BY_ID, after="ready", differs=UNRECORDED_END),
    "from delayed, closed": case(DELAYED_PUT, TAKE_BY_ID, after="ready", differs={"state", "time-left", "reserves"}),
}
"""Cases whose client disconnects before the restart."""

ALL = CASES | DISCONNECTED

StatsByCase = dict[str, dict[str, str]]
"""Replies of stats-job by name of the case."""


@contextmanager
def connected(server: Server) -> Iterator[Connection]:
    connection = Connection(server.address, TIMEOUT)
    try:
        yield connection
    finally:
        connection.close()


def shown(connection: Connection, id: int) -> dict[str, str]:
    """Return the keys SHOWN of the reply to stats-job."""
    stats = yaml_mapping(connection.ask(b"stats-job %d" % id))
    return {key: stats[key] for key in SHOWN}


def wait_until(connection: Connection, id: int, state: str) -> None:
    eventually(lambda: shown(connection, id)["state"] == state, f"job {id} is {state}")


class CasePlayer:
    """Runs the steps of one case on a connection of its own."""

    def __init__(self, server: Server, name: str, number: int) -> None:
        self.connection: Connection = Connection(server.address, TIMEOUT)
        self.id: int = 0
        self._steps: list[str] = list(ALL[name].steps)
        tube = b"case-%d" % number
        for line in (b"use " + tube, b"watch " + tube, b"ignore default"):
            self.connection.ask(line)

    def play(self) -> None:
        """Run the steps up to the next WAIT_READY, or to the end. If the next step is a WAIT_READY, wait first."""
        if self._steps and self._steps[0] == WAIT_READY:
            wait_until(self.connection, self.id, "ready")
            del self._steps[0]
        while self._steps and self._steps[0] != WAIT_READY:
            line = self._steps.pop(0).replace("@", str(self.id)).encode()
            reply = self.connection.ask(line + b"\r\n" if line.startswith(b"put") else line)
            if reply.startswith(b"INSERTED"):
                self.id = int(reply.split()[1])
            assert not reply.startswith((b"NOT_FOUND", b"TIMED_OUT", b"BAD_FORMAT", b"OUT_OF_MEMORY")), (line, reply)

    @property
    def is_over(self) -> bool:
        return not self._steps


def restart(kind: Kind, directory: Path, number: signal.Signals) -> tuple[StatsByCase, StatsByCase]:
    """Return the stats of all cases before and after a restart by the signal *number*."""
    with ExitStack() as stack:
        server = stack.enter_context(serving(kind, directory, "-f", "0"))
        players = {name: CasePlayer(server, name, at) for at, name in enumerate(ALL)}
        for player in players.values():
            stack.callback(player.connection.close)
        control = stack.enter_context(connected(server))
        while not all(player.is_over for player in players.values()):
            for player in players.values():
                player.play()
        for name in DISCONNECTED:
            players[name].connection.close()
            wait_until(control, players[name].id, "ready")
        time.sleep(1.1)  # the delay of "held from delayed, delay over" must elapse, which no command shows
        before = {name: shown(control, player.id) for name, player in players.items()}
        control.ask(b"put 0 0 60 0\r\n")  # its reply waits until all earlier records are on disk
        os.kill(server.pid, number)
        server.stop()
        ids = {name: player.id for name, player in players.items()}
    with serving(kind, directory, "-f", "0") as server, connected(server) as control:
        after = {name: shown(control, id) for name, id in ids.items()}
    return before, after


def differing(one: dict[str, str], other: dict[str, str]) -> set[str]:
    """Return the keys whose values differ; a time-left may differ by TIME_TOLERANCE."""
    is_near = abs(int(one["time-left"]) - int(other["time-left"])) <= TIME_TOLERANCE
    return {key for key in SHOWN if one[key] != other[key]} - ({"time-left"} if is_near else set())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_each_state_survives_a_restart_as_with_beanstalkd(tmp_path: Path, number: signal.Signals) -> None:
    """Only values that beanstalkd does not record differ (Case.differs); ours shows those from before."""
    before, after = restart(ours(), tmp_path / "ours", number)
    before_in_peer, after_in_peer = restart(peer(), tmp_path / "peer", number)
    for name, expected in ALL.items():
        assert differing(before[name], before_in_peer[name]) == set(), name
        assert after[name]["state"] == expected.after, name
        assert differing(after[name], after_in_peer[name]) == expected.differs, name
        if before[name]["state"] != "reserved":
            assert differing(before[name], after[name]) == set(), name
        else:
            assert differing(before[name], after[name]) <= {"state", "time-left"}, name
