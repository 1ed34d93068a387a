"""Verifies names and passwords: a shared password per built-in role, and users with a password hash each.

A password hash takes about 50 ms of CPU and 32 MiB, so it is verified in a native thread, MAX_HASHING at a time. A
success is remembered for a few minutes, since a program sends its password with every request.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b, sha256
from typing import Final

from gevent.lock import BoundedSemaphore
from werkzeug.exceptions import ServiceUnavailable
from werkzeug.security import check_password_hash

from greenstalk_server.config.tables.roles import ADMIN, OPERATOR, VIEWER, User
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.runtime.threads import run_in_thread
from greenstalk_server.web.options import Provider, WebOptions

SHARED: Final = " password"
"""The source of an account with a shared password is its role, followed by this text."""

OPEN_ID: Final = "OpenID Connect"
"""Source of an account of the identity provider."""

USER: Final = "user"
"""Source of an account of the configuration file."""

MAX_HASHING: Final = 1
"""Password hashes verified at the same time; more would take CPU from the queue."""

MAX_WAITING: Final = 20
"""Sign-ins that wait for a free thread; more are refused."""

REMEMBERED_TIME: Final = 300 * SECOND
"""Nanoseconds for which a verified password is not hashed again."""

MAX_REMEMBERED: Final = 1000

MAX_PASSWORD_LENGTH: Final = 1000
"""Maximum characters of a password."""


@dataclass(frozen=True, slots=True)
class Account:
    """A verified identity.

    name            the user name. With a shared password, users may enter any name.
    roles           names of its roles.
    source          the kind of its credential: `admin password`, `user`, `OpenID Connect`.
    """

    name: str
    roles: tuple[str, ...]
    source: str

    @property
    def is_shared(self) -> bool:
        """Whether the credential is a shared password, which any number of users may know."""
        return self.source.endswith(SHARED)


class Accounts:
    """The accounts of one server."""

    def __init__(self, options: WebOptions, clock: Clock) -> None:
        self._clock: Clock = clock
        self._admin_name: bytes | None = digest(options.user) if options.user else None
        self._shared: Mapping[str, bytes] = {
            role: digest(password)
            for role, password in (
                (ADMIN, options.password),
                (OPERATOR, options.operator_password),
                (VIEWER, options.viewer_password),
            )
            if password
        }
        self._oidc: Provider | None = options.oidc
        self._users: Mapping[str, User] = {user.name: user for user in options.users}
        self._unknown: str = next((user.password_hash for user in options.users), "")
        self._hashing: BoundedSemaphore = BoundedSemaphore(MAX_HASHING)
        self._waiting: int = 0
        self._key: bytes = secrets.token_bytes(32)
        self._remembered: OrderedDict[bytes, int] = OrderedDict()

    @property
    def have_passwords(self) -> bool:
        """Whether there is any password."""
        return bool(self._shared or self._users)

    @property
    def exist(self) -> bool:
        """Whether there is a password or an identity provider, so that principals must sign in."""
        return self.have_passwords or self._oidc is not None

    @property
    def need_name(self) -> bool:
        """Whether some passwords require a certain user name."""
        return self._admin_name is not None or bool(self._users)

    def has_shared(self, role: str) -> bool:
        """Return whether there is a shared password for *role*."""
        return role in self._shared

    def verify(self, name: str, password: str) -> Account | None:
        """Return the account with *name* and *password*, or None. May switch.

        A user's name is valid only with that user's own password, so that no other user can act under the name.

        Raise ServiceUnavailable if too many passwords are being verified.
        """
        user = self._users.get(name)
        if user is None:
            if (role := self._shared_role(name, password)) is not None:
                return Account(name, (role,), f"{role}{SHARED}")
            if self._users:
                self._is_hash_of(self._unknown, name, password)  # as slow as for a user, to hide which names exist
            return None
        if not self._is_hash_of(user.password_hash, name, password):
            return None
        return Account(user.name, (user.role,), USER)

    def credential(self, account: Account) -> str:
        """Return a secret that changes when the credential of *account* changes; empty if it no longer exists."""
        if account.source == USER:
            user = self._users.get(account.name)
            return user.password_hash if user is not None and (user.role,) == account.roles else ""
        if account.source == OPEN_ID:
            return f"{self._oidc.issuer} {self._oidc.client_id}" if self._oidc is not None else ""
        role = account.source.removesuffix(SHARED)
        return self._shared[role].hex() if role in self._shared else ""

    def _shared_role(self, name: str, password: str) -> str | None:
        """Return the role of the shared *password*, or None."""
        given = digest(password)
        # Digests, as compare_digest takes constant time only for equal lengths. All of them are always compared.
        is_named = self._admin_name is None or hmac.compare_digest(digest(name), self._admin_name)
        found = [role for role, wanted in self._shared.items() if hmac.compare_digest(given, wanted)]
        return next((role for role in found if role != ADMIN or is_named), None)

    def _is_hash_of(self, wanted: str, name: str, password: str) -> bool:
        """Return whether *wanted* is the hash of *password*. May switch."""
        text = b"\0".join(part.encode(errors="surrogateescape") for part in (wanted, name, password))
        key, now = blake2b(text, key=self._key).digest(), self._clock()
        if self._remembered.get(key, 0) > now:
            return True
        if len(password) > MAX_PASSWORD_LENGTH:
            return False
        if self._waiting >= MAX_WAITING:
            raise ServiceUnavailable("Too many users are signing in. Try again in a moment.", retry_after=1)
        self._waiting += 1
        try:
            with self._hashing:
                is_right = bool(run_in_thread(_verify, wanted, password))
        finally:
            self._waiting -= 1
        if is_right and name in self._users:
            self._remembered[key] = now + REMEMBERED_TIME
            self._remembered.move_to_end(key)
            if len(self._remembered) > MAX_REMEMBERED:
                self._remembered.popitem(last=False)
        return is_right


def digest(text: str) -> bytes:
    """Return a digest of *text* with a fixed length, for constant-time comparisons."""
    return sha256(text.encode(errors="surrogateescape")).digest()


def _verify(wanted: str, password: str) -> bool:
    try:
        return check_password_hash(wanted, password)
    except ValueError:  # a method or parameters that this Python does not support, or a lone surrogate
        return False
