"""A broker with a fake clock, and its dashboard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import pytest
from flask import Flask, g
from flask.testing import FlaskClient
from jinja2 import BytecodeCache
from jinja2.bccache import Bucket
from werkzeug.routing import Rule

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.counters import ServerFacts
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import connecting, finishing, putting, reserving
from greenstalk_server.runtime.system import YIELD_DELAY
from greenstalk_server.web.app import Dashboard, WebOptions, create_dashboard
from greenstalk_server.web.framework import cooperative
from greenstalk_server.web.framework.access import Principal
from tests.support.daemon import Daemon

from .browser import Browser, Tab, browser
from .visit import FLAGS, Clients

STARTED_AT = 1_800_000_000 * SECOND


class SharedBytecode(BytecodeCache):
    """The templates compiled for the first app: each test creates its own app.

    Unlike the server's own cache, it has no file: each run of the tests compiles each template.
    """

    def __init__(self) -> None:
        self._code: dict[str, CodeType] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._code.get(bucket.key)

    def dump_bytecode(self, bucket: Bucket) -> None:
        assert bucket.code is not None
        self._code[bucket.key] = bucket.code


@pytest.fixture(scope="session", autouse=True)
def _compile_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Flask, "jinja_options", {"bytecode_cache": SharedBytecode()})
        patch.setattr(Rule, "_compile_builder", _builder_compiled_once(Rule._compile_builder))
        patch.setattr(Rule, "compile", _parsed_once(Rule.compile))
        yield


def _builder_compiled_once(compile_builder: Callable[..., Callable[..., Any]]) -> Callable[..., Callable[..., Any]]:
    """Return *compile_builder* with a cache. Of the 27 ms to create an app, 20 ms compile 85 rules, each one twice."""
    made: dict[tuple[str, bool], Callable[..., Any]] = {}

    def compile_once(rule: Rule, append_unknown: bool = True) -> Callable[..., Any]:
        assert not rule.defaults and rule.map is not None and not rule.map.host_matching, "the key is not unique"
        key = rule.rule, append_unknown
        if key not in made:
            made[key] = compile_builder(rule, append_unknown)
        return made[key]

    return compile_once


def _parsed_once(compile_rule: Callable[[Rule], None]) -> Callable[[Rule], None]:
    """Return *compile_rule* with a cache of the parsed rules: parsing them takes half of the time to create an app."""
    made: dict[str, Rule] = {}

    def compile_once(rule: Rule) -> None:
        first = made.setdefault(rule.rule, rule)
        if first is rule:
            compile_rule(rule)
            return
        assert not rule.defaults and rule.map is not None and not rule.map.host_matching, "the key is not unique"
        rule._parts, rule._trace, rule._converters = first._parts, first._trace, first._converters
        rule.arguments |= first.arguments
        rule._build = rule._compile_builder(False).__get__(rule, None)
        rule._build_unknown = rule._compile_builder(True).__get__(rule, None)

    return compile_once


class Queue:
    """A broker with a clock that the test sets, and helpers for common actions."""

    def __init__(self) -> None:
        self.now = STARTED_AT
        facts = ServerFacts(
            id="0123456789abcdef",
            pid=4711,
            version="9.8.7",
            build="compiled",
            hostname="queue-host",
            os="#1 SMP test",
            platform="pdp11",
            started_at=STARTED_AT,
            rusage=lambda: (1.5, 0.25),
            extensions=("fractions", "wait"),
        )
        self.broker = Broker(facts)

    def clock(self) -> int:
        return self.now

    def connect(self) -> Client:
        """Connect a client that the dashboard can disconnect."""
        client = connecting.connect(self.broker, lambda: None)
        client.connected_at = self.now
        client.address = f"10.0.0.{client.number}:4711"
        client.hang_up = lambda: connecting.disconnect(self.broker, client, self.now)
        return client

    def put(self, tube: str, *, pri: int = 2000, delay: int = 0, count: int = 1, body: bytes = b"body") -> list[int]:
        """Put *count* jobs with a new client, which then disconnects."""
        client = self.connect()
        connecting.use(self.broker, client, tube.encode())
        ids = [self.broker.allocate_id() for _ in range(count)]
        for id in ids:
            assert putting.put(self.broker, client, id, pri, delay * SECOND, 60 * SECOND, body, self.now) > 0
        connecting.disconnect(self.broker, client, self.now)
        return ids

    def app(self, commit: Callable[[], bool] | None = None, **options: Any) -> Flask:
        return create_dashboard(self.broker, self.clock, WebOptions(**options), commit=commit).app


ADMIN = Principal("", "", is_admin=True, sees_bodies=True)


def changing(queue: Queue, dashboard: Dashboard) -> tuple[Any, ...]:
    """Return the arguments of QueueChanges for the queue and its dashboard."""
    saved = (dashboard.saved, dashboard.saved_changes)
    return queue.broker, queue.clock, lambda: True, dashboard.audit, dashboard.tasks, *saved


@contextmanager
def visiting(app: Flask) -> Iterator[None]:
    """Act as an admin within the block, for calls without a request."""
    with app.app_context():
        g.principal = ADMIN
        yield


@pytest.fixture
def queue() -> Queue:
    return Queue()


@pytest.fixture
def app(queue: Queue) -> Flask:
    return queue.app()


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()


@pytest.fixture
def ids(queue: Queue) -> list[int]:
    """Ids of a ready, a delayed, a buried and a reserved job, in this order, all in `mail`."""
    ready, buried, reserved = queue.put("mail", count=3)
    (delayed,) = queue.put("mail", delay=60)
    finishing.bury_job(queue.broker, buried, queue.now)
    reserving.reserve_job(queue.broker, queue.connect(), reserved, queue.now)
    return [ready, delayed, buried, reserved]


@pytest.fixture
def visit(queue: Queue) -> Callable[..., FlaskClient]:
    """Return a function that creates a client of a dashboard with the given options."""

    def make(**options: Any) -> FlaskClient:
        return queue.app(**options).test_client()

    return make


@pytest.fixture
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make long work yield at every opportunity, on a machine of any speed."""
    monkeypatch.setattr(cooperative, "SLICE", 0.0)
    monkeypatch.setattr(cooperative, "PAUSE", YIELD_DELAY)
    monkeypatch.setattr(cooperative, "MAX_PAUSE", YIELD_DELAY)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """One browser for all tests of a process. Each tab has its own context, so tabs share no cookies and no cache."""
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Daemon(*FLAGS) as running:
        yield running


@pytest.fixture
def clients(daemon: Daemon, request: pytest.FixtureRequest) -> Iterator[Clients]:
    """Clients on a tube that no other test uses."""
    made = Clients(daemon, f"mail.{abs(hash(request.node.nodeid)) % 10**9}")
    yield made
    made.close()


@pytest.fixture
def tab(chromium: Browser, daemon: Daemon, request: pytest.FixtureRequest) -> Iterator[Tab]:
    """A tab with JavaScript, unless a parameter says no; at the end it has no errors and no foreign requests."""
    with chromium.tab(daemon.dashboard, java_script_enabled=getattr(request, "param", True)) as opened:
        yield opened
        assert (opened.console, opened.elsewhere) == ([], [])
