"""A queue of several shards, or of one, without sockets: each has a broker, and clients connect to any of them.

Messages between two shards arrive in the order in which they were sent. `choose` selects which pair of shards is next,
or the next session that was woken; the default resumes sessions when no message is left, as at the end of a batch. Time
passes only in `advance`.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count, islice
from typing import Final

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.id_sequence import IdSequence
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.limits import Limits
from greenstalk_server.core.listener import BrokerListener
from greenstalk_server.core.operations import connecting, suspending, ticking
from greenstalk_server.core.remote import RemoteReservations
from greenstalk_server.core.transitions import departing, moving
from greenstalk_server.core.transitions.dependents import wake_dependents
from greenstalk_server.core.travel import Location
from greenstalk_server.core.tube_shards import Pin, TubeShards, shard_of_tube
from greenstalk_server.core.tubes.head_watch import NO_HEAD, Head, head_of
from greenstalk_server.protocol import front_channel
from greenstalk_server.protocol.access import Grants
from greenstalk_server.protocol.costs import COMMAND_SLICE
from greenstalk_server.protocol.front_channel import Channel
from greenstalk_server.protocol.front_session import FrontSession
from greenstalk_server.protocol.job_transfer import decode_job, encode_job
from greenstalk_server.protocol.restricted_session import RemoteSession, RestrictedSession
from greenstalk_server.protocol.session import Session
from tests.support import invariants
from tests.support.talk import stream_of
from tests.support.world import START, make_broker

SHARDS: Final = 3
MAX_MOVED: Final = 2
"""Jobs and locations of one message."""

MAX_STEPS: Final = 20_000
"""Maximum number of messages until the shards are at rest."""


def tube_on(shard: int, number: int = 0) -> bytes:
    """Return the name of a tube that *shard* owns, another for each *number*."""
    names = (b"t%d" % at for at in count())
    found = (name for name in names if shard_of_tube(name, SHARDS) == shard)
    return next(islice(found, number, None))


class Wire(front_channel.Wire):
    """The channel of a session of *front* to *owner*."""

    def __init__(self, front: Shard, owner: Shard, channel: Channel) -> None:
        super().__init__()
        self.front = front
        self.owner = owner
        self.channel = channel
        self.is_closed = False
        self.served: Served | None = None

    def attach(self) -> None:
        """Connect the remote client. At the owner this happens when the message arrives."""
        self.served = Served(self)
        self.is_attached = True
        self.front.wires.append(self)
        self.front.post(
            self.owner, partial(self.served.open, self.channel.session.client.number, self.channel.reserved)
        )
        for is_told, data in self.channel.begin():
            self._post(data, is_told)

    def send(self, data: bytes) -> None:
        self._post(data, is_told=False)

    def tell(self, data: bytes) -> None:
        self._post(data, is_told=True)

    def _post(self, data: bytes, is_told: bool) -> None:
        assert self.served is not None
        self.front.post(self.owner, partial(self.served.push, data, is_told))

    def close(self) -> None:
        self.is_closed = True
        if self.served is not None:
            self.front.wires.remove(self)
            self.front.post(self.owner, self.served.close)


class Served:
    """The session of a remote client at the owner; see net.link.ServedClient."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.shard = wire.owner
        self.input: list[bytes] = []
        self.is_closed = False
        self.is_end_due = False
        self.session: Session

    def open(self, number: int, reserved: int) -> None:
        """Connect the client *number*, and give it the jobs of the same session on a lost link."""
        session, now = self.wire.channel.session, self.shard.queue.now
        grants = session._grants
        if grants is None:
            self.session = RemoteSession(self.shard.broker, self._wake)
        else:
            self.session = RestrictedSession(self.shard.broker, self._wake, grants, 0, now)
            self.session.may_reserve = True
        front = self.wire.front
        remote = RemoteReservations(front.process, session.number)
        connecting.become_remote(self.shard.broker, self.session.client, front.number, remote)
        if suspending.resume(self.shard.broker, self.session.client, reserved, now):
            suspending.resume_some(self.shard.broker, self.session.client, MAX_STEPS, now)
        self.session.client.number = number
        self.shard.served.append(self)

    def push(self, data: bytes, is_told: bool) -> None:
        if is_told:
            assert not self.input
            self._serve_told(data)
        else:
            self.input.append(data)
            self._wake()

    def resume(self) -> None:
        """Serve as long as there is work, a slice each."""
        session, now, limit = self.session, self.shard.queue.now, self.shard.queue.limit
        while not self.is_closed:
            if session.is_woken or session.has_more:
                out = session.resume(now, limit)
            elif self.input:
                data, self.input = b"".join(self.input), []
                out = session.receive(data, now, limit)
            else:
                break
            out = b"".join([out, *stream_of(session)])
            is_complete = not (session.has_more or session.is_waiting or self.input)
            if out or (is_complete and self.is_end_due):
                self.is_end_due = not is_complete
                self.shard.post(self.wire.front, partial(self._pass, out, is_complete))
            if session.is_closing:
                self.close()
                self.shard.post(self.wire.front, partial(self._pass, None, True))

    def _serve_told(self, data: bytes) -> None:
        """Serve *data*, and send no replies."""
        session, now, limit = self.session, self.shard.queue.now, self.shard.queue.limit
        session.receive(data, now, limit)
        while session.has_more:
            session.resume(now, limit)

    def _pass(self, out: bytes | None, is_complete: bool) -> None:
        if self.wire.is_closed:
            return
        if out is None:
            self.wire.channel.lose(is_ended=True)
        else:
            self.wire.channel.receive(out, is_complete)

    def _wake(self) -> None:
        self.shard.queue.woken.append(self.resume)

    def close(self) -> None:
        self.resume()
        if not self.is_closed:
            self._end()
            self.session.close(self.shard.queue.now)

    def suspend(self) -> None:
        self._end()
        self.session.suspend(self.shard.queue.now)

    def _end(self) -> None:
        self.is_closed = True
        self.shard.served.remove(self)


