"""The options in force, as one frozen `Options`.

This module does no I/O. It does not check whether an address can be bound, a directory opened, or a user switched to:
the modules that use these values check them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from operator import attrgetter
from typing import Any, Final, Self

from greenstalk_server.config.definitions import DEFINITIONS
from greenstalk_server.config.tables.peers import Peer
from greenstalk_server.config.tables.receivers import Receiver
from greenstalk_server.config.tables.roles import Role, User
from greenstalk_server.config.tables.targets import ENVIRONMENT
from greenstalk_server.config.tables.thresholds import ThresholdSet
from greenstalk_server.core.limits import Limits
from greenstalk_server.core.policies.policy import Policy
from greenstalk_server.core.tube_shards import Pin
from greenstalk_server.protocol.access import Rule
from greenstalk_server.runtime.exit_codes import EXIT_USAGE, StartError

PROGRAM: Final = "greenstalk-server"

_LIMITS: Final = "limits."
"""Prefix of the fields in DEFINITIONS that are fields of Limits."""


class UsageError(StartError):
    """An option is invalid; the message has its name, its value and the allowed values."""

    def __init__(self, message: str, exit_code: int = EXIT_USAGE) -> None:
        super().__init__(message, exit_code)


@dataclass(frozen=True, slots=True)
class Options:
    """The options in force. DEFINITIONS describes each field; a field without a value or a default is None.

    sync_interval_ns  minimum nanoseconds between two fsyncs; 0: fsync at every write; None: never.
    lease_ns          nanoseconds that a leader may lead without reaching the database; then a standby may take over.
    link, link_listen  address at which the other servers of a queue in a database reach this one, and the address at
                       which it listens for them; None: the same.
    outage_wait_ns    nanoseconds that a command waits for a shard that no process leads.
    journal_file_size, max_job_size     bytes.
    memory_limit      maximum bytes of memory of the process; 0: no limit.
    listen            host names or addresses, optionally with a port, or `unix:PATH`; the prefix `plain:` disables
                      TLS even if there is a certificate.
    port, web_port    0: any free port.
    web_password      admin password of the dashboard. Without any password, everyone who reaches the dashboard is an
                      admin.
    session_idle_ns, session_lifetime_ns  nanoseconds after which an unused session ends, and after which every session
                                          ends.
    roles             roles of the dashboard's users by name, with the built-in ones.
    oidc_scopes       scopes to request, separated by spaces.
    url_prefix        path of the dashboard, such as `/queue`; empty: the root.
    origins           where each field was set: a flag, a variable, or FILE:LINE. Fields not in it have defaults.
    warnings          messages about doubtful options.
    """

    config_file: str | None
    data_dir: str | None
    sync_interval_ns: int | None
    journal_file_size: int
    listen: tuple[str, ...]
    port: int
    user: str | None
    max_job_size: int
    log_level: str
    log_format: str
    strict_recovery: bool
    strict_protocol: bool
    extended_stats: bool
    processes: int
    pins: tuple[Pin, ...]
    journal: str | None = field(repr=False)
    journal_name: str
    lease_ns: int
    shards: int
    link: str | None
    link_listen: str | None
    link_cert: str | None
    link_key: str | None
    link_ca: str | None
    outage_wait_ns: int
    tls_cert: str | None
    tls_key: str | None
    tls_client_ca: str | None
    access: tuple[Rule, ...]
    policies: tuple[Policy, ...]
    attention: ThresholdSet
    alerts: tuple[Receiver, ...]
    servers: tuple[Peer, ...]
    limits: Limits
    memory_limit: int
    web_host: str
    web_port: int
    web_enabled: bool
    web_user: str | None
    web_password: str | None = field(repr=False)
    web_password_file: str | None
    operator_password: str | None = field(repr=False)
    viewer_password: str | None = field(repr=False)
    api_token: str | None = field(repr=False)
    api_operator_token: str | None = field(repr=False)
    api_viewer_token: str | None = field(repr=False)
    metrics_token: str | None = field(repr=False)
    session_idle_ns: int
    session_lifetime_ns: int
    roles: Mapping[str, Role]
    users: tuple[User, ...]
    oidc_issuer: str | None
    oidc_client_id: str | None
    oidc_client_secret: str | None = field(repr=False)
    oidc_client_secret_file: str | None
    oidc_scopes: str
    oidc_groups_claim: str
    oidc_name_claim: str
    oidc_label: str
    read_only: bool
    hide_bodies: bool
    url_prefix: str
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...]
    allow_insecure: bool
    origins: Mapping[str, str]
    warnings: tuple[str, ...]

    @property
    def shard_count(self) -> int:
        """Number of shards of the queue, one for each process or as many as the database has."""
        return self.processes if self.journal is None else self.shards

    @property
    def needs_login(self) -> bool:
        """Whether the dashboard has a password, users or an identity provider."""
        passwords = self.web_password, self.web_password_file, self.operator_password, self.viewer_password
        return any(passwords) or bool(self.users) or self.oidc_issuer is not None

    @property
    def has_admin(self) -> bool:
        """Whether anybody can be an admin of a dashboard that requires a sign-in."""
        admins = {name for name, role in self.roles.items() if role.rights.is_admin}
        groups = any(self.roles[name].groups for name in admins) and self.oidc_issuer is not None
        return bool(
            self.web_password or self.web_password_file or groups or {user.role for user in self.users} & admins
        )

    @classmethod
    def from_fields(cls, values: Mapping[str, Any], origins: Mapping[str, str]) -> Self:
        """Return the options with *values*, which has every field of DEFINITIONS."""
        own = {name: value for name, value in values.items() if not name.startswith(_LIMITS)}
        limits = {name.removeprefix(_LIMITS): values[name] for name in values.keys() - own.keys()}
        return cls(**own, limits=Limits(**limits), origins=origins, warnings=())

    def value_of(self, field: str) -> Any:
        """Return the value of *field*, a field of DEFINITIONS."""
        return attrgetter(field)(self)

    @property
    def durability(self) -> str:
        """Return the place and the durability of the jobs, for the output at startup."""
        if self.journal is not None:
            where = f"in PostgreSQL as journal {self.journal_name}"
            if self.link is not None or self.processes > 1:
                return f"kept {where}, and are as safe as that database; shards: {self.shards}"
            return f"kept {where}, and are as safe as that database; one server at a time is active"
        if self.data_dir is None:
            return "in memory only; they do not survive a restart"
        interval = self.sync_interval_ns
        if interval is None:
            synced = "the journal is never synced (-F)"
        elif interval == 0:
            synced = "each is on disk before it is acknowledged (-f 0)"
        else:
            synced = f"on disk within {interval // 1_000_000} ms (-f)"
        return f"kept in {self.data_dir}, and survive a restart; {synced}"

    def label_of(self, field: str) -> str:
        """Return the name with which the operator set *field*: `--web-port`, `PORT` or `FILE:LINE: web.port`.

        If the field has its default, return a name with which it can be set.
        """
        row = next(row for row in DEFINITIONS if row.field == field)
        origin = self.origins.get(field)
        if origin is None:
            return row.flags[0] if row.flags else row.variable or row.key
        is_file = origin != row.variable and not origin.startswith("-")
        return f"{origin}: {row.key}" if is_file else origin


def secret_variables(alerts: Sequence[Receiver], servers: Sequence[Peer]) -> list[str]:
    """Return the environment variables in which the receivers of *alerts* and the other *servers* have secrets."""
    targets = [receiver.target for receiver in alerts] + [peer.target for peer in servers]
    places = [place for target in targets for place in (target.secret_url, target.token)]
    places += [receiver.secret for receiver in alerts]
    return [place.place for place in places if place is not None and place.kind == ENVIRONMENT]
