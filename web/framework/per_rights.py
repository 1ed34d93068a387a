"""A value for each set of rights in tubes, computed once per version of its source."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from greenstalk_server.config.tables.roles import Rights
from greenstalk_server.web.framework.access import principal

MAX_KEPT: Final = 16
"""Sets of rights whose values are kept. Roles define them, so most servers have fewer."""

T = TypeVar("T")

_Key = tuple[bool, Rights | None]


class PerRights(Generic[T]):
    """Values for principals, one for each set of tubes that they may see."""

    def __init__(self) -> None:
        self._version: Hashable = None
        self._values: dict[_Key, T] = {}

    def get(self, version: Hashable, compute: Callable[[], T]) -> T:
        """Return the value for the current principal at *version* of the source; *compute* returns a missing one.

        The result of *compute* must depend only on the source and on the tubes that the principal may see. May switch
        if *compute* may.
        """
        who = principal()
        key = who.is_known, None if who.sees_all else who.rights
        if self._version != version:
            self._version, self._values = version, {}
        values = self._values
        if key not in values:
            values[key] = compute()
            if len(values) > MAX_KEPT:
                del values[next(iter(values))]
        return values[key]
