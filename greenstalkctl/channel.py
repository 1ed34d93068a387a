"""Requests to an API over one HTTP connection that is kept, and what goes wrong with them, in our words.

JSON goes out and comes in. A redirection is not followed: it could take the token elsewhere. Whatever answers, an
answer is bounded in time (the deadline of its request) and in memory (MAX_JSON, MAX_BODY). Not for two threads.
"""

from __future__ import annotations

import json
import select
import socket
import ssl
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from time import monotonic
from typing import Any, Final, NoReturn
from urllib.parse import urlencode

from greenstalkctl import link, tls
from greenstalkctl.address import Url
from greenstalkctl.exits import Failure, Misuse, Refused, Unreachable
from greenstalkctl.queue import MAX_BODY

JSON: Final = "application/json"
PROBLEM: Final = "application/problem+json"
BYTES: Final = "application/octet-stream"

TOKEN_VARIABLE: Final = "GREENSTALKCTL_API_TOKEN"  # noqa: S105  the name of it
_TOKEN_IS_FROM: Final = f"{TOKEN_VARIABLE} or --api-token-file"
ASKED_IN_QUERY: Final = "q"
"""The one field of requests that stands as it is on the command line; all others have been checked there."""

LONGEST_TARGET: Final = 2**16
"""Bytes of an address that are sent: of a longer one a server has hung up before it is sent, and its 414 is lost."""

MAX_JSON: Final = 2**24
"""Bytes of an answer in JSON. The largest is a page of jobs, with two MiB of bodies, each byte of them escaped."""

MAX_HEAD: Final = 2**23
"""Bytes of the head of an answer, of which http.client takes a hundred lines of 64 KiB."""

