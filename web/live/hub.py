"""Live pages: a page has a state, and streams send the changes of that state to browsers once a second.

A page registers a function that returns its state, which static/live.js applies to the page. The state is a dict, which
may have these keys:

    fields      {name: text} for the elements `data-field`.
    rows        {table: rows} for its `<tbody data-rows>`; each row is a list that starts with its key.
    parts       {name: escaped HTML} for the elements `data-part`.
    shown       {name: bool}: whether the elements `data-shown` are visible.
    series      {name: numbers} for charts.
    badges      {name: text}: the counts in the navigation, which each page has (features/conditions/badges.py).

`/live?page=NAME` returns the whole state once. `/events?page=NAME` is a stream of server-sent events: first the whole
state, then only the changes. For a table whose rows have changed, an event has an object instead of the list: `changed`
is a list of the rows that are new or different; `order`, present if rows were added, removed or moved, is a list of all
keys.

A single greenlet renders all watched pages, one after the other, with pauses in between. It renders each page once a
second, however many streams watch it, and once more for the streams that begin in between. The streams of a page share
each encoded event.

Nothing is queued: a stream remembers the version of the state that it sent last. If that version is the one before the
newest, the stream next sends the difference between the two. Otherwise it sends the whole newest state, with null for
members that are gone. So a slow reader skips the states in between, and holds only the event that it is reading.
"""

from __future__ import annotations

import json
import logging
import select
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import gevent
import msgspec
from flask import Flask, Response, current_app, g, make_response, request
from gevent import getcurrent
from gevent.event import Event
from markupsafe import Markup
from werkzeug.exceptions import BadRequest, NotFound, ServiceUnavailable

from greenstalk_server.config.tables.roles import Rights
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.runtime.supervisor import Service
from greenstalk_server.runtime.system import PEER_CLOSED
from greenstalk_server.web.framework.access import Principal, principal
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.live.peer import descriptor_of

log = logging.getLogger(__name__)

State = dict[str, Any]
Render = Callable[[Mapping[str, str], int], State]
"""Returns the state of a page for its arguments and the time; raises NotFound if the page's subject is gone.

It must change nothing, and must take under a millisecond or yield (web.framework.cooperative.Pace). It runs in a
request context. Its result may depend on the rights of the principal but not on the name, since principals with the
same rights share it.
"""

REFRESH_INTERVAL: Final = 1.0
"""Seconds between two renderings of a page."""

GATHER_TIME: Final = 0.05
"""Seconds from the start of a stream to its first rendering. Streams that start within this time share that
rendering."""

HEARTBEAT_INTERVAL: Final = 15.0
"""Seconds after which an idle stream sends a heartbeat. Proxies cut silent connections, many after 55 s."""

RETRY: Final = 2000
"""Milliseconds after which a browser reconnects when its stream has ended."""

MAX_STREAMS: Final = 100

STUCK_AFTER: Final = 60.0
"""Seconds that a reader may take to accept one event; about the time after which TCP gives up on a dead peer."""

PIECE: Final = 64 * 1024
"""Maximum bytes given to the WSGI server at once: it copies them, and keeps the copy while the reader is slow."""

WAKE_BATCH: Final = 8
"""Streams woken per batch. A batch takes about 0.5 ms to send."""

WAKE_INTERVAL: Final = 0.002
"""Seconds between two batches."""

KEPT_KEYS: Final = ("SCRIPT_NAME", "SERVER_NAME", "SERVER_PORT", "HTTP_HOST", "REMOTE_ADDR", "wsgi.url_scheme")
"""Keys of a request's WSGI environ that are kept, so that the page can be rendered after that request has ended."""

TopicKey = tuple[str, tuple[tuple[str, str], ...], str, bool, bool, bool, Rights]
Names = Mapping[str, frozenset[str]]
NO_NAMES: Final[Names] = {}


