"""Endpoints: methods of a group that a decorator maps to a path. The signature of the method defines the rest.

    query       a parameter of a Struct type, whose fields are the query parameters.
    body        a parameter of a Struct type, or of a list or union of such types: the request body, optional if it has
                a default.
    others      path parameters, of an annotated `int` or `str`.
    ->          the type of the response as JSON; None for status 204; Response for content other than JSON.

The docstring is the documentation for users. Its first line is the summary.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Final, TypeVar, get_type_hints

from msgspec import Struct

from greenstalk_server.config.tables.roles import VIEWER

JSON: Final = "application/json"

_MARK: Final = "api_mark"
"""Attribute of a marked method: Endpoint, with the arguments of the decorator."""

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path.

    name            name of the handler. Invariant: unique among all endpoints.
    path            path below the API's root, with parameters in OpenAPI form: `/jobs/{id}`.
    tag             the group's name.
    status          HTTP status on success.
    content         media types of the response.
    errors          error statuses specific to this endpoint, with their meanings.
    query           type of the query parameters; None if there are none.
    body            type of the request body; None if there is none.
    is_body_needed  the body is required.
    path_types      types of the path parameters, by name.
    answer          type of the response: None for an empty one, Response for content other than JSON.
    role            the least role that may use it: VIEWER, unless it changes something.
    has_bodies      the request contains job bodies, so it may be large.
    """

    name: str
    method: str
    path: str
    tag: str
    summary: str
    description: str
    status: int
    content: tuple[str, ...]
    errors: Mapping[int, str]
    query: type[Struct] | None
    body: Any
    is_body_needed: bool
    path_types: Mapping[str, Any]
    answer: Any
    role: str
    has_bodies: bool
    handler: Callable[..., Any]

    @property
    def is_change(self) -> bool:
        """Whether the endpoint changes something."""
        return self.role != VIEWER

    @property
    def names_job(self) -> bool:
        """Whether the request names jobs, by id or by the token of a lease."""
        return self.path.startswith(("/jobs/{id}", "/leases/"))

    @property
    def rule(self) -> str:
        """The path in Flask's form."""
        return self.path.replace("{", "<").replace("}", ">")


def endpoint(
    method: str,
    path: str,
    *,
    role: str | None = None,
    status: int = 200,
    content: tuple[str, ...] = (JSON,),
    errors: Mapping[int, str] | None = None,
    has_bodies: bool = False,
) -> Callable[[Function], Function]:
    """Mark a method of a group as an endpoint.

    *role* is the least role that may use it (web.framework.rights). Only a GET may omit it: a GET is for all viewers.
    """
    if role is None and method != "GET":
        raise TypeError(f"{method} {path} declares no role")

    given = partial(
        Endpoint,
        method=method,
        path=path,
        status=status,
        content=content,
        errors=errors or {},
        role=role or VIEWER,
        has_bodies=has_bodies,
    )

    def mark(function: Function) -> Function:
        setattr(function, _MARK, given)
        return function

    return mark


def endpoints_of(group: object) -> Iterator[Endpoint]:
    """Yield the endpoints of *group* in the order of their definition. The class of the tag Marks is MarksEndpoints."""
    tag, _ = tag_of(group)
    for name, function in vars(type(group)).items():
        mark = getattr(function, _MARK, None)
        if mark is not None:
            yield replace(_endpoint(tag, name, function, mark), handler=getattr(group, name))


def tag_of(group: object) -> tuple[str, str]:
    """Return the name and the description of the tag of *group*."""
    return type(group).__name__.removesuffix("Endpoints"), inspect.getdoc(group) or ""


@cache
def _endpoint(tag: str, name: str, function: Callable[..., Any], mark: Callable[..., Endpoint]) -> Endpoint:
    """Return the endpoint *name* with an unbound handler. Its annotations are read once, not for each takeover."""
    hints = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters
    summary, _, description = (inspect.getdoc(function) or "").partition("\n")
    answer, query, body = hints.pop("return"), hints.pop("query", None), hints.pop("body", None)
    return mark(
        name=name,
        tag=tag,
        summary=summary.rstrip("."),
        description=description.strip(),
        query=query,
        body=body,
        is_body_needed=body is not None and parameters["body"].default is inspect.Parameter.empty,
        path_types=hints,
        answer=None if answer is type(None) else answer,
        handler=function,
    )
