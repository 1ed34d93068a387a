"""DEFINITIONS: the only description of each option.

The command line, the environment, the configuration file, `--help`, `greenstalk-server config` and
docs/configuration.md all read it.
"""

from __future__ import annotations

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
    LEASE,
    LOG_FORMAT,
    LOG_LEVEL,
    LOG_LEVELS,
    MEMORY_LIMIT,
    NAME,
    NETWORKS,
    NEVER,
    PATH_PREFIX,
    POLICIES,
    PORT,
    POSTGRESQL_URL,
    RATE,
    ROLES,
    RULES,
    SECRET,
    SERVERS,
    SESSION_TIME,
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
from greenstalk_server.runtime.exit_codes import EXIT_BINLOG, EXIT_LISTEN, EXIT_USAGE

LARGEST_JOB_SIZE: Final = 2**30
"""Bytes: beanstalkd's own maximum for -z."""


class Kind(Enum):
    """The effect of a flag on the command line."""

    VALUE = auto()
    """Takes a value, and sets its field to it."""
    SWITCH = auto()
    """Takes no value; sets its field to the value of the text `implies`."""
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
    is_secret  whether the value must never be shown.
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
    is_secret: bool = False
    is_cumulative: bool = False


def defaults() -> dict[str, Any]:
    """Return the default of each field that DEFINITIONS set."""
    values: dict[str, Any] = {row.field: None for row in DEFINITIONS if row.field}
    values.update({row.field: row.type.read(row.default) for row in DEFINITIONS if row.default is not None})
    return values


def _off_by_default(flag: str, help: str, *, field: str, variable: str, key: str) -> Definition:
    """Return the definition of a switch that sets its field to True; the default is False."""
    return Definition(
        (flag,),
        help,
        field=field,
        kind=Kind.SWITCH,
        variable=variable,
        key=key,
        type=BOOLEAN,
        implies="yes",
        default="no",
    )


