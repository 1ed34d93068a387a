"""Jobs that move to tubes of other shards: they are there once, keep their ids, and commands find them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from greenstalk_server.core import job_attributes
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import RESERVED
from greenstalk_server.core.operations import editing, policy_changes
from greenstalk_server.core.outcomes import EditOutcome
from greenstalk_server.core.policies.policy import parse_policy
from greenstalk_server.protocol.job_transfer import decode_job, encode_job
from tests.support.shards import Front, Shards, tube_on

HERE, THERE, ELSEWHERE = (tube_on(shard) for shard in range(3))


@pytest.fixture
def queue() -> Shards:
    return Shards()


def set_policy(queue: Shards, name: str, *tubes: bytes, **settings: Any) -> None:
    policy = parse_policy(name, {"tubes": [tube.decode() for tube in tubes], **settings})
    for shard in queue.shards:
        policy_changes.set_policy(shard.broker, policy, queue.now)


def put(client: Front, tube: bytes, tags: bytes = b"") -> int:
    reply = client.send(b"put-in-tube %b 7 0 60 4%b\r\nbody\r\n" % (tube, tags))
    assert reply.startswith(b"INSERTED"), reply
    return int(reply.split()[1])


def fail(client: Front, tube: bytes) -> int:
    """Reserve a job of *tube* and release it, which makes it a dead letter; return its id."""
    client.send(b"watch %b\r\nignore default\r\n" % tube)
    id = int(client.send(b"reserve-with-timeout 0\r\n").split()[1])
    client.push(b"release %d 7 0\r\n" % id)
    return id


def stats(client: Front, id: int) -> dict[str, str]:
    reply = client.send(b"stats-job %d\r\n" % id).decode()
    return dict(line.split(": ") for line in reply.splitlines() if ": " in line)


def places(queue: Shards, id: int) -> list[int]:
    return [shard.number for shard in queue.shards if id in shard.broker.jobs]


@pytest.mark.parametrize("front", range(3))
def test_dead_letter_moves_to_another_shard_and_keeps_its_id(queue: Shards, front: int) -> None:
    set_policy(queue, "p", HERE, dead_letter=THERE.decode(), max_attempts=1)
    client = queue.client(front)
    id = put(client, HERE, b" grp:g")
    assert fail(client, HERE) == id
    queue.settle()
    assert client.take() == b"RELEASED\r\n"
    assert places(queue, id) == [1]
    found = stats(client, id)
    assert (found["tube"], found["state"], found["pri"], found["reserves"]) == (THERE.decode(), "ready", "7", "1")
    assert client.send(b"stats-group g\r\n").startswith(b"OK")
    client.send(b"watch %b\r\n" % THERE)
    assert client.send(b"reserve-with-timeout 0\r\n") == b"RESERVED %d 4\r\nbody\r\n" % id
    assert client.send(b"touch %d\r\nbury %d 3\r\nkick-job %d\r\n" % (id, id, id)) == b"TOUCHED\r\nBURIED\r\nKICKED\r\n"
    assert client.send(b"reserve-job %d\r\n" % id) == b"RESERVED %d 4\r\nbody\r\n" % id
    assert client.send(b"delete-batch %d\r\n" % id) == b"DELETED_BATCH 1 0\r\n"
    for each in (client, queue.client(0)):
        assert each.send(b"peek %d\r\n" % id) == b"NOT_FOUND\r\n"
    assert [shard.broker.moves.locations for shard in queue.shards if shard.broker.moves is not None] == [{}, {}, {}]


@pytest.mark.parametrize("front", range(3))
def test_delete_batch_finds_jobs_that_have_moved(queue: Shards, front: int) -> None:
    client = queue.client(2)
    ids = [put(client, tube) for tube in (HERE, THERE, ELSEWHERE) for _ in range(3)]
    for id, tube in zip(ids, (HERE, THERE, ELSEWHERE) * 3, strict=True):
        for owner in queue.shards:
            if id in owner.broker.jobs:
                editing.edit_job(owner.broker, id, queue.now, tube=tube)
    queue.settle()
    assert len([id for id in ids if places(queue, id) != [queue.shards[0].ids.home(id)]]) == 6
    line = b" ".join([b"delete-batch", *[b"%d" % id for id in [*ids, ids[1], 10_000]]])
    assert queue.client(front).send(line + b"\r\n") == b"DELETED_BATCH 9 2\r\n"
    assert not any(shard.broker.jobs or (shard.broker.moves and shard.broker.moves.locations) for shard in queue.shards)


@pytest.mark.parametrize("front", range(3))
def test_replies_of_a_pipeline_stay_in_order(queue: Shards, front: int) -> None:
    set_policy(queue, "p", HERE, dead_letter=THERE.decode(), max_attempts=1)
    client = queue.client(front)
    ids = [put(client, HERE) for _ in range(3)]
    assert fail(client, HERE) == ids[0]
    queue.settle()
    client.take()
    lines = [b"peek %d\r\n" % ids[1], b"delete %d\r\n" % ids[0], b"stats-job %d\r\n" % ids[1], b"peek %d\r\n" % ids[0]]
    replies = client.send(b"".join([*lines, b"delete %d\r\n" % ids[2]])).split(b"\r\n")
    assert replies[:3] == [b"FOUND %d 4" % ids[1], b"body", b"DELETED"]
    assert replies[3].startswith(b"OK ")
    assert replies[-3:] == [b"NOT_FOUND", b"DELETED", b""]


@pytest.mark.parametrize("front", range(3))
def test_effects_of_a_pipeline_stay_in_order(queue: Shards, front: int) -> None:
    """Each command shows whether those before it took effect, and those behind it did not."""
    set_policy(queue, "p", HERE, dead_letter=THERE.decode(), max_attempts=1)
    client = queue.client(front)
    ids = [put(client, HERE) for _ in range(4)]
    for _ in ids[:3]:
        fail(client, HERE)
        queue.settle()
    client.take()
    last = ids[3]
    lines = [
        b"reserve-job %d" % ids[0],
        b"put-in-tube %b 0 0 60 1\r\nx" % HERE,
        b"delete %d" % ids[1],
        b"kick-job %d" % last,
        b"reserve-job %d" % last,
        b"release %d 0 0" % ids[0],
        b"stats-job %d" % last,
        b"delete %d" % ids[2],
        b"delete %d" % last,
        b"delete %d" % ids[0],
    ]
    client.push(b"".join([line + b"\r\n" for line in lines]))
    here, there = queue.shards[0].broker.jobs, queue.shards[1].broker.jobs
    while queue.step():
        is_put, is_reserved = len(here) > 1, last in here and here[last].state == RESERVED
        assert not is_put or there[ids[0]].state == RESERVED or ids[1] not in there
        assert not is_reserved or ids[1] not in there
        assert ids[2] in there or last not in here or here[last].reserves
    replies = client.take()
    found = [line for line in replies.split(b"\r\n") if line and not line.startswith(b"---")]
    assert found[0] == b"RESERVED %d 4" % ids[0] and found[2].startswith(b"INSERTED")
    assert found[3:6] == [b"DELETED", b"NOT_FOUND", b"RESERVED %d 4" % last]
    assert found[7:] == [b"RELEASED", found[8], b"DELETED", b"DELETED", b"DELETED"]
    assert b"\nstate: reserved\n" in replies


@pytest.mark.parametrize("front", range(3))
def test_wait_ends_when_the_job_is_deleted_on_another_shard(queue: Shards, front: int) -> None:
    set_policy(queue, "p", HERE, dead_letter=THERE.decode(), max_attempts=1)
    early, late, client = queue.client(front), queue.client(front), queue.client(2)
    id = put(client, HERE)
    assert early.send(b"wait %d\r\n" % id) == b""
    assert fail(client, HERE) == id
    queue.settle()
    assert late.send(b"wait %d\r\n" % id) == b""
    assert queue.client(1).send(b"delete %d\r\n" % id) == b"DELETED\r\n"
    assert (early.take(), late.take()) == (b"DELETED %d\r\n" % id, b"DELETED %d\r\n" % id)


@pytest.mark.parametrize("front", range(3))
@pytest.mark.parametrize("end", ["bury", "delete"])
def test_wait_follows_a_job_that_moves(queue: Shards, front: int, end: str) -> None:
    """Also if the job returns to the shard where the wait began."""
    early, client = queue.client(front), queue.client(2)
    id = put(client, HERE)
    waiting = [early]
    assert early.send(b"wait %d\r\n" % id) == b""
    for shard, tube in ((0, THERE), (1, ELSEWHERE), (2, THERE), (1, HERE), (0, THERE)):
        assert editing.edit_job(queue.shards[shard].broker, id, queue.now, tube=tube) == EditOutcome.DONE
        queue.settle()
        waiting.append(queue.client(front))
        assert waiting[-1].send(b"wait %d\r\n" % id) == b""
    if end == "bury":
        client.send(b"reserve-job %d\r\n" % id)
    assert client.send(b"bury %d 1\r\n" % id if end == "bury" else b"delete %d\r\n" % id) != b"NOT_FOUND\r\n"
    reply = b"BURIED %d\r\n" if end == "bury" else b"DELETED %d\r\n"
    assert [each.take() for each in waiting] == [reply % id] * len(waiting)
    assert early.send(b"wait %d 0\r\n" % id) == (reply % id if end == "bury" else b"NOT_FOUND\r\n")


@pytest.mark.parametrize("front", range(3))
def test_wait_that_follows_a_job_keeps_its_timeout(queue: Shards, front: int) -> None:
    client, other = queue.client(front), queue.client(front)
    id = put(client, HERE)
    assert client.send(b"wait %d 5\r\n" % id) == b""
    other.push(b"wait %d\r\n" % id)
    for shard, tube in ((0, THERE), (1, ELSEWHERE)):
        queue.advance(1.9)
        assert editing.edit_job(queue.shards[shard].broker, id, queue.now, tube=tube) == EditOutcome.DONE
        queue.settle()
    queue.advance(1)
    assert client.take() == b""
    queue.advance(2)  # each move may have added up to a second
    assert client.take() == b"TIMED_OUT\r\n"
    assert other.send_eof() == b"TIMED_OUT\r\n"


def test_refused_dead_letter_is_buried(queue: Shards) -> None:
    set_policy(queue, "p", HERE, dead_letter=THERE.decode(), max_attempts=1)
    set_policy(queue, "q", THERE, max_jobs=1)
    client = queue.client(2)
    ids = [put(client, HERE), put(client, HERE)]
    for _ in ids:
        fail(client, HERE)
        queue.settle()
    assert [stats(client, id)["state"] for id in ids] == ["ready", "buried"]
    assert [stats(client, id)["tube"] for id in ids] == [THERE.decode(), HERE.decode()]
    assert client.send(b"kick-job %d\r\n" % ids[1]) != b"NOT_FOUND\r\n"


def test_redrive_moves_the_job_back_to_its_home(queue: Shards) -> None:
    set_policy(queue, "p", HERE, dead_letter=THERE.decode(), max_attempts=1)
    client = queue.client(1)
    id = put(client, HERE)
    for _ in range(3):
        assert fail(client, HERE) == id
        queue.settle()
        assert places(queue, id) == [1]
        assert editing.redrive(queue.shards[1].broker, id, queue.now) == EditOutcome.DONE
        queue.settle()
        assert places(queue, id) == [0]
        assert stats(client, id)["state"] == "ready"
    assert client.send(b"delete %d\r\n" % id) == b"DELETED\r\n"
    assert not any(shard.broker.moves and shard.broker.moves.locations for shard in queue.shards)


@pytest.mark.parametrize("state", ["ready", "delayed", "buried"])
def test_operator_moves_a_job_in_its_state_over_all_shards(queue: Shards, state: str) -> None:
    client = queue.client(2)
    id = put(client, HERE)
    if state != "ready":
        client.send(b"reserve-job %d\r\n" % id)
        client.send(b"bury %d 7\r\n" % id if state == "buried" else b"release %d 7 100\r\n" % id)
    for shard, tube in ((0, THERE), (1, ELSEWHERE), (2, HERE), (0, ELSEWHERE)):
        assert editing.edit_job(queue.shards[shard].broker, id, queue.now, tube=tube) == EditOutcome.DONE
        queue.settle()
        assert (stats(client, id)["tube"], stats(client, id)["state"]) == (tube.decode(), state)
    assert client.send(b"delete %d\r\n" % id) == b"DELETED\r\n"
    assert not any(shard.broker.moves and shard.broker.moves.locations for shard in queue.shards)


def test_moving_job_cannot_be_changed_and_waits_for_the_link(queue: Shards) -> None:
    set_policy(queue, "p", HERE, dead_letter=THERE.decode(), max_attempts=1, max_reserved=1)
    client = queue.client(0)
    ids = [put(client, HERE), put(client, HERE)]
    client.send(b"watch %b\r\nignore default\r\n" % HERE)
    queue.cut(0, 1)
    assert fail(client, HERE) == ids[0]
    queue.settle()
    assert client.take() == b"RELEASED\r\n"
    assert stats(client, ids[0])["state"] == "reserved"
    for line in (b"delete %d", b"kick-job %d", b"reserve-job %d", b"bury %d 1", b"release %d 1 0"):
        assert client.send(line % ids[0] + b"\r\n") == b"NOT_FOUND\r\n"
    assert client.send(b"reserve-with-timeout 0\r\n").startswith(b"RESERVED %d " % ids[1])
    queue.mend(0, 1)
    assert places(queue, ids[0]) == [1]


@pytest.mark.parametrize("lost", range(12))
def test_each_lost_message_is_repeated_without_harm(queue: Shards, lost: int) -> None:
    """Cut all links after *lost* messages, and mend them, while a job goes around and is deleted."""
    client = queue.client(2)
    id = put(client, HERE)
    for shard, tube in ((0, THERE), (1, ELSEWHERE), (2, THERE)):
        assert editing.edit_job(queue.shards[shard].broker, id, queue.now, tube=tube) == EditOutcome.DONE
        for source in queue.shards:
            source.send_moves()
        for _ in range(lost):
            queue.step()
        for pair in ((0, 1), (1, 2), (0, 2)):
            queue.cut(*pair)
            queue.mend(*pair)
        queue.settle()
        assert len(places(queue, id)) == 1
    assert places(queue, id) == [1]
    client = queue.client(1)
    client.push(b"delete %d\r\n" % id)
    for _ in range(lost):
        queue.step()
    for pair in ((0, 1), (1, 2), (0, 2)):
        queue.cut(*pair)
        queue.mend(*pair)
    queue.settle()
    assert places(queue, id) == []
    assert not any(shard.broker.moves and shard.broker.moves.locations for shard in queue.shards)


def test_malformed_jobs_of_another_process_are_refused(queue: Shards) -> None:
    broker = queue.shards[0].broker
    id = put(queue.client(0), HERE, b" grp:g con:k:2")
    queue.cut(0, 1)
    assert editing.edit_job(broker, id, queue.now, tube=THERE) == EditOutcome.DONE
    facts = encode_job(broker.jobs[id], b"body")
    job, hops, kind = decode_job(facts, b"body", 0)
    assert (job.id, job.tube.name, job.body, hops, kind) == (id, THERE, b"body", 1, job_history.MOVED)
    assert job_attributes.encode(job).hex() == facts["attributes"]
    bad: list[object] = [None, -1, 2**64, "", "zz", "€", [], {}, 1.5, True]
    for name in facts:
        for value in bad:
            if value == facts[name]:
                continue
            with suppress(ValueError):
                decode_job(facts | {name: value}, b"body", 0)
                assert (name, value) in [("events", ""), ("attributes", ""), ("tube", "zz")]
        with pytest.raises(ValueError, match="incomplete"):
            decode_job({key: value for key, value in facts.items() if key != name}, b"body", 0)
    with pytest.raises(ValueError, match="invalid tube, size or state"):
        decode_job(facts, b"bod", 0)
    with pytest.raises(ValueError, match="invalid number"):
        decode_job(facts | {"id": 2**53}, b"body", 0)


@pytest.mark.parametrize("seed", range(15))
def test_random_moves_cuts_and_deletions_keep_each_job_in_one_place(queue: Shards, seed: int) -> None:
    random = Random(seed)  # noqa: S311  only for the test
    queue.choose = random.randrange
    fronts = [queue.client(shard) for shard in range(3)]
    alive, gone = set[int](), set[int]()
    for _ in range(80):
        action = random.randrange(6)
        if action == 0:
            pair = random.sample(range(3), 2)
            (queue.mend if frozenset(pair) in queue.cuts else queue.cut)(*pair)
        elif action == 1 or not alive:
            number = random.randrange(3)
            alive.add(put(queue.client(number), (HERE, THERE, ELSEWHERE)[number]))
        elif action == 2 and not queue.cuts:
            id = random.choice(sorted(alive))
            reply = random.choice(fronts).send(b"delete %d\r\n" % id)
            assert reply in (b"DELETED\r\n", b"NOT_FOUND\r\n")
            if reply == b"DELETED\r\n":
                alive.discard(id)
                gone.add(id)
        else:
            id, tube = random.choice(sorted(alive)), random.choice((HERE, THERE, ELSEWHERE))
            for owner in queue.shards:
                job = owner.broker.jobs.get(id)
                if job is not None and job.state != RESERVED and job.tube.name != tube:
                    assert editing.edit_job(owner.broker, id, queue.now, tube=tube) == EditOutcome.DONE
                    owner.send_moves()
                    break
            for _ in range(random.randrange(6)):
                queue.step()
    for cut in list(queue.cuts):
        queue.mend(*cut)
    queue.settle()
    assert all(len(places(queue, id)) == 1 for id in alive)
    assert not any(places(queue, id) for id in gone)
    for id in alive:
        assert random.choice(fronts).send(b"delete %d\r\n" % id) == b"DELETED\r\n"


def test_news_from_before_a_deletion_leaves_no_location(queue: Shards) -> None:
    client = queue.client(2)
    id = put(client, HERE)
    assert editing.edit_job(queue.shards[0].broker, id, queue.now, tube=THERE) == EditOutcome.DONE
    queue.settle()
    queue.cut(0, 1)
    assert editing.edit_job(queue.shards[1].broker, id, queue.now, tube=ELSEWHERE) == EditOutcome.DONE
    queue.settle()
    assert client.send(b"delete %d\r\n" % id) == b"DELETED\r\n"
    queue.mend(0, 1)
    assert not any(shard.broker.moves and shard.broker.moves.locations for shard in queue.shards)


@pytest.mark.parametrize("choose", [lambda count: 0, lambda count: count - 1])
def test_end_of_the_input_reaches_the_home_shard_with_a_command_or_after_it(
    queue: Shards, choose: Callable[[int], int]
) -> None:
    client = queue.client(2)
    id = put(client, HERE)
    assert editing.edit_job(queue.shards[0].broker, id, queue.now, tube=THERE) == EditOutcome.DONE
    queue.settle()
    queue.choose = choose
    client.push(b"touch %d\r\ndelete %d\r\n" % (id, id))
    assert client.send_eof() == b"NOT_FOUND\r\nDELETED\r\n"
    assert client.session.is_closing


@pytest.mark.parametrize("front", range(3))
@pytest.mark.parametrize("state", ["ready", "deleted"])
def test_wait_ends_as_the_job_that_moves_and_is_deleted_at_once(queue: Shards, front: int, state: str) -> None:
    """The answer to the move is lost, so the shard that had the job hears late that it has arrived."""
    client = queue.client(front)
    id = put(client, HERE)
    assert client.send(b"wait %d\r\n" % id) == b""
    queue.loses_answers = True
    assert editing.edit_job(queue.shards[0].broker, id, queue.now, tube=THERE) == EditOutcome.DONE
    queue.settle()
    if state == "deleted":
        assert queue.client(1).send(b"delete %d\r\n" % id) == b"DELETED\r\n"
        queue.repeat_moves()
        assert client.take() == b"DELETED %d\r\n" % id
    else:
        queue.repeat_moves()
        assert client.take() == b""
        assert queue.client(1).send(b"delete %d\r\n" % id) == b"DELETED\r\n"
        assert client.take() == b"DELETED %d\r\n" % id