class Topic:
    """One page with its arguments, as principals with the same rights see it.

    version     the number of states so far; they are numbered from 1.
    names       the names in the newest state, by kind.
    streams     the streams that watch the page.
    """

    def __init__(
        self, key: TopicKey, page: str, args: Mapping[str, str], environ: Mapping[str, Any], who: Principal
    ) -> None:
        self.key: TopicKey = key
        self.page: str = page
        self.args: Mapping[str, str] = args
        self.environ: dict[str, Any] = dict(environ)
        self.principal: Principal = who
        self.version: int = 0
        self.names: Names = NO_NAMES
        self.is_gone: bool = False
        self.streams: dict[Stream, None] = {}
        self._state: State = {}
        self._before: State = {}
        self._changes: bytes = b""
        self._whole: tuple[Names, bytes] = NO_NAMES, b""

    def take(self, state: State) -> bool:
        """Store *state*; return whether it differs from the last one."""
        if state == self._state:
            return False
        self._before, self._state, self.version = self._state, state, self.version + 1
        self._changes, self._whole = b"", (NO_NAMES, b"")
        names = {kind: values.keys() for kind, values in state.items()}
        if names != self.names:
            self.names = {kind: frozenset(found) for kind, found in names.items()}  # equal sets share their memory
        return True

    def message_since(self, version: int, names: Names) -> bytes:
        """Return the event that leads from the state *version* to the newest one; empty if that is the newest.

        *names* are the names in the state *version*. The event is kept, since most streams of a topic sent the same
        state.
        """
        if version == self.version:
            return b""
        if version and version == self.version - 1:
            self._changes = self._changes or event(difference(self._before, self._state))
            return self._changes
        if self._whole[0] is not names or not self._whole[1]:
            self._whole = names, event(_without(names, self._state))
        return self._whole[1]


class Stream:
    """One client's stream of events.

    principal     watches it. The stream ends with the session of the principal.
    greenlet    serves the stream.
    descriptor  of its socket; None if the WSGI server does not expose it.
    is_new      it waits for a state that is rendered after its request.
    version, names  of the state that was sent last; 0 and empty before the first.
    wake        is set when there is an event to send.
    busy_since  when the WSGI server began to send the current event; 0 while the stream waits.
    """

    def __init__(self, topic: Topic, descriptor: int | None, who: Principal) -> None:
        self.topic: Topic = topic
        self.principal: Principal = who
        self.greenlet: Any = getcurrent()
        self.descriptor: int | None = descriptor
        self.is_new: bool = bool(topic.streams)
        self.version: int = 0
        self.names: Names = NO_NAMES
        self.wake: Event = Event()
        self.is_over: bool = False
        self.busy_since: int = 0

    def take_message(self) -> bytes:
        """Return the event to send next; empty if nothing has changed."""
        topic = self.topic
        message = topic.message_since(self.version, self.names)
        self.version, self.names = topic.version, topic.names
        return message

    def end(self) -> None:
        """End the stream once it has sent the current event. Does not switch."""
        self.is_over = True
        self.wake.set()

    def kill(self) -> None:
        """End the stream now, even in the middle of an event. Does not switch."""
        self.greenlet.kill(block=False)