_TOO_LONG: Final = "the --query is too long"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request was answered with: `data` is what its JSON holds, or the bytes that it has instead."""

    status: int
    data: Any

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


class Channel:
    """A connection to the API at *url*; each request, with its answer, has *timeout* seconds.

    *token* is sent with each request, unless it is empty. *context* is that of TLS, for a URL with https://.
    """

    def __init__(self, url: Url, token: str, timeout: float, context: ssl.SSLContext | None = None) -> None:
        self._url = url
        self._token = token
        self._timeout = timeout
        self._context = context
        self._deadline = 0.0
        self._link: link.Link | None = None
        self._has_answered = False
        self._http = (
            HTTPConnection(url.host, url.port)
            if context is None
            else HTTPSConnection(url.host, url.port, context=context)  # whose header Host has another usual port
        )

    def close(self) -> None:
        self._http.close()

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: object = None,
        *,
        ordinary: Collection[int] = (),
    ) -> Answer:
        """Send a request; return its answer if that is a success or has an *ordinary* status, else raise.

        Refused with the status as its word; Misuse if what is wrong stands on the command line; Unreachable if what
        answers is no such API.
        """
        target = f"{self._url.root}{path}" + (f"?{urlencode(query)}" if query else "")
        if len(target) > LONGEST_TARGET:
            raise Misuse(_TOO_LONG)
        self._deadline = monotonic() + self._timeout
        with self._in_our_words(is_change=method != "GET"):
            is_used = self._connect()
            try:
                response, content = self._exchange(method, target, body)
            except ConnectionError:
                if not is_used or method != "GET":
                    raise
                self._http.close()  # the other end has closed it just as the request was on its way
                self._connect()
                response, content = self._exchange(method, target, body)
        kind = response.headers.get_content_type()
        if kind not in {JSON, PROBLEM, BYTES} and response.status != 204:
            raise self._is_other(response)
        answer = Answer(response.status, content if kind == BYTES else self._loaded(content))
        if not answer.is_success and response.status not in ordinary:
            self._refuse(answer, is_change=method != "GET")
        return answer

    def _exchange(self, method: str, target: str, body: object) -> tuple[HTTPResponse, bytes]:
        self._http.request(method, target, None if body is None else json.dumps(body), self._headers())
        response = self._http.getresponse()
        self._has_answered = True
        limit = MAX_BODY if response.headers.get_content_type() == BYTES else MAX_JSON
        if response.length is not None and response.length > limit:
            raise link.TooLargeError(f"it announces an answer of {response.length} bytes")
        assert self._link is not None
        self._link.budget = limit  # the length of a chunked answer is not known before its end
        content = response.read(limit + 1) if response.length is None else response.read()
        if len(content) > limit:
            raise link.TooLargeError(f"its answer has more than {limit} bytes")
        return response, content

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": f"{JSON}, {PROBLEM}, {BYTES}", "Content-Type": JSON, "User-Agent": "greenstalkctl"}
        return headers | ({"Authorization": f"Bearer {self._token}"} if self._token else {})

    def _connect(self) -> bool:
        """Make sure that there is a connection, and return whether it has been used already.

        One that the other end has closed since the last request is none.
        """
        if self._link is not None and self._http.sock is not None:
            readable, _, _ = select.select([self._link], [], [], 0)
            if not readable:
                self._link.allow(self._deadline - monotonic(), MAX_HEAD)
                return True
            self._http.close()
        left = max(self._deadline - monotonic(), 0.001)
        try:
            sock = socket.create_connection((self._url.host, self._url.port), left)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except TimeoutError:
            raise
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error) or "it does not answer"
            message = f"cannot connect to {self._url}: {reason}; is the dashboard running, and --api right?"
            raise Unreachable(message) from error
        self._link = self._secured(sock, self._context) if self._context is not None else link.plain(sock)
        self._link.allow(self._deadline - monotonic(), MAX_HEAD)
        self._http.sock = self._link
        return False

    def _secured(self, sock: socket.socket, context: ssl.SSLContext) -> link.Link:
        left = max(self._deadline - monotonic(), 0.001)
        try:
            return link.secured(sock, left, context, self._url.host)
        except OSError as error:
            without = "is it http:// rather than https://?"
            raise Unreachable(tls.failed_handshake(self._url, error, self._timeout, without)) from error

    @contextmanager
    def _in_our_words(self, *, is_change: bool) -> Iterator[None]:
        """Make Unreachable of what is raised; if the request *is_change*, it says that nobody knows what was done."""
        doubt = ", and may have done it all the same" if is_change else ""
        try:
            yield
        except TimeoutError as error:
            self._http.close()
            message = f"{self._url} has not answered within {self._timeout:g} s{doubt}; allow more with --timeout"
            raise Unreachable(message) from error
        except link.TooLargeError as error:
            self._http.close()
            raise self.is_none_of_ours(str(error)) from error
        except (ConnectionError, IncompleteRead, ssl.SSLError) as error:  # http.client's RemoteDisconnected is one
            self._http.close()
            refusal = tls.refusal(self._url, error) if isinstance(error, ssl.SSLError) else None
            message = f"{self._url} has ended the connection{doubt}: {error}; {self._advice()}"
            raise Unreachable(refusal or message) from error
        except (HTTPException, OSError) as error:
            self._http.close()
            message = f"what answers at {self._url} does not speak HTTP; is --api right?"
            raise Unreachable(message) from error

    def _advice(self) -> str:
        """Return what to do about a connection that was ended without an answer."""
        if self._has_answered:
            return "is it still running?"
        if self._context is not None:
            return "does it take only clients with a certificate (--cert, --key), or not this one?"
        return "is it still running? If it expects TLS, write https://"

    def _loaded(self, content: bytes) -> Any:
        try:
            return json.loads(content) if content else None
        except (ValueError, RecursionError) as error:
            raise self.is_none_of_ours("its answer is no JSON") from error

    def is_none_of_ours(self, why: str) -> Unreachable:
        """What to raise if something else than the API answers."""
        return Unreachable(f"what answers at {self._url} is not the API of Greenstalk Server ({why}); is --api right?")

    def _is_other(self, response: HTTPResponse) -> Failure:
        """What to raise for a *response* that the API does not give."""
        said = f"{response.status} {response.reason}".strip()
        if 300 <= response.status < 400:
            return Unreachable(f"{self._url} leads elsewhere: {response.getheader('Location')}; give that as --api")
        if response.status == 414:
            return Misuse(_TOO_LONG)
        if response.status >= 500:
            message = f"something before {self._url} has answered {said}: the server behind it may not be running"
            return Unreachable(message)
        return self.is_none_of_ours(f"{said}, {response.headers.get_content_type()}")

    def _refuse(self, answer: Answer, *, is_change: bool) -> NoReturn:
        """Raise what *answer*, a problem as RFC 9457 has it, means for whoever has given the command."""
        problem = answer.data if isinstance(answer.data, dict) else {}
        detail = str(problem.get("detail", "it does not say why")).rstrip(".")
        raise self._failure(answer.status, detail, _fields(problem), is_change=is_change)

    def _failure(self, status: int, detail: str, fields: Collection[str], *, is_change: bool) -> Failure:
        if status == 400 and ASKED_IN_QUERY in fields:
            return Misuse(detail.replace(f"“{ASKED_IN_QUERY}”", "--query"))
        if status == 401 and self._token:
            return Refused("401", f"{self._url} does not take the token of {_TOKEN_IS_FROM}: {detail}")
        if status == 401:
            return Refused("401", f"{self._url} asks for a token, so set {_TOKEN_IS_FROM}: {detail}")
        if status == 403 and is_change:
            needs = "a change needs the token of admins, and a server that is not read-only"
            return Refused("403", f"{self._url} has answered 403: {detail}; {needs}")
        return Refused(str(status), f"{self._url} has answered {status}: {detail}")


def _fields(problem: Mapping[str, Any]) -> list[str]:
    """The names of the fields that *problem* is about."""
    errors = problem.get("errors")
    return [str(error.get("field")) for error in errors if isinstance(error, dict)] if isinstance(errors, list) else []
