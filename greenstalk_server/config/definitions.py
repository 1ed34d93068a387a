"""DEFINITIONS: the only description of each option.

The command line, the environment, the configuration file, `--help`, `greenstalk-server config` and
docs/configuration.md all read it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from greenstalk_server.config.tables.config_tables import one_of
from greenstalk_server.config.types import (
    ADDRESSES,
    ALERTS,
    BOOLEAN,
    COUNT,
    DIRECTORY,
    FILE,
    LEASE,
    LINK_ADDRESS,
    LISTEN_ADDRESS,
    LOG_FORMAT,
    LOG_LEVEL,
    LOG_LEVELS,
    MEMORY_LIMIT,
    NAME,
    NETWORKS,
    NEVER,
    PATH_PREFIX,
    PINS,
    POLICIES,
    PORT,
    POSTGRESQL_URL,
    PROCESSES,
    RATE,
    ROLES,
    RULES,
    SECRET,
    SERVERS,
    SESSION_TIME,
    SHARDS,
    SIZE,
    SIZE_LIMIT,
    SYNC_INTERVAL,
    TEXT,
    THRESHOLDS,
    TIMEOUT,
    USERS,
    WEB_ADDRESS,
    Type,
)
from greenstalk_server.runtime.exit_codes import EXIT_JOURNAL, EXIT_LISTEN, EXIT_USAGE

LARGEST_JOB_SIZE: Final = 2**30
"""Bytes: beanstalkd's own maximum for -z."""


class Kind(Enum):
    """The effect of a flag on the command line."""

    VALUE = auto()
    """Takes a value, and sets the field of the option to that value."""
    SWITCH = auto()
    """Takes no value; sets the field of the option to the value of the text `implies`."""
    REMOVED = auto()
    """Only logs a warning; older versions of beanstalkd had the flag."""
    VERSION = auto()
    HELP = auto()


@dataclass(frozen=True, slots=True)
class Definition:
    """One option.

    flags      command-line flags; empty if the option has none.
    help       what the option does, for `--help` and docs/configuration.md.
    field      the field of Options that it sets, or `limits.` and a field of Limits; "" if none.
    variable   the environment variable that sets it; "" if none.
    key        the key in the configuration file, as TABLE.KEY if it is in a table; "" if none.
    implies    the value, as text, to which a switch sets its field.
    default    the default value as text, in the flag's unit. If it is None, the field's default is None, or is in
               another definition of the same field.
    exit_code  the exit code of the server if the value is invalid.
    is_cumulative  whether a repeated flag appends its values to the field; otherwise the last one wins.
    """

    flags: tuple[str, ...]
    help: str
    field: str = ""
    kind: Kind = Kind.VALUE
    metavar: str = ""
    variable: str = ""
    key: str = ""
    type: Type = TEXT
    implies: str = ""
    default: str | None = None
    exit_code: int = EXIT_USAGE
    is_cumulative: bool = False

    @property
    def is_secret(self) -> bool:
        """Whether the value must never be shown."""
        return self.type.is_secret


def defaults() -> dict[str, Any]:
    """Return the default of each field that DEFINITIONS set."""
    values: dict[str, Any] = {row.field: None for row in DEFINITIONS if row.field}
    values.update({row.field: row.type.read(row.default) for row in DEFINITIONS if row.default is not None})
    return values


def _option(
    flags: tuple[str, ...],
    help: str,
    key: str,
    type: Type = TEXT,
    default: str | None = None,
    *,
    field: str = "",
    metavar: str = "",
    **others: Any,
) -> Definition:
    """Return the definition of an option with a *key* and a variable; *others* are further fields of Definition.

    The default name of the variable comes from the first flag, or from *key* if that flag is one letter. The default
    field is *key*.
    """
    long_flag = next((flag for flag in flags if flag.startswith("--")), key)
    variable = "GREENSTALK_" + re.sub("[.-]", "_", long_flag.removeprefix("--")).upper()
    if not field:
        field = key if key.startswith("limits.") else key.replace(".", "_")
    metavar = metavar or (type.metavar if flags else "")
    own = {"field": field, "metavar": metavar, "variable": variable, "key": key, "type": type, "default": default}
    return Definition(flags, help, **{**own, **others})


