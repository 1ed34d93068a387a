"""The page of the API: the OpenAPI document for people, with a curl example for each endpoint."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

from flask import Response
from markupsafe import Markup, escape

from greenstalk_server.web.framework.api.endpoint import Endpoint
from greenstalk_server.web.framework.api.openapi import parameters_of, statuses_of
from greenstalk_server.web.framework.api.problems import MEANINGS
from greenstalk_server.web.framework.api.schema import Schema, in_words, of_type, resolved

HERE: Final = "http://here"
"""Placeholder in examples for the address of the API; the template replaces it."""

_CODE: Final = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True)
class Item:
    """A parameter or field: its type, whether it is required or its default, and its description."""

    name: str
    kind: Markup
    need: str
    description: Markup


@dataclass(frozen=True, slots=True)
class Operation:
    """An endpoint.

    parameters      path parameters, then query parameters.
    body            type of the request body; empty if there is none.
    answer          status and type of the response on success.
    errors          error statuses with a meaning specific to this endpoint: status, phrase, meaning.
    other_errors    all other error statuses.
    example         a curl command, for the API at HERE.
    """

    id: str
    method: str
    path: str
    summary: str
    description: list[Markup]
    is_change: bool
    parameters: list[Item]
    body: Markup
    answer: Markup
    errors: list[tuple[int, str, Markup]]
    other_errors: list[int]
    example: str


@dataclass(frozen=True, slots=True)
class Group:
    """A tag and its endpoints."""

    name: str
    description: list[Markup]
    operations: list[Operation]


@dataclass(frozen=True, slots=True)
class Kind:
    """A type and its fields; *is_request* for a type of requests."""

    name: str
    description: list[Markup]
    fields: list[Item]
    is_request: bool


@dataclass(frozen=True, slots=True)
class Page:
    """The whole page."""

    description: list[Markup]
    groups: list[Group]
    kinds: list[Kind]
    statuses: list[tuple[int, str, Markup]]


def page(document: Mapping[str, Any], endpoints: Sequence[Endpoint], yield_if_due: Callable[[], None]) -> Page:
    """Return the page of *document*. Calls *yield_if_due* after each endpoint; all endpoints take 7 ms. May switch."""
    schemas: dict[str, Schema] = document["components"]["schemas"]
    login = login_of(document)
    return Page(
        description=_paragraphs(document["info"]["description"]),
        groups=[
            Group(
                tag["name"],
                _paragraphs(tag["description"]),
                [_operation(one, schemas, login, yield_if_due) for one in endpoints if one.tag == tag["name"]],
            )
            for tag in document["tags"]
        ],
        kinds=[
            Kind(name, _paragraphs(schema.get("description", "")), _fields(schema), "additionalProperties" in schema)
            for name, schema in sorted(schemas.items())
        ],
        statuses=[(status, HTTPStatus(status).phrase, marked(description)) for status, description in MEANINGS.items()],
    )


def example_of(endpoint: Endpoint, schemas: Mapping[str, Schema], login: Sequence[str]) -> str:
    """Return a curl command for *endpoint* of the API at HERE; *login* is the curl arguments with the credentials."""
    parameters = parameters_of(endpoint)
    values = {one["name"]: sample(one["schema"], schemas) for one in parameters if one["required"]}
    path = endpoint.path.format(**values)
    query = urlencode({name: value for name, value in values.items() if name not in endpoint.path_types})
    words = ["curl", *login]
    if endpoint.method not in ("GET", "POST"):
        words += ["-X", endpoint.method]
    if endpoint.body is not None:
        words += ["--json", json.dumps(sample(of_type(endpoint.body)[0], schemas), ensure_ascii=False)]
    elif endpoint.method == "POST":
        words += ["--json", "{}"]  # the guard refuses a POST that a form could send
    return shlex.join([*words, f"{HERE}{path}{'?' if query else ''}{query}"])


def login_of(document: Mapping[str, Any]) -> list[str]:
    """Return the curl arguments with credentials for the server of *document*; none if it is open."""
    schemes = [name for one in document["security"] for name in one]
    if "bearer" in schemes:
        return ["-H", "Authorization: Bearer TOKEN"]
    return ["-u", "NAME:PASSWORD"] if schemes else []


def sample(schema: Schema, schemas: Mapping[str, Schema]) -> Any:
    """Return an example value of *schema*; an object has only its required fields."""
    if "examples" in schema:
        return schema["examples"][0]
    schema = resolved(schema, schemas)
    for key in ("examples", "enum"):
        if key in schema:
            return schema[key][0]
    if "default" in schema:
        return schema["default"]
    if "anyOf" in schema:
        return sample(min(schema["anyOf"], key=lambda one: "$ref" not in one), schemas)
    if schema.get("type") == "object":
        return {name: sample(schema["properties"][name], schemas) for name in schema.get("required", ())}
    if schema.get("type") == "array":
        return [sample(schema["items"], schemas)]
    return {"integer": schema.get("minimum", 0), "number": 0, "boolean": False}.get(schema.get("type", ""), "")


def marked(text: str) -> Markup:
    """Return *text* as HTML, with text between backticks as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704  it is escaped


