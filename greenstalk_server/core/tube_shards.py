"""The shard on which each tube lives, and the scope within which its keys count.

A tube lives on the shard that a hash of its name selects. Pins override the hash: a pin assigns all tubes whose names
match one of its patterns to a shard. If several patterns match a name, an exact name wins over a pattern, then the
pattern with more literal characters wins, then the one that is configured first.

In a queue of several shards, groups and concurrency keys (the tags `grp`, `aft` and `con`) count within a *scope*: the
tubes of one pin, or a single tube that has no pin. So whether two tubes happen to be on one shard changes nothing. A
queue of one shard has a single scope, the empty one. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple
from zlib import crc32

from greenstalk_server.core.jobs.id_sequence import MAX_SHARDS
from greenstalk_server.core.tube_names import PatternIndex, is_tube_pattern
from greenstalk_server.core.units import parse_number

MAX_PIN_PATTERNS: Final = 1000
"""Maximum patterns of all pins."""


class Pin(NamedTuple):
    """An assignment of tubes to a shard.

    patterns    patterns of tube names, in which `*` matches any characters.
    shard       number of the shard, from 0.
    """

    patterns: tuple[str, ...]
    shard: int

    def __str__(self) -> str:
        return f"{','.join(self.patterns)}={self.shard}"


class TubeShards:
    """The shards of tubes. Immutable.

    shards  number of shards of the queue.
    pins    the pins; no pattern is in two of them.
    """

    def __init__(self, shards: int = 1, pins: Sequence[Pin] = ()) -> None:
        self.shards: int = shards
        self.pins: tuple[Pin, ...] = tuple(pins)
        self._index: PatternIndex = PatternIndex()
        ordered = [(_order(pattern), number) for number, pin in enumerate(pins) for pattern in pin.patterns]
        self._winners: list[int] = []
        for (_, _, pattern), number in sorted(ordered, key=lambda each: each[0][:2]):
            self._index.add(pattern, len(self._winners))
            self._winners.append(number)

    def shard_of(self, tube: bytes) -> int:
        """Return the shard on which *tube* lives."""
        pin = self._find(tube)
        return self.pins[pin].shard if pin >= 0 else shard_of_tube(tube, self.shards)

    def scope_of(self, tube: bytes) -> bytes:
        """Return the scope of *tube*: it ends with a colon, so no two scopes and names have the same concatenation."""
        pin = self._find(tube)
        return b"*%d:" % pin if pin >= 0 else tube + b":"

    def describe_split(self, tube: bytes, other: bytes) -> str:
        """Return why *tube* and *other* are not on one shard, and the pin that would change it; "" if they are."""
        here, there = self.shard_of(tube), self.shard_of(other)
        if here == there:
            return ""
        one, two = tube.decode(), other.decode()
        return (
            f"{two} is on shard {there}, and {one} on shard {here}; to have both on one shard,"
            f" start with --pin {one},{two}={here}"
        )

    def _find(self, tube: bytes) -> int:
        """Return the number of the pin of *tube*, or -1."""
        if not self.pins:
            return -1
        found = self._index.find(tube)
        return self._winners[min(found)] if found else -1


def parse_pins(text: str) -> tuple[Pin, ...]:
    """Return the pins in *text*, such as `mail.*,failed=1,news=2`: patterns before each shard; raise ValueError."""
    pins: list[Pin] = []
    patterns: list[str] = []
    for part in text.split(","):
        pattern, equals, shard = part.strip().partition("=")
        if not is_tube_pattern(pattern):
            raise ValueError(pattern)
        patterns.append(pattern)
        if equals:
            pins.append(Pin(tuple(patterns), parse_number(shard, maximum=MAX_SHARDS - 1)))
            patterns = []
    if patterns:
        raise ValueError("no shard after the last pattern")
    return tuple(pins)


def find_pin_problem(pins: Sequence[Pin], shards: int) -> str:
    """Return why a queue of *shards* shards cannot have *pins*; "" if it can."""
    seen: set[str] = set()
    for pin in pins:
        if pin.shard >= shards:
            return f"{pin}: there is no shard {pin.shard}: the shards are 0 to {shards - 1}"
        for pattern in pin.patterns:
            if pattern in seen:
                return f"{pin}: the pattern {pattern} is there twice"
            seen.add(pattern)
    return f"there are more than {MAX_PIN_PATTERNS} patterns" if len(seen) > MAX_PIN_PATTERNS else ""


def shard_of_tube(name: bytes, shards: int) -> int:
    """Return the shard of a tube without a pin. This is part of the format of a directory with shards."""
    return crc32(name) % shards


def _order(pattern: str) -> tuple[bool, int, str]:
    """Return a sort key by which the patterns that win come first, and *pattern*."""
    stars = pattern.count("*")
    return (stars > 0, stars - len(pattern), pattern)
