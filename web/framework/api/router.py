"""The router: serves groups of endpoints under `/api/v1`, with the OpenAPI document.

The guard (web.auth.guard) checks each request before anything here runs. Errors become problems (problems.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from flask import Flask, Response, after_this_request, request, url_for
from werkzeug.exceptions import Conflict, Gone, NotFound, RequestEntityTooLarge

from greenstalk_server.core.broker import Broker
from greenstalk_server.web.framework.api.durability import wait_before_report
from greenstalk_server.web.framework.api.endpoint import JSON, Endpoint, endpoints_of, tag_of
from greenstalk_server.web.framework.api.openapi import document
from greenstalk_server.web.framework.api.reading import read_body, read_path, read_query
from greenstalk_server.web.framework.api.schema import Schema
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.framework.fields import MAX_PUT
from greenstalk_server.web.framework.rights import open_to

ROOT: Final = "/api/v1"

SMALL_REQUEST: Final = 64 * 1024
"""Bytes of the largest request body of an endpoint without job bodies. Parsing it does not yield to the event loop."""

MIN_BODIES_REQUEST: Final = 1024 * 1024
"""Bytes that a request with job bodies may have in addition to the largest job, for lists of many small jobs."""


def max_request_size(max_job_size: int, has_bodies: bool = True) -> int:
    """Return the size limit of a request body in bytes: the largest job fits in base64, or as text without escapes."""
    return SMALL_REQUEST if not has_bodies else MIN_BODIES_REQUEST + 3 * min(max_job_size, MAX_PUT)


class Api:
    """The endpoints of one server's API."""

    def __init__(self, broker: Broker, commit: Callable[[], bool], security: Iterable[str]) -> None:
        """*commit* waits as in `durability`; *security* is the argument of openapi.document."""
        self._broker: Broker = broker
        self._commit: Callable[[], bool] = commit
        self._security: Iterable[str] = security
        self._endpoints: list[Endpoint] = []
        self._tags: list[tuple[str, str]] = []
        self._document: Schema | None = None

    def add(self, group: object) -> None:
        """Add the endpoints of *group*. The name and docstring of its class become the tag."""
        self._tags.append(tag_of(group))
        self._endpoints += endpoints_of(group)

    def init_app(self, app: Flask) -> None:
        """Add all endpoints and the document to *app*."""
        for one in self._endpoints:
            app.add_url_rule(f"{ROOT}{one.rule}", f"api_{one.name}", self._view(one), methods=[one.method])
        app.add_url_rule(f"{ROOT}/openapi.json", "api_document", self.document)

    def document(self) -> Response:
        """`/api/v1/openapi.json`: the OpenAPI document. May switch."""
        here = self._describe() | {"servers": [{"url": f"{request.root_path}{ROOT}"}]}
        return Response(msgspec.json.encode(here), mimetype=JSON)

    def _describe(self) -> Schema:
        """Return the document, which the first request for it builds. May switch."""
        if self._document is None:
            version, pace = self._broker.facts.version, Pace()
            self._document = document(version, self._security, self._tags, self._endpoints, pace.yield_if_due)
        return self._document

    def _view(self, endpoint: Endpoint) -> Callable[..., Response]:
        """Return the Flask view of *endpoint*."""

        @open_to(endpoint.role)
        def view(**path: str) -> Response:
            most = max_request_size(self._broker.max_job_size, endpoint.has_bodies)
            _refuse_large(request.content_length or 0, most)
            arguments = read_path(endpoint.path_types, path)
            query = read_query(endpoint.query)
            if query is not None:
                arguments["query"] = query
            if endpoint.body is not None:
                body = read_body(endpoint.body, _raw(most), is_needed=endpoint.is_body_needed)
                if body is not None:
                    arguments["body"] = body
            try:
                return _response(endpoint.handler(**arguments), endpoint.status)
            except (NotFound, Conflict, Gone):
                if endpoint.names_job:
                    wait_before_report(self._commit)
                raise

        return view


def _refuse_large(size: int, most: int) -> None:
    """Raise RequestEntityTooLarge if *size*, the size of a request body, exceeds *most* bytes."""
    if size > most:
        raise RequestEntityTooLarge(f"The request's body may have at most {most} bytes.")


def _raw(most: int) -> bytes:
    """Return the request body; refuse it after *most* bytes if its length is not declared. May switch."""
    request.max_content_length = most + 1
    raw = request.get_data(cache=False)
    _refuse_large(len(raw), most)
    return raw


def set_location(endpoint: str, **path: Any) -> None:
    """Set the `Location` header of the current response to the URL of *endpoint*, for a created resource."""
    where = url_for(f"api_{endpoint}", **path)

    @after_this_request
    def add_header(response: Response) -> Response:
        response.headers["Location"] = where
        return response


def _response(answer: Any, status: int) -> Response:
    if isinstance(answer, Response):
        return answer
    return Response(status=204) if answer is None else Response(msgspec.json.encode(answer), status, mimetype=JSON)
