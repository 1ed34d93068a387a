"""Errors of the API, as `application/problem+json` (RFC 9457).

The `type` of each problem is `about:blank`: the status says what kind of problem it is. `errors` names the invalid
field.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Final, NoReturn

import msgspec
from flask import Response, request
from msgspec import UNSET, Meta, Struct, UnsetType
from werkzeug.exceptions import BadRequest, HTTPException

from greenstalk_server.web.framework.api.durability import NotDurableYet
from greenstalk_server.web.framework.failures import JobHeld, PutRefused

PROBLEM_TYPE: Final = "application/problem+json"

WHOLE: Final = "$"
"""`field` of an error in the whole request body."""

MEANINGS: Final[dict[int, str]] = {
    400: "The request cannot be parsed, or a value is out of range. `errors` names the field.",
    401: "The API needs a token or a password. The credentials are missing or wrong; the response does not say which.",
    403: "You may not do this: you are a viewer, the server is read-only, bodies are hidden, or the request came from a"
    " page of another site.",
    404: "The job, tube, connection, task or policy does not exist, or the address is wrong.",
    405: "The address does not support this method. The header `Allow` lists those that it supports.",
    409: "The state of the job or the task does not allow this, or the configuration file has the policy.",
    410: "The lease of the job has ended: its ttr ran out, the job was finished, or an admin took it.",
    413: "The request is larger than the server accepts, or a body is larger than a policy of its tube accepts.",
    415: "The request body must be JSON, with `Content-Type: application/json`.",
    421: "The dashboard does not answer to the name in `Host`.",
    429: "Too many wrong tokens or passwords came from your address. `Retry-After` has the seconds to wait.",
    500: "The API failed, or a body cannot be read back from the disk. The queue keeps running. The log says why.",
    503: "The server cannot do this now: it is draining, cannot write the journal, or is too busy.",
    507: "The disk has no room for more jobs, or a limit of the server or of a policy is reached.",
}
"""The meaning of each status, for the OpenAPI document, and for errors without a message of their own."""


class FieldError(Struct, frozen=True):
    """An error in one field."""

    field: Annotated[
        str,
        Meta(
            description="The parameter, or the path in the body: `pri`, `[3].body`; `$` is the whole body.",
            examples=["pri"],
        ),
    ]
    message: Annotated[str, Meta(examples=["must be a whole number from 0 to 4294967295"])]


class Problem(Struct, frozen=True, kw_only=True):
    """The reason why a request failed (RFC 9457)."""

    type: Annotated[str, Meta(description="Always `about:blank`: the status is the type.")]
    title: Annotated[str, Meta(description="The status in words.", examples=["Bad Request"])]
    status: Annotated[int, Meta(description="The HTTP status.", examples=[400])]
    detail: Annotated[str, Meta(description="What happened, and what to do about it.")]
    instance: Annotated[str, Meta(description="The path of the request.")]
    errors: Annotated[list[FieldError] | UnsetType, Meta(description="The invalid field, for status 400.")] = UNSET
    put: Annotated[
        list[int] | UnsetType, Meta(description="Ids of the jobs that were put although the request failed.")
    ] = UNSET


class Invalid(BadRequest):
    """A request with an invalid field."""

    def __init__(self, field: str, message: str) -> None:
        subject = "The request's body" if field == WHOLE else f"“{field}”"
        super().__init__(f"{subject} {message}.")
        self.error: FieldError = FieldError(field, message)


def refuse(field: str, message: str) -> NoReturn:
    """Raise Invalid for *field*. *message* continues a sentence: `must be …`, `is missing`."""
    raise Invalid(field, message)


def answer(error: HTTPException) -> Response:
    """Return *error* as the response to the current request."""
    status = error.status if isinstance(error, PutRefused) else error.code or 500
    problem = Problem(
        type="about:blank",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=_detail(error, status),
        instance=request.root_path + request.path,
        errors=[error.error] if isinstance(error, Invalid) else UNSET,
        put=error.ids if isinstance(error, PutRefused | NotDurableYet) and error.ids is not None else UNSET,
    )
    response = Response(msgspec.json.encode(problem), status, mimetype=PROBLEM_TYPE)
    for key, value in error.get_headers():
        if key.lower() != "content-type":
            response.headers.add(key, value)
    return response


def _detail(error: HTTPException, status: int) -> str:
    """Return the message of *error*, or else the meaning of *status*."""
    if isinstance(error, JobHeld):
        return f"{error.description} To do it now anyway, send “force”; the worker may still be processing the job."
    is_ours = error.description is not None and error.description != type(error).description
    return str(error.description) if is_ours else MEANINGS.get(status, HTTPStatus(status).description)
