"""Failed jobs grouped by their normalised errors, in bounded memory. Depends on neither HTTP nor the broker.

A group is a predicate of the query language, so that lists, exports and bulk changes select exactly its jobs: `error:`
with the normalised error. Jobs without an error are grouped by the reason for which they are dead letters, if any.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Final

from greenstalk_server.core.job_attributes import REASON_NAMES, DeadLetter
from greenstalk_server.core.jobs.job import BURIED, READY, Job
from greenstalk_server.core.policies.tube_policy_state import buried_at
from greenstalk_server.web.reads.jobs.body_format import MAX_ROW_PREVIEW
from greenstalk_server.web.reads.jobs.body_terms import ERROR, FieldMatch
from greenstalk_server.web.reads.jobs.job_errors import error_text, normalized
from greenstalk_server.web.reads.jobs.json_fields import (
    MAX_PARSED,
    MAX_SUGGESTED,
    Path,
    field_paths,
    parse_body,
    shortened,
)
from greenstalk_server.web.reads.jobs.query import ANY, REASON, Query, Term, TextMatch

MAX_GROUPS: Final = 50
"""Maximum groups of a result: the most common errors. Further groups are only counted."""

MAX_DISTINCT: Final = 2000
"""Maximum groups counted; jobs with further errors are counted together. 2000 groups need about 2 MB."""

MAX_SAMPLE: Final = 300
"""Maximum characters of the sample of an error."""

SUGGESTED_FROM: Final = 50
"""Maximum jobs whose fields are suggested."""


class ErrorGroup:
    """The jobs with one error.

    error           the normalised error; empty if the jobs have none.
    reason          if *error* is empty, the DeadLetterReason of the jobs; 0 if they are not dead letters.
    count           number of jobs.
    dead_letters    number of dead letters among these jobs.
    unready         number of these jobs that are not ready, so that a kick would change them.
    first_at, last_at   when the first and the last of these jobs failed, nanoseconds.
    sample_id       id of the job that failed last.
    sample          error in the body of that job, shortened.
    sample_start    beginning of that body.
    """

    __slots__ = (
        "count",
        "dead_letters",
        "error",
        "first_at",
        "last_at",
        "reason",
        "sample",
        "sample_id",
        "sample_start",
        "unready",
    )

    def __init__(self, error: str, reason: int) -> None:
        self.error: str = error
        self.reason: int = reason
        self.count: int = 0
        self.dead_letters: int = 0
        self.unready: int = 0
        self.first_at: int = 0
        self.last_at: int = 0
        self.sample: str = ""
        self.sample_id: int = 0
        self.sample_start: bytes = b""

    def add(self, job: Job, at: int, error: str, body: bytes) -> None:
        """Add *job*, which failed at *at*, with *error* in its *body*."""
        if not self.count or at < self.first_at:
            self.first_at = at
        if at >= self.last_at:
            self.last_at, self.sample_id = at, job.id
            self.sample, self.sample_start = shortened(error, MAX_SAMPLE), body[: MAX_ROW_PREVIEW + 1]
        self.count += 1
        self.dead_letters += bool(job.dead_letter)
        self.unready += job.state != READY


class ErrorGroups:
    """The groups of the jobs that match *query*; *path* names the field with the error, or is empty.

    groups          the most common groups first, once `close` was called.
    total           number of jobs, including *others* and *unread*.
    others          number of jobs in groups that *groups* leaves out.
    other_groups    number of these groups, at most MAX_DISTINCT; more are not counted.
    unread          number of jobs whose bodies cannot be read back from the disk.
    fields          paths of the fields of the first jobs.
    """

    def __init__(self, query: Query, path: Path) -> None:
        self.query: Query = query
        self.path: Path = path
        self.groups: list[ErrorGroup] = []
        self.total: int = 0
        self.others: int = 0
        self.other_groups: int = 0
        self.unread: int = 0
        self._found: dict[tuple[str, int], ErrorGroup] = {}
        self._fields: dict[str, None] = {}

    @property
    def fields(self) -> Iterable[str]:
        return self._fields

    def add(self, job: Job, body: bytes | None) -> None:
        """Count *job* with its *body*: None if the body cannot be read from the disk, or is too large to parse.

        Takes less than 5 ms, and about 10 µs for a body of usual JSON.
        """
        self.total += 1
        if body is None and job.size <= MAX_PARSED:
            self.unread += 1
            return
        body = body or b""
        raw = error_text(body, self.path)
        error, dead = normalized(raw), DeadLetter.unpack(job.dead_letter) if job.dead_letter else None
        key = error, dead.reason if dead is not None and not error else 0
        group = self._found.get(key)
        if group is None:
            if len(self._found) == MAX_DISTINCT:
                self.others += 1
                return
            group = self._found[key] = ErrorGroup(*key)
        group.add(job, _failed_at(job, dead), raw, body)
        if self.total <= SUGGESTED_FROM and len(self._fields) < MAX_SUGGESTED:
            self._fields.update(dict.fromkeys(field_paths(parse_body(body))))

    def close(self) -> None:
        """Rank the groups, and keep only the first MAX_GROUPS."""
        ranked = sorted(self._found.values(), key=attrgetter("count"), reverse=True)
        self.groups, rest = ranked[:MAX_GROUPS], ranked[MAX_GROUPS:]
        self.others += sum([group.count for group in rest])
        self.other_groups = len(rest)
        self._found = {}

    def query_of(self, group: ErrorGroup) -> Query:
        """Return the query that matches exactly the jobs of *group*."""
        return Query((*self.query.terms, *group_terms(group, self.path)))


def group_terms(group: ErrorGroup, path: Path) -> tuple[Term, ...]:
    """Return the terms that select the jobs of *group* among the failed jobs; *path* names the field with the error."""
    name = ".".join((ERROR, *path))
    if group.error:
        return (Term(name, FieldMatch(group.error, is_quoted=True)),)
    has_no_error = Term(name, FieldMatch(ANY), is_negated=True)
    if group.reason:
        return has_no_error, Term(REASON, TextMatch(REASON_NAMES[group.reason]))
    return has_no_error, Term(REASON, TextMatch(ANY), is_negated=True)


def _failed_at(job: Job, dead: DeadLetter | None) -> int:
    if dead is not None:
        return dead.last_at
    return buried_at(job) if job.state == BURIED else job.created_at
