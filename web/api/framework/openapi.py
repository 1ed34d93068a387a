"""The OpenAPI document, made from the endpoints: what they read and answer is what it says, since it is the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from flask import Response

from greenstalk_server.web.api.framework.endpoint import JSON, Endpoint
from greenstalk_server.web.api.framework.problems import MEANINGS, PROBLEM_TYPE, Problem
from greenstalk_server.web.api.framework.schema import Schema, fields_of, of_type

DESCRIPTION: Final = """\
All that the dashboard can show or do, as JSON.

Times are whole seconds, or RFC 3339 in UTC. A job's body is text (`utf-8`), or `base64` if it is no text. Lists go on \
where `next_cursor` says. Errors are `application/problem+json` (RFC 9457), and name the field that is wrong. A change \
is answered when it is as safe on disk as the server promises to any client.

Tokens: `GREENSTALK_API_TOKEN` opens everything, `GREENSTALK_API_VIEWER_TOKEN` all that changes nothing. The \
dashboard's passwords open the same by HTTP basic auth. On a dashboard without a password, and with no token set, the \
API is open too.

A change without a bearer token needs to show that no page of another site has sent it: by `Content-Type: \
application/json`, by the header `X-Requested-With`, or by a method that is not POST.
"""

SECURITY: Final[Mapping[str, Schema]] = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "The API's token: that of admins (`GREENSTALK_API_TOKEN`), or of viewers, who change nothing.",
    },
    "basic": {
        "type": "http",
        "scheme": "basic",
        "description": "A password of the dashboard, of admins or of viewers.",
    },
}

ALWAYS: Final = (400, 401, 413, 421, 429, 500)
"""What any endpoint may answer: 400 for a parameter that is not known, if for nothing else."""


def document(
    version: str,
    security: Iterable[str],
    tags: Sequence[tuple[str, str]],
    endpoints: Iterable[Endpoint],
    rest: Callable[[], None],
) -> Schema:
    """Return the OpenAPI document of *endpoints* without `servers`, which depends on the request. May switch.

    *version* is the server's. *security* are the keys of SECURITY of which a request needs one; none if the API is
    open. *rest* is called after each endpoint: all of them take 70 ms.
    """
    endpoints = list(endpoints)
    paths: dict[str, Schema] = {}
    schemas: dict[str, Schema] = {}
    for one in endpoints:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one)
        for type in _types(one):
            for name, schema in of_type(type)[1].items():
                assert schemas.setdefault(name, schema) == schema, f"two types are named {name}"
        rest()
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Greenstalk Server",
            "version": version,
            "description": DESCRIPTION,
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "tags": [{"name": name, "description": said} for name, said in tags],
        "security": [{name: []} for name in security],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {_reply(status): _problem(said) for status, said in MEANINGS.items()},
            "securitySchemes": SECURITY,
        },
    }


def parameters_of(endpoint: Endpoint) -> list[Schema]:
    """The parameters of *endpoint* as OpenAPI has them, those of the path first."""
    found = [_parameter(name, "path", of_type(type)[0], True) for name, type in endpoint.path_types.items()]
    if endpoint.query is not None:
        properties, required = fields_of(endpoint.query)
        found += [_parameter(name, "query", schema, name in required) for name, schema in properties.items()]
    return found


def statuses_of(endpoint: Endpoint) -> list[int]:
    """The statuses of the errors that *endpoint* may answer."""
    found = {*ALWAYS, *endpoint.errors}
    if endpoint.body is not None:
        found.add(415)
    if endpoint.is_change:
        found |= {403, 503}
    return sorted(found)


def _operation(endpoint: Endpoint) -> Schema:
    said: Schema = {
        "operationId": endpoint.name,
        "tags": [endpoint.tag],
        "summary": endpoint.summary,
        "description": endpoint.description,
        "parameters": parameters_of(endpoint),
        "responses": {str(endpoint.status): _success(endpoint)} | dict(_errors(endpoint)),
    }
    if endpoint.body is not None:
        said["requestBody"] = {
            "required": endpoint.is_body_needed,
            "content": {JSON: {"schema": of_type(endpoint.body)[0]}},
        }
    return said


def _parameter(name: str, where: str, schema: Schema, is_required: bool) -> Schema:
    schema = dict(schema)
    said = schema.pop("description", "")
    return {"name": name, "in": where, "required": is_required, "description": said, "schema": schema}


def _success(endpoint: Endpoint) -> Schema:
    said = HTTPStatus(endpoint.status).phrase
    if endpoint.answer is None:
        return {"description": said}
    if endpoint.answer is Response:
        return {"description": said, "content": {content: {} for content in endpoint.content}}
    return {"description": said, "content": {JSON: {"schema": of_type(endpoint.answer)[0]}}}


def _errors(endpoint: Endpoint) -> Iterator[tuple[str, Schema]]:
    for status in statuses_of(endpoint):
        said = endpoint.errors.get(status)
        shared = {"$ref": f"#/components/responses/{_reply(status)}"}
        yield str(status), shared if said is None else _problem(said)


def _reply(status: int) -> str:
    """The name of the response to all errors of *status*."""
    return HTTPStatus(status).phrase.title().replace(" ", "").replace("-", "")


def _problem(said: str) -> Schema:
    return {"description": said, "content": {PROBLEM_TYPE: {"schema": of_type(Problem)[0]}}}


def _types(endpoint: Endpoint) -> list[Any]:
    """Return the types of the bodies that *endpoint* reads and answers."""
    return [type for type in (endpoint.body, endpoint.answer, Problem) if type is not None and type is not Response]
