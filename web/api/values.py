"""What the API's types are made of: names, numbers, times, and bodies as text."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.job import MAX_ID, SECOND
from greenstalk_server.core.tube import Tube
from greenstalk_server.web import text
from greenstalk_server.web.api.framework.problems import refuse
from greenstalk_server.web.fields import MAX_NUMBER, MAX_PUT
from greenstalk_server.web.pages.actions import find_tube
from greenstalk_server.web.pages.export import encode_body


class Asked(Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of what a request brings: its query or its body."""


class Told(Struct, kw_only=True):
    """Base of what a response brings."""


TubeName = Annotated[
    str,
    Meta(
        # What follows the dollar is for Python, whose dollar matches before a last line's end, too.
        pattern=r"^[A-Za-z0-9+/;.$_()][-A-Za-z0-9+/;.$_()]{0,199}$(?!\n)",
        description="the name of a tube: 1 to 200 of A–Z, a–z, 0–9 and -+/;.$_(), the first of them no hyphen.",
        examples=["mail"],
    ),
]

JobId = Annotated[int, Meta(ge=1, description="The id of a job.", extra_json_schema={"maximum": MAX_ID}, examples=[42])]

Count = Annotated[int, Meta(ge=0)]

Pri = Annotated[
    int, Meta(ge=0, le=MAX_NUMBER, description="Priority: the smallest is reserved first, below 1024 is urgent.")
]
Delay = Annotated[int, Meta(ge=0, le=MAX_NUMBER, description="Seconds until it turns ready.")]
Ttr = Annotated[
    int, Meta(ge=1, le=MAX_NUMBER, description="Time to run: seconds that a worker has for it, until it turns ready.")
]

Instant = Annotated[datetime, Meta(tz=True)]
"""A point in time; JSON has it as RFC 3339 does."""

State = Literal["ready", "reserved", "delayed", "buried"]
Encoding = Literal["utf-8", "base64"]

Force = Annotated[
    bool, Meta(description="Do it although a client holds the job, whose worker may be at it. Else that is refused.")
]

BODY_AT_MOST: Final = MAX_PUT
"""Bytes of a body that stands in JSON; of a larger one there is `/jobs/{id}/body` alone."""


class OfTube(Asked):
    """Which tube."""

    tube: TubeName


class Forced(Asked):
    """Whether to have it by force."""

    force: Force = False


UNFORCED: Final = Forced()


def tube_of(broker: Broker, name: str) -> Tube:
    """The tube *name*; raise NotFound if there is none."""
    return find_tube(broker, {"tube": name})


def body_in(body: str, encoding: Encoding, at_most: int, field: str = "body") -> bytes:
    """The bytes that *body* stands for, at most BODY_AT_MOST and *at_most*; refuse others, by the name *field*."""
    if encoding == "utf-8":
        found = body.encode()
    else:
        try:
            found = base64.b64decode(body, validate=True)
        except ValueError as error:  # binascii.Error is one, and so is what it says of other than ASCII
            refuse(field, f"is not base64: {error}")
    most = min(BODY_AT_MOST, at_most)
    if len(found) > most:
        refuse(field, f"must be at most {text.size(most)}, and has {text.number(len(found))}")
    return found


def body_out(body: bytes) -> tuple[Encoding, str]:
    """How *body* is given, and it."""
    encoding, shown = encode_body(body)
    return ("utf-8" if encoding == "utf-8" else "base64"), shown


def instant(nanoseconds: int) -> datetime:
    """The time *nanoseconds* since the Unix epoch, to the microsecond."""
    seconds, rest = divmod(nanoseconds, SECOND)
    return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=rest // 1000)
