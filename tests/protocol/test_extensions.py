"""Extensions over time and in slices: batches, flushes, waits for jobs, and metadata."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from greenstalk_server.core.broker import SLICE
from greenstalk_server.core.jobs.body_cache import Bodies
from greenstalk_server.core.jobs.job import Job
from greenstalk_server.core.operations import finishing
from greenstalk_server.core.tubes.weighting import MAX_WEIGHTED_TUBES
from greenstalk_server.protocol.arguments import MAX_BATCH_LINE
from greenstalk_server.protocol.costs import JOB_COST, OUTPUT_SLICE, WATCHED_BATCH, WATCHED_COST, WEIGHTED_COST
from tests.support.talk import MARK, MARKED, Talk, buffered_bytes, slices, stream_of
from tests.support.world import make_broker

PUT = b"put 0 0 60 1\r\nx\r\n"
ONE = b"RESERVED_BATCH 1\r\nRESERVED 1 1\r\nx\r\n"
Deliver = Callable[[bytes | None], None]


@pytest.fixture
def talk() -> Talk:
    return Talk()


@pytest.fixture
def other(talk: Talk) -> Talk:
    return Talk(talk.broker)


def ids(first: int, last: int) -> bytes:
    return b" ".join(b"%d" % id for id in range(first, last + 1))


# reserve-batch


def test_batch_waits_for_a_job_and_takes_the_other_ready_jobs(talk: Talk, other: Talk) -> None:
    assert talk.send(b"reserve-batch 9 5\r\n" + MARK) == b""
    other.send(PUT * 3)
    assert (talk.woken, talk.session.is_woken) == (1, True)
    jobs = b"".join(b"RESERVED %d 1\r\nx\r\n" % id for id in (1, 2, 3))
    assert talk.resume() == b"RESERVED_BATCH 3\r\n" + jobs + MARKED


def test_batch_that_times_out_is_empty(talk: Talk) -> None:
    assert talk.send(b"reserve-batch 9 0.5\r\n" + MARK) == b""
    talk.advance(0.4)
    assert not talk.woken
    talk.advance(0.1)
    assert talk.resume() == b"RESERVED_BATCH 0\r\n" + MARKED


def test_batch_ends_its_wait_when_a_held_job_is_about_to_expire(talk: Talk) -> None:
    talk.send(b"put 0 0 3 1\r\nx\r\nreserve\r\nreserve-batch 2 60\r\n" + MARK)
    talk.advance(2)
    assert talk.resume() == b"DEADLINE_SOON\r\n" + MARKED
    assert talk.send(b"reserve-with-timeout 0\r\n") == b"DEADLINE_SOON\r\n"


def test_half_close_ends_the_wait_of_a_batch(talk: Talk) -> None:
    talk.send(b"reserve-batch 2 60\r\nreserve-with-timeout 9\r\nreserve-batch 2 60\r\n" + MARK)
    assert talk.send_eof() == b"RESERVED_BATCH 0\r\nTIMED_OUT\r\nRESERVED_BATCH 0\r\n" + MARKED
    assert talk.session.is_closing and not talk.broker.waiting_count


def test_disconnect_during_the_wait_of_a_batch_leaves_the_job(talk: Talk, other: Talk) -> None:
    talk.send(b"reserve-batch 2 60\r\n")
    talk.close()
    assert other.send(PUT + b"reserve-batch 5\r\n") == b"INSERTED 1\r\n" + ONE


def test_batch_ends_after_a_slice_of_output() -> None:
    talk = Talk(make_broker(max_job_size=10**6))
    body = b"b" * 30_000
    talk.send(b"put 0 0 60 30000\r\n%b\r\n" % body * 9)
    out = slices(talk, b"reserve-batch 9\r\n" * 4 + MARK)
    jobs = [b"RESERVED %d 30000\r\n%b\r\n" % (id, body) for id in range(1, 10)]
    batches = [b"RESERVED_BATCH 3\r\n" + b"".join(jobs[start : start + 3]) for start in (0, 3, 6)]
    assert b"".join(out) == b"".join(batches) + b"RESERVED_BATCH 0\r\n" + MARKED
    assert max(map(len, out)) <= 2 * OUTPUT_SLICE


def test_last_body_of_a_batch_may_be_a_stream() -> None:
    talk = Talk(make_broker(max_job_size=10**6))
    body = bytes(200_000)
    talk.send(PUT + b"put 1 0 60 200000\r\n%b\r\n" % body + b"put 2 0 60 1\r\nx\r\n")
    first = talk.session.receive(b"reserve-batch 9\r\n" + MARK, talk.now)
    assert first == b"RESERVED_BATCH 2\r\nRESERVED 1 1\r\nx\r\nRESERVED 2 200000\r\n"
    assert b"".join(stream_of(talk.session)) == body + b"\r\n"
    assert talk.resume() == MARKED


def test_largest_batch_has_a_thousand_jobs(talk: Talk) -> None:
    talk.send(b"put 0 0 60 0\r\n\r\n" * 1001)
    reply = talk.send(b"reserve-batch 1000\r\n")
    assert reply.startswith(b"RESERVED_BATCH 1000\r\n") and reply.count(b"RESERVED ") == 1000
    assert len(talk.session.client.reserved) == 1000


class OnDisk:
    """Bodies of *broker* that are on disk: `deliver` brings the one that was fetched last."""

    def __init__(self, talk: Talk) -> None:
        self.bodies = Bodies(10**9, can_evict=True)
        talk.broker.bodies = self.bodies
        self.bodies.fetch = self._fetch
        self.waiting: list[tuple[Job, Deliver]] = []
        self.broker = talk.broker

    def evict(self, id: int) -> None:
        self.bodies.evict(self.broker.jobs[id])

    def deliver(self, body: bytes | None) -> None:
        job, deliver = self.waiting.pop()
        if body is not None:
            self.bodies.restore(job, body, is_ahead=False)
        deliver(body)

    def _fetch(self, job: Job, deliver: Deliver) -> None:
        self.waiting.append((job, deliver))


@pytest.mark.parametrize("is_waiting", [False, True])
@pytest.mark.parametrize("first", [1, 2])
def test_job_whose_body_is_on_disk_ends_the_batch(talk: Talk, other: Talk, first: int, is_waiting: bool) -> None:
    disk = OnDisk(talk)
    if is_waiting:
        talk.send(b"pause-tube default 5\r\n")
        talk.send(b"reserve-batch 9 9\r\n" + MARK)
    other.send(PUT * 3)
    disk.evict(first)
    if is_waiting:
        talk.advance(5)
        assert talk.resume() == b""
    else:
        assert talk.send(b"reserve-batch 9\r\n" + MARK) == b""
    assert talk.session.is_waiting and not talk.session.is_woken
    disk.deliver(b"x")
    jobs = b"".join(b"RESERVED %d 1\r\nx\r\n" % id for id in range(1, first + 1))
    assert talk.resume() == b"RESERVED_BATCH %d\r\n" % first + jobs + MARKED
    assert list(talk.session.client.reserved) == list(range(1, first + 1))


@pytest.mark.parametrize("first", [1, 2])
def test_job_whose_body_is_lost_is_buried_and_left_out_of_the_batch(talk: Talk, first: int) -> None:
    disk = OnDisk(talk)
    talk.send(PUT * 3)
    disk.evict(first)
    talk.send(b"reserve-batch 9\r\n" + MARK)
    disk.deliver(None)
    assert talk.resume() == (b"RESERVED_BATCH 0\r\n" if first == 1 else ONE) + MARKED
    assert list(talk.broker.default_tube.buried) == [first]


def test_half_close_while_a_batch_waits_for_a_body(talk: Talk) -> None:
    disk = OnDisk(talk)
    talk.send(PUT)
    disk.evict(1)
    talk.send(b"reserve-batch 9 9\r\n" + MARK)
    assert talk.send_eof() == b""
    disk.deliver(b"x")
    assert talk.resume() == ONE + MARKED
    assert talk.session.is_closing


def test_disconnect_while_a_batch_waits_for_a_body(talk: Talk, other: Talk) -> None:
    disk = OnDisk(talk)
    talk.send(PUT * 2)
    disk.evict(2)
    talk.send(b"reserve-batch 9\r\n")
    talk.close()
    disk.deliver(b"x")
    assert other.send(b"reserve-batch 9\r\n").startswith(b"RESERVED_BATCH 2\r\n")


def test_peek_reserved_of_a_body_on_disk(talk: Talk) -> None:
    disk = OnDisk(talk)
    talk.send(PUT + b"reserve\r\n")
    disk.evict(1)
    assert talk.send(b"peek-reserved\r\n" + MARK) == b""
    disk.deliver(b"x")
    assert talk.resume() == b"FOUND 1 1\r\nx\r\n" + MARKED


# delete-batch and touch-all


def test_delete_batch_takes_slices_and_has_one_reply(talk: Talk) -> None:
    talk.send(PUT * 1000)
    out = slices(talk, b"delete-batch %b\r\n" % ids(1, 1000) + MARK)
    assert b"".join(out) == b"DELETED_BATCH 1000 0\r\n" + MARKED
    assert len(out) == -(-1000 // SLICE)
    assert not talk.broker.jobs


def test_delete_batch_does_not_count_jobs_that_others_delete_or_hold(talk: Talk, other: Talk) -> None:
    talk.send(PUT * 2 * SLICE)
    other.send(b"reserve\r\n")
    talk.session.receive(b"delete-batch %b\r\n" % ids(1, 2 * SLICE), talk.now)
    assert other.send(b"delete %d\r\n" % (2 * SLICE)) == b"DELETED\r\n"
    assert talk.resume() == b"DELETED_BATCH %d 2\r\n" % (2 * SLICE - 2)
    assert list(talk.broker.jobs) == [1]


def test_buffered_line_of_a_delete_batch_is_bounded(talk: Talk) -> None:
    talk.send(b"delete-batch")
    for _ in range(3000):
        talk.send(b" 1234567")
        assert buffered_bytes(talk.session) < MAX_BATCH_LINE
    assert talk.send(b"\r\n" + MARK) == b"BAD_FORMAT\r\n" + MARKED


def test_touch_all_takes_slices_and_counts_the_jobs_still_held(talk: Talk, other: Talk) -> None:
    talk.send(PUT * 3 * SLICE)
    for _ in range(3):
        talk.send(b"reserve-batch %d\r\n" % SLICE)
    talk.advance(30)
    assert talk.session.receive(b"touch-all\r\n" + MARK, talk.now) == b""
    assert talk.session.has_more
    finishing.release_job(talk.broker, 3 * SLICE, talk.now)
    assert talk.resume() == b"TOUCHED_ALL %d\r\n" % (3 * SLICE - 1) + MARKED
    other.send(b"delete %d\r\n" % (3 * SLICE))
    talk.advance(59)
    assert len(talk.session.client.reserved) == 3 * SLICE - 1
    talk.advance(1)
    assert not talk.session.client.reserved


# reserve-mode


def test_weighted_reserve_has_a_cost_for_each_tube(talk: Talk) -> None:
    talk.send(b"".join(b"watch t%d\r\n" % number for number in range(WATCHED_BATCH)) + PUT * 4)
    talk.send(b"reserve\r\n")  # makes the tube set
    costs = []
    for mode in (b"fifo", b"weighted", b"fifo"):
        talk.send(b"reserve-mode %b\r\n" % mode)
        talk.send(b"reserve\r\n")
        costs.append(talk.session.cost)
    assert costs[1] - costs[0] == (WATCHED_BATCH + 1) * WEIGHTED_COST - WATCHED_COST and costs[2] == costs[0]


def test_slice_has_few_weighted_reserves_from_many_tubes(talk: Talk) -> None:
    talk.send(b"reserve-mode weighted\r\n")
    talk.send(b"".join(b"watch t%d\r\n" % number for number in range(MAX_WEIGHTED_TUBES - 1)))
    talk.send(b"reserve-with-timeout 0\r\n")  # makes the tube set
    out = talk.session.receive(b"reserve-with-timeout 0\r\n" * 10, talk.now)
    assert out == b"TIMED_OUT\r\n" * 2
    assert talk.session.has_more


def test_weighted_batch_ends_when_it_has_cost_a_slice(talk: Talk) -> None:
    talk.send(b"".join(b"watch t%d\r\n" % number for number in range(WATCHED_BATCH - 2)) + PUT * 1000)
    talk.send(b"reserve-mode weighted\r\n")
    count = int(talk.send(b"reserve-batch 1000\r\n").split()[1])
    assert 0 < count <= OUTPUT_SLICE // (WEIGHTED_COST * (WATCHED_BATCH - 1)) + 1


# flush-tube and flush-buried


def fill(talk: Talk, count: int) -> Talk:
    """Put *count* ready, delayed, buried and reserved jobs each; return the talk of the client that holds jobs."""
    talk.send(PUT * 2 * count)
    holder = Talk(talk.broker)
    for _ in range(2 * count // 200 + 1):
        holder.send(b"reserve-batch 200\r\n")
    for id in range(1, count + 1):
        holder.send(b"bury %d 0\r\n" % id)
    talk.send((PUT + b"put 0 60 60 0\r\n\r\n") * count)
    return holder


@pytest.mark.parametrize("count", [1, SLICE])
def test_flush_deletes_the_jobs_in_every_state(talk: Talk, count: int) -> None:
    holder = fill(talk, count)
    talk.send(b"use kept\r\n" + PUT)
    out = slices(talk, b"flush-tube default\r\n" + MARK)
    assert b"".join(out) == b"FLUSHED %d\r\nUSING kept\r\n" % (4 * count)
    assert len(out) >= 4 * count // SLICE // 2
    assert list(talk.broker.jobs) == [4 * count + 1] and not holder.session.client.reserved


def test_flush_of_buried_jobs_leaves_the_others(talk: Talk) -> None:
    fill(talk, 2 * SLICE)
    assert b"".join(slices(talk, b"flush-buried default\r\n" + MARK)) == b"FLUSHED %d\r\n" % (2 * SLICE) + MARKED
    assert len(talk.broker.jobs) == 6 * SLICE


def test_flush_deletes_jobs_that_change_their_state_between_slices(talk: Talk) -> None:
    """The holder releases its jobs, and reserves others, when the flush has begun."""
    holder = fill(talk, SLICE)
    assert talk.session.receive(b"flush-tube default\r\n", talk.now) == b""
    held = list(holder.session.client.reserved)
    holder.send(b"".join(b"release %d 0 0\r\n" % id for id in held[:100]))
    holder.send(b"".join(b"bury %d 0\r\n" % id for id in held[100:]))
    holder.send(b"reserve-batch 50\r\n")
    assert talk.resume() == b"FLUSHED %d\r\n" % (4 * SLICE)
    assert not talk.broker.jobs


def test_flush_keeps_jobs_that_are_put_between_its_slices(talk: Talk, other: Talk) -> None:
    fill(talk, SLICE)
    talk.session.receive(b"flush-tube default\r\n", talk.now)
    other.send(PUT + b"reserve\r\n" + PUT)
    assert talk.resume() in {b"FLUSHED %d\r\n" % (4 * SLICE), b"FLUSHED %d\r\n" % (4 * SLICE - 1)}
    assert [id for id in talk.broker.jobs if id <= 4 * SLICE] == []
    assert list(talk.broker.jobs) == [4 * SLICE + 1, 4 * SLICE + 2]


@pytest.mark.parametrize("count", [1, SLICE])
def test_truncate_deletes_reserved_jobs_when_their_reservations_end(talk: Talk, count: int) -> None:
    holder = fill(talk, count)
    out = slices(talk, b"truncate default\r\n" + MARK)
    assert b"".join(out) == b"TRUNCATED %d\r\n" % (3 * count) + MARKED
    held = list(holder.session.client.reserved)
    assert list(talk.broker.jobs) == held and len(held) == count
    assert holder.send(b"touch %d\r\n" % held[0]) == b"TOUCHED\r\n"
    holder.close()
    talk.advance(0)
    assert not talk.broker.jobs


def test_truncate_reaches_jobs_that_change_their_state_between_slices(talk: Talk) -> None:
    holder = fill(talk, SLICE)
    assert talk.session.receive(b"truncate default\r\n", talk.now) == b""
    held = list(holder.session.client.reserved)
    holder.send(b"".join(b"release %d 0 0\r\n" % id for id in held[:100]))
    holder.send(b"reserve-batch 50\r\n")
    talk.resume()
    left = list(talk.broker.jobs.values())
    assert left and all(job.is_truncated for job in left)


def test_flush_of_a_tube_that_is_dropped_and_created_again_keeps_the_new_jobs(talk: Talk, other: Talk) -> None:
    other.send(b"put-in-tube a 0 0 60 1\r\nx\r\n" * (SLICE + 1))
    talk.session.receive(b"flush-tube a\r\n", talk.now)
    assert other.send(b"delete %d\r\n" % (SLICE + 1)) == b"DELETED\r\n"
    assert b"a" not in talk.broker.tubes
    other.send(b"put-in-tube a 0 0 60 1\r\nx\r\n")
    assert talk.resume() == b"FLUSHED %d\r\n" % SLICE
    assert list(talk.broker.jobs) == [SLICE + 2]


# peek-reserved


def test_peek_reserved_finds_the_lowest_id_of_all_clients(talk: Talk) -> None:
    talk.send(PUT * 600)
    holders = [Talk(talk.broker) for _ in range(3)]
    for holder, id in zip(holders, (500, 7, 300), strict=True):
        holder.send(b"reserve-job %d\r\n" % id)
    assert talk.send(b"peek-reserved\r\n") == b"FOUND 7 1\r\nx\r\n"
    holders[1].send(b"delete 7\r\n")
    assert talk.send(b"peek-reserved\r\n") == b"FOUND 300 1\r\nx\r\n"


def test_peek_reserved_examines_connections_in_slices(talk: Talk) -> None:
    idle = [Talk(talk.broker) for _ in range(3 * SLICE)]
    idle[-1].send(PUT + b"reserve\r\n")
    out = slices(talk, b"peek-reserved\r\n" + MARK)
    assert b"".join(out) == b"FOUND 1 1\r\nx\r\n" + MARKED
    assert len(out) == 4


def test_peek_reserved_searches_again_if_the_reservation_ends_between_slices(talk: Talk, other: Talk) -> None:
    talk.send(PUT * 3 * SLICE)
    for _ in range(3):
        other.send(b"reserve-batch %d\r\n" % SLICE)
    assert talk.session.receive(b"peek-reserved\r\n", talk.now) == b""
    other.send(b"delete 1\r\n")
    assert talk.resume() == b"FOUND 2 1\r\nx\r\n"
    assert talk.session.receive(b"peek-reserved\r\n", talk.now) == b""
    other.close()
    talk.advance(0)
    assert talk.resume() == b"NOT_FOUND\r\n"


# wait


def test_wait_ends_when_the_job_is_deleted(talk: Talk, other: Talk) -> None:
    other.send(PUT + b"reserve\r\n")
    assert talk.send(b"wait 1\r\n" + MARK) == b""
    assert other.send(b"touch 1\r\nrelease 1 0 0\r\nreserve\r\ndelete 1\r\n").endswith(b"DELETED\r\n")
    assert talk.resume() == b"DELETED 1\r\n" + MARKED
    assert talk.woken == 1 and not talk.broker.job_waiters


@pytest.mark.parametrize("sent", [b"wait 1\r\n", b"wait 1 60\r\n"])
def test_half_close_ends_a_wait_for_a_job(talk: Talk, other: Talk, sent: bytes) -> None:
    other.send(PUT)
    talk.send(sent + sent + MARK)
    assert talk.send_eof() == b"TIMED_OUT\r\n" * 2 + MARKED
    assert talk.session.is_closing and not talk.broker.job_waiters
    other.send(b"delete 1\r\n")
    assert not talk.woken


def test_half_close_after_the_end_of_the_job_gets_the_outcome(talk: Talk, other: Talk) -> None:
    other.send(PUT)
    talk.send(b"wait 1\r\n")
    other.send(b"delete 1\r\n")
    assert talk.send_eof() == b"DELETED 1\r\n"


# meta


def test_meta_has_the_counts_of_the_job(talk: Talk) -> None:
    talk.send(b"meta reserves timeouts releases attempts age\r\nput 0 0 1 0\r\n\r\nreserve\r\n")
    talk.advance(1.25)
    assert talk.send(b"reserve\r\nrelease 1 0 0\r\n") == b"RESERVED 1 0 2 1 0 2 1.25\r\n\r\nRELEASED\r\n"
    talk.send(b"reserve\r\nbury 1 0\r\nkick-job 1\r\n")
    assert talk.send(b"reserve\r\n") == b"RESERVED 1 0 4 1 1 1 1.25\r\n\r\n"


def test_meta_of_a_body_that_is_a_stream() -> None:
    talk = Talk(make_broker(max_job_size=10**6))
    body = bytes(200_000)
    talk.send(b"meta tube pri\r\nput 5 0 60 200000\r\n%b\r\n" % body)
    assert talk.session.receive(b"reserve\r\n" + MARK, talk.now) == b"RESERVED 1 200000 default 5\r\n"
    assert b"".join(stream_of(talk.session)) == body + b"\r\n"
    assert talk.resume() == MARKED


def test_meta_of_a_job_that_ends_a_wait(talk: Talk, other: Talk) -> None:
    talk.send(b"meta tube\r\nreserve-batch 9 9\r\nreserve\r\n")
    other.send(PUT)
    assert talk.resume() == b"RESERVED_BATCH 1\r\nRESERVED 1 1 default\r\nx\r\n"
    other.send(PUT)
    assert talk.resume() == b"RESERVED 2 1 default\r\nx\r\n"


def test_meta_holds_for_its_connection_only(talk: Talk, other: Talk) -> None:
    talk.send(b"meta tube\r\n" + PUT)
    assert other.send(b"peek 1\r\n") == b"FOUND 1 1\r\nx\r\n"


def test_cost_of_batches_ends_a_slice(talk: Talk) -> None:
    """Otherwise 500 pipelined commands of a thousand jobs each would be one slice."""
    out = slices(talk, b"delete-batch %b\r\n" % ids(1, 200) * 20)
    assert b"".join(out) == b"DELETED_BATCH 0 200\r\n" * 20
    assert len(out) >= 20 * 200 * JOB_COST // OUTPUT_SLICE // 2
    talk.send(b"put 0 0 60 0\r\n\r\n" * 4000)
    out = slices(talk, b"reserve-batch 1000\r\n" * 4)
    assert len(out) >= 3
