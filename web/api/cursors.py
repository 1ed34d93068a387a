"""Cursors: where a list goes on, as an opaque text that any server of any time reads, or refuses."""

from __future__ import annotations

import base64
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from greenstalk_server.web.api.framework.problems import refuse

DEFAULT_LIMIT: Final = 100
MOST: Final = 1000

Limit = Annotated[int, Meta(ge=1, le=MOST, description="How many to answer at most.")]

Cursor = Annotated[
    str,
    Meta(
        max_length=2000,
        description="Where to go on: `next_cursor` of the answer before, with the other parameters as they were.",
    ),
]

NextCursor = Annotated[
    str | None,
    Meta(description="The `cursor` that leads on; null if there is no more. A page may have few rows, or none."),
]

Place = TypeVar("Place", bound=Struct)


def dump(place: Struct) -> str:
    """*place* as a cursor."""
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).rstrip(b"=").decode()


def load(cursor: str, type: type[Place]) -> Place:
    """The place that *cursor* tells; refuse it if it is none of this type."""
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(raw, type=type)
    except (ValueError, RecursionError):  # binascii.Error, msgspec's errors and UnicodeDecodeError are ValueErrors
        refuse("cursor", "must be the “next_cursor” of an answer to the same request")
