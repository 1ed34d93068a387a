"""Request parameters, read strictly: an invalid one is refused with a 400 that names it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from werkzeug.exceptions import BadRequest

from greenstalk_server.core.jobs.job import BURIED, DELAYED, MAX_ID, READY, RESERVED, SECOND, STATE_NAMES
from greenstalk_server.core.tags.tags import Tags
from greenstalk_server.core.tube_names import is_tube_name
from greenstalk_server.web.framework import text

MAX_NUMBER: Final = 2**32 - 1
"""The largest priority, and the largest number of seconds (protocol.txt)."""

MAX_PUT: Final = 1024 * 1024
"""Maximum bytes of a body that a page can put, if the queue accepts such large jobs: the event loop reads the body."""

STATES: Final = (READY, RESERVED, DELAYED, BURIED)
"""States in the order in which pages show them."""

_DIGITS: Final = re.compile(r"[0-9]{1,20}")
_CURSOR: Final = re.compile(r"(-?[0-9]{1,40})-([0-9]{1,20})")

# A path that a browser resolves to the same site. It has no second slash at the start, no backslash (browsers treat it
# as a slash), and no space or control character (browsers drop some of them).
_PATH: Final = re.compile(r"/(?![/\\])[^\\\x00-\x20\x7f]*")

Fields = Mapping[str, str]


def tube_name(fields: Fields) -> bytes:
    """Return the field `tube`, a valid name; the tube need not exist."""
    given = fields.get("tube", "")
    name = given.encode(errors="replace")
    if not given:
        raise BadRequest("“tube” is missing. Give the name of a tube.")
    if not is_tube_name(name):
        raise BadRequest(
            f"“tube” must be a tube name, not “{given[:200]}”: 1 to 200 characters of A–Z, a–z, 0–9 and -+/;.$_(),"
            " and no hyphen at the start."
        )
    return name


def job_id(fields: Fields) -> int:
    """Return the field `id`."""
    return number(fields, "id", 1, MAX_ID)


def number(fields: Fields, name: str, least: int, most: int) -> int:
    """Return the field *name*, a whole number from *least* to *most*."""
    given = fields.get(name, "").strip()
    if _DIGITS.fullmatch(given) and least <= int(given) <= most:
        return int(given)
    found = f"not “{given[:40]}”" if given else "and is missing"
    raise BadRequest(f"“{name}” must be a whole number from {text.number(least)} to {text.number(most)}, {found}.")


def tags(fields: Fields) -> Tags | None:
    """Return the tags in the fields `idp`, `idp-ttl`, `grp`, `aft`, `con` and `con-limit`; None if there is none."""
    idp, group, after, con = (_key(fields, name) for name in ("idp", "grp", "aft", "con"))
    if not (idp or group or after or con):
        return None
    if group and group == after:
        raise BadRequest("“aft” must be another group than “grp”: a job cannot wait for its own group.")
    ttl = number(fields, "idp-ttl", 0, MAX_NUMBER) if idp and fields.get("idp-ttl") else 0
    limit = number(fields, "con-limit", 1, MAX_NUMBER) if con and fields.get("con-limit") else int(bool(con))
    return Tags(idp, ttl * SECOND, group, after, con, limit)


def _key(fields: Fields, name: str) -> bytes:
    """Return the field *name*, a valid key; empty if it is missing."""
    given = fields.get(name, "").strip()
    key = given.encode(errors="replace")
    if given and not is_tube_name(key):
        raise BadRequest(
            f"“{name}” must be a key, not “{given[:200]}”: 1 to 200 characters of A–Z, a–z, 0–9 and -+/;.$_(),"
            " and no hyphen at the start."
        )
    return key


def line(fields: Fields, name: str, most: int) -> str:
    """Return the field *name* as one line of at most *most* characters; empty if it is missing."""
    given = " ".join(fields.get(name, "").split())
    if len(given) > most:
        raise BadRequest(f"“{name}” must have at most {most} characters, but has {text.number(len(given))}.")
    return given


def own_path(fields: Fields, name: str, home: str) -> str:
    """Return the field *name* if it is a path of this dashboard, whose first page is at *home*; else return *home*."""
    given = fields.get(name, "")
    prefix = home if home.endswith("/") else f"{home}/"
    return given if _PATH.fullmatch(given) and (given == home or given.startswith(prefix)) else home


def state(fields: Fields, states: Sequence[int] = STATES, default: int | None = None) -> int:
    """Return the field `state`, one of *states* by its protocol name; *default* if it is missing."""
    given = fields.get("state", "")
    if not given and default is not None:
        return default
    for one in states:
        if STATE_NAMES[one] == given:
            return one
    names = ", ".join(STATE_NAMES[one] for one in states)
    found = f"not “{given[:40]}”" if given else "and is missing"
    raise BadRequest(f"“state” must be one of {names}, {found}.")


def cursor(fields: Fields) -> tuple[int, int] | None:
    """Return the field `after`: sort key and id of the last job of the previous page, or None for the first page."""
    given = fields.get("after", "")
    if not given:
        return None
    match = _CURSOR.fullmatch(given)
    if match is None:
        raise BadRequest(f"“after” must be the value in a link of the job list, not “{given[:40]}”.")
    return int(match[1]), int(match[2])
