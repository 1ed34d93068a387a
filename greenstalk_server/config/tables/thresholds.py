"""Thresholds of the conditions that need attention: the table `[attention]` of the configuration file.

The keys of the table apply to the server and to every tube. A table `[attention.tubes."PATTERN"]` below it overrides
keys for the tubes whose names match the pattern, in which `*` matches any characters. If several patterns match a tube,
the most specific one wins for each key: an exact name before a pattern, then the larger number of literal characters. A
threshold of 0 turns its condition off. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Annotated, Final, TypeAlias

from msgspec import Meta

from greenstalk_server.config.tables.config_tables import Key, find_key_errors, read_time, typed
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.tube_names import PatternIndex, is_tube_pattern
from greenstalk_server.core.units import parse_size

MAX_PATTERNS: Final = 1000
"""Maximum number of tables below `[attention.tubes]`."""

TUBES: Final = "tubes"

_MINUTE: Final = 60 * SECOND
_HOUR: Final = 3600 * SECOND
_MAX_TIME: Final = 365 * 24 * _HOUR
_MAX_COUNT: Final = 2**63 - 1

Time: TypeAlias = int
Count: TypeAlias = int
Size: TypeAlias = int
Share: TypeAlias = float
"""The kinds of thresholds; each is parsed in its own way."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The thresholds of one tube, or of the server. Times are nanoseconds; 0 turns a condition off.

    no_consumers    time for which a tube has ready jobs and no client watches it.
    oldest_ready    time for which the oldest ready job of a tube has been ready.
    backlog_growth  ready jobs added to a tube within 15 minutes, less those removed.
    buried          buried jobs of a tube.
    buried_growth   buried jobs added to a tube within 15 minutes, less those removed.
    timeouts        reservations of a tube's jobs that timed out within 15 minutes.
    timeout_share   minimum share of these timeouts in the reservations of the 15 minutes, from 0 to 1.
    failed_attempts reservations of a tube's jobs that ended by release, timeout or burial within 15 minutes.
    failed_share    minimum share of these in the reservations of the 15 minutes, from 0 to 1.
    dead_letters    jobs of a tube that became dead letters within 15 minutes.
    waiting_dead_letters    jobs that wait in a dead-letter tube.
    held_job        time for which a worker has held a job.
    held_back       time for which a policy has held back the ready jobs of a tube.
    paused          time since the start of a pause of a tube with ready jobs.
    limit_used      share of a limit that is used, from 0 to 1.
    limit_within    time until a limit is reached, at the rate of the last 15 minutes.
    refused         requests within 15 minutes that a limit or an access rule refused.
    memory_used     share of the memory of the machine, or of its control group, that is used, from 0 to 1.
    disk_free       bytes that are free on the disk of the journal.
    disk_within     time until this disk is full, at the rate of the last hour.
    standby_lag     time that the most recent standby is behind.
    """

    no_consumers: Time = 5 * _MINUTE
    oldest_ready: Time = 15 * _MINUTE
    backlog_growth: Count = 1000
    buried: Count = 1
    buried_growth: Count = 10
    timeouts: Count = 10
    timeout_share: Share = 0.05
    failed_attempts: Count = 100
    failed_share: Share = 0.5
    dead_letters: Count = 1
    waiting_dead_letters: Count = 1
    held_job: Time = _HOUR
    held_back: Time = 30 * _MINUTE
    paused: Time = _HOUR
    limit_used: Share = 0.9
    limit_within: Time = _HOUR
    refused: Count = 1
    memory_used: Share = 0.95
    disk_free: Size = 10**9
    disk_within: Time = 6 * _HOUR
    standby_lag: Time = 10 * SECOND


DEFAULTS: Final = Thresholds()


_read_count: Final = typed(Annotated[int, Meta(ge=0, le=_MAX_COUNT)])


def _size(value: object) -> int:
    return parse_size(value, _MAX_COUNT) if isinstance(value, str) else _read_count(value)


_TIME_KEY: Final = Key(
    partial(read_time, most=_MAX_TIME),
    f'a number of seconds, 0 (off) or up to {_MAX_TIME // SECOND}, or text with units in quotes ("90s", "1h30m", "7d")',
)
_COUNT_KEY: Final = Key(_read_count, "a whole number, 0 (off) or more")
_SIZE_KEY: Final = Key(
    _size, 'a whole number of bytes, 0 (off) or more, or text with a unit in quotes ("500MB", "2GiB")'
)
_SHARE_KEY: Final = Key(typed(Annotated[float, Meta(ge=0, le=1)]), "a number from 0 to 1")

_KINDS: Final = {"Time": _TIME_KEY, "Count": _COUNT_KEY, "Size": _SIZE_KEY, "Share": _SHARE_KEY}
_KEYS: Final[Mapping[str, Key]] = {field.name: _KINDS[str(field.type)] for field in fields(Thresholds)}
_OF_THE_SERVER: Final = {"refused", "memory_used", "disk_free", "disk_within", "standby_lag"}
_TUBE_KEYS: Final[Mapping[str, Key]] = {name: key for name, key in _KEYS.items() if name not in _OF_THE_SERVER}

_HINTS: Final = dict.fromkeys(_KEYS, "is a threshold of the server: write it below [attention]")


class ThresholdSet:
    """All thresholds in force. Immutable, apart from a cache.

    server      the thresholds of the server, and of tubes that no pattern matches.
    document    the table from which they were read.
    """

    __slots__ = ("_cache", "_index", "_overrides", "document", "server")

    def __init__(self, document: Mapping[str, object] | None = None) -> None:
        """*document* is the table `[attention]`, in which `find_errors` finds none; None for the defaults."""
        self.document: Mapping[str, object] = document if document is not None else {}
        self.server: Thresholds = Thresholds(**_values(self.document))  # type: ignore[arg-type]  # read by their keys
        tables = self.document.get(TUBES, {})
        assert isinstance(tables, dict)
        patterns = sorted(tables, key=lambda pattern: ("*" in pattern, pattern.count("*") - len(pattern), pattern))
        self._overrides: list[dict[str, float]] = [_values(tables[pattern]) for pattern in patterns]
        self._index: PatternIndex = PatternIndex()
        for number, pattern in enumerate(patterns):
            self._index.add(pattern, number)
        self._cache: dict[tuple[int, ...], Thresholds] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ThresholdSet) and self.document == other.document

    __hash__ = None  # type: ignore[assignment]  # compared by value, and never a key

    def of_tube(self, name: bytes) -> Thresholds:
        """Return the thresholds of the tube *name*."""
        if not self._overrides:
            return self.server
        numbers = tuple(sorted(self._index.find(name)))
        found = self._cache.get(numbers)
        if found is None:
            values: dict[str, float] = _values(self.document)
            for number in reversed(numbers):
                values |= self._overrides[number]
            found = self._cache[numbers] = Thresholds(**values)  # type: ignore[arg-type]
        return found


def find_errors(document: object) -> list[tuple[str, str]]:
    """Return each error in *document*, the table `[attention]`: the dotted key below it, and a complete message."""
    if not isinstance(document, dict):
        return [("", "attention: must be a table: write [attention], and its keys below it")]
    errors = _errors("attention", document, _KEYS)
    tables = document.get(TUBES, {})
    if not isinstance(tables, dict):
        return [*errors, (TUBES, 'attention.tubes: must be tables, each headed [attention.tubes."PATTERN"]')]
    if len(tables) > MAX_PATTERNS:
        errors.append((TUBES, f"attention.tubes: must be at most {MAX_PATTERNS} tables, not {len(tables)}"))
    for pattern, table in tables.items():
        place = f'attention.tubes."{pattern}"'
        if not is_tube_pattern(pattern):
            text = f"attention.tubes: {pattern[:60]!r} cannot match any tube; * matches any characters"
            errors.append((f"{TUBES}.{pattern}", text))
        elif not isinstance(table, dict):
            errors.append((f"{TUBES}.{pattern}", f"{place}: must be a table of thresholds"))
        else:
            found = _errors(place, table, _TUBE_KEYS)
            errors += [(f"{TUBES}.{pattern}.{key}", message) for key, message in found]
    return errors


def _errors(place: str, table: Mapping[str, object], keys: Mapping[str, Key]) -> list[tuple[str, str]]:
    """Return the errors in the thresholds of *table*, which is at *place* and may have *keys*."""
    given = {name: value for name, value in table.items() if not (name == TUBES and keys is _KEYS)}
    return find_key_errors(place, given, keys, _HINTS)


def _values(table: object) -> dict[str, float]:
    """Return the values of the known keys in *table*."""
    assert isinstance(table, dict)
    return {name: _KEYS[name].read(value) for name, value in table.items() if name in _KEYS}
