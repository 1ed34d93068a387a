"""The tasks that are listed, of all shards."""

from __future__ import annotations

from typing import Final

from msgspec import Struct, convert

from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.changes.task_model import Task, task_model
from greenstalk_server.web.changes.task_progress import progress_texts
from greenstalk_server.web.changes.tasks import Tasks
from greenstalk_server.web.framework.shards import Shards

ROWS: Final = "tasks.rows"
MODELS: Final = "tasks.models"
"""Questions to the other shards."""


class TaskRow(Struct):
    """A task as a page lists it; *shown* are its progress_texts."""

    id: str
    title: str
    started_at: int
    by: str
    done: int
    shown: dict[str, str]


class ListedTasks:
    """The tasks of all shards. Its methods switch if there are several."""

    def __init__(self, tasks: Tasks, clock: Clock, shards: Shards) -> None:
        self._tasks: Tasks = tasks
        self._clock: Clock = clock
        self._shards: Shards = shards
        shards.answer(ROWS, self._own_rows)
        shards.answer(MODELS, self._own_models)

    def rows(self) -> list[TaskRow]:
        """Return the tasks that the principal may see, newest first."""
        rows = self._own_rows()
        for answer in self._shards.ask_others(ROWS).values():
            rows += convert(answer, list[TaskRow])
        return sorted(rows, key=lambda row: row.started_at, reverse=True) if self._shards.others else rows

    def models(self) -> list[Task]:
        """Like `rows`, as the API shows them."""
        models = self._own_models()
        for answer in self._shards.ask_others(MODELS).values():
            models += convert(answer, list[Task])
        return sorted(models, key=lambda model: model.started_at, reverse=True) if self._shards.others else models

    def _own_rows(self) -> list[TaskRow]:
        now = self._clock()
        return [
            TaskRow(task.id, task.title, task.started_at, task.who.name, task.done, progress_texts(task, now))
            for task in self._tasks.all()
        ]

    def _own_models(self) -> list[Task]:
        return [task_model(task) for task in self._tasks.all()]
