"""Make one reply of the replies of several shards to the same command. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from greenstalk_server.protocol import replies
from greenstalk_server.protocol.replies import CRLF

_Test: TypeAlias = Callable[[bytes], bool]

SUMMED: Final = (b"cmd-", b"current-", b"total-", b"job-timeouts", b"rusage-", b"binlog-records-", b"body-bytes-")
"""Beginnings of the keys of stats whose values add up. The other values are those of the process that replies."""

YAML: Final = b"---\n"
"""Beginning of the body of each list and statistic."""

DEFAULT_LINE: Final = b"- default\n"
"""The first line of the list of each shard, which has had `default` from the beginning."""


def merged_names(own: list[bytes], parts: list[bytes]) -> list[memoryview]:
    """Return the lines of *own* and those of *parts*, replies to list-tubes, with `default` once.

    No name is looked at: a queue may have 100,000 tubes.
    """
    found = [memoryview(lines) for lines in own]
    has_default = bool(own) and own[0].startswith(DEFAULT_LINE)
    for part in parts:
        start = part.index(YAML) + len(YAML)
        if part.startswith(DEFAULT_LINE, start):
            start += len(DEFAULT_LINE) if has_default else 0
            has_default = True
        found.append(memoryview(part)[start : -len(CRLF)])
    return found


def merged_stats(parts: list[bytes]) -> bytes:
    """Return the statistics of the server of which *parts*, the own ones first, are the statistics of the shards."""
    is_draining = any(b"\ndraining: true\n" in part for part in parts)
    found = _added(parts, lambda key: key.startswith(SUMMED))
    found[b"current-tubes"] = b"%d" % (int(found[b"current-tubes"]) - len(parts) + 1)  # each shard has `default`
    if is_draining:
        found[b"draining"] = b"true"
    return _yaml(found)


def merged_group(parts: list[bytes]) -> bytes:
    """Return the statistics of a group; shards without the group say NOT_FOUND."""
    found = [part for part in parts if part != replies.NOT_FOUND]
    return _yaml(_added(found, lambda key: key != b"name")) if found else replies.NOT_FOUND


def summed(word: bytes, parts: Iterable[bytes]) -> int:
    """Return the sum of the first numbers of *parts*, those that begin with *word*."""
    return sum([int(part.split()[1]) for part in parts if part.startswith(word)])


def _added(parts: list[bytes], is_added: _Test) -> dict[bytes, bytes]:
    """Return the values of the first of *parts*, with those of the others added where *is_added* says so of the key."""
    found: dict[bytes, bytes] = {}
    for part in parts:
        for line in _lines(part):
            key, separator, value = line.partition(b": ")
            if not separator:
                continue
            if key not in found:
                found[key] = value
            elif is_added(key):
                found[key] = _sum(found[key], value)
    return found


def _sum(one: bytes, other: bytes) -> bytes:
    return b"%d" % (int(one) + int(other)) if b"." not in one + other else b"%.6f" % (float(one) + float(other))


def _lines(reply: bytes) -> list[bytes]:
    """Return the lines of YAML in *reply*."""
    return reply.partition(CRLF)[2].split(b"\n")


def _yaml(values: dict[bytes, bytes]) -> bytes:
    body = b"---\n" + b"".join([b"%b: %b\n" % each for each in values.items()])
    return b"".join((replies.ok_line(len(body)), body, CRLF))
