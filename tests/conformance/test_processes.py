"""Play the corpus to a server with three processes, or to a cluster, and compare the replies with beanstalkd's.

`make test` plays a part of the corpus, with the connections of each conversation spread over the processes.
`CONFORMANCE_FRONT` selects the whole corpus, and the process that accepts the connections: 0, 1, 2, `each` for the
processes in turn, or `any` for those that the system selects. With `CONFORMANCE_CLUSTER=1`, the processes are servers
of a cluster with a database.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import zip_longest
from queue import SimpleQueue
from zlib import crc32

import pytest

from tests.support.cluster import Cluster
from tests.support.servers import Kind, Server, ours, peer
from tests.support.sharded import ANY, EACH, ClusterServer, ShardedServer

from . import corpus_jobs, corpus_order, corpus_stats, corpus_tubes, corpus_waiting
from .corpus import CORPUS
from .differences import DIFFERENCES, as_ours
from .differences_of_processes import DIFFERENCES_OF_PROCESSES, NOT_PLAYED, without_order
from .player import Transcript, play, replies
from .script import Conversation, PauseServer
from .test_conformance import as_diff

PROCESSES = 3
TIMED_BATCH = 4
"""Servers that play timed conversations concurrently."""

FRONT = os.environ.get("CONFORMANCE_FRONT", "")
IS_CLUSTER = bool(os.environ.get("CONFORMANCE_CLUSTER"))

MENDED = [
    ("a-reserve-comes-before-a-later-close", 0),
    ("deadline-soon-with-a-paused-and-an-unpaused-tube", 1),
    ("half-uploaded-job-is-not-counted", 0),
    ("pipelined-body-missing-crlf-in-the-order-of-commands", 0),
    ("pipelined-body-too-big-in-the-order-of-commands", 0),
    ("pipelined-errors-in-the-order-of-commands", 0),
    ("pipelined-long-line-in-the-order-of-commands", 0),
    ("touch-id-garbage", 2),
]
"""Conversations that have found errors, each with the process that accepts its connections."""


def is_cheap(conversation: Conversation) -> bool:
    return not (conversation.is_timed or conversation.needs_own_server or conversation.flags)


def front_of(conversation: Conversation) -> int:
    """Return the process that accepts the connections; one for all if the order of their commands matters."""
    if FRONT in ("0", "1", "2"):
        return int(FRONT)
    if PauseServer() in [step for _, step in conversation.steps]:
        return crc32(conversation.name.encode()) % PROCESSES
    return ANY if FRONT == "any" else EACH


PART = [
    each
    for module in (corpus_jobs, corpus_waiting, corpus_tubes, corpus_stats, corpus_order)
    for each in module.CONVERSATIONS
    if is_cheap(each) and each.name not in NOT_PLAYED
]
WHOLE = [each for each in CORPUS.values() if not each.is_timed and each.name not in NOT_PLAYED]
TIMED = [each for each in CORPUS.values() if each.is_timed] if FRONT else []
PLAYED = [(each.name, front_of(each)) for each in WHOLE] if FRONT else [(each.name, front_of(each)) for each in PART]


class Servers:
    """Running servers by kind and flags, started on first use; *stack* closes them."""

    def __init__(self, stack: ExitStack, database: str) -> None:
        self._stack = stack
        self._database = database
        self._running: dict[tuple[Kind, tuple[str, ...]], Server] = {}

    def play(self, kind: Kind, conversation: Conversation, front: int, expected: list[str]) -> Transcript:
        if conversation.needs_own_server:
            with closing(start(kind, conversation, self._database)) as server:
                return play_through(server, conversation, front, expected)
        key = kind, conversation.flags
        if key not in self._running:
            self._running[key] = self._stack.enter_context(closing(start(kind, conversation, self._database)))
        return play_through(self._running[key], conversation, front, expected)


def start(kind: Kind, conversation: Conversation, database: str) -> Server:
    if kind == peer():
        return Server(kind, conversation.flags)
    if database:
        return ClusterServer(kind, conversation.flags, database, PROCESSES)
    return ShardedServer(kind, ("--processes", str(PROCESSES), *conversation.flags))


def play_through(server: Server, conversation: Conversation, front: int, expected: list[str]) -> Transcript:
    if isinstance(server, ShardedServer):
        server.front = front
    return play(server, conversation, expected)


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """The URL of the database of a cluster; empty for processes of one server."""
    if not IS_CLUSTER:
        yield ""
        return
    with Cluster("max_connections = 200", "fsync = off") as cluster:
        yield cluster.url


@pytest.fixture(scope="module")
def servers(database: str) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(stack, database)


@pytest.fixture(scope="module")
def timed(database: str) -> Iterator[dict[str, Future[tuple[Transcript, Transcript]]]]:
    """Plays all timed conversations, several at a time: the peer's transcript, then ours."""
    free: SimpleQueue[tuple[Server, Server]] = SimpleQueue()  # idle pairs of servers

    def play_pair(conversation: Conversation) -> tuple[Transcript, Transcript]:
        on_peer, on_ours = free.get()
        try:
            theirs = play(on_peer, conversation)
            mine = play_through(on_ours, conversation, front_of(conversation), expected_replies(conversation, theirs))
            return theirs, mine
        finally:
            free.put((on_peer, on_ours))

    with ExitStack() as stack:
        for _ in range(TIMED_BATCH):
            on_peer, on_ours = (
                stack.enter_context(closing(start(kind, TIMED[0], database))) for kind in (peer(), ours())
            )
            free.put((on_peer, on_ours))
        batch = stack.enter_context(ThreadPoolExecutor(TIMED_BATCH))
        yield {each.name: batch.submit(play_pair, each) for each in TIMED}


def expected_replies(conversation: Conversation, on_peer: Transcript) -> list[str]:
    difference = DIFFERENCES.get(conversation.name)
    return [as_ours(reply) for reply in replies(on_peer)] if difference is None else difference.ours


def check(name: str, on_peer: Transcript, on_ours: Transcript) -> None:
    lines = [entry.line for entry in on_ours for _ in entry.replies]
    got, expected = (
        [_without_journal(without_order(line or "", reply or "")) for line, reply in zip_longest(lines, found)]
        for found in (replies(on_ours), expected_replies(CORPUS[name], on_peer))
    )
    difference = DIFFERENCES_OF_PROCESSES.get(name)
    assert got == expected or (difference is not None and got in difference.ours), as_diff(name, expected, got)


def _without_journal(reply: str) -> str:
    """Return *reply* without the figures of the journal, which a cluster alone has."""
    return re.sub(r"\n(binlog-[a-z-]+|file): \d+", "", reply) if IS_CLUSTER else reply


@pytest.mark.parametrize(("name", "front"), [*MENDED, *PLAYED])
def test_replies_of_three_processes_equal_those_of_beanstalkd(servers: Servers, name: str, front: int) -> None:
    on_peer = servers.play(peer(), CORPUS[name], front, [])
    on_ours = servers.play(ours(), CORPUS[name], front, expected_replies(CORPUS[name], on_peer))
    check(name, on_peer, on_ours)


@pytest.mark.parametrize("name", [each.name for each in TIMED])
def test_timed_replies_of_three_processes_equal_those_of_beanstalkd(
    timed: dict[str, Future[tuple[Transcript, Transcript]]], name: str
) -> None:
    check(name, *timed[name].result())


def test_each_difference_of_processes_names_a_conversation() -> None:
    assert DIFFERENCES_OF_PROCESSES.keys() | NOT_PLAYED.keys() <= CORPUS.keys()
