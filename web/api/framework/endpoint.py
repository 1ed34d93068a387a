"""What an endpoint is: a method of a group, with a decorator that says where it is; its signature says all else.

    query       parameter of a Struct type: the query's parameters are its fields.
    body        parameter of a Struct type, or a list or a union of such: the request's body. With a default it may be
                left out.
    others      are parts of the path, each of an annotated `int` or `str`.
    ->          what is answered, as JSON; None for nothing (204); a Response for what is not JSON.

The docstring is what users read: its first line is the summary.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar, get_type_hints

from msgspec import Struct

JSON: Final = "application/json"

_MARK: Final = "api_mark"

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class _Mark:
    """What the decorator says."""

    method: str
    path: str
    status: int
    content: tuple[str, ...]
    errors: Mapping[int, str]
    is_change: bool
    has_bodies: bool


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path.

    name            of the handler; no two endpoints have the same.
    path            under the API's root, with parameters as OpenAPI writes them: `/jobs/{id}`.
    tag             the group it is of.
    status          of success.
    content         media types of what it answers.
    errors          what certain statuses mean here, besides those that every endpoint may answer.
    query           type of the parameters of the query; None if there are none.
    body            type of the body; None if there is none.
    is_body_needed  it may not be left out.
    path_types      of the parameters in the path, by name.
    answer          type of what it answers: None for nothing, a Response for what is not JSON.
    is_change       it changes something: only admins may ask for it.
    has_bodies      bodies of jobs come with the request, which may be as large as these make it.
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
    is_change: bool
    has_bodies: bool
    handler: Callable[..., Any]

    @property
    def rule(self) -> str:
        """The path as Flask writes it."""
        return self.path.replace("{", "<").replace("}", ">")


def endpoint(
    method: str,
    path: str,
    *,
    status: int = 200,
    content: tuple[str, ...] = (JSON,),
    errors: Mapping[int, str] | None = None,
    is_change: bool | None = None,
    has_bodies: bool = False,
) -> Callable[[Function], Function]:
    """Make a method of a group an endpoint.

    What is not a GET and yet no change (`is_change` is False) is for the guard to know, too: `OPEN_TO_VIEWERS`.
    """
    changes = method != "GET" if is_change is None else is_change

    def mark(function: Function) -> Function:
        setattr(function, _MARK, _Mark(method, path, status, content, errors or {}, changes, has_bodies))
        return function

    return mark


def endpoints_of(group: object) -> Iterator[Endpoint]:
    """The endpoints of *group*, in the order in which they are defined. Its class bears its tag's name."""
    for name, function in vars(type(group)).items():
        mark = getattr(function, _MARK, None)
        if mark is not None:
            yield _endpoint(group, name, function, mark)


def tag_of(group: object) -> tuple[str, str]:
    """The name of the tag of *group*, and what there is to say about all of it: its docstring."""
    return type(group).__name__, inspect.getdoc(group) or ""


def _endpoint(group: object, name: str, function: Callable[..., Any], mark: _Mark) -> Endpoint:
    hints = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters
    summary, _, description = (inspect.getdoc(function) or "").partition("\n")
    answer, query, body = hints.pop("return"), hints.pop("query", None), hints.pop("body", None)
    return Endpoint(
        name=name,
        method=mark.method,
        path=mark.path,
        tag=tag_of(group)[0],
        summary=summary.rstrip("."),
        description=description.strip(),
        status=mark.status,
        content=mark.content,
        errors=mark.errors,
        query=query,
        body=body,
        is_body_needed=body is not None and parameters["body"].default is inspect.Parameter.empty,
        path_types=hints,
        answer=None if answer is type(None) else answer,
        is_change=mark.is_change,
        has_bodies=mark.has_bodies,
        handler=getattr(group, name),
    )
