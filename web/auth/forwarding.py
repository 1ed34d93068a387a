"""Passes on requests about one tube, job or connection to the process of its shard, and serves those passed on.

The home process (framework.shards) has checked the request, and passes on who sends it, with which roles. The process
of the shard runs the same view as if it had received the request itself. A response larger than `PIECE` is fetched
piece by piece, as the client reads it.
"""

from __future__ import annotations

import errno
import io
import logging
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from itertools import chain
from typing import Any, Final

import msgspec
from flask import Flask, Response, g, request
from werkzeug.exceptions import ServiceUnavailable

from greenstalk_server.cluster.status import HOME
from greenstalk_server.net.link_calls import Message
from greenstalk_server.web.auth.guard import SAFE_METHODS, Guard
from greenstalk_server.web.auth.proxies import IS_OUTSIDE
from greenstalk_server.web.framework.access import FORWARDED, PART, Principal, principal
from greenstalk_server.web.framework.shards import Facts, Shards, context_facts

PIECE: Final = 256 * 1024
"""Bytes of a response that are passed on at once."""

REQUEST_TIMEOUT: Final = 60.0
"""Seconds that a request passed on may take. The longest operation of a view takes 20."""

MAX_ROUTED_JSON: Final = 64 * 1024
"""Bytes of a request of the API in which a tube or a token is looked for. Requests with job bodies may be larger, but
these name their job in the path."""

MAX_RESPONSES: Final = 64
"""Responses that are being fetched in pieces."""

UNREAD_TIMEOUT: Final = 120.0
"""Seconds after which a response that is not fetched any further is dropped. A client has 60 to read a piece."""

UNREAD_PART_TIMEOUT: Final = 3600.0
"""The same for a response that is merged with others: it waits while the rows of other shards come first."""

MAX_READ: Final = 1.0
"""Seconds after which a read returns what it has."""

PASSED_HOME: Final = "greenstalk.passed_home"
"""Key in the WSGI environ of a request that another process has passed on to the home process without checking it."""

OF_PROCESS: Final = frozenset({"static", "healthz", "readyz"})
"""Endpoints that every process serves itself."""

HTTP: Final = "http"
NEXT: Final = "http.next"
END: Final = "http.end"
"""Calls: a request, the next piece of its response, and the end of an unfinished response."""

log = logging.getLogger(__name__)

LIVE: Final = "live"
"""Question: the live state of a page."""

Fields = Mapping[str, str]

Call = Callable[[int, str, Message, float], Message]
"""Returns the answer of a shard to a call, with a timeout in seconds; raises ServiceUnavailable."""

TUBE: Final = "tube"
JOB: Final = "job"
NUMBER: Final = "number"
TASK: Final = "task"
QUERY: Final = "query"
LEASE: Final = "lease"
"""What a field names: a tube, a job by its id, a change by its number, a task, a search that may name a tube, or the
token of a lease."""

_OF_TUBE: Final = ((TUBE, "tube"),)
_OF_JOB: Final = ((JOB, "id"),)
_OF_JOBS: Final = ((TASK, "task"), (TUBE, "tube"), (QUERY, "q"))

ROUTES: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    **dict.fromkeys(
        (
            "tube", "tube_oldest", "tube_clear", "tube_kick", "tube_pause", "tube_put", "tube_resume", "tube_errors",
            "tube_history", "tube_history_json", "sample_save", "sample_delete", "api_get_tube", "api_clear_tube",
            "api_flush_tube", "api_kick_tube", "api_pause_tube", "api_resume_tube", "api_list_errors",
            "api_get_tube_history", "suggest",
        ),
        _OF_TUBE,
    ),
    **dict.fromkeys(
        (
            "job", "job_body", "job_bury", "job_copy", "job_delete", "job_edit", "job_form", "job_holder", "job_kick",
            "job_move", "job_redrive", "job_release", "api_get_job", "api_change_job", "api_delete_job",
            "api_get_job_body", "api_bury_job", "api_copy_job", "api_get_failure", "api_kick_job", "api_move_job",
            "api_redrive_job", "api_release_job",
        ),
        _OF_JOB,
    ),
    **dict.fromkeys(
        (
            "search", "export", "bulk", "bulk_preview", "bulk_run", "api_list_jobs", "api_export_jobs",
            "api_search_jobs", "api_change_jobs", "api_redrive_jobs",
        ),
        _OF_JOBS,
    ),
    "undo": ((NUMBER, "change"),),
    "api_undo_change": ((NUMBER, "number"),),
    **dict.fromkeys(("task", "task_cancel"), ((TASK, "id"),)),
    **dict.fromkeys(("api_get_task", "api_cancel_task", "api_list_found", "api_run_task"), ((TASK, "task"),)),
    **dict.fromkeys(
        ("api_bury_leased", "api_delete_leased", "api_release_leased", "api_show_lease", "api_touch_lease"),
        ((LEASE, "token"),),
    ),
}  # fmt: skip
"""The fields that name the shard of a request, by endpoint. The first that names a shard counts; without one, the home
process serves the request. A field of the path counts before one of the query, and that before one of the body."""


