"""Bulk changes by a task of the server, polled until it ends; an interrupt cancels the task."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import Final

from greenstalkctl.api import PAGE_SIZE, Api, Change, Task
from greenstalkctl.errors import NoResult, Refused, Unreachable
from greenstalkctl.interrupt import Interrupt

POLL_INTERVAL: Final = 0.2
"""Seconds between two requests for the progress of a task."""

RUNNING: Final = "running"
DONE: Final = "done"
CANCELLED: Final = "cancelled"
FAILED: Final = "failed"


def apply_change(api: Api, change: Change, count: int | None, interrupt: Interrupt) -> Iterator[int]:
    """Apply *change* to all matching jobs, or to the first *count*; yield the numbers of jobs changed.

    The first *count* jobs are selected by their ids; if another client takes one of them first, the next job takes its
    place. After an interrupt no further task is started.
    """
    if interrupt:
        return
    if count is None:
        yield from _watch(api, api.start(change), interrupt)
        return
    left = count
    while left and not interrupt and (ids := _first(api, change, min(left, PAGE_SIZE))):
        for changed in _watch(api, api.start(change, ids), interrupt):
            left -= changed
            yield changed


def count_matching(api: Api, change: Change) -> Task:
    """Count the jobs that *change* matches, by a dry run; `apply_counted_change` changes only those."""
    task = api.start(change, is_dry=True)
    while task.state == RUNNING:
        time.sleep(POLL_INTERVAL)
        task = api.task(task.id)
    if task.state != DONE:
        raise Refused(FAILED, f"{api.address} did not finish counting the jobs: {task.state}")
    return task


def apply_counted_change(api: Api, task_id: str, interrupt: Interrupt) -> Iterator[int]:
    """Apply the change that a dry run counted; yield the numbers of jobs changed. Do nothing after an interrupt."""
    if not interrupt:
        yield from _watch(api, api.run(task_id), interrupt)


def _first(api: Api, change: Change, count: int) -> list[int]:
    """Return the ids of the next *count* jobs in the state of *change*."""
    return [view.id for view in islice(api.jobs(change.tube, change.state, limit=count, has_bodies=False), count)]


def watch(api: Api, task: Task, interrupt: Interrupt) -> Iterator[Task]:
    """Poll *task* until it ends, and yield each of its states; an interrupt cancels it.

    Raise Refused if the task fails, and NoResult if somebody else cancels it.
    """
    while True:
        yield task
        if task.state != RUNNING:
            break
        is_interrupted = interrupt.wait(POLL_INTERVAL)
        try:
            task = api.cancel(task.id) if is_interrupted else api.task(task.id)
        except Unreachable as error:
            message = f"task {task.id} continues on the server if the server is running: {error}"
            raise Unreachable(message) from error
    if task.state == FAILED:
        raise Refused(FAILED, f"{api.address} stopped the change: {task.message.rstrip('.')}")
    if task.state == CANCELLED and not interrupt:
        raise NoResult(f"the change was cancelled on {api.address}; the jobs changed before that stay changed")


def _watch(api: Api, task: Task, interrupt: Interrupt) -> Iterator[int]:
    """Poll *task* until it ends; yield the number of jobs changed since the last poll."""
    before = 0
    for state in watch(api, task, interrupt):
        yield state.changed - before
        before = state.changed
