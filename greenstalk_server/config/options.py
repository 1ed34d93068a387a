"""What can be set, and what is in force: DEFINITIONS, and one frozen `Options`.

DEFINITIONS is the only place where an option is described: the command line, the environment, the configuration
file, `--help`, `greenstalk-server config` and docs/configuration.md all read it.

Knows nothing of sockets, disks or users: whether an address can be bound, a directory opened or a user
become is found out by who does it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, Final

from greenstalk_server.core.body_cache import LEAST_LIMIT
from greenstalk_server.protocol.access import Rule, read_rules
from greenstalk_server.runtime.exit_codes import EXIT_BINLOG, EXIT_LISTEN, EXIT_USAGE, StartError

PROGRAM: Final = "greenstalk-server"

LARGEST_JOB_SIZE: Final = 2**30
"""beanstalkd's own limit on -z."""

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")

NEVER: Final = "never"
"""Instead of the milliseconds of -f."""

MILLISECOND: Final = 1_000_000
SECOND: Final = 1_000_000_000
LONGEST_VALUE_SHOWN: Final = 60

_LARGEST_COUNT: Final = 2**63 - 1
_LONGEST_TIMEOUT: Final = 30 * 24 * 3600

_SIZES: Final = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_UNIT_OF_SIZE: Final = re.compile(r"([kmgt]?)(?:(?<=[kmgt])i?b)?\Z", re.IGNORECASE)
_SIZE_UNITS: Final = "or with a unit, as in 64k, 10MB or 2GiB (k is 1024)"

_TIMES: Final = (24 * 3600 * SECOND, 3600 * SECOND, 60 * SECOND, SECOND, MILLISECOND)
_TIME: Final = re.compile(r"(?:([0-9]+)d)?(?:([0-9]+)h)?(?:([0-9]+)m)?(?:([0-9]+)s)?(?:([0-9]+)ms)?")
_TIME_UNITS: Final = "or with units, as in 50ms, 90s or 1h30m"

_PASSWORD: Final = re.compile(
    r"(://[^:/@?]*:)(?:.*(?=@)|[^@&]*)|(:/[^:/@?]*:).*(?=@)"
    r"|([?&](?:ssl)?password=)[^&]*|((?:^|\s)password\s*=).*",
    re.DOTALL,
)
"""In an address of a database; or in what is none, for want of a slash, or since it is keywords and values."""

_URL_PREFIX: Final = re.compile(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._~-]+)*/?")
"""Segments that are not `.` or `..`, which browsers take out of a path."""


class UsageError(StartError):
    """Something was asked for that is not understood; the message names it, its value and what is allowed."""

    def __init__(self, message: str, exit_code: int = EXIT_USAGE) -> None:
        super().__init__(message, exit_code)


@dataclass(frozen=True, slots=True)
class Options:
    """What is in force.

    sync_interval_ns  at most one fsync in so many nanoseconds; 0 is one at every write, None is never.
    binlog_max_size   of one binlog file, bytes.
    listen            each a host name or an address, perhaps with a port of its own, or `unix:PATH`; with `plain:`
                      before it, it speaks no TLS though there is a certificate.
    port, web_port    0 is any free one.
    max_job_size      of a body, bytes.
    log_level         one of LOG_LEVELS.
    log_format        one of LOG_FORMATS.
    journal           address of the PostgreSQL database that has the journal, instead of binlog_dir.
    journal_name      of that one among several in the database.
    lease_ns          how long a leader leads without the database, before a standby may take over.
    tls_cert, tls_key files in PEM; without a key it is in the certificate's file.
    tls_client_ca     file of the authorities whose certificates clients must show.
    access            rules of who may use which tube; without any, everyone may use all.
    max_*             limits; 0 is none. See limits.Limits.
    memory_limit      of the process, bytes; 0 is none.
    *_timeout         seconds; 0 is never.
    web_user          name that goes with the admins' password; None is any.
    web_password      of the dashboard's admins; None, also as a file, and no viewers' is open to whoever reaches it.
    web_password_file that has it as its first line.
    viewer_password   of those who may look at the dashboard and change nothing.
    api_token         that opens the API to programs, which may change things; the pages ask for passwords only.
    api_viewer_token  the same for programs that may look and change nothing.
    metrics_token     that opens `/metrics` alone.
    url_prefix        path that the dashboard is under, such as `/queue`; empty is none.
    trusted_proxies   whose X-Forwarded- headers count.
    config_file       where some of it was read.
    origins           by field, who has set it: a flag, a variable, or FILE:LINE. The other fields have their defaults.
    warnings          what was understood, but not as the operator may think.
    """

    config_file: str | None
    binlog_dir: str | None
    sync_interval_ns: int | None
    binlog_max_size: int
    listen: tuple[str, ...]
    port: int
    user: str | None
    max_job_size: int
    log_level: str
    log_format: str
    strict_recovery: bool
    journal: str | None = field(repr=False)
    journal_name: str
    lease_ns: int
    tls_cert: str | None
    tls_key: str | None
    tls_client_ca: str | None
    access: tuple[Rule, ...]
    max_connections: int
    max_connections_per_address: int
    max_jobs: int
    max_bytes: int
    memory_limit: int
    max_tube_jobs: int
    max_tube_bytes: int
    max_tubes: int
    max_watched: int
    max_rate: int
    max_output: int
    idle_timeout: int
    command_timeout: int
    dead_peer_timeout: int
    web_host: str
    web_port: int
    web_enabled: bool
    web_user: str | None
    web_password: str | None = field(repr=False)
    web_password_file: str | None
    viewer_password: str | None = field(repr=False)
    api_token: str | None = field(repr=False)
    api_viewer_token: str | None = field(repr=False)
    metrics_token: str | None = field(repr=False)
    read_only: bool
    hide_bodies: bool
    url_prefix: str
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...]
    allow_insecure: bool
    origins: Mapping[str, str]
    warnings: tuple[str, ...]

    def named(self, field: str) -> str:
        """What set *field*: `-p`, `PORT` or `FILE:LINE: web.port`; or what can set it, if nothing has."""
        row = next(row for row in DEFINITIONS if row.field == field)
        origin = self.origins.get(field)
        if origin is None:
            return row.flags[0] if row.flags else row.variable or row.key
        is_file = origin != row.variable and not origin.startswith("-")
        return f"{origin}: {row.key}" if is_file else origin


