"""Hostile HTTP requests. A scenario is a generator: see `Scenario.play`."""

import json
import socket
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Final
from urllib.parse import quote

from bench.client import TIMEOUT

from .scenario import Scenario, Target

TUBES: Final = 10_000
JOBS: Final = 100_000
CONNECTIONS: Final = 1000

VIEWERS: Final = 10
"""Requests at the same time."""

CROWD: Final = 3000
"""Number of HTTP connections."""

ELEMENTS: Final = 32_000
"""Elements of the array in a body of 64 KiB."""

TERMS: Final = " ".join([f"-body.a:*a*a{number}*b" for number in range(8)])
"""The most expensive query for a body with ELEMENTS elements."""

Play = Generator[None, None, None]


class Http:
    """A connection of HTTP, for one request."""

    def __init__(self, target: Target) -> None:
        assert target.web_port is not None
        self.sock: socket.socket = socket.create_connection(("127.0.0.1", target.web_port), TIMEOUT)

    def send(self, path: str, body: bytes | None = None, **headers: str) -> "Http":
        """Send a GET for *path*, or a POST if there is a *body*."""
        lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        if body is not None:
            lines += [f"Content-Length: {len(body)}", "Sec-Fetch-Site: same-origin"]
        self.sock.sendall("\r\n".join([*lines, "", ""]).encode() + (body or b""))
        return self

    def read(self) -> bytes:
        """Read until the server closes the connection; return the beginning of the response."""
        begin = part = self.sock.recv(1 << 16)
        while part:
            part = self.sock.recv(1 << 20)
        self.sock.close()
        return begin


def visit(*paths: str, fill: Callable[[Target], None], viewers: int = VIEWERS) -> Callable[[Target], Play]:
    """Visitors request *paths* of a server that *fill* has filled, each path several times at once."""

    def play(target: Target) -> Play:
        fill(target)
        yield
        for path in paths:
            for visitor in [Http(target).send(path) for _ in range(viewers)]:
                visitor.read()

    return play


def post(path: str, body: bytes, content_type: str) -> Callable[[Target], Play]:
    """Visitors send *body*, several at once."""

    def play(target: Target) -> Play:
        yield
        for visitor in [Http(target).send(path, body, Content_Type=content_type) for _ in range(VIEWERS)]:
            visitor.read()

    return play


def watch(path: str, count: int, *, is_read: bool, fill: Callable[[Target], None]) -> Callable[[Target], Play]:
    """Many visitors open an event stream at once, while the tubes change."""

    def play(target: Target) -> Play:
        fill(target)
        yield
        streams = [Http(target).send(path) for _ in range(count)]
        for second in range(5):
            _put_each(target, f"t{second}", 1000)
            time.sleep(1)
            for stream in streams if is_read else ():
                stream.sock.recv(1 << 20)
        for stream in streams:
            stream.sock.close()

    return play


def sample(target: Target) -> Play:
    """Many tubes change in every second of a minute."""
    fill_tubes(target)
    yield
    until = time.monotonic() + 65
    while time.monotonic() < until:
        _put_each(target, "t", TUBES)


def condition(target: Target) -> Play:
    """Many tubes get a condition that needs attention at the same time."""
    yield
    client = target.connect()
    client.ask_all(b"put-in-tube c%d 0 0 60 1\r\nx\r\n" % number for number in range(TUBES))
    ids = range(1, TUBES + 1)
    for begin in range(0, TUBES, 500):
        part = ids[begin : begin + 500]
        client.ask(b"".join([b"reserve-job %d\r\nbury %d 0\r\n" % (id, id) for id in part]), 3 * len(part))
    time.sleep(20)


def slow_clients(target: Target) -> Play:
    """Many clients send a request one byte at a time."""
    yield
    clients = [Http(target).sock for _ in range(CROWD)]
    for byte in b"GET / HT":
        for client in clients:
            client.send(bytes([byte]))
    for client in clients:
        client.close()


def idle_clients(target: Target) -> Play:
    """The requests of many clients time out at once."""
    clients = [Http(target).sock for _ in range(CROWD)]
    yield
    with target.frozen():
        for client in clients:
            client.send(b"G")
    for client in clients:
        client.recv(1)


def closed_clients(target: Target) -> Play:
    """Many HTTP clients close at once."""
    clients = [Http(target).sock for _ in range(CROWD)]
    yield
    with target.frozen():
        for client in clients:
            client.close()


def change_many(path: str, body: Mapping[str, object]) -> Callable[[Target], Play]:
    """A program changes many jobs or tubes by one request of the API."""

    def play(target: Target) -> Play:
        fill_tubes(target)
        yield
        Http(target).send(f"/api/v1{path}", json.dumps(body).encode(), Content_Type="application/json").read()

    return play


def fill_tubes(target: Target) -> None:
    """Put many jobs into many tubes, and connect many workers."""
    _put_each(target, "t", JOBS)
    for number, client in enumerate(target.connect_many(CONNECTIONS)):
        client.ask(b"watch t%d\r\nuse t%d\r\n" % (number, number), 2)
        client.send(b"reserve-with-timeout 600\r\n")
        client.read_lines(2)


