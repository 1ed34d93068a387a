"""JSON requests to an API over one keep-alive HTTP connection, with errors translated for the user.

A redirect is not followed, because it could send the token to another server. Every response is bounded in time (the
deadline of its request) and in memory (MAX_JSON, MAX_BODY), because the server is not trusted. Not thread-safe.
"""

from __future__ import annotations

import json
import select
import ssl
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, IncompleteRead
from typing import Any, Final, NoReturn
from urllib.parse import urlencode

from greenstalkctl import bounded_socket
from greenstalkctl.address import Url
from greenstalkctl.errors import CommandError, InvalidUsage, Refused, Unreachable
from greenstalkctl.queue import MAX_BODY

JSON: Final = "application/json"
PROBLEM: Final = "application/problem+json"
BYTES: Final = "application/octet-stream"

TOKEN_VARIABLE: Final = "GREENSTALKCTL_API_TOKEN"  # noqa: S105  the variable's name, not a token
_TOKEN_IS_FROM: Final = f"{TOKEN_VARIABLE} or --api-token-file"
QUERY_FIELD: Final = "q"
"""The only request field that is copied unchecked from the command line."""

MAX_TARGET: Final = 2**16
"""Maximum bytes of a request target. A server would close the connection before it has read a longer one, and its
response (414) would be lost."""

MAX_JSON: Final = 2**24
"""Maximum bytes of a JSON response. The largest is a page of jobs with 2 MiB of bodies, each byte escaped."""

MAX_HEAD: Final = 2**23
"""Maximum bytes of a response's status line and headers; http.client accepts 100 lines of 64 KiB."""

_TOO_LONG: Final = "the --query is too long"


@dataclass(frozen=True, slots=True)
class Response:
    """The response to a request; `data` is its decoded JSON, or its bytes if it is not JSON."""

    status: int
    data: Any

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