class Sender:
    """Sends requests to the processes of other shards, and their responses to the clients."""

    def __init__(self, call: Call, max_request: int) -> None:
        """Send requests of at most *max_request* bytes."""
        self._call: Call = call
        self._max_request: int = max_request

    def body(self) -> bytes:
        """Return the body of the current request."""
        request.max_content_length = self._max_request
        return request.get_data()

    def send_home(self) -> Response:
        """Return the response of the home process, which checks the request. Switches."""
        body = self.body()
        return self.send(HOME, {**context_facts(), PASSED_HOME: True}, body)

    def send(self, shard: int, facts: Facts, body: bytes) -> Response:
        """Return the response of the process of *shard* to the current request. Switches."""
        answer = self._call(shard, HTTP, Message(facts, body), REQUEST_TIMEOUT)
        pieces = self._pieces(shard, answer.value["more"], answer.body, principal())
        response = Response(pieces, answer.value["status"])
        response.headers.clear()
        response.headers.extend(answer.value["headers"])
        return response

    @contextmanager
    def send_all(self, shards: Iterable[int]) -> Iterator[list[Iterator[bytes]]]:
        """Yield the responses of *shards* to the current request, each for its own jobs. Switches.

        Raise ServiceUnavailable if a shard does not answer, or does so with an error.
        """
        facts, responses = {**context_facts(), "badges": {}, PART: True}, list[Iterator[bytes]]()
        with ExitStack() as stack:
            for shard in shards:
                answer = self._call(shard, HTTP, Message(facts), REQUEST_TIMEOUT)
                pieces = self._pieces(shard, answer.value["more"], answer.body, principal())
                stack.callback(pieces.close)
                responses.append(chain((next(pieces),), pieces))  # only a generator that has begun ends its response
                if not answer.value["status"].startswith("200"):
                    raise ServiceUnavailable(f"The process of shard {shard} answers: {answer.value['status']}.")
            yield responses

    def _pieces(self, shard: int, number: int, piece: bytes, who: Principal) -> Generator[bytes]:
        """Yield a response whose first *piece* has arrived, and whose rest has *number* if there is one. Switches.

        End it if the session of *who* ends.
        """
        try:
            yield piece
            while number:
                if not who.lasts():
                    raise ConnectionAbortedError("the session that requested the response has ended")
                answer = self._call(shard, NEXT, Message(number), REQUEST_TIMEOUT)
                number = answer.value
                yield answer.body
        except ServiceUnavailable as error:
            number = 0
            log.warning("dashboard: a response is cut: %s", error.description)
            raise BrokenPipeError(errno.EPIPE, "the rest of the response is lost") from None  # gevent does not log it
        finally:
            if number:
                with suppress(ServiceUnavailable):
                    self._call(shard, END, Message(number), REQUEST_TIMEOUT)


