"""What a restart by SIGTERM or SIGKILL makes of a job in each state: the same script for our server and beanstalkd."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.journal.test_restart import SLACK, serving
from tests.support.daemon import PATIENCE
from tests.support.servers import Kind, Server, ours, peer, yaml_mapping
from tests.support.wire import Connection

COUNTS = {"reserves", "timeouts", "releases", "buries", "kicks"}
SHOWN = {"state", "pri", "delay", "time-left", *COUNTS}
"""Keys of stats-job that a restart is judged by."""

UNCOUNTED_RESERVE = {"reserves"}
UNRECORDED_RELEASE = {"pri", "delay", "reserves", "releases"}
COUNTED_AGAIN = {"buries"}
UNRECORDED_END = {"state", "reserves", "buries"}
LATER = "until it is ready"


@dataclass(frozen=True, slots=True)
class Case:
    """A job's life until the restart.

    steps   commands of one client in a tube of its own; `@` is the job's id, LATER a wait until the job is ready.
    after   its state after the restart, in ours.
    unlike  keys of stats-job in which beanstalkd then differs from ours: what it does not record.
    """

    steps: tuple[str, ...]
    after: str
    unlike: frozenset[str]


def case(*steps: str, after: str, unlike: set[str] | None = None) -> Case:
    return Case(steps, after, frozenset(unlike or ()))


PUT, DELAYED_PUT = "put 7 0 60 0", "put 7 1000 60 0"
SOON, SHORT = "put 7 1 60 0", "put 7 0 1 0"
TAKE, TAKE_BY_ID = "reserve-with-timeout 0", "reserve-job @"
BURIED = (PUT, TAKE, "bury @ 9")

CASES = {
    "put": case(PUT, after="ready"),
    "delayed": case(DELAYED_PUT, after="delayed"),
    "delay over": case(SOON, LATER, after="ready"),
    "released": case(PUT, TAKE, "release @ 5 0", after="ready", unlike=UNRECORDED_RELEASE - {"delay"}),
    "released after a delay": case(SOON, LATER, TAKE, "release @ 5 0", after="ready", unlike=UNRECORDED_RELEASE),
    "released with a delay": case(PUT, TAKE, "release @ 5 1000", after="delayed"),
    "released, delay over": case(PUT, TAKE, "release @ 5 1", LATER, after="ready"),
    "released twice": case(
        PUT, TAKE, "release @ 5 1", LATER, TAKE, "release @ 9 0", after="ready", unlike=UNRECORDED_RELEASE
    ),
    "buried": case(*BURIED, after="buried", unlike=COUNTED_AGAIN),
    "buried and kicked": case(*BURIED, "kick 1", after="ready"),
    "buried and kicked by id": case(*BURIED, "kick-job @", after="ready"),
    "delayed and kicked": case(DELAYED_PUT, "kick 1", after="ready"),
    "timed out": case(SHORT, TAKE, LATER, after="ready", unlike={"reserves", "timeouts"}),
    # Held at the restart
    "held": case(PUT, TAKE, after="ready", unlike=UNCOUNTED_RESERVE),
    "held by id": case(PUT, TAKE_BY_ID, after="ready", unlike=UNCOUNTED_RESERVE),
    "held and touched": case(PUT, TAKE, "touch @", after="ready", unlike=UNCOUNTED_RESERVE),
    "held after a delay": case(SOON, LATER, TAKE, after="ready", unlike=UNCOUNTED_RESERVE),
    "held after a kick": case(*BURIED, "kick 1", TAKE, after="ready", unlike=UNCOUNTED_RESERVE),
    "held from buried": case(*BURIED, TAKE_BY_ID, after="buried", unlike=UNCOUNTED_RESERVE | COUNTED_AGAIN),
    "held from buried, touched": case(
        *BURIED, TAKE_BY_ID, "touch @", after="buried", unlike=UNCOUNTED_RESERVE | COUNTED_AGAIN
    ),
    "held from delayed": case(DELAYED_PUT, TAKE_BY_ID, after="delayed", unlike=UNCOUNTED_RESERVE),
    "held from a release with a delay": case(
        PUT, TAKE, "release @ 5 1000", TAKE_BY_ID, after="delayed", unlike=UNCOUNTED_RESERVE
    ),
    "held from delayed, delay over": case(SOON, TAKE_BY_ID, after="ready", unlike=UNCOUNTED_RESERVE),
    # Taken by id, and done with
    "from buried, released": case(
        *BURIED, TAKE_BY_ID, "release @ 3 0", after="ready", unlike=UNRECORDED_END | {"pri", "releases"}
    ),
    "from buried, delayed": case(*BURIED, TAKE_BY_ID, "release @ 3 1000", after="delayed"),
    "from buried, buried again": case(*BURIED, TAKE_BY_ID, "bury @ 3", after="buried", unlike=COUNTED_AGAIN),
    "from buried, timed out": case(
        SHORT, TAKE, "bury @ 9", TAKE_BY_ID, LATER, after="ready", unlike=UNRECORDED_END | {"timeouts"}
    ),
    "from delayed, released": case(
        DELAYED_PUT,
        TAKE_BY_ID,
        "release @ 3 0",
        after="ready",
        unlike=UNRECORDED_RELEASE | {"state", "time-left"},
    ),
    "from delayed, delayed": case(DELAYED_PUT, TAKE_BY_ID, "release @ 3 500", after="delayed"),
    "from delayed, buried": case(DELAYED_PUT, TAKE_BY_ID, "bury @ 3", after="buried", unlike=COUNTED_AGAIN),
}

CLOSED = {
    "from buried, closed": case(*BURIED, TAKE_BY_ID, after="ready", unlike=UNRECORDED_END),
    "from delayed, closed": case(DELAYED_PUT, TAKE_BY_ID, after="ready", unlike={"state", "time-left", "reserves"}),
}
"""Cases whose client disconnects while the server goes on."""

ALL = CASES | CLOSED

Shown = dict[str, dict[str, str]]
"""By name of a case: what stats-job says."""


@contextmanager
def connected(server: Server) -> Iterator[Connection]:
    connection = Connection(server.address, PATIENCE)
    try:
        yield connection
    finally:
        connection.close()


def shown(connection: Connection, id: int) -> dict[str, str]:
    stats = yaml_mapping(connection.ask(b"stats-job %d" % id))
    return {key: stats[key] for key in SHOWN}


def wait_until(connection: Connection, id: int, state: str) -> None:
    until = time.monotonic() + PATIENCE
    while (now := shown(connection, id)["state"]) != state:
        assert time.monotonic() < until, f"job {id} is {now}"
        time.sleep(0.02)


class Life:
    """One case, played step by step on a connection of its own."""

    def __init__(self, server: Server, name: str, number: int) -> None:
        self.connection: Connection = Connection(server.address, PATIENCE)
        self.id: int = 0
        self._rest: list[str] = list(ALL[name].steps)
        tube = b"case-%d" % number
        for line in (b"use " + tube, b"watch " + tube, b"ignore default"):
            self.connection.ask(line)

    def play(self) -> None:
        """Go on to the next wait, or to the end; a wait that comes first is waited for."""
        if self._rest and self._rest[0] == LATER:
            wait_until(self.connection, self.id, "ready")
            del self._rest[0]
        while self._rest and self._rest[0] != LATER:
            line = self._rest.pop(0).replace("@", str(self.id)).encode()
            reply = self.connection.ask(line + b"\r\n" if line.startswith(b"put") else line)
            if reply.startswith(b"INSERTED"):
                self.id = int(reply.split()[1])
            assert not reply.startswith((b"NOT_FOUND", b"TIMED_OUT", b"BAD_FORMAT", b"OUT_OF_MEMORY")), (line, reply)

    @property
    def is_over(self) -> bool:
        return not self._rest


def restart(kind: Kind, directory: Path, number: signal.Signals) -> tuple[Shown, Shown]:
    """What a server shows of all cases before and after a restart."""
    with ExitStack() as stack:
        server = stack.enter_context(serving(kind, directory, "-f", "0"))
        lives = {name: Life(server, name, at) for at, name in enumerate(ALL)}
        for life in lives.values():
            stack.callback(life.connection.close)
        control = stack.enter_context(connected(server))
        while not all(life.is_over for life in lives.values()):
            for life in lives.values():
                life.play()
        for name in CLOSED:
            lives[name].connection.close()
            wait_until(control, lives[name].id, "ready")
        time.sleep(1.1)  # the delay of "held from delayed, delay over" runs out
        before = {name: shown(control, life.id) for name, life in lives.items()}
        control.ask(b"put 0 0 60 0\r\n")  # so that all before is written
        os.kill(server.pid, number)
        server.stop()
        ids = {name: life.id for name, life in lives.items()}
    with serving(kind, directory, "-f", "0") as server, connected(server) as control:
        after = {name: shown(control, id) for name, id in ids.items()}
    return before, after


def differing(one: dict[str, str], other: dict[str, str]) -> set[str]:
    """Keys whose values differ, but for a time left that differs by little."""
    near = abs(int(one["time-left"]) - int(other["time-left"])) <= SLACK
    return {key for key in SHOWN if one[key] != other[key]} - ({"time-left"} if near else set())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_each_state_survives_a_restart_as_with_beanstalkd(tmp_path: Path, number: signal.Signals) -> None:
    """But for what beanstalkd does not record (Case.unlike), where ours shows what it showed before."""
    before, after = restart(ours(), tmp_path / "ours", number)
    before_in_peer, after_in_peer = restart(peer(), tmp_path / "peer", number)
    for name, expected in ALL.items():
        assert differing(before[name], before_in_peer[name]) == set(), name
        assert after[name]["state"] == expected.after, name
        assert differing(after[name], after_in_peer[name]) == expected.unlike, name
        if before[name]["state"] != "reserved":
            assert differing(before[name], after[name]) == set(), name
        else:
            assert differing(before[name], after[name]) <= {"state", "time-left"}, name