def _switch(flag: str, help: str, key: str, *, field: str = "") -> Definition:
    """Return the definition of a switch that sets its field to True; the default is False."""
    return _option((flag,), help, key, BOOLEAN, "no", field=field, kind=Kind.SWITCH, implies="yes")


def _section(key: str, type: Type, help: str) -> Definition:
    """Return the definition of the tables *key*, which only the configuration file can have."""
    return Definition((), help, field=key, key=key, type=type, default="")


DEFINITIONS: Final = (
    _option(
        ("-b",),
        "keep the journal in directory DIR, which must exist, and restore its jobs at startup",
        "data_dir",
        DIRECTORY,
        exit_code=EXIT_JOURNAL,
    ),
    _option(
        ("-f",),
        f"sync the journal to disk at most once per MS milliseconds; 0: at every write; {NEVER}: as -F",
        "sync_ms",
        SYNC_INTERVAL,
        "50",
        field="sync_interval_ns",
    ),
    Definition(
        ("-F",),
        "never sync the journal; the last of -f and -F wins",
        field="sync_interval_ns",
        kind=Kind.SWITCH,
        type=SYNC_INTERVAL,
        implies=NEVER,
    ),
    _option(("-s",), "size of one journal file", "journal_file_size", SIZE, "10485760"),
    _option(
        ("--processes",),
        "run N processes on this machine, behind one port; each has a part of the tubes, and the directory of -b"
        " fixes N. With --journal, each is a server of the queue in that database",
        "processes",
        PROCESSES,
        "1",
    ),
    _option(
        ("--pin",),
        "with --processes or --shards: keep the tubes whose names match PATTERN, in which * matches any"
        " characters, on the shard SHARD, counted from 0; several patterns are separated by commas; may be repeated",
        "pins",
        PINS,
        "",
        variable="GREENSTALK_PINS",
        is_cumulative=True,
    ),
    _option(
        ("--journal",),
        "keep the journal in the PostgreSQL database at URL instead of a directory; of the servers that share it,"
        " one is active and the others stand by",
        "journal",
        POSTGRESQL_URL,
        variable="DATABASE_URL",
    ),
    _option(
        ("--journal-name",),
        "name of the journal in that database; servers with the same name take over from each other",
        "journal_name",
        NAME,
        "default",
    ),
    _option(
        ("--lease",),
        "let a standby take over when the database has not heard from the active server for SECONDS",
        "lease_seconds",
        LEASE,
        "2",
        field="lease_ns",
        variable="GREENSTALK_LEASE_SECONDS",
    ),
    _option(
        ("--shards",),
        "divide the queue in that database into N shards, so that N servers serve it at the same time; fixed when the"
        " queue is made",
        "shards",
        SHARDS,
        "1",
    ),
    _option(
        ("--link",),
        "listen on ADDR for the other servers of the queue in that database, so that clients of every server see the"
        " whole queue",
        "link",
        LINK_ADDRESS,
    ),
    _option(
        ("--link-listen",),
        "listen on ADDR for those servers, such as 0.0.0.0:11310, if they reach this one at the ADDR of --link but it"
        " cannot listen there",
        "link_listen",
        LISTEN_ADDRESS,
    ),
    _option(
        ("--link-cert",),
        "use TLS on the connections to the other servers, with the certificate chain in FILE (PEM), which must be for"
        " servers and clients; needed unless --link is a loopback address",
        "link_cert",
        FILE,
    ),
    _option(
        ("--link-key",),
        "the private key of --link-cert is in FILE; by default in the same file as the certificate",
        "link_key",
        FILE,
    ),
    _option(
        ("--link-ca",),
        "accept only servers whose certificate is signed by an authority in FILE (PEM), which should sign no others",
        "link_ca",
        FILE,
    ),
    _option(
        ("--outage-wait",),
        "with --link or --processes, let a command wait up to SECONDS for a shard that no process leads; then close its"
        " connection",
        "outage_wait_seconds",
        LEASE,
        "30",
        field="outage_wait_ns",
    ),
    _option(
        ("-l",),
        "listen on ADDR: an address or a host name, optionally with :PORT, or unix:PATH for a Unix socket (a stale one"
        " at PATH is replaced); the prefix plain: disables TLS; may be repeated, or be a comma-separated list",
        "listen",
        ADDRESSES,
        default="0.0.0.0",  # noqa: S104  beanstalkd's default
        is_cumulative=True,
    ),
    _option(
        ("-p",),
        "listen on PORT; 0: any free port",
        "port",
        PORT,
        "11300",
        variable="GREENSTALK_LISTEN_PORT",  # Kubernetes sets GREENSTALK_PORT to a URL for a service named greenstalk
        exit_code=EXIT_LISTEN,  # beanstalkd finds a bad port only when it binds
    ),
    _option(("-u",), "become USER, with the groups of that user, after the sockets are bound", "user", metavar="USER"),
    _option(
        ("-z",),
        f"maximum size of a job body; BYTES above {LARGEST_JOB_SIZE} is reduced to that, as in beanstalkd",
        "max_job_size",
        SIZE,
        "65535",
    ),
    Definition(("-c",), "accepted, without effect: the journal is always compacted", kind=Kind.REMOVED),
    Definition(("-n",), "accepted, without effect: the journal is always compacted", kind=Kind.REMOVED),
    Definition(
        ("-V",),
        "log more, as --log-level debug; may be repeated",
        field="log_level",
        kind=Kind.SWITCH,
        type=LOG_LEVEL,
        implies="debug",
    ),
    Definition(("-v", "--version"), "print the version and exit", kind=Kind.VERSION),
    Definition(("-h", "--help"), "print this help and exit", kind=Kind.HELP),
    Definition(
        ("--config",),
        "read options from FILE, in TOML; flags and variables take precedence",
        field="config_file",
        metavar="FILE",
        variable="GREENSTALK_CONFIG",
        type=FILE,
    ),
    _switch(
        "--strict-recovery",
        "refuse to start on a damaged journal; by default the server starts with everything that is intact",
        "strict_recovery",
    ),
    _switch(
        "--strict-protocol",
        "turn off the protocol's extensions; every line gets the reply that beanstalkd 1.13 gives",
        "strict_protocol",
    ),
    _switch(
        "--extended-stats",
        "send every client the extended keys of `stats`, `stats-tube` and `stats-job`, as if it had sent `stats-mode"
        " extended`",
        "extended_stats",
    ),
    _option(
        ("--tls-cert",),
        "use TLS on every TCP port of the beanstalk protocol, with the certificate chain in FILE (PEM)",
        "tls.cert",
        FILE,
    ),
    _option(
        ("--tls-key",), "private key of the certificate; by default it is in the certificate's file", "tls.key", FILE
    ),
    _option(
        ("--tls-client-ca",),
        "accept over TLS only clients with a certificate from an authority in FILE (PEM)",
        "tls.client_ca",
        FILE,
    ),
    _section(
        "access",
        RULES,
        "rules that say which clients may use which tubes, in the configuration file only; without rules, all clients"
        " may use all tubes",
    ),
    _section(
        "policies",
        POLICIES,
        "settings for the tubes whose names match a pattern, in the configuration file only; SIGHUP reloads them",
    ),
    _section(
        "attention",
        THRESHOLDS,
        "thresholds of the conditions that need attention, for all tubes or by pattern, in the configuration file only;"
        " SIGHUP reloads them",
    ),
    _section(
        "alerts",
        ALERTS,
        "receivers of alerts about the conditions that need attention, in the configuration file only; SIGHUP reloads"
        " them",
    ),
    _section(
        "servers",
        SERVERS,
        "other servers that the dashboard shows, in the configuration file only; SIGHUP reloads them",
    ),
    _option(
        ("--max-connections",),
        "reject new connections of the beanstalk protocol above N",
        "limits.connections",
        COUNT,
        "0",
    ),
    _option(
        ("--max-connections-per-address",),
        "reject new connections of the beanstalk protocol above N from the same IP address",
        "limits.connections_per_address",
        COUNT,
        "0",
    ),
    _option(("--max-jobs",), "answer OUT_OF_MEMORY to puts while there are N jobs", "limits.jobs", COUNT, "0"),
    _option(
        ("--max-bytes",),
        "answer OUT_OF_MEMORY to puts that would raise the total size of all job bodies above BYTES",
        "limits.bytes",
        SIZE_LIMIT,
        "0",
    ),
    _option(
        ("--memory-limit",),
        "keep the process within BYTES of memory: with -b, evict from memory the bodies that will be needed last (they"
        " stay on disk); without -b, or when that does not free enough, answer OUT_OF_MEMORY to puts",
        "limits.memory",
        MEMORY_LIMIT,
        "0",
        field="memory_limit",
    ),
    _option(
        ("--max-tube-jobs",), "answer OUT_OF_MEMORY to puts while the tube has N jobs", "limits.tube_jobs", COUNT, "0"
    ),
    _option(
        ("--max-tube-bytes",),
        "answer OUT_OF_MEMORY to puts that would raise the total size of job bodies in the tube above BYTES",
        "limits.tube_bytes",
        SIZE_LIMIT,
        "0",
    ),
    _option(
        ("--max-tubes",),
        "answer OUT_OF_MEMORY to a use or watch that would create a tube while there are N",
        "limits.tubes",
        COUNT,
        "0",
    ),
    _option(
        ("--max-watched",),
        "answer OUT_OF_MEMORY to a watch on a connection that watches N tubes; 0: no limit",
        "limits.watched",
        COUNT,
        "10240",
    ),
    _option(
        ("--max-rate",),
        "limit each connection to N commands per second: above that rate, the server pauses reading",
        "limits.rate",
        RATE,
        "0",
    ),
    _option(
        ("--max-output",),
        "stop reading a connection while BYTES of its replies wait for the disk",
        "limits.output",
        SIZE_LIMIT,
        "1048576",
    ),
    _option(
        ("--idle-timeout",),
        "close a connection that has sent nothing for SECONDS, unless it waits for a job or holds one",
        "limits.idle_timeout",
        TIMEOUT,
        "0",
    ),
    _option(
        ("--command-timeout",),
        "close a connection that takes longer than SECONDS to send a command and its body",
        "limits.command_timeout",
        TIMEOUT,
        "0",
    ),
    _option(
        ("--dead-peer-timeout",),
        "close a connection whose peer has not answered TCP for SECONDS",
        "limits.dead_peer_timeout",
        TIMEOUT,
        "300",
    ),
    _option(("--log-level",), f"log events of LEVEL and above: {one_of(LOG_LEVELS)}", "log_level", LOG_LEVEL, "info"),
    _option(
        ("--log-format",),
        "log as text, one line per event, or as json, one object per line",
        "log_format",
        LOG_FORMAT,
        "text",
    ),
    _option(
        ("--web-host",),
        "serve the dashboard on ADDR; requires a password if ADDR is not loopback",
        "web.host",
        metavar="ADDR",
        default="127.0.0.1",
    ),
    _option(
        ("--web-port",), "serve the dashboard on PORT; 0: any free port", "web.port", PORT, "8080", variable="PORT"
    ),
    _option(
        ("--no-web",),
        "do not serve the dashboard",
        "web.enabled",
        BOOLEAN,
        "yes",
        variable="GREENSTALK_WEB_ENABLED",
        kind=Kind.SWITCH,
        implies="no",
    ),
    _option(
        ("--url-prefix",),
        "serve the dashboard under PATH, such as /queue, behind a proxy that passes paths on unchanged",
        "web.url_prefix",
        PATH_PREFIX,
        "",
        field="url_prefix",
    ),
    _option(
        ("--trusted-proxies",),
        "trust the X-Forwarded- headers (-For, -Proto, -Host, -Prefix) of these addresses and networks",
        "web.trusted_proxies",
        NETWORKS,
        "",
        field="trusted_proxies",
    ),
    _switch("--read-only", "make the dashboard read-only for everyone", "web.read_only", field="read_only"),
    _switch("--hide-bodies", "hide job bodies on the dashboard from everyone", "web.hide_bodies", field="hide_bodies"),
    _option(
        (), "user name that the dashboard requires with the admin password; by default any name is accepted", "web.user"
    ),
    _option((), "admin password of the dashboard; admins may change things", "web.password", SECRET),
    _option((), "file with the admin password on its first line, instead of the variable", "web.password_file"),
    _option(
        (),
        "operator password of the dashboard; operators act on jobs and pause tubes, but set no policies",
        "web.operator_password",
        SECRET,
        field="operator_password",
    ),
    _option(
        (),
        "viewer password of the dashboard; viewers cannot change anything, and without an admin password no user can",
        "web.viewer_password",
        SECRET,
        field="viewer_password",
    ),
    _option(
        (),
        "bearer token for programs that use the API as admins; the pages still require a password",
        "web.api_token",
        SECRET,
        field="api_token",
        variable="GREENSTALK_API_TOKEN",
    ),
    _option(
        (),
        "bearer token for programs that use the API as operators",
        "web.api_operator_token",
        SECRET,
        field="api_operator_token",
        variable="GREENSTALK_API_OPERATOR_TOKEN",
    ),
    _option(
        (),
        "bearer token for programs that use the API as viewers",
        "web.api_viewer_token",
        SECRET,
        field="api_viewer_token",
        variable="GREENSTALK_API_VIEWER_TOKEN",
    ),
    _option(
        (),
        "bearer token for /metrics alone; with it, /metrics requires the token or the dashboard's password",
        "web.metrics_token",
        SECRET,
        field="metrics_token",
        variable="GREENSTALK_METRICS_TOKEN",
    ),
    _option(
        (),
        "time without use after which a user must sign in again, from a minute to a year",
        "web.session_idle",
        SESSION_TIME,
        "12h",
        field="session_idle_ns",
        variable="GREENSTALK_SESSION_IDLE",
    ),
    _option(
        (),
        "time after which a user must sign in again even if the session is used, from a minute to a year",
        "web.session_lifetime",
        SESSION_TIME,
        "7d",
        field="session_lifetime_ns",
        variable="GREENSTALK_SESSION_LIFETIME",
    ),
    _section(
        "roles",
        ROLES,
        "roles of the dashboard's users by tube pattern, in the configuration file only; viewer, operator and admin"
        " always exist",
    ),
    _section(
        "users", USERS, "users of the dashboard with a password hash and a role each, in the configuration file only"
    ),
    _option(
        (),
        "address of an OpenID Connect provider with which users sign in; needs the packages of greenstalk-server[oidc]",
        "oidc.issuer",
        WEB_ADDRESS,
    ),
    _option((), "id of this dashboard at the provider", "oidc.client_id"),
    _option(
        (), "secret of this dashboard at the provider; without one, the client is public", "oidc.client_secret", SECRET
    ),
    _option((), "file with this secret on its first line, instead of the variable", "oidc.client_secret_file"),
    _option((), "scopes to request from the provider", "oidc.scopes", default="openid profile email"),
    _option(
        (),
        "claim with the groups of the user; a user has each role that lists one of them",
        "oidc.groups_claim",
        default="groups",
    ),
    _option((), "claim with the name of the user", "oidc.name_claim", default="preferred_username"),
    _option((), "name of the provider on the sign-in page", "oidc.label", NAME, "single sign-on"),
    _option(
        (),
        "1 to serve the dashboard without a password on any address",
        "web.allow_insecure",
        BOOLEAN,
        "no",
        field="allow_insecure",
        variable="GREENSTALK_ALLOW_INSECURE",
    ),
)