class Forwarding:
    """Passes on the requests of *app*, and serves those of other processes."""

    def __init__(
        self,
        app: Flask,
        guard: Guard,
        shards: Shards,
        max_request: int,
        tube_in: Callable[[str], str],
        job_of_token: Callable[[str], int | None],
    ) -> None:
        """Pass on requests of at most *max_request* bytes.

        tube_in         returns the tube that a query names, or an empty text.
        job_of_token    returns the id of the job of a lease; None if the token is malformed.
        """
        self._tube_in: Callable[[str], str] = tube_in
        self._job_of_token: Callable[[str], int | None] = job_of_token
        self._app: Flask = app
        self._guard: Guard = guard
        self._shards: Shards = shards
        self._sender: Sender = Sender(shards.call, max_request)
        self._responses: dict[int, _Response] = {}
        self._last: int = 0
        self.badges: Callable[[], Mapping[str, str]] = dict
        shards.enter = partial(entering, app, guard)

    def init_front(self) -> None:
        """Pass on all requests of the app to the home process, if this is another one. Call before `Guard.init_app`."""
        if self._shards.others and not self._shards.is_home:
            self._app.before_request(self._pass_home)

    def init_app(self) -> None:
        """Pass on each request of the app that is about another shard. Call after the guard's `init_app`."""
        if not self._shards.are_linked:
            return
        self._app.before_request(self._pass_on)
        self._shards.handle(HTTP, self._serve)
        self._shards.handle(NEXT, self._next)
        self._shards.handle(END, self._end)

    def shard_of(self, endpoint: str, fields: Fields) -> int:
        """Return the shard whose process serves a request for *endpoint* with *fields*."""
        for kind, name in ROUTES.get(endpoint, ()):
            if (value := fields.get(name)) and (shard := self._shard_named(kind, value)) is not None:
                return shard
        return self._shards.own

    def _shard_named(self, kind: str, value: str) -> int | None:
        """Return the shard that *value* names; None if it names none, or is malformed."""
        shards = self._shards
        if kind == TASK:
            return shards.of_token(value)
        if kind == TUBE or (kind == QUERY and (value := self._tube_in(value))):
            return shards.of_tube(value.encode(errors="replace"))
        if kind == LEASE and (id := self._job_of_token(value)) is not None:
            return shards.find_job(id)
        if kind in (JOB, NUMBER) and value.isascii() and value.isdigit() and len(value) <= MAX_DIGITS:
            return shards.find_job(int(value)) if kind == JOB else shards.of_number(int(value))
        return None

    # A process that is not home, and has a web port: a server of a cluster

    def _pass_home(self) -> Response | None:
        """Return the response of the home process, which checks the request; None to requests passed on by it."""
        if FORWARDED in request.environ or PASSED_HOME in request.environ or request.endpoint in OF_PROCESS:
            return None
        if IS_OUTSIDE in request.environ and request.endpoint != "metrics":
            return None  # the guard refuses it
        return self._sender.send_home()

    # Home

    def _pass_on(self) -> Response | None:
        """Return the response of the process of another shard; None if the request is not about another one."""
        if FORWARDED in request.environ:
            return None
        body, fields = b"", dict[str, str]()
        if request.method not in SAFE_METHODS and request.endpoint in ROUTES:
            body = self._sender.body()
            fields = _json_fields(body) if request.is_json else request.form.to_dict()
        fields |= request.args.to_dict()
        fields |= {name: str(value) for name, value in (request.view_args or {}).items()}
        shard = self.shard_of(request.endpoint or "", fields)
        if shard == self._shards.own:
            return None
        return self._sender.send(shard, {**context_facts(), "badges": self.badges()}, body)

    def elsewhere(self) -> AbstractContextManager[list[Iterator[bytes]]]:
        """Enter a context with the responses of all other shards to the current request, each for its own jobs."""
        return self._sender.send_all(self._shards.others)

    def live_state(self, page: str, args: Fields) -> dict[str, Any] | None:
        """Return the live state of a *page* of another shard; None if it is not of another one. May switch."""
        shard = self.shard_of(page, args)
        if shard == self._shards.own:
            return None
        state: dict[str, Any] = self._shards.ask(shard, LIVE, page=page, args=dict(args))
        return state

    # The other shards

    def _serve(self, message: Message) -> Message:
        """Serve a request that another process has passed on."""
        started: list[Any] = []

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[..., Any]:
            started[:] = status, headers
            return lambda data: None

        # Not Flask's __call__: the home process has applied the middleware for proxies and the prefix.
        body = Flask.wsgi_app(self._app, _environ(message.value, message.body), start_response)
        response = _Response(iter(body), getattr(body, "close", lambda: None))
        status, headers = started
        response.timeout = UNREAD_PART_TIMEOUT if PART in message.value else UNREAD_TIMEOUT
        response.is_stream = any(value.startswith("text/event-stream") for _, value in headers)
        piece = response.read()
        return Message({"status": status, "headers": headers, "more": self._keep(response)}, piece)

    def _keep(self, response: _Response) -> int:
        """Keep *response* for further pieces, and return its number; 0 if it is complete."""
        if response.is_over:
            return 0
        for number, kept in list(self._responses.items()):
            if kept.read_at < time.monotonic() - kept.timeout:
                self._responses.pop(number).close()
        if len(self._responses) >= MAX_RESPONSES:
            response.close()
            raise ServiceUnavailable("Too many large responses are being sent.")
        self._last += 1
        self._responses[self._last] = response
        return self._last

    def _next(self, message: Message) -> Message:
        response = self._responses.get(message.value)
        if response is None:
            raise ServiceUnavailable("The response was not read for too long.")
        try:
            piece = response.read()
        except ConnectionError:  # its session has ended
            self._end(message)
            raise
        if response.is_over:
            self._responses.pop(message.value, None)
        return Message(0 if response.is_over else message.value, piece)

    def _end(self, message: Message) -> Message:
        response = self._responses.pop(message.value, None)
        if response is not None:
            response.close()
        return Message()


