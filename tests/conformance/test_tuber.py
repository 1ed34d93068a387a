"""Conversations in the words of the server tuber, byte for byte.

beanstalkd has no tags, so the other tests of this package cannot compare them with a peer. The replies are facts of
tuber's protocol that its clients depend on. The replies to tuber's other commands are in differences.py.

In a transcript, `>` is a line that the client sends and `<` one that it receives; both end with CRLF, and a backslash
with an n is a line feed. `b>` and `b<` belong to a second connection. Time passes only while a line is awaited.
"""

from __future__ import annotations

import re

import pytest

from tests.support.daemon import Daemon
from tests.support.peer import Peer
from tests.support.talk import Talk
from tests.support.world import make_broker

TUBE_KEYS = (
    "total-reserves",
    "total-timeouts",
    "total-buries",
    "bury-rate",
    "processing-time-ewma",
    "processing-time-min",
    "processing-time-max",
    "processing-time-samples",
    "processing-time-p50",
    "processing-time-p95",
    "processing-time-p99",
    "queue-time-ewma",
    "queue-time-min",
    "queue-time-max",
    "queue-time-samples",
    "oldest-ready-id",
    "oldest-ready-age",
    "oldest-delayed-age",
    "oldest-buried-age",
)
"""Keys of stats-tube that tuber's terminal UI and its Ruby client read."""

TRANSCRIPTS = {
    "idp": """
        > put 100 0 60 2 idp:order-1
        > j1
        < INSERTED 1
        b> put 100 0 60 2 idp:order-1
        b> j2
        b< INSERTED 1 READY
        b> put 10 0 60 2 idp:order-1
        b> j3
        b< INSERTED 1 READY 10
        > reserve
        < RESERVED 1 2
        < j1
        b> put 0 0 60 2 idp:order-1
        b> j4
        b< INSERTED 1 RESERVED
        > delete 1
        < DELETED
        > put 0 60 60 2 idp:order-1:30
        > j5
        < INSERTED 5
        b> put 0 0 60 2 idp:order-1
        b> j6
        b< INSERTED 5 DELAYED
        > delete 5
        < DELETED
        b> put 0 0 60 2 idp:order-1
        b> j7
        b< INSERTED 5 DELETED
        > flush-tube default
        < FLUSHED 0
        b> put 0 0 60 2 idp:order-1
        b> j8
        b< INSERTED 8
        """,
    "grp-and-aft": """
        > put 0 0 60 2 grp:batch
        > j1
        < INSERTED 1
        > put 0 0 60 2 aft:batch grp:next
        > j2
        < INSERTED 2
        > stats-group batch
        < OK 74
        < ---\\nname: batch\\nready: 1\\nreserved: 0\\ndelayed: 0\\nburied: 0\\nwaiting-jobs: 1\\n
        > stats-group next
        < OK 73
        < ---\\nname: next\\nready: 0\\nreserved: 0\\ndelayed: 1\\nburied: 0\\nwaiting-jobs: 0\\n
        > reserve
        < RESERVED 1 2
        < j1
        b> reserve
        > bury 1 0
        < BURIED
        > kick-job 1
        < KICKED
        b< RESERVED 1 2
        b< j1
        > reserve-with-timeout 0
        < TIMED_OUT
        b> delete 1
        b< DELETED
        > reserve-with-timeout 0
        < RESERVED 2 2
        < j2
        > stats-group batch
        < NOT_FOUND
        """,
    "con": """
        > put 0 0 60 2 con:customer
        > j1
        < INSERTED 1
        > put-in-tube other 0 0 60 2 con:customer:3
        > j2
        < INSERTED 2
        > watch other
        < WATCHING 2
        b> watch other
        b< WATCHING 2
        > reserve
        < RESERVED 1 2
        < j1
        > reserve-with-timeout 0
        < TIMED_OUT
        b> reserve
        > release 1 5 1
        < RELEASED
        b< RESERVED 2 2
        b< j2
        > reserve-job 1
        < NOT_FOUND
        b> delete 2
        b< DELETED
        > reserve-job 1
        < RESERVED 1 2
        < j1
        """,
}


class Pair:
    """Two sessions on one broker, and the bytes that each has received. A line of a script names its session."""

    def __init__(self) -> None:
        broker = make_broker()
        self._talks = {"": Talk(broker), "b": Talk(broker)}
        self._received = dict.fromkeys(self._talks, b"")

    def send(self, name: str, line: bytes) -> None:
        self._received[name] += self._talks[name].send(line)
        self._resume()

    def receive(self, name: str, size: int) -> bytes:
        """Return up to *size* of the next bytes that a session receives; advance the time until it receives some."""
        for _ in range(600):
            if self._received[name]:
                break
            for talk in self._talks.values():
                talk.advance(0.1)
            self._resume()
        data, self._received[name] = self._received[name][:size], self._received[name][size:]
        return data

    def has_more(self) -> bool:
        return any(self._received.values())

    def _resume(self) -> None:
        for name, talk in self._talks.items():
            if talk.session.is_woken:
                self._received[name] += talk.resume()


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_replies_match_the_transcript(name: str) -> None:
    pair = Pair()
    for number, line in enumerate(TRANSCRIPTS[name].strip().splitlines(), 1):
        found = re.fullmatch(r" *(b?)([<>]) (.*)", line)
        assert found is not None, line
        text = found[3].replace("\\n", "\n").encode() + b"\r\n"
        if found[2] == ">":
            pair.send(found[1], text)
        else:
            assert pair.receive(found[1], len(text)) == text, f"line {number} of {name}"
    assert not pair.has_more(), "a reply that the transcript does not have"


@pytest.mark.parametrize("has_option", [False, True])
def test_stats_have_the_keys_that_tuber_shows(has_option: bool) -> None:
    """The clients of tuber cannot ask for the keys, so an option of the server sends them to every client."""
    flags = ("-l", "127.0.0.1", "-p", "0", "--no-web", *["--extended-stats"] * has_option)
    with Daemon(*flags) as server, Peer(server) as peer:
        if not has_option:
            assert peer.ask(b"stats-mode extended") == b"USING extended"
        assert peer.ask(b"put 0 0 60 0\r\n") == b"INSERTED 1"
        assert tuple(peer.stats(b"stats-tube default"))[-len(TUBE_KEYS) :] == TUBE_KEYS
        assert peer.stats(b"stats-job 1")["time-reserved"] == "0"
        assert peer.stats(b"stats")["binlog-enabled"] == "false"
