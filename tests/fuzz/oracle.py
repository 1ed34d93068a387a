"""The oracle of replies: parses every client's bytes again, simply, and runs the commands on the model of the core.

The model has no slices. So the oracle follows the replies: for each reply of a session it takes the next command of
that client, asks the model, and compares. If two things are due at the same instant and their order is not defined, the
model is given up. From then on, a reply must only be one that its command can get, and a body must be one that was put.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from greenstalk_server.core.tags.tags import Tags
from greenstalk_server.protocol import codec
from greenstalk_server.protocol import replies as wire
from greenstalk_server.protocol.arguments import MAX_PUT_LINE, TAGGED_LENGTH, BadFormat, ProtocolError
from greenstalk_server.protocol.costs import OUTPUT_SLICE
from greenstalk_server.protocol.session_state import Command
from greenstalk_server.protocol.verbs import VERBS
from tests.core.model import DEFAULT, SECOND, ModelClient, ModelJob
from tests.core.tag_model import TagJob, TagModel

CRLF: Final = b"\r\n"
LONGEST: Final = 222
"""Bytes of a line without its end."""

LONGEST_BY_VERB: Final = {verb.name: verb.max_line - 2 for verb in VERBS}
"""Bytes of a line without its end, by verb; a put may have a longer line than LONGEST only if it has tags."""

TAG: Final = re.compile(rb"(?:idp|grp|aft|con):")

MODELLED: Final = 300
"""Maximum number of jobs: the model looks at all of them for each command. A kick of more would be done in slices."""

LEGAL: Final = {
    b"put": (b"INSERTED", b"DRAINING", b"OUT_OF_MEMORY"),
    b"put-in-tube": (b"INSERTED", b"DRAINING", b"OUT_OF_MEMORY"),
    b"reserve": (b"RESERVED", b"TIMED_OUT", b"DEADLINE_SOON"),
    b"reserve-with-timeout": (b"RESERVED", b"TIMED_OUT", b"DEADLINE_SOON"),
    b"reserve-job": (b"RESERVED", b"NOT_FOUND"),
    b"delete": (b"DELETED", b"NOT_FOUND"),
    b"release": (b"RELEASED", b"NOT_FOUND"),
    b"bury": (b"BURIED", b"NOT_FOUND"),
    b"touch": (b"TOUCHED", b"NOT_FOUND"),
    b"kick": (b"KICKED",),
    b"kick-job": (b"KICKED", b"NOT_FOUND"),
    b"peek": (b"FOUND", b"NOT_FOUND"),
    b"peek-ready": (b"FOUND", b"NOT_FOUND"),
    b"peek-delayed": (b"FOUND", b"NOT_FOUND"),
    b"peek-buried": (b"FOUND", b"NOT_FOUND"),
    b"use": (b"USING",),
    b"watch": (b"WATCHING",),
    b"ignore": (b"WATCHING", b"NOT_IGNORED"),
    b"pause-tube": (b"PAUSED", b"NOT_FOUND", b"BAD_FORMAT"),
    b"stats": (b"OK",),
    b"stats-tube": (b"OK", b"NOT_FOUND"),
    b"stats-job": (b"OK", b"NOT_FOUND"),
    b"stats-group": (b"OK", b"NOT_FOUND"),
    b"list-tubes": (b"OK",),
    b"list-tube-used": (b"USING",),
    b"list-tubes-watched": (b"OK",),
    b"reserve-batch": (b"RESERVED_BATCH", b"DEADLINE_SOON"),
    b"delete-batch": (b"DELETED_BATCH",),
    b"touch-all": (b"TOUCHED_ALL",),
    b"flush-tube": (b"FLUSHED", b"NOT_FOUND"),
    b"flush-buried": (b"FLUSHED", b"NOT_FOUND"),
    b"truncate": (b"TRUNCATED", b"NOT_FOUND"),
    b"peek-reserved": (b"FOUND", b"NOT_FOUND"),
    b"reprioritize": (b"REPRIORITIZED", b"NOT_FOUND", b"ALREADY_RESERVED"),
    b"wait": (b"DELETED", b"BURIED", b"TIMED_OUT", b"NOT_FOUND"),
    b"meta": (b"META",),
    b"drain": (b"UNKNOWN_COMMAND",),
    b"undrain": (b"UNKNOWN_COMMAND",),
    b"reserve-mode": (b"USING",),
    b"stats-mode": (b"USING",),
}
"""The words with which the reply of each verb may begin; a verb that is missing here may have any reply."""

WITH_DATA: Final = re.compile(rb"(?:RESERVED [0-9]+|FOUND [0-9]+|OK) ([0-9]+)((?: [^ \r]+)*)\r\n")
BATCH: Final = re.compile(rb"RESERVED_BATCH ([0-9]+)\r\n")
WAITS: Final = (b"reserve", b"reserve-with-timeout", b"reserve-batch", b"wait")
PEEKS: Final = (b"peek", b"peek-ready", b"peek-delayed", b"peek-buried", b"peek-reserved")
PARKING: Final = (*WAITS, b"reserve-job", *PEEKS)
"""Verbs that may have to wait. A verb that is not in WAITS waits only for a body on disk, and only without a model."""

WORKS: Final = (b"kick", b"delete-batch", b"touch-all", b"flush-tube", b"flush-buried", b"truncate", b"peek-reserved")
"""Verbs that may take several slices."""


class Put:
    """A complete put; *refusal* is the reply that it gets whatever the queue contains, or empty."""

    def __init__(self, command: Command, body: bytes, refusal: bytes) -> None:
        self.command = command
        self.body = body
        self.refusal = refusal


class Reading:
    """One client's bytes, parsed into commands by simple and slow code."""

    def __init__(self, max_job_size: int) -> None:
        self._max_job_size = max_job_size
        self._commands = self._cut()
        self._next: Command | Put | bytes | None = None
        self._data = b""
        self.has_quit = False

    def feed(self, data: bytes) -> None:
        self._data += data

    def peek(self) -> Command | Put | bytes | None:
        """Return the next command, a put with its body, or the error in its place; None if it is not complete."""
        if self._next is None and not self.has_quit:
            self._next = next(self._commands)
        return self._next

    def take(self) -> Command | Put | bytes | None:
        taken = self.peek()
        self._next = None
        return taken

    def _cut(self) -> Iterator[Command | Put | bytes | None]:
        while True:
            end = self._data.find(CRLF)
            if end < 0:
                yield None
                continue
            line, self._data = self._data[:end], self._data[end + 2 :]
            verb, space, _ = line.partition(b" ")
            try:
                if len(line) > (LONGEST_BY_VERB.get(verb, LONGEST) if space else LONGEST):
                    raise BadFormat
                parsed, *rest = codec.parse(line)
            except ProtocolError as error:
                yield error.reply
                if space and verb in (b"put", b"put-in-tube"):
                    yield from self._drop_body(verb, line)
                continue
            command = (parsed.name, *rest)
            if parsed.handle is None:
                yield from self._cut_put(command)
            else:
                self.has_quit = parsed.name == b"quit"
                yield command

    def _cut_put(self, command: Command) -> Iterator[Command | Put | bytes | None]:
        size, is_well_formed = command[4:6]
        is_too_big = size > self._max_job_size
        if not (is_well_formed or is_too_big):
            yield b"BAD_FORMAT\r\n"
            return
        while len(self._data) < size + 2:
            yield None
        body, end, self._data = self._data[:size], self._data[size : size + 2], self._data[size + 2 :]
        is_unterminated = end != CRLF and not is_too_big
        self.has_quit |= is_unterminated
        refusal = b"JOB_TOO_BIG\r\n" if is_too_big else b"EXPECTED_CRLF\r\n" if is_unterminated else b""
        yield Put(command, body, refusal)

    def _drop_body(self, verb: bytes, line: bytes) -> Iterator[None]:
        """Drop the body of the refused put *line*, if its size can be read and it is an extension."""
        at = 4 if verb == b"put" else 5
        words = re.split(rb" +", line[:MAX_PUT_LINE])
        is_cut = len(line) + 2 > MAX_PUT_LINE
        digits = re.match(rb"[0-9]+", words[at]) if len(words) > at + is_cut else None
        if verb == b"put":
            has_body = digits is not None and any(TAG.match(word) for word in words[at + 1 :])
        else:
            has_body = digits is not None and digits[0] == words[at]
        if digits is not None and has_body and int(digits[0]) < 2**32:
            size = int(digits[0]) + 2
            while len(self._data) < size:
                yield None
            self._data = self._data[size:]
        elif verb == b"put-in-tube" and is_cut:
            self.has_quit = True
            yield None


