"""Sign-in with an OpenID Connect provider: the authorization code flow with PKCE, state and nonce, by Authlib.

A signed cookie holds the flow; the state, the nonce and the code verifier are derived from its secret. So the server
stores nothing until the user is signed in, and a code is useless in another browser. All requests to the provider run
in native threads, with one deadline for each step of a sign-in. The packages are optional: `pip install
'greenstalk-server[oidc]'`.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import socket
import threading
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final
from urllib.parse import urlencode

import gevent
from gevent.lock import BoundedSemaphore
from werkzeug.exceptions import BadGateway, ServiceUnavailable

from greenstalk_server.config.tables.addresses import is_safe_url
from greenstalk_server.runtime.threads import run_in_thread
from greenstalk_server.web.options import Provider

REQUEST_TIMEOUT: Final = (5.0, 10.0)
"""Seconds to connect to the provider, and to wait for the next bytes of its response."""

EXCHANGE_TIMEOUT: Final = 20.0
"""Seconds for all requests of one step of a sign-in, after which their connections are shut down."""

MAX_DOCUMENT: Final = 1024 * 1024
"""Maximum bytes of a response of the provider."""

READ_SIZE: Final = 64 * 1024
"""Maximum bytes of one read."""

KEPT_FOR: Final = 3600.0
"""Seconds for which the provider's configuration and keys are kept."""

KEYS_INTERVAL: Final = 60.0
"""Minimum seconds between two requests for the provider's keys that tokens with unknown keys cause."""

REFUSED_CLIENT: Final = frozenset({"invalid_client", "unauthorized_client"})
"""Errors of the token endpoint that mean a wrong client id or secret."""

FAILED_FOR: Final = 2.0
"""Seconds for which a failed request for the configuration or the keys is not repeated: waiting users fail too."""

FLOW_TIME: Final = 600
"""Seconds that a user has to sign in at the provider."""

LEEWAY: Final = 60
"""Seconds by which the clocks of the provider and of this server may differ."""

MAX_RUNNING: Final = 4
MAX_WAITING: Final = 20
"""Sign-ins that use a thread at the same time, and sign-ins that wait for a thread; more are refused."""

MAX_NEXT: Final = 1500
"""Maximum characters of the path to return to: a cookie may have about 4000 bytes."""

