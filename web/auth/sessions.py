"""Sessions of users who signed in on the sign-in page. A random token in a cookie identifies each session.

The server keeps only a hash of each token. A session ends when the user signs out, when an admin ends it, after the
idle time without a request, after its lifetime, or when its credential no longer exists.

Each session is a row of the store, so sessions survive a restart.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.runtime.threads import run_in_thread
from greenstalk_server.web.auth.accounts import USER, Account
from greenstalk_server.web.store.rows import Row, Time, decoded
from greenstalk_server.web.store.store import Store

ROW: Final = "session"
SALT: Final = "session-salt"
"""Kinds of rows. The name of a session's row is the hash of its token; there is one row with a salt."""

MAX_PER_USER: Final = 20
MAX_PER_SOURCE: Final = 1000
"""Maximum sessions per user name, and per kind of credential. Above it, the least recently used session ends."""

MAX_TEXT: Final = 200
"""Maximum characters of the User-Agent header that a session keeps."""

SEEN_INTERVAL: Final = 60 * SECOND
"""Minimum nanoseconds between two writes of a session's last use."""


class StoredSession(msgspec.Struct, kw_only=True, eq=False):
    """One signed-in browser, as its row keeps it.

    number          public name of the session, for lists and for admins who end it.
    name, roles, source     from its account.
    credential      changes when the password or the provider changes; the session is void then.
    address, browser    the sender of the sign-in.
    created_at, seen_at     the sign-in, and the last use.
    """

    number: str
    name: str
    roles: tuple[str, ...]
    source: str
    credential: str
    address: str
    browser: str
    created_at: Time
    seen_at: Time


class Session(StoredSession, kw_only=True, eq=False):
    """One signed-in browser.

    key             hash of the token.
    id_token        the provider's token, needed to sign out there too; in memory only.
    """

    key: str
    is_ended: bool = False
    id_token: str = ""

    @property
    def account(self) -> Account:
        return Account(self.name, self.roles, self.source)


class Sessions:
    """The sessions of one server."""

    def __init__(
        self,
        clock: Clock,
        credential_of: Callable[[Account], str],
        *,
        idle_time: int,
        lifetime: int,
        store: Store,
    ) -> None:
        """Start without sessions; the sessions in *store* follow when it is restored.

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
        self.store: Store = store
        store.on_restore(SALT, self._restore_salt)
        store.on_restore(ROW, self._restore)

    def create(self, account: Account, address: str, browser: str, id_token: str = "") -> tuple[str, Session]:
        """Start a session; return its token, of which the server keeps only a hash, and the session. May switch."""
        credential = self._fingerprint(account, run_in_thread)
        self._make_room(account)
        token, now = secrets.token_urlsafe(32), self._clock()
        session = Session(
            key=_hash(token),
            number=secrets.token_hex(6),
            name=account.name,
            roles=account.roles,
            source=account.source,
            credential=credential,
            address=address,
            browser=browser[:MAX_TEXT],
            created_at=now,
            seen_at=now,
            id_token=id_token,
        )
        self._by_key[session.key] = session
        self._save(session)
        return token, session

    def find(self, token: str, *, is_use: bool) -> Session | None:
        """Return the session of *token*, or None. *is_use* postpones the end of its idle time. Does not switch."""
        session = self._by_key.get(_hash(token))
        if session is None or not self.is_live(session):
            return None
        now = self._clock()
        if is_use and now - session.seen_at >= SEEN_INTERVAL:
            session.seen_at = now
            self._save(session)
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
            self.store.remove(ROW, 0, session.key.encode())

    def all(self) -> list[Session]:
        """Return the sessions, most recently used first."""
        live = [session for session in list(self._by_key.values()) if self.is_live(session)]
        return sorted(live, key=lambda session: (-session.seen_at, session.number))

    def numbered(self, number: str) -> Session | None:
        """Return the session *number*, or None."""
        found = next((session for session in self._by_key.values() if session.number == number), None)
        return found if found is not None and self.is_live(found) else None

    def _make_room(self, account: Account) -> None:
        """End the least recently used sessions above the limits per name and per kind of credential."""
        alike = [session for session in self.all() if session.source == account.source]
        own = [session for session in alike if session.name == account.name]
        for session in [*own[MAX_PER_USER - 1 :], *(alike[MAX_PER_SOURCE - 1 :] if account.source != USER else ())]:
            self.end(session)

    def _fingerprint(self, account: Account, call: Callable[[Callable[[], str]], str]) -> str:
        """Return a hash of the credential of *account*, empty if it no longer exists. May switch if *call* does.

        The first hash of a shared password takes 40 ms: it is slow so that the file does not help to guess the
        password.
        """
        secret = self._credential_of(account)
        if not secret or not self.store.is_kept:
            return secret and "-"
        if not account.is_shared:
            return _hash(self._salt + secret)
        if secret not in self._fingerprints:
            self._fingerprints[secret] = call(partial(_slow_hash, self._salt, secret))
        return self._fingerprints[secret]

    # Rows

    def _save(self, session: Session) -> None:
        stored = StoredSession(**{name: getattr(session, name) for name in StoredSession.__struct_fields__})
        self.store.put(ROW, 0, session.key.encode(), msgspec.json.encode(stored))

    def _restore_salt(self, rows: list[Row]) -> None:
        """Continue with the salt of the previous run, without which its sessions are void."""
        if rows:
            self._salt = rows[0].data.hex()
            self._fingerprints.clear()
        else:
            self.store.put(SALT, 0, b"", bytes.fromhex(self._salt))

    def _restore(self, rows: list[Row]) -> None:
        """Keep each session of *rows* that has not expired and whose credential is unchanged. May switch."""
        for _, key, stored in decoded(rows, StoredSession, "so a session has ended"):
            self._take(Session(key=key, **msgspec.structs.asdict(stored)))

    def _take(self, session: Session) -> None:
        """A time in the future is replaced by now, so that a wrong clock cannot prolong a session."""
        now = self._clock()
        session.created_at, session.seen_at = min(session.created_at, now), min(session.seen_at, now)
        is_same = session.credential and session.credential == self._fingerprint(session.account, run_in_thread)
        if is_same and self.is_live(session):
            self._by_key.setdefault(session.key, session)
        else:
            self.store.remove(ROW, 0, session.key.encode())


def _slow_hash(salt: str, secret: str) -> str:
    return hashlib.scrypt(secret.encode(), salt=salt.encode(), n=2**14, r=8, p=1, dklen=16).hex()


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()
