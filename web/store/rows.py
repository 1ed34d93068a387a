"""Rows: the data that the dashboard stores, in a form that does not depend on the storage.

A row has a kind, a number, a name and data. Each feature of the dashboard chooses the kinds of its rows and what their
numbers and names mean; docs/dashboard-data.md lists them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Final, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Meta

MAX_NUMBER: Final = 2**63 - 1

Time = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
"""Nanoseconds since the Unix epoch, as JSON in a row; 0 for never."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class Row(NamedTuple):
    """The number, name and data of a row."""

    number: int
    name: bytes
    data: bytes


def decoded(rows: Iterable[Row], kind: type[T], loss: str) -> Iterator[tuple[int, str, T]]:
    """Yield the number and the name of each of *rows*, and its JSON data as a *kind*.

    A damaged row is left out and logged; *loss* says what is lost.
    """
    for number, name, data in rows:
        try:
            found = name.decode(), msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            log.error("dashboard: a row cannot be read, %s: %s", loss, error)  # noqa: TRY400  the message is complete
        else:
            yield number, *found


Change = tuple[str, int, bytes, bytes | None]
"""The kind, number, name and new data of a row; None removes the row."""


class Rows(Protocol):
    """Storage of rows. Every method may block, may be called in any thread, and raises OSError.

    The results are tuples of the number, the name and the data of a row.
    """

    def read(
        self, kind: str, first: int, last: int, names: Sequence[bytes] | None
    ) -> Sequence[tuple[int, bytes, bytes]]:
        """Return the rows of *kind* with numbers *first* to *last*, by number and name.

        With *names*, return only the rows with these names. The range is then short: each number is looked up.
        """

    def latest(self, kind: str, before: int, limit: int) -> Sequence[tuple[int, bytes, bytes]]:
        """Return the last *limit* rows of *kind* with numbers below *before*, in descending order."""

    def sizes(self, kind: str) -> dict[int, int]:
        """Return the bytes of data of each number of *kind*."""

    def write(self, changes: Sequence[Change], trims: Mapping[str, int]) -> None:
        """Make *changes* durable, then remove the rows up to the number in *trims* of each kind.

        SQLite does this in one transaction. PostgreSQL does it in several statements; after an error, repeat the call.
        """
