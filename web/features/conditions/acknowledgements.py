"""Acknowledgements: a principal states that a condition is known, and why it may last for a while.

An acknowledged condition is not sent to receivers of alerts, and the overview lists it below the others. An
acknowledgement ends at its time. An acknowledgement of a single tube also ends when another job of the tube fails,
unless it covers later failures too.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from werkzeug.exceptions import Conflict

from greenstalk_server.core.tube_names import any_of
from greenstalk_server.web.features.conditions.measures import BURIED, BURIED_GROWTH, WAITING_DEAD_LETTERS
from greenstalk_server.web.framework.api.values import Count, Instant, ResponseModel, TubePattern, instant, nanoseconds
from greenstalk_server.web.store.rows import Row, decoded
from greenstalk_server.web.store.store import Store

ROW: Final = "acknowledgements"
"""Kind of the row."""

MAX_ACKNOWLEDGEMENTS: Final = 100
MAX_SECONDS: Final = 30 * 24 * 3600
"""Maximum length of an acknowledgement, seconds."""

MAX_REASON_LENGTH: Final = 200

OF_FAILED_JOBS: Final = frozenset({None, BURIED.name, BURIED_GROWTH.name, WAITING_DEAD_LETTERS.name})
"""Kinds whose acknowledgements end when another job fails; None for all kinds."""


class Acknowledgement(ResponseModel):
    """An acknowledgement of conditions."""

    id: Annotated[int, Meta(ge=1)]
    tubes: Annotated[TubePattern | None, Meta(description="Pattern of the tubes; null for all tubes and the server.")]
    condition: Annotated[str | None, Meta(description="The kind of the conditions; null for all.")]
    until: Instant
    since: Instant
    who: Annotated[str, Meta(description="Name of the user who acknowledged.")]
    reason: str
    covers_new: Annotated[
        bool,
        Meta(
            description="Whether jobs that fail later are covered too. If not, and if `tubes` is the name of a tube,"
            " the acknowledgement ends when another job of the tube fails."
        ),
    ]


class Saved(Struct):
    """The row as JSON; *last*: the id of the last acknowledgement."""

    last: Count
    acknowledgements: Annotated[list[Acknowledgement], Meta(max_length=MAX_ACKNOWLEDGEMENTS)]


class Acknowledgements:
    """The acknowledgements of one server. No method switches, except `save`.

    version     grows with each change.
    """

    def __init__(self, store: Store) -> None:
        self.version: int = 0
        self._store: Store = store
        self._kept: dict[int, Acknowledgement] = {}
        self._patterns: dict[int, re.Pattern[bytes] | None] = {}
        self._last: int = 0
        self._scopes: dict[str | None, tuple[bool, re.Pattern[bytes] | None]] = {}
        self._scopes_until: int = 0
        self._ending: dict[bytes, list[int]] = {}
        store.on_restore(ROW, self._restore)

    def all(self) -> list[Acknowledgement]:
        """Return the acknowledgements in the order of their ends."""
        return sorted(self._kept.values(), key=lambda one: (one.until, one.id))

    def get(self, id: int) -> Acknowledgement | None:
        return self._kept.get(id)

    def add(
        self, tubes: str, condition: str, seconds: int, who: str, reason: str, now: int, *, covers_new: bool = True
    ) -> Acknowledgement:
        """Add and return an acknowledgement of *seconds*; raise Conflict if there are too many.

        tubes       pattern of the tubes; empty for all tubes and the server.
        condition   the kind of the conditions; empty for all.
        covers_new  whether jobs that fail later are covered too; always True for a pattern, and for the server.
        """
        self.remove_expired(now)
        if len(self._kept) >= MAX_ACKNOWLEDGEMENTS:
            raise Conflict(f"Nothing was acknowledged: there are already {MAX_ACKNOWLEDGEMENTS} acknowledgements.")
        since = instant(now)
        one = Acknowledgement(
            id=self._last + 1,
            tubes=tubes or None,
            condition=condition or None,
            until=since + timedelta(seconds=seconds),
            since=since,
            who=who,
            reason=reason,
            covers_new=covers_new or not tubes or "*" in tubes or (condition or None) not in OF_FAILED_JOBS,
        )
        self._keep(one)
        self._put()
        return one

    def remove(self, id: int) -> bool:
        """Remove an acknowledgement; return False if there is none with this id."""
        if self._kept.pop(id, None) is None:
            return False
        self._changed()
        self._put()
        return True

    def remove_expired(self, now: int) -> None:
        """Remove the acknowledgements that have ended."""
        for id in [one.id for one in self._kept.values() if one.until <= instant(now)]:
            self.remove(id)

    def remove_failed(self, tube: bytes, failed_at: int) -> list[Acknowledgement]:
        """Remove and return the acknowledgements of *tube* that end because a job failed at *failed_at*."""
        if tube not in self._ending:
            return []
        at = instant(failed_at)
        ended = [self._kept[id] for id in self._ending[tube] if self._kept[id].since < at]
        for one in ended:
            self.remove(one.id)
        return ended

    def has(self, kind: str, tube: bytes, now: int) -> bool:
        """Whether conditions of this *kind* and *tube* are acknowledged; faster than `covers` if there are many."""
        if now >= self._scopes_until:
            self._combine(now)
        for name in (None, kind):
            covers_all, pattern = self._scopes.get(name, (False, None))
            if covers_all or (pattern is not None and tube and pattern.fullmatch(tube)):
                return True
        return False

    def covers(self, kind: str, tube: bytes, now: int) -> Acknowledgement | None:
        """Return the acknowledgement of this *kind* and *tube* with the latest end, or None."""
        found = None
        for id, one in self._kept.items():
            if one.until <= instant(now) or one.condition not in (None, kind):
                continue
            pattern = self._patterns[id]
            if pattern is not None and not (tube and pattern.fullmatch(tube)):
                continue
            if found is None or one.until > found.until:
                found = one
        return found

    def save(self) -> None:
        """Wait until the changes are written, or an attempt to write them has failed. Switches."""
        self._store.save()

    def _put(self) -> None:
        self._store.put(ROW, 0, b"", msgspec.json.encode(Saved(self._last, self.all())))

    def _restore(self, rows: list[Row]) -> None:
        for _, _, saved in decoded(rows, Saved, "so the acknowledgements are lost"):
            self._last = max(self._last, saved.last)
            for one in saved.acknowledgements:
                self._keep(one)

    def _keep(self, one: Acknowledgement) -> None:
        self._kept[one.id] = one
        self._last = max(self._last, one.id)
        self._changed()

    def _changed(self) -> None:
        """Index the acknowledgements again."""
        self._patterns = {one.id: any_of([one.tubes] if one.tubes else []) for one in self._kept.values()}
        self._ending = {}
        for one in self._kept.values():
            if one.tubes and not one.covers_new:
                self._ending.setdefault(one.tubes.encode(), []).append(one.id)
        self._scopes_until = 0
        self.version += 1

    def _combine(self, now: int) -> None:
        """Combine the acknowledgements of each kind. The result is valid until the first of them ends."""
        lasting = [one for one in self._kept.values() if one.until > instant(now)]
        self._scopes = {}
        for kind in {one.condition for one in lasting}:
            patterns = [one.tubes for one in lasting if one.condition == kind]
            self._scopes[kind] = None in patterns, any_of([pattern for pattern in patterns if pattern])
        self._scopes_until = min([nanoseconds(one.until) for one in lasting], default=2**63)
