"""Types shared by the API's groups: names, numbers, times, and bodies as text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal, TypeVar

from msgspec import Meta, Struct

from greenstalk_server.core.jobs.job import MAX_ID, SECOND
from greenstalk_server.web.framework.api.problems import refuse
from greenstalk_server.web.framework.fields import MAX_NUMBER


class RequestModel(Struct, kw_only=True, forbid_unknown_fields=True):
    """Base class of query parameters and request bodies."""


class ResponseModel(Struct, kw_only=True):
    """Base class of response bodies."""


Model = TypeVar("Model", bound=Struct)


def model_of(kind: type[Model], source: object, /, **others: Any) -> Model:
    """Return a *kind* with the values *others*. *source* has the other fields as attributes of the same names."""
    same = {name: getattr(source, name) for name in kind.__struct_fields__ if name not in others}
    return kind(**same, **others)


TubeName = Annotated[
    str,
    Meta(
        # The lookahead is for Python, where `$` also matches before a newline at the end.
        pattern=r"^[A-Za-z0-9+/;.$_()][-A-Za-z0-9+/;.$_()]{0,199}$(?!\n)",
        description="a tube name: 1 to 200 of A–Z, a–z, 0–9 and -+/;.$_(), not starting with a hyphen.",
        examples=["mail"],
    ),
]

TubePattern = Annotated[
    str,
    Meta(
        # The lookahead is for Python, where `$` also matches before a newline at the end.
        pattern=r"^[-A-Za-z0-9+/;.$_()*]{1,200}$(?!\n)",
        description="a pattern of tube names: 1 to 200 characters of tube names and `*`, which matches any characters.",
        examples=["billing.*"],
    ),
]

JobId = Annotated[int, Meta(ge=1, description="The id of a job.", extra_json_schema={"maximum": MAX_ID}, examples=[42])]
"""msgspec supports no bounds above 2**63: an id in a query or a body also needs `checked_id`."""


def checked_id(field: str, id: int) -> int:
    """Return *id* if it is at most MAX_ID; otherwise refuse *field*."""
    if id > MAX_ID:
        refuse(field, f"must be a whole number from 1 to {MAX_ID}")
    return id


Count = Annotated[int, Meta(ge=0)]

Pri = Annotated[
    int, Meta(ge=0, le=MAX_NUMBER, description="Priority: the smallest is reserved first; below 1024 is urgent.")
]
Delay = Annotated[int, Meta(ge=0, le=MAX_NUMBER, description="Seconds until the job becomes ready.")]
Ttr = Annotated[
    int, Meta(ge=1, le=MAX_NUMBER, description="Time to run: seconds after which a reserved job becomes ready again.")
]

FineDelay = Annotated[
    float,
    Meta(ge=0, le=MAX_NUMBER, description="Seconds until the job becomes ready, at most three digits after the point."),
]
FineTtr = Annotated[
    float,
    Meta(
        ge=0.001,
        le=MAX_NUMBER,
        description="Time to run: seconds after which a reserved job becomes ready again, at most three digits after"
        " the point.",
    ),
]
Duration = int | float
"""Seconds in a response: an integer unless there is a fraction."""

Instant = Annotated[datetime, Meta(tz=True)]
"""A point in time, in RFC 3339 form."""

State = Literal["ready", "reserved", "delayed", "buried"]

Force = Annotated[bool, Meta(description="Also act on a job that a client holds, and may still be processing.")]

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


NO_TUBE: Final = {404: "The tube does not exist. A tube exists while it holds jobs, or a client uses or watches it."}
"""Responses of endpoints whose tube does not exist."""


class TubeRequest(RequestModel):
    """The tube."""

    tube: TubeName


class ForceRequest(RequestModel):
    """Whether to force the operation."""

    force: Force = False


NOT_FORCED: Final = ForceRequest()


def duration(nanoseconds: int) -> int | float:
    """Return *nanoseconds* in seconds, to the millisecond."""
    seconds, rest = divmod(nanoseconds, SECOND)
    return round(seconds + rest / SECOND, 3) if rest else seconds


def instant(nanoseconds: int) -> datetime:
    """Return the time *nanoseconds* after the Unix epoch, to the microsecond."""
    seconds, rest = divmod(nanoseconds, SECOND)
    return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=rest // 1000)


def nanoseconds(at: datetime) -> int:
    """Return *at* in nanoseconds since the Unix epoch."""
    return (at - EPOCH) // timedelta(microseconds=1) * 1000
