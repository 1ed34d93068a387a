"""Silences: conditions that are not sent for a while. Pure: no clock, no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.tube_names import any_of

MAX_SILENCES: Final = 100
MAX_SILENCE: Final = 30 * 24 * 3600
"""Maximum length of a silence, seconds."""

MAX_REASON_LENGTH: Final = 200


class SilenceLimitExceeded(Exception):
    """There are too many silences; the message names the limit."""


@dataclass(frozen=True, slots=True)
class Silence:
    """A silence.

    id          identifies the silence; each silence has the next number.
    tubes       pattern of the tubes whose conditions are silenced; empty for all tubes and the server.
    kind        the kind of the conditions; empty for all.
    until       when it ends, nanoseconds since the Unix epoch.
    since       when it was set, nanoseconds.
    who         name of the user who set it.
    """

    id: int
    tubes: str
    kind: str
    until: int
    since: int
    who: str
    reason: str


class Silences:
    """The silences of one server, by id."""

    def __init__(self, silences: Iterable[Silence] = (), last: int = 0) -> None:
        self._silences: dict[int, Silence] = {}
        self._patterns: dict[int, re.Pattern[bytes] | None] = {}
        self._last: int = last
        self._scopes: dict[str, tuple[bool, re.Pattern[bytes] | None]] = {}
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

    def add(self, tubes: str, kind: str, seconds: int, who: str, reason: str, now: int) -> Silence:
        """Add and return a silence of *seconds*; raise SilenceLimitExceeded if there are too many."""
        self.remove_expired(now)
        if len(self._silences) >= MAX_SILENCES:
            raise SilenceLimitExceeded(f"there are already {MAX_SILENCES} silences, the maximum")
        silence = Silence(self._last + 1, tubes, kind, now + seconds * SECOND, now, who, reason)
        self._keep(silence)
        return silence

    def remove(self, id: int) -> bool:
        """Remove a silence; return False if there is none with this id."""
        self._patterns.pop(id, None)
        self._scopes_until = 0
        return self._silences.pop(id, None) is not None

    def remove_expired(self, now: int) -> bool:
        """Remove the silences that have ended; return whether there was one."""
        expired = [silence.id for silence in self._silences.values() if silence.until <= now]
        for id in expired:
            self.remove(id)
        return bool(expired)

    def has(self, kind: str, tube: bytes, now: int) -> bool:
        """Whether a silence covers conditions of this *kind* and *tube*; faster than `covers` with many silences."""
        if now >= self._scopes_until:
            self._combine(now)
        for name in ("", kind):
            covers_all, pattern = self._scopes.get(name, (False, None))
            if covers_all or (pattern is not None and tube and pattern.fullmatch(tube)):
                return True
        return False

    def covers(self, kind: str, tube: bytes, now: int) -> Silence | None:
        """Return the silence of this *kind* and *tube* with the latest end, or None."""
        found = None
        for id, silence in self._silences.items():
            if silence.until <= now or silence.kind not in ("", kind):
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
        lasting = [silence for silence in self._silences.values() if silence.until > now]
        self._scopes = {}
        for kind in {silence.kind for silence in lasting}:
            tubes = [silence.tubes for silence in lasting if silence.kind == kind]
            self._scopes[kind] = "" in tubes, any_of([pattern for pattern in tubes if pattern])
        self._scopes_until = min([silence.until for silence in lasting], default=2**63)
