"""Commands about a job that may have arrived on another shard, which the shard that had it does not know yet."""

from __future__ import annotations

import re
from itertools import product
from random import Random

import pytest

from greenstalk_server.core.jobs.job import RESERVED, SECOND
from greenstalk_server.core.moves import MAX_DEPARTED
from greenstalk_server.core.operations import connecting, editing, putting
from greenstalk_server.core.outcomes import EditOutcome
from greenstalk_server.core.travel import NOWHERE, Location, Travel
from tests.support.shards import Front, Shard, Shards, tube_on

TUBES = tuple(tube_on(shard) for shard in range(3))
FRONTS = range(3)
OLD_ID = 7
"""An id from before the queue had several shards: it does not say where the job was put."""

MAX_STEPS = 30
"""Messages between the shards for one command, and the sessions that they wake, also if each shard is asked once and
one of them twice, and all channels are opened."""

HELD = (
    b"touch %d",
    b"stats-job %d",
    b"peek %d",
    b"reprioritize %d 1",
    b"reserve-job %d",
    b"kick-job %d",
    b"wait %d 0",
    b"release %d 5 0",
    b"reserve-job %d",
    b"bury %d 1",
    b"wait %d 0",
    b"kick-job %d",
    b"reprioritize %d 7",
    b"stats-job %d",
    b"delete-batch 9999 %d",
    b"peek %d",
    b"delete %d",
)
"""Commands of a client that holds the job."""

MOVING = (*dict.fromkeys(HELD), b"delete %d")
"""Commands of a client that does not hold the job."""


def queue_with_job(shard: int, id: int) -> tuple[Shards, int]:
    """Return a queue whose *shard* has a job, and the id of the job: *id*, or one that names the shard if that is 0."""
    queue = Shards(base=100 if id else 0)
    broker = queue.shards[shard].broker
    client = connecting.connect(broker, lambda: None)
    connecting.use(broker, client, TUBES[shard])
    id = putting.put(broker, client, id or broker.allocate_id(), 9, 0, 60 * SECOND, b"body", queue.now)
    connecting.disconnect(broker, client, queue.now)
    return queue, id


def move(queue: Shards, id: int, shard: int) -> None:
    """Move the job *id* to *shard*, from that shard which can change it."""
    jobs = [owner.broker for owner in queue.shards if id in owner.broker.jobs]
    done = [editing.edit_job(broker, id, queue.now, tube=TUBES[shard]) for broker in jobs]
    assert done.count(EditOutcome.DONE) == 1
    queue.settle()


def reserve(client: Front, shard: int) -> bytes:
    client.send(b"watch %b\r\nignore default\r\n" % TUBES[shard])
    return client.send(b"reserve-with-timeout 0\r\n")


def play(client: Front, lines: list[bytes]) -> list[bytes]:
    """Return the reply to each of *lines*, without what depends on the id and the time of the job."""
    found = []
    for line in lines:
        steps = 0
        client.push(line + b"\r\n")
        while client.queue.step():
            steps += 1
        assert steps <= MAX_STEPS, line
        found.append(normal(client.take()))
    return found


def normal(reply: bytes) -> bytes:
    reply = re.sub(rb"\n(id|file|age): [^\n]*", b"", re.sub(rb"^OK \d+", b"OK", reply))
    return re.sub(rb"^(FOUND|RESERVED|BURIED|DELETED) \d+", rb"\1", reply)


def expected(shard: int, lines: tuple[bytes, ...], *, is_held: bool) -> list[bytes]:
    """Return the replies of a queue with one shard to a client that holds a job of the tube of *shard*, or does not."""
    queue = Shards(count=1)
    client, holder = queue.client(), queue.client()
    id = int(client.send(b"put-in-tube %b 9 0 60 4\r\nbody\r\n" % TUBES[shard]).split()[1])
    assert reserve(client if is_held else holder, shard).startswith(b"RESERVED")
    return play(client, [line % id for line in lines])


def outbox(queue: Shards) -> list[int]:
    return [shard.number for shard in queue.shards if shard.broker.moves is not None and shard.broker.moves.outbox]


def deliver(queue: Shards, *pairs: tuple[int, int]) -> None:
    """Deliver all messages from the first to the second shard of each of *pairs*, and resume the sessions."""
    for pair in pairs:
        while messages := queue.links.get(pair):
            messages.popleft()()
        while queue.woken:
            queue.woken.popleft()()


