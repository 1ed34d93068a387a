"""API endpoints that pause, resume or kick all tubes that match a pattern, as a task."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from greenstalk_server.config.tables.roles import OPERATOR
from greenstalk_server.web.changes.task_model import BUSY, Task, started_task
from greenstalk_server.web.changes.tube_changes import KICK, PAUSE, RESUME, TubeChange, TubeChanges
from greenstalk_server.web.features.tubes.api.tubes import STATES, PauseTubeRequest
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.api.values import RequestModel, TubePattern


class TubePatternRequest(RequestModel):
    """The tubes to change."""

    pattern: TubePattern
    dry_run: Annotated[bool, Meta(description="Only count the tubes. Must be false to change them.")] = True


class KickTubesRequest(RequestModel):
    """The jobs to kick."""

    state: Literal["buried", "delayed"] = "buried"


DEFAULT_KICK: Final = KickTubesRequest()


class TubeChangesEndpoints:
    """Changes of many tubes: pause, resume or kick all tubes whose names match a pattern.

    Each is a task. Unless `dry_run` is false, the task only counts the tubes and their jobs, and `/tasks/{task}/run`
    changes exactly the tubes that were counted. Tubes that you may not operate are not included.
    """

    def __init__(self, changes: TubeChanges) -> None:
        self._changes: TubeChanges = changes

    @endpoint("POST", "/tubes/pause", role=OPERATOR, status=202, errors=BUSY)
    def pause_tubes(self, query: TubePatternRequest, body: PauseTubeRequest) -> Task:
        """Pause all tubes that match a pattern, or count them.

        A pause replaces one that is already running.
        """
        return self._start(TubeChange(PAUSE, body.seconds, " ".join(body.reason.split())), query)

    @endpoint("POST", "/tubes/resume", role=OPERATOR, status=202, errors=BUSY)
    def resume_tubes(self, query: TubePatternRequest) -> Task:
        """End the pauses of all tubes that match a pattern, or count them."""
        return self._start(TubeChange(RESUME), query)

    @endpoint("POST", "/tubes/kick", role=OPERATOR, status=202, errors=BUSY)
    def kick_tubes(self, query: TubePatternRequest, body: KickTubesRequest = DEFAULT_KICK) -> Task:
        """Kick the buried or delayed jobs of all tubes that match a pattern, or count them.

        A run kicks at most the counted number of jobs of each tube, in the order of their state.
        """
        return self._start(TubeChange(KICK, state=STATES[body.state]), query)

    def _start(self, change: TubeChange, query: TubePatternRequest) -> Task:
        start = self._changes.dry_run if query.dry_run else self._changes.start
        return started_task(start(change, query.pattern))
