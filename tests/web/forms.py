"""Requests to the dashboard's pages, as its own forms send them, and their responses."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from .table import Page

SAME_ORIGIN: Final = {"Sec-Fetch-Site": "same-origin"}
"""The header that a browser adds to a request of a page of ours."""


def post(client: FlaskClient, path: str, **form: Any) -> TestResponse:
    """Send *form* as a page of ours does."""
    return client.post(path, data=form, headers=SAME_ORIGIN)


def done(response: TestResponse, path: str = "/tube") -> tuple[str, int]:
    """Return the code and number of the notice after a successful change, and check that its page loads."""
    assert response.status_code == 303, response.text
    target = urlsplit(response.headers["Location"])
    assert target.path == path
    query = parse_qs(target.query)
    return query["notice"][0], int(query["n"][0])


def refused(response: TestResponse, status: int) -> str:
    """Return the text of the page that refuses a request with *status*."""
    assert response.status_code == status
    return Page(response.text).text