def fill_bodies(target: Target) -> None:
    """Put jobs whose bodies have large arrays, and bury some."""
    array = b'{"a":[%s]}' % b",".join([b"1"] * ELEMENTS)
    texts = json.dumps({"a": ["a" * 60] * 1000, "error": "x"}).encode()
    client = target.connect()
    requests = [b"put 0 0 600 %d\r\n%b\r\n" % (len(body), body) for body in (array, texts) * 8]
    for request in requests:
        client.ask(request)
    for id in range(1, 5):
        client.ask(b"reserve-job %d\r\n" % id, 2)
        client.ask(b"bury %d 0\r\n" % id)


def _put_each(target: Target, prefix: str, count: int) -> None:
    client = target.connect()
    client.ask_all(b"put-in-tube %b%d 0 0 3600 1\r\nx\r\n" % (prefix.encode(), n % TUBES) for n in range(count))
    client.close()


def _multipart(fields: Iterable[tuple[str, str]]) -> bytes:
    part = '--b\r\nContent-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
    return ("".join([part.format(name, value) for name, value in fields]) + "--b--\r\n").encode()


_QUERY: Final = quote(TERMS)
_COLUMNS: Final = "&cols=a,a.0,a.1,a.2,a.3,a.4"
_FORM: Final = "application/x-www-form-urlencoded"

_PLAYS: Final = {
    "search of large arrays": visit(f"/search?q={_QUERY}", fill=fill_bodies),
    "filter and columns of large arrays": visit(
        f"/tube?tube=default&q={_QUERY}", f"/tube?tube=default{_COLUMNS}", fill=fill_bodies
    ),
    "API lists of large arrays": visit(
        f"/api/v1/jobs?q={_QUERY}", "/api/v1/jobs?fields=a,a.0&limit=1000", fill=fill_bodies
    ),
    "exports and errors of large arrays": visit(
        f"/export?format=csv&q={_QUERY}",
        "/export?format=jsonl&cols=a",
        "/tube/errors?tube=default",
        fill=fill_bodies,
    ),
    "page of a job with a large array": visit("/job?id=1", "/job?id=2", fill=fill_bodies),
    "overview of 10,000 tubes": visit("/", "/?sort=ready&desc=1", "/?q=t9", fill=fill_tubes),
    "tube among 10,000": visit("/tube?tube=t1", "/tube?tube=t1&q=pri:0", "/tube/history?tube=t1", fill=fill_tubes),
    "connections": visit("/connections", "/api/v1/connections?limit=1000", fill=fill_tubes),
    "API lists of 10,000 tubes": visit(
        "/api/v1/tubes?limit=1000",
        "/api/v1/tubes?sort=ready",
        "/api/v1/tubes/find?q=t9",
        "/api/v1/server",
        fill=fill_tubes,
    ),
    "API lists of 100,000 jobs": visit("/api/v1/jobs?limit=1000", "/api/v1/jobs?q=pri:5", fill=fill_tubes),
    "metrics of 10,000 tubes": visit("/metrics", fill=fill_tubes),
    "history, policies, alerts, attention": visit(
        "/history", "/policies", "/alerts", "/api/v1/attention", "/audit", "/task", fill=fill_tubes
    ),
    "export of 100,000 jobs": visit("/export?format=csv&q=pri:0", "/search?q=pri:0", fill=fill_tubes, viewers=4),
    "API pauses 10,000 tubes": change_many("/tubes/pause", {"pattern": "*", "seconds": 60}),
    "API dry run of 100,000 jobs": change_many("/jobs/bulk", {"action": "bury", "q": "pri:0"}),
    "10 streams of the overview": watch("/events?page=overview", 10, is_read=True, fill=fill_tubes),
    "20 streams of the API": watch("/api/v1/events", 20, is_read=True, fill=fill_tubes),
    "94 unread streams of the API": watch("/api/v1/events", 94, is_read=False, fill=fill_tubes),
    "300 streams, most refused": watch("/api/v1/events", 300, is_read=False, fill=fill_tubes),
    "a minute of 10,000 active tubes": sample,
    "10,000 tubes get a condition": condition,
    "form of 999 parts": post(
        "/login", _multipart((f"f{n}", "x") for n in range(999)), "multipart/form-data; boundary=b"
    ),
    "large form": post("/tube/put", b"tube=a&body=" + b"%01" * 20_000, _FORM),
    "form of 1,200 fields": post("/bulk/preview", b"&".join([b"id=1"] * 1200), _FORM),
    "put of control characters by the API": post(
        "/api/v1/jobs", json.dumps({"tube": "a", "body": "\1" * 150_000}).encode(), "application/json"
    ),
    "3,000 slow HTTP clients": slow_clients,
    "3,000 requests time out": idle_clients,
    "3,000 HTTP clients close": closed_clients,
}

SCENARIOS: Final = {name: Scenario(play, has_web=True) for name, play in _PLAYS.items()}
