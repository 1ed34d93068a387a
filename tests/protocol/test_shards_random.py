"""Random commands of several clients: a queue of three shards gives the same replies as one server."""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.shards import SHARDS, Front, Shards, tube_on

CLIENTS: Final = 3
TUBES: Final = (b"default", *[tube_on(shard, number) for shard in range(SHARDS) for number in (1, 2)])
NAMES = st.sampled_from(TUBES)
JOBS = st.integers(0, 9)
"""Numbers of jobs in the order of their puts, the last one first."""

Step: TypeAlias = tuple[int, list[tuple[Any, ...]]]
"""Number of a client, and commands with their arguments, which it sends at once."""


def command(*parts: object) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(*[part if isinstance(part, st.SearchStrategy) else st.just(part) for part in parts])


TTRS = st.sampled_from([1, 2, 60])
PROMPT = st.one_of(
    command("put", st.sampled_from([0, 0, 0, 2]), TTRS),
    command("put", st.sampled_from([0, 0, 0, 2]), TTRS),
    command("put-in-tube", NAMES, st.sampled_from([0, 0, 2]), TTRS),
    command("use", NAMES),
    command("watch", NAMES),
    command("watch", NAMES),
    command("ignore", NAMES),
    command("reserve-with-timeout", st.just(0)),
    command("reserve-with-timeout", st.just(0)),
    command("id", st.sampled_from([b"delete", b"touch", b"peek", b"kick-job", b"reserve-job", b"stats-job"]), JOBS),
    command("id", st.sampled_from([b"delete", b"touch", b"reserve-job"]), JOBS),
    command("release", JOBS, st.sampled_from([0, 0, 2])),
    command("release", JOBS, st.sampled_from([0, 0, 2])),
    command("bury", JOBS),
    command("bury", JOBS),
    command("reprioritize", JOBS),
    command("delete-batch", st.lists(JOBS, min_size=1, max_size=4)),
    command("line", st.sampled_from([b"peek-ready", b"peek-delayed", b"peek-buried", b"peek-reserved", b"kick 1"])),
    command("line", st.sampled_from([b"list-tubes", b"list-tube-used", b"list-tubes-watched", b"stats", b"touch-all"])),
    command("line", st.sampled_from([b"bad", b"put 1 1", b"x" * 300, b"put 0 0 9 70000\r\n" + b"y" * 70000])),
    command("line", st.sampled_from([b"meta pri tube", b"meta", b"stats-mode extended", b"stats-mode standard"])),
    command("tube", st.sampled_from([b"stats-tube", b"flush-tube", b"flush-buried", b"truncate"]), NAMES),
    command("pause", NAMES, st.sampled_from([0, 1, 3])),
)
"""Commands that get their reply at once."""

WAITS = st.one_of(
    command("line", st.sampled_from([b"reserve", b"reserve", b"reserve-batch 1 2"])),
    command("reserve-with-timeout", st.sampled_from([1, 3])),
    command("wait", JOBS, st.sampled_from([b"", b" 0", b" 2"])),
)
COMMANDS = st.one_of(
    st.lists(PROMPT, min_size=1, max_size=6),
    st.lists(PROMPT, max_size=2).flatmap(lambda before: WAITS.map(lambda wait: [*before, wait])),
    command("time", st.sampled_from([0.02, 0.5, 1, 5])).map(lambda one: [one]),
    command("close").map(lambda one: [one]),
)
STEPS = st.lists(st.tuples(st.integers(0, CLIENTS - 1), COMMANDS), max_size=40)

OWN_KEYS: Final = (b"OK ", b"rusage", b"binlog")
"""Beginnings of the lines that differ."""

ID: Final = re.compile(rb"^((?:INSERTED|RESERVED|FOUND|DELETED|BURIED|(?:[a-z]+-)*id:) )([1-9]\d*)\b", re.MULTILINE)


