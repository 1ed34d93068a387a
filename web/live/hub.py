"""Live pages: what each shows that changes, as a dict, and streams that send from second to second what has changed.

A page registers under a name a function that returns its live state; static/live.js puts that into the page. The
dict has any of these keys:

    fields      name: text of the elements `data-field`.
    rows        table: a row each, the key first, of the `<tbody data-rows>`.
    parts       name: HTML of the elements `data-part`, escaped already.
    shown       name: whether the elements `data-shown` are to be seen.
    series      name: numbers for charts.

`/live?page=NAME` answers with all of it once. `/events?page=NAME` is a stream of server-sent events: first all of it,
then only what has changed. Of a table whose rows have changed it sends an object instead of the list: `changed`, the
rows that are new or other, and `order`, the keys, if these are others or stand otherwise.

One greenlet renders each page that somebody looks at once a second, however many look at it, one after the other with
rests between. Nothing is queued: a stream remembers what it sent last, and what it sends next is the difference of
that to the newest. So a slow reader costs one state, and misses some between.
"""

from __future__ import annotations

import json
import logging
import select
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import gevent
from flask import Flask, Response, current_app, g, jsonify, make_response, request
from gevent import getcurrent
from gevent.event import Event
from werkzeug.exceptions import BadRequest, NotFound, ServiceUnavailable

from greenstalk_server.core.job import SECOND
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.auth.access import Visitor, visitor
from greenstalk_server.web.live.peer import PARTED, descriptor_of

log = logging.getLogger(__name__)

State = dict[str, Any]
Render = Callable[[Mapping[str, str], int], State]
"""Returns the state of a page for its arguments and the time; raises NotFound if what it is about is gone.

It only reads, and takes under a millisecond, or rests (pace.Pace). It runs in a request's context; of who asks it goes
by what they may, not by their name, since all who may the same share what it returns.
"""

REFRESH_INTERVAL: Final = 1.0
"""Seconds between two looks at a page."""

HEARTBEAT: Final = 15.0
"""Seconds after which a stream with nothing to tell says so; proxies cut silent ones, many after 55 s."""

RETRY: Final = 2000
"""Milliseconds after which a browser whose stream has ended asks again."""

MAX_STREAMS: Final = 100

STUCK_AFTER: Final = 60.0
"""Seconds that a reader may take for what was sent to it; about what a TCP stack gives a peer that is gone."""

WOKEN_AT_ONCE: Final = 8
"""Streams that send in one turn of the loop, about 0.5 ms."""

REST: Final = 0.002
"""Seconds between those."""

KEPT: Final = ("SCRIPT_NAME", "SERVER_NAME", "SERVER_PORT", "HTTP_HOST", "REMOTE_ADDR", "wsgi.url_scheme")
"""What is kept of a request, so that a page can be rendered for it later."""

Key = tuple[str, tuple[tuple[str, str], ...], str, bool, bool, bool]


class Topic:
    """One page with its arguments, as one kind of visitor sees it.

    state       the newest; never changed in place.
    taken_at    its time.
    streams     who looks at it.
    """

    def __init__(self, key: Key, page: str, args: Mapping[str, str], environ: Mapping[str, Any], who: Visitor) -> None:
        self.key: Key = key
        self.page: str = page
        self.args: Mapping[str, str] = args
        self.environ: dict[str, Any] = dict(environ)
        self.visitor: Visitor = who
        self.state: State = {}
        self.taken_at: int = 0
        self.is_gone: bool = False
        self.streams: dict[Stream, None] = {}
        self._message: tuple[State | None, bytes] = None, b""

    def take(self, state: State, now: int) -> bool:
        """Note the *state* as of *now*; return whether it is another."""
        self.taken_at = now
        if state == self.state:
            return False
        self.state = state
        self._message = None, b""
        return True

    def message_since(self, last: State) -> bytes:
        """The event that leads from *last* to the newest state; empty if they are the same."""
        if last == self.state:
            return b""
        if self._message[0] is not last or not self._message[1]:  # most streams have sent the same last
            self._message = last, event(difference(last, self.state))
        return self._message[1]


