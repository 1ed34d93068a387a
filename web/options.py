"""What an operator may set about the dashboard, as one value."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network


@dataclass(frozen=True, slots=True)
class WebOptions:
    """What is in force.

    user            name that goes with *password*; None or empty for any.
    password        of admins, asked for by HTTP basic auth; None or empty is no such password.
    viewer_password of those who may look and change nothing, with any name. Without either password the dashboard is
                    open, and whoever reaches it is an admin. With this one alone nobody is.
    api_token       bearer token by which programs use `/api/v1` as admins; the pages ask for passwords only.
    api_viewer_token    the same for programs that may look and change nothing. With one of the two the API is never
                    open to all.
    metrics_token   bearer token that opens `/metrics` and nothing else; with one that is never open to all.
    is_read_only    nobody changes anything.
    hides_bodies    nobody sees what is in jobs.
    hosts           names by which it may be visited, besides those that `guard.Guard` allows anyway: the host it is
                    bound to.
    url_prefix      path under which it is served, such as `/queue`; empty for the root.
    trusted_proxies whose X-Forwarded- headers count.
    directory       where it keeps the audit log and its own document; None for memory only.
    beanstalk       where the queue listens, as an operator writes it (`127.0.0.1:11300`, `[::1]:11300`, `unix:PATH`):
                    shown in the examples of an empty queue.
    """

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    viewer_password: str | None = field(default=None, repr=False)
    api_token: str | None = field(default=None, repr=False)
    api_viewer_token: str | None = field(default=None, repr=False)
    metrics_token: str | None = field(default=None, repr=False)
    is_read_only: bool = False
    hides_bodies: bool = False
    hosts: Collection[str] = ()
    url_prefix: str = ""
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    directory: str | None = None
    beanstalk: str = "127.0.0.1:11300"
