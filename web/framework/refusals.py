"""Refused forms: their page is shown again with the values as sent, and the error beside the field.

Invariant: the message of an error about a field begins with the field's name in quotes: `“seconds” must be ...`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from flask import request
from werkzeug.exceptions import HTTPException

_TAGS: Final = ("idp", "idp-ttl", "grp", "aft", "con", "con-limit")

FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "tube_pause": frozenset({"seconds", "reason"}),
    "tube_resume": frozenset(),
    "tube_kick": frozenset({"count"}),
    "tube_clear": frozenset({"confirm"}),
    "tube_put": frozenset({"body", "pri", "delay", "ttr", *_TAGS}),
    "sample_save": frozenset({"name", "body", "pri", "delay", "ttr"}),
    "tubes_preview": frozenset({"pattern", "seconds", "reason"}),
    "bulk_preview": frozenset({"to", "pri", "delay", "rate"}),
    "job_kick": frozenset(),
    "job_bury": frozenset(),
    "job_release": frozenset(),
    "job_delete": frozenset(),
    "job_move": frozenset({"tube"}),
    "job_copy": frozenset({"delay"}),
    "job_redrive": frozenset(),
}
"""Fields of each form that have room for an error beside them. Other errors are shown at the top of the page."""

_FIELD: Final = re.compile(r"“([a-z-]+)” ")


@dataclass(frozen=True, slots=True)
class Sent:
    """A refused form; empty if no form was refused.

    endpoint        the endpoint of the form; empty if there is none.
    values          its fields as sent.
    ids             the ids of the rows that were selected.
    field           the field beside which the page shows *message*; empty to show it at the top of the page.
    """

    endpoint: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    ids: frozenset[str] = frozenset()
    field: str = ""
    message: str = ""

    def is_for(self, endpoint: str) -> bool:
        """Return whether the form of *endpoint* was refused."""
        return self.endpoint == endpoint

    def value(self, endpoint: str, name: str, default: object = "") -> object:
        """Return the value to show in the field *name* of the form of *endpoint*."""
        return self.values.get(name, default) if self.endpoint == endpoint else default

    def error(self, endpoint: str, name: str) -> str:
        """Return the error to show beside the field *name* of the form of *endpoint*; empty if there is none."""
        return self.message if (endpoint, name) == (self.endpoint, self.field) else ""


NOTHING_SENT: Final = Sent()


def sent_form(error: HTTPException) -> Sent:
    """Return the form of the current request, which was refused with *error*."""
    endpoint, message = request.endpoint or "", error.description or error.name
    match = _FIELD.match(message)
    name = match[1] if match is not None else ""
    return Sent(
        endpoint=endpoint,
        values=request.form.to_dict(),
        ids=frozenset(request.form.getlist("id")),
        field=name if name in FIELDS[endpoint] else "",
        message=message,
    )
