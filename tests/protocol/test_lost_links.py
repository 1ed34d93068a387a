"""A front whose link to an owner is lost, and an owner that is restarted, in memory. See tests.support.shards."""

from __future__ import annotations

import os

import pytest

from greenstalk_server.core.jobs.job import BURIED, READY, RESERVED, SECOND
from greenstalk_server.core.operations import policy_changes
from greenstalk_server.core.policies.policy import parse_policy
from greenstalk_server.journal import startup
from greenstalk_server.journal.writer import JournalWriter
from tests.journal.disk import Disk
from tests.support.shards import Front, Served, Shard, Shards, tube_on

FRONT, OWNER, THIRD = 0, 1, 2
TUBE = tube_on(OWNER)
OTHER = tube_on(THIRD)


class Queue(Shards):
    """A queue whose shard OWNER has a journal."""

    def __init__(self, base: int = 0) -> None:
        super().__init__(base)
        self.disk = Disk()
        self._recover(self.shards[OWNER])

    def _recover(self, shard: Shard) -> None:
        self.journal = JournalWriter(self.disk, 65536, 0, os.urandom)
        shard.broker.journal = self.journal
        startup.recover(self.disk, shard.broker, self.journal, self.now, is_strict=True, ends_remote=False)

    def kill(self) -> None:
        """End the process of OWNER, after it has written its records."""
        startup.write_out(self.journal)
        for other in (FRONT, THIRD):
            self.cut(OWNER, other)
        self.shards[OWNER].due = None

    def start(self) -> None:
        """Start another process for OWNER."""
        former = self.shards[OWNER]
        self.shards[OWNER] = shard = Shard(self, former.ids, None, ())
        self._recover(shard)
        alive = {each.process for each in self.shards}
        for front in [front for front in shard.broker.suspended if front not in alive]:
            shard.end_suspended(front)
        for other in (FRONT, THIRD):
            self.mend(OWNER, other)

    def restart(self) -> None:
        self.kill()
        self.start()

    def state(self, id: int) -> int:
        """Return the state of the job *id* of OWNER."""
        return self.shards[OWNER].broker.jobs[id].state

    def deliver(self, sender: int, receiver: int) -> None:
        """Deliver the messages from one process to another, and serve the commands in them, but resume no front."""
        messages = self.links[sender, receiver]
        while messages:
            messages.popleft()()
        served = [call for call in self.woken if isinstance(getattr(call, "__self__", None), Served)]
        for call in served:
            self.woken.remove(call)
            call()


@pytest.fixture
def queue() -> Queue:
    return Queue()


@pytest.fixture
def client(queue: Queue) -> Front:
    """A client of FRONT that watches TUBE alone."""
    client = queue.client(FRONT)
    client.send(b"watch %b\r\nignore default\r\n" % TUBE)
    return client


def put(queue: Queue, tube: bytes = TUBE, ttr: int = 60) -> int:
    producer = queue.client(THIRD)
    reply = producer.send(b"put-in-tube %b 0 0 %d 1\r\nx\r\n" % (tube, ttr))
    producer.close()
    return int(reply.split()[1])


def held(queue: Queue, client: Front, ttr: int = 60) -> int:
    """Return a job that *client* has reserved."""
    id = put(queue, ttr=ttr)
    assert client.send(b"reserve-with-timeout 0\r\n") == b"RESERVED %d 1\r\nx\r\n" % id
    return id


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        (b"delete %d", b"DELETED"),
        (b"release %d 0 0", b"RELEASED"),
        (b"bury %d 0", b"BURIED"),
        (b"touch %d", b"TOUCHED"),
    ],
)
@pytest.mark.parametrize("is_restart", [False, True])
def test_client_keeps_its_job(queue: Queue, client: Front, line: bytes, reply: bytes, is_restart: bool) -> None:
    id = held(queue, client)
    if is_restart:
        queue.restart()
    else:
        queue.cut(FRONT, OWNER)
        queue.mend(FRONT, OWNER)
    assert queue.client(THIRD).send(b"reserve-job %d\r\n" % id) == b"NOT_FOUND\r\n"
    assert client.send(line % id + b"\r\n") == reply + b"\r\n"


def test_client_keeps_a_buried_job_that_it_has_reserved_by_id(queue: Queue, client: Front) -> None:
    id = held(queue, client)
    client.send(b"bury %d 0\r\nreserve-job %d\r\n" % (id, id))
    queue.restart()
    assert client.send(b"touch %d\r\n" % id) == b"TOUCHED\r\n"
    client.close()
    assert queue.state(id) == READY


