"""Cursors: positions in a list, as opaque text that every version of the server either reads or refuses."""

from __future__ import annotations

import base64
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from greenstalk_server.web.framework.api.problems import refuse

DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1000

Limit = Annotated[int, Meta(ge=1, le=MAX_LIMIT, description="The maximum number of items to return.")]

Cursor = Annotated[
    str,
    Meta(
        max_length=2000,
        description="Where to continue: `next_cursor` of the previous response. All other parameters must be the same.",
    ),
]

NextCursor = Annotated[
    str | None,
    Meta(
        description="The `cursor` of the next page; null on the last page. Any page may have fewer items than `limit`."
    ),
]

Position = TypeVar("Position", bound=Struct)


def dump(position: Struct) -> str:
    """Return *position* as a cursor."""
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).rstrip(b"=").decode()


def load(cursor: str, type: type[Position]) -> Position:
    """Decode *cursor* to a position of *type*; refuse a cursor of another type."""
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(raw, type=type)
    except (ValueError, RecursionError):  # binascii.Error, msgspec's errors and UnicodeDecodeError are ValueErrors
        refuse("cursor", "must be the “next_cursor” of a response to the same request")
