"""Changes of many jobs that the server makes by itself, watched until they are done; an interrupt cancels them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import Final

from greenstalkctl.api import PAGE, Api, Change, Task
from greenstalkctl.exits import Nothing, Refused, Unreachable
from greenstalkctl.interrupt import Interrupt

LOOK_EVERY: Final = 0.2
"""Seconds between two looks at how far a task is."""

RUNNING: Final = "running"
DONE: Final = "done"
CANCELLED: Final = "cancelled"
FAILED: Final = "failed"


def carry_out(api: Api, change: Change, count: int | None, interrupt: Interrupt) -> Iterator[int]:
    """Have *change* made to all jobs that it is about, or to the first *count*; yield how many more, now and then.

    The first ones are asked for by their ids; if somebody else has one of those first, the next takes its turn. After
    an interrupt nothing more begins.
    """
    if interrupt:
        return
    if count is None:
        yield from _watch(api, api.start(change), interrupt)
        return
    left = count
    while left and not interrupt and (ids := _first(api, change, min(left, PAGE))):
        for changed in _watch(api, api.start(change, ids), interrupt):
            left -= changed
            yield changed


def counted(api: Api, change: Change) -> Task:
    """Have all jobs counted that *change* would be made to; `run_counted` makes it to no others."""
    task = api.start(change, is_dry=True)
    while task.state == RUNNING:
        time.sleep(LOOK_EVERY)
        task = api.task(task.id)
    if task.state != DONE:
        raise Refused(FAILED, f"{api.address} has not counted the jobs to the end: {task.state}")
    return task


def run_counted(api: Api, task_id: str, interrupt: Interrupt) -> Iterator[int]:
    """Have done what was counted; yield how many jobs more, now and then. After an interrupt it does not begin."""
    if not interrupt:
        yield from _watch(api, api.run(task_id), interrupt)


def _first(api: Api, change: Change, count: int) -> list[int]:
    """The ids of the *count* jobs that are next in the state of *change*."""
    return [seen.id for seen in islice(api.jobs(change.tube, change.state, limit=count, has_bodies=False), count)]


def _watch(api: Api, task: Task, interrupt: Interrupt) -> Iterator[int]:
    """Yield how many jobs more *task* has changed, until it ends."""
    before = 0
    while True:
        yield task.changed - before
        before = task.changed
        if task.state != RUNNING:
            break
        is_interrupted = interrupt.wait(LOOK_EVERY)
        try:
            task = api.cancel(task.id) if is_interrupted else api.task(task.id)
        except Unreachable as error:
            message = f"the change goes on by itself, as task {task.id}, if the server does: {error}"
            raise Unreachable(message) from error
    if task.state == FAILED:
        raise Refused(FAILED, f"{api.address} has stopped the change: {task.message.rstrip('.')}")
    if task.state == CANCELLED and not interrupt:
        raise Nothing(f"somebody has cancelled the change at {api.address}; what was done until then stays done")
