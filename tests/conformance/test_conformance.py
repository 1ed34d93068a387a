"""Play the corpus to our server and to the real beanstalkd, and compare the replies."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from queue import SimpleQueue

import pytest

from tests.support.servers import Kind, Server, ours, peer

from . import corpus_extensions, corpus_stats
from .corpus import CORPUS
from .differences import CLOSES, DIFFERENCES, KEEPS_PAUSE, as_ours
from .player import Transcript, play, replies
from .script import Conversation

TIME_TOLERANCE_SECONDS = 0.35
"""Maximum difference between the times of a reply on both sides. Each `wait` step is longer."""
TIMED_BATCH = 12
"""Pairs of servers that play timed conversations concurrently; they sleep most of the time."""

Pair = tuple[Transcript, Transcript]
"""The peer's transcript, then ours."""

UNTIMED = [name for name, conversation in CORPUS.items() if not conversation.is_timed]
TIMED = [name for name, conversation in CORPUS.items() if conversation.is_timed]
STRICT = [
    *[name for name, difference in DIFFERENCES.items() if difference.reason in (CLOSES, KEEPS_PAUSE)],
    *[
        each.name
        for each in (*corpus_extensions.CONVERSATIONS, *corpus_stats.CONVERSATIONS)
        if not each.needs_own_server
    ],
]


class Servers:
    """Running servers by kind and flags, started on first use; *stack* closes them."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._running: dict[tuple[Kind, tuple[str, ...]], Server] = {}

    def play(self, kind: Kind, conversation: Conversation) -> Transcript:
        if conversation.needs_own_server:
            return play_on_own_server(kind, conversation)
        key = (kind, conversation.flags)
        if key not in self._running:
            self._running[key] = self._stack.enter_context(closing(Server(kind, conversation.flags)))
        return play(self._running[key], conversation)


def play_on_own_server(kind: Kind, conversation: Conversation) -> Transcript:
    with closing(Server(kind, conversation.flags)) as server:
        return play(server, conversation)


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(stack)


@pytest.fixture(scope="module")
def strict_server() -> Iterator[Server]:
    with closing(Server(ours(), ("--strict-protocol",))) as server:
        yield server


@pytest.fixture(scope="session")
def timed_pair(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Pair]]:
    """Plays all selected timed conversations concurrently; returns the transcripts of one by its name."""
    selected = [getattr(item, "callspec", None) for item in request.session.items]
    names = {spec.params["timed_name"] for spec in selected if spec and "timed_name" in spec.params}
    longest_first = sorted(names, key=lambda name: CORPUS[name].seconds, reverse=True)
    free: SimpleQueue[tuple[Server, Server]] = SimpleQueue()  # idle pairs of servers

    def play_pair(name: str) -> Pair:
        on_peer, on_ours = free.get()
        try:
            theirs = peers.submit(play, on_peer, CORPUS[name])
            mine = play(on_ours, CORPUS[name])
            return theirs.result(), mine
        finally:
            free.put((on_peer, on_ours))

    with ExitStack() as stack:
        for _ in range(min(TIMED_BATCH, len(names))):
            on_peer, on_ours = (stack.enter_context(closing(Server(kind))) for kind in (peer(), ours()))
            free.put((on_peer, on_ours))
        peers, batch = (stack.enter_context(ThreadPoolExecutor(TIMED_BATCH)) for _ in range(2))
        played: dict[str, Future[Pair]] = {name: batch.submit(play_pair, name) for name in longest_first}
        yield lambda name: played[name].result()


@pytest.mark.parametrize("name", UNTIMED)
def test_replies_equal_those_of_beanstalkd(servers: Servers, name: str) -> None:
    on_peer, on_ours = (servers.play(kind, CORPUS[name]) for kind in (peer(), ours()))
    check(name, on_peer, on_ours)


@pytest.mark.parametrize("name", STRICT)
def test_strict_replies_equal_those_of_beanstalkd(strict_server: Server, name: str) -> None:
    with closing(Server(peer(), ())) as on_peer:
        expected = [as_ours(reply) for reply in replies(play(on_peer, CORPUS[name]))]
    assert replies(play(strict_server, CORPUS[name])) == expected


@pytest.mark.parametrize("timed_name", TIMED)
def test_timed_replies_equal_those_of_beanstalkd(timed_pair: Callable[[str], Pair], timed_name: str) -> None:
    on_peer, on_ours = timed_pair(timed_name)
    check(timed_name, on_peer, on_ours)
    if timed_name not in DIFFERENCES:
        check_times(on_peer, on_ours)


def check(name: str, on_peer: Transcript, on_ours: Transcript) -> None:
    """Assert that our replies equal the peer's, or those in differences.py if the difference is intended."""
    difference = DIFFERENCES.get(name)
    if difference is None:
        expected = as_lines([entry.rewritten(as_ours) for entry in on_peer])
        assert as_lines(on_ours) == expected, as_diff(name, expected, as_lines(on_ours))
        return
    assert replies(on_ours) == difference.ours, as_diff(name, difference.ours, replies(on_ours))
    if not difference.peer_varies:
        stale = f"{name} no longer differs from beanstalkd: remove it from differences.py"
        assert [as_ours(reply) for reply in replies(on_peer)] != difference.ours, stale


def as_lines(transcript: Transcript) -> list[str]:
    return [line for entry in transcript for line in str(entry).splitlines()]


def check_times(on_peer: Transcript, on_ours: Transcript) -> None:
    """Assert that each step ended at about the same time on both sides."""
    late = [
        f"{theirs.line}: {theirs.at:.2f} s in beanstalkd, {mine.at:.2f} s in ours"
        for theirs, mine in zip(on_peer, on_ours, strict=True)
        if abs(theirs.at - mine.at) > TIME_TOLERANCE_SECONDS
    ]
    assert not late, "\n".join(late)


def as_diff(name: str, expected: list[str], got: list[str]) -> str:
    lines = difflib.unified_diff(expected, got, "expected", "ours", lineterm="", n=4)
    return "\n".join([f"{name}: our replies differ", *lines])


def test_each_difference_names_a_conversation() -> None:
    assert DIFFERENCES.keys() <= CORPUS.keys()


def test_beanstalkd_does_not_quote_any_name(servers: Servers) -> None:
    """If a later beanstalkd quotes names that YAML misreads, `as_ours` is no longer needed."""
    transcript = "\n".join(replies(servers.play(peer(), CORPUS["stats-of-names-that-yaml-misreads"])))
    assert "\nname: 123\n" in transcript
    assert "\ntube: 123\n" in transcript


def test_first_id_is_one() -> None:
    for kind in (peer(), ours()):
        with closing(Server(kind)) as server:
            # The reset before a conversation uses one id.
            assert server.reset().last_id == 1