def test_client_keeps_its_jobs_through_several_restarts(queue: Queue, client: Front) -> None:
    ids = [held(queue, client)]
    for _ in range(3):
        queue.restart()
        ids.append(held(queue, client))
    assert client.send(b"touch-all\r\n") == b"TOUCHED_ALL 4\r\n"
    assert client.send(b"delete-batch" + b"".join([b" %d" % id for id in ids]) + b"\r\n") == b"DELETED_BATCH 4 0\r\n"


def test_client_keeps_its_job_after_a_job_was_copied(queue: Queue, client: Front) -> None:
    """As compaction copies it."""
    id = held(queue, client)
    queue.journal._log.add_copy(queue.shards[OWNER].broker.jobs[id])
    queue.restart()
    assert client.send(b"delete %d\r\n" % id) == b"DELETED\r\n"


def test_time_to_run_begins_again(queue: Queue, client: Front) -> None:
    id = held(queue, client, ttr=10)
    queue.advance(8)
    assert client.send(b"touch %d\r\n" % id) == b"TOUCHED\r\n"
    queue.kill()
    queue.advance(20)
    queue.start()
    queue.advance(8.5)
    assert client.send(b"reserve-with-timeout 5\r\n") == b""
    queue.advance(0.6)
    assert client.take() == b"DEADLINE_SOON\r\n"
    queue.advance(1)
    assert queue.state(id) == READY


def test_touch_during_an_outage_is_sent_again(queue: Queue, client: Front) -> None:
    id = held(queue, client, ttr=2)
    queue.kill()
    queue.advance(1)
    assert client.send(b"touch %d\r\n" % id) == b""
    queue.advance(5)
    queue.start()
    assert client.take() == b"TOUCHED\r\n"


def test_wait_continues(queue: Queue, client: Front) -> None:
    assert client.send(b"reserve\r\n") == b""
    queue.restart()
    id = put(queue)
    assert client.take() == b"RESERVED %d 1\r\nx\r\n" % id


def test_used_and_watched_tubes_exist_again(queue: Queue, client: Front) -> None:
    client.send(b"use %b\r\n" % TUBE)
    queue.restart()
    assert TUBE in queue.shards[OWNER].broker.tubes
    assert queue.client(THIRD).send(b"stats-tube %b\r\n" % TUBE).count(b"current-watching: 1\n") == 1


def test_jobs_of_clients_of_the_killed_process_are_ready(queue: Queue) -> None:
    local = queue.client(OWNER)
    local.send(b"watch %b\r\nignore default\r\n" % TUBE)
    id = held(queue, local)
    queue.restart()
    assert queue.state(id) == READY


def test_jobs_of_a_front_that_has_ended_too_are_ready(queue: Queue, client: Front) -> None:
    id = held(queue, client)
    queue.kill()
    queue.shards[FRONT].process = "another"
    queue.start()
    assert queue.state(id) == READY


def test_jobs_of_a_connection_that_closes_during_the_outage_are_ready(queue: Queue, client: Front) -> None:
    id = held(queue, client)
    queue.kill()
    client.close()
    queue.start()
    assert queue.state(id) == READY


def test_reservation_whose_reply_is_lost_is_repeated_uncounted(queue: Queue, client: Front) -> None:
    first = held(queue, client)
    second = put(queue)
    client.push(b"reserve-with-timeout 0\r\n")
    queue.deliver(FRONT, OWNER)
    assert queue.state(second) == RESERVED
    queue.kill()
    queue.start()
    if not (reply := client.take()).startswith(b"RESERVED"):
        assert reply == b"TIMED_OUT\r\n"  # the front asks only the shards that it can reach
        reply = client.send(b"reserve-with-timeout 0\r\n")
    assert reply == b"RESERVED %d 1\r\nx\r\n" % second
    assert queue.shards[OWNER].broker.jobs[second].reserves == 1
    assert client.send(b"touch %d\r\n" % first) == b"TOUCHED\r\n"


@pytest.mark.parametrize("line", [b"reserve", b"reserve-batch 2 9", b"reserve-job %d"])
@pytest.mark.parametrize("others", [b"", OTHER])
def test_reservation_is_undone_if_the_client_leaves_before_the_reply_arrives(
    queue: Queue, client: Front, line: bytes, others: bytes
) -> None:
    broker = queue.shards[OWNER].broker
    policy = parse_policy("once", {"tubes": [TUBE.decode()], "max_attempts": 1})
    policy_changes.set_policy(broker, policy, queue.now)
    queue.advance(0.01)  # existing tubes get the policy
    first = held(queue, client)
    if others:
        client.send(b"watch %b\r\n" % others)
    id = put(queue)
    client.push(line.replace(b"%d", b"%d" % id) + b"\r\n")
    queue.deliver(FRONT, OWNER)
    assert queue.state(id) == RESERVED
    client.close()
    assert (queue.state(id), broker.jobs[id].reserves) == (READY, 0)
    assert (queue.state(first), broker.jobs[first].reserves) == (BURIED, 1)
    queue.restart()
    assert (queue.state(id), queue.shards[OWNER].broker.jobs[id].reserves) == (READY, 0)


