"""Invalid requests: the error names the field, and every error is a problem."""

from __future__ import annotations

import json
from typing import Any

import pytest
from flask.testing import FlaskClient

from greenstalk_server.web.features.servers.api import server
from greenstalk_server.web.framework.api.router import MIN_BODIES_REQUEST, SMALL_REQUEST, max_request_size

from ..conftest import Queue
from .conftest import ROOT, TOKEN, Program, bearer, problem


@pytest.mark.parametrize(
    ("path", "field", "message"),
    [
        ("/jobs?limit=0", "limit", "must be a whole number from 1 to 1000"),
        ("/jobs?limit=1001", "limit", "must be a whole number from 1 to 1000"),
        ("/jobs?limit=", "limit", "must be a whole number from 1 to 1000"),
        ("/jobs?limit=+1", "limit", "must be a whole number from 1 to 1000"),
        ("/jobs?limit=1.0", "limit", "must be a whole number from 1 to 1000"),
        ("/jobs?limit=1e1", "limit", "must be a whole number from 1 to 1000"),
        ("/jobs?limit=%D9%A1", "limit", "must be a whole number from 1 to 1000"),
        ("/jobs?limit=1&limit=2", "limit", "is given more than once"),
        (f"/audit?id={2**64}", "id", "must be a whole number from 1 to 18446744073709551615"),
        ("/jobs?state=Ready", "state", "must be one of buried, delayed, ready, reserved"),
        ("/jobs?tube=", "tube", "must be a tube name: 1 to 200 of"),
        ("/jobs?tube=-a", "tube", "must be a tube name: 1 to 200 of"),
        ("/jobs?tube=a%0A", "tube", "must be a tube name: 1 to 200 of"),
        ("/jobs?tube=a%00", "tube", "must be a tube name: 1 to 200 of"),
        (f"/jobs?tube={'a' * 201}", "tube", "must be a tube name: 1 to 200 of"),
        ("/jobs?bodies=1", "bodies", "must be true or false"),
        ("/jobs?q=size:abc", "q", "is not a valid query. “size:abc” must be a comparison with a number"),
        (f"/jobs?q={'x' * 1001}", "q", "must be a string of at most 1000 characters"),
        ("/jobs?cursor=x", "cursor", "must be the “next_cursor” of a response"),
        ("/jobs?cursor=%C3%A4", "cursor", "must be the “next_cursor” of a response"),
        ("/jobs?curser=x", "curser", "is not known: the parameters are tube, state, q, sort, desc, bodies, cursor,"),
        ("/server?x=1", "x", "is not known: there are no parameters here"),
        ("/jobs/abc", "id", "must be a whole number from 1 to 18446744073709551615"),
        ("/jobs/0", "id", "must be a whole number from 1 to 18446744073709551615"),
        ("/jobs/-1", "id", "must be a whole number from 1 to 18446744073709551615"),
        ("/connections/x", "number", "must be a whole number from 1 to 4294967295"),
        ("/tube", "tube", "is missing"),
        ("/tubes?sort=size", "sort", "must be one of"),
        ("/tubes/history?tube=a&span=year", "span", "must be one of 10min, 90days, day, hour, week"),
        ("/jobs/export?format=xml", "format", "must be one of csv, jsonl"),
    ],
)
def test_invalid_parameter_is_named(program: Program, path: str, field: str, message: str) -> None:
    found = problem(program.ask("GET", path), 400, field)
    assert found["errors"][0]["message"].startswith(message)
    assert f"“{field}”" in found["detail"]


JOB = {"tube": "mail", "body": "x"}


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({}, "tube", "is missing"),
        ({"tube": 7}, "tube", "must be a tube name"),
        ({"tube": "a b"}, "tube", "must be a tube name"),
        (JOB | {"pri": -1}, "pri", "must be a whole number from 0 to 4294967295"),
        (JOB | {"pri": 2**32}, "pri", "must be a whole number from 0 to 4294967295"),
        (JOB | {"pri": 2**70}, "pri", "must be a whole number from 0 to 4294967295"),
        (JOB | {"pri": "5"}, "pri", "must be a whole number from 0 to 4294967295"),
        (JOB | {"pri": True}, "pri", "must be a whole number from 0 to 4294967295"),
        (JOB | {"pri": 1.5}, "pri", "must be a whole number from 0 to 4294967295"),
        (JOB | {"pri": None}, "pri", "must be a whole number from 0 to 4294967295"),
        (JOB | {"ttr": 0}, "ttr", "must be a number from 0.001 to 4294967295"),
        (JOB | {"body": 1}, "body", "must be a string"),
        (JOB | {"encoding": "hex"}, "encoding", "must be one of base64, utf-8"),
        (JOB | {"encoding": "base64", "body": "x"}, "body", "is not base64"),
        (JOB | {"encoding": "base64", "body": "ä"}, "body", "is not base64"),
        (JOB | {"encoding": "base64", "body": "eA=="}, None, ""),
        (JOB | {"body": "x" * 65536}, "body", "must be at most 65,535 bytes, but has 65,536 bytes"),
        (JOB | {"prio": 1}, "prio", "is not known"),
        ([], "$", "must be an object (PutJobRequest) or a list of 1 to 1000 items, each an object (PutJobRequest)"),
        ([JOB, JOB | {"pri": -1}], "[1].pri", "must be a whole number"),
        ([JOB, {}], "[1].tube", "is missing"),
        ([JOB, 7], "[1]", "must be an object"),
        ([JOB, JOB | {"x": 1}], "[1].x", "is not known: the fields are tube, body, encoding, pri, delay, ttr"),
        ([JOB, JOB | {"body": "x" * 65536}], "[1].body", "must be at most 65,535 bytes"),
        ([JOB] * 1001, "$", "must be an object (PutJobRequest) or a list of 1 to 1000 items"),
        ("x", "$", "must be an object (PutJobRequest) or a list of 1 to 1000 items"),
        (None, "$", "must be an object (PutJobRequest) or a list"),
    ],
)
def test_invalid_body_is_named(queue: Queue, program: Program, body: Any, field: str | None, message: str) -> None:
    response = program.ask("POST", "/jobs", data=json.dumps(body), content_type="application/json")
    if field is None:
        assert response.status_code == 201
        return
    assert problem(response, 400, field)["errors"][0]["message"].startswith(message)
    assert not queue.broker.jobs


