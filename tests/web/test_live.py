"""Live pages: changes arrive, over real streams and real sockets, and the cost of watching is bounded."""

from __future__ import annotations

import gc
import http.client
import json
import tracemalloc
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode, urlsplit
from weakref import WeakSet

import gevent
import pytest
from flask.testing import FlaskClient
from gevent import socket
from gevent.event import Event
from gevent.pywsgi import WSGIHandler, WSGIServer
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import editing, finishing
from greenstalk_server.web.live import hub
from greenstalk_server.web.live.hub import LiveHub, Topic, difference
from tests.support.daemon import TIMEOUT, Daemon

from .conftest import ADMIN, Queue
from .turns import until

TICK = 0.02
"""Seconds between two renderings in these tests."""

State = dict[str, Any]


# Differences


def applied(changes: State, state: State) -> State:
    """Return *state* after *changes*, as static/live.js applies them."""
    result = {kind: dict(values) for kind, values in state.items()}
    for kind, values in changes.items():
        for name, value in values.items():
            shown = result.setdefault(kind, {})
            shown[name] = _table(shown[name], value) if kind == "rows" and isinstance(value, dict) else value
    return result


def _table(rows: list[list[str]], changes: State) -> list[list[str]]:
    by_key = {row[0]: row for row in rows} | {row[0]: row for row in changes["changed"]}
    return [by_key[key] for key in changes.get("order", [row[0] for row in rows])]


def present(state: State) -> State:
    """Return *state* without the nulls of removed values."""
    return {
        kind: {name: value for name, value in values.items() if value is not None} for kind, values in state.items()
    }


FULL: State = {
    "fields": {"ready": "1", "buried": "0"},
    "rows": {"jobs": [["1", "a"], ["2", "b"], ["3", "c"]]},
    "parts": {"badges": "<b>ready</b>"},
    "shown": {"jobs": True},
}


@pytest.mark.parametrize(
    ("new", "changes"),
    [
        (FULL, {}),
        (FULL | {"fields": {"ready": "2", "buried": "0"}}, {"fields": {"ready": "2"}}),
        (FULL | {"parts": {"badges": ""}}, {"parts": {"badges": ""}}),
        (FULL | {"shown": {"jobs": False, "more": True}}, {"shown": {"jobs": False, "more": True}}),
        (FULL | {"rows": {"jobs": [["1", "a"], ["2", ""], ["3", "c"]]}}, {"rows": {"jobs": {"changed": [["2", ""]]}}}),
        (FULL | {"rows": {"jobs": [["3", "c"], ["1", "a"]]}}, {"rows": {"jobs": {"changed": [], "order": ["3", "1"]}}}),
        (
            FULL | {"rows": {"jobs": [["1", "a"], ["4", "d"], ["2", "b"], ["3", "c"]]}},
            {"rows": {"jobs": {"changed": [["4", "d"]], "order": ["1", "4", "2", "3"]}}},
        ),
        (FULL | {"rows": FULL["rows"] | {"other": [["x"]]}}, {"rows": {"other": [["x"]]}}),
        (FULL | {"series": {"put": [1, 2]}}, {"series": {"put": [1, 2]}}),
    ],
)
def test_only_changes_are_sent(new: State, changes: State) -> None:
    assert difference(FULL, new) == changes


texts = st.text("ab", max_size=1)
tables = st.dictionaries(st.sampled_from("123456"), texts, max_size=6).flatmap(
    lambda cells: st.permutations([[key, cell] for key, cell in cells.items()])
)
states = st.fixed_dictionaries(
    {
        "fields": st.fixed_dictionaries({"x": texts}, optional={"y": texts}),
        "rows": st.fixed_dictionaries({"jobs": tables}),
    }
)


@given(states, states)
def test_difference_leads_from_any_state_to_any_other(old: State, new: State) -> None:
    changed = applied(difference(old, new), old)
    assert present(changed) == new


# Over sockets


