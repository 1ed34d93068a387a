"""What a request asks for: each parameter read strictly, or refused by a 400 that names it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from werkzeug.exceptions import BadRequest

from greenstalk_server.core.job import BURIED, DELAYED, MAX_ID, READY, RESERVED, STATE_NAMES
from greenstalk_server.core.tube import is_tube_name
from greenstalk_server.web import text

MAX_NUMBER: Final = 2**32 - 1
"""The largest priority, and the largest count of seconds (protocol.txt)."""

MAX_PUT: Final = 1024 * 1024
"""Bytes of a body that can be put from a page, if the queue takes as large a job; it is read in the loop."""

STATES: Final = (READY, RESERVED, DELAYED, BURIED)
"""In the order of a page."""

_DIGITS: Final = re.compile(r"[0-9]{1,20}")
_CURSOR: Final = re.compile(r"([0-9]{1,40})-([0-9]{1,20})")

Fields = Mapping[str, str]


def tube_name(fields: Fields) -> bytes:
    """The field `tube`: a legal name, whether there is such a tube or not."""
    given = fields.get("tube", "")
    name = given.encode(errors="replace")
    if not given:
        raise BadRequest("“tube” is missing: it names the tube.")
    if not is_tube_name(name):
        raise BadRequest(
            f"“tube” must be the name of a tube, not “{given[:200]}”: 1 to 200 of A–Z, a–z, 0–9 and -+/;.$_(),"
            " the first of them no hyphen."
        )
    return name


def job_id(fields: Fields) -> int:
    """The field `id`."""
    return number(fields, "id", 1, MAX_ID)


def number(fields: Fields, name: str, least: int, most: int) -> int:
    """The field *name*, a whole number of *least* to *most*."""
    given = fields.get(name, "").strip()
    if _DIGITS.fullmatch(given) and least <= int(given) <= most:
        return int(given)
    said = f"not “{given[:40]}”" if given else "and is missing"
    raise BadRequest(f"“{name}” must be a whole number from {text.number(least)} to {text.number(most)}, {said}.")


def line(fields: Fields, name: str, most: int) -> str:
    """The field *name*, a line of text of at most *most* characters, or none."""
    given = " ".join(fields.get(name, "").split())
    if len(given) > most:
        raise BadRequest(f"“{name}” must have at most {most} characters, and has {text.number(len(given))}.")
    return given


def state(fields: Fields, states: Sequence[int] = STATES, default: int | None = None) -> int:
    """The field `state`, one of *states* by its name in the protocol."""
    given = fields.get("state", "")
    if not given and default is not None:
        return default
    for one in states:
        if STATE_NAMES[one] == given:
            return one
    names = ", ".join(STATE_NAMES[one] for one in states)
    said = f"not “{given[:40]}”" if given else "and is missing"
    raise BadRequest(f"“state” must be one of {names}, {said}.")


def cursor(fields: Fields) -> tuple[int, int] | None:
    """The field `after`: the rank and id of the last job of the page before, or None for the first page."""
    given = fields.get("after", "")
    if not given:
        return None
    match = _CURSOR.fullmatch(given)
    if match is None:
        raise BadRequest(f"“after” must come from a link of the list of jobs, and “{given[:40]}” does not.")
    return int(match[1]), int(match[2])