MAX_DIGITS: Final = 20
"""Digits of the largest id, 2⁶⁴-1."""


@contextmanager
def entering(app: Flask, guard: Guard, facts: Facts) -> Iterator[None]:
    """Enter a request context of *app* with the principal of *facts*, for an answer to a question."""
    with app.request_context(_environ(facts, b"")):
        g.principal = guard.forwarded_principal(facts)
        yield


class _Response:
    """The body of a response that is being passed on.

    is_over     it is complete, and closed.
    is_stream   each part of it must be passed on at once: an event.
    read_at     time of the last read, seconds of the monotonic clock.
    timeout     seconds after which it is dropped if it is not read.
    """

    def __init__(self, body: Iterator[bytes], close: Callable[[], None]) -> None:
        self.is_over: bool = False
        self.is_stream: bool = False
        self.read_at: float = time.monotonic()
        self.timeout: float = UNREAD_TIMEOUT
        self._body: Iterator[bytes] = body
        self._close: Callable[[], None] = close

    def read(self) -> bytes:
        """Return about PIECE more bytes, the next event, or the rest. May switch."""
        pieces, size, most = list[bytes](), 0, 1 if self.is_stream else PIECE
        self.read_at = time.monotonic()
        for piece in self._body:
            pieces.append(piece)
            size += len(piece)
            if size >= most or (not self.is_stream and time.monotonic() > self.read_at + MAX_READ):
                break
        else:
            self.close()
        return b"".join(pieces)

    def close(self) -> None:
        self.is_over = True
        self._close()


class _Named(msgspec.Struct):
    """The members of a request of the API that may name its shard."""

    tube: str = ""
    q: str = ""
    token: str = ""


def _json_fields(body: bytes) -> dict[str, str]:
    """Return the texts of the JSON object *body* that may name its shard; none if it is malformed or large."""
    if len(body) > MAX_ROUTED_JSON:
        return {}
    try:
        named = msgspec.structs.asdict(msgspec.json.decode(body, type=_Named))
        return {name: value for name, value in named.items() if value}  # a tube may be in the query
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}


def _environ(facts: Facts, body: bytes) -> dict[str, Any]:
    """Return the WSGI environ of the request of *facts*."""
    passed = {PASSED_HOME: True} if facts.get(PASSED_HOME) else {FORWARDED: facts}
    return {
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "SCRIPT_NAME": "",
        "QUERY_STRING": "",
        "wsgi.url_scheme": "http",
        **facts["environ"],
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": sys.stderr,
        "wsgi.version": (1, 0),
        "wsgi.multithread": False,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
        **passed,
    }
