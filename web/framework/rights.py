"""Rights at endpoints: an endpoint that changes something declares the least role that may use it.

The guard (web.auth.guard) refuses all other principals. It does not know the tube, so an endpoint that is open to
operators also asks whether the principal operates the tubes concerned (`access.require_operator`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

_ROLE: Final = "least_role"

View = TypeVar("View", bound=Callable[..., Any])


def open_to(role: str) -> Callable[[View], View]:
    """Declare that principals of *role* may send requests to a view: ADMIN, OPERATOR, or VIEWER for everybody."""

    def mark(view: View) -> View:
        setattr(view, _ROLE, role)
        return view

    return mark


def least_role(view: Callable[..., Any] | None) -> str | None:
    """Return the role that *view* declares; None if it declares none, or if there is no view."""
    return getattr(view, _ROLE, None)
