"""The API does what its document says: schemathesis sends what that allows and what not, and checks the answers.

Every status, media type and body has to be documented, what is not allowed to be refused, and nothing to fail.
"""

from __future__ import annotations

import json

import schemathesis
from flask import Flask
from hypothesis import HealthCheck, Phase, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from ..conftest import Queue
from .conftest import TOKEN, bearer

ASKING = bearer(TOKEN)
"""As an admin, so nothing is refused for who asks."""

BEYOND_SCHEMAS = {"cursor", "q", "body", "all", "to", "pri", "delay"}
"""Fields of which a schema cannot tell all: what a cursor or a query is, what base64, which go with what action."""


def app() -> Flask:
    """A dashboard over a queue with jobs in every state, and with connections: ids and numbers from 1 on."""
    queue = Queue()
    queue.put("mail", count=40)
    queue.put("mail", delay=3600, count=10)
    worker = queue.connect()
    for id in range(1, 11):
        assert queue.broker.reserve_job(worker, id, queue.now)
    for id in range(11, 21):
        assert queue.broker.bury_job(id, queue.now)
    return queue.app(api_token=TOKEN)


schema = schemathesis.openapi.from_wsgi("/api/v1/openapi.json", app(), headers=ASKING)


def test_document_is_one_of_openapi() -> None:
    """By the JSON Schema of OpenAPI 3.1 itself."""
    schema.validate()


# A stream never ends, and a wait goes by a clock that stands still here; test_server and test_api_leases have them.
@schema.exclude(path=["/events", "/reserve"]).parametrize()
@settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_answers_are_as_documented(case: schemathesis.Case) -> None:
    response = case.call(headers=ASKING)
    case.validate_response(response, headers=ASKING, excluded_checks=[positive_data_acceptance])
    if case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE and response.status_code == 400:
        (error,) = json.loads(response.content)["errors"]
        assert error["field"].rpartition(".")[2] in BEYOND_SCHEMAS, error
