"""An API client for tests, and a check of problems."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from greenstalk_server.web.auth.guard import SECURITY_HEADERS

from ..conftest import Queue

TOKEN = "let-me-in"  # noqa: S105
ROOT = "/api/v1"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def problem(response: TestResponse, status: int, field: str = "") -> dict[str, Any]:
    """Check that *response* is a problem of *status*, and names *field* if it is given; return it."""
    assert (response.status_code, response.mimetype) == (status, "application/problem+json"), response.text
    found = response.get_json(force=True)
    assert found["status"] == status
    assert found["title"] and found["detail"]
    assert found["instance"] == response.request.path
    assert found["type"] == "about:blank"
    assert ("errors" in found) == bool(field)
    if field:
        assert [error["field"] for error in found["errors"]] == [field]
        assert found["errors"][0]["message"]
    for name, value in SECURITY_HEADERS.items():
        assert response.headers.getlist(name) == [value]
    return found


class Program:
    """Sends requests to an app with a token."""

    def __init__(self, app: Flask, token: str = TOKEN) -> None:
        self.app = app
        self._client = app.test_client()
        self._headers = bearer(token)

    def ask(self, method: str, path: str, **options: Any) -> TestResponse:
        headers = self._headers | options.pop("headers", {})
        return self._client.open(f"{ROOT}{path}", method=method, headers=headers, **options)

    def get(self, path: str, status: int = 200, **query: object) -> Any:
        """Send a GET; return the JSON of the response."""
        response = self.ask("GET", path, query_string=query)
        assert response.status_code == status, response.text
        return response.get_json(force=True)

    def do(self, method: str, path: str, json: object = None, status: int = 200, **query: object) -> Any:
        """Send a change; return the JSON of the response, or None."""
        options = {} if json is None else {"json": json}
        response = self.ask(method, path, query_string=query, **options)
        assert response.status_code == status, response.text
        return response.get_json(force=True) if status != 204 else None

    def pages(self, path: str, name: str, **query: Any) -> list[list[Any]]:
        """Return every page of a list, by its cursors."""
        pages = []
        while True:
            found = self.get(path, **query)
            pages.append(found[name])
            if found["next_cursor"] is None:
                return pages
            query["cursor"] = found["next_cursor"]


@pytest.fixture
def program(queue: Queue) -> Program:
    return Program(queue.app(api_token=TOKEN))
