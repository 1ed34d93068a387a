"""Fuzz clients of one broker: a schedule of lines, chunks, ends, time, disconnects and an admin's changes, in bytes.

Sessions, the broker and, in some schedules, a journal on a disk that may fill up and fail are real. There are no
sockets, and time is simulated, so that a failure can be repeated. Checked:

- each reply is the one that the oracle expects, and each body the one that was put;
- the size of what one call returns, serves and keeps is bounded, whatever was sent;
- the broker's invariants hold after each step, and time always advances;
- when all clients have left, nothing of them is left; and a restart from the journal restores what it must.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random
from typing import Final

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import SECOND, STATE_NAMES, Job
from greenstalk_server.core.listener import BrokerListener
from greenstalk_server.core.operations import draining, editing, finishing, putting, ticking
from greenstalk_server.net.connection import RECEIVE_SIZE
from greenstalk_server.protocol import codec
from greenstalk_server.protocol.arguments import MAX_BATCH, MAX_BATCH_LINE
from greenstalk_server.protocol.costs import COMMAND_SLICE, OUTPUT_SLICE
from greenstalk_server.protocol.session import INPUT_LIMIT, Session
from greenstalk_server.protocol.verbs import VERBS
from tests.core.model import Tie
from tests.fuzz.oracle import Oracle
from tests.fuzz.source import Source
from tests.journal.disk import Chance, Disk, Fault, seeded
from tests.journal.workload import Bench
from tests.support import invariants
from tests.support.grammar import arguments
from tests.support.talk import buffered_bytes, stream_of
from tests.support.world import EDITS, START, make_broker

CLIENTS: Final = 4
SMALL_REPLY: Final = 230
"""Maximum bytes of a reply that does not count towards OUTPUT_SLICE."""

LONG_LINE: Final = 400
"""Maximum bytes of the first line of a job in a batch."""

MAX_SENT: Final = 300_000
"""Bytes of a whole run, so that no run takes long."""

CHECKED_UP_TO: Final = 150
"""Number of jobs from which on steps are not checked, since each check would take too long."""

LATEST: Final = START + 2**33 * SECOND
"""The latest time, two centuries ahead: the journal's 64 bits of nanoseconds still hold a delay of two more
centuries."""

MAX_TICKS: Final = 2000
"""Maximum ticks at one moment: far more than the number of events that can become due."""

# An input selects from these tuples by a byte modulo their length. After a change of a length, the inputs of
# tests/fuzz/corpus mean something else: let `make fuzz ARGS=--keep` find new ones.
IDS: Final = (
    b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8", b"9", b"10", b"300", b"9" * 19, b"18446744073709551615",
    b"18446744073709551616", b" 2", b"2 ", b"02", b"-1", b"x", b"",
)  # fmt: skip
NAMES: Final = (b"default", b"a", b"b", b"a" * 200, b"a" * 201, b"-a", b"+/;.$_()", b"a b", b"", b"\xff", b"a\0")
PRIS: Final = (b"0", b"1", b"1023", b"1024", b"4294967295", b"4294967296", b"-1")
DELAYS: Final = (b"0", b"0", b"0", b"1", b"3", b"4294967295", b"x")
TTRS: Final = (b"1", b"2", b"5", b"60", b"0", b"4294967295", b"")
SIZES: Final = (0, 1, 2, 5, 19, 20, 21, 300, 7000, 65535, 65536, 2**32 - 1, 2**32)
BOUNDS: Final = (b"0", b"1", b"3", b"255", b"256", b"257", b"4294967295", b"-1", b"+2x", b"18446744073709551616")
TIMEOUTS: Final = (b"0", b"1", b"2", b"4", b"2147483647", b"2147483648", b"-1", b"1x")
SECONDS: Final = (0.0, 0.000001, 0.5, 1.0, 1.5, 2.0, 4.0, 40.0, 1000.0, 2.0**32)
COUNTS: Final = (2, 3, 16, 250, 300, 1001, 2500)

PUBLISHED: Final = tuple(verb for verb in VERBS if verb.handle is not None and not verb.is_extension)
EXTENSIONS: Final = tuple(verb for verb in VERBS if verb.handle is not None and verb.is_extension)
VALUES: Final = {
    "id": IDS,
    "tube": NAMES,
    "key": (b"g", b"h", b"a:"),
    "pri": PRIS,
    "delay": (*DELAYS, b"0.5"),
    "bound": BOUNDS,
    "timeout": (*TIMEOUTS, b"0.25", b"0.5"),
    "n": (b"1", b"2", b"3", b"1000", b"1001"),
    "weight": (b"1", b"2", b"9", b"0"),
    "field": (b"tube", b"pri", b"age", b"ttr", b"reserves", b"timeouts", b"releases", b"attempts", b"pri", b"x"),
}
"""Values of the arguments of `Verb.arguments`. A name that is missing here is a value itself."""

ODD: Final = (
    b"", b"reserve ", b"statsx", b"quit now", b"\0", b"a" * 222, b"a" * 223, b"a" * 500, b"pause-tubedefault 0",
    b"delete-batch 1 2 3 4 5 6 7 8 9 10", b"delete-batch" + b" 9" * 500, b"delete-batch" + b" 9" * 1001,
    b"meta tube pri age ttr reserves timeouts releases attempts", b"put-in-tube -a 0 0 9 6\r\nquit\r\n",
    b"put-in-tube a x 0 9 1\r\nx", b"put-in-tube a 0 0 9 300\r\nx", b"put 1 0.25 1.5 1\r\nx",
    b"put-in-tube " + b"n" * 1200 + b" 0 0 9 6\r\nquit\r\n",
)  # fmt: skip

TAGS: Final = (
    b"idp:a", b"idp:a:2", b"idp:b:0.5", b"idp:" + b"k" * 200, b"grp:g", b"grp:h", b"aft:g", b"aft:h", b"con:c",
    b"con:c:2", b"con:d:1", b"con:c:4294967295", b"", b"idp:", b"idp:a:x", b"idp:-" + b"a" * 1200, b"grp:g:1",
    b"con:c:0", b"aft:\0", b"x", b"idp:a:4294967295", b"grp:" + b"g" * 200,
)  # fmt: skip

_KNOWN: Final = dict(codec.known)


def one(data: bytes) -> None:
    """Run the schedule *data*; raise AssertionError, or an exception of the server, if there is an error."""
    codec.known.clear()  # the cache outlives a run, and two runs of one schedule must be the same
    codec.known.update(_KNOWN)
    source = Source(data)
    Wire(source).play(source)


class Queue(Bench):
    """A broker with its journal, used by the clients of the schedule only."""

    def __init__(self, disk: Disk, random: Random, *, is_memory_short: bool) -> None:
        super().__init__(disk, random, is_memory_short=is_memory_short)
        self.broker.retained_keys.table = self.journal.keys  # compaction copies the keys of this table

    def run_commands(self, commands: int) -> None:
        """Do nothing: the schedule has the clients, while a Bench would run its own here."""


class Talker:
    """One client; `number` is unique among all clients of a run."""

    def __init__(self, broker: Broker, number: int) -> None:
        self.number = number
        self.outbox = b""
        self.line = b""
        self.has_ended = False
        self.session = Session(broker, self._on_wake)

    def _on_wake(self) -> None:
        assert self.session.is_woken


class Wire(BrokerListener):
    """One run. Its first byte selects the kind of run: see `__init__`."""

    def __init__(self, source: Source) -> None:
        kind = source.byte()
        self.is_lazy = bool(kind & 1)  # unfinished and woken sessions wait for the schedule
        self.is_late = bool(kind & 2)  # time passes, and ticks wait for the schedule
        self.bench = Queue(Disk(), seeded(kind), is_memory_short=bool(kind & 16)) if kind & 4 else None
        self.broker = self.bench.broker if self.bench is not None else make_broker()
        self.broker.max_job_size = 20 if kind & 8 else 65535
        self.broker.subscribe(self)
        self.now = START
        self.due: int | None = None
        self.sent = 0
        self.connected = 0
        self.fetched: list[tuple[Job, Callable[[bytes | None], None]]] = []
        if self.broker.bodies is not None:
            self.broker.bodies.fetch = lambda job, deliver: self.fetched.append((job, deliver))
        self.oracle = Oracle(START, self.broker.max_job_size)
        if self.is_late or self.bench is not None:
            self.oracle.give_up()  # the model knows neither late ticks nor a disk
        self.talkers = [self._connect() for _ in range(CLIENTS)]

    def play(self, source: Source) -> None:
        while source:
            self._step(source)
            if not self.is_lazy:
                self._resume_all()
            if self.bench is not None:
                self._commit()
            if len(self.broker.jobs) < CHECKED_UP_TO:
                invariants.check(self.broker)
        self._finish()

    # Steps

    def _step(self, source: Source) -> None:
        op = source.byte()
        slot, kind = op >> 4 & 3, op & 15
        talker = self.talkers[slot]
        if kind < 6:
            self._append_line(talker, source, is_sent=kind < 4)
        elif kind == 6:
            self._append(talker, source.take(source.byte()))
        elif kind == 7:
            self._send(talker, source.byte())
        elif kind == 8:
            self._append(talker, talker.line, source.pick(COUNTS))
        elif kind in (9, 10):
            self._advance(round(source.pick(SECONDS) * SECOND))
        elif kind == 11:
            self._end(talker)
        elif kind == 12:
            self._reconnect(slot)
        elif kind == 13:
            self._administer(source)
        elif kind == 14:
            self._break_disk(source)
        else:
            self._read_bodies()
            self._resume(talker)
            self._tick()

    def _append_line(self, talker: Talker, source: Source, is_sent: bool) -> None:
        talker.line = line(source)
        self._append(talker, talker.line)
        if is_sent:
            self._send(talker, 255)

    def _append(self, talker: Talker, data: bytes, count: int = 1) -> None:
        self.sent += len(data) * count
        if self.sent <= MAX_SENT:
            talker.outbox += data * count

    def _send(self, talker: Talker, size: int) -> None:
        """Deliver *size* bytes of the outbox, 255 for all. As a connection does, serve it before reading more."""
        size = min(size if size < 255 else RECEIVE_SIZE, len(talker.outbox))
        self._resume(talker)
        while talker.session.has_more:
            self._resume(talker)
        session = talker.session
        if not size or session.is_closing or talker.has_ended or not session.wants_input:
            return
        data, talker.outbox = talker.outbox[:size], talker.outbox[size:]
        self.oracle.receive(talker.number, data)
        self._took(talker, session.receive(data, self.now))

    def _end(self, talker: Talker) -> None:
        """End the client's data."""
        self._resume(talker)
        while talker.session.has_more:
            self._resume(talker)
        if talker.session.is_closing or talker.has_ended or not talker.session.wants_input:
            return
        talker.has_ended = True
        self.oracle.receive_eof(talker.number)
        self._took(talker, talker.session.receive_eof(self.now))

    def _resume(self, talker: Talker) -> None:
        session = talker.session
        if session.is_woken or session.has_more:
            self._took(talker, session.resume(self.now))

    def _resume_all(self) -> None:
        self._read_bodies()
        while busy := [each for each in self.talkers if each.session.is_woken or each.session.has_more]:
            for talker in busy:
                self._resume(talker)
            self._read_bodies()

    def _reconnect(self, slot: int) -> None:
        """Disconnect a client in any state, and connect another one."""
        self._disconnect(self.talkers[slot])
        self.talkers[slot] = self._connect()

    def _connect(self) -> Talker:
        self.connected += 1
        talker = Talker(self.broker, self.connected)
        self.oracle.connect(talker.number)
        return talker

    def _disconnect(self, talker: Talker) -> None:
        talker.session.close(self.now)
        self.oracle.disconnect(talker.number)

    def _took(self, talker: Talker, out: bytes) -> None:
        """Check what a call has returned, and what the session keeps."""
        session = talker.session
        largest = min(max(self.broker.max_job_size, 300 * (len(self.broker.tubes) + 20), 20_000), OUTPUT_SLICE + 100)
        assert len(out) <= OUTPUT_SLICE + largest + SMALL_REPLY * COMMAND_SLICE + LONG_LINE * MAX_BATCH
        out += b"".join(stream_of(session))
        assert self.oracle.answered(talker.number, out) <= COMMAND_SLICE + 1
        self.oracle.rested(talker.number, session.is_waiting, session.has_more, session.is_closing)
        if session.is_waiting or session.has_more or session.is_closing:
            assert buffered_bytes(session) <= INPUT_LIMIT + RECEIVE_SIZE
        else:
            assert buffered_bytes(session) < MAX_BATCH_LINE + 2 + self.broker.max_job_size

    # Time

    def _advance(self, nanoseconds: int) -> None:
        until = min(self.now + nanoseconds, LATEST)
        if self.oracle.model is not None:
            try:
                self.oracle.model.advance_to(until)
            except Tie:
                self.oracle.give_up()
        while not self.is_late and self.due is not None and self.due <= until:
            self.now = max(self.now, self.due)
            self._tick()
        self.now = until

    def _tick(self) -> None:
        """Tick until nothing is due. In timed runs the schedule says when to tick."""
        for _ in range(MAX_TICKS):
            self.due = ticking.tick(self.broker, self.now)
            if self.due is None or self.due > self.now:
                return
        raise AssertionError("time stands still")

    def on_earlier_deadline(self, when: int) -> None:
        if self.due is None or when < self.due:
            self.due = when

    # The admin and the disk

    def _administer(self, source: Source) -> None:
        """Make a change as the dashboard does."""
        change, is_forced, id = source.byte() % 7, bool(source.byte() & 1), source.byte() % 12
        broker, model, now = self.broker, self.oracle.model, self.now
        job = broker.jobs.get(id)
        if change == 0:
            done = finishing.delete_job(broker, id, now, is_forced)
            assert model is None or model.delete_job(id, is_forced) == done
        elif change == 1:
            done = finishing.bury_job(broker, id, now, is_forced)
            assert model is None or model.bury_job(id, is_forced) == done
        elif change == 2:
            done = finishing.release_job(broker, id, now)
            assert model is None or model.release_job(id) == done
        elif change == 3:
            self._edit(source, id, is_forced)
        elif change == 4 and is_forced and source.byte() == 255:
            draining.drain(broker)
            self.oracle.is_draining = True
        elif change == 5 and job is not None:
            self.oracle.give_up()
            finishing.clear(
                broker, job.tube, job.state, source.byte(), broker.next_id, now
            ) if job.holder is None else None
        elif change == 6:
            self._put_by_admin(source)

    def _edit(self, source: Source, id: int, is_forced: bool) -> None:
        tube, pri = source.pick((None, b"default", b"a", b"elsewhere")), source.pick((None, 0, 1024))
        delay, ttr = source.pick((None, 0, 3 * SECOND)), source.pick((None, 2 * SECOND))
        job = self.broker.jobs.get(id)
        if job is not None and job.body is None:
            return  # the body would be read back first
        body = source.pick((None, None, b"edited", b"edited" * 1000)) if job is not None and not job.holder else None
        done = editing.edit_job(
            self.broker, id, self.now, tube=tube, pri=pri, delay=delay, ttr=ttr, body=body, is_forced=is_forced
        )
        if EDITS[done] == "DONE" and body is not None:
            self.oracle.edited(id, body)
            if any(talker.session.is_woken for talker in self.talkers):
                self.oracle.give_up()  # the broker has no bodies: a client may still get the former one
        if self.oracle.model is not None:
            named = tube.decode() if tube is not None else None
            assert self.oracle.model.edit_job(id, named, pri, delay, ttr, is_forced) == EDITS[done]

    def _put_by_admin(self, source: Source) -> None:
        self.oracle.give_up()
        body = b"by an admin"
        delay = source.pick((0, SECOND))
        id = putting.put_into(self.broker, source.pick((b"default", b"elsewhere")), 5, delay, SECOND, body, self.now)
        if id > 0:  # otherwise it is a Refusal
            assert id not in self.oracle.bodies
            self.oracle.bodies[id] = body

    # The disk

    def _commit(self) -> None:
        """Commit as the committer does between two batches."""
        assert self.bench is not None
        self.bench.now = self.now
        if self.bench.commit():
            self.bench.compact()
            self.bench.run_maintenance()

    def _read_bodies(self) -> None:
        """Load as the body loader does: read back the bodies for which sessions wait."""
        if not self.fetched:
            return
        assert self.bench is not None
        fetched, self.fetched = self.fetched, []
        found: dict[int, bytes] = {}
        jobs = [here for job, _ in fetched if (here := self.broker.jobs.get(job.id)) is not None]
        found = {job.id: job.body for job in jobs if job.body is not None}
        read = self.bench.journal.read(jobs)
        read.run()
        assert not read.errors
        self.bench.journal.complete_read(read, ())
        for job, deliver in fetched:
            deliver(found.get(job.id, read.bodies.get(job.id)))

    def _break_disk(self, source: Source) -> None:
        if self.bench is None:
            return
        disk, what = self.bench.disk, source.byte()
        if what & 1:
            disk.capacity = disk.used + 100 * (what >> 1)
        elif what & 2:
            disk.capacity = 2**62
        else:
            disk.before = Fault(1 + (what >> 3), errno.EIO, is_lasting=False, calls=("write", "sync"))

    def _finish(self) -> None:
        """Disconnect all clients. The journal has all changes, and nothing else of the clients is left."""
        self._resume_all()
        for talker in self.talkers:
            self._disconnect(talker)
        self._tick()
        invariants.check(self.broker)
        bodies = {id: job.body for id, job in self.broker.jobs.items() if job.body is not None}
        assert all(self.oracle.bodies[id] == body for id, body in bodies.items())
        if self.bench is None:
            assert not self.broker.clients and not self.broker.waiting_count
            needed = {job.tube.name for job in self.broker.jobs.values()} | {b"default"}
            paused = {name for name, tube in self.broker.tubes.items() if tube.paused_until}
            assert set(self.broker.tubes) == needed | paused
            if self.oracle.model is not None:
                model = {(job.id, job.state, job.tube, job.pri) for job in self.oracle.model.jobs.values()}
                jobs = self.broker.jobs.values()
                assert model == {(job.id, STATE_NAMES[job.state], job.tube.name.decode(), job.pri) for job in jobs}
            return
        self.bench.disk.before = lambda call: None
        self._commit()
        after = self.bench.disk.crash(Chance(seeded(1), 0.5))
        again = Bench(after, seeded(2), self.now)
        self.bench.history.check(again.broker, self.bench.safe, self.now)


