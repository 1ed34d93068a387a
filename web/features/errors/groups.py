"""Failed jobs grouped by their normalised errors, in bounded memory. Depends on neither HTTP nor the broker.

A group is a predicate of the query language, so that lists, exports and bulk changes select exactly its jobs: `error:`
with the normalised error. Jobs without an error are grouped by the reason why they are dead letters, if any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from operator import attrgetter, itemgetter
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, convert
from msgspec.structs import replace

from greenstalk_server.core.job_attributes import REASON_NAMES, DeadLetter
from greenstalk_server.core.jobs.job import BURIED, READY, SECOND, Job
from greenstalk_server.core.policies.tube_policy_state import buried_at
from greenstalk_server.web.framework.api.values import (
    Count,
    Instant,
    JobId,
    ResponseModel,
    TubeName,
    instant,
    model_of,
)
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.reads.jobs.body_format import MAX_ROW_PREVIEW, row_preview
from greenstalk_server.web.reads.jobs.body_terms import ERROR, FieldMatch
from greenstalk_server.web.reads.jobs.job_errors import error_text, normalized
from greenstalk_server.web.reads.jobs.job_list import REASONS, Reason
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

MAX_PART_GROUPS: Final = 500
"""Maximum groups of a shard that are added to those of the other shards: the most common errors there."""

MAX_DISTINCT: Final = 2000
"""Maximum groups counted; jobs with further errors are counted together. 2000 groups need about 2 MB."""

MAX_TUBES: Final = 100
"""Maximum tubes counted for a group."""

MAX_TUBE_COUNTS: Final = 20_000
"""Maximum tubes counted for all groups together; these counts need about 2 MB."""

MAX_NAMED_TUBES: Final = 5
"""Maximum tubes listed of a group, which are the tubes with most of its jobs."""

HOUR: Final = 3600 * SECOND

MAX_SAMPLE: Final = 300
"""Maximum characters of the sample of an error."""

SUGGESTED_FROM: Final = 50
"""Maximum jobs whose fields are suggested."""


Retry = Literal["kick", "redrive"]


class ErrorGroup(ResponseModel):
    """The failed jobs with one error."""

    error: Annotated[
        str | None,
        Meta(
            description="The normalised error: numbers and ids are `#`, the contents of quotes `…`. Null if the jobs"
            " have no error."
        ),
    ]
    reason: Annotated[
        Reason | None,
        Meta(description="Without an error, why the jobs are dead letters; null if they are not."),
    ]
    jobs: Annotated[Count, Meta(description="Number of jobs.")]
    new: Annotated[Count, Meta(description="Number of these jobs that failed in the last hour.")]
    tubes: Annotated[
        list[TubeName],
        Meta(description=f"The tubes of these jobs, those with most jobs first, at most {MAX_NAMED_TUBES}."),
    ]
    other_tubes: Annotated[Count, Meta(description=f"Number of further tubes; at most {MAX_TUBES} are counted.")]
    first_at: Annotated[Instant, Meta(description="When the first of these jobs failed.")]
    last_at: Annotated[Instant, Meta(description="When the last of these jobs failed.")]
    sample: Annotated[JobId, Meta(description="The job that failed last.")]
    sample_error: Annotated[str, Meta(description="The error in its body, shortened; empty if there is none.")]
    sample_body: Annotated[str, Meta(description="The beginning of its body, as lists show it.")]
    q: Annotated[
        str,
        Meta(
            description="The search that finds exactly these jobs, for `GET /jobs`, `/jobs/export` and `POST /bulk`.",
            examples=['tube:mail state:buried error:"no route to #"'],
        ),
    ]
    retry: Annotated[
        Retry | None,
        Meta(description="The action for `POST /bulk` that makes most of these jobs ready; null if they are ready."),
    ]


class CountedGroup(Struct):
    """The jobs with one error, on one shard or on all.

    The fields are those of ErrorGroup, except:

    error, reason   the error, or if it is empty, the DeadLetterReason of the jobs; 0 if they are not dead letters.
    tubes           the tubes with most of the jobs, with the numbers of these.
    dead_letters    number of dead letters among the jobs.
    unready         number of jobs that are not ready, so that a kick would change them.
    first_at, last_at   nanoseconds.
    """

    error: str
    reason: int
    jobs: int
    new: int
    tubes: list[tuple[str, int]]
    other_tubes: int
    dead_letters: int
    unready: int
    first_at: int
    last_at: int
    sample: int
    sample_error: str
    sample_body: str

    def add(self, other: CountedGroup) -> None:
        """Add the jobs of *other*, which has the same error and other tubes."""
        self.jobs += other.jobs
        self.new += other.new
        self.dead_letters += other.dead_letters
        self.unready += other.unready
        self.first_at = min(self.first_at, other.first_at)
        if other.last_at > self.last_at:
            self.last_at, self.sample = other.last_at, other.sample
            self.sample_error, self.sample_body = other.sample_error, other.sample_body
        ranked = sorted([*self.tubes, *other.tubes], key=itemgetter(1), reverse=True)
        self.tubes, rest = ranked[:MAX_NAMED_TUBES], ranked[MAX_NAMED_TUBES:]
        self.other_tubes += other.other_tubes + len(rest)

    def model(self, q: str) -> ErrorGroup:
        """Return the group as the API shows it; *q* finds its jobs."""
        return model_of(
            ErrorGroup,
            self,
            tubes=[name for name, _ in self.tubes],
            error=self.error or None,
            reason=REASONS.get(self.reason),
            first_at=instant(self.first_at),
            last_at=instant(self.last_at),
            q=q,
            retry="redrive" if 2 * self.dead_letters >= self.jobs else "kick" if self.unready else None,
        )


class ErrorPart(Struct):
    """The groups of one shard; the fields are those of ErrorGroups."""

    counted: list[CountedGroup]
    total: int
    others: int
    other_groups: int
    unread: int
    fields: list[str]
    worst: dict[str, tuple[str, int]]
    is_closed: bool


class _Count:
    """The jobs with one error so far.

    reason          if *error* is empty, the DeadLetterReason of the jobs; 0 if they are not dead letters.
    jobs            number of jobs.
    new             number of these jobs that failed in the last hour.
    tubes           number of these jobs by name of the tube; some tubes may be left out (MAX_TUBES).
    dead_letters    number of dead letters among these jobs.
    unready         number of these jobs that are not ready, so that a kick would change them.
    first_at, last_at   when the first and the last of these jobs failed, nanoseconds.
    sample          id of the job that failed last; *sample_error* and *sample_body* are parts of its body.
    """

    __slots__ = (
        "dead_letters", "error", "first_at", "jobs", "last_at", "new", "reason", "sample", "sample_body",
        "sample_error", "tubes", "unready",
    )  # fmt: skip

    def __init__(self, error: str, reason: int) -> None:
        self.error: str = error
        self.reason: int = reason
        self.jobs: int = 0
        self.new: int = 0
        self.tubes: Counter[bytes] = Counter()
        self.dead_letters: int = 0
        self.unready: int = 0
        self.first_at: int = 0
        self.last_at: int = 0
        self.sample: int = 0
        self.sample_error: str = ""
        self.sample_body: bytes = b""

    def add(self, job: Job, at: int, error: str, body: bytes, now: int) -> None:
        """Add *job*, which failed at *at*, with *error* in its *body*."""
        self.new += now - at <= HOUR
        if not self.jobs or at < self.first_at:
            self.first_at = at
        if at >= self.last_at:
            self.last_at, self.sample = at, job.id
            self.sample_error, self.sample_body = shortened(error, MAX_SAMPLE), body[: MAX_ROW_PREVIEW + 1]
        self.jobs += 1
        self.dead_letters += bool(job.dead_letter)
        self.unready += job.state != READY

    def counted(self) -> CountedGroup:
        """Return the group."""
        named = [(name.decode(), jobs) for name, jobs in self.tubes.most_common(MAX_NAMED_TUBES)]
        return model_of(
            CountedGroup,
            self,
            tubes=named,
            other_tubes=len(self.tubes) - len(named),
            sample_body=row_preview(self.sample_body),
        )


class ErrorGroups:
    """The groups of the jobs that match *query*; *path* names the field with the error, or is empty.

    groups          the most common groups first, once `close` was called.
    total           number of jobs, including *others* and *unread*.
    others          number of jobs in groups that *groups* leaves out.
    other_groups    number of these groups, at most MAX_DISTINCT; more are not counted. With several shards it may be
                    too low.
    unread          number of jobs whose bodies cannot be read back from the disk.
    fields          paths of the fields of the first jobs.
    is_closed       whether `close` was called.
    worst           the most common error of each tube, once `close` was called: the error and its number of jobs.
    """

    def __init__(self, query: Query, path: Path, now: int) -> None:
        """Group at the time *now*."""
        self.query: Query = query
        self.path: Path = path
        self.groups: list[ErrorGroup] = []
        self.total: int = 0
        self.others: int = 0
        self.other_groups: int = 0
        self.unread: int = 0
        self.worst: dict[bytes, tuple[str, int]] = {}
        self.is_closed: bool = False
        self._now: int = now
        self._tube_counts: int = 0
        self._found: dict[tuple[str, int], _Count] = {}
        self._counted: list[CountedGroup] = []
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
            group = self._found[key] = _Count(*key)
        group.add(job, _failed_at(job, dead), raw, body, self._now)
        self._count_tube(group, job.tube.name)
        if self.total <= SUGGESTED_FROM and len(self._fields) < MAX_SUGGESTED:
            self._fields.update(dict.fromkeys(field_paths(parse_body(body))))

    def close(self, pace: Pace, limit: int = MAX_GROUPS) -> None:
        """Rank the groups, and keep only the first *limit*. May switch between two groups."""
        ranked = sorted(self._found.values(), key=attrgetter("jobs"), reverse=True)
        first, rest = ranked[:limit], ranked[limit:]
        self._counted = [count.counted() for count in pace.each(first)]
        self.groups = [self._model(count) for count in pace.each(self._counted[:MAX_GROUPS])]
        self.others += sum([count.jobs for count in rest])
        self.other_groups = len(rest)
        for count in pace.each(first):
            for name, jobs in count.tubes.items():
                if count.error and jobs > self.worst.get(name, ("", 0))[1]:
                    self.worst[name] = count.error, jobs
        self._found, self.is_closed = {}, True

    def part(self) -> ErrorPart:
        """Return the groups of this shard, for `merge` at another one."""
        worst = {name.decode(): found for name, found in self.worst.items()}
        return model_of(ErrorPart, self, counted=self._counted, fields=list(self.fields), worst=worst)

    def merge(self, results: Mapping[int, Any]) -> None:
        """Add up the *results* of `part` of all shards. May switch."""
        parts, pace = [convert(result, ErrorPart) for result in results.values()], Pace()
        self.total, self.unread = sum([part.total for part in parts]), sum([part.unread for part in parts])
        self._fields = dict.fromkeys([path for part in parts for path in part.fields][:MAX_SUGGESTED])
        if not all(part.is_closed for part in parts):
            return
        found: dict[tuple[str, int], CountedGroup] = {}
        for group in pace.each([group for part in parts for group in part.counted]):
            key = group.error, group.reason
            if (known := found.get(key)) is not None:
                known.add(group)
            else:
                found[key] = replace(group)  # *results* must stay as they are
        ranked = sorted(found.values(), key=attrgetter("jobs"), reverse=True)
        rest = ranked[MAX_GROUPS:]
        self.groups = [self._model(group) for group in pace.each(ranked[:MAX_GROUPS])]
        self.others = sum([part.others for part in parts]) + sum([group.jobs for group in rest])
        self.other_groups = max([part.other_groups for part in parts], default=0) + len(rest)
        self.worst = {name.encode(): worst for part in parts for name, worst in part.worst.items()}
        self.is_closed = True

    def _model(self, group: CountedGroup) -> ErrorGroup:
        return group.model(str(self._query_of(group)))

    def _count_tube(self, group: _Count, name: bytes) -> None:
        if name not in group.tubes:
            if len(group.tubes) == MAX_TUBES or self._tube_counts == MAX_TUBE_COUNTS:
                return
            self._tube_counts += 1
        group.tubes[name] += 1

    def _query_of(self, count: CountedGroup) -> Query:
        """Return the query that matches exactly the jobs of *count*."""
        name = ".".join((ERROR, *self.path))
        if count.error:
            terms: tuple[Term, ...] = (Term(name, FieldMatch(count.error, is_quoted=True)),)
        else:
            reason = Term(REASON, TextMatch(REASON_NAMES[count.reason] if count.reason else ANY), not count.reason)
            terms = Term(name, FieldMatch(ANY), is_negated=True), reason
        return Query((*self.query.terms, *terms))


def _failed_at(job: Job, dead: DeadLetter | None) -> int:
    if dead is not None:
        return dead.last_at
    return buried_at(job) if job.state == BURIED else job.created_at