def test_id_in_a_body_is_bounded(program: Program) -> None:
    found = problem(program.ask("POST", "/redrive", json={"ids": [1, 2**64]}), 400, "ids")
    assert found["errors"][0]["message"] == "must be a whole number from 1 to 18446744073709551615"


@pytest.mark.parametrize(
    "raw", [b"{", b"", b"\xff", b'{"tube":"a\xff"}', b'{"tube":"\\ud800"}', b"[" * 50_000, b'{"tube":"a"}x', b"NaN"]
)
def test_body_that_is_not_json_is_refused(queue: Queue, program: Program, raw: bytes) -> None:
    response = program.ask("POST", "/jobs", data=raw, content_type="application/json")
    problem(response, 400, "[0]" if raw.startswith(b"[") else "$")
    assert not queue.broker.jobs


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_other_content_type_is_refused(program: Program, kind: str) -> None:
    found = problem(program.ask("POST", "/jobs", data=b"{}", headers={"Content-Type": kind}), 415)
    assert "Content-Type: application/json" in found["detail"]


def test_charset_is_accepted(program: Program) -> None:
    kind = "application/json; charset=utf-8"
    assert program.ask("POST", "/jobs", data=json.dumps(JOB), content_type=kind).status_code == 201


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/jobs"), ("PATCH", "/jobs/1"), ("GET", "/server"), ("POST", "/bulk"), ("POST", "/reserve")],
)
def test_request_that_is_too_large_is_refused_before_it_is_read(
    queue: Queue, program: Program, method: str, path: str
) -> None:
    class Unread:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"it was read: {name}")

    brings_bodies = path.startswith("/jobs")
    most = max_request_size(queue.broker.max_job_size, brings_bodies)
    assert most == (MIN_BODIES_REQUEST + 3 * 65535 if brings_bodies else SMALL_REQUEST)
    response = program.ask(
        method,
        path,
        environ_overrides={"wsgi.input": Unread(), "CONTENT_LENGTH": str(most + 1)},
        content_type="application/json",
    )
    assert str(most) in problem(response, 413)["detail"]


def test_errors_of_flask_are_problems(queue: Queue, program: Program) -> None:
    for path in ("/nowhere", "/jobs/1/nowhere", "/jobs/", "/../nowhere", "/jobs/a/b/body"):
        problem(program.ask("GET", path), 404)
    refused = program.ask("PUT", "/jobs")
    problem(refused, 405)
    assert set(refused.headers["Allow"].split(", ")) == {"GET", "HEAD", "OPTIONS", "POST"}


def test_failure_is_a_problem_and_is_logged(
    queue: Queue, program: Program, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the secret inside")

    monkeypatch.setattr(server.ServerEndpoints, "_figures", fail)
    assert "secret" not in json.dumps(problem(program.ask("GET", "/server"), 500))
    assert "the secret inside" in caplog.text


def test_path_outside_the_prefix_is_a_problem(queue: Queue) -> None:
    client: FlaskClient = queue.app(url_prefix="/queue", api_token=TOKEN).test_client()
    response = client.get(f"{ROOT}/server", headers=bearer(TOKEN))
    assert (response.status_code, response.mimetype) == (404, "application/problem+json")
    inside = client.get(f"/queue{ROOT}/jobs/7", headers=bearer(TOKEN)).get_json(force=True)
    assert inside["instance"] == f"/queue{ROOT}/jobs/7"
    assert client.get(f"/queue{ROOT}/openapi.json").get_json()["servers"] == [{"url": f"/queue{ROOT}"}]
