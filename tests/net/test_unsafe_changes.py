"""A reply that reports on a job waits for the changes of other connections that a crash could still undo."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from typing import Final

import pytest

from greenstalk_server.core.broker import SLICE
from greenstalk_server.core.limits import Limits
from greenstalk_server.core.operations import editing, finishing, kicking, policy_changes
from greenstalk_server.core.outcomes import EditOutcome
from greenstalk_server.core.policies.policy import PolicySet, parse_policy
from greenstalk_server.journal import startup
from greenstalk_server.journal.writer import JournalWriter
from greenstalk_server.net.acceptor import DescriptorBudget
from greenstalk_server.net.committer import Committer
from greenstalk_server.net.server import Server
from greenstalk_server.protocol.verb import Verb
from greenstalk_server.protocol.verbs import VERBS
from greenstalk_server.runtime.clock import steady_clock
from tests.journal.disk import Disk
from tests.net.in_process import is_readable, listen, wait_until
from tests.support.daemon import TIMEOUT
from tests.support.grammar import example
from tests.support.world import make_broker

PUT: Final = b"put 0 0 60 1\r\nx"


class SlowServer:
    """A server with a journal that is synced before each reply (-f 0), on a disk whose syncs the test can block."""

    def __init__(self) -> None:
        disk, clock = Disk(), steady_clock()
        journal = JournalWriter(disk, 65_536, 0, os.urandom)
        broker = make_broker()
        broker.journal = journal
        startup.recover(disk, broker, journal, clock(), is_strict=True)
        policy_changes.set_policies(
            broker, PolicySet([parse_policy("once", {"tubes": ["once"], "unique": "body"})]), clock()
        )
        listener = listen()
        files = DescriptorBudget(1000, broker.limit_counters)
        committer = Committer(journal)
        self.server: Server = Server(broker, [listener], clock, committer, files=files, limits=Limits())
        self._address: tuple[str, int] = listener.sock.getsockname()
        self._may_sync: threading.Event = threading.Event()
        self._may_sync.set()
        disk.before = self._before
        self.server.start()
        self.writer: socket.socket = self.connect()
        self.reader: socket.socket = self.connect()

    def _before(self, call: str) -> None:
        if call == "sync":
            self._may_sync.wait(TIMEOUT)

    def connect(self) -> socket.socket:
        return socket.create_connection(self._address)

    def block(self) -> None:
        """Block syncs, so that no change becomes safe until `unblock`."""
        self._may_sync.clear()

    def unblock(self) -> None:
        self._may_sync.set()

    @property
    def held(self) -> int:
        """Number of connections whose replies wait for the journal."""
        return sum(connection.awaits_disk for connection in self.server.connections)

    def ask(self, sock: socket.socket, *commands: bytes) -> bytes:
        """Send *commands*; wait for the reply to the last one, and return it."""
        reply = b""
        for command in commands:
            sock.sendall(command + b"\r\n")
            reply = self.read(sock)
        return reply

    def read(self, sock: socket.socket) -> bytes:
        wait_until(lambda: is_readable(sock))
        return sock.recv(65_536)

    def change(self, command: bytes) -> None:
        """Make a change that cannot become safe; return when its reply is held."""
        held = self.held
        self.block()
        self.writer.sendall(command + b"\r\n")
        wait_until(lambda: self.held > held)

    def is_held(self, command: bytes) -> bool:
        """Send *command* on the other connection; return whether its reply is held, once that is decided."""
        held = self.held
        self.reader.sendall(command + b"\r\n")
        wait_until(lambda: self.held > held or is_readable(self.reader))
        return not is_readable(self.reader)

    def close(self) -> None:
        self.unblock()
        self.writer.close()
        self.reader.close()
        self.server.stop()


@pytest.fixture
def slow() -> Iterator[SlowServer]:
    made = SlowServer()
    yield made
    made.close()


DUPLICATES: Final = {
    "idp": (b"put 0 0 60 1 idp:k\r\nx", b"put 0 0 60 1 idp:k\r\nx", b"INSERTED 1 READY\r\n"),
    "finished idp": (b"delete 1", b"put 0 0 60 1 idp:k:60\r\nx", b"INSERTED 1 DELETED\r\n"),
    "unique": (b"put-in-tube once 0 0 60 1\r\nx", b"put-in-tube once 0 0 60 1\r\nx", b"INSERTED 1\r\n"),
}


@pytest.mark.parametrize("kind", DUPLICATES)
def test_duplicate_waits_for_the_change_that_makes_it_one(slow: SlowServer, kind: str) -> None:
    first, second, reply = DUPLICATES[kind]
    if first == b"delete 1":
        assert slow.ask(slow.writer, second) == b"INSERTED 1\r\n"
    slow.change(first)
    assert slow.is_held(second)
    slow.unblock()
    assert slow.read(slow.reader) == reply


COMMANDS: Final = [verb for verb in VERBS if verb.handle is not None]
HELD: Final = [verb for verb in COMMANDS if verb.awaits_journal]


@pytest.mark.parametrize("verb", HELD, ids=lambda verb: verb.name.decode())
def test_reply_that_reports_on_a_job_waits_even_if_the_command_changes_nothing(slow: SlowServer, verb: Verb) -> None:
    slow.change(PUT)
    assert slow.is_held(example(verb).removesuffix(b"\r\n"))
    slow.unblock()
    assert slow.read(slow.reader)


def test_replies_with_counts_and_lists_and_about_the_connection_do_not_wait(slow: SlowServer) -> None:
    """The first command reserves a job that is safe; quit comes last."""
    assert slow.ask(slow.writer, PUT) == b"INSERTED 1\r\n"
    slow.change(b"put 0 60 60 1\r\nx")
    for verb in sorted((verb for verb in COMMANDS if not verb.awaits_journal), key=lambda verb: verb.name == b"quit"):
        assert not slow.is_held(example(verb).removesuffix(b"\r\n")), verb.name
        slow.reader.recv(65_536)


def test_reserve_waits_for_the_put_of_its_job(slow: SlowServer) -> None:
    slow.change(PUT)
    assert slow.is_held(b"reserve")


def test_reserve_waits_for_the_edit_of_its_job(slow: SlowServer) -> None:
    assert slow.ask(slow.writer, b"put 0 0 60 1\r\nx") == b"INSERTED 1\r\n"
    slow.block()
    assert editing.edit_job(slow.server.broker, 1, slow.server.clock(), body=b"y") == EditOutcome.DONE
    assert slow.is_held(b"reserve")
    slow.unblock()
    assert slow.read(slow.reader) == b"RESERVED 1 1\r\ny\r\n"


@pytest.mark.parametrize("change", [b"delete 1", b"bury 1 0"])
def test_end_of_a_wait_for_a_job_waits_for_the_change_that_ends_it(slow: SlowServer, change: bytes) -> None:
    slow.ask(slow.writer, PUT, b"reserve")
    slow.reader.sendall(b"wait 1\r\n")
    wait_until(lambda: any(connection.session.is_waiting for connection in slow.server.connections))
    slow.block()
    slow.writer.sendall(change + b"\r\n")
    wait_until(lambda: slow.held == 2 or is_readable(slow.reader))
    assert not is_readable(slow.reader)


def test_reply_to_a_command_of_several_slices_waits(slow: SlowServer) -> None:
    """The put comes between the slices of the search, whose last slice changes nothing."""
    slow.ask(slow.writer, *[PUT] * (SLICE + 1), *[b"reserve"] * (SLICE + 1))
    slow.block()
    assert kicking.kick_job(slow.server.broker, 1, slow.server.clock()) is False
    assert finishing.delete_job(slow.server.broker, 2, slow.server.clock(), is_forced=True)
    assert slow.is_held(b"peek-reserved")
