"""The descriptions of the API: the OpenAPI document, its page, and docs/api.md, whose examples tests/docs runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from greenstalk_server.core.operations import finishing
from greenstalk_server.web.framework.api.problems import MEANINGS
from tests.support.daemon import REPOSITORY

from ..conftest import Queue
from ..table import Page
from ..test_guard import basic
from ..turns import LoopIterations
from .conftest import ROOT, bearer

TOKEN = "TOKEN"  # noqa: S105  as the examples have it
GUIDE = Path(REPOSITORY, "docs", "api.md")


def app(queue: Queue) -> Flask:
    """A dashboard with the objects that the examples use."""
    queue.put("mail", count=50)
    finishing.bury_job(queue.broker, 42, queue.now)
    return queue.app(api_token=TOKEN)


def document(app: Flask) -> dict[str, Any]:
    found = app.test_client().get(f"{ROOT}/openapi.json")
    assert found.mimetype == "application/json"
    return found.get_json()


def operations(app: Flask) -> list[tuple[str, str, dict[str, Any]]]:
    return [(method, path, one) for path, methods in document(app)["paths"].items() for method, one in methods.items()]


def run(app: Flask, line: str) -> TestResponse:
    """Send the request of a command line. It must be curl, with the options that the examples use."""
    words = shlex.split(line)
    assert words.pop(0) == "curl"
    method, url, data, headers = "", "", None, {}
    while words:
        word = words.pop(0)
        if word == "-X":
            method = words.pop(0)
        elif word == "-H":
            name, _, value = words.pop(0).partition(": ")
            headers[name] = value.replace("$TOKEN", TOKEN)
        elif word == "--json":
            headers["Content-Type"] = "application/json"
            data = words.pop(0)
        elif word == "-u":
            headers |= basic(*words.pop(0).split(":"))
        else:
            assert not word.startswith("-"), word
            url = word
    parts = urlsplit(url)
    return app.test_client().open(
        parts.path, query_string=parts.query, method=method or ("POST" if data else "GET"), headers=headers, data=data
    )


# The document


def test_document_has_every_endpoint(queue: Queue) -> None:
    served = {
        (method.lower(), re.sub(r"<(\w+)>", r"{\1}", rule.rule.removeprefix(ROOT)))
        for rule in app(queue).url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
        if rule.rule.startswith(ROOT)
    }
    documented = {(method, path) for method, path, _ in operations(queue.app())}
    assert served - documented == {("get", "/openapi.json"), ("get", "/docs")}
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
@pytest.mark.parametrize("path", ["openapi.json", "docs"])
def test_document_and_page_yield_after_each_endpoint(queue: Queue, path: str) -> None:
    client, endpoints = queue.app().test_client(), len(operations(queue.app()))
    client.get(f"{ROOT}/openapi.json" if path == "docs" else "/")
    with LoopIterations() as iterations:
        assert client.get(f"{ROOT}/{path}").status_code == 200
    assert iterations.count >= endpoints


# The page


def test_page_has_every_endpoint_and_every_error(queue: Queue) -> None:
    found = app(queue)
    page = found.test_client().get(f"{ROOT}/docs").text
    shown = Page(page).text
    for method, path, one in operations(found):
        assert f"{method.upper()} {path}" in shown
        assert one["summary"].replace("`", "") in shown
    for status in MEANINGS:
        assert f'id="status-{status}"' in page
    for name in document(found)["components"]["schemas"]:
        assert f'id="type-{name}"' in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(ids)


def test_page_needs_the_password_of_the_dashboard(queue: Queue) -> None:
    found = queue.app(password="p", api_token=TOKEN)  # noqa: S106
    for path in (f"{ROOT}/docs", f"{ROOT}/openapi.json"):
        assert found.test_client().get(path).status_code == 401
        assert found.test_client().get(path, headers=basic("ada", "p")).status_code == 200
        assert found.test_client().get(path, headers=bearer(TOKEN)).status_code == 200
        assert found.test_client().get(path, headers=bearer("x")).status_code == 401
        assert queue.app(api_token=TOKEN).test_client().get(path).status_code == 200


@pytest.mark.parametrize(
    "options",
    [{}, {"api_token": "TOKEN"}, {"user": "NAME", "password": "PASSWORD"}],
    ids=["open", "token", "password"],
)
def test_every_example_on_the_page_works(queue: Queue, options: dict[str, Any]) -> None:
    """It may name a job or a task that does not exist, but the server accepts every example as valid."""
    queue.put("mail", count=50)
    found = queue.app(**options)
    login = basic("NAME", "PASSWORD") if "password" in options else {}
    page = Page(found.test_client().get(f"{ROOT}/docs", headers=login).text).text
    lines = re.findall(r"^\s*(curl .*)$", page, re.MULTILINE)
    assert len(lines) == len(operations(queue.app()))
    for line in lines:
        response = run(found, line)
        response.close()
        if response.mimetype == "text/event-stream":
            continue
        assert response.status_code in (200, 201, 202, 204, 404, 409), (line, response.text)


# docs/api.md


def test_guides_name_every_endpoint(queue: Queue) -> None:
    guides = GUIDE.read_text() + GUIDE.with_name("http-jobs.md").read_text()
    for method, path, _ in operations(queue.app()):
        assert f"`{method.upper()} {path}`" in guides or f"$url{path}" in guides, (method, path)
