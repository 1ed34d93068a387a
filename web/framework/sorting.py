"""Sortable tables: the order that a request names, and column headings, which link to other orders."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from werkzeug.exceptions import BadRequest

from greenstalk_server.web.framework.fields import Fields


@dataclass(frozen=True, slots=True)
class Order:
    """The name of the value by which a list is sorted, and the direction."""

    key: str
    is_descending: bool = False

    @property
    def direction(self) -> str:
        """`ascending` or `descending`."""
        return "descending" if self.is_descending else "ascending"


class Head(NamedTuple):
    """The head of a column, for the macro `table_head`.

    css             its CSS classes.
    href            URL that sorts by this column, or reverses the order if already sorted by it; empty if not sortable.
    sorted          `ascending` or `descending` if the list is sorted by this column, else empty.
    """

    css: str
    label: str
    help: str
    href: str = ""
    sorted: str = ""


class Heads:
    """Makes the column headings of a list in *order*; *url* returns the URL of the list with the given arguments."""

    def __init__(self, order: Order, default: Order, url: Callable[[dict[str, str]], str]) -> None:
        self._order: Order = order
        self._default: Order = default
        self._url: Callable[[dict[str, str]], str] = url

    def head(self, css: str, label: str, help: str, key: str, *, descends_first: bool = False) -> Head:
        """Return the head of the column that sorts by *key*; if that is empty, the column is not sortable.

        The first click sorts ascending, or descending if *descends_first*; the next one reverses the order.
        """
        if not key:
            return Head(css, label, help)
        is_sorted = key == self._order.key
        other = Order(key, not self._order.is_descending if is_sorted else descends_first)
        href = self._url(order_args(other, self._default))
        return Head(css, label, help, href, self._order.direction if is_sorted else "")


def read_order(given: Fields, keys: Collection[str], default: Order) -> Order:
    """Return the order in the fields `sort`, one of *keys*, and `desc`; *default* if there is none."""
    key = given.get("sort")
    if not key:
        return default
    if key not in keys:
        raise BadRequest(f"“sort” must be one of {', '.join(keys)}, not “{key[:40]}”.")
    return Order(key, given.get("desc") == "1")


def order_args(order: Order, default: Order) -> dict[str, str]:
    """Return the URL arguments of *order*; none for *default*."""
    return {} if order == default else {"sort": order.key} | ({"desc": "1"} if order.is_descending else {})