class LiveHub:
    """The live pages of one dashboard, and their streams.

    state_elsewhere     returns the state of a page of which another process of the queue has the data, else None.
    """

    def __init__(self, app: Flask, clock: Clock) -> None:
        """Add `/live` and `/events` to *app*."""
        self._app: Flask = app
        self._clock: Clock = clock
        self._states: dict[str, Render] = {}
        self._api: set[str] = set()  # the registered names that belong to the API
        self._in_all: dict[str, Callable[[], State]] = {}
        self._topics: dict[TopicKey, Topic] = {}
        self._streams: dict[Stream, None] = {}
        self._beginning: dict[TopicKey, Event] = {}
        self._renderer: Service = Service("live-pages", self._run)
        self._has_new: Event = Event()
        self._is_stopped: bool = False
        self.state_elsewhere: Callable[[str, Mapping[str, str]], State | None] = lambda page, args: None
        app.add_url_rule("/live", "live", self.live)
        app.add_url_rule("/events", "events", self.events)

    def register(self, name: str, render: Render, *, is_page: bool = True) -> None:
        """Register *render* for the live state of *name*: a page of the dashboard, or else a stream of the API."""
        assert name not in self._states
        self._states[name] = render
        if not is_page:
            self._api.add(name)

    def add_to_all(self, key: str, render: Callable[[], State]) -> None:
        """Add the result of *render*, which obeys the rules of Render, to the state of every page as *key*."""
        self._in_all[key] = render

    def stop(self) -> None:
        """End all streams, and refuse new ones. Does not switch."""
        self._is_stopped = True
        for stream in self._streams:
            stream.end()

    @property
    def stream_count(self) -> int:
        """The number of streams."""
        return len(self._streams)

    # Requests

    def live(self) -> Response:
        """`/live?page=`, plus the arguments of the page: its live state, once."""
        page, args = self._page_args()
        return Response(encoded(self._state(page, args)), mimetype="application/json")

    def events(self) -> Response:
        """`/events?page=`, plus the arguments of the page: a stream of its live state and changes. May switch."""
        return self.stream(*self._page_args())

    def stream(self, page: str, args: dict[str, str]) -> Response:
        """Return a stream of the live state of *page* and its changes. May switch.

        Raise ServiceUnavailable if MAX_STREAMS streams are open, or if the hub is stopped.
        """
        self._refuse_too_many()
        topic = self._topic(page, args)
        while (begun := self._beginning.get(topic.key)) is not None:
            begun.wait()
            Pace().yield_now()  # so that the requests that waited continue in different iterations of the loop
            topic = self._topic(page, args)
        self._refuse_too_many()
        if not topic.streams:
            self._take_first(topic)
            self._refuse_too_many()
        stream = self._serve(topic, descriptor_of(request.environ), principal())
        response = make_response("" if request.method == "HEAD" else stream)
        response.mimetype = "text/event-stream"
        response.headers["Cache-Control"] = "no-store"
        response.headers["X-Accel-Buffering"] = "no"
        response.headers["Connection"] = "close"
        return response

    def _take_first(self, topic: Topic) -> None:
        """Render *topic*, while other requests for it wait: they share this state, or the next one. Switches."""
        begun = self._beginning[topic.key] = Event()
        try:
            topic.take(self._state(topic.page, topic.args))
        finally:
            del self._beginning[topic.key]
            begun.set()

    def _refuse_too_many(self) -> None:
        if self._is_stopped or len(self._streams) >= MAX_STREAMS:
            raise ServiceUnavailable("The maximum number of event streams is open. Use /live instead.")

    def _page_args(self) -> tuple[str, dict[str, str]]:
        args = request.args.to_dict()
        page = args.pop("page", "")
        if page not in self._states:
            raise BadRequest(f"“page” must be one of {', '.join(self._states)}, not “{page[:40]}”.")
        return page, args

    def _topic(self, page: str, args: dict[str, str]) -> Topic:
        who = principal()
        rights = who.is_admin, who.sees_bodies, who.sees_audit, who.rights
        key = page, tuple(sorted(args.items())), request.root_path, *rights
        environ = {name: value for name, value in request.environ.items() if name in KEPT_KEYS}
        environ |= {"REQUEST_METHOD": "GET", "PATH_INFO": request.path, "QUERY_STRING": ""}
        return self._topics.get(key) or Topic(key, page, args, environ, who)

    # Streams

    def _serve(self, topic: Topic, descriptor: int | None, who: Principal) -> Iterator[bytes]:
        """Yield the events of one stream. Runs in the greenlet of its request. Switches."""
        stream = self._begin(topic, descriptor, who)
        topic = stream.topic
        try:
            yield b"retry: %d\n\n" % RETRY
            if stream.is_new:
                stream.wake.wait()
                stream.wake.clear()
            while not (stream.is_over or topic.is_gone):
                stream.busy_since = self._clock()
                yield from _pieces(stream.take_message() or HEARTBEAT_EVENT)
                stream.busy_since = 0
                stream.wake.wait(HEARTBEAT_INTERVAL)
                stream.wake.clear()
            if topic.is_gone:
                yield GONE
        finally:
            self._end(stream)

    def _begin(self, topic: Topic, descriptor: int | None, who: Principal) -> Stream:
        stream = Stream(self._topics.setdefault(topic.key, topic), descriptor, who)
        stream.topic.streams[stream] = None
        self._streams[stream] = None
        if stream.is_new:
            self._has_new.set()
        self._renderer.start()
        return stream

    def _end(self, stream: Stream) -> None:
        del self._streams[stream], stream.topic.streams[stream]
        if not stream.topic.streams and self._topics.get(stream.topic.key) is stream.topic:
            del self._topics[stream.topic.key]

    # Rendering

    def _run(self) -> None:
        """Render each watched page every REFRESH_INTERVAL seconds until none is watched. Switches."""
        while self._topics:
            topics = list(self._topics.values())
            for topic in topics:
                self._wait(REFRESH_INTERVAL / len(topics))
                if topic.streams:
                    self._refresh(topic)
            self._close_dead()
            self._end_signed_out()

    def _wait(self, seconds: float) -> None:
        """Wait, and refresh the topics that get new streams during the wait. Switches."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and self._has_new.wait(left):
            gevent.sleep(GATHER_TIME)
            self._has_new.clear()
            for topic in {stream.topic: None for stream in self._streams if stream.is_new}:
                self._refresh(topic)

    def _refresh(self, topic: Topic) -> None:
        """Render the newest state of *topic*; wake its streams if it has changed, else only the new ones. Switches."""
        new, has_changed = [stream for stream in topic.streams if stream.is_new], True
        try:
            with self._request_context(topic):
                state = self._state(topic.page, topic.args)
        except NotFound:
            self._forget(topic)
            topic.is_gone = True
        except ServiceUnavailable:  # the process that has the data restarts
            has_changed = False
        except Exception:
            log.exception("dashboard: cannot render the live state of %s %s; its streams end", topic.page, topic.args)
            for stream in topic.streams:
                stream.end()
        else:
            has_changed = topic.take(state)
        for stream in new:
            stream.is_new = False
        for count, stream in enumerate(list(topic.streams) if has_changed else new, start=1):
            stream.wake.set()
            if count % WAKE_BATCH == 0:
                gevent.sleep(WAKE_INTERVAL)

    def _state(self, page: str, args: Mapping[str, str]) -> State:
        """Return the live state of *page* for the principal of the context. May switch."""
        shared = {} if page in self._api else {key: render() for key, render in self._in_all.items()}
        state = self.state_elsewhere(page, args)
        return (self.state_here(page, args) if state is None else state) | shared

    def state_here(self, page: str, args: Mapping[str, str]) -> State:
        """Return the state of *page* from the data of this process. May switch."""
        return self._states[page](args, self._clock())

    def _forget(self, topic: Topic) -> None:
        """Remove *topic*, so that the next request starts a new one, in case its subject comes back."""
        if self._topics.get(topic.key) is topic:
            del self._topics[topic.key]

    @contextmanager
    def _request_context(self, topic: Topic) -> Iterator[None]:
        """Enter a request context with the environ and principal of *topic*, for url_for and principal()."""
        with self._app.request_context(topic.environ):
            g.principal = topic.principal
            yield

    def _end_signed_out(self) -> None:
        """End the streams of principals whose sessions have ended. Does not switch."""
        for stream in self._streams:
            if not stream.principal.lasts():
                stream.end()

    def _close_dead(self) -> None:
        """Kill the streams whose readers are gone or have been stuck for too long. Does not switch."""
        poll = select.poll()
        by_descriptor = {stream.descriptor: stream for stream in self._streams if stream.descriptor is not None}
        for descriptor in by_descriptor:
            poll.register(descriptor, PEER_CLOSED)
        gone = [by_descriptor[descriptor] for descriptor, _ in poll.poll(0)]
        since = self._clock() - int(STUCK_AFTER * SECOND)
        for stream in gone + [stream for stream in by_descriptor.values() if 0 < stream.busy_since < since]:
            stream.kill()


def render_blocks(template: str, names: Iterable[str], values: Mapping[str, Any]) -> dict[str, str]:
    """Render the blocks *names* of *template*; return their HTML by name. May switch.

    The blocks may use only *values*, the app's context processors, and the macros of parts.html.
    """
    environment = current_app.jinja_env
    loaded = environment.get_template(template)
    everything = vars(environment.get_template("parts.html").module) | dict(values)
    current_app.update_template_context(everything)
    context = loaded.new_context(everything)
    return {name: "".join(Pace().each(loaded.blocks[name](context))).strip() for name in names}


def difference(old: State, new: State) -> State:
    """Return the changes from *old* to *new*, as streams send them; a removed value is None."""
    changes: State = {}
    for kind, values in new.items():
        before = old.get(kind, {})
        changed = {
            name: _row_changes(before[name], value) if kind == "rows" and name in before else value
            for name, value in values.items()
            if name not in before or before[name] != value
        }
        changed |= dict.fromkeys(before.keys() - values.keys())
        if changed:
            changes[kind] = changed
    return changes


def _row_changes(old: list[list[str]], new: list[list[str]]) -> State:
    before = {row[0]: row for row in old}
    changes: State = {"changed": [row for row in new if before.get(row[0]) != row]}
    order = [row[0] for row in new]
    if order != list(before):
        changes["order"] = order
    return changes


def _without(names: Names, state: State) -> State:
    """Return *state* with a null for each of *names* that it lacks."""
    return {
        kind: dict.fromkeys(names.get(kind, frozenset()) - state.get(kind, {}).keys()) | state.get(kind, {})
        for kind in {**state, **names}
    }


def encoded(data: State) -> bytes:
    """Return *data* as JSON. The json module takes twenty times as long: 20 ms for 1000 tubes."""
    try:
        return msgspec.json.encode(data, enc_hook=_plain)
    except UnicodeEncodeError:  # a lone surrogate
        return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def _plain(value: object) -> str:
    """Return *value*, escaped HTML, as text."""
    if isinstance(value, Markup):
        return str(value)
    raise TypeError(f"a live state must not have a {type(value).__name__}")


def event(data: State, name: str = "") -> bytes:
    """Return one server-sent event."""
    return (f"event: {name}\n" if name else "").encode() + b"data: " + encoded(data) + b"\n\n"


def _pieces(message: bytes) -> Iterator[bytes]:
    for at in range(0, len(message), PIECE):
        yield message[at : at + PIECE]


GONE: Final = event({}, "gone")

HEARTBEAT_EVENT: Final = b": still there\n" + event({})
"""A heartbeat: a comment for proxies, and an empty change, since scripts see events but not comments."""