class Stream:
    """A reader of `/events`; it reads only when asked to."""

    def __init__(self, address: tuple[str, int], query: str, headers: Mapping[str, str], prefix: str = "") -> None:
        self.sock = socket.create_connection(address, TIMEOUT)
        lines = [f"GET {prefix}/events?{query} HTTP/1.0", "Host: localhost"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.sock.sendall("\r\n".join([*lines, "", ""]).encode())
        self._file = self.sock.makefile("rb")
        self.status = int(self._file.readline().split()[1])
        self.headers = {}
        while line := self._file.readline().strip():
            name, _, value = line.decode().partition(": ")
            self.headers[name] = value

    def block(self) -> list[str]:
        """Return the lines up to the next empty one; empty at the end of the stream."""
        lines = []
        while line := self._file.readline().decode().rstrip("\n"):
            lines.append(line)
        return lines

    def event(self) -> tuple[str, State]:
        """Return name and data of the next event with data."""
        fields = dict[str, str]()
        while "data" not in fields:
            lines = self.block()
            assert lines, "it has ended"
            fields = dict(line.split(": ", 1) for line in lines)
        return fields.get("event", "message"), json.loads(fields["data"])

    def changes(self) -> State:
        """Return the data of the next event that is not empty."""
        while True:
            name, data = self.event()
            assert name == "message"
            if data:
                return data

    def close(self) -> None:
        self._file.close()
        self.sock.close()


class Dashboard:
    """A served dashboard, and its streams."""

    def __init__(self, queue: Queue, **options: Any) -> None:
        self.app = queue.app(**options)
        self.hub: LiveHub = self.app.extensions["dashboard"].live
        self.server = WSGIServer(("127.0.0.1", 0), self.app, log=None, error_log=None)
        self.server.start()
        self._at_exit = ExitStack()

    def open(self, page: str, headers: Mapping[str, str] | None = None, prefix: str = "", **args: Any) -> Stream:
        stream = Stream(self.server.address, urlencode({"page": page} | args), headers or {}, prefix)
        self._at_exit.callback(stream.close)
        return stream

    def wait_for_streams(self, count: int) -> None:
        until(lambda: self.hub.stream_count == count)

    def close(self) -> None:
        self._at_exit.close()
        self.hub.stop()
        self.server.stop(timeout=1)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "REFRESH_INTERVAL", TICK)


@pytest.fixture
def serve(queue: Queue) -> Iterator[Callable[..., Dashboard]]:
    with ExitStack() as at_exit:

        def make(**options: Any) -> Dashboard:
            dashboard = Dashboard(queue, **options)
            at_exit.callback(dashboard.close)
            return dashboard

        yield make


def test_stream_sends_the_state_and_then_changes(queue: Queue, serve: Callable[..., Dashboard]) -> None:
    dashboard = serve()
    queue.put("mail", count=2)
    stream = dashboard.open("tube", tube="mail")
    assert stream.status == 200
    assert stream.headers["Content-Type"].startswith("text/event-stream")
    assert (stream.headers["Cache-Control"], stream.headers["X-Accel-Buffering"]) == ("no-store", "no")
    assert "Content-Security-Policy" in stream.headers
    assert stream.block() == ["retry: 2000"]
    whole = stream.changes()
    assert whole == dashboard.app.test_client().get("/live?page=tube&tube=mail").json
    assert [row[0] for row in whole["rows"]["jobs"]] == ["1", "2"]
    queue.put("mail", pri=1)
    changes = stream.changes()
    assert changes["fields"].items() >= {"count-ready": "3", "note-ready": "1 urgent"}.items()
    assert "count-buried" not in changes["fields"]
    assert changes["rows"]["jobs"]["order"] == ["3", "1", "2"]
    assert [row[0] for row in changes["rows"]["jobs"]["changed"]] == ["3"]


def test_stream_ends_when_its_subject_is_gone(queue: Queue, serve: Callable[..., Dashboard]) -> None:
    dashboard = serve()
    (id,) = queue.put("mail")
    stream = dashboard.open("job", id=id)
    stream.block()
    stream.changes()
    finishing.delete(queue.broker, None, id, queue.now)
    assert stream.event() == ("gone", {})
    assert stream.block() == []  # the end of the stream
    dashboard.wait_for_streams(0)
    assert dashboard.open("job", id=id).status == 404
    assert dashboard.app.test_client().get(f"/live?page=job&id={id}").status_code == 404


def test_idle_stream_sends_heartbeats(
    queue: Queue, serve: Callable[..., Dashboard], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "HEARTBEAT_INTERVAL", 0.05)
    (id,) = queue.put("mail")
    stream = serve().open("job", id=id)
    stream.block()
    stream.changes()
    assert stream.block() == [": still there", "data: {}"]
    assert stream.block() == [": still there", "data: {}"]


@pytest.mark.parametrize("path", ["/live", "/events", "/live?page=nothing", "/events?page=", "/events?page=tube&tube="])
def test_invalid_request_is_refused(client: FlaskClient, path: str) -> None:
    assert client.get(path).status_code == 400