def test_claim_is_undone_if_the_waiting_client_leaves_before_the_reply_arrives(queue: Queue, client: Front) -> None:
    client.send(b"watch %b\r\nreserve\r\n" % OTHER)
    producer = queue.client(OWNER)
    producer.push(b"put-in-tube %b 0 0 60 1\r\nx\r\n" % TUBE)
    [id] = queue.shards[OWNER].broker.jobs
    queue.deliver(OWNER, FRONT)  # makes the owner send the offer
    queue.deliver(OWNER, FRONT)
    client.resume()  # claims the offer
    queue.deliver(FRONT, OWNER)
    assert queue.state(id) == RESERVED
    client.close()
    assert (queue.state(id), queue.shards[OWNER].broker.jobs[id].reserves) == (READY, 0)


def test_reserve_job_whose_reply_is_lost_is_repeated(queue: Queue, client: Front) -> None:
    id = put(queue)
    client.push(b"reserve-job %d\r\n" % id)
    queue.deliver(FRONT, OWNER)
    queue.restart()
    assert client.take() == b"RESERVED %d 1\r\nx\r\n" % id
    assert queue.state(id) == RESERVED


def test_reply_that_has_arrived_is_passed_on_though_the_link_is_lost(queue: Queue, client: Front) -> None:
    id = put(queue)
    client.push(b"reserve-job %d\r\n" % id)
    queue.deliver(FRONT, OWNER)
    queue.deliver(OWNER, FRONT)
    queue.restart()
    assert client.take() == b"RESERVED %d 1\r\nx\r\n" % id
    assert client.send(b"delete %d\r\n" % id) == b"DELETED\r\n"


@pytest.mark.parametrize("line", [b"delete %d", b"release %d 0 0", b"bury %d 0", b"kick-job %d"])
def test_change_whose_reply_is_lost_closes_the_connection_and_frees_its_jobs(
    queue: Queue, client: Front, line: bytes
) -> None:
    id, other = held(queue, client), put(queue)
    there = put(queue, OTHER)
    assert client.send(b"reserve-job %d\r\nreserve-job %d\r\n" % (other, there)).count(b"RESERVED") == 2
    client.push(line % id + b"\r\n")
    queue.deliver(FRONT, OWNER)
    queue.restart()
    assert client.take() == b"" and client.session.is_closing
    client.close()
    assert queue.state(other) == READY
    assert queue.shards[THIRD].broker.jobs[there].state == READY


def test_command_about_an_old_id_is_repeated() -> None:
    queue = Queue(base=100)
    client = queue.client(FRONT)
    id = put(queue)
    assert id >= 100
    client.push(b"touch 7\r\n")
    for shard in (THIRD, OWNER):
        queue.deliver(FRONT, shard) if (FRONT, shard) in queue.links else None
    queue.restart()
    assert client.take() == b"NOT_FOUND\r\n"


def test_every_record_leaves_the_job_with_its_holder(queue: Queue, client: Front) -> None:
    """The owner is killed after each of the commands; the record of the last one is the end of the journal."""
    id = held(queue, client)
    steps = [b"touch %d", b"release %d 5 0", b"reserve-job %d", b"bury %d 3", b"kick-job %d", b"reserve-job %d"]
    for line in steps:
        client.send(line % id + b"\r\n")
        queue.restart()
        is_held = line.startswith((b"touch", b"reserve-job"))
        assert queue.state(id) == RESERVED if is_held else queue.state(id) != RESERVED
    assert client.send(b"delete %d\r\n" % id) == b"DELETED\r\n"
    queue.restart()
    assert id not in queue.shards[OWNER].broker.jobs


def test_offer_of_a_lost_link_is_declined(queue: Queue, client: Front) -> None:
    client.send(b"watch %b\r\n" % OTHER)
    assert client.send(b"reserve\r\n") == b""
    queue.kill()
    id = put(queue, OTHER)
    assert client.take() == b"RESERVED %d 1\r\nx\r\n" % id
    queue.start()
    assert client.send(b"reserve\r\n") == b""
    id = put(queue)
    assert client.take() == b"RESERVED %d 1\r\nx\r\n" % id


def test_link_that_is_lost_again_and_again_keeps_the_jobs(queue: Queue, client: Front) -> None:
    id = held(queue, client, ttr=5)
    for _ in range(3):
        queue.cut(FRONT, OWNER)
        queue.advance(4)
        queue.mend(FRONT, OWNER)
    assert queue.shards[OWNER].broker.jobs[id].deadline == queue.now + 5 * SECOND
    assert client.send(b"touch %d\r\n" % id) == b"TOUCHED\r\n"
