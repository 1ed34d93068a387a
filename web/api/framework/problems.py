"""Every error of the API, as RFC 9457 has it: `application/problem+json`.

A problem's `type` leads to where the page of the API explains its status. What a client sent and got wrong is named,
field by field, in `errors`.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Final, NoReturn

import msgspec
from flask import Response, request, url_for
from msgspec import UNSET, Meta, Struct, UnsetType
from werkzeug.exceptions import BadRequest, HTTPException

from greenstalk_server.web.api.durability import Late
from greenstalk_server.web.operations.operations import JobHeld, PutRefused

PROBLEM_TYPE: Final = "application/problem+json"

WHOLE: Final = "$"
"""What `field` has if all of the request's body is wrong."""

MEANINGS: Final[dict[int, str]] = {
    400: "Something in the request cannot be read, or is out of its range. `errors` names each field.",
    401: "The API asks for a token or a password, and the right one did not come. Which of the two it was is not said.",
    403: "You may not do that: you are a viewer, all is read-only, bodies are hidden, or a page elsewhere has sent it.",
    404: "There is no such job, tube, connection or task now, or no such address.",
    405: "The address does not know this method; the header `Allow` has those that it does.",
    409: "What you ask for does not go with the state of the job or the task.",
    410: "The lease of the job has ended: its ttr ran out, the job was finished, or somebody took it.",
    413: "The request is larger than is accepted.",
    415: "A request's body has to be JSON, and `Content-Type: application/json` has to say so.",
    421: "The dashboard is not known by the name in `Host`.",
    429: "Too many wrong tokens or passwords came from your address. `Retry-After` tells for how many seconds more.",
    500: "The API has failed, or a body is on disk and cannot be read back. The queue goes on, and the log says why.",
    503: "It cannot be done now: the server drains, the journal cannot be written, or too much is under way.",
    507: "The disk has no room for more jobs, or a limit of the server is reached.",
}
"""What each status means, for the page of the API and for the document."""


class FieldError(Struct, frozen=True):
    """What is wrong with one field."""

    field: Annotated[
        str,
        Meta(
            description="The parameter's name, or the place in the body: `pri`, `[3].body`; `$` is all of it.",
            examples=["pri"],
        ),
    ]
    message: Annotated[str, Meta(examples=["must be a whole number from 0 to 4294967295"])]


class Problem(Struct, frozen=True, kw_only=True):
    """Why a request was not carried out (RFC 9457)."""

    type: Annotated[str, Meta(description="Where this kind of problem is explained.")]
    title: Annotated[str, Meta(description="The status in words.", examples=["Bad Request"])]
    status: Annotated[int, Meta(description="The HTTP status.", examples=[400])]
    detail: Annotated[str, Meta(description="What happened this time, and what to do about it.")]
    instance: Annotated[str, Meta(description="The path that was asked for.")]
    errors: Annotated[
        list[FieldError] | UnsetType, Meta(description="What is wrong with which field, of a status 400.")
    ] = UNSET
    put: Annotated[list[int] | UnsetType, Meta(description="Ids of the jobs that were put all the same.")] = UNSET


class Invalid(BadRequest):
    """A request with a field that is wrong."""

    def __init__(self, field: str, message: str) -> None:
        said = "The request's body" if field == WHOLE else f"“{field}”"
        super().__init__(f"{said} {message}.")
        self.error: FieldError = FieldError(field, message)


def refuse(field: str, message: str) -> NoReturn:
    """Refuse the request because of *field*; *message* goes on where its name ends: `must be …`, `is missing`."""
    raise Invalid(field, message)


def answer(error: HTTPException) -> Response:
    """*error* as the response to the current request."""
    status = 507 if isinstance(error, PutRefused) and error.is_full else error.code or 500
    problem = Problem(
        type=url_for("api_docs", _anchor=f"status-{status}"),
        title=HTTPStatus(status).phrase,
        status=status,
        detail=_detail(error, status),
        instance=request.root_path + request.path,
        errors=[error.error] if isinstance(error, Invalid) else UNSET,
        put=error.ids if isinstance(error, PutRefused | Late) and error.ids is not None else UNSET,
    )
    response = Response(msgspec.json.encode(problem), status, mimetype=PROBLEM_TYPE)
    for key, value in error.get_headers():
        if key.lower() != "content-type":
            response.headers.add(key, value)
    return response


def _detail(error: HTTPException, status: int) -> str:
    """What *error* itself says, or in general what its status means."""
    if isinstance(error, JobHeld):
        return f"{error.description} Send “force” to have it done at once, though its worker may be at it."
    is_ours = error.description is not None and error.description != type(error).description
    return str(error.description) if is_ours else MEANINGS.get(status, HTTPStatus(status).description)