def test_stream_is_rendered_with_the_rights_and_prefix_of_its_request(
    queue: Queue, serve: Callable[..., Dashboard]
) -> None:
    """Parts rendered by the hub's own greenlet have the prefix and the rights of the request."""
    dashboard = serve(url_prefix="/queue", password="sesame", viewer_password="look")  # noqa: S106
    queue.put("mail")
    streams = {}
    for password in ("sesame", "look"):
        headers = {"Authorization": f"Basic {b64encode(f':{password}'.encode()).decode()}"}
        streams[password] = dashboard.open("tube", headers, "/queue", tube="mail")
        streams[password].block()
        assert "Resume now" not in streams[password].changes()["parts"]["pause"]
    editing.pause_tube(queue.broker, b"mail", 60 * SECOND, queue.now)
    assert 'action="/queue/tube/resume"' in streams["sesame"].changes()["parts"]["pause"]
    part = streams["look"].changes()["parts"]["pause"]
    assert "Paused for" in part
    assert "<form" not in part


def test_streams_of_the_same_page_share_the_rendering(queue: Queue, serve: Callable[..., Dashboard]) -> None:
    dashboard = serve()
    calls = []

    def render(args: Mapping[str, str], now: int) -> State:
        calls.append(args["about"])
        return {"fields": {"count": str(len(calls))}}

    dashboard.hub.register("counted", render)
    streams = [dashboard.open("counted", about="x") for _ in range(10)]
    for stream in streams:
        stream.block()
        stream.changes()
    made, sent = len(calls), [0]
    while sent[-1] < made + 50:
        sent.append(int(streams[0].changes()["fields"]["count"]))
    assert 1 in [after - before for before, after in pairwise(sent) if before > made]  # one rendering for ten streams
    other = dashboard.open("counted", about="y")
    other.block()
    assert other.changes()
    assert set(calls) == {"x", "y"}


def test_streams_that_begin_together_share_one_rendering(
    queue: Queue, serve: Callable[..., Dashboard], monkeypatch: pytest.MonkeyPatch
) -> None:
    dashboard = serve()
    monkeypatch.setattr(hub, "REFRESH_INTERVAL", TIMEOUT)
    monkeypatch.setattr(hub, "GATHER_TIME", 0.5)
    rendered = 0
    may_render = Event()
    may_render.set()

    def render(_args: Mapping[str, str], _now: int) -> State:
        nonlocal rendered
        rendered += 1
        may_render.wait()
        return {"fields": {"count": "1"}}

    dashboard.hub.register("counted", render)
    may_render.clear()
    opened = [gevent.spawn(dashboard.open, "counted") for _ in range(20)]
    until(lambda: rendered == 1)
    gevent.idle()
    may_render.set()
    gevent.joinall(opened, timeout=TIMEOUT, raise_error=True)
    for stream in [one.get(block=False) for one in opened]:
        stream.block()
        assert stream.changes()["fields"] == {"count": "1"}
    assert rendered <= 4, "one for the first, and one or two for those that came during it"


def new_topic() -> Topic:
    return Topic(("page", (), "", True, True, True, ADMIN.rights), "page", {}, {}, ADMIN)


@given(st.lists(states, min_size=1, max_size=6), st.data())
def test_stream_that_skips_states_reaches_the_newest_one(given: list[State], data: st.DataObject) -> None:
    topic, shown, version, names = new_topic(), State(), 0, dict[str, frozenset[str]]()
    for state in given:
        topic.take(state)
        if state is given[-1] or data.draw(st.booleans()):
            message = topic.message_since(version, names)
            version, names = topic.version, dict(topic.names)
            shown = applied(json.loads(message.removeprefix(b"data: ")), shown) if message else shown
    found = {
        kind: {name: value for name, value in values.items() if value is not None} for kind, values in shown.items()
    }
    assert found == given[-1]


def test_state_is_encoded_whatever_text_it_has() -> None:
    assert hub.encoded({"parts": {"a": Markup("<b>")}}) == b'{"parts":{"a":"<b>"}}'
    assert hub.encoded({"parts": {"a": "\ud800"}}) == b'{"parts":{"a":"?"}}'
    with pytest.raises(TypeError, match="must not have a object"):
        hub.encoded({"parts": {"a": object()}})


def test_no_page_is_rendered_without_streams(queue: Queue, serve: Callable[..., Dashboard]) -> None:
    dashboard = serve()
    calls = []
    dashboard.hub.register("counted", lambda _args, _now: calls.append(1) or {"fields": {"n": str(len(calls))}})
    stream = dashboard.open("counted")
    stream.block()
    stream.changes()
    stream.changes()
    stream.close()
    dashboard.wait_for_streams(0)
    gevent.sleep(3 * TICK)
    made = len(calls)
    gevent.sleep(5 * TICK)
    assert len(calls) == made
    again = dashboard.open("counted")
    again.block()
    assert again.changes()
    assert again.changes()


