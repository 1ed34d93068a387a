"""The API's descriptions: the OpenAPI document, and docs/api.md, but not its examples (see tests/docs)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from tests.support.daemon import REPOSITORY
from tests.support.pages import block

from ..conftest import Queue
from ..forms import SAME_ORIGIN
from ..test_guard import basic
from ..turns import LoopIterations
from .conftest import ROOT, bearer

GUIDE = Path(REPOSITORY, "docs", "api.md")


def document(app: Flask) -> dict[str, Any]:
    found = app.test_client().get(f"{ROOT}/openapi.json")
    assert found.mimetype == "application/json"
    return found.get_json()


def operations(app: Flask) -> list[tuple[str, str, dict[str, Any]]]:
    return [(method, path, one) for path, methods in document(app)["paths"].items() for method, one in methods.items()]


# The document


def test_document_has_every_endpoint(queue: Queue) -> None:
    served = {
        (method.lower(), re.sub(r"<(\w+)>", r"{\1}", rule.rule.removeprefix(ROOT)))
        for rule in queue.app().url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
        if rule.rule.startswith(ROOT)
    }
    documented = {(method, path) for method, path, _ in operations(queue.app())}
    assert served - documented == {("get", "/openapi.json")}
    assert documented <= served


def test_document_describes_everything(queue: Queue) -> None:
    found = document(queue.app())
    tags = {tag["name"]: tag["description"] for tag in found["tags"]}
    names = set()
    for _, path, one in operations(queue.app()):
        assert one["summary"] and one["tags"][0] in tags
        assert tags[one["tags"][0]]
        names.add(one["operationId"])
        for parameter in one["parameters"]:
            assert parameter["description"] or parameter["schema"].get("enum"), (path, parameter["name"])
        for status, response in one["responses"].items():
            assert "$ref" in response or response["description"], (path, status)
    assert len(names) == len(operations(queue.app()))
    for name, schema in found["components"]["schemas"].items():
        assert schema["description"], name


@pytest.mark.parametrize(
    ("options", "accepted"),
    [
        ({}, []),
        ({"api_token": "t"}, ["bearer"]),
        ({"api_viewer_token": "t", "password": "p"}, ["bearer", "basic"]),
        ({"viewer_password": "p"}, ["basic"]),
    ],
)
def test_document_names_the_accepted_credentials(queue: Queue, options: dict[str, Any], accepted: list[str]) -> None:
    password = options.get("password") or options.get("viewer_password") or ""
    response = queue.app(**options).test_client().get(f"{ROOT}/openapi.json", headers=basic("ada", password))
    found = response.get_json()
    assert [list(one) for one in found["security"]] == [[name] for name in accepted]
    assert set(found["components"]["securitySchemes"]) == {"bearer", "basic"}


@pytest.mark.usefixtures("short_steps")
def test_document_yields_after_each_endpoint(queue: Queue) -> None:
    client, endpoints = queue.app().test_client(), len(operations(queue.app()))
    client.get("/")
    with LoopIterations() as iterations:
        assert client.get(f"{ROOT}/openapi.json").status_code == 200
    assert iterations.count >= endpoints


def test_document_needs_the_password_of_the_dashboard(queue: Queue) -> None:
    client, path = queue.app(password="p", api_token="t").test_client(), f"{ROOT}/openapi.json"  # noqa: S106
    assert client.get(path).status_code == 401
    assert client.get(path, headers=basic("ada", "p")).status_code == 200
    assert client.get(path, headers=bearer("t")).status_code == 200
    assert client.get(path, headers=bearer("x")).status_code == 401
    assert queue.app(api_token="t").test_client().get(path).status_code == 200  # noqa: S106


# docs/api.md


def test_guides_name_every_endpoint(queue: Queue) -> None:
    guides = GUIDE.read_text() + GUIDE.with_name("http-jobs.md").read_text()
    for method, path, _ in operations(queue.app()):
        assert f"`{method.upper()} {path}`" in guides or f"$url{path}" in guides, (method, path)


def test_error_is_as_shown(queue: Queue) -> None:
    new = {"tube": "mail", "body": "", "pri": -1}
    response = queue.app().test_client().post(f"{ROOT}/jobs", json=new, headers=SAME_ORIGIN)
    assert response.json == json.loads(block("api.md", "json", '{\n  "type"'))