class Kind(Enum):
    """What naming an option on the command line does."""

    VALUE = auto()
    """Takes a value, and sets its field to it."""
    SWITCH = auto()
    """Takes none, and sets its field to what its type makes of `implies`."""
    REMOVED = auto()
    """Does nothing but warn: an old beanstalkd had it."""
    VERSION = auto()
    HELP = auto()


@dataclass(frozen=True, slots=True)
class Type:
    """What values an option has, and how they are written.

    read     makes a value of a text, or raises ValueError saying what is allowed.
    in_toml  the types that tomllib gives for it.
    allowed  what is allowed in a file, for who has written something else there.
    told     makes of a value what JSON may hold: what stands in a file.
    from_toml   makes a value of what tomllib gives, if no text can say it; raises ValueError saying what is allowed.
    """

    read: Callable[[str], object]
    in_toml: tuple[type, ...]
    allowed: str
    told: Callable[[Any], object] = lambda value: value
    from_toml: Callable[[Any], object] | None = None


def _number(text: str, least: int, most: int | None, allowed: str) -> int:
    """Return the decimal number *text*, which may have a plus sign, as beanstalkd lets it."""
    digits = text.removeprefix("+")
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(allowed)
    try:
        number = int(digits)
    except ValueError:  # more digits than Python cares to read
        raise ValueError(allowed) from None
    if number < least or (most is not None and number > most):
        raise ValueError(allowed)
    return number


def _text(text: str) -> str:
    if "\0" in text:
        raise ValueError("a text without NUL")
    return text


