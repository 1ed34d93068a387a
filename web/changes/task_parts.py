"""Tasks of the whole queue: a part on each shard, and one task that adds up their progress.

The part of a shard is a task there, which no list shows. It runs with the rights of the principal who started the whole
task. If a shard does not answer, the parts of the others continue, and the whole task fails at the end with the reason.
A part that nobody has asked for its progress for MAX_UNASKED seconds ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import gevent
from msgspec import Struct, convert
from werkzeug.exceptions import HTTPException

from greenstalk_server.web.changes.tasks import DONE, RUNNING, Progress, Task, TaskFailed, Tasks
from greenstalk_server.web.framework.shards import Facts, Shards, context_facts

REPORT_INTERVAL: Final = 0.25
"""Seconds that a part waits for its end before it reports its progress so far."""

MAX_ENDING: Final = 15.0
"""Seconds that a whole task waits for the ends of its parts after it was cancelled."""

PROGRESS: Final = "part.progress"
"""Question to a shard: the progress of its part."""


class Progressed(Struct):
    """The progress of a part. *result* is what its kind says."""

    id: str
    state: Progress
    total: int
    scanned: int
    matched: int
    done: int
    skipped: int
    message: str
    change_number: int | None
    result: Any


@dataclass(slots=True)
class Part:
    """The part of *shard*.

    progress    None until the part has started.
    failure     why the shard did not answer; empty if it did.
    """

    shard: int
    progress: Progressed | None = None
    failure: str = ""

    @property
    def has_failed(self) -> bool:
        """Whether the part has not been done to its end."""
        return self.progress is None or self.progress.state != DONE or bool(self.failure)

    @property
    def message(self) -> str:
        """The message of the part, with its shard; empty if it has none."""
        found = self.failure or (self.progress.message if self.progress is not None else "")
        if self.has_failed and not found:
            found = "The dashboard failed. The server's log has the details."
        return f"Shard {self.shard}: {found}" if found else ""


Results = Mapping[int, Any]
"""The results of the parts so far, by shard."""


@dataclass(slots=True)
class _Kind:
    start: Callable[..., Task]
    result: Callable[[Task], Any]
    is_kept: bool


@dataclass(slots=True)
class _Whole:
    """A whole task while it runs."""

    task: Task
    kind: str
    facts: Facts
    parts: list[Part] = field(default_factory=list)
    is_stopping: bool = False


class TaskParts:
    """Starts the parts of this shard, and the whole tasks whose parts are on all shards."""

    def __init__(self, tasks: Tasks, shards: Shards) -> None:
        self._tasks: Tasks = tasks
        self._shards: Shards = shards
        self._kinds: dict[str, _Kind] = {}
        shards.answer(PROGRESS, self._progress)

    def register(
        self, kind: str, start: Callable[..., Task], result: Callable[[Task], Any], *, is_kept: bool = False
    ) -> None:
        """Register a kind of part.

        start       starts the part of this shard with `is_part`; gets the arguments that `work` has for it.
        result      returns the result so far, which can be JSON.
        is_kept     keep the part when its end has been reported.
        """
        self._kinds[kind] = _Kind(start, result, is_kept)
        self._shards.answer(f"part.{kind}", partial(self._start, kind))

    def spans(self, tube: str) -> bool:
        """Return whether work on *tube*, or on all tubes if it is empty, concerns several shards."""
        return not tube and bool(self._shards.others)

    def work(
        self, kind: str, arguments: Mapping[int, Mapping[str, Any]], merge: Callable[[Results], None]
    ) -> Callable[[Task], None]:
        """Return the work of a whole task for the current principal: parts of *kind*, each with its *arguments*.

        *merge* gets the results several times while they arrive.
        """
        facts = context_facts()
        return lambda task: self._work(_Whole(task, kind, facts), arguments, merge)

    def everywhere(self, **arguments: Any) -> dict[int, Mapping[str, Any]]:
        """Return the same *arguments* for every shard."""
        return dict.fromkeys(self._shards.all, arguments)

    # This shard

    def _start(self, kind: str, **arguments: Any) -> Progressed:
        return self._reported(kind, self._kinds[kind].start(**arguments))

    def _progress(self, kind: str, id: str, is_stopping: bool) -> Progressed:
        task = self._tasks.part(id)
        if is_stopping:
            task.cancel()
        return self._reported(kind, task)

    def _reported(self, kind: str, task: Task) -> Progressed:
        """Return the progress of the part *task*, at its end or a moment later. Switches."""
        task.note_asked()
        task.wait(REPORT_INTERVAL)
        task.note_asked()
        if not task.is_running and not self._kinds[kind].is_kept:
            self._tasks.drop_part(task)
        return Progressed(
            id=task.id,
            state=task.state,
            total=task.total,
            scanned=task.scanned,
            matched=task.matched,
            done=task.done,
            skipped=task.skipped,
            message=task.message,
            change_number=task.change_number,
            result=self._kinds[kind].result(task),
        )

    # All shards

    def _work(
        self, whole: _Whole, arguments: Mapping[int, Mapping[str, Any]], merge: Callable[[Results], None]
    ) -> None:
        """Run the parts, and add them up in the task. Switches.

        Raise TaskFailed at the end if a part has failed, or has no shard that answers.
        """
        following = []
        for shard, theirs in arguments.items():
            whole.parts.append(part := Part(shard))
            following.append(gevent.spawn(self._follow, whole, part, theirs))
        try:
            while not all(one.ready() for one in following):
                gevent.wait(following, timeout=REPORT_INTERVAL)
                _add_up(whole, merge)
                whole.task.checkpoint()
        finally:
            whole.is_stopping = True
            gevent.joinall(following, timeout=MAX_ENDING)
            gevent.killall(following)
            _add_up(whole, merge)
            whole.task.message = " ".join([one.message for one in whole.parts if not one.has_failed and one.message])
        if failures := [one.message for one in whole.parts if one.has_failed]:
            raise TaskFailed(" ".join(failures))

    def _follow(self, whole: _Whole, part: Part, arguments: Mapping[str, Any]) -> None:
        """Start *part*, and follow its progress to the end. Switches."""
        try:
            question, asked = f"part.{whole.kind}", dict(arguments)
            while part.progress is None or part.progress.state == RUNNING:
                answer = self._shards.ask_as(whole.facts, part.shard, question, **asked)
                part.progress = convert(answer, Progressed)
                asked = {"kind": whole.kind, "id": part.progress.id, "is_stopping": whole.is_stopping}
                question = PROGRESS
        except HTTPException as error:
            part.failure = error.description or str(error)


def _add_up(whole: _Whole, merge: Callable[[Results], None]) -> None:
    """Set the progress of the whole task to the sums of its parts."""
    task, found = whole.task, [one.progress for one in whole.parts if one.progress is not None]
    task.total = sum([one.total for one in found])
    task.scanned = sum([one.scanned for one in found])
    task.matched = sum([one.matched for one in found])
    task.done = sum([one.done for one in found])
    task.skipped = sum([one.skipped for one in found])
    task.change_number = min([one.change_number for one in found if one.change_number is not None], default=None)
    merge({one.shard: one.progress.result for one in whole.parts if one.progress is not None})