@pytest.mark.parametrize(
    ("line", "beginning"),
    [
        (b"stats-job 7", b"OK "),
        (b"peek 7", b"FOUND 7 4"),
        (b"reserve-job 7", b"RESERVED 7 4"),
        (b"wait 7 0", b"TIMED_OUT"),
        (b"delete-batch 7", b"DELETED_BATCH 1 0"),
        (b"delete 7", b"DELETED"),
    ],
)
@pytest.mark.parametrize(("front", "source", "target"), [(0, 1, 2), (1, 0, 2), (2, 0, 1)])
def test_job_that_moves_to_a_shard_that_was_asked_already_is_found(
    front: int, source: int, target: int, line: bytes, beginning: bytes
) -> None:
    """A job without a home is looked for on *target*, moves there from *source*, and then *source* is asked."""
    queue, id = queue_with_job(source, OLD_ID)
    client, broker = queue.client(front), queue.shards[source].broker
    client.push(line + b"\r\n")
    deliver(queue, (front, target), (target, front))
    assert editing.edit_job(broker, id, queue.now, tube=TUBES[target]) == EditOutcome.DONE
    queue.shards[source].send_moves()
    deliver(queue, (source, target), (target, source))
    assert id in queue.shards[target].broker.jobs and not outbox(queue)
    queue.settle()
    assert client.take().startswith(beginning)


def test_shard_remembers_a_departed_job_until_it_is_told_more() -> None:
    queue, id = queue_with_job(0, OLD_ID)
    moves = queue.shards[0].broker.moves
    assert moves is not None
    move(queue, id, 1)
    assert moves.departed == {id: (1, 1)}
    move(queue, id, 2)
    assert moves.departed == {}
    move(queue, id, 0)
    move(queue, id, 1)
    assert moves.departed == {id: (1, 4)}
    assert queue.client(2).send(b"delete %d\r\n" % id) == b"DELETED\r\n"
    assert [shard.broker.moves.departed for shard in queue.shards if shard.broker.moves is not None] == [{}, {}, {}]


def test_departed_jobs_that_a_shard_remembers_are_bounded() -> None:
    moves = Shards(base=2 * MAX_DEPARTED).shards[0].broker.moves
    assert moves is not None
    for id in range(1, MAX_DEPARTED + 6):
        moves.note_departed(id, Location(1, 1, NOWHERE))
    assert list(moves.departed) == list(range(6, MAX_DEPARTED + 6))


ROUTES = [(0, 1), (1, 0), (0, 1, 2), (0, 1, 0), (0, 1, 2, 0), (0, 1, 2, 1)]
"""Shards of a job: the one that assigned its id first, the one to which it moves at last."""


@pytest.mark.parametrize("route", ROUTES, ids=str)
@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("old", [0, OLD_ID])
def test_job_that_has_arrived_is_found_before_that_is_known(route: tuple[int, ...], front: int, old: int) -> None:
    queue, id = queue_with_job(route[0], old)
    for shard in route[1:-1]:
        move(queue, id, shard)
    queue.loses_answers = True
    move(queue, id, route[-1])
    assert outbox(queue) == [route[-2]]
    client = queue.client(front)
    assert reserve(client, route[-1]).startswith(b"RESERVED %d " % id)
    assert play(client, [line % id for line in HELD]) == expected(route[-1], HELD, is_held=True)
    queue.repeat_moves()
    assert not outbox(queue)
    assert not any(shard.broker.jobs for shard in queue.shards)


@pytest.mark.parametrize("route", ROUTES, ids=str)
@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("old", [0, OLD_ID])
def test_job_that_has_not_arrived_is_as_if_another_client_held_it(route: tuple[int, ...], front: int, old: int) -> None:
    queue, id = queue_with_job(route[0], old)
    for shard in route[1:-1]:
        move(queue, id, shard)
    queue.loses_moves = True
    move(queue, id, route[-1])
    client = queue.client(front)
    replies = play(client, [line % id for line in MOVING])
    changing = re.compile(rb"\n(reserves|time-left): [^\n]*")
    other = expected(route[-2], MOVING, is_held=False)
    assert [changing.sub(b"", each) for each in replies] == [changing.sub(b"", each) for each in other]
    assert b"\nstate: reserved\n" in replies[1]
    queue.repeat_moves()
    assert client.send(b"delete %d\r\n" % id) == b"DELETED\r\n"


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("is_lost", [False, True])
def test_replies_and_effects_of_a_pipeline_stay_in_order(front: int, is_lost: bool) -> None:
    queue, id = queue_with_job(0, 0)
    client = queue.client(front)
    other = int(client.send(b"put-in-tube %b 0 0 60 1\r\nx\r\n" % TUBES[0]).split()[1])
    queue.loses_moves, queue.loses_answers = is_lost, not is_lost
    move(queue, id, 1)
    lines = b"peek %d\r\nreserve-job %d\r\nstats-job %d\r\ndelete %d\r\ndelete %d\r\n" % (id, id, id, id, other)
    found = re.sub(rb"OK \d+\r\n.*?\nstate: (\w+)\n.*?\r\n", rb"\1\r\n", client.send(lines), flags=re.DOTALL)
    seen = b"FOUND %d 4\r\nbody\r\n" % id
    if is_lost:
        assert found == seen + b"NOT_FOUND\r\nreserved\r\nNOT_FOUND\r\nDELETED\r\n"
    else:
        assert found == seen + b"RESERVED %d 4\r\nbody\r\nreserved\r\nDELETED\r\nDELETED\r\n" % id


