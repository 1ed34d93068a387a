"""Requests to an API over one HTTP connection that is kept, and what goes wrong with them, in our words.

JSON goes out and comes in. HTTPS wants a certificate that the system's authorities have signed, or those of the
variable SSL_CERT_FILE. A redirection is not followed: it could take the token elsewhere. Not for two threads.
"""

from __future__ import annotations

import json
import select
import ssl
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from typing import Any, Final, NoReturn
from urllib.parse import urlencode

from greenstalkctl.address import Url
from greenstalkctl.exits import Failure, Misuse, Refused, Unreachable

JSON: Final = "application/json"
PROBLEM: Final = "application/problem+json"
BYTES: Final = "application/octet-stream"

TOKEN_VARIABLE: Final = "GREENSTALKCTL_API_TOKEN"  # noqa: S105  the name of it
_TOKEN_IS_FROM: Final = f"{TOKEN_VARIABLE} or --api-token-file"
ASKED_IN_QUERY: Final = "q"
"""The one field of requests that stands as it is on the command line; all others have been checked there."""

LONGEST_TARGET: Final = 2**16
"""Bytes of an address that are sent: of a longer one a server has hung up before it is sent, and its 414 is lost."""

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
    """A connection to the API at *url*, over which an operation takes *timeout* seconds at most.

    *token* is sent with each request, unless it is empty.
    """

    def __init__(self, url: Url, token: str, timeout: float) -> None:
        self._url = url
        self._token = token
        self._timeout = timeout
        if url.is_secure:
            self._http: HTTPConnection = HTTPSConnection(url.host, url.port, timeout=timeout)
        else:
            self._http = HTTPConnection(url.host, url.port, timeout=timeout)

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
        return response, response.read()

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": f"{JSON}, {PROBLEM}, {BYTES}", "Content-Type": JSON, "User-Agent": "greenstalkctl"}
        return headers | ({"Authorization": f"Bearer {self._token}"} if self._token else {})

    def _connect(self) -> bool:
        """See to it that there is a connection, and return whether it has been used already.

        One that the other end has closed since the last request is none.
        """
        if self._http.sock is not None:
            readable, _, _ = select.select([self._http.sock], [], [], 0)
            if not readable:
                return True
            self._http.close()
        try:
            self._http.connect()
        except TimeoutError:
            raise
        except ssl.SSLCertVerificationError as error:
            why = f"{error.verify_message}; SSL_CERT_FILE names a file with other authorities"
            raise Unreachable(f"the certificate of {self._url} does not hold: {why}") from error
        except ssl.SSLError as error:
            raise Unreachable(f"{self._url} does not speak TLS; is it http:// rather than https://?") from error
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error) or "it does not answer"
            message = f"cannot connect to {self._url}: {reason}; is the dashboard running, and --api right?"
            raise Unreachable(message) from error
        return False

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
        except (ConnectionError, IncompleteRead) as error:  # of which http.client's RemoteDisconnected is one, too
            self._http.close()
            raise Unreachable(f"{self._url} has ended the connection{doubt}: {error}; is it still running?") from error
        except (HTTPException, OSError) as error:
            self._http.close()
            raise Unreachable(f"what answers at {self._url} does not speak HTTP; is --api right?") from error

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
