"""Lists of tube names that replies share, and the budget of names in all lists that are being sent. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

NAME_OVERHEAD: Final = 3
"""Bytes that a line of a list adds to its name: "- " and the newline."""

MAX_LISTED_NAMES: Final = 4_000_000
"""Maximum number of names in all lists that are being sent. Each name takes 8 bytes."""


class NameBudget:
    """The number of names in all lists that are being sent, and its maximum.

    names   number of names in all lists.
    limit   maximum of `names`; a list that would exceed it is refused.
    """

    __slots__ = ("limit", "names")

    def __init__(self) -> None:
        self.names: int = 0
        self.limit: int = MAX_LISTED_NAMES


class NameList:
    """Names in the order in which they are listed, shared by all streams that send the same list.

    The names count against the budget while at least one stream holds the list.

    size   bytes of the list as YAML.
    """

    __slots__ = ("_budget", "_readers", "names", "size")

    def __init__(self, names: Collection[bytes], budget: NameBudget) -> None:
        """*budget* is the server's."""
        self.names: list[bytes] = list(names)
        self.size: int = len("---\n") + sum(map(len, names)) + NAME_OVERHEAD * len(self.names)
        self._budget: NameBudget = budget
        self._readers: int = 0

    def acquire(self) -> bool:
        """Add a reader. Return False, without adding it, if too many names are being sent."""
        if not self._readers:
            if self._budget.names + len(self.names) > self._budget.limit:
                return False
            self._budget.names += len(self.names)
        self._readers += 1
        return True

    def release(self) -> None:
        """Remove a reader that `acquire` added."""
        self._readers -= 1
        if not self._readers:
            self._budget.names -= len(self.names)