class HttpClient:
    """A connection to the API at *url*; each request, with its response, may take *timeout* seconds.

    *token* is sent with each request unless it is empty. *context* is the TLS context of an https:// URL.
    """

    def __init__(self, url: Url, token: str, timeout: float, context: ssl.SSLContext | None = None) -> None:
        self._url = url
        self._token = token
        self._timeout = timeout
        self._context = context
        self._socket: bounded_socket.BoundedSocket | None = None
        self._has_answered = False
        self._http = HTTPConnection(url.host, url.port)
        self._http.default_port = 80 if context is None else 443  # the Host header omits it

    def close(self) -> None:
        self._http.close()

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: object = None,
        *,
        ordinary: Collection[int] = (),
        wait: float = 0,
    ) -> Response:
        """Send a request; return its response if it succeeded or its status is in *ordinary*.

        The request may take *wait* seconds longer than the timeout.

        Otherwise raise Refused, with the status as its `word`; InvalidUsage if the command line caused the error; or
        Unreachable if the response does not come from the API.
        """
        target = f"{self._url.root}{path}" + (f"?{urlencode(query)}" if query else "")
        if len(target) > MAX_TARGET:
            raise InvalidUsage(_TOO_LONG)
        with self._translated_errors(is_change=method != "GET"):
            is_used = self._connect(wait)
            try:
                response, content = self._exchange(method, target, body)
            except ConnectionError:
                if not is_used or method != "GET":
                    raise
                self._http.close()  # the server closed the idle connection while the request was being sent
                self._connect(wait)
                response, content = self._exchange(method, target, body)
        kind = response.headers.get_content_type()
        if kind not in {JSON, PROBLEM, BYTES} and response.status != 204:
            raise self._foreign_response(response)
        answer = Response(response.status, content if kind == BYTES else self._parse_json(content))
        if not answer.is_success and response.status not in ordinary:
            self._raise_problem(answer, is_change=method != "GET")
        return answer

    def _exchange(self, method: str, target: str, body: object) -> tuple[HTTPResponse, bytes]:
        self._http.request(method, target, None if body is None else json.dumps(body), self._headers())
        response = self._http.getresponse()
        self._has_answered = True
        limit = MAX_BODY if response.headers.get_content_type() == BYTES else MAX_JSON
        if response.length is not None and response.length > limit:
            raise bounded_socket.TooLargeError(f"it announces a response of {response.length} bytes")
        assert self._socket is not None
        self._socket.budget = limit  # the length of a chunked response is unknown until its end
        content = response.read(limit + 1) if response.length is None else response.read()
        if len(content) > limit:
            raise bounded_socket.TooLargeError(f"its response has more than {limit} bytes")
        return response, content

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": f"{JSON}, {PROBLEM}, {BYTES}", "Content-Type": JSON, "User-Agent": "greenstalkctl"}
        return headers | ({"Authorization": f"Bearer {self._token}"} if self._token else {})

    def _connect(self, wait: float) -> bool:
        """Connect unless a usable connection is open; return whether the connection has been used before.

        A connection that the server has closed since the last request is not usable.
        """
        is_open = self._http.sock is not None and not select.select([self._http.sock], [], [], 0)[0]
        if not is_open:
            self._http.close()
            self._http.sock = self._socket = bounded_socket.connect(self._url, self._timeout, self._context)
        assert self._socket is not None
        self._socket.set_limits(self._timeout + wait, MAX_HEAD)
        return is_open

    @contextmanager
    def _translated_errors(self, *, is_change: bool) -> Iterator[None]:
        """Translate connection errors to Unreachable; if *is_change*, say that the change may have been made."""
        doubt = "; the change may have been made" if is_change else ""
        try:
            yield
        except TimeoutError as error:
            self._http.close()
            message = f"{self._url} did not answer within {self._timeout:g} s{doubt}; raise --timeout to wait longer"
            raise Unreachable(message) from error
        except bounded_socket.TooLargeError as error:
            self._http.close()
            raise self.not_the_api(str(error)) from error
        except (ConnectionError, IncompleteRead, ssl.SSLError) as error:
            self._http.close()
            raise bounded_socket.closed(self._url, error, has_answered=self._has_answered, doubt=doubt) from error
        except (HTTPException, OSError) as error:
            self._http.close()
            message = f"the server at {self._url} does not speak HTTP; check --api"
            raise Unreachable(message) from error

    def _parse_json(self, content: bytes) -> Any:
        try:
            return json.loads(content) if content else None
        except (ValueError, RecursionError) as error:
            raise self.not_the_api("its response is not JSON") from error

    def not_the_api(self, why: str) -> Unreachable:
        """Return the error for a response that does not come from the API."""
        return Unreachable(f"the server at {self._url} is not the API of Greenstalk Server ({why}); check --api")

    def _foreign_response(self, response: HTTPResponse) -> CommandError:
        """Return the error for a *response* of another server, such as a proxy in front of the API."""
        status = f"{response.status} {response.reason}".strip()
        if 300 <= response.status < 400:
            return Unreachable(f"{self._url} redirects to {response.getheader('Location')}; use that URL as --api")
        if response.status == 414:
            return InvalidUsage(_TOO_LONG)
        if response.status >= 500:
            message = f"a proxy in front of {self._url} answered {status}; the server behind it may not be running"
            return Unreachable(message)
        return self.not_the_api(f"{status}, {response.headers.get_content_type()}")

    def _raise_problem(self, answer: Response, *, is_change: bool) -> NoReturn:
        """Raise the error that *answer*, an RFC 9457 problem, means for the user of the command."""
        problem = answer.data if isinstance(answer.data, dict) else {}
        detail = str(problem.get("detail", "no reason given")).rstrip(".")
        raise self._error_for(answer.status, detail, _fields(problem), is_change=is_change)

    def _error_for(self, status: int, detail: str, fields: Collection[str], *, is_change: bool) -> CommandError:
        if status == 400 and QUERY_FIELD in fields:
            return InvalidUsage(detail.replace(f"“{QUERY_FIELD}”", "--query"))
        if status == 401 and self._token:
            return Refused("401", f"{self._url} refused the token in {_TOKEN_IS_FROM}: {detail}")
        if status == 401:
            return Refused("401", f"{self._url} requires a token; set {_TOKEN_IS_FROM}: {detail}")
        if status == 403 and is_change:
            needs = "a change needs an admin token, and a server that is not read-only"
            return Refused("403", f"{self._url} answered 403: {detail}; {needs}")
        return Refused(str(status), f"{self._url} answered {status}: {detail}")


def _fields(problem: Mapping[str, Any]) -> list[str]:
    """Return the names of the request fields that *problem* names."""
    errors = problem.get("errors")
    return [str(error.get("field")) for error in errors if isinstance(error, dict)] if isinstance(errors, list) else []
