"""Conversations with a queue of three shards: the replies are those of one server, or those that the test shows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, TypeAlias

import pytest

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import connecting, putting
from greenstalk_server.protocol.access import Grants
from greenstalk_server.protocol.costs import LIST_BATCH, OUTPUT_SLICE
from greenstalk_server.protocol.streams import PIECE
from tests.support.shards import Front, Shards, tube_on
from tests.support.talk import stream_of

HERE, THERE, ELSEWHERE = TUBES = tube_on(0), tube_on(1), tube_on(2)
"""A tube of each shard. The clients are connected to shard 0 unless a test says otherwise."""

EOF: Final = None
"""Instead of input: the client closes its side."""

Steps: TypeAlias = Sequence[bytes | None]

ID: Final = re.compile(rb"^((?:INSERTED|RESERVED|FOUND|DELETED|BURIED|id:) )([1-9]\d*)\b", re.MULTILINE)
DIFFERENT: Final = re.compile(rb"^(?:OK|rusage-.time:) .*\n", re.MULTILINE)
"""Lines of statistics that differ: the rusage of three processes, and so the size."""


def play(client: Front, steps: Steps) -> list[bytes]:
    """Return the reply to each of *steps*, with numbers in the order of their appearance in place of ids.

    In *steps*, `@2@` is the second id that appeared.
    """
    ids: list[bytes] = []

    def number(found: re.Match[bytes]) -> bytes:
        if found[2] not in ids:
            ids.append(found[2])
        return b"%b#%d" % (found[1], ids.index(found[2]) + 1)

    replies = []
    for step in steps:
        if step is None:
            reply = client.send_eof()
        else:
            reply = client.send(re.sub(rb"@(\d)@", lambda found: ids[int(found[1]) - 1], step))
        replies.append(ID.sub(number, DIFFERENT.sub(b"", reply)))
    return [*replies, b"closed" if client.session.is_closing else b"open"]


def put(tube: bytes, body: bytes = b"x") -> bytes:
    return b"put-in-tube %b 0 0 60 %d\r\n%b\r\n" % (tube, len(body), body)


LARGE: Final = b"x" * (OUTPUT_SLICE // 2 + 1)

SAME: Final[dict[str, Steps]] = {
    "body in pieces": [b"use %b\r\nput 0 0 60 5\r\nab" % THERE, b"c", b"de", b"\r", b"\nlist-tube-used\r\n"],
    "body in pieces behind a run": [put(THERE) + b"put-in-tube %b 0 0 60 3\r\na" % THERE, b"bc\r\npeek @1@\r\n"],
    "body in pieces behind a run for another shard": [
        put(ELSEWHERE) + b"put-in-tube %b 0 0 60 3\r\na" % THERE,
        b"bc\r\n" + put(HERE),
    ],
    "body without its end": [put(THERE)[:-2] + b"??", b"rest\r\nlist-tube-used\r\n"],
    "body that never ends": [b"use %b\r\nput 0 0 60 9\r\nabc" % THERE, EOF],
    "run larger than the bound": [put(THERE, LARGE) * 5 + b"use %b\r\npeek-ready\r\nkick 1\r\n" % THERE],
    "replies larger than the bound": [put(THERE, LARGE), b"peek @1@\r\n" * 5 + b"list-tube-used\r\n"],
    "too large body behind a run": [put(THERE) + put(THERE, bytes(70_000)) + put(THERE)],
    "quit behind runs": [put(THERE) + put(ELSEWHERE) + put(HERE) + b"quit\r\nlist-tube-used\r\n"],
    "end of the input behind a run": [put(THERE) + b"peek-ready", EOF],
    "end of the input during a wait": [put(THERE), b"wait @1@\r\n", EOF],
    "end of the input during a reserve": [b"watch %b\r\nreserve\r\n" % THERE, EOF],
    "end of the input during a reserve of one shard": [b"watch %b\r\nignore default\r\nreserve\r\n" % THERE, EOF],
    "errors among runs": [put(THERE) + b"nonsense\r\n" + put(THERE) + b"peek x\r\n" + b"y" * 300 + b"\r\n" + put(HERE)],
    "meta before the channel": [
        b"meta tube attempts\r\n",
        put(THERE),
        b"watch %b\r\nignore default\r\nreserve-with-timeout 0\r\nmeta\r\npeek @1@\r\n" % THERE,
    ],
    "stats-mode before the channel": [
        b"stats-mode extended\r\n",
        put(THERE) + b"stats-tube %b\r\n" % THERE,
        b"stats-mode standard\r\nstats-tube %b\r\n" % THERE,
    ],
    "reserve-mode before the channel": [
        b"reserve-mode weighted\r\n",
        put(THERE),
        b"watch %b 3\r\nreserve-with-timeout 0\r\nstats-tube %b\r\n" % (THERE, THERE),
    ],
}


@pytest.mark.parametrize("name", SAME)
def test_conversation_has_the_replies_of_one_server(name: str) -> None:
    assert play(Shards().client(), SAME[name]) == play(Shards(count=1).client(), SAME[name])


def test_run_is_forwarded_in_parts_of_bounded_size() -> None:
    queue = Shards()
    client = queue.client()
    client.push(put(THERE, LARGE) * 100)
    ready = [0]
    while queue.step():
        ready.append(len(queue.shards[1].broker.jobs))
    assert max(after - before for before, after in pairwise(ready)) <= 3
    assert client.take().count(b"INSERTED") == 100


# Late claims


def test_claim_that_comes_too_late_takes_the_next_job_or_waits() -> None:
    queue = Shards()
    one, other, producer = queue.client(0), queue.client(1), queue.client(2)
    for client in (one, other):
        assert client.send(b"watch %b\r\n" % ELSEWHERE) == b"WATCHING 2\r\n"
    producer.send(put(ELSEWHERE, b"a"))
    one.push(b"reserve\r\n")
    other.push(b"reserve\r\n")  # both fronts know the head, and claim it
    queue.settle()
    assert one.take() + other.take() == b"RESERVED 2 1\r\na\r\n"
    producer.send(put(ELSEWHERE, b"b"))
    assert one.take() + other.take() == b"RESERVED 5 1\r\nb\r\n"


def test_claim_that_comes_too_late_times_out() -> None:
    queue = Shards()
    one, other, producer = queue.client(0), queue.client(1), queue.client(2)
    for client in (one, other):
        assert client.send(b"watch %b\r\n" % ELSEWHERE) == b"WATCHING 2\r\n"
    producer.send(put(ELSEWHERE, b"a"))
    one.push(b"reserve-with-timeout 0\r\n")
    other.push(b"reserve-with-timeout 0\r\n")
    queue.settle()
    assert sorted([one.take(), other.take()]) == [b"RESERVED 2 1\r\na\r\n", b"TIMED_OUT\r\n"]


# Lost links


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        (put(THERE), b"INSERTED 4\r\n"),
        (b"use %b\r\n" % THERE, b"USING %b\r\n" % THERE),
        (b"peek 4\r\n", b"NOT_FOUND\r\n"),
        (b"wait 4\r\n", b"NOT_FOUND\r\n"),
    ],
    ids=["put", "use", "peek", "wait"],
)
def test_reply_that_has_arrived_survives_the_loss_of_the_link(command: bytes, reply: bytes) -> None:
    queue = Shards()
    queue.client().send(put(THERE))
    client = queue.client()
    client.push(command)
    while not client.session.is_woken:
        assert queue.step()
    queue.cut(0, 1)
    assert client.take() == reply
    client.push(b"stats-tube %b\r\nstats-group no\r\n" % THERE)
    queue.mend(0, 1)
    assert client.take().startswith(b"OK ")
    assert not client.session.is_closing


@pytest.mark.parametrize("tubes", [[THERE], [THERE, ELSEWHERE]], ids=["one shard", "two shards"])
def test_strict_client_watches_its_tubes_again_after_the_loss_of_the_link(strict: None, tubes: list[bytes]) -> None:
    queue = Shards()
    client, producer = queue.client(), queue.client(1)
    for tube in tubes:
        client.send(b"watch %b\r\n" % tube)
    client.send(b"ignore default\r\n")
    queue.cut(0, 1)
    queue.mend(0, 1)
    assert producer.send(b"use %b\r\nput 0 0 60 1\r\nx\r\n" % THERE).endswith(b"INSERTED 1\r\n")
    assert client.send(b"reserve-with-timeout 0\r\n") == b"RESERVED 1 1\r\nx\r\n"


# Strict mode

STRICT: Final[Steps] = [
    b"watch %b\r\nwatch %b\r\n" % (THERE, ELSEWHERE),
    b"use %b\r\nput 0 0 60 1\r\na\r\nuse %b\r\nput 1 0 60 1\r\nb\r\n" % (THERE, ELSEWHERE),
    b"reserve\r\nreserve-with-timeout 0\r\nreserve-with-timeout 0\r\n",
    b"bury @1@ 0\r\nuse %b\r\nkick 9\r\npeek @1@\r\nstats-job @1@\r\n" % THERE,
    b"delete @1@\r\nrelease @2@ 0 0\r\npause-tube %b 0\r\nstats-tube %b\r\n" % (THERE, ELSEWHERE),
    b"ignore %b\r\nlist-tubes-watched\r\n" % THERE,
    b"watch %b 3\r\nmeta\r\nreserve-batch 2 0\r\nstats-mode extended\r\nreserve-job @2@\r\ntouch-all\r\n" % THERE,
    b"claim\r\nawait 1\r\nleave\r\nsubscribe\r\nunwatch default\r\nwait @2@\r\ndrain\r\n",
    b"reserve\r\n",
    b"reserve\r\n",
    EOF,
]


def test_strict_client_has_the_replies_of_one_server(strict: None) -> None:
    assert play(Shards().client(), STRICT) == play(Shards(count=1).client(), STRICT)


# Jobs whose ids do not name their shards, after `journal reshard`


OLD_ID: Final = 50

BY_ID: Final = (
    b"peek %d",
    b"stats-job %d",
    b"touch %d",
    b"reserve-job %d",
    b"touch %d",
    b"release %d 5 0",
    b"reserve-job %d",
    b"bury %d 1",
    b"kick-job %d",
    b"reprioritize %d 7",
    b"delete-batch 7 %d",
    b"delete %d",
)


def resharded(shard: int) -> Shards:
    """Return a queue that has the job OLD_ID on *shard*."""
    queue = Shards(base=100)
    broker = queue.shards[shard].broker
    client = connecting.connect(broker, lambda: None)
    connecting.use(broker, client, TUBES[shard])
    assert putting.put(broker, client, OLD_ID, 0, 0, 60 * SECOND, b"x", queue.now)
    connecting.disconnect(broker, client, queue.now)
    return queue


@pytest.mark.parametrize("shard", range(3))
def test_job_with_an_old_id_is_found_on_any_shard(shard: int) -> None:
    one = Shards(count=1).client()
    assert one.send(put(TUBES[shard])) == b"INSERTED 1\r\n"
    found = play(resharded(shard).client(), [line % OLD_ID + b"\r\n" for line in BY_ID])
    assert found == play(one, [line % 1 + b"\r\n" for line in BY_ID])
    assert found[-2:] == [b"NOT_FOUND\r\n", b"open"]


@pytest.mark.parametrize("shard", range(3))
def test_end_of_the_input_ends_the_wait_for_a_job_with_an_old_id(shard: int) -> None:
    queue = resharded(shard)
    waiting, late = queue.client(), queue.client()
    assert waiting.send(b"wait %d\r\n" % OLD_ID) == b""
    assert waiting.send_eof() == b"TIMED_OUT\r\n"
    late.push(b"wait %d\r\n" % OLD_ID)
    assert late.send_eof() == b"TIMED_OUT\r\n"
    assert waiting.session.is_closing and late.session.is_closing


@pytest.mark.parametrize("command", [b"reserve\r\n", b"wait 1\r\n"])
def test_wait_at_another_shard_can_be_ended_once(command: bytes) -> None:
    queue = Shards()
    client = queue.client()
    assert queue.client().send(put(THERE)) == b"INSERTED 1\r\n"
    assert client.send(b"reserve-job 1\r\n") == b"RESERVED 1 1\r\nx\r\n"
    client = queue.client()
    client.send(b"watch %b\r\n" % THERE)
    assert client.send(command) == b""
    assert not client.session.is_blocked
    assert client.session.end_wait(queue.now) == b""  # its peer has closed, with too much input unread
    assert client.session.is_blocked
    queue.settle()
    assert client.take() == b"TIMED_OUT\r\n"


def test_claim_that_arrives_as_its_shard_offers_a_job_is_replied() -> None:
    queue = Shards()
    client, other, producer = queue.client(), queue.client(), queue.client(1)
    client.send(b"watch %b\r\nwatch %b\r\n" % (HERE, THERE))
    assert client.send(b"reserve\r\n") == b""
    producer.push(put(THERE))  # the owner has woken the waiting session, and not served it yet
    assert client.send_eof() == b"RESERVED 1 1\r\nx\r\n"
    producer.send(b"delete 1\r\n")
    other.send(b"watch %b\r\nwatch %b\r\n" % (HERE, THERE))
    producer.push(put(THERE))
    other.push(b"reserve\r\n")  # with the await, the claim reaches the owner in one piece
    assert other.send_eof() == b"RESERVED 4 1\r\nx\r\n"


# Lists of many tubes

MANY: Final = 12_000
"""Tubes, more than a slice of each shard."""


@pytest.mark.parametrize("pattern", ["*", "name-*"])
def test_list_of_many_tubes_is_made_in_slices_and_sent_as_a_stream(pattern: str) -> None:
    queue = Shards()
    clients = [connecting.connect(shard.broker, lambda: None) for shard in queue.shards]
    expected = [b"- default"] if pattern == "*" else []
    for number in range(MANY):
        name = b"name-%d" % number
        shard = queue.shards[0].shard_of(name)
        connecting.watch(queue.shards[shard].broker, clients[shard], name)
        expected.append(b"- " + name)
    session = queue.client(0, Grants([pattern], [], [])).session
    received = [session.receive(b"list-tubes\r\n", queue.now)]
    slices = 0
    while session.has_more or session.is_woken or queue.step():
        received += stream_of(session)
        if session.has_more or session.is_woken:
            received.append(session.resume(queue.now))
            slices += 1
    header, beginning, *lines, last, rest = b"".join(received).split(b"\n")
    assert sorted(lines) == sorted(expected)
    assert header == b"OK %d\r" % (sum(map(len, [beginning, *lines])) + len(lines) + 1)
    assert (beginning, last, rest) == (b"---", b"\r", b"")
    assert slices > MANY / len(TUBES) / LIST_BATCH
    assert max(map(len, received)) <= PIECE


# Access rules and rate limits


OF_A_TUBE: Final = (
    b"use %b",
    b"put-in-tube %b 0 0 60 1\r\nx",
    b"put-in-tube %b 0 0 60 1 grp:allowed\r\nx",
    b"put-in-tube %b 0 0 60 1 grp:other\r\nx",
    b"watch %b",
    b"ignore %b",
    b"stats-tube %b",
    b"pause-tube %b 0",
    b"flush-buried %b",
    b"truncate %b",
)
OF_THE_USED_TUBE: Final = (b"put 0 0 60 1\r\nx", b"peek-ready", b"kick 1")
OF_A_JOB: Final = (b"peek", b"stats-job", b"reserve-job", b"touch", b"kick-job", b"delete")
OTHERS: Final = (
    b"list-tubes-watched",
    b"drain",
    b"stats-group allowed",
    b"stats-group other",
    b"reserve-with-timeout 0",
    b"touch-all",
    b"reserve-batch 5 0",
)


def test_access_rules_apply_on_each_shard() -> None:
    """The client may produce into the first two tubes, consume from the last two, and inspect the second."""
    first, second, third = [name.decode() for name in TUBES]
    grants = Grants([first, second], [second, third], [second], keys=["allowed"])
    lines: list[bytes] = []
    for name in TUBES:
        lines += [line % name for line in OF_A_TUBE]
        lines += [b"use " + name, *OF_THE_USED_TUBE]
    lines += [b"%b %d" % (verb, id) for id in (1, 2, 3) for verb in OF_A_JOB]
    lines += [*OTHERS, b"watch " + THERE, b"watch " + ELSEWHERE, *OTHERS]

    def replies(queue: Shards) -> list[bytes]:
        admin, client = queue.client(), queue.client(0, grants)
        for name in TUBES:
            admin.send(put(name))
        return play(client, [line + b"\r\n" for line in lines])

    found = replies(Shards())
    assert found == replies(Shards(count=1))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    "command",
    [b"peek 1\r\n", b"peek 3\r\n", b"touch 1\r\n", b"wait 1\r\n", b"stats-group no\r\n", put(THERE), put(HERE)],
)
def test_rate_limit_counts_each_command_once(command: bytes, count: int) -> None:
    for pieces in ([command] * 40, [command * 40]):
        queue = Shards(count=count)
        client = queue.client(rate=10)
        begun = queue.now
        for piece in pieces:
            client.send(piece)
            client.wait_out_pauses()
        assert 2.9 <= (queue.now - begun) / SECOND <= 3.1
