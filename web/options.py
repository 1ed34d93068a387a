"""The dashboard's options, as one value."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network

from greenstalk_server.config.tables.peers import Peer
from greenstalk_server.config.tables.receivers import Receiver
from greenstalk_server.config.tables.roles import BUILT_IN_ROLES, Role, User
from greenstalk_server.config.tables.thresholds import ThresholdSet
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.limits import Limits


@dataclass(frozen=True, slots=True)
class Provider:
    """An OpenID Connect provider.

    issuer          its address, under which it publishes its configuration.
    client_id, client_secret    identify the dashboard at the provider. Without a secret the client is public.
    scopes          to request, separated by spaces.
    groups_claim, name_claim    claims with the groups and with the name of a user.
    label           its name on the sign-in page.
    """

    issuer: str
    client_id: str
    client_secret: str | None = field(default=None, repr=False)
    scopes: str = "openid profile email"
    groups_claim: str = "groups"
    name_claim: str = "preferred_username"
    label: str = "single sign-on"


@dataclass(frozen=True, slots=True)
class WebOptions:
    """Options in effect.

    user            user name that *password* requires; None or empty accepts any name.
    password        password of admins for HTTP basic auth; None or empty for none.
    viewer_password password for read-only access, with any user name. Without any password the dashboard is open,
                    and every principal is an admin. Without an admin password there are no admins.
    operator_password   password of operators, with any user name. Operators act on jobs and pause tubes.
    api_token       bearer token for admin access to `/api/v1`. Pages accept passwords only.
    api_operator_token  bearer token for access to `/api/v1` as an operator.
    api_viewer_token    bearer token for read-only access to `/api/v1`. With any token the API is not open.
    roles           roles by name, with the built-in ones.
    users           users with passwords of their own.
    metrics_token   bearer token that is valid only for `/metrics`. With it `/metrics` is not open.
    oidc            the identity provider with which users sign in; None without one.
    session_idle_time, session_lifetime     nanoseconds until an unused session ends, and until any session ends.
    is_read_only    refuse every change.
    hides_bodies    hide job bodies from everybody.
    hosts           accepted Host names besides those that `guard.Guard` always accepts: the host it is bound to.
    url_prefix      path under which the dashboard is served, such as `/queue`; empty for the root.
    trusted_proxies networks of proxies whose X-Forwarded- headers are trusted.
    directory       directory of the audit log and the document of `store.store`; None to keep both in memory.
    beanstalk       address of the queue as an operator writes it (`127.0.0.1:11300`, `[::1]:11300`, `unix:PATH`),
                    shown in the examples of an empty queue.
    limits          limits on jobs, tubes and connections.
    thresholds      returns the thresholds of conditions that need attention, which may change.
    receivers       returns the receivers of alerts about these conditions, which may change.
    peers           returns the other servers to show, which may change.
    """

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    viewer_password: str | None = field(default=None, repr=False)
    operator_password: str | None = field(default=None, repr=False)
    api_token: str | None = field(default=None, repr=False)
    api_operator_token: str | None = field(default=None, repr=False)
    api_viewer_token: str | None = field(default=None, repr=False)
    metrics_token: str | None = field(default=None, repr=False)
    roles: Mapping[str, Role] = field(default_factory=lambda: BUILT_IN_ROLES)
    users: Collection[User] = ()
    oidc: Provider | None = None
    session_idle_time: int = 12 * 3600 * SECOND
    session_lifetime: int = 7 * 86400 * SECOND
    is_read_only: bool = False
    hides_bodies: bool = False
    hosts: Collection[str] = ()
    url_prefix: str = ""
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    directory: str | None = None
    beanstalk: str = "127.0.0.1:11300"
    limits: Limits = field(default_factory=Limits)
    thresholds: Callable[[], ThresholdSet] = ThresholdSet
    receivers: Callable[[], tuple[Receiver, ...]] = tuple
    peers: Callable[[], tuple[Peer, ...]] = tuple