def line(source: Source) -> bytes:
    """Return a complete and usually well-formed command."""
    kind = source.byte()
    if kind < 80:
        return _put(source)
    if kind < 90:
        return source.pick(ODD) + b"\r\n"
    verb = source.pick(PUBLISHED if kind < 210 else EXTENSIONS)
    words = [verb.name]
    for each in arguments(verb):
        values = VALUES.get(each.name) or tuple(each.name.encode().split(b"|"))
        count = source.byte() % 4 if each.is_optional or each.is_repeated else 1
        words += [source.pick(values) for _ in range(count if each.is_repeated else min(count, 1))]
    return b" ".join(words) + b"\r\n"


def _put(source: Source) -> bytes:
    shape, size = source.byte(), source.pick(SIZES)
    verb = b"put-in-tube " + source.pick(NAMES) if shape % 8 == 7 else b"put"
    head = b"%b %b %b %b %d" % (verb, source.pick(PRIS), source.pick(DELAYS), source.pick(TTRS), size)
    if shape < 8:
        return head + b" x\r\n"
    body = bytes([shape]) * min(size, 70_000)
    if shape >= 144:
        head += b"".join([b" " + source.pick(TAGS) for _ in range(1 + shape % 3)])
    if shape < 16:
        return head + b"\r\n" + body + b"xy"
    if shape < 24:
        return head + b"\r\n" + body[: size // 2]
    return head + b"\r\n" + body + b"\r\n"
