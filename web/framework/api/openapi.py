"""The OpenAPI document, generated from the endpoint definitions that also parse requests and build responses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from flask import Response

from greenstalk_server.web.framework.api.endpoint import JSON, Endpoint
from greenstalk_server.web.framework.api.problems import MEANINGS, PROBLEM_TYPE, Problem
from greenstalk_server.web.framework.api.schema import Schema, fields_of, of_type

DESCRIPTION: Final = """\
Everything that the dashboard shows and does, as JSON.

Times are seconds, or RFC 3339 in UTC. A job's body is text (`utf-8`), or `base64` if it is not text. Lists \
continue at `next_cursor`. Errors are `application/problem+json` (RFC 9457), and name the invalid field. A change is \
acknowledged when it is as durable as an acknowledged command of the beanstalk protocol.

Tokens: `GREENSTALK_API_TOKEN` allows everything, `GREENSTALK_API_VIEWER_TOKEN` only reading. The dashboard's \
passwords allow the same over HTTP basic auth. If neither a password nor a token is set, the API is open.

To prevent cross-site request forgery (CSRF), a change without a bearer token must be a request that a page of \
another site cannot send: with `Content-Type: application/json`, with the header `X-Requested-With`, or with a method \
other than POST.
"""

SECURITY: Final[Mapping[str, Schema]] = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API token, of admins (`GREENSTALK_API_TOKEN`) or viewers (`GREENSTALK_API_VIEWER_TOKEN`).",
    },
    "basic": {
        "type": "http",
        "scheme": "basic",
        "description": "The dashboard's password, of admins or viewers.",
    },
}

ALWAYS: Final = (400, 401, 413, 421, 429, 500)
"""Error statuses that every endpoint may return; 400, because every endpoint refuses unknown parameters."""


def document(
    version: str,
    security: Iterable[str],
    tags: Sequence[tuple[str, str]],
    endpoints: Iterable[Endpoint],
    yield_if_due: Callable[[], None],
) -> Schema:
    """Return the OpenAPI document of *endpoints* without `servers`, which depends on the request. May switch.

    *version* is the server's. *security* is the keys of SECURITY that the server accepts; empty if the API is open.
    Calls *yield_if_due* after each endpoint; all endpoints take 70 ms.
    """
    endpoints = list(endpoints)
    paths: dict[str, Schema] = {}
    schemas: dict[str, Schema] = {}
    for one in endpoints:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one)
        for type in _types(one):
            for name, schema in of_type(type)[1].items():
                assert schemas.setdefault(name, schema) == schema, f"two types are named {name}"
        yield_if_due()
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Greenstalk Server",
            "version": version,
            "description": DESCRIPTION,
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "tags": [{"name": name, "description": description} for name, description in tags],
        "security": [{name: []} for name in security],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {_response_name(status): _problem(meaning) for status, meaning in MEANINGS.items()},
            "securitySchemes": SECURITY,
        },
    }


def parameters_of(endpoint: Endpoint) -> list[Schema]:
    """Return the parameters of *endpoint* in OpenAPI form, path parameters first."""
    parameters = [_parameter(name, "path", of_type(type)[0], True) for name, type in endpoint.path_types.items()]
    if endpoint.query is not None:
        properties, required = fields_of(endpoint.query)
        parameters += [_parameter(name, "query", schema, name in required) for name, schema in properties.items()]
    return parameters


def statuses_of(endpoint: Endpoint) -> list[int]:
    """Return the error statuses that *endpoint* may return."""
    statuses = {*ALWAYS, *endpoint.errors}
    if endpoint.body is not None:
        statuses.add(415)
    if endpoint.is_change:
        statuses |= {403, 503}
    if endpoint.names_job:
        statuses.add(503)
    return sorted(statuses)


def _operation(endpoint: Endpoint) -> Schema:
    operation: Schema = {
        "operationId": endpoint.name,
        "tags": [endpoint.tag],
        "summary": endpoint.summary,
        "description": endpoint.description,
        "parameters": parameters_of(endpoint),
        "responses": {str(endpoint.status): _success(endpoint)} | dict(_errors(endpoint)),
    }
    if endpoint.body is not None:
        operation["requestBody"] = {
            "required": endpoint.is_body_needed,
            "content": {JSON: {"schema": of_type(endpoint.body)[0]}},
        }
    return operation


def _parameter(name: str, where: str, schema: Schema, is_required: bool) -> Schema:
    schema = dict(schema)
    description = schema.pop("description", "")
    return {"name": name, "in": where, "required": is_required, "description": description, "schema": schema}


def _success(endpoint: Endpoint) -> Schema:
    phrase = HTTPStatus(endpoint.status).phrase
    if endpoint.answer is None:
        return {"description": phrase}
    if endpoint.answer is Response:
        return {"description": phrase, "content": {content: {} for content in endpoint.content}}
    return {"description": phrase, "content": {JSON: {"schema": of_type(endpoint.answer)[0]}}}


def _errors(endpoint: Endpoint) -> Iterator[tuple[str, Schema]]:
    for status in statuses_of(endpoint):
        meaning = endpoint.errors.get(status)
        shared = {"$ref": f"#/components/responses/{_response_name(status)}"}
        yield str(status), shared if meaning is None else _problem(meaning)


def _response_name(status: int) -> str:
    """Return the component name of the response to errors of *status*."""
    return HTTPStatus(status).phrase.title().replace(" ", "").replace("-", "")


def _problem(meaning: str) -> Schema:
    return {"description": meaning, "content": {PROBLEM_TYPE: {"schema": of_type(Problem)[0]}}}


def _types(endpoint: Endpoint) -> list[Any]:
    """Return the types of the request body and the response bodies of *endpoint*."""
    return [type for type in (endpoint.body, endpoint.answer, Problem) if type is not None and type is not Response]
