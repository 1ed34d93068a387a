"""Sessions of users who signed in on the sign-in page. A random token in a cookie identifies each session.

The server keeps only a hash of each token. A session ends when the user signs out, when an admin ends it, after the
idle time without a request, after its lifetime, or when its credential no longer exists.

With a directory, sessions survive a restart: a thread writes the file `sessions.jsonl`, one JSON object per line. A
damaged file is renamed, and all users must sign in again.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import gevent

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.runtime.supervisor import Service
from greenstalk_server.runtime.threads import run_in_thread
from greenstalk_server.web.auth.accounts import USER, Account
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.store.documents import DocumentFile, is_storable

NAME: Final = "sessions.jsonl"
VERSION: Final = 1

MAX_PER_USER: Final = 20
MAX_PER_SOURCE: Final = 1000
"""Maximum sessions per user name, and per kind of credential. Above it, the least recently used session ends."""

MAX_TEXT: Final = 200
"""Maximum characters of the User-Agent header that a session keeps."""

MAX_DOCUMENT: Final = 64 * 1024 * 1024
"""Maximum bytes of the file; all sessions fit."""

SEEN_INTERVAL: Final = 60 * SECOND
"""Minimum nanoseconds between two writes of a session's last use."""

WRITE_RETRY_INTERVAL: Final = 5.0
"""Seconds between attempts to write while the disk fails."""


@dataclass(slots=True, eq=False)
class Session:
    """One signed-in browser.

    key             hash of the token.
    number          public name of the session, for lists and for admins who end it.
    credential      changes when the password or the provider changes; the session is void then.
    address, browser    the sender of the sign-in.
    created_at, seen_at nanoseconds since the Unix epoch: the sign-in, and the last use.
    id_token        the provider's token, needed to sign out there too; in memory only.
    """

    key: str
    number: str
    account: Account
    credential: str
    address: str
    browser: str
    created_at: int
    seen_at: int
    is_ended: bool = False
    id_token: str = ""


class Sessions:
    """The sessions of one server."""

    def __init__(
        self,
        clock: Clock,
        credential_of: Callable[[Account], str],
        *,
        idle_time: int,
        lifetime: int,
        directory: str | None = None,
    ) -> None:
        """Read the sessions in *directory*. Blocks, so call this before the server serves clients.

        credential_of   returns a secret that changes with the credential of an account; empty if it no longer exists.
        idle_time, lifetime     nanoseconds.
        """
        self.lifetime: int = lifetime
        self._idle_time: int = idle_time
        self._clock: Clock = clock
        self._credential_of: Callable[[Account], str] = credential_of
        self._by_key: dict[str, Session] = {}
        self._salt: str = secrets.token_hex(16)
        self._fingerprints: dict[str, str] = {}
        self._file: DocumentFile = DocumentFile(directory, NAME, "dashboard: %s; sessions may end at a restart")
        self._writer: Service = Service("session-writer", self._write)
        found = self._file.load(_parse, MAX_DOCUMENT, "users must sign in again")
        if found is not None:
            self._salt, sessions = found
            self._take(sessions)

    @property
    def trouble(self) -> str:
        """Why the file differs from the sessions in memory; empty if it does not."""
        return self._file.trouble

    def create(self, account: Account, address: str, browser: str, id_token: str = "") -> tuple[str, Session]:
        """Start a session; return its token, of which the server keeps only a hash, and the session. May switch."""
        credential = self._fingerprint(account, run_in_thread)
        self._make_room(account)
        token, now = secrets.token_urlsafe(32), self._clock()
        session = Session(
            key=_hash(token),
            number=secrets.token_hex(6),
            account=account,
            credential=credential,
            address=address,
            browser=browser[:MAX_TEXT],
            created_at=now,
            seen_at=now,
            id_token=id_token,
        )
        self._by_key[session.key] = session
        self._changed()
        return token, session

    def find(self, token: str, *, is_use: bool) -> Session | None:
        """Return the session of *token*, or None. *is_use* postpones the end of its idle time. Does not switch."""
        session = self._by_key.get(_hash(token))
        if session is None or not self.is_live(session):
            return None
        now = self._clock()
        if is_use and now - session.seen_at >= SEEN_INTERVAL:
            session.seen_at = now
            self._changed()
        return session

    def is_live(self, session: Session) -> bool:
        """Return whether *session* has not ended. End it if its idle time or its lifetime is over."""
        if session.is_ended:
            return False
        now = self._clock()
        if now - session.seen_at >= self._idle_time or now - session.created_at >= self.lifetime:
            self.end(session)
        return not session.is_ended

    def end(self, session: Session) -> None:
        """End *session*. Does not switch."""
        session.is_ended = True
        if self._by_key.pop(session.key, None) is not None:
            self._changed()

    def all(self) -> list[Session]:
        """Return the sessions, most recently used first."""
        live = [session for session in list(self._by_key.values()) if self.is_live(session)]
        return sorted(live, key=lambda session: (-session.seen_at, session.number))

    def flush(self) -> None:
        """Write the changes that are not on disk yet. Switches."""
        if not self._file.is_saved:
            self._file.save(self._snapshot)

    def _make_room(self, account: Account) -> None:
        """End the least recently used sessions above the limits per name and per kind of credential."""
        alike = [session for session in self.all() if session.account.source == account.source]
        own = [session for session in alike if session.account.name == account.name]
        for session in [*own[MAX_PER_USER - 1 :], *(alike[MAX_PER_SOURCE - 1 :] if account.source != USER else ())]:
            self.end(session)

    def _fingerprint(self, account: Account, call: Callable[[Callable[[], str]], str]) -> str:
        """Return a hash of the credential of *account*, empty if it no longer exists. May switch if *call* does.

        The hash of a shared password takes 40 ms at first, since the file must not help to guess the password.
        """
        secret = self._credential_of(account)
        if not secret or not self._file.is_kept:
            return secret and "-"
        if not account.is_shared:
            return _hash(self._salt + secret)
        if secret not in self._fingerprints:
            self._fingerprints[secret] = call(partial(_slow_hash, self._salt, secret))
        return self._fingerprints[secret]

    # The file

    def _changed(self) -> None:
        self._file.note_change()
        if self._file.is_kept:
            self._writer.start()

    def _write(self) -> None:
        """Write the file until it has all changes. Switches."""
        while not self._file.is_saved:
            self._file.save(self._snapshot)
            if self._file.trouble:
                gevent.sleep(WRITE_RETRY_INTERVAL)

    def _snapshot(self) -> Callable[[], bytes]:
        """Return a function that returns the document. Switches."""
        pace = Pace()
        lines = [_line({"version": VERSION, "salt": self._salt})]
        for session in list(self._by_key.values()):
            lines.append(_line(_as_json(session)))
            pace.yield_if_due()
        return partial(b"".join, lines)

    def _take(self, found: Iterable[Session]) -> None:
        """Keep each of the sessions *found* that has not expired and whose credential is unchanged.

        A time in the future is replaced by now, so that a wrong clock cannot prolong a session.
        """
        now = self._clock()
        for session in found:
            session.created_at, session.seen_at = min(session.created_at, now), min(session.seen_at, now)
            is_same = session.credential and session.credential == self._fingerprint(session.account, _call)
            if is_same and self.is_live(session):
                self._by_key[session.key] = session


