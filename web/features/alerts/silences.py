"""Silences: conditions that are not sent for a while. Pure: no clock, no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated, Final

from msgspec import Meta
from werkzeug.exceptions import Conflict

from greenstalk_server.core.tube_names import any_of
from greenstalk_server.web.framework.api.values import Instant, ResponseModel, TubePattern, instant, nanoseconds

MAX_SILENCES: Final = 100
MAX_SILENCE: Final = 30 * 24 * 3600
"""Maximum length of a silence, seconds."""

MAX_REASON_LENGTH: Final = 200


class Silence(ResponseModel):
    """Conditions that are not sent for a while."""

    id: Annotated[int, Meta(ge=1)]
    tubes: Annotated[TubePattern | None, Meta(description="Pattern of the tubes; null for all tubes and the server.")]
    condition: Annotated[str | None, Meta(description="The kind of the conditions; null for all.")]
    until: Instant
    since: Instant
    who: Annotated[str, Meta(description="Name of the user who set it.")]
    reason: str


class Silences:
    """The silences of one server, by id."""

    def __init__(self, silences: Iterable[Silence] = (), last: int = 0) -> None:
        self._silences: dict[int, Silence] = {}
        self._patterns: dict[int, re.Pattern[bytes] | None] = {}
        self._last: int = last
        self._scopes: dict[str | None, tuple[bool, re.Pattern[bytes] | None]] = {}
        self._scopes_until: int = 0
        for silence in silences:
            self._keep(silence)

    @property
    def last(self) -> int:
        """The id of the last silence that was added."""
        return self._last

    def all(self) -> list[Silence]:
        """Return the silences in the order of their ends."""
        return sorted(self._silences.values(), key=lambda silence: (silence.until, silence.id))

    def get(self, id: int) -> Silence | None:
        return self._silences.get(id)

    def add(self, tubes: str, condition: str, seconds: int, who: str, reason: str, now: int) -> Silence:
        """Add and return a silence of *seconds*; raise Conflict if there are too many.

        tubes       pattern of the tubes; empty for all tubes and the server.
        condition   the kind of the conditions; empty for all.
        """
        self.remove_expired(now)
        if len(self._silences) >= MAX_SILENCES:
            raise Conflict(f"The silence was not set: there are already {MAX_SILENCES} silences, the maximum.")
        since = instant(now)
        silence = Silence(
            id=self._last + 1,
            tubes=tubes or None,
            condition=condition or None,
            until=since + timedelta(seconds=seconds),
            since=since,
            who=who,
            reason=reason,
        )
        self._keep(silence)
        return silence

    def remove(self, id: int) -> bool:
        """Remove a silence; return False if there is none with this id."""
        self._patterns.pop(id, None)
        self._scopes_until = 0
        return self._silences.pop(id, None) is not None

    def remove_expired(self, now: int) -> bool:
        """Remove the silences that have ended; return whether there was one."""
        expired = [silence.id for silence in self._silences.values() if silence.until <= instant(now)]
        for id in expired:
            self.remove(id)
        return bool(expired)

    def has(self, kind: str, tube: bytes, now: int) -> bool:
        """Whether a silence covers conditions of this *kind* and *tube*; faster than `covers` with many silences."""
        if now >= self._scopes_until:
            self._combine(now)
        for name in (None, kind):
            covers_all, pattern = self._scopes.get(name, (False, None))
            if covers_all or (pattern is not None and tube and pattern.fullmatch(tube)):
                return True
        return False

    def covers(self, kind: str, tube: bytes, now: int) -> Silence | None:
        """Return the silence of this *kind* and *tube* with the latest end, or None."""
        found = None
        for id, silence in self._silences.items():
            if silence.until <= instant(now) or silence.condition not in (None, kind):
                continue
            pattern = self._patterns[id]
            if pattern is not None and not (tube and pattern.fullmatch(tube)):
                continue
            if found is None or silence.until > found.until:
                found = silence
        return found

    def _keep(self, silence: Silence) -> None:
        self._silences[silence.id] = silence
        self._patterns[silence.id] = any_of([silence.tubes] if silence.tubes else [])
        self._last = max(self._last, silence.id)
        self._scopes_until = 0

    def _combine(self, now: int) -> None:
        """Combine the silences of each kind. The result is valid until the first of them ends."""
        lasting = [silence for silence in self._silences.values() if silence.until > instant(now)]
        self._scopes = {}
        for kind in {silence.condition for silence in lasting}:
            patterns = [silence.tubes for silence in lasting if silence.condition == kind]
            self._scopes[kind] = None in patterns, any_of([pattern for pattern in patterns if pattern])
        self._scopes_until = min([nanoseconds(silence.until) for silence in lasting], default=2**63)