class Player:
    """Plays steps to a queue. `ids` has the ids of all jobs, in the order of their puts."""

    def __init__(self, queue: Shards) -> None:
        self.queue = queue
        self.clients = [self._connect(number) for number in range(CLIENTS)]
        self.ids: list[int] = []
        self.steps = 0
        self.lines = 0

    def play(self, step: Step) -> list[bytes]:
        """Play *step*; return the replies to each client, with numbers of jobs in place of ids."""
        number, commands = step
        verb, *arguments = commands[0]
        self.steps += 1
        self.queue.advance(self.steps / 10**6)
        if verb == "time":
            self.queue.advance(arguments[0])
        elif verb == "close":
            if any(client.session.is_waiting for client in self.clients if client is not self.clients[number]):
                return []
            self.clients[number].close()
            self.clients[number] = self._connect(number)
        elif not self.clients[number].session.is_waiting:
            is_alone = len(commands) == 1
            lines = [self._line(verb, rest, is_alone) + b"\r\n" for verb, *rest in commands]
            if any(client.session.is_waiting for client in self.clients):
                for line in lines:  # else the one that waits may get the best of several jobs instead of the first
                    self.clients[number].push(line)
                    self.queue.settle()
            else:
                self.clients[number].push(b"".join(lines))
        self.queue.settle()
        replies = [client.take() for client in self.clients]
        for reply in replies:
            self.ids += [int(id) for id in re.findall(rb"^INSERTED (\d+)", reply, re.MULTILINE)]
        return [self._normal(reply) for reply in replies]

    def _connect(self, number: int) -> Front:
        client = self.queue.client(number % len(self.queue.shards))
        assert client.send(b"use default\r\n")  # then the shard of `default` counts the client
        return client

    def _line(self, verb: str, arguments: list[Any], is_alone: bool) -> bytes:
        """Return the line. Only one that is alone has short times: two that end at once would have no order."""
        self.lines += 1
        pri = self.lines * 7919 % 10007  # no two jobs have the same
        match verb, arguments:
            case "put", [delay, ttr]:
                delay, ttr = (delay, ttr) if is_alone else (0, 1000 + self.lines)
                return b"put %d %d %d 1\r\nx" % (pri, delay, ttr)
            case "put-in-tube", [name, delay, ttr]:
                delay, ttr = (delay, ttr) if is_alone else (0, 1000 + self.lines)
                return b"put-in-tube %b %d %d %d 1\r\ny" % (name, pri, delay, ttr)
            case "line", [line]:
                return bytes(line)
            case "id", [name, job]:
                return b"%b %d" % (name, self._id(job))
            case "reserve-with-timeout", [timeout]:
                return b"reserve-with-timeout %d" % timeout
            case "release", [job, delay]:
                return b"release %d %d %d" % (self._id(job), pri, delay if is_alone else 0)
            case "reprioritize" | "bury", [job]:
                return b"%b %d %d" % (verb.encode(), self._id(job), pri)
            case "wait", [job, timeout]:
                return b"wait %d%b" % (self._id(job), timeout)
            case "delete-batch", [jobs]:
                return b"delete-batch" + b"".join([b" %d" % self._id(job) for job in jobs])
            case "pause", [name, delay]:
                return b"pause-tube %b %d" % (name, delay if is_alone else 0)
            case "tube", [name, tube]:
                return b"%b %b" % (name, tube)
        return b"%b %b" % (verb.encode(), *arguments)

    def _id(self, job: int) -> int:
        return self.ids[-1 - job % len(self.ids)] if self.ids else 1000

    def _normal(self, reply: bytes) -> bytes:
        """Return *reply* with the numbers of jobs, without what differs; names in lists are sorted."""
        named = ID.sub(lambda found: b"%b#%d" % (found[1], self.ids.index(int(found[2]))), reply)
        lines = [line for line in named.splitlines() if not line.startswith(OWN_KEYS)]
        names = iter(sorted(line for line in lines if line.startswith(b"- ")))
        return b"\n".join([next(names) if line.startswith(b"- ") else line for line in lines])


@settings(max_examples=examples(30), deadline=None)
@given(STEPS)
def test_shards_reply_like_one_server(steps: list[Step]) -> None:
    one, shards = Player(Shards(count=1)), Player(Shards())
    for step in steps:
        assert shards.play(step) == one.play(step)
