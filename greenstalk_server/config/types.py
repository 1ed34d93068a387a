"""The types of option values: parse strings and TOML values, and describe the allowed values in messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from greenstalk_server.config.tables import peers, receivers, roles, thresholds
from greenstalk_server.config.tables.addresses import is_safe_url
from greenstalk_server.config.tables.config_tables import Tables, one_of
from greenstalk_server.config.tables.targets import shown_table
from greenstalk_server.config.text import is_database_url, without_password
from greenstalk_server.core.jobs.body_cache import LEAST_LIMIT
from greenstalk_server.core.jobs.id_sequence import MAX_SHARDS
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.policies.policy import MAX_POLICIES, Policy, find_errors, parse_policy
from greenstalk_server.core.tube_shards import Pin, parse_pins
from greenstalk_server.core.units import MILLISECOND, parse_number, parse_size, parse_time
from greenstalk_server.protocol.access import read_rules

T = TypeVar("T")

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")

NEVER: Final = "never"
"""The word that -f accepts instead of a number of milliseconds."""

_MAX_COUNT: Final = 2**63 - 1
_MAX_RATE: Final = 1_000_000
_MAX_TIMEOUT: Final = 30 * 24 * 3600
_MAX_LEASE: Final = 3600
_MIN_SESSION: Final = 60
_MAX_SESSION: Final = 365 * 86400
_MAX_NAME: Final = 200

_URL_PREFIX: Final = re.compile(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._~-]+)*/?")
"""Path segments other than `.` and `..`, which browsers resolve."""


class Units(NamedTuple):
    """Phrases for the units of a value, in messages about strings and about TOML values."""

    in_text: str
    in_toml: str


class TableErrors(ValueError):
    """Several errors in the tables of one option.

    messages    a complete message by the key with the error. The key is given as dotted names below the option's key.
    """

    def __init__(self, messages: list[tuple[str, str]]) -> None:
        super().__init__(messages)
        self.messages: list[tuple[str, str]] = messages


@dataclass(frozen=True, slots=True)
class Type:
    """The type of an option's value.

    parse       converts a string to a value; raises ValueError for a string that is not allowed.
    accepts     describes what `parse` allows, in messages.
    toml_types  the types that the value may have in a configuration file.
    units       describes the units that the value may have.
    keyword     a word that is allowed instead of a number.
    metavar     name of the value in `--help`.
    is_secret   the value must never be shown.
    accepts_in_toml  describes the values allowed in a configuration file. If it is empty, messages are composed of
                     `accepts`, a note on quotes, `units` and `keyword`.
    to_json     converts a value to JSON, as the configuration file would have it.
    from_toml   converts a TOML value that has no string form; its ValueError has the complete message, and its
                TableErrors have several.
    """

    parse: Callable[[str], object]
    accepts: str
    toml_types: tuple[type, ...] = (str,)
    units: Units | None = None
    keyword: str = ""
    metavar: str = ""
    is_secret: bool = False
    accepts_in_toml: str = ""
    to_json: Callable[[Any], object] = lambda value: value
    from_toml: Callable[[Any], object] | None = None

    def read(self, text: str) -> object:
        """Return the value of *text*; raise ValueError with the allowed values."""
        try:
            return self.parse(text)
        except ValueError:
            raise ValueError(self.allowed) from None

    @property
    def allowed(self) -> str:
        """The allowed values of a flag or a variable, for "must be ..."."""
        units = f", {self.units.in_text}" if self.units is not None else ""
        return self.accepts + units + (f"; or {self.keyword}" if self.keyword else "")

    @property
    def allowed_in_toml(self) -> str:
        """The allowed values in a configuration file, for "must be ..."."""
        if self.accepts_in_toml:
            return self.accepts_in_toml
        units = f", {self.units.in_toml}" if self.units is not None else ""
        quotes = ", in quotes" if self.toml_types == (str,) else ", without quotes"
        return self.accepts + quotes + units + (f'; or "{self.keyword}"' if self.keyword else "")


def _text(text: str) -> str:
    if "\0" in text:
        raise ValueError(text)
    return text


def _not_empty(text: str) -> str:
    if not text:
        raise ValueError(text)
    return text


def _directory(text: str) -> str:
    return _text(_not_empty(text))


def _name(text: str) -> str:
    if not 0 < len(text) <= _MAX_NAME or not text.isprintable():
        raise ValueError(text)
    return text


def _database_url(text: str) -> str:
    if not is_database_url(text):
        raise ValueError(text)
    return _text(text)


def _path_prefix(text: str) -> str:
    """Return the path *text* without a trailing slash: `/` is the same as no prefix."""
    if not _URL_PREFIX.fullmatch(text):
        raise ValueError(text)
    return text.rstrip("/")


def _one_of(words: tuple[str, ...], text: str) -> str:
    if text not in words:
        raise ValueError(text)
    return text


def _boolean(text: str) -> bool:
    match text.lower():
        case "1" | "true" | "yes" | "on":
            return True
        case "0" | "false" | "no" | "off":
            return False
    raise ValueError(text)


def _memory_limit(text: str) -> int:
    limit = parse_size(text)
    if 0 < limit < LEAST_LIMIT:
        raise ValueError(text)
    return limit


def _sync_interval(text: str) -> int | None:
    return None if text == NEVER else parse_time(text, MILLISECOND)


def _sync_interval_to_json(interval: int | None) -> object:
    return NEVER if interval is None else interval // MILLISECOND


def _timeout(text: str) -> int:
    seconds, rest = divmod(parse_time(text, SECOND), SECOND)
    if rest or seconds > _MAX_TIMEOUT:
        raise ValueError(text)
    return seconds


def _session_time(text: str) -> int:
    time = parse_time(text, SECOND)
    if not _MIN_SESSION * SECOND <= time <= _MAX_SESSION * SECOND:
        raise ValueError(text)
    return time


def _web_address(text: str) -> str:
    """Return *text*, the address of an identity provider, unless it is unencrypted and of another machine."""
    if not is_safe_url(text):
        raise ValueError(text)
    parts = urlsplit(text)
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError(text)
    return text


def _lease(text: str) -> int:
    lease = parse_time(text, SECOND)
    if not SECOND <= lease <= _MAX_LEASE * SECOND:
        raise ValueError(text)
    return lease


def _lease_to_json(lease: int) -> object:
    return f"{lease // MILLISECOND}ms" if lease % SECOND else lease // SECOND


def _processes(text: str) -> int:
    count = parse_number(text, maximum=MAX_SHARDS)
    if not count:
        raise ValueError(text)
    return count


def _pins(text: str) -> tuple[Pin, ...]:
    return parse_pins(text) if text else ()


def _link_address(text: str) -> str:
    """Return *text*, HOST:PORT or [ADDRESS]:PORT; the other servers must be able to connect to it."""
    if _listen_address(text).rpartition(":")[0].strip("[]") in ("0.0.0.0", "::", "*"):  # noqa: S104  refused
        raise ValueError(text)
    return text


def _listen_address(text: str) -> str:
    """Return *text*, HOST:PORT or [ADDRESS]:PORT."""
    host, _, port = text.rpartition(":")
    plain = host.removeprefix("[").removesuffix("]")
    if not plain or (":" in plain) != host.startswith("[") or parse_number(port, maximum=65535) < 0:
        raise ValueError(text)
    return text


def _addresses(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _networks(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(ip_network(part.strip()) for part in text.split(",")) if text else ()


def _nothing(default: T) -> Callable[[str], T]:
    """Return a function that returns *default*, the value of an option that only a configuration file can set."""

    def read(text: str) -> T:
        assert not text
        return default

    return read


def _find_policy_errors(name: str, document: object) -> list[tuple[str, str]]:
    return [(error.key, str(error)) for error in find_errors(name, document)]


def _tables(
    tables: Tables[T], to_json: Callable[[T], object], collect: Callable[[Iterable[T]], object] = tuple
) -> Type:
    """Return the type of *tables*.

    to_json     returns a parsed table, which has a `name`, as JSON.
    collect     returns the option's value for parsed tables.
    """

    def read(value: object) -> object:
        if not isinstance(value, dict):
            raise ValueError(f"must be {tables.allowed}")  # noqa: TRY004  as for all wrong values
        if len(value) > tables.maximum:
            raise ValueError(f"must be at most {tables.maximum} tables, not {len(value)}")
        errors = [
            (f"{name}.{key}" if key else name, message)
            for name, table in value.items()
            for key, message in tables.find_errors(name, table)
        ]
        if errors:
            raise TableErrors(errors)
        return collect([tables.parse(name, table) for name, table in value.items()])

    return Type(
        _nothing(collect([])),
        "set in the configuration file",
        (dict,),
        accepts_in_toml=tables.allowed,
        to_json=lambda found: {
            each.name: to_json(each) for each in (found.values() if isinstance(found, Mapping) else found)
        },
        from_toml=read,
    )


def _read_thresholds(value: object) -> thresholds.ThresholdSet:
    """Return the thresholds in *value*, the TOML table `[attention]`; raise TableErrors."""
    errors = thresholds.find_errors(value)
    if errors:
        raise TableErrors(errors)
    assert isinstance(value, dict)
    return thresholds.ThresholdSet(value)


def _role_to_json(role: roles.Role) -> object:
    rights = role.rights
    return {
        "view": sorted(rights.view),
        "operate": sorted(rights.operate),
        "admin": rights.is_admin,
        "groups": list(role.groups),
    }


_SIZE_UNITS: Final = Units(
    "or with a unit, as in 64k, 10MB or 2GiB (k is 1024)", 'or with a unit in quotes ("64k", "10MB", "2GiB")'
)
_TIME_UNITS: Final = Units(
    "or with units, as in 50ms, 90s or 1h30m", 'or with units in quotes ("50ms", "90s", "1h30m")'
)
_NUMBER: Final = (int,)
_NUMBER_OR_TEXT: Final = (int, str)

TEXT: Final = Type(_text, "text without NUL characters")
FILE: Final = Type(_text, TEXT.accepts, metavar="FILE")
SECRET: Final = Type(_not_empty, "at least one character", is_secret=True)
NAME: Final = Type(_name, f"1 to {_MAX_NAME} printable characters", metavar="NAME")
DIRECTORY: Final = Type(_directory, "the path of a directory", metavar="DIR")
POSTGRESQL_URL: Final = Type(
    _database_url,
    "a URL such as postgresql://USER@HOST/DATABASE",
    to_json=lambda url: None if url is None else without_password(url),
    metavar="URL",
)
PATH_PREFIX: Final = Type(_path_prefix, "a path such as /queue, of letters, digits and -._~", metavar="PATH")
LOG_LEVEL: Final = Type(partial(_one_of, LOG_LEVELS), one_of(LOG_LEVELS), metavar="LEVEL")
LOG_FORMAT: Final = Type(partial(_one_of, LOG_FORMATS), one_of(LOG_FORMATS), metavar="FORMAT")
BOOLEAN: Final = Type(
    _boolean,
    "1, true, yes or on; or 0, false, no or off",
    (bool,),
    accepts_in_toml="true or false, without quotes",
)
PORT: Final = Type(
    partial(parse_number, maximum=65535), "a port number from 0 (any free port) to 65535", _NUMBER, metavar="PORT"
)
PROCESSES: Final = Type(_processes, f"a whole number of processes, from 1 to {MAX_SHARDS}", _NUMBER, metavar="N")
SHARDS: Final = Type(_processes, f"a whole number of shards, from 1 to {MAX_SHARDS}", _NUMBER, metavar="N")
LINK_ADDRESS: Final = Type(
    _link_address, "HOST:PORT or [ADDRESS]:PORT, with a host that the other servers can reach", metavar="ADDR"
)
LISTEN_ADDRESS: Final = Type(_listen_address, "HOST:PORT or [ADDRESS]:PORT", metavar="ADDR")
COUNT: Final = Type(
    partial(parse_number, maximum=_MAX_COUNT), "a whole number, 0 (no limit) or more", _NUMBER, metavar="N"
)
RATE: Final = Type(
    partial(parse_number, maximum=_MAX_RATE),
    f"a whole number of commands per second, from 0 (no limit) to {_MAX_RATE}",
    _NUMBER,
    metavar="N",
)
SIZE: Final = Type(parse_size, "a whole number of bytes, 0 or more", _NUMBER_OR_TEXT, _SIZE_UNITS, metavar="BYTES")
SIZE_LIMIT: Final = Type(
    partial(parse_size, maximum=_MAX_COUNT),
    "a whole number of bytes, 0 (no limit) or more",
    _NUMBER_OR_TEXT,
    _SIZE_UNITS,
    metavar="BYTES",
)
MEMORY_LIMIT: Final = Type(
    _memory_limit,
    f"a whole number of bytes, {LEAST_LIMIT} or more, or 0 (no limit)",
    _NUMBER_OR_TEXT,
    _SIZE_UNITS,
    metavar="BYTES",
)
SYNC_INTERVAL: Final = Type(
    _sync_interval,
    "a whole number of milliseconds, 0 (at every write) or more",
    _NUMBER_OR_TEXT,
    _TIME_UNITS,
    NEVER,
    to_json=_sync_interval_to_json,
    metavar="MS",
)
TIMEOUT: Final = Type(
    _timeout,
    f"a whole number of seconds, from 0 (never) to {_MAX_TIMEOUT}",
    _NUMBER_OR_TEXT,
    _TIME_UNITS,
    metavar="SECONDS",
)
LEASE: Final = Type(
    _lease,
    f"a number of seconds from 1 to {_MAX_LEASE}",
    _NUMBER_OR_TEXT,
    _TIME_UNITS,
    to_json=_lease_to_json,
    metavar="SECONDS",
)
ADDRESSES: Final = Type(
    _addresses,
    "a comma-separated list of addresses",
    (str, list),
    accepts_in_toml="an address in quotes, or an array of them",
    to_json=list,
    metavar="ADDR",
)
NETWORKS: Final = Type(
    _networks,
    "a comma-separated list of addresses and networks, such as 10.0.0.0/8,::1",
    (list,),
    accepts_in_toml='an array of addresses and networks, such as ["10.0.0.0/8", "::1"]',
    to_json=lambda networks: [str(network) for network in networks],
    metavar="LIST",
)
PINS: Final = Type(
    _pins,
    "a comma-separated list of patterns of tube names, with =SHARD after the last one, as in mail.*,failed=1",
    (str, list),
    accepts_in_toml='patterns of tube names and their shard, as in "mail.*,failed=1", or an array of these',
    to_json=lambda pins: [str(pin) for pin in pins],
    metavar="PATTERN=SHARD",
)
RULES: Final = Type(
    _nothing(()),
    "set in the configuration file",
    (list,),
    accepts_in_toml="tables, each headed [[access]]",
    to_json=lambda rules: [rule.to_json() for rule in rules],
    from_toml=read_rules,
)
POLICIES: Final = _tables(Tables("policies", MAX_POLICIES, _find_policy_errors, parse_policy), Policy.document)
ROLES: Final = _tables(roles.ROLES, _role_to_json, roles.with_built_in)
USERS: Final = _tables(roles.USERS, lambda user: {"role": user.role})
SESSION_TIME: Final = Type(
    _session_time,
    f"a number of seconds from {_MIN_SESSION} to {_MAX_SESSION}",
    _NUMBER_OR_TEXT,
    _TIME_UNITS,
    to_json=lambda time: time // SECOND,
)
WEB_ADDRESS: Final = Type(_web_address, "an address that begins with https://, or with http:// on a loopback address")
THRESHOLDS: Final = Type(
    _nothing(thresholds.ThresholdSet()),
    "set in the configuration file",
    (dict,),
    accepts_in_toml="a table [attention]",
    to_json=lambda found: found.document,
    from_toml=_read_thresholds,
)
ALERTS: Final = _tables(receivers.RECEIVERS, lambda receiver: shown_table(receiver.document))
SERVERS: Final = _tables(peers.PEERS, lambda peer: shown_table(peer.document))