def _parse(data: bytes) -> tuple[str, list[Session]]:
    """Return the salt and the sessions of the document.

    Raise AttributeError, KeyError, TypeError or ValueError if it is damaged.
    """
    head, *lines = data.splitlines()
    return _salt(json.loads(head)), [_session(json.loads(line)) for line in lines]


def _call(function: Callable[[], str]) -> str:
    return function()


def _slow_hash(salt: str, secret: str) -> str:
    return hashlib.scrypt(secret.encode(), salt=salt.encode(), n=2**14, r=8, p=1, dklen=16).hex()


def _salt(head: dict[str, Any]) -> str:
    """Return the salt in *head*, the first line of the file; raise ValueError if the version is not VERSION."""
    if head["version"] != VERSION or not isinstance(head["salt"], str):
        raise ValueError(f"its version is {str(head['version'])[:20]}, not {VERSION}")
    return head["salt"]


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def _line(values: dict[str, Any]) -> bytes:
    return json.dumps(values).encode() + b"\n"


def _as_json(session: Session) -> dict[str, Any]:
    return {
        "key": session.key,
        "number": session.number,
        "name": session.account.name,
        "roles": session.account.roles,
        "source": session.account.source,
        "credential": session.credential,
        "address": session.address,
        "browser": session.browser,
        "created_at": session.created_at,
        "seen_at": session.seen_at,
    }


def _session(values: dict[str, Any]) -> Session:
    """Return the session in *values*; raise KeyError, TypeError or ValueError unless they have the right types."""
    texts = [values[name] for name in ("key", "number", "name", "source", "credential", "address", "browser")]
    numbers = [values[name] for name in ("created_at", "seen_at")]
    roles = values["roles"]
    if not all(isinstance(one, str) for one in (*texts, *roles)) or not all(type(one) is int for one in numbers):
        raise ValueError(f"a value is of the wrong type in {str(values)[:200]}")
    if not all(map(is_storable, (*texts, *roles, *numbers))):
        raise ValueError(f"a value is impossible in {str(values)[:200]!a}")
    key, number, name, source, credential, address, browser = texts
    account = Account(name, tuple(roles), source)
    return Session(key, number, account, credential, address, browser, numbers[0], numbers[1])
