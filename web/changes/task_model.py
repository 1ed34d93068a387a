"""A task as the API shows it."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from greenstalk_server.web.changes.bulk import Counted
from greenstalk_server.web.changes.saved_changes import ChangeNumber
from greenstalk_server.web.changes.tasks import INITIAL_WAIT, Progress, TaskKind
from greenstalk_server.web.changes.tasks import Task as RunningTask
from greenstalk_server.web.changes.tube_changes import CountedTubes
from greenstalk_server.web.changes.undo import RefusedJobs
from greenstalk_server.web.framework.api.router import set_location
from greenstalk_server.web.framework.api.values import Count, Instant, ResponseModel, TubeName, instant, model_of

TaskId = Annotated[str, Meta(description="The id of a task.", max_length=64, examples=["8f14e45fceea167a"])]

BUSY: Final = {503: "The server is draining, or the maximum number of tasks is running."}


class PolicyEffect(ResponseModel):
    """The effects that a policy would have at once on existing jobs. The counts are complete when the task is done.

    The counts assume that dead-letter tubes have room; a job for which there is no room would be buried.
    """

    policy: Annotated[str, Meta(description="The name of the policy.")]
    tubes: Annotated[Count, Meta(description="Existing tubes that the policy matches.")]
    changed_tubes: Annotated[Count, Meta(description="Existing tubes whose effective settings would change.")]
    sample: Annotated[list[TubeName], Meta(description="Some of the tubes counted in `tubes` or `changed_tubes`.")]
    jobs: Annotated[Count, Meta(description="Jobs of these tubes.")]
    expired: Annotated[Count, Meta(description="Jobs that would be dropped because they are too old.")]
    dead_lettered: Annotated[Count, Meta(description="Jobs that would move to a dead-letter tube.")]
    buried: Annotated[Count, Meta(description="Jobs that would be buried, because their tube has no dead-letter tube.")]
    evicted: Annotated[Count, Meta(description="Jobs that would be dropped because their tube is above a cap.")]
    over_cap: Annotated[Count, Meta(description="Jobs above a cap that makes their tube refuse puts.")]
    held: Annotated[Count, Meta(description="Ready jobs that would wait because of `max_reserved` or `rate`.")]
    warnings: Annotated[list[str], Meta(description="Loops of dead letters that the policy would cause.")]


class Task(ResponseModel):
    """A long operation, and its progress. A change of many tubes scans tubes instead of jobs."""

    id: TaskId
    kind: TaskKind
    title: Annotated[str, Meta(description="A short description.")]
    state: Progress
    started_at: Instant
    ended_at: Instant | None
    total: Annotated[Count, Meta(description="Jobs to scan.")]
    scanned: Annotated[Count, Meta(description="Jobs scanned so far.")]
    matched: Annotated[Count, Meta(description="Jobs that matched so far.")]
    changed: Annotated[Count, Meta(description="Jobs changed so far.")]
    skipped: Annotated[Count, Meta(description="Jobs skipped so far, because the change was not possible.")]
    message: Annotated[str, Meta(description="Reason why the task ended early, and which jobs it skipped.")]
    counted: Annotated[Counted | None, Meta(description="The counts of a dry run; null for other tasks.")]
    effect: Annotated[PolicyEffect | None, Meta(description="The counts of a policy's dry run; null for other tasks.")]
    change_number: Annotated[
        ChangeNumber | None, Meta(description="The change that the task made; null if it cannot be undone.")
    ]
    refused: Annotated[
        list[RefusedJobs] | None, Meta(description="Jobs that an undo did not put back; null for other tasks.")
    ]
    tubes: Annotated[
        CountedTubes | None, Meta(description="The counts of a change of many tubes; null for other tasks.")
    ]


def task_model(task: RunningTask) -> Task:
    """Return *task* as the API shows it."""
    own = {"counted": None, "effect": None, "tubes": None, "refused": None} | dict(task.details())
    return model_of(
        Task,
        task,
        started_at=instant(task.started_at),
        ended_at=instant(task.ended_at) if task.ended_at else None,
        changed=task.done,
        **own,
    )


def started_task(task: RunningTask) -> Task:
    """Return the response that reports *task*, which has started: its progress, and its address. May switch."""
    set_location("get_task", task=task.id)
    task.wait(INITIAL_WAIT)
    return task_model(task)