DEFINITIONS: Final = (
    Definition(
        ("-b",),
        "keep the journal in directory DIR, which must exist, and restore its jobs at startup",
        field="binlog_dir",
        metavar="DIR",
        variable="GREENSTALK_DATA_DIR",
        key="data_dir",
        type=DIRECTORY,
        exit_code=EXIT_BINLOG,
    ),
    Definition(
        ("-f",),
        f"sync the journal to disk at most once per MS milliseconds; 0: at every write; {NEVER}: as -F",
        field="sync_interval_ns",
        metavar="MS",
        variable="GREENSTALK_SYNC_MS",
        key="sync_ms",
        type=SYNC_INTERVAL,
        default="50",
    ),
    Definition(
        ("-F",),
        "never sync the journal; the last of -f and -F wins",
        field="sync_interval_ns",
        kind=Kind.SWITCH,
        type=SYNC_INTERVAL,
        implies=NEVER,
    ),
    Definition(
        ("-s",),
        "size of one journal file",
        field="binlog_max_size",
        metavar="BYTES",
        variable="GREENSTALK_JOURNAL_FILE_SIZE",
        key="journal_file_size",
        type=SIZE,
        default="10485760",
    ),
    Definition(
        ("--journal",),
        "keep the journal in the PostgreSQL database at URL instead of a directory; of the servers that share it,"
        " one is active and the others stand by",
        field="journal",
        metavar="URL",
        variable="DATABASE_URL",
        key="journal",
        type=POSTGRESQL_URL,
    ),
    Definition(
        ("--journal-name",),
        "name of the journal in that database; servers with the same name take over from each other",
        field="journal_name",
        metavar="NAME",
        variable="GREENSTALK_JOURNAL_NAME",
        key="journal_name",
        type=NAME,
        default="default",
    ),
    Definition(
        ("--lease",),
        "let a standby take over when the database has not heard from the active server for SECONDS",
        field="lease_ns",
        metavar="SECONDS",
        variable="GREENSTALK_LEASE_SECONDS",
        key="lease_seconds",
        type=LEASE,
        default="2",
    ),
    Definition(
        ("-l",),
        "listen on ADDR: an address or a host name, optionally with :PORT, or unix:PATH for a Unix socket (a stale one"
        " at PATH is replaced); the prefix plain: disables TLS; may be repeated, or be a comma-separated list",
        field="listen",
        metavar="ADDR",
        variable="GREENSTALK_LISTEN",
        key="listen",
        type=ADDRESSES,
        default="0.0.0.0",  # noqa: S104  beanstalkd's default
        is_cumulative=True,
    ),
    Definition(
        ("-p",),
        "listen on PORT; 0: any free port",
        field="port",
        metavar="PORT",
        variable="GREENSTALK_LISTEN_PORT",  # Kubernetes sets GREENSTALK_PORT to a URL for a service named greenstalk
        key="port",
        type=PORT,
        default="11300",
        exit_code=EXIT_LISTEN,  # beanstalkd finds a bad port only when it binds
    ),
    Definition(
        ("-u",),
        "become USER, with the groups of that user, after the sockets are bound",
        field="user",
        metavar="USER",
        variable="GREENSTALK_USER",
        key="user",
    ),
    Definition(
        ("-z",),
        f"maximum size of a job body; BYTES above {LARGEST_JOB_SIZE} is reduced to that, as in beanstalkd",
        field="max_job_size",
        metavar="BYTES",
        variable="GREENSTALK_MAX_JOB_SIZE",
        key="max_job_size",
        type=SIZE,
        default="65535",
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
    ),
    _off_by_default(
        "--strict-recovery",
        "refuse to start on a damaged journal; by default the server starts with everything that is intact",
        field="strict_recovery",
        variable="GREENSTALK_STRICT_RECOVERY",
        key="strict_recovery",
    ),
    _off_by_default(
        "--strict-protocol",
        "turn off the protocol's extensions; every line gets the reply that beanstalkd 1.13 gives",
        field="strict_protocol",
        variable="GREENSTALK_STRICT_PROTOCOL",
        key="strict_protocol",
    ),
    _off_by_default(
        "--extended-stats",
        "send every client the extended keys of `stats`, `stats-tube` and `stats-job`, as if it had sent `stats-mode"
        " extended`",
        field="extended_stats",
        variable="GREENSTALK_EXTENDED_STATS",
        key="extended_stats",
    ),
    Definition(
        ("--tls-cert",),
        "use TLS on every TCP port of the beanstalk protocol, with the certificate chain in FILE (PEM)",
        field="tls_cert",
        metavar="FILE",
        variable="GREENSTALK_TLS_CERT",
        key="tls.cert",
    ),
    Definition(
        ("--tls-key",),
        "private key of the certificate; by default it is in the certificate's file",
        field="tls_key",
        metavar="FILE",
        variable="GREENSTALK_TLS_KEY",
        key="tls.key",
    ),
    Definition(
        ("--tls-client-ca",),
        "accept over TLS only clients with a certificate from an authority in FILE (PEM)",
        field="tls_client_ca",
        metavar="FILE",
        variable="GREENSTALK_TLS_CLIENT_CA",
        key="tls.client_ca",
    ),
    Definition(
        (),
        "rules that say which clients may use which tubes, in the configuration file only; without rules, all clients"
        " may use all tubes",
        field="access",
        key="access",
        type=RULES,
        default="",
    ),
    Definition(
        (),
        "settings for the tubes whose names match a pattern, in the configuration file only; SIGHUP reloads them",
        field="policies",
        key="policies",
        type=POLICIES,
        default="",
    ),
    Definition(
        (),
        "thresholds of the conditions that need attention, for all tubes or by pattern, in the configuration file only;"
        " SIGHUP reloads them",
        field="attention",
        key="attention",
        type=THRESHOLDS,
        default="",
    ),
    Definition(
        (),
        "receivers of alerts about the conditions that need attention, in the configuration file only; SIGHUP reloads"
        " them",
        field="alerts",
        key="alerts",
        type=ALERTS,
        default="",
    ),
    Definition(
        (),
        "other servers that the dashboard shows, in the configuration file only; SIGHUP reloads them",
        field="servers",
        key="servers",
        type=SERVERS,
        default="",
    ),
    Definition(
        ("--max-connections",),
        "reject new connections of the beanstalk protocol above N",
        field="limits.connections",
        metavar="N",
        variable="GREENSTALK_MAX_CONNECTIONS",
        key="limits.connections",
        type=COUNT,
        default="0",
    ),
    Definition(
        ("--max-connections-per-address",),
        "reject new connections of the beanstalk protocol above N from the same IP address",
        field="limits.connections_per_address",
        metavar="N",
        variable="GREENSTALK_MAX_CONNECTIONS_PER_ADDRESS",
        key="limits.connections_per_address",
        type=COUNT,
        default="0",
    ),
    Definition(
        ("--max-jobs",),
        "answer OUT_OF_MEMORY to puts while there are N jobs",
        field="limits.jobs",
        metavar="N",
        variable="GREENSTALK_MAX_JOBS",
        key="limits.jobs",
        type=COUNT,
        default="0",
    ),
    Definition(
        ("--max-bytes",),
        "answer OUT_OF_MEMORY to puts that would raise the total size of all job bodies above BYTES",
        field="limits.bytes",
        metavar="BYTES",
        variable="GREENSTALK_MAX_BYTES",
        key="limits.bytes",
        type=SIZE_LIMIT,
        default="0",
    ),
    Definition(
        ("--memory-limit",),
        "keep the process within BYTES of memory: with -b, evict from memory the bodies that will be needed last (they"
        " stay on disk); without -b, or when that does not free enough, answer OUT_OF_MEMORY to puts",
        field="memory_limit",
        metavar="BYTES",
        variable="GREENSTALK_MEMORY_LIMIT",
        key="limits.memory",
        type=MEMORY_LIMIT,
        default="0",
    ),
    Definition(
        ("--max-tube-jobs",),
        "answer OUT_OF_MEMORY to puts while the tube has N jobs",
        field="limits.tube_jobs",
        metavar="N",
        variable="GREENSTALK_MAX_TUBE_JOBS",
        key="limits.tube_jobs",
        type=COUNT,
        default="0",
    ),
    Definition(
        ("--max-tube-bytes",),
        "answer OUT_OF_MEMORY to puts that would raise the total size of job bodies in the tube above BYTES",
        field="limits.tube_bytes",
        metavar="BYTES",
        variable="GREENSTALK_MAX_TUBE_BYTES",
        key="limits.tube_bytes",
        type=SIZE_LIMIT,
        default="0",
    ),
    Definition(
        ("--max-tubes",),
        "answer OUT_OF_MEMORY to a use or watch that would create a tube while there are N",
        field="limits.tubes",
        metavar="N",
        variable="GREENSTALK_MAX_TUBES",
        key="limits.tubes",
        type=COUNT,
        default="0",
    ),
    Definition(
        ("--max-watched",),
        "answer OUT_OF_MEMORY to a watch on a connection that watches N tubes; 0: no limit",
        field="limits.watched",
        metavar="N",
        variable="GREENSTALK_MAX_WATCHED",
        key="limits.watched",
        type=COUNT,
        default="10240",
    ),
    Definition(
        ("--max-rate",),
        "limit each connection to N commands per second: above that rate, the server pauses reading",
        field="limits.rate",
        metavar="N",
        variable="GREENSTALK_MAX_RATE",
        key="limits.rate",
        type=RATE,
        default="0",
    ),
    Definition(
        ("--max-output",),
        "stop reading a connection while BYTES of its replies wait for the disk",
        field="limits.output",
        metavar="BYTES",
        variable="GREENSTALK_MAX_OUTPUT",
        key="limits.output",
        type=SIZE_LIMIT,
        default="1048576",
    ),
    Definition(
        ("--idle-timeout",),
        "close a connection that has sent nothing for SECONDS, unless it waits for a job or holds one",
        field="limits.idle_timeout",
        metavar="SECONDS",
        variable="GREENSTALK_IDLE_TIMEOUT",
        key="limits.idle_timeout",
        type=TIMEOUT,
        default="0",
    ),
    Definition(
        ("--command-timeout",),
        "close a connection that takes longer than SECONDS to send a command and its body",
        field="limits.command_timeout",
        metavar="SECONDS",
        variable="GREENSTALK_COMMAND_TIMEOUT",
        key="limits.command_timeout",
        type=TIMEOUT,
        default="0",
    ),
    Definition(
        ("--dead-peer-timeout",),
        "close a connection whose peer has not answered TCP for SECONDS",
        field="limits.dead_peer_timeout",
        metavar="SECONDS",
        variable="GREENSTALK_DEAD_PEER_TIMEOUT",
        key="limits.dead_peer_timeout",
        type=TIMEOUT,
        default="300",
    ),
    Definition(
        ("--log-level",),
        f"log events of LEVEL and above: {one_of(LOG_LEVELS)}",
        field="log_level",
        metavar="LEVEL",
        variable="GREENSTALK_LOG_LEVEL",
        key="log_level",
        type=LOG_LEVEL,
        default="info",
    ),
    Definition(
        ("--log-format",),
        "log as text, one line per event, or as json, one object per line",
        field="log_format",
        metavar="FORMAT",
        variable="GREENSTALK_LOG_FORMAT",
        key="log_format",
        type=LOG_FORMAT,
        default="text",
    ),
    Definition(
        ("--web-host",),
        "serve the dashboard on ADDR; requires a password if ADDR is not loopback",
        field="web_host",
        metavar="ADDR",
        variable="GREENSTALK_WEB_HOST",
        key="web.host",
        default="127.0.0.1",
    ),
    Definition(
        ("--web-port",),
        "serve the dashboard on PORT; 0: any free port",
        field="web_port",
        metavar="PORT",
        variable="PORT",
        key="web.port",
        type=PORT,
        default="8080",
    ),
    Definition(
        ("--no-web",),
        "do not serve the dashboard",
        field="web_enabled",
        kind=Kind.SWITCH,
        variable="GREENSTALK_WEB_ENABLED",
        key="web.enabled",
        type=BOOLEAN,
        implies="no",
        default="yes",
    ),
    Definition(
        ("--url-prefix",),
        "serve the dashboard under PATH, such as /queue, behind a proxy that passes paths on unchanged",
        field="url_prefix",
        metavar="PATH",
        variable="GREENSTALK_URL_PREFIX",
        key="web.url_prefix",
        type=PATH_PREFIX,
        default="",
    ),
    Definition(
        ("--trusted-proxies",),
        "trust the X-Forwarded- headers (-For, -Proto, -Host, -Prefix) of these addresses and networks",
        field="trusted_proxies",
        metavar="LIST",
        variable="GREENSTALK_TRUSTED_PROXIES",
        key="web.trusted_proxies",
        type=NETWORKS,
        default="",
    ),
    _off_by_default(
        "--read-only",
        "make the dashboard read-only for everyone",
        field="read_only",
        variable="GREENSTALK_READ_ONLY",
        key="web.read_only",
    ),
    _off_by_default(
        "--hide-bodies",
        "hide job bodies on the dashboard from everyone",
        field="hide_bodies",
        variable="GREENSTALK_HIDE_BODIES",
        key="web.hide_bodies",
    ),
    Definition(
        (),
        "user name that the dashboard requires with the admin password; by default any name is accepted",
        field="web_user",
        variable="GREENSTALK_WEB_USER",
        key="web.user",
    ),
    Definition(
        (),
        "admin password of the dashboard; admins may change things",
        field="web_password",
        variable="GREENSTALK_WEB_PASSWORD",
        key="web.password",
        type=SECRET,
        is_secret=True,
    ),
    Definition(
        (),
        "file with the admin password on its first line, instead of the variable",
        field="web_password_file",
        variable="GREENSTALK_WEB_PASSWORD_FILE",
        key="web.password_file",
    ),
    Definition(
        (),
        "operator password of the dashboard; operators act on jobs and pause tubes, but set no policies",
        field="operator_password",
        variable="GREENSTALK_WEB_OPERATOR_PASSWORD",
        key="web.operator_password",
        type=SECRET,
        is_secret=True,
    ),
    Definition(
        (),
        "viewer password of the dashboard; viewers cannot change anything, and without an admin password nobody can",
        field="viewer_password",
        variable="GREENSTALK_WEB_VIEWER_PASSWORD",
        key="web.viewer_password",
        type=SECRET,
        is_secret=True,
    ),
    Definition(
        (),
        "bearer token for programs that use the API as admins; the pages still require a password",
        field="api_token",
        variable="GREENSTALK_API_TOKEN",
        key="web.api_token",
        type=SECRET,
        is_secret=True,
    ),
    Definition(
        (),
        "bearer token for programs that use the API as operators",
        field="api_operator_token",
        variable="GREENSTALK_API_OPERATOR_TOKEN",
        key="web.api_operator_token",
        type=SECRET,
        is_secret=True,
    ),
    Definition(
        (),
        "bearer token for programs that use the API as viewers",
        field="api_viewer_token",
        variable="GREENSTALK_API_VIEWER_TOKEN",
        key="web.api_viewer_token",
        type=SECRET,
        is_secret=True,
    ),
    Definition(
        (),
        "bearer token for /metrics alone; with it, /metrics requires the token or the dashboard's password",
        field="metrics_token",
        variable="GREENSTALK_METRICS_TOKEN",
        key="web.metrics_token",
        type=SECRET,
        is_secret=True,
    ),
    Definition(
        (),
        "time without use after which a user must sign in again, from a minute to a year",
        field="session_idle_ns",
        variable="GREENSTALK_SESSION_IDLE",
        key="web.session_idle",
        type=SESSION_TIME,
        default="12h",
    ),
    Definition(
        (),
        "time after which a user must sign in again in any case, from a minute to a year",
        field="session_lifetime_ns",
        variable="GREENSTALK_SESSION_LIFETIME",
        key="web.session_lifetime",
        type=SESSION_TIME,
        default="7d",
    ),
    Definition(
        (),
        "roles of the dashboard's users by tube pattern, in the configuration file only; viewer, operator and admin"
        " always exist",
        field="roles",
        key="roles",
        type=ROLES,
        default="",
    ),
    Definition(
        (),
        "users of the dashboard with a password hash and a role each, in the configuration file only",
        field="users",
        key="users",
        type=USERS,
        default="",
    ),
    Definition(
        (),
        "address of an OpenID Connect provider with which users sign in; needs the packages of greenstalk-server[oidc]",
        field="oidc_issuer",
        variable="GREENSTALK_OIDC_ISSUER",
        key="oidc.issuer",
        type=WEB_ADDRESS,
    ),
    Definition(
        (),
        "id of this dashboard at the provider",
        field="oidc_client_id",
        variable="GREENSTALK_OIDC_CLIENT_ID",
        key="oidc.client_id",
    ),
    Definition(
        (),
        "secret of this dashboard at the provider; without one, the client is public",
        field="oidc_client_secret",
        variable="GREENSTALK_OIDC_CLIENT_SECRET",
        key="oidc.client_secret",
        type=SECRET,
        is_secret=True,
    ),
    Definition(
        (),
        "file with this secret on its first line, instead of the variable",
        field="oidc_client_secret_file",
        variable="GREENSTALK_OIDC_CLIENT_SECRET_FILE",
        key="oidc.client_secret_file",
    ),
    Definition(
        (),
        "scopes to request from the provider",
        field="oidc_scopes",
        variable="GREENSTALK_OIDC_SCOPES",
        key="oidc.scopes",
        default="openid profile email",
    ),
    Definition(
        (),
        "claim with the groups of the user; a user has each role that lists one of them",
        field="oidc_groups_claim",
        variable="GREENSTALK_OIDC_GROUPS_CLAIM",
        key="oidc.groups_claim",
        default="groups",
    ),
    Definition(
        (),
        "claim with the name of the user",
        field="oidc_name_claim",
        variable="GREENSTALK_OIDC_NAME_CLAIM",
        key="oidc.name_claim",
        default="preferred_username",
    ),
    Definition(
        (),
        "name of the provider on the sign-in page",
        field="oidc_label",
        variable="GREENSTALK_OIDC_LABEL",
        key="oidc.label",
        type=NAME,
        default="single sign-on",
    ),
    Definition(
        (),
        "1 to serve the dashboard without a password on any address",
        field="allow_insecure",
        variable="GREENSTALK_ALLOW_INSECURE",
        key="web.allow_insecure",
        type=BOOLEAN,
        default="no",
    ),
)