def test_failing_page_ends_its_streams_and_is_logged(
    queue: Queue, serve: Callable[..., Dashboard], caplog: pytest.LogCaptureFixture
) -> None:
    dashboard = serve()
    fails: list[Any] = []

    def render(_args: Mapping[str, str], _now: int) -> State:
        if fails:
            raise RuntimeError("the reason")
        return {"fields": {"x": "1"}}

    dashboard.hub.register("fragile", render)
    fragile, sound = dashboard.open("fragile"), dashboard.open("tube", tube="default")
    for stream in (fragile, sound):
        stream.block()
        stream.changes()
    fails.append(True)
    assert fragile.block() == []
    assert "the reason" in caplog.text
    queue.put("default")
    assert sound.changes()["fields"]["count-ready"] == "1"


def test_too_many_streams_are_refused(
    queue: Queue, serve: Callable[..., Dashboard], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hub.MAX_STREAMS == 100
    monkeypatch.setattr(hub, "MAX_STREAMS", 5)
    dashboard = serve()
    rendered: list[Mapping[str, str]] = []
    dashboard.hub.register("counted", lambda args, _now: rendered.append(args) or {})
    streams = [dashboard.open("tube", tube="default") for _ in range(5)]
    for stream in streams:
        stream.block()
    assert dashboard.open("tube", tube="default").status == 503
    assert dashboard.open("counted").status == 503
    assert not rendered, "a refused stream costs no state"
    assert dashboard.app.test_client().get("/live?page=tube&tube=default").status_code == 200
    streams[0].close()
    dashboard.wait_for_streams(4)
    assert dashboard.open("tube", tube="default").status == 200


PER_STREAM = (hub.Stream, hub.Topic, WSGIHandler, gevent.Greenlet, Event)
"""Types of the objects that belong to one stream."""


def found() -> list[Any]:
    gc.collect()
    return [one for one in gc.get_objects() if type(one) in PER_STREAM]


def test_closed_streams_leave_nothing_behind(queue: Queue, serve: Callable[..., Dashboard]) -> None:
    dashboard = serve()
    (id,) = queue.put("mail")
    before = WeakSet(found())
    streams = [dashboard.open("job", id=id) for _ in range(8)] + [dashboard.open("overview")]
    for stream in streams:
        stream.block()
        stream.changes()
    dashboard.wait_for_streams(9)
    opened = WeakSet(one for one in found() if one not in before)
    assert Counter(map(type, opened)).items() >= {hub.Stream: 9, hub.Topic: 2, WSGIHandler: 9}.items()
    for stream in streams:
        stream.close()
    dashboard.wait_for_streams(0)
    until(lambda: not [one for one in found() if one in opened and not getattr(one, "dead", False)])


def test_slow_reader_delays_nobody_and_uses_constant_memory(queue: Queue, serve: Callable[..., Dashboard]) -> None:
    dashboard = serve()
    size, newest, changes = 2_000_000, 0, True

    def render(_args: Mapping[str, str], _now: int) -> State:
        nonlocal newest
        newest += changes
        return {"fields": {"x": f"{newest:0{size}}"}}

    def number(state: State) -> int:
        return int(state["fields"]["x"][-9:])

    dashboard.hub.register("large", render)
    slow, quick = dashboard.open("large"), dashboard.open("large")
    quick.block()
    for _ in range(5):
        quick.changes()
    tracemalloc.start()
    try:
        for _ in range(30):
            last = number(quick.changes())
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 12 * size  # a queue of unsent states would hold 30 times the size
    assert dashboard.hub.stream_count == 2
    changes = False
    while last < newest:
        last = number(quick.changes())
    until(lambda: sorted(stream.busy_since > 0 for stream in dashboard.hub._streams) == [False, True])
    queue.now += 61 * SECOND
    dashboard.wait_for_streams(1)
    changes = True
    quick.changes()
    slow.close()


def test_daemon_stops_cleanly_with_open_streams() -> None:
    with Daemon("-l", "127.0.0.1", "-p", "0", "--web-port", "0") as daemon:
        connections = []
        for _ in range(3):
            connection = http.client.HTTPConnection(urlsplit(daemon.dashboard).netloc, timeout=TIMEOUT)
            connection.request("GET", "/events?page=overview")
            response = connection.getresponse()
            assert response.status == 200
            assert response.readline() == b"retry: 2000\n"
            connections.append((connection, response))
        code, output = daemon.stop()
        assert code == 0
        assert "Traceback" not in output
        for connection, response in connections:
            response.read()  # read to a clean end: an incomplete response raises
            connection.close()