def _directory(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError("the path of a directory")
    return text


def _size(text: str, least: int, most: int | None, allowed: str) -> int:
    """Return the number of bytes in *text*: a decimal number, perhaps with a unit, of which k is 1024."""
    unit = _UNIT_OF_SIZE.search(text)
    assert unit is not None  # an empty one is found at the end
    factor = _SIZES[unit[1].lower()]
    number = _number(text[: unit.start()], 0, None, allowed) * factor
    if number < least or (most is not None and number > most):
        raise ValueError(allowed)
    return number


def _bytes(text: str) -> int:
    return _size(text, 0, None, f"a whole number of bytes, 0 or more, {_SIZE_UNITS}")


def _memory(text: str) -> int:
    expected = f"a whole number of bytes, {LEAST_LIMIT} or more, or 0 (no limit), {_SIZE_UNITS}"
    limit = _size(text, 0, None, expected)
    if 0 < limit < LEAST_LIMIT:
        raise ValueError(expected)
    return limit


def _bytes_at_most(text: str) -> int:
    return _size(text, 0, _LARGEST_COUNT, f"a whole number of bytes, 0 (no limit) or more, {_SIZE_UNITS}")


def _time(text: str, unit: int, allowed: str) -> int:
    """Return *text* in nanoseconds: a decimal number of *unit*, or with units of its own, such as 1h30m."""
    if (parts := _TIME.fullmatch(text)) is None or not text:
        return unit * _number(text, 0, None, allowed)
    numbers = [_number(part or "0", 0, None, allowed) for part in parts.groups()]
    return sum(number * size for number, size in zip(numbers, _TIMES, strict=True))


def _sync_interval(text: str) -> int | None:
    if text == NEVER:
        return None
    allowed = f"a whole number of milliseconds, 0 (at every write) or more, {_TIME_UNITS}; or {NEVER}"
    return _time(text, MILLISECOND, allowed)


def _told_sync_interval(interval: int | None) -> object:
    return NEVER if interval is None else interval // MILLISECOND


def _port(text: str) -> int:
    return _number(text, 0, 65535, "a port number from 0 (any free one) to 65535")


def _boolean(text: str) -> bool:
    match text.lower():
        case "1" | "true" | "yes" | "on":
            return True
        case "0" | "false" | "no" | "off":
            return False
    raise ValueError("1, true, yes or on; or 0, false, no or off")


def _log_level(text: str) -> str:
    return _one_of(text, LOG_LEVELS)


def _log_format(text: str) -> str:
    return _one_of(text, LOG_FORMATS)


def _one_of(text: str, allowed: tuple[str, ...]) -> str:
    if text not in allowed:
        raise ValueError(_either(allowed))
    return text


def _either(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def _path_prefix(text: str) -> str:
    """Return the path *text* without the slash at its end: `/` is no prefix at all."""
    if not _URL_PREFIX.fullmatch(text):
        raise ValueError("a path such as /queue, of letters, digits and -._~")
    return text.rstrip("/")


def _networks(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    try:
        return tuple(ip_network(part.strip()) for part in text.split(",")) if text else ()
    except ValueError:
        raise ValueError("addresses and networks by comma, such as 10.0.0.0/8,::1") from None


def _told_networks(networks: tuple[IPv4Network | IPv6Network, ...]) -> object:
    return [str(network) for network in networks]


def _addresses(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _count(text: str) -> int:
    return _number(text, 0, _LARGEST_COUNT, "a whole number, 0 (no limit) or more")


def _rate(text: str) -> int:
    return _number(text, 0, 1_000_000, "a whole number of commands in a second, from 0 (no limit) to 1000000")


def _timeout(text: str) -> int:
    allowed = f"a whole number of seconds, from 0 (never) to {_LONGEST_TIMEOUT}, {_TIME_UNITS}"
    seconds, rest = divmod(_time(text, SECOND, allowed), SECOND)
    if rest or seconds > _LONGEST_TIMEOUT:
        raise ValueError(allowed)
    return seconds


def _rules(text: str) -> tuple[Rule, ...]:
    """The rules when nobody has set any: they can be written in a file only."""
    assert not text
    return ()


def _not_empty(text: str) -> str:
    if not text:
        raise ValueError("at least one character")
    return text


def _name(text: str) -> str:
    if not 0 < len(text) <= 200 or not text.isprintable():
        raise ValueError("1 to 200 characters, all of them visible")
    return text


def is_database(where: str) -> bool:
    """Whether *where* is the address of a database, and not a directory."""
    return where.startswith(("postgresql://", "postgres://"))


def _database(text: str) -> str:
    if not is_database(text) or "\0" in text:
        raise ValueError("an address such as postgresql://USER@HOST/DATABASE")
    return text


def _told_database(url: str | None) -> object:
    return None if url is None else without_password(url)


def _lease(text: str) -> int:
    allowed = f"a number of seconds from 1 to 3600, {_TIME_UNITS}"
    lease = _time(text, SECOND, allowed)
    if not SECOND <= lease <= 3600 * SECOND:
        raise ValueError(allowed)
    return lease


def _told_lease(lease: int) -> object:
    return f"{lease // MILLISECOND}ms" if lease % SECOND else lease // SECOND


_TEXT: Final = Type(_text, (str,), "a text in quotes, without NUL")
_DIRECTORY: Final = Type(_directory, (str,), "the path of a directory, in quotes")
_QUOTED_SIZE: Final = 'without quotes, or with a unit in quotes ("64k", "10MB", "2GiB")'
_QUOTED_TIME: Final = 'without quotes, or with a unit in quotes ("50ms", "90s", "1h30m")'
_BYTES: Final = Type(_bytes, (int, str), f"a whole number of bytes, 0 or more, {_QUOTED_SIZE}")
_MEMORY: Final = Type(
    _memory, (int, str), f"a whole number of bytes, {LEAST_LIMIT} or more, or 0 (no limit), {_QUOTED_SIZE}"
)
_BYTES_AT_MOST: Final = Type(
    _bytes_at_most, (int, str), f"a whole number of bytes, 0 (no limit) or more, {_QUOTED_SIZE}"
)
_SYNC_INTERVAL: Final = Type(
    _sync_interval,
    (int, str),
    f'a whole number of milliseconds, 0 (at every write) or more, {_QUOTED_TIME}; or "{NEVER}"',
    _told_sync_interval,
)
_PORT: Final = Type(_port, (int,), "a port number from 0 (any free one) to 65535, without quotes")
_BOOLEAN: Final = Type(_boolean, (bool,), "true or false, without quotes")
_LOG_LEVEL: Final = Type(_log_level, (str,), f"{_either(LOG_LEVELS)}, in quotes")
_LOG_FORMAT: Final = Type(_log_format, (str,), f"{_either(LOG_FORMATS)}, in quotes")
_PATH_PREFIX: Final = Type(_path_prefix, (str,), "a path such as /queue, of letters, digits and -._~, in quotes")
_NETWORKS: Final = Type(
    _networks, (list,), 'an array of addresses and networks, such as ["10.0.0.0/8", "::1"]', _told_networks
)
_ADDRESSES: Final = Type(_addresses, (str, list), "an address in quotes, or an array of them", list)
_COUNT: Final = Type(_count, (int,), "a whole number, 0 (no limit) or more, without quotes")
_RATE: Final = Type(
    _rate, (int,), "a whole number of commands in a second, from 0 (no limit) to 1000000, without quotes"
)
_TIMEOUT: Final = Type(
    _timeout, (int, str), f"a whole number of seconds, from 0 (never) to {_LONGEST_TIMEOUT}, {_QUOTED_TIME}"
)
_RULES: Final = Type(
    _rules,
    (list,),
    "tables, each headed [[access]]",
    lambda rules: [rule.told() for rule in rules],
    read_rules,
)
_SECRET: Final = Type(_not_empty, (str,), "a text in quotes, of at least one character")
_NAME: Final = Type(_name, (str,), "a text in quotes, of 1 to 200 characters, all of them visible")
_DATABASE: Final = Type(
    _database, (str,), "an address in quotes, such as postgresql://USER@HOST/DATABASE", _told_database
)
_LEASE: Final = Type(_lease, (int, str), f"a number of seconds from 1 to 3600, {_QUOTED_TIME}", _told_lease)


@dataclass(frozen=True, slots=True)
class Definition:
    """One option.

    field      of Options, that it sets; "" if none.
    variable   of the environment, that sets it too; "" if none.
    key        of the configuration file; the one before a dot is that of a table. "" if none.
    implies    the text that a switch stands for.
    default    as text, in the flag's unit; None leaves the field None, or to another definition.
    exit_code  for a value that is refused.
    is_secret  it is never shown.
    adds_up    its flag may be repeated, and each time adds to what its field holds.
    """

    flags: tuple[str, ...]
    help: str
    field: str = ""
    kind: Kind = Kind.VALUE
    metavar: str = ""
    variable: str = ""
    key: str = ""
    type: Type = _TEXT
    implies: str = ""
    default: str | None = None
    exit_code: int = EXIT_USAGE
    is_secret: bool = False
    adds_up: bool = False


DEFINITIONS: Final = (
    Definition(
        ("-b",),
        "keep the journal, from which a start restores the jobs, in the directory DIR, which must exist",
        field="binlog_dir",
        metavar="DIR",
        variable="GREENSTALK_DATA_DIR",
        key="data_dir",
        type=_DIRECTORY,
        exit_code=EXIT_BINLOG,
    ),
    Definition(
        ("-f",),
        f"sync the journal to disk at most once in MS milliseconds; 0 is at every write, {NEVER} is as -F",
        field="sync_interval_ns",
        metavar="MS",
        variable="GREENSTALK_SYNC_MS",
        key="sync_ms",
        type=_SYNC_INTERVAL,
        default="50",
    ),
    Definition(
        ("-F",),
        "never sync the journal; the last of -f and -F wins",
        field="sync_interval_ns",
        kind=Kind.SWITCH,
        type=_SYNC_INTERVAL,
        implies=NEVER,
    ),
    Definition(
        ("-s",),
        "size of one file of the journal",
        field="binlog_max_size",
        metavar="BYTES",
        variable="GREENSTALK_JOURNAL_FILE_SIZE",
        key="journal_file_size",
        type=_BYTES,
        default="10485760",
    ),
    Definition(
        ("--journal",),
        "keep the journal in the PostgreSQL database at URL instead; of several servers, one serves and the others"
        " stand by",
        field="journal",
        metavar="URL",
        variable="DATABASE_URL",
        key="journal",
        type=_DATABASE,
    ),
    Definition(
        ("--journal-name",),
        "which journal of that database; servers with the same one take over from each other",
        field="journal_name",
        metavar="NAME",
        variable="GREENSTALK_JOURNAL_NAME",
        key="journal_name",
        type=_NAME,
        default="default",
    ),
    Definition(
        ("--lease",),
        "let a standby take over once the database has not heard of the active server for SECONDS",
        field="lease_ns",
        metavar="SECONDS",
        variable="GREENSTALK_LEASE_SECONDS",
        key="lease_seconds",
        type=_LEASE,
        default="2",
    ),
    Definition(
        ("-l",),
        "listen on ADDR: an address or a host name, perhaps with a :PORT of its own, or unix:PATH for a Unix socket"
        " (one left at PATH is replaced); with plain: before it, without TLS; may be repeated, or a list by comma",
        field="listen",
        metavar="ADDR",
        variable="GREENSTALK_LISTEN",
        key="listen",
        type=_ADDRESSES,
        default="0.0.0.0",  # noqa: S104  beanstalkd's default, and what a replacement must do
        adds_up=True,
    ),
    Definition(
        ("-p",),
        "listen on PORT; 0 is any free one",
        field="port",
        metavar="PORT",
        variable="GREENSTALK_LISTEN_PORT",  # Kubernetes sets GREENSTALK_PORT, to a URL, where a service is so named
        key="port",
        type=_PORT,
        default="11300",
        exit_code=EXIT_LISTEN,  # beanstalkd finds a bad port only when it binds
    ),
    Definition(
        ("-u",),
        "become USER and its groups, once the sockets are bound",
        field="user",
        metavar="USER",
        variable="GREENSTALK_USER",
        key="user",
    ),
    Definition(
        ("-z",),
        f"largest job body that put accepts; more than {LARGEST_JOB_SIZE} is cut to that, as by beanstalkd",
        field="max_job_size",
        metavar="BYTES",
        variable="GREENSTALK_MAX_JOB_SIZE",
        key="max_job_size",
        type=_BYTES,
        default="65535",
    ),
    Definition(("-c",), "accepted, and without effect: the journal is always compacted", kind=Kind.REMOVED),
    Definition(("-n",), "accepted, and without effect: the journal is always compacted", kind=Kind.REMOVED),
    Definition(
        ("-V",),
        "say more in the log, as --log-level debug; may be repeated",
        field="log_level",
        kind=Kind.SWITCH,
        type=_LOG_LEVEL,
        implies="debug",
    ),
    Definition(("-v", "--version"), "print the version and exit", kind=Kind.VERSION),
    Definition(("-h", "--help"), "print this help and exit", kind=Kind.HELP),
    Definition(
        ("--config",),
        "read options from FILE, which is TOML; flags and the environment beat it",
        field="config_file",
        metavar="FILE",
        variable="GREENSTALK_CONFIG",
    ),
    Definition(
        ("--strict-recovery",),
        "refuse to start on a damaged journal; without it the server starts with all that is sound",
        field="strict_recovery",
        kind=Kind.SWITCH,
        variable="GREENSTALK_STRICT_RECOVERY",
        key="strict_recovery",
        type=_BOOLEAN,
        implies="yes",
        default="no",
    ),
    Definition(
        ("--tls-cert",),
        "speak TLS on every TCP port of the beanstalk protocol, with the certificate and its chain in FILE (PEM)",
        field="tls_cert",
        metavar="FILE",
        variable="GREENSTALK_TLS_CERT",
        key="tls.cert",
    ),
    Definition(
        ("--tls-key",),
        "the certificate's private key; without it, it is in the certificate's file",
        field="tls_key",
        metavar="FILE",
        variable="GREENSTALK_TLS_KEY",
        key="tls.key",
    ),
    Definition(
        ("--tls-client-ca",),
        "let in by TLS only clients with a certificate of an authority in FILE (PEM)",
        field="tls_client_ca",
        metavar="FILE",
        variable="GREENSTALK_TLS_CLIENT_CA",
        key="tls.client_ca",
    ),
    Definition(
        (),
        "rules of who may use which tube, in the configuration file alone; without any, everyone may use all",
        field="access",
        key="access",
        type=_RULES,
        default="",
    ),
    Definition(
        ("--max-connections",),
        "close what connects while N connections of the beanstalk protocol are open",
        field="max_connections",
        metavar="N",
        variable="GREENSTALK_MAX_CONNECTIONS",
        key="limits.connections",
        type=_COUNT,
        default="0",
    ),
    Definition(
        ("--max-connections-per-address",),
        "close what connects while N connections from its IP address are open",
        field="max_connections_per_address",
        metavar="N",
        variable="GREENSTALK_MAX_CONNECTIONS_PER_ADDRESS",
        key="limits.connections_per_address",
        type=_COUNT,
        default="0",
    ),
    Definition(
        ("--max-jobs",),
        "answer OUT_OF_MEMORY to puts while there are N jobs",
        field="max_jobs",
        metavar="N",
        variable="GREENSTALK_MAX_JOBS",
        key="limits.jobs",
        type=_COUNT,
        default="0",
    ),
    Definition(
        ("--max-bytes",),
        "answer OUT_OF_MEMORY to puts while the bodies of all jobs would take more than BYTES",
        field="max_bytes",
        metavar="BYTES",
        variable="GREENSTALK_MAX_BYTES",
        key="limits.bytes",
        type=_BYTES_AT_MOST,
        default="0",
    ),
    Definition(
        ("--memory-limit",),
        "keep the process within BYTES: with -b, bodies that are wanted last are on disk alone; without, or once the"
        " rest takes as much, the answer is OUT_OF_MEMORY",
        field="memory_limit",
        metavar="BYTES",
        variable="GREENSTALK_MEMORY_LIMIT",
        key="limits.memory",
        type=_MEMORY,
        default="0",
    ),
    Definition(
        ("--max-tube-jobs",),
        "answer OUT_OF_MEMORY to puts while the job's tube has N jobs",
        field="max_tube_jobs",
        metavar="N",
        variable="GREENSTALK_MAX_TUBE_JOBS",
        key="limits.tube_jobs",
        type=_COUNT,
        default="0",
    ),
    Definition(
        ("--max-tube-bytes",),
        "answer OUT_OF_MEMORY to puts while the bodies in the job's tube would take more than BYTES",
        field="max_tube_bytes",
        metavar="BYTES",
        variable="GREENSTALK_MAX_TUBE_BYTES",
        key="limits.tube_bytes",
        type=_BYTES_AT_MOST,
        default="0",
    ),
    Definition(
        ("--max-tubes",),
        "answer OUT_OF_MEMORY to a use or watch that would make a tube while there are N",
        field="max_tubes",
        metavar="N",
        variable="GREENSTALK_MAX_TUBES",
        key="limits.tubes",
        type=_COUNT,
        default="0",
    ),
    Definition(
        ("--max-watched",),
        "answer OUT_OF_MEMORY to a watch of one more tube than N by one connection; 0 for no limit",
        field="max_watched",
        metavar="N",
        variable="GREENSTALK_MAX_WATCHED",
        key="limits.watched",
        type=_COUNT,
        default="10240",
    ),
    Definition(
        ("--max-rate",),
        "serve one connection N commands in a second, and read it no faster",
        field="max_rate",
        metavar="N",
        variable="GREENSTALK_MAX_RATE",
        key="limits.rate",
        type=_RATE,
        default="0",
    ),
    Definition(
        ("--max-output",),
        "read a connection no further while BYTES of replies to it wait for the disk",
        field="max_output",
        metavar="BYTES",
        variable="GREENSTALK_MAX_OUTPUT",
        key="limits.output",
        type=_BYTES_AT_MOST,
        default="1048576",
    ),
    Definition(
        ("--idle-timeout",),
        "close a connection that has sent nothing for SECONDS, unless it waits for a job or holds one",
        field="idle_timeout",
        metavar="SECONDS",
        variable="GREENSTALK_IDLE_TIMEOUT",
        key="limits.idle_timeout",
        type=_TIMEOUT,
        default="0",
    ),
    Definition(
        ("--command-timeout",),
        "close a connection that takes longer than SECONDS to send a command and its body",
        field="command_timeout",
        metavar="SECONDS",
        variable="GREENSTALK_COMMAND_TIMEOUT",
        key="limits.command_timeout",
        type=_TIMEOUT,
        default="0",
    ),
    Definition(
        ("--dead-peer-timeout",),
        "close a connection whose other side has not answered TCP for SECONDS",
        field="dead_peer_timeout",
        metavar="SECONDS",
        variable="GREENSTALK_DEAD_PEER_TIMEOUT",
        key="limits.dead_peer_timeout",
        type=_TIMEOUT,
        default="300",
    ),
    Definition(
        ("--log-level",),
        f"log what is of LEVEL or above: {_either(LOG_LEVELS)}",
        field="log_level",
        metavar="LEVEL",
        variable="GREENSTALK_LOG_LEVEL",
        key="log_level",
        type=_LOG_LEVEL,
        default="info",
    ),
    Definition(
        ("--log-format",),
        "log as text, a line an event for people, or as json, an object a line for programs",
        field="log_format",
        metavar="FORMAT",
        variable="GREENSTALK_LOG_FORMAT",
        key="log_format",
        type=_LOG_FORMAT,
        default="text",
    ),
    Definition(
        ("--web-host",),
        "serve the dashboard on ADDR; other than loopback it needs a password",
        field="web_host",
        metavar="ADDR",
        variable="GREENSTALK_WEB_HOST",
        key="web.host",
        default="127.0.0.1",
    ),
    Definition(
        ("--web-port",),
        "serve the dashboard on PORT; 0 is any free one",
        field="web_port",
        metavar="PORT",
        variable="PORT",
        key="web.port",
        type=_PORT,
        default="8080",
    ),
    Definition(
        ("--no-web",),
        "serve no dashboard",
        field="web_enabled",
        kind=Kind.SWITCH,
        variable="GREENSTALK_WEB_ENABLED",
        key="web.enabled",
        type=_BOOLEAN,
        implies="no",
        default="yes",
    ),
    Definition(
        ("--url-prefix",),
        "serve the dashboard under PATH, such as /queue, for a proxy that passes paths on as they are",
        field="url_prefix",
        metavar="PATH",
        variable="GREENSTALK_URL_PREFIX",
        key="web.url_prefix",
        type=_PATH_PREFIX,
        default="",
    ),
    Definition(
        ("--trusted-proxies",),
        "believe the X-Forwarded- headers (-For, -Proto, -Host, -Prefix) of these addresses and networks",
        field="trusted_proxies",
        metavar="LIST",
        variable="GREENSTALK_TRUSTED_PROXIES",
        key="web.trusted_proxies",
        type=_NETWORKS,
        default="",
    ),
    Definition(
        ("--read-only",),
        "let nobody change anything on the dashboard",
        field="read_only",
        kind=Kind.SWITCH,
        variable="GREENSTALK_READ_ONLY",
        key="web.read_only",
        type=_BOOLEAN,
        implies="yes",
        default="no",
    ),
    Definition(
        ("--hide-bodies",),
        "show nobody on the dashboard what is in jobs",
        field="hide_bodies",
        kind=Kind.SWITCH,
        variable="GREENSTALK_HIDE_BODIES",
        key="web.hide_bodies",
        type=_BOOLEAN,
        implies="yes",
        default="no",
    ),
    Definition(
        (),
        "name that the dashboard asks for besides the admins' password; without it any will do",
        field="web_user",
        variable="GREENSTALK_WEB_USER",
        key="web.user",
    ),
    Definition(
        (),
        "password that the dashboard asks for; who gives it is an admin, and may change things",
        field="web_password",
        variable="GREENSTALK_WEB_PASSWORD",
        key="web.password",
        type=_SECRET,
        is_secret=True,
    ),
    Definition(
        (),
        "file that has that password as its first line, instead",
        field="web_password_file",
        variable="GREENSTALK_WEB_PASSWORD_FILE",
        key="web.password_file",
    ),
    Definition(
        (),
        "password of viewers, who may look and change nothing; with this one alone, nobody can",
        field="viewer_password",
        variable="GREENSTALK_WEB_VIEWER_PASSWORD",
        key="web.viewer_password",
        type=_SECRET,
        is_secret=True,
    ),
    Definition(
        (),
        "bearer token by which programs use the API as admins; the pages ask for a password all the same",
        field="api_token",
        variable="GREENSTALK_API_TOKEN",
        key="web.api_token",
        type=_SECRET,
        is_secret=True,
    ),
    Definition(
        (),
        "bearer token by which programs use the API as viewers",
        field="api_viewer_token",
        variable="GREENSTALK_API_VIEWER_TOKEN",
        key="web.api_viewer_token",
        type=_SECRET,
        is_secret=True,
    ),
    Definition(
        (),
        "bearer token that /metrics asks for, and that opens nothing else",
        field="metrics_token",
        variable="GREENSTALK_METRICS_TOKEN",
        key="web.metrics_token",
        type=_SECRET,
        is_secret=True,
    ),
    Definition(
        (),
        "1 to serve the dashboard without a password on any address",
        field="allow_insecure",
        variable="GREENSTALK_ALLOW_INSECURE",
        key="web.allow_insecure",
        type=_BOOLEAN,
        default="no",
    ),
)

TOKENS: Final = ("api_token", "api_viewer_token", "metrics_token")


def defaults() -> dict[str, Any]:
    """The fields of Options that DEFINITIONS fill, as they are when nobody sets anything."""
    values: dict[str, Any] = {row.field: None for row in DEFINITIONS if row.field}
    values.update({row.field: row.type.read(row.default) for row in DEFINITIONS if row.default is not None})
    return values


def problems(options: Options) -> Iterator[UsageError]:
    """Every reason why the fields of *options* do not go together."""
    for refuse in (
        _refuse_two_journals,
        _refuse_half_of_tls,
        _refuse_open_dashboard,
        _refuse_bad_passwords,
        _refuse_bad_tokens,
    ):
        try:
            refuse(options)
        except UsageError as error:
            yield error


def _refuse_half_of_tls(options: Options) -> None:
    """Raise UsageError if there is something of TLS without a certificate, which everything else goes with."""
    if options.tls_cert is not None:
        return
    for of in ("tls_key", "tls_client_ca"):
        if getattr(options, of) is not None:
            raise UsageError(f"{options.named(of)}: must not be set without {options.named('tls_cert')}")


def _refuse_two_journals(options: Options) -> None:
    """Raise UsageError if jobs are to be kept in two places."""
    if options.journal is not None and options.binlog_dir is not None:
        name, other = options.named("journal"), options.named("binlog_dir")
        raise UsageError(f"{name}: must not be set beside {other}: a server has one journal")


def _refuse_open_dashboard(options: Options) -> None:
    """Raise UsageError if anyone on the network could use the dashboard, and nobody has said so."""
    has_password = options.web_password or options.web_password_file or options.viewer_password
    if not options.web_enabled or has_password or options.allow_insecure or _is_loopback(options.web_host):
        return
    tokens = [options.named(token) for token in TOKENS if getattr(options, token)]
    but = f" ({tokens[0]} keeps nobody from the pages)" if tokens else ""
    raise UsageError(
        f"{options.named('web_host')} {shown(options.web_host)}: must be a loopback address while the dashboard has no"
        f" password{but}; set GREENSTALK_WEB_PASSWORD, or GREENSTALK_ALLOW_INSECURE=1 to open it to everyone"
    )


def _refuse_bad_passwords(options: Options) -> None:
    """Raise UsageError if what is said of passwords cannot all be meant."""
    if options.web_password and options.web_password_file:
        name, other = options.named("web_password_file"), options.named("web_password")
        raise UsageError(f"{name}: must not be set beside {other}")
    if options.web_user and not (options.web_password or options.web_password_file):
        name, other = options.named("web_user"), options.named("web_password")
        raise UsageError(f"{name}: must not be set without {other}, which goes with it")
    if options.web_user and ":" in options.web_user:
        raise UsageError(f"{options.named('web_user')}: must not contain a colon, since no browser can send that")
    refuse_equal_passwords(options, options.web_password)


def refuse_equal_passwords(options: Options, password: str | None) -> None:
    """Raise UsageError if the viewers' password is *password*: nobody could tell an admin from a viewer."""
    if password and password == options.viewer_password:
        raise UsageError(f"{options.named('viewer_password')}: must differ from the admins' password")


def _refuse_bad_tokens(options: Options) -> None:
    """Raise UsageError if no header can carry a token, or if nobody could tell what one is for."""
    seen: dict[str, str] = {}
    for of in TOKENS:
        token, name = getattr(options, of), options.named(of)
        if token is None:
            continue
        if not re.fullmatch(r"[!-~]+", token):
            raise UsageError(f"{name}: must be visible ASCII characters, since no header can carry others")
        if token in seen:
            raise UsageError(f"{name}: must differ from {seen[token]}, which opens something else")
        seen[token] = name


def _is_loopback(host: str) -> bool:
    """Tell whether *host* is sure to be this machine alone; a name other than localhost is not."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def without_password(url: str) -> str:
    """Return *url* with stars for the password in it, if there is one."""
    return _PASSWORD.sub(r"\1\2\3\4***", url)


def shown(text: str) -> str:
    """Return *text* for a message, as `quoted`, and cut if it is long."""
    text = without_password(text)
    return quoted(text if len(text) <= LONGEST_VALUE_SHOWN else text[:LONGEST_VALUE_SHOWN] + "…")


def quoted(text: str) -> str:
    """Return *text* with quotes where they are needed to see its ends."""
    return text if text.isprintable() and text and " " not in text else repr(text)