class FuzzModel(TagModel):
    """The model of jobs with tags. After undefined behaviour of the broker it sets `is_abandoned`, and continues."""

    def need(self, condition: bool) -> None:
        self.is_abandoned |= not condition


class Oracle:
    """All clients, by a number that the caller chooses; `model` is None once given up.

    `bodies` has the bodies of all jobs, past and present, and `former` those of edited jobs: a client that got a job
    and reads slowly receives the body of that time.
    """

    def __init__(self, now: int, max_job_size: int) -> None:
        self._model: FuzzModel | None = FuzzModel(now)
        self.is_draining = False
        self.bodies: dict[int, bytes] = {}
        self.former: dict[int, list[bytes]] = {}
        self._max_job_size = max_job_size
        self._readings: dict[int, Reading] = {}
        self._has_eof: set[int] = set()
        self._parked: set[int] = set()
        self._meta: dict[int, int] = {}  # number of meta values that follow the size in each client's replies
        self._extended: set[int] = set()  # clients that have asked for the extended keys of stats

    @property
    def model(self) -> FuzzModel | None:
        return self._model if self._model is None or not self._model.is_abandoned else None

    def give_up(self) -> None:
        """Stop using the model."""
        self._model = None

    def connect(self, number: int) -> None:
        self._readings[number] = Reading(self._max_job_size)
        if self.model is not None:
            self.model.connect(number)

    def disconnect(self, number: int) -> None:
        del self._readings[number]
        self._parked.discard(number)
        if self.model is not None:
            self.model.disconnect(number)

    def receive(self, number: int, data: bytes) -> None:
        self._readings[number].feed(data)

    def receive_eof(self, number: int) -> None:
        self._has_eof.add(number)
        if self.model is not None and number in {*self.model.waiting, *self.model.job_waits}:
            self.model.cancel_wait(number)
            self.model.clients[number].ended.append("TIMED_OUT")

    def edited(self, id: int, body: bytes) -> None:
        self.former.setdefault(id, []).append(self.bodies[id])
        self.bodies[id] = body

    def answered(self, number: int, out: bytes) -> int:
        """Check that *out* has the replies to the client's next commands; return their number."""
        count = 0
        for reply in replies(out):
            command = self._readings[number].take()
            assert command is not None, f"a reply to nothing: {reply[:80]!r}"
            self._check(number, command, reply)
            count += 1
        return count

    def rested(self, number: int, is_parked: bool, has_more: bool, is_closing: bool) -> None:
        """Check that a client without further commands has all replies, and that a waiting client has reserved."""
        command = self._readings[number].peek()
        if is_closing:
            assert not self.model or number not in self.model.waiting
        elif has_more:
            if isinstance(command, tuple) and command[0] in WORKS:
                self.give_up()  # the command may be half done
        elif not is_parked:
            assert command is None, f"no reply to {command!r}"
        elif number not in self._parked:
            assert isinstance(command, tuple) and command[0] in PARKING, f"parked by {command!r}"
            self._parked.add(number)
            if self.model is not None and command[0] == b"wait":
                assert self.model.wait_for_job(number, command[1], self._timeout(number, command)) == "WAITING"
            elif self.model is not None:
                assert self.model.reserve(number, self._timeout(number, command)) == "WAITING"

    def _check(self, number: int, command: Command | Put | bytes, reply: bytes) -> None:
        if isinstance(command, bytes):
            assert reply == command
        elif isinstance(command, Put):
            self._check_put(number, command, reply)
        else:
            reply = self._without_meta(number, reply)
            self._check_legal(command, reply)
            if command[0] == b"meta":
                self._meta[number] = len(command[1])
            if self.model is not None:
                expected = self._expected(number, command, reply)
                is_right = self.model is None or reply == expected
                assert is_right, f"{command!r} got {reply[:300]!r}, and should {expected[:300]!r}"
            self._parked.discard(number)

    def _check_put(self, number: int, put: Put, reply: bytes) -> None:
        if put.refusal:
            assert reply == put.refusal
            return
        self._check_legal(put.command, reply)
        assert (reply == wire.DRAINING) == self.is_draining
        if reply.startswith(b"INSERTED "):
            tags = put.command[7] if len(put.command) == TAGGED_LENGTH else Tags()
            expected = self._put_in_model(number, put.command, tags, int(reply.split()[1]))
            if len(reply.split()) > 2:
                assert tags.idempotency_key
                assert int(reply.split()[1]) in self.bodies, "a duplicate of a job that was never put"
            else:
                id = int(reply.split()[1])
                assert id not in self.bodies, "an id was given twice"
                self.bodies[id] = put.body
            assert self.model is None or reply == expected, f"{put.command!r} got {reply!r}, and should {expected!r}"
            if self.model is not None and len(self.model.jobs) > MODELLED:
                self.give_up()

    def _put_in_model(self, number: int, command: Command, tags: Tags, id: int) -> bytes:
        """Put the job *id*, if it is not a duplicate, in the model; return the expected reply."""
        if self.model is None:
            return b""
        pri, delay, ttr = command[1:4]
        tube = command[6].decode() if len(command) > 6 else ""
        if not tags.packed():
            self.model.put(number, id, pri, delay, ttr, tube)
            return b"INSERTED %d\r\n" % id
        job = TagJob(id, tube or self.model.clients[number].used, pri, delay, ttr)
        job.key, job.key_ttl = tags.idempotency_key.decode(), tags.idempotency_ttl
        job.group, job.after = tags.group.decode(), tags.after.decode()
        job.slot, job.limit = tags.concurrency_key.decode(), tags.concurrency_limit
        outcome = self.model.put_tagged(number, job)
        words = outcome if isinstance(outcome, tuple) else (outcome,)
        return f"INSERTED {' '.join(map(str, words)).upper()}\r\n".encode()

    def _check_legal(self, command: Command, reply: bytes) -> None:
        first, *jobs = _parts(reply)
        word = first.split(None, 1)[0]
        assert word in LEGAL.get(command[0], (word,)), f"{command!r} got {reply[:80]!r}"
        for part in (first, *jobs):
            words = part.split(None, 3)
            assert not jobs or part is first or words[0] == b"RESERVED"
            if words[0] in (b"RESERVED", b"FOUND"):
                id = int(words[1])
                bodies = [self.bodies[id], *self.former.get(id, ())]
                assert part in [b"%b %d %d\r\n%b\r\n" % (words[0], id, len(body), body) for body in bodies]

    def _without_meta(self, number: int, reply: bytes) -> bytes:
        """Return *reply* without the values that the client has asked for with meta."""
        parts = []
        for part in _parts(reply):
            match = WITH_DATA.match(part)
            if match is None or part.startswith(b"OK"):
                parts.append(part)
                continue
            assert len(match[2].split()) == self._meta.get(number, 0), part[:300]
            parts.append(part[: match.start(2)] + part[match.end(2) :])
        return b"".join(parts)

    # The model's replies

    def _expected(self, number: int, command: Command, reply: bytes) -> bytes:
        model = self._model
        assert model is not None
        verb = command[0].decode().replace("-", "_")
        handler: Callable[[FuzzModel, int, Command, bytes], bytes] | None = getattr(self, f"_on_{verb}", None)
        return reply if handler is None else handler(model, number, command, reply)

    def _found(self, word: bytes, id: int) -> bytes:
        return b"%b %d %d\r\n%b\r\n" % (word, id, len(self.bodies[id]), self.bodies[id])

    def _timeout(self, number: int, command: Command) -> int | None:
        if number in self._has_eof:
            return 0
        return command[-1] if len(command) > 1 else None

    def _on_reserve(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        if number in self._parked:
            ended = model.clients[number].ended
            assert len(ended) == 1, f"{reply!r} too early"
            outcome = ended.pop()
        else:
            outcome = model.reserve(number, self._timeout(number, command))
        return outcome.encode() + CRLF if isinstance(outcome, str) else self._found(b"RESERVED", outcome)

    _on_reserve_with_timeout = _on_reserve

    def _on_reserve_batch(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        """A batch ends with the body that makes it longer than a slice."""
        found = self._on_reserve(model, number, command, reply)
        if not found.startswith(b"RESERVED"):
            return wire.reserved_batch(0) if found == wire.TIMED_OUT else found
        jobs = [found]
        size = len(self.bodies[int(found.split()[1])])
        while len(jobs) < command[1] and size <= OUTPUT_SLICE and model.next_for(model.clients[number]) is not None:
            id = model.reserve(number, 0)
            assert isinstance(id, int)
            jobs.append(self._found(b"RESERVED", id))
            size += len(self.bodies[id])
        return wire.reserved_batch(len(jobs)) + b"".join(jobs)

    def _on_delete_batch(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        deleted = sum([model.delete(number, id) for id in command[1]])
        return wire.deleted_batch(deleted, len(command[1]) - deleted)

    def _on_touch_all(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        held = [job.id for job in model.clients[number].reserved]
        return wire.counted(b"TOUCHED_ALL", sum([model.touch(number, id) for id in held]))

    def _on_flush_tube(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        states = STATES if command[0] == b"flush-tube" else ("buried",)
        tube = command[1].decode()
        jobs = [job.id for job in model.jobs.values() if job.tube == tube and job.state in states]
        has_keys = command[0] == b"flush-tube" and any(
            each == tube and until > model.now for (each, _), (_, until) in model.kept.items()
        )
        if tube not in model.tubes() and not has_keys:
            return wire.NOT_FOUND
        model.need_order_of_deletions()
        deleted = sum([model.delete_job(id, is_forced=True) for id in jobs])
        if command[0] == b"flush-tube":
            model.forget_keys(tube)
        return wire.counted(b"FLUSHED", deleted)

    _on_flush_buried = _on_flush_tube

    def _on_truncate(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        deleted = model.truncate(command[1].decode())
        if deleted is None:
            return wire.NOT_FOUND
        model.forget_keys(command[1].decode())
        return wire.counted(b"TRUNCATED", deleted)

    def _on_peek_reserved(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        return self._first(sorted(model.reserved(model.clients[number].used), key=lambda job: job.id))

    def _on_reprioritize(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        words = {"DONE": wire.REPRIORITIZED, "RESERVED": wire.ALREADY_RESERVED, "NOT_FOUND": wire.NOT_FOUND}
        return words[model.reprioritize(*command[1:])]

    def _on_wait(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        if number in self._parked:
            ended = model.clients[number].ended
            assert len(ended) == 1, f"{reply!r} too early"
            outcome = str(ended.pop())
        else:
            outcome = model.wait_for_job(number, command[1], self._timeout(number, command))
        id = b" %d" % command[1] if outcome in ("DELETED", "BURIED") else b""
        return outcome.encode() + id + CRLF

    def _on_meta(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        return wire.counted(b"META", len(command[1]))

    def _on_drain(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        """Only an access rule allows the command, and there are none."""
        return b"UNKNOWN_COMMAND\r\n"

    _on_undrain = _on_drain

    def _on_reserve_job(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        is_done = model.reserve_job(number, command[1])
        return self._found(b"RESERVED", command[1]) if is_done else wire.NOT_FOUND

    def _on_delete(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        return wire.DELETED if model.delete(number, command[1]) else wire.NOT_FOUND

    def _on_release(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        return wire.RELEASED if model.release(number, *command[1:]) else wire.NOT_FOUND

    def _on_bury(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        return wire.BURIED if model.bury(number, *command[1:]) else wire.NOT_FOUND

    def _on_touch(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        return wire.TOUCHED if model.touch(number, command[1]) else wire.NOT_FOUND

    def _on_kick(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        state = "buried" if model.buried(model.clients[number].used) else "delayed"
        return b"KICKED %d\r\n" % model.kick(number, state, command[1])

    def _on_kick_job(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        return wire.KICKED if model.kick_job(command[1]) else wire.NOT_FOUND

    def _on_peek(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        return self._first([model.jobs[command[1]]] if command[1] in model.jobs else [])

    def _on_peek_ready(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        tube = model.clients[number].used
        return self._first(model.runnable(tube) or model.ready(tube))

    def _on_peek_delayed(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        return self._first(model.delayed(model.clients[number].used))

    def _on_peek_buried(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        return self._first(model.buried(model.clients[number].used))

    def _first(self, jobs: list[ModelJob]) -> bytes:
        return self._found(b"FOUND", jobs[0].id) if jobs else wire.NOT_FOUND

    def _on_use(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        model.use(number, command[1].decode())
        return b"USING %b\r\n" % command[1]

    def _on_watch(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        return b"WATCHING %d\r\n" % model.watch(number, command[1].decode(), *command[2:])

    def _on_reserve_mode(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        model.clients[number].mode = command[1].decode()
        return b"USING %b\r\n" % command[1]

    def _on_stats_mode(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        self._extended.discard(number)
        if command[1] == b"extended":
            self._extended.add(number)
        return b"USING %b\r\n" % command[1]

    def _on_ignore(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        count = model.ignore(number, command[1].decode())
        return b"WATCHING %d\r\n" % count if count else wire.NOT_IGNORED

    def _on_pause_tube(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        _, name, delay, is_valid = command
        if not is_valid:
            return b"BAD_FORMAT\r\n"
        return wire.PAUSED if model.pause_tube(name.decode(), delay) else wire.NOT_FOUND

    def _on_list_tube_used(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        return b"USING %b\r\n" % model.clients[number].used.encode()

    def _on_list_tubes_watched(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        return _ok("---\n" + "".join([f"- {name}\n" for name in model.clients[number].watched]))

    def _on_list_tubes(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        lines = reply.decode().split("\n")[2:-2]
        assert sorted(lines) == sorted(f"- {name}" for name in model.tubes())
        return _ok("---\n" + "".join([f"{line}\n" for line in lines]))  # the order is not defined

    def _on_stats(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        jobs = model.jobs.values()
        facts = {f"current-jobs-{state}": sum(job.state == state for job in jobs) for state in STATES}
        clients: list[ModelClient] = list(model.clients.values())
        facts |= {"current-tubes": len(model.tubes()), "current-waiting": len(model.waiting)}
        facts |= {"current-connections": len(clients), "job-timeouts": model.job_timeouts}
        return _agreeing(reply, facts)

    def _on_stats_tube(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        name = command[1].decode()
        if name not in model.tubes():
            return wire.NOT_FOUND
        jobs = [job for job in model.jobs.values() if job.tube == name]
        facts = {f"current-jobs-{state}": sum(job.state == state for job in jobs) for state in STATES}
        facts["pause-time-left"] = model.seconds_to(model.paused.get(name, 0))
        return _agreeing(reply, facts)

    def _on_stats_job(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        job = model.jobs.get(command[1])
        if job is None:
            return wire.NOT_FOUND
        runs_out = job.state in ("reserved", "delayed")
        facts: dict[str, object] = {"id": job.id, "tube": job.tube, "state": job.state, "pri": job.pri}
        facts |= {"delay": job.delay // SECOND, "ttr": job.ttr // SECOND}
        facts |= {"time-left": model.seconds_to(job.deadline) if runs_out else 0}
        facts |= {name: getattr(job, name) for name in ("reserves", "timeouts", "releases", "buries", "kicks")}
        if isinstance(job, TagJob) and number in self._extended:
            tags: dict[str, object] = {"idempotency-key": job.key, "group": job.group, "after-group": job.after}
            tags |= {"concurrency-key": job.slot, "concurrency-limit": job.limit if job.slot else ""}
            tags |= {"idempotency-ttl": job.key_ttl // SECOND if job.key_ttl else ""}
            facts |= {name: value for name, value in tags.items() if value != ""}
        assert (b"\ntime-reserved: " in reply) == (number in self._extended)
        return _agreeing(reply, facts)

    def _on_stats_group(self, model: FuzzModel, number: int, command: Command, reply: bytes) -> bytes:
        name = command[1].decode()
        if name not in model.groups():
            return wire.NOT_FOUND
        states = [job.state for job in model.members(name)]
        facts: dict[str, object] = {"name": name, **{state: states.count(state) for state in STATES}}
        return _agreeing(reply, facts | {"waiting-jobs": len(model.awaiting(name))})


STATES: Final = ("ready", "reserved", "delayed", "buried")

assert DEFAULT == "default"


def replies(out: bytes) -> Iterator[bytes]:
    """Return the replies in *out*, all of which are complete."""
    parts = _parts(out)
    for part in parts:
        match = BATCH.match(part)
        yield part + b"".join([next(parts) for _ in range(int(match[1]))]) if match else part


def _parts(out: bytes) -> Iterator[bytes]:
    """Return the replies in *out*, and the jobs of a batch one by one."""
    at = 0
    while at < len(out):
        end = out.find(CRLF, at) + 2
        assert end > 1, f"a reply without an end: {out[at:][:80]!r}"
        if match := WITH_DATA.match(out, at):
            end = match.end() + int(match[1]) + 2
            assert out[end - 2 : end] == CRLF, f"data of another length: {out[at:][:80]!r}"
        yield out[at:end]
        at = end


def _ok(data: str) -> bytes:
    return b"OK %d\r\n%b\r\n" % (len(data), data.encode())


def _agreeing(reply: bytes, facts: Mapping[str, object]) -> bytes:
    """Return *reply* if it has *facts*; else the reply that was expected."""
    listed = dict(line.split(": ", 1) for line in reply.decode().split("\n") if ": " in line)
    wrong = {name: value for name, value in facts.items() if listed.get(name, "").strip('"') != str(value)}
    return repr(wrong).encode() if wrong else reply