class Stream:
    """One client's stream of events.

    greenlet    serves it.
    descriptor  of its socket, or None if the server does not tell.
    wake        is set when there is something to send.
    busy_since  when what it sends now was handed over; 0 while it waits.
    """

    def __init__(self, topic: Topic, descriptor: int | None) -> None:
        self.topic: Topic = topic
        self.greenlet: Any = getcurrent()
        self.descriptor: int | None = descriptor
        self.wake: Event = Event()
        self.is_over: bool = False
        self.busy_since: int = 0

    def end(self) -> None:
        """Have it end as soon as it has sent what it is at. Does not switch."""
        self.is_over = True
        self.wake.set()

    def kill(self) -> None:
        """End it now, whatever it is at. Does not switch."""
        self.greenlet.kill(block=False)


class LiveHub:
    """The live pages of one dashboard, and all streams of them."""

    def __init__(self, app: Flask, clock: Clock) -> None:
        """Add `/live` and `/events` to *app*."""
        self._app: Flask = app
        self._clock: Clock = clock
        self._pages: dict[str, Render] = {}
        self._topics: dict[Key, Topic] = {}
        self._streams: dict[Stream, None] = {}
        self._greenlet: gevent.Greenlet | None = None
        self._is_stopped: bool = False
        app.add_url_rule("/live", "live", self.live)
        app.add_url_rule("/events", "events", self.events)

    def register(self, name: str, render: Render) -> None:
        """Have the page *name* shown live by *render*."""
        assert name not in self._pages
        self._pages[name] = render

    def stop(self) -> None:
        """End all streams, and begin no more. Does not switch."""
        self._is_stopped = True
        for stream in self._streams:
            stream.end()

    @property
    def stream_count(self) -> int:
        """How many streams there are."""
        return len(self._streams)

    # Requests

    def live(self) -> Response:
        """`/live?page=`, and what the page takes: its live state, once."""
        page, args = self._asked()
        return jsonify(self._pages[page](args, self._clock()))

    def events(self) -> Response:
        """`/events?page=`, and what the page takes: its live state, and then its changes, as they come. May switch."""
        return self.stream(*self._asked())

    def stream(self, page: str, args: dict[str, str]) -> Response:
        """A stream of the live state of *page*, and of its changes. May switch."""
        topic = self._topic(page, args)
        state = self._pages[page](args, self._clock())  # what others were sent may be older than the page that asks
        if not topic.streams:
            topic.take(state, self._clock())
        if self._is_stopped or len(self._streams) >= MAX_STREAMS:
            raise ServiceUnavailable("There are as many streams of events as there may be. Ask for /live instead.")
        stream = self._serve(topic, state, descriptor_of(request.environ))
        response = make_response("" if request.method == "HEAD" else stream)
        response.mimetype = "text/event-stream"
        response.headers["Cache-Control"] = "no-store"
        response.headers["X-Accel-Buffering"] = "no"
        response.headers["Connection"] = "close"
        return response

    def _asked(self) -> tuple[str, dict[str, str]]:
        args = request.args.to_dict()
        page = args.pop("page", "")
        if page not in self._pages:
            raise BadRequest(f"“page” must be one of {', '.join(self._pages)}, not “{page[:40]}”.")
        return page, args

    def _topic(self, page: str, args: dict[str, str]) -> Topic:
        who = visitor()
        key = page, tuple(sorted(args.items())), request.root_path, who.is_admin, who.sees_bodies, who.sees_audit
        environ = {name: value for name, value in request.environ.items() if name in KEPT}
        environ |= {"REQUEST_METHOD": "GET", "PATH_INFO": request.path, "QUERY_STRING": ""}
        return self._topics.get(key) or Topic(key, page, args, environ, who)

    # Streams

    def _serve(self, topic: Topic, state: State, descriptor: int | None) -> Iterator[bytes]:
        """What one stream sends, from *state* on. Switches; run by the greenlet of its request."""
        stream = self._begin(topic, descriptor)
        topic, last, out = stream.topic, state, event(state)
        try:
            yield b"retry: %d\n\n" % RETRY
            while not (stream.is_over or topic.is_gone):
                stream.busy_since = self._clock()
                yield out or STILL_THERE
                stream.busy_since = 0
                stream.wake.wait(HEARTBEAT)
                stream.wake.clear()
                out, last = topic.message_since(last), topic.state
            if topic.is_gone:
                yield GONE
        finally:
            self._end(stream)

    def _begin(self, topic: Topic, descriptor: int | None) -> Stream:
        stream = Stream(self._topics.setdefault(topic.key, topic), descriptor)
        stream.topic.streams[stream] = None
        self._streams[stream] = None
        if self._greenlet is None:
            self._greenlet = gevent.spawn(self._run)
        return stream

    def _end(self, stream: Stream) -> None:
        del self._streams[stream], stream.topic.streams[stream]
        if not stream.topic.streams and self._topics.get(stream.topic.key) is stream.topic:
            del self._topics[stream.topic.key]

    # The greenlet that looks

    def _run(self) -> None:
        """Look at each page that somebody looks at, once every REFRESH_INTERVAL seconds, until nobody does. Switches."""
        while self._topics:
            topics = list(self._topics.values())
            for topic in topics:
                gevent.sleep(REFRESH_INTERVAL / len(topics))
                if topic.streams:
                    self._look(topic)
            self._part()
        self._greenlet = None

    def _look(self, topic: Topic) -> None:
        """Take the newest state of *topic*, and have its streams send what is new. Switches."""
        try:
            with self._asking(topic):
                state = self._pages[topic.page](topic.args, self._clock())
        except NotFound:
            self._forget(topic)
            topic.is_gone = True
        except Exception:
            log.exception("dashboard: the live state of %s %s cannot be told", topic.page, topic.args)
            for stream in topic.streams:
                stream.end()
        else:
            if not topic.take(state, self._clock()):
                return
        for count, stream in enumerate(list(topic.streams), start=1):
            stream.wake.set()
            if count % WOKEN_AT_ONCE == 0:
                gevent.sleep(REST)

    def _forget(self, topic: Topic) -> None:
        """Have whoever asks next begin anew, should what it is about come back."""
        if self._topics.get(topic.key) is topic:
            del self._topics[topic.key]

    @contextmanager
    def _asking(self, topic: Topic) -> Iterator[None]:
        """Be in a request's context, as if whoever looks at *topic* asked now: for url_for and visitor()."""
        with self._app.request_context(topic.environ):
            g.visitor = topic.visitor
            yield

    def _part(self) -> None:
        """End the streams whose readers are gone, or have been stuck for too long. Does not switch."""
        poll = select.poll()
        by_descriptor = {stream.descriptor: stream for stream in self._streams if stream.descriptor is not None}
        for descriptor in by_descriptor:
            poll.register(descriptor, PARTED)
        gone = [by_descriptor[descriptor] for descriptor, _ in poll.poll(0)]
        since = self._clock() - int(STUCK_AFTER * SECOND)
        for stream in gone + [stream for stream in by_descriptor.values() if 0 < stream.busy_since < since]:
            stream.kill()


def render_blocks(template: str, names: Iterable[str], values: Mapping[str, Any]) -> dict[str, str]:
    """The HTML of the parts *names* of a page, from the blocks of its *template* of the same names.

    In such a block there is only what *values* and the app's context processors give, and the macros of parts.html.
    """
    environment = current_app.jinja_env
    found = environment.get_template(template)
    everything = vars(environment.get_template("parts.html").module) | dict(values)
    current_app.update_template_context(everything)
    context = found.new_context(everything)
    return {name: "".join(found.blocks[name](context)).strip() for name in names}


def difference(old: State, new: State) -> State:
    """What leads from *old* to *new*, as streams send it; what is gone is None there."""
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


def event(data: State, name: str = "") -> bytes:
    """One server-sent event."""
    line = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return (f"event: {name}\n" if name else "").encode() + f"data: {line}\n\n".encode(errors="replace")


GONE: Final = event({}, "gone")

STILL_THERE: Final = b": still there\n" + event({})
"""A heartbeat: a comment for whatever stands between, and an event that changes nothing, since scripts see those."""