class Shard(BrokerListener):
    """One process: the owner of a shard, and the front of its own clients. Implements front_channel.Routes."""

    def __init__(self, queue: Shards, ids: IdSequence, limits: Limits | None, pins: Sequence[Pin]) -> None:
        self.queue = queue
        self.number = self.own = ids.shard
        self.ids = ids
        self.broker = make_broker(limits=limits, ids=self.ids, tube_shards=TubeShards(ids.shards, pins))
        self.broker.subscribe(self)
        self.heads: dict[bytes, Head] = {}
        self.process: str = f"p{self.number}x{queue.processes}"
        queue.processes += 1
        self.sessions = 0
        self.served: list[Served] = []
        self.wires: list[Wire] = []
        self.waiting: list[Wire] = []
        self.due: int | None = None
        self.calling: set[int] = set()  # shards that have not answered yet
        self._published: dict[tuple[object, bytes], Head] = {}

    def on_earlier_deadline(self, when: int) -> None:
        if self.due is None or when < self.due:
            self.due = when

    def shard_of(self, tube: bytes) -> int:
        return self.broker.tube_shards.shard_of(tube)

    def is_linked(self, shard: int) -> bool:
        return frozenset((self.number, shard)) not in self.queue.cuts

    def new_session(self) -> int:
        self.sessions += 1
        return self.sessions

    def standby_stats(self, broker: Broker) -> list[bytes]:
        return []

    def open(self, shard: int, channel: Channel) -> Wire:
        assert shard != self.number
        wire = Wire(self, self.queue.shards[shard], channel)
        if self.is_linked(shard):
            wire.attach()
        else:
            self.waiting.append(wire)
        return wire

    def post(self, to: Shard, message: Callable[[], None]) -> None:
        self.queue.links.setdefault((self.number, to.number), deque()).append(message)

    def publish(self) -> None:
        """Publish the heads that have changed, as Links.flush does."""
        for tube, fronts in self.broker.heads.take():
            head = head_of(tube, self.queue.now)
            for front in fronts:
                assert isinstance(front, int)
                if self._published.get((front, tube.name), NO_HEAD) != head:
                    self._published[front, tube.name] = head
                    to = self.queue.shards[front]
                    self.post(to, partial(to.note_head, tube.name, head))

    def send_moves(self) -> None:
        """Send jobs of the outbox, and tell where jobs are, as MoveService does."""
        moves = self.broker.moves
        for to in [] if moves is None else sorted({*moves.leaving, *moves.untold} - self.calling):
            assert moves is not None
            jobs = list(moves.leaving.get(to, {}).values())[:MAX_MOVED]
            news = moves.news_for(to, MAX_MOVED)
            if (jobs or news) and self.is_linked(to):
                self.calling.add(to)
                facts = json.dumps([encode_job(job, job.body or b"") for job in jobs])
                bodies = b"".join([job.body or b"" for job in jobs])
                owner = self.queue.shards[to]
                moves.sent.update([job.id for job in jobs])
                if not self.queue.loses_moves:
                    self.post(owner, partial(owner.take_moves, self, facts, bodies, news))

    def take_moves(self, source: Shard, facts: str, bodies: bytes, news: list[tuple[int, Location]]) -> None:
        answers, at = [], 0
        for each in json.loads(facts):
            job, hops, kind = decode_job(each, bodies, at)
            at += job.size
            refusal = moving.accept(self.broker, job, hops, source.number, kind, self.queue.now)
            answers.append((job.id, hops, refusal))
        moving.hear(self.broker, source.number, [(id, at.shard, at.hops) for id, at in news], self.queue.now)
        if not self.queue.loses_answers:
            self.post(source, partial(source.end_moves, self.number, answers, news))

    def end_moves(self, peer: int, answers: list[tuple[int, int, int]], news: list[tuple[int, Location]]) -> None:
        self.calling.discard(peer)
        for id, hops, refusal in answers:
            if refusal:
                departing.refuse(self.broker, id, hops, self.queue.now)
            else:
                departing.finish_move(self.broker, id, hops, peer, self.queue.now)
        moving.confirm(self.broker, peer, news)

    def note_head(self, tube: bytes, head: Head) -> None:
        if head == NO_HEAD:
            self.heads.pop(tube, None)
        else:
            self.heads[tube] = head

    def lose(self, peer: int) -> None:
        """Suspend the clients of *peer*, and lose the channels to it."""
        self.calling.discard(peer)
        self.heads = {tube: head for tube, head in self.heads.items() if self.shard_of(tube) != peer}
        self._published = {key: head for key, head in self._published.items() if key[0] != peer}
        for served in [served for served in self.served if served.wire.front.number == peer]:
            served.suspend()
        lost = [wire for wire in self.wires if wire.owner.number == peer]
        self.wires = [wire for wire in self.wires if wire.owner.number != peer]
        for wire in lost:
            wire.channel.lose()

    def attach(self, peer: int) -> None:
        """Attach the wires that wait for *peer*, then report this."""
        waiting = [wire for wire in self.waiting if wire.owner.number == peer]
        self.waiting = [wire for wire in self.waiting if wire.owner.number != peer]
        owner = self.queue.shards[peer]
        for wire in waiting:
            if not wire.is_closed:
                wire.owner = owner
                wire.attach()
        self.post(owner, partial(owner.end_suspended, self.process))

    def end_suspended(self, front: str) -> None:
        """Disconnect the suspended clients of *front*: it has ended, or has opened the sessions of all others again."""
        for number in list(self.broker.suspended.get(front, ())):
            suspending.end(self.broker, front, number, self.queue.now)


