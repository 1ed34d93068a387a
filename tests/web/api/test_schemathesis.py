"""The API conforms to its OpenAPI document: schemathesis sends valid and invalid requests, and checks the responses.

Every status, media type and body must be documented, every invalid request refused, and no request may fail.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from ipaddress import IPv4Address
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
import schemathesis
from flask import Flask
from hypothesis import HealthCheck, Phase, settings
from schemathesis import GenerationMode
from schemathesis.checks import CheckFunction, load_all_checks
from schemathesis.core.parameters import ParameterLocation
from schemathesis.core.result import Ok
from schemathesis.pytest.lazy import get_all_tests
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    unsupported_method,
)

from greenstalk_server.core.operations import finishing, policy_changes, reserving, ticking
from greenstalk_server.core.policies.policy import SETTINGS, parse_policy

from ..conftest import Queue
from .conftest import TOKEN, bearer

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

AS_ADMIN = bearer(TOKEN)
"""An admin's token, so that nothing is refused for lack of rights."""

FIELDS_BEYOND_SCHEMAS = {
    *("cursor", "q", "desc", "field", "fields", "body", "after", "all", "to", "pri", "delay", "tubes", "priority"),
    *("at", "condition", "name", *SETTINGS),
}
"""Fields that a schema cannot describe fully: cursors, queries, lists of paths, base64, the fields that go with an
action, with a group or with `sort`, a time of the last 90 days, kinds of conditions, names that are not blank, and
the settings of policies.
"""

EXAMPLES = settings(
    max_examples=3,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def app() -> Flask:
    """A dashboard with jobs in every state, and with connections; ids and numbers start at 1."""
    queue = Queue()
    queue.put("mail", count=40)
    queue.put("mail", delay=3600, count=10)
    worker = queue.connect()
    for id in range(1, 11):
        assert reserving.reserve_job(queue.broker, worker, id, queue.now)
    for id in range(11, 21):
        assert finishing.bury_job(queue.broker, id, queue.now)
    policy_changes.set_policy(
        queue.broker, parse_policy("mail", {"tubes": ["*"], "max_attempts": 1, "expire_after": 60}), queue.now
    )
    policy_changes.set_file_policies(
        queue.broker, [parse_policy("dead", {"tubes": ["mail"], "dead_letter": "failed"})], queue.now
    )
    for _ in range(100):
        ticking.tick(queue.broker, queue.now)
    assert finishing.release(queue.broker, worker, 10, 0, 0, queue.now)
    assert queue.broker.jobs[10].dead_letter
    made = queue.app(api_token=TOKEN)
    serve, numbers = made.wsgi_app, count()

    def serve_other_address(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        environ["REMOTE_ADDR"] = str(IPv4Address("10.0.0.0") + next(numbers))  # many requests have a wrong token
        return serve(environ, start_response)

    made.wsgi_app = serve_other_address  # type: ignore[method-assign]
    return made


@pytest.fixture(scope="module")
def schema() -> BaseSchema:
    """The OpenAPI document."""
    return schemathesis.openapi.from_wsgi("/api/v1/openapi.json", app(), headers=AS_ADMIN)


def test_document_is_valid_openapi(schema: BaseSchema) -> None:
    """According to the JSON Schema of OpenAPI 3.1."""
    schema.validate()


@pytest.mark.timeout(300)
def test_responses_are_as_documented(schema: BaseSchema) -> None:
    """One test for all operations.

    `schema.parametrize` gives the tests of all operations the same node id, so xdist runs one of them. And it builds
    them in each process that collects, which takes 3 s of CPU.
    """
    load_all_checks()
    served = schema.exclude(path="/events")  # a stream never ends; test_server covers it
    operations = 0
    for result in get_all_tests(schema=served, test_func=check, settings=EXAMPLES, given_kwargs=None):
        assert isinstance(result, Ok), result.err()
        _, check_operation = result.ok()
        check_operation()
        operations += 1
    assert operations > 50


def check(case: schemathesis.Case) -> None:
    body = with_whole_numbers(case.body)
    match body:
        case {"wait": int() | float() as wait} if 0 < wait <= 50:
            body["wait"] = 0  # fake time does not advance
    case.body = body
    excluded: list[CheckFunction] = [positive_data_acceptance]
    headers = case.meta.components.get(ParameterLocation.HEADER) if case.meta is not None else None
    if headers is not None and headers.mode is GenerationMode.NEGATIVE:
        excluded.append(negative_data_rejection)  # a request without the required token gets one
    if case.path == "/jobs/export":
        excluded += [allow_header_conformance, unsupported_method]  # PATCH and DELETE are those of /jobs/{id}
    response = case.call(headers=AS_ADMIN)
    if response.status_code == 413:
        excluded.append(negative_data_rejection)  # refused for its size
    assert response.status_code != 429, "the operation was not reached"
    case.validate_response(response, headers=AS_ADMIN, excluded_checks=excluded)
    if case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE and response.status_code == 400:
        (error,) = json.loads(response.content)["errors"]
        assert error["field"].rpartition(".")[2] in FIELDS_BEYOND_SCHEMAS, error


def with_whole_numbers(value: Any) -> Any:
    """Return *value* with 5 instead of 5.0, which is an integer only by JSON Schema."""
    match value:
        case dict():
            return {name: with_whole_numbers(each) for name, each in value.items()}
        case list():
            return list(map(with_whole_numbers, value))
        case float() if value.is_integer():
            return int(value)
    return value