MAX_GROUPS: Final = 1000

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Allowed signature algorithms. Each signs with the provider's private key, unlike `none` and those with the client's
secret."""

log = logging.getLogger(__name__)


class SignInFailed(Exception):
    """A sign-in failed; the message is for the user."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A sign-in in progress in one browser.

    cookie          the value of its cookie.
    where           the path to return to.
    """

    cookie: str
    state: str
    nonce: str
    verifier: str
    where: str


@dataclass(frozen=True, slots=True)
class Identity:
    """A user as the provider describes it."""

    name: str
    groups: frozenset[str]
    id_token: str


class OpenIdClient:
    """This dashboard as a client of *provider*."""

    def __init__(self, provider: Provider) -> None:
        self.provider: Provider = provider
        self._key: bytes = secrets.token_bytes(32)
        self._threads: BoundedSemaphore = BoundedSemaphore(MAX_RUNNING)
        self._waiting: int = 0
        self._lock: threading.Lock = threading.Lock()
        self._metadata: tuple[float, dict[str, Any]] | None = None
        self._keys: tuple[float, dict[str, Any]] | None = None
        self._keys_refreshed_at: float = -KEYS_INTERVAL
        self._failure: tuple[float, str] | None = None

    # Flows

    def begin(self, where: str) -> Flow:
        """Return a new flow that returns to the path *where*."""
        where = where if len(where) <= MAX_NEXT else "/"
        payload = json.dumps([secrets.token_urlsafe(24), int(time.time()) + FLOW_TIME, where]).encode()
        return self._flow(payload)

    def resume(self, cookie: str, state: str) -> Flow:
        """Return the flow of *cookie*; raise SignInFailed unless it is genuine, has not expired, and has *state*."""
        payload, _, signature = cookie.rpartition(".")
        try:
            raw = urlsafe_b64decode(payload)
        except ValueError:
            raw = b""
        if not raw or not hmac.compare_digest(self._sign(b"cookie", raw).encode(), signature.encode(errors="replace")):
            raise SignInFailed("The sign-in was started in another browser, or before a restart of the server.")
        flow = self._flow(raw)
        if not hmac.compare_digest(flow.state.encode(), state.encode(errors="replace")):
            raise SignInFailed("The provider's response does not belong to the last sign-in of this browser.")
        if json.loads(raw)[1] < time.time():
            raise SignInFailed(f"The sign-in took more than {FLOW_TIME // 60} minutes.")
        return flow

    def _flow(self, payload: bytes) -> Flow:
        cookie = f"{urlsafe_b64encode(payload).decode()}.{self._sign(b'cookie', payload)}"
        state, nonce, verifier = (self._sign(what, payload) for what in (b"state", b"nonce", b"verifier"))
        return Flow(cookie, state, nonce, verifier, json.loads(payload)[2])

    def _sign(self, what: bytes, payload: bytes) -> str:
        digest = hmac.new(self._key, what + b"\0" + payload, sha256).digest()
        return urlsafe_b64encode(digest).decode().rstrip("=")

    # The provider

    def authorization_url(self, flow: Flow, callback: str) -> str:
        """Return the provider's URL that begins *flow*; the provider redirects to the URL *callback*. Switches.

        Raise BadGateway if the provider does not respond.
        """
        challenge = urlsafe_b64encode(sha256(flow.verifier.encode()).digest()).decode().rstrip("=")
        query = {
            "response_type": "code",
            "client_id": self.provider.client_id,
            "redirect_uri": callback,
            "scope": self.provider.scopes,
            "state": flow.state,
            "nonce": flow.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        endpoint = self._in_thread(self._load_metadata)["authorization_endpoint"]
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"

    def finish(self, flow: Flow, code: str, callback: str, issuer: str) -> Identity:
        """Exchange *code* for the identity of the user. Switches.

        *issuer* is the issuer in the provider's response, or empty. Raise SignInFailed if the provider refuses, or
        BadGateway if it does not respond.
        """
        claims, id_token = self._in_thread(self._exchange, flow, code, callback, issuer)
        name = _clean(str(claims.get(self.provider.name_claim) or claims["sub"]))
        return Identity(name, _groups(_claim(claims, self.provider.groups_claim)), id_token)

    def sign_out_url(self, id_token: str, back: str) -> str:
        """Return the address at the provider that ends the session there; empty if it is unknown."""
        endpoint = self._metadata[1].get("end_session_endpoint") if self._metadata is not None else None
        if not isinstance(endpoint, str) or not is_safe_url(endpoint) or not id_token:
            return ""
        query = {"id_token_hint": id_token, "client_id": self.provider.client_id, "post_logout_redirect_uri": back}
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"

    def _in_thread(self, function: Any, *args: Any) -> Any:
        """Call *function* in a native thread; raise BadGateway if the provider fails or is too slow. Switches."""
        if self._waiting >= MAX_WAITING:
            raise ServiceUnavailable("Too many users are signing in. Try again in a moment.", retry_after=1)
        self._waiting += 1
        exchange = _Exchange()
        try:
            with self._threads:
                timer = gevent.spawn_later(EXCHANGE_TIMEOUT, exchange.abort)
                try:
                    return run_in_thread(exchange.run, function, *args)
                finally:
                    timer.kill(block=False)
        except _ProviderFailed as error:
            log.warning("dashboard: the OpenID Connect provider %s failed: %s", self.provider.issuer, error)
            raise BadGateway(f"The identity provider failed: {error}. The server's log has the details.") from None
        except SignInFailed:
            raise
        except Exception as error:  # the libraries raise many kinds of exceptions for malformed documents
            log.exception("dashboard: a response of the OpenID Connect provider %s is malformed", self.provider.issuer)
            raise BadGateway("The identity provider sent a malformed response. The server's log has it.") from error
        finally:
            self._waiting -= 1

    # In native threads

    def _load_metadata(self) -> dict[str, Any]:
        """Return the provider's configuration. Blocks."""
        with self._lock:
            if self._metadata is not None and time.monotonic() - self._metadata[0] < KEPT_FOR:
                return self._metadata[1]
            issuer = self.provider.issuer
            metadata = self._get_shared(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
            if str(metadata.get("issuer", "")).rstrip("/") != issuer.rstrip("/"):
                raise _ProviderFailed(f"its configuration names the issuer {str(metadata.get('issuer'))[:200]}")
            for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                if not is_safe_url(str(metadata.get(name, ""))):
                    raise _ProviderFailed(f"its {name} is not an address that begins with https://")
            self._metadata = time.monotonic(), metadata
            return metadata

    def _load_keys(self, *, is_refreshed: bool = False) -> dict[str, Any]:
        """Return the provider's keys; *is_refreshed*: request them again unless such a request was recent. Blocks."""
        metadata = self._load_metadata()
        with self._lock:
            now = time.monotonic()
            is_due = is_refreshed and now - self._keys_refreshed_at >= KEYS_INTERVAL
            if is_due or self._keys is None or now - self._keys[0] >= KEPT_FOR:
                self._keys = now, self._get_shared(metadata["jwks_uri"])
                if is_due:
                    self._keys_refreshed_at = now
            return self._keys[1]

    def _get_shared(self, url: str) -> dict[str, Any]:
        """Return the JSON object at *url*; raise _ProviderFailed, also just after a failure. Blocks; needs the lock.

        If the failure were not remembered, each user who waits for the lock would wait for one more timeout.
        """
        if self._failure is not None and time.monotonic() - self._failure[0] < FAILED_FOR:
            raise _ProviderFailed(self._failure[1])
        try:
            return self._get(url)
        except _ProviderFailed as error:
            self._failure = time.monotonic(), str(error)
            raise

    def _exchange(self, flow: Flow, code: str, callback: str, issuer: str) -> tuple[dict[str, Any], str]:
        """Return the claims about the user, and the provider's ID token. *issuer* is as in `finish`. Blocks."""
        from authlib.integrations.requests_client import OAuth2Session  # noqa: PLC0415  optional dependency
        from requests import RequestException  # noqa: PLC0415

        metadata, provider = self._load_metadata(), self.provider
        if issuer and issuer != metadata["issuer"]:
            raise SignInFailed("The response came from another provider.")
        supported = metadata.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        method = "client_secret_basic" if "client_secret_basic" in supported else "client_secret_post"
        with OAuth2Session(
            provider.client_id,
            provider.client_secret,
            redirect_uri=callback,
            token_endpoint_auth_method=method if provider.client_secret else "none",
        ) as session:
            _watch_connections(session)
            session.register_compliance_hook("access_token_response", _with_bounded_body)
            try:
                token = session.fetch_token(
                    metadata["token_endpoint"],
                    code=code,
                    code_verifier=flow.verifier,
                    timeout=REQUEST_TIMEOUT,
                    allow_redirects=False,
                    stream=True,
                )
            except _ProviderFailed:
                raise
            except RequestException as error:
                raise _ProviderFailed(_reason(error)) from error
            except Exception as error:
                if getattr(error, "error", "") in REFUSED_CLIENT:
                    raise _ProviderFailed("it refused the client id or secret of this dashboard") from error
                raise SignInFailed(f"The provider refused the sign-in: {str(error)[:200].rstrip(': ')}") from error
            id_token = str(token.get("id_token", ""))
            claims = self._verified(id_token, flow, str(token.get("access_token", "")))
            wanted = {provider.name_claim, provider.groups_claim}
            endpoint = str(metadata.get("userinfo_endpoint", ""))
            if is_safe_url(endpoint) and any(_claim(claims, name) is None for name in wanted):
                claims = self._user_info(session, endpoint, claims) | claims
        return claims, id_token

    def _verified(self, id_token: str, flow: Flow, access_token: str) -> dict[str, Any]:
        """Return the claims of *id_token*; raise SignInFailed if it was not issued for this sign-in. Blocks."""
        from authlib.oidc.core import CodeIDToken  # noqa: PLC0415
        from joserfc import jwt  # noqa: PLC0415
        from joserfc.errors import InvalidKeyIdError, JoseError  # noqa: PLC0415
        from joserfc.jwk import KeySet  # noqa: PLC0415

        issuer, client_id = self._load_metadata()["issuer"], self.provider.client_id
        try:
            try:
                token = jwt.decode(id_token, KeySet.import_key_set(self._load_keys()), list(ALGORITHMS))  # type: ignore[arg-type]
            except InvalidKeyIdError:  # the provider may have new keys
                keys = KeySet.import_key_set(self._load_keys(is_refreshed=True))  # type: ignore[arg-type]
                token = jwt.decode(id_token, keys, list(ALGORITHMS))
            wanted = {
                "iss": {"essential": True, "value": issuer},
                "aud": {"essential": True, "value": client_id},
                "nonce": {"essential": True, "value": flow.nonce},
            }
            params = {"nonce": flow.nonce, "client_id": client_id, "access_token": access_token}
            claims = CodeIDToken(token.claims, token.header, wanted, params)
            claims.validate(leeway=LEEWAY)
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise SignInFailed(f"The provider's token is not valid: {str(error)[:200]}") from error
        return dict(claims)

    def _user_info(self, session: Any, endpoint: str, claims: Mapping[str, Any]) -> dict[str, Any]:
        """Return the provider's further claims about the user of *claims*. Blocks."""
        found = self._get(endpoint, session)
        if found.get("sub") != claims["sub"]:
            raise SignInFailed("The provider described another user.")
        return found

    def _get(self, url: str, session: Any = None) -> dict[str, Any]:
        """Return the JSON object at *url*; raise _ProviderFailed. Blocks."""
        import requests  # noqa: PLC0415

        if session is None:
            with requests.Session() as session:
                _watch_connections(session)
                return self._get(url, session)
        try:
            with session.get(url, timeout=REQUEST_TIMEOUT, allow_redirects=False, stream=True) as found:
                if found.status_code != 200:
                    raise _ProviderFailed(f"{url} returned status {found.status_code}")
                document = json.loads(_body(found))
        except requests.RequestException as error:
            raise _ProviderFailed(_reason(error)) from error
        except (ValueError, RecursionError) as error:
            raise _ProviderFailed(f"{url} returned no JSON") from error
        if not isinstance(document, dict):
            raise _ProviderFailed(f"{url} returned no JSON object")
        return document


class _ProviderFailed(Exception):
    """The provider did not respond, or its response violates the specification."""


class _Exchange:
    """The requests of one step of a sign-in. A native thread calls `run`; the event loop may call `abort` during it."""

    def __init__(self) -> None:
        self._is_aborted: bool = False
        self._sockets: list[socket.socket] = []

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return the result of *function*; raise _ProviderFailed if `abort` was called. Blocks."""
        _current.exchange = self
        try:
            return function(*args)
        except Exception:
            if self._is_aborted:
                raise _ProviderFailed(f"no complete response in {EXCHANGE_TIMEOUT:g} s") from None
            raise
        finally:
            del _current.exchange
            for sock in self._sockets:
                sock.close()

    def watch(self, sock: socket.socket) -> None:
        """Let `abort` shut *sock* down, by a duplicate, since TLS takes over the file descriptor of *sock*."""
        self._sockets.append(sock.dup())
        if self._is_aborted:
            self.abort()

    def abort(self) -> None:
        """Shut all connections down, so that `run` ends. Does not block."""
        self._is_aborted = True
        for sock in self._sockets:
            with suppress(OSError):  # already closed
                sock.shutdown(socket.SHUT_RDWR)


_current: Final = threading.local()
"""In a thread that runs an _Exchange, the attribute `exchange` is that object."""


def _watch_connections(session: Any) -> None:
    """Make the exchange of this thread watch the connections of *session*.

    The timeouts of `requests` limit only a single read.
    """
    from requests.adapters import HTTPAdapter  # noqa: PLC0415  optional dependency
    from urllib3.connection import HTTPConnection, HTTPSConnection  # noqa: PLC0415

    class Plain(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            return _watched(super()._new_conn())

    class Encrypted(HTTPSConnection):
        def _new_conn(self) -> socket.socket:
            return _watched(super()._new_conn())

    class Adapter(HTTPAdapter):
        def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
            pool = super().get_connection_with_tls_context(*args, **kwargs)
            pool.ConnectionCls = Encrypted if pool.scheme == "https" else Plain
            return pool

    for scheme in ("https://", "http://"):
        session.mount(scheme, Adapter())


def _watched(sock: socket.socket) -> socket.socket:
    _current.exchange.watch(sock)
    return sock


def _body(response: Any) -> bytes:
    """Return the body of *response*, which must be a stream; raise _ProviderFailed if it is too long. Blocks."""
    from urllib3.exceptions import HTTPError  # noqa: PLC0415  optional dependency

    body = bytearray()
    try:
        while part := response.raw.read1(READ_SIZE, decode_content=True):
            body += part
            if len(body) > MAX_DOCUMENT:
                raise _ProviderFailed(f"{response.url} returned more than {MAX_DOCUMENT} bytes")
    except (HTTPError, OSError) as error:
        raise _ProviderFailed(_reason(error)) from error
    return bytes(body)


def _with_bounded_body(response: Any) -> Any:
    """Read the body of *response*, which must be a stream, and return *response*. Raise _ProviderFailed. Blocks."""
    with response:
        response._content = _body(response)
        response._content_consumed = True
    return response


def _reason(error: Exception) -> str:
    """Return a description of *error* without its text, which may contain addresses with secrets."""
    return f"no response ({type(error).__name__})"


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return the claim *name*, or the claim at this path of names separated by dots; None if there is none."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _groups(value: Any) -> frozenset[str]:
    texts = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return frozenset([text for text in texts[:MAX_GROUPS] if isinstance(text, str)])


def _clean(name: str) -> str:
    """Return *name* without control characters, and without those that change the direction of text."""
    return "".join([mark for mark in name if mark.isprintable()])[:200].strip()