@pytest.mark.parametrize(("front", "is_lost"), list(product(FRONTS, [False, True])))
def test_end_of_the_input_ends_a_wait_for_a_job_that_moves(front: int, is_lost: bool) -> None:
    queue, id = queue_with_job(0, 0)
    queue.loses_moves, queue.loses_answers = is_lost, not is_lost
    move(queue, id, 1)
    client, late = queue.client(front), queue.client(front)
    assert client.send(b"wait %d\r\n" % id) == b""
    assert client.send_eof() == b"TIMED_OUT\r\n"
    late.push(b"wait %d\r\n" % id)
    assert late.send_eof() == b"TIMED_OUT\r\n"
    assert client.session.is_closing and late.session.is_closing


def test_job_that_was_not_sent_is_not_looked_for_on_a_shard_without_a_link() -> None:
    queue, id = queue_with_job(0, 0)
    queue.cut(0, 1)
    move(queue, id, 1)
    assert [queue.client(front).send(b"delete %d\r\n" % id) for front in (0, 2)] == [b"NOT_FOUND\r\n"] * 2


def test_command_about_a_job_that_was_sent_waits_for_the_link() -> None:
    queue, id = queue_with_job(0, 0)
    queue.loses_answers = True
    move(queue, id, 1)
    queue.cut(0, 1)
    client = queue.client(0)
    assert client.send(b"delete %d\r\n" % id) == b""
    queue.mend(0, 1)
    assert client.take() == b"DELETED\r\n"


def hops_of(shard: Shard, id: int) -> int:
    """Return how often the job *id* had moved when it came to *shard*; -1 if the shard does not have it."""
    job = shard.broker.jobs.get(id)
    return -1 if job is None else Travel.unpack(job.travel).hops


@pytest.mark.parametrize("seed", range(30))
def test_random_moves_with_lost_answers_hide_no_job(seed: int) -> None:
    random = Random(seed)  # noqa: S311  only for the test
    queue, id = queue_with_job(random.randrange(3), random.choice([0, OLD_ID]))
    queue.choose = random.randrange
    fronts = [queue.client(front) for front in FRONTS]
    for _ in range(60):
        if random.randrange(3):
            queue.loses_moves, queue.loses_answers = random.random() < 0.3, random.random() < 0.5
        else:
            queue.repeat_moves()
        movable = [shard for shard in queue.shards if (job := shard.broker.jobs.get(id)) and job.state != RESERVED]
        if movable:
            target = random.randrange(3)
            editing.edit_job(movable[0].broker, id, queue.now, tube=TUBES[target])
        fronts[0].send(b"stats-group none\r\n")
        found = [shard for shard in queue.shards if (job := shard.broker.jobs.get(id)) and job.state != RESERVED]
        assert len(found) <= 1
        client = random.choice(fronts)
        reply = client.send(b"reserve-job %d\r\n" % id)
        assert reply == (b"RESERVED %d 4\r\nbody\r\n" % id if found else b"NOT_FOUND\r\n")
        last = max(queue.shards, key=lambda shard: hops_of(shard, id)).number
        assert b"\ntube: %b\nstate: reserved\n" % TUBES[last] in client.send(b"stats-job %d\r\n" % id)
        if found:
            assert client.send(b"release %d 9 0\r\n" % id) == b"RELEASED\r\n"
    queue.repeat_moves()
    assert random.choice(fronts).send(b"delete %d\r\n" % id) == b"DELETED\r\n"
    assert not any(shard.broker.moves and shard.broker.moves.locations for shard in queue.shards)