class Front:
    """A connection to one of the shards. `replies` has what was sent to the client and not yet taken."""

    def __init__(self, queue: Shards, shard: int, grants: Grants | None = None, rate: int = 0) -> None:
        self.queue = queue
        self.shard = queue.shards[shard]
        self.replies = b""
        arguments = (self.shard.broker, self._wake, grants, rate, queue.now)
        self.session: RestrictedSession
        if len(queue.shards) == 1:
            self.session = RestrictedSession(*arguments)
        else:
            self.session = FrontSession(*arguments, self.shard, ("listener", []), is_timed=bool(rate))

    def send(self, data: bytes) -> bytes:
        """Send *data*, let the shards come to rest, and return the replies."""
        self.push(data)
        self.queue.settle()
        return self.take()

    def send_all(self, pieces: Iterable[bytes]) -> bytes:
        return b"".join([self.send(piece) for piece in pieces])

    def push(self, data: bytes) -> None:
        """Send *data*; do not deliver messages."""
        if not self.session.is_closing:
            self._collect(self.session.receive(data, self.queue.now, self.queue.limit))

    def send_eof(self) -> bytes:
        self._collect(self.session.receive_eof(self.queue.now, self.queue.limit))
        self.queue.settle()
        return self.take()

    def take(self) -> bytes:
        replies, self.replies = self.replies, b""
        return replies

    def resume(self) -> None:
        if self.session.is_woken:
            self._collect(self.session.resume(self.queue.now, self.queue.limit))

    def wait_out_pauses(self) -> None:
        """Let the time pass for which a rate limit pauses the client, and serve the rest of its input."""
        session = self.session
        while session.has_more:
            self.queue.advance(session.pause)
            self._collect(session.resume(self.queue.now, self.queue.limit))
            self.queue.settle()

    def close(self) -> None:
        self.session.close(self.queue.now)
        self.queue.settle()

    def _collect(self, out: bytes) -> None:
        session = self.session
        self.replies += b"".join([out, *stream_of(session)])
        while session.has_more and not session.pause:
            self.replies += b"".join([session.resume(self.queue.now, self.queue.limit), *stream_of(session)])

    def _wake(self) -> None:
        self.queue.woken.append(self.resume)


