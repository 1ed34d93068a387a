"""The ids of the jobs of a conversation, and their numbers in it.

The number of a job says which job id of the conversation it has: the first is 1. With one process, ids are consecutive,
so the number follows from the last id before the conversation. With several shards, the ids of a shard differ by the
number of shards, so an id says nothing about the number: `LearnedIds` takes it from the expected reply in the place
where the id first appears. All later replies must then have the same number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.support.servers import MAX_IDS

_REPLY = re.compile(rb"(?:INSERTED|RESERVED|FOUND|BURIED|DELETED) (\d+)|OK \d+\r\n---\nid: (\d+)\n")
_EXPECTED = re.compile(r"(?:INSERTED|RESERVED|FOUND|BURIED|DELETED) {(\d+)}|OK \*\nid: {(\d+)}\n")


class Ids:
    """Consecutive ids after *last_id*."""

    def __init__(self, last_id: int) -> None:
        self._last_id = last_id

    def id(self, number: int) -> int:
        """Return the id of the job *number*."""
        return self._last_id + number

    def name(self, id: int) -> str:
        """Return the number of the job *id* in braces."""
        return f"{{{id - self._last_id}}}"

    def learn(self, reply: bytes) -> None:
        """Take note of the next reply of the conversation."""


class LearnedIds(Ids):
    """Ids of several shards, learned from the replies and the *expected* replies."""

    def __init__(self, last_id: int, shards: int, expected: Sequence[str]) -> None:
        """*last_id* is that of the shard of `default`."""
        super().__init__(last_id)
        self._shards = shards
        self._expected = iter(expected)
        self._ids: dict[int, int] = {}
        self._numbers: dict[int, int] = {}

    def id(self, number: int) -> int:
        """Return the id of the job *number*.

        If it has not appeared, return the id that it has if all jobs so far were put into `default`. If this is the id
        of another job, *number* will not appear, since no job got its id; return an id that is not assigned yet.
        """
        likely = self._last_id + number * self._shards
        return self._ids.get(number, likely if likely not in self._numbers else likely + MAX_IDS * self._shards)

    def name(self, id: int) -> str:
        """Return the number of the job *id* in braces, or the id if it was not expected."""
        return f"{{{self._numbers[id]}}}" if id in self._numbers else f"{{id {id}}}"

    def learn(self, reply: bytes) -> None:
        """Take note of the next reply, and of the number that its expected reply has."""
        found, expected = _REPLY.match(reply), _EXPECTED.match(next(self._expected, ""))
        if found and expected:
            id, number = int(found[1] or found[2]), int(expected[1] or expected[2])
            if id not in self._numbers and number not in self._ids:
                self._ids[number], self._numbers[id] = id, number
