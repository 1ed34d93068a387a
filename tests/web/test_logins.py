"""Password guessing: an address with too many failed sign-ins is locked out for a minute, and no other address is."""

from __future__ import annotations

import logging

import pytest
from flask.testing import FlaskClient

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.web.auth.logins import MAX_ADDRESSES, MAX_FAILURES, FailedLogins

from .conftest import Queue
from .table import Page
from .test_guard import basic

PASSWORD = "right"  # noqa: S105


@pytest.fixture
def client(queue: Queue) -> FlaskClient:
    return queue.app(password=PASSWORD).test_client()


def attempt(client: FlaskClient, password: str, address: str = "192.0.2.1") -> int:
    return client.get("/", headers=basic("ada", password), environ_overrides={"REMOTE_ADDR": address}).status_code


def lock(client: FlaskClient, address: str = "192.0.2.1") -> None:
    assert [attempt(client, "wrong", address) for _ in range(MAX_FAILURES)] == [401] * MAX_FAILURES


def test_every_login_is_refused_for_a_minute_after_ten_failures(queue: Queue, client: FlaskClient) -> None:
    lock(client)
    assert attempt(client, PASSWORD) == 429
    assert attempt(client, "wrong") == 429
    queue.now += 60 * SECOND - 1
    assert attempt(client, PASSWORD) == 429
    queue.now += 1
    assert attempt(client, PASSWORD) == 200


def test_refusal_says_when_to_try_again(queue: Queue, client: FlaskClient) -> None:
    lock(client)
    queue.now += 15 * SECOND - 1
    response = client.get("/", headers=basic("", PASSWORD), environ_overrides={"REMOTE_ADDR": "192.0.2.1"})
    assert response.headers["Retry-After"] == "46"
    assert "WWW-Authenticate" not in response.headers
    text = Page(response.text).text
    assert "Too many sign-ins from 192.0.2.1 have failed. Try again in 46 s." in text
    assert "Other addresses can still sign in." in text


def test_failures_count_within_any_minute(queue: Queue, client: FlaskClient) -> None:
    for _ in range(MAX_FAILURES):
        assert attempt(client, "wrong") == 401
        queue.now += 6 * SECOND
    assert attempt(client, PASSWORD) == 429


def test_requests_without_a_password_are_not_failures(client: FlaskClient) -> None:
    """A browser sends each first request without a password."""
    for _ in range(2 * MAX_FAILURES):
        assert client.get("/", environ_overrides={"REMOTE_ADDR": "192.0.2.1"}).status_code == 401
    assert attempt(client, PASSWORD) == 200


def test_each_lockout_is_logged_once(queue: Queue, client: FlaskClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            lock(client)
            attempt(client, "wrong")
            queue.now += 60 * SECOND
    message = "dashboard: 10 failed sign-ins from 192.0.2.1; refusing more for a minute"
    assert [record.getMessage() for record in caplog.records] == [message, message]


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("2001:db8::1", "2001:db8::2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "192.0.2.2", False),
        ("_hidden", "_hidden", True),
        ("_hidden", "unknown", False),
    ],
)
def test_addresses_that_count_as_one(queue: Queue, one: str, other: str, is_same: bool) -> None:
    logins = FailedLogins(queue.clock)
    assert [logins.fail(one) for _ in range(MAX_FAILURES)] == [False] * (MAX_FAILURES - 1) + [True]
    assert (logins.seconds_locked(other) > 0) == is_same


def test_table_is_bounded_and_keeps_the_latest_addresses(queue: Queue) -> None:
    logins = FailedLogins(queue.clock)
    for _ in range(MAX_FAILURES):
        logins.fail("first")
    for number in range(MAX_ADDRESSES - 1):
        logins.fail(f"other-{number}")
    assert logins.seconds_locked("first") == 60
    logins.fail("one-more")
    assert logins.seconds_locked("first") == 0