class Shards:
    """The queue."""

    def __init__(
        self, base: int = 0, limits: Limits | None = None, count: int = SHARDS, pins: Sequence[Pin] = ()
    ) -> None:
        self.now = START
        self.limit = COMMAND_SLICE
        self.choose: Callable[[int], int] = lambda count: 0
        self.links: dict[tuple[int, int], deque[Callable[[], None]]] = {}
        self.woken: deque[Callable[[], None]] = deque()
        self.cuts: set[frozenset[int]] = set()
        self.loses_moves: bool = False  # before they arrive; until `repeat_moves`, they are not sent again
        self.loses_answers: bool = False  # to moves that have arrived
        self.processes = 0
        self.shards = [Shard(self, IdSequence(base, count, number), limits, pins) for number in range(count)]

    def client(self, shard: int = 0, grants: Grants | None = None, rate: int = 0) -> Front:
        return Front(self, shard, grants, rate)

    def step(self) -> bool:
        """Deliver one message, or resume one session; return False if there is nothing to do."""
        queues = [messages for messages in (*self.links.values(), self.woken) if messages]
        if not queues:
            return False
        queues[self.choose(len(queues))].popleft()()
        for shard in self.shards:
            shard.publish()
            shard.send_moves()
        return True

    def settle(self) -> None:
        """Deliver all messages."""
        for shard in self.shards:
            wake_dependents(shard.broker, self.now)
            shard.publish()
            shard.send_moves()
        steps = 0
        while self.step():
            steps += 1
            assert steps < MAX_STEPS, "the shards send messages without end"
        for shard in self.shards:
            invariants.check(shard.broker)

    def repeat_moves(self) -> None:
        """Send the moves again whose answers are lost, and lose no more."""
        self.loses_moves = self.loses_answers = False
        for shard in self.shards:
            shard.calling.clear()
        self.settle()

    def advance(self, seconds: float) -> None:
        """Advance the time; tick each broker when it has requested it."""
        until = self.now + round(seconds * SECOND)
        while True:
            due = [shard for shard in self.shards if shard.due is not None and shard.due <= until]
            if not due:
                break
            shard = min(due, key=lambda each: each.due or 0)
            self.now = max(self.now, shard.due or 0)
            shard.due = ticking.tick(shard.broker, self.now)
            self.settle()
        self.now = until

    def cut(self, one: int, other: int) -> None:
        """Lose the link between two shards, with all messages on it."""
        self.cuts.add(frozenset((one, other)))
        for pair in ((one, other), (other, one)):
            self.links.pop(pair, None)
        self.shards[one].lose(other)
        self.shards[other].lose(one)
        self.settle()

    def mend(self, one: int, other: int) -> None:
        """Link two shards again."""
        self.cuts.discard(frozenset((one, other)))
        self.shards[one].attach(other)
        self.shards[other].attach(one)
        self.settle()
