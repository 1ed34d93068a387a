"""The page of the API: the OpenAPI document for people, with a curl example for each endpoint.

The template reads the document and the endpoints, and calls the functions of this module.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

from flask import Response, render_template
from markupsafe import Markup, escape

from greenstalk_server.web.framework.api.endpoint import Endpoint
from greenstalk_server.web.framework.api.openapi import parameters_of, statuses_of
from greenstalk_server.web.framework.api.problems import MEANINGS
from greenstalk_server.web.framework.api.schema import Schema, in_words, of_type, resolved

_CODE: Final = re.compile(r"`([^`]+)`")


def render_page(document: Mapping[str, Any], endpoints: Sequence[Endpoint], root: str) -> str:
    """Return the page of *document*, whose *endpoints* are at the address *root*. May switch."""
    schemas, login = document["components"]["schemas"], login_of(document)
    return render_template(
        "api.html",
        document=document,
        endpoints=endpoints,
        schemas=schemas,
        meanings=MEANINGS,
        example_of=lambda endpoint: example_of(endpoint, root, schemas, login),
        answer_of=answer_of,
        body_of=body_of,
        kind_of=kind_of,
        marked=marked,
        need_of=need_of,
        paragraphs=paragraphs,
        parameters_of=parameters_of,
        phrase=phrase,
        statuses_of=statuses_of,
    )


def example_of(endpoint: Endpoint, root: str, schemas: Mapping[str, Schema], login: Sequence[str]) -> str:
    """Return a curl command for *endpoint* of the API at *root*; *login* is the curl arguments with the credentials."""
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
    return shlex.join([*words, f"{root}{path}{'?' if query else ''}{query}"])


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


def body_of(endpoint: Endpoint) -> Markup:
    """Return the type of the request body as HTML; empty if there is none."""
    if endpoint.body is None:
        return Markup("")
    kind = kind_of(of_type(endpoint.body)[0])
    return kind if endpoint.is_body_needed else Markup("{}, or nothing").format(kind)


def answer_of(endpoint: Endpoint) -> Markup:
    """Return the status and the type of the response on success as HTML."""
    status = f"{endpoint.status} {phrase(endpoint.status)}"
    if endpoint.answer is None:
        return escape(status)
    if endpoint.answer is Response:
        return escape(f"{status}, {' or '.join(endpoint.content)}")
    return Markup("{}, {}").format(status, kind_of(of_type(endpoint.answer)[0]))


def phrase(status: int) -> str:
    """Return the reason phrase of *status*: `Not Found`."""
    return HTTPStatus(status).phrase


def need_of(schema: Schema, is_required: bool) -> str:
    """Return whether a parameter or field of *schema* is required, or its default."""
    default = schema.get("default")
    return "required" if is_required else f"default {json.dumps(default)}" if default not in (None, "") else "optional"


def paragraphs(text: str) -> list[Markup]:
    """Return the paragraphs of *text* as HTML."""
    return [marked(" ".join(one.split())) for one in text.split("\n\n") if one.strip()]
