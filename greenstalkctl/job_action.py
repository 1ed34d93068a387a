"""Apply one action to many jobs: to given ids, or to a number of jobs of a tube.

Over the protocol, jobs are changed one at a time, and an interrupt stops between two jobs. With the API, the server
runs a task, which an interrupt cancels. Either way the number of changed jobs is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from greenstalkctl.api import Api, Change
from greenstalkctl.bulk import apply_change, apply_counted_change
from greenstalkctl.errors import CommandError, NoResult
from greenstalkctl.interrupt import Interrupt
from greenstalkctl.output import Output
from greenstalkctl.server import Server
from greenstalkctl.settings import Queue
from greenstalkctl.text import plural


@dataclass(frozen=True, slots=True)
class JobAction:
    """An action on jobs, such as delete, and the words that report it."""

    action: str
    """The action's name in the API."""

    done: str
    """The participle in "buried 3 jobs", and the key in JSON."""

    doing: str
    """The title of the progress bar."""

    why_not: str
    """The possible reasons why a job could not be changed."""

    act: Callable[[Queue, int], bool]
    """Change the job with this id, so that it leaves its state; return False if that is impossible."""


@dataclass(frozen=True, slots=True)
class JobSet:
    """Jobs of one tube in one state.

    available       number of jobs in that state.
    count           maximum number to change; None for all that are available.
    dry_run_id      id of the API's dry run that counted the jobs; then jobs put after it are not changed.
    """

    tube: str
    state: str
    available: int
    count: int | None = None
    dry_run_id: str | None = None

    @property
    def limit(self) -> int:
        return self.available if self.count is None else min(self.count, self.available)


def act_on_ids(out: Output, queue: Queue, action: JobAction, ids: Sequence[int]) -> None:
    """Apply *action* to the jobs with *ids*; raise NoResult, which lists the ids, if some could not be changed."""
    done, missed = list[int](), list[int]()
    for job_id in dict.fromkeys(ids):
        (done if action.act(queue, job_id) else missed).append(job_id)
    out.show({action.done: len(done), "missed": missed}, *([f"{action.done} {plural(len(done))}"] if done else []))
    if missed:
        raise NoResult(f"not {action.done} ({action.why_not}): {', '.join(map(str, missed))}")


def act_on_sets(out: Output, queue: Queue, action: JobAction, job_sets: Sequence[JobSet]) -> None:
    """Apply *action* to each set; raise NoResult if no job was changed."""
    done = 0
    with Interrupt() as interrupt:
        try:
            with out.progress(action.doing, sum(job_set.limit for job_set in job_sets)) as advance:
                for job_set in filter(lambda job_set: job_set.limit, job_sets):
                    for count in _steps(queue, action, job_set, interrupt):
                        done += count
                        advance(count)
        except CommandError:
            if done:
                report(out, action.done, done)
            raise
        report(out, action.done, done)
        interrupt.check("interrupted; the other jobs are unchanged")


def report(out: Output, word: str, done: int) -> None:
    """Report the number of changed jobs, then raise NoResult if it is zero."""
    out.show({word: done}, *([f"{word} {plural(done)}"] if done else []))
    if not done:
        raise NoResult(f"nothing {word}: no job matches")


def _steps(queue: Queue, action: JobAction, job_set: JobSet, interrupt: Interrupt) -> Iterator[int]:
    """Apply *action* until finished or interrupted; yield the number of jobs changed since the previous yield."""
    if isinstance(queue, Api):
        if job_set.dry_run_id is not None:
            return apply_counted_change(queue, job_set.dry_run_id, interrupt)
        count = job_set.limit if job_set.count is not None else None
        return apply_change(queue, Change(action.action, job_set.tube, job_set.state), count, interrupt)
    return _one_by_one(queue, action, job_set, interrupt)


def _one_by_one(server: Server, action: JobAction, job_set: JobSet, interrupt: Interrupt) -> Iterator[int]:
    """Change the jobs over the protocol. Each peek at the next job transfers its body."""
    left = job_set.limit
    while left and not interrupt and (job := server.first(job_set.tube, job_set.state)) is not None:
        if action.act(server, job.id):  # False: another client took the job first
            left -= 1
            yield 1