def kind_of(schema: Schema) -> Markup:
    """Return the type of *schema* as HTML, with links to the types on the page."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return Markup('<a href="#type-{0}">{0}</a>').format(name)
    if "anyOf" in schema:
        return Markup(" or ").join(map(kind_of, schema["anyOf"]))
    if "items" in schema:
        return Markup("a list of {}").format(kind_of(schema["items"]))
    if isinstance(schema.get("additionalProperties"), dict):
        return Markup("an object of {}").format(kind_of(schema["additionalProperties"]))
    return Markup("a name") if "pattern" in schema else escape(in_words(schema))


def _operation(
    endpoint: Endpoint, schemas: Mapping[str, Schema], login: Sequence[str], yield_if_due: Callable[[], None]
) -> Operation:
    yield_if_due()
    return Operation(
        id=endpoint.name.replace("_", "-"),
        method=endpoint.method,
        path=endpoint.path,
        summary=endpoint.summary,
        description=_paragraphs(endpoint.description),
        is_change=endpoint.is_change,
        parameters=[
            _item(one["name"], one["schema"] | {"description": one["description"]}, one["required"])
            for one in parameters_of(endpoint)
        ],
        body=_body(endpoint),
        answer=_answer(endpoint),
        errors=[
            (status, HTTPStatus(status).phrase, marked(description))
            for status, description in sorted(endpoint.errors.items())
        ],
        other_errors=[status for status in statuses_of(endpoint) if status not in endpoint.errors],
        example=example_of(endpoint, schemas, login),
    )


def _body(endpoint: Endpoint) -> Markup:
    if endpoint.body is None:
        return Markup("")
    kind = kind_of(of_type(endpoint.body)[0])
    return kind if endpoint.is_body_needed else Markup("{}, or nothing").format(kind)


def _answer(endpoint: Endpoint) -> Markup:
    status = f"{endpoint.status} {HTTPStatus(endpoint.status).phrase}"
    if endpoint.answer is None:
        return escape(status)
    if endpoint.answer is Response:
        return escape(f"{status}, {' or '.join(endpoint.content)}")
    return Markup("{}, {}").format(status, kind_of(of_type(endpoint.answer)[0]))


def _fields(schema: Schema) -> list[Item]:
    required = schema.get("required", ())
    return [_item(name, one, name in required) for name, one in schema.get("properties", {}).items()]


def _item(name: str, schema: Schema, is_required: bool) -> Item:
    default = schema.get("default")
    need = "required" if is_required else f"default {json.dumps(default)}" if default not in (None, "") else "optional"
    description = schema.get("description", "")
    return Item(name, kind_of(schema), need, marked(description[:1].upper() + description[1:]))


def _paragraphs(text: str) -> list[Markup]:
    return [marked(" ".join(one.split())) for one in text.split("\n\n") if one.strip()]
