"""Pages of jobs: lists of one shard or of all, and the jobs that a search has found.

A list of all shards is put together in two steps. Each shard returns the sort keys of its first jobs. Then the jobs of
the page are read on their shards, if they still match.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, takewhile
from math import inf
from typing import Any, Final, NamedTuple

from msgspec import convert

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import Job as CoreJob
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.features.jobs.api.listing import (
    PAGE_BYTES,
    JobPage,
    Position,
    SortedPosition,
    fill,
    fill_sorted,
    first_keys,
    refuse_long,
    sorted_position,
)
from greenstalk_server.web.features.jobs.export import field_texts
from greenstalk_server.web.features.jobs.jobs import Job, job_model, shows_body
from greenstalk_server.web.framework.shards import Shards, encoded
from greenstalk_server.web.framework.sorting import Order
from greenstalk_server.web.reads.jobs.bodies import never_wants_body
from greenstalk_server.web.reads.jobs.job_orders import BY_ID, Rank, SortKey, merged_keys
from greenstalk_server.web.reads.jobs.json_fields import MAX_PARSED, Path
from greenstalk_server.web.reads.jobs.matching import JobMatcher
from greenstalk_server.web.reads.jobs.places import LookedUp, Places, look_up, moved_from
from greenstalk_server.web.reads.jobs.query import Query, parse

KEYS: Final = "jobs.keys"
SORTED_KEYS: Final = "jobs.sorted-keys"
MODELS: Final = "jobs.models"
"""Questions to the shards of the jobs."""

MAX_ANSWER: Final = 15 * PAGE_BYTES // 16
"""Bytes of JSON after which an answer has no further jobs. The last one may exceed it: JSON of 1 MiB has up to 6. So an
answer fits into a message of a link."""


class FoundPage(NamedTuple):
    """The jobs of a page.

    looked_at   number of the ids that are on this page, or whose jobs no longer exist.
    """

    jobs: list[Job]
    looked_at: int


class Shown(NamedTuple):
    """The parts of bodies that a page has: whether *bodies*, and the fields at *paths*."""

    bodies: bool
    paths: tuple[Path, ...] = ()

    def wants_body(self, job: CoreJob) -> bool:
        """Return whether the page needs the body of *job*."""
        return (self.bodies and shows_body(job)) or (bool(self.paths) and job.size <= MAX_PARSED)


class FoundJobs:
    """Reads pages of jobs, of all shards."""

    def __init__(self, broker: Broker, clock: Clock, shards: Shards) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._shards: Shards = shards
        shards.answer(KEYS, self._keys_here)
        shards.answer(SORTED_KEYS, self._sorted_keys_here)
        shards.answer(MODELS, self._models_here)

    def page(self, places: Places, shown: Shown, query: Query) -> FoundPage:
        """Return the first jobs of *places* that match *query*, as they are now. Switches."""
        answer = look_up(self._shards, MODELS, places, bodies=shown.bodies, paths=shown.paths, q=str(query))
        left, jobs, size, looked_at = set(answer.left), list[Job](), 0, 0
        for id in places:
            if id in left or size >= PAGE_BYTES:
                break
            looked_at += 1
            if id in answer.found:
                jobs.append(job := convert(answer.found[id], Job))
                size += len(job.body or "")
        return FoundPage(jobs, looked_at)

    def _models_here(self, ids: list[int], bodies: bool, paths: list[Any], q: str) -> LookedUp:
        """Return the jobs *ids* of this shard, as many as fit into a page. Switches."""
        now = self._clock()
        rows = _answered_rows(len(ids), now, Shown(bodies, tuple(map(tuple, paths))))
        matcher = JobMatcher(self._broker, parse(q), now, rows.yield_if_due, rows.wants_body)
        looked_at = 0
        for _, job, body in matcher.match(ids):
            if rows.is_full:
                break
            looked_at += 1
            if job is not None:
                rows.add(job, body)
        left = ids[looked_at:]
        return LookedUp({job.id: job for job in rows.rows}, moved_from(self._broker, self._shards, ids), left)

    def list_by_id(
        self, query: Query, position: Position, limit: int, shown: Shown
    ) -> tuple[list[Job], Position | None, str]:
        """Return the page of up to *limit* matches after *position*, the next position, and a warning. Switches."""
        if not self._spans(query):
            rows = job_rows(limit, now := self._clock(), shown)
            following_here = fill(self._broker, query, position, now, rows)
            return rows.rows, following_here, rows.warning
        asked = {"q": str(query), "after_id": position.after_id, "limit": limit}
        answers = self._shards.ask_each(KEYS, dict.fromkeys(self._shards.all, asked))
        until = min([one["until"] for one in answers.values() if one["until"] is not None], default=inf)
        keys = {shard: one["keys"] for shard, one in answers.items()}
        first = _first(takewhile(lambda key: key[1] <= until, merged_keys(keys, BY_ID)), limit + 1)
        places = {id: shard for id, (_, shard) in islice(first.items(), limit)}
        page = self.page(places, shown, query)
        after_id = until
        if page.looked_at < len(first):
            after_id = list(first)[page.looked_at - 1] if page.looked_at else position.after_id or 0
        following = None
        if after_id != inf:
            following = Position(query_digest=position.query_digest, after_id=int(after_id), after_key=None)
        return page.jobs, following, self._warning(answers)

    def _keys_here(self, q: str, after_id: int, limit: int) -> dict[str, Any]:
        """Return the sort keys of the first *limit* matches above *after_id*; *until*: the last id looked at."""
        rows = JobPage[SortKey](limit, lambda job, body: ((job.id, job.id), 0), never_wants_body)
        position = Position(query_digest="", after_id=after_id, after_key=None)
        following = fill(self._broker, parse(q), position, self._clock(), rows)
        until = following.after_id if following is not None else None
        return {"keys": rows.rows, "until": until, "warning": rows.warning}

    def list_sorted(
        self, query: Query, order: Order, position: SortedPosition | None, limit: int, shown: Shown
    ) -> tuple[list[Job], SortedPosition | None, str]:
        """Like `list_by_id`, in *order*."""
        if not self._spans(query):
            rows = job_rows(limit, now := self._clock(), shown)
            following_here = fill_sorted(self._broker, query, order, position, now, rows)
            return rows.rows, following_here, rows.warning
        after = None if position is None else [position.rank, position.id]
        asked = {"q": str(query), "order": [order.key, order.is_descending], "after": after, "limit": limit}
        answers = self._shards.ask_each(SORTED_KEYS, dict.fromkeys(self._shards.all, asked))
        refuse_long(sum([one["most"] for one in answers.values()]))
        first = _first(merged_keys({shard: one["keys"] for shard, one in answers.items()}, order), limit + 1)
        page = self.page({id: shard for id, (_, shard) in islice(first.items(), limit)}, shown, query)
        following = position
        if page.looked_at:
            id, (rank, _) = list(first.items())[page.looked_at - 1]
            following = sorted_position(query, order, rank, id)
        is_last = page.looked_at == len(first)
        return page.jobs, None if is_last else following, self._warning(answers)

    def _sorted_keys_here(self, q: str, order: tuple[str, bool], after: Any, limit: int) -> dict[str, Any]:
        """Return the sort keys of the first matches after *after*, one more than *limit*."""
        found = first_keys(self._broker, parse(q), Order(*order), after and tuple(after), self._clock(), limit + 1)
        return {"keys": found.keys, "most": found.most, "warning": found.warning}

    def _spans(self, query: Query) -> bool:
        """Return whether the jobs of *query* may be on several shards."""
        return not query.tube and bool(self._shards.others)

    def _warning(self, answers: Any) -> str:
        """Return the warnings of *answers*, by shard, and one about the shards without an answer."""
        warnings = [f"Shard {shard}: {one['warning']}" for shard, one in sorted(answers.items()) if one["warning"]]
        if missing := [str(shard) for shard in self._shards.all if shard not in answers]:
            shard = "shard" if len(missing) == 1 else "shards"
            warnings.append(f"The jobs of {shard} {', '.join(missing)} are missing: its process does not answer.")
        return " ".join(warnings)


def _first(keys: Iterable[tuple[Rank, int, int]], limit: int) -> dict[int, tuple[Rank, int]]:
    """Return the first *limit* jobs of merged *keys*: rank and shard by id. A job that moves may be there twice."""
    first: dict[int, tuple[Rank, int]] = {}
    for rank, id, shard in keys:
        first.setdefault(id, (rank, shard))
        if len(first) == limit:
            break
    return first


def job_rows(limit: int, now: int, shown: Shown) -> JobPage[Job]:
    """Return an empty page for up to *limit* jobs."""

    def make_row(job: CoreJob, body: bytes | None) -> tuple[Job, int]:
        row = _model(job, body, now, shown)
        return row, 0 if row.body is None or body is None else len(body)

    return JobPage(limit, make_row, shown.wants_body)


def _answered_rows(limit: int, now: int, shown: Shown) -> JobPage[Job]:
    """Return an empty page for an answer to another process, which is bounded."""

    def make_row(job: CoreJob, body: bytes | None) -> tuple[Job, int]:
        row = _model(job, body, now, shown)
        return row, len(encoded(row))

    return JobPage(limit, make_row, shown.wants_body, MAX_ANSWER)


def _model(job: CoreJob, body: bytes | None, now: int, shown: Shown) -> Job:
    row = job_model(job, now, body if shown.bodies and shows_body(job) else None)
    if shown.paths:
        row.fields = field_texts(body, shown.paths)
    return row
