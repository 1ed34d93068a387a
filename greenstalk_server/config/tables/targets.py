"""HTTP addresses that the configuration allows the server to send requests to. Pure.

Invariant: every address comes from the configuration. Nothing on a page or in the API can set or change one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from msgspec import Meta

from greenstalk_server.config.tables.config_tables import FLAG, Key, read_time, typed
from greenstalk_server.core.jobs.job import SECOND

MAX_URL: Final = 2000
"""Maximum characters of an address."""

DEFAULT_TIMEOUT: Final = 10 * SECOND
MAX_TIMEOUT: Final = 60 * SECOND

FILE: Final = "file"
ENVIRONMENT: Final = "env"
"""FILE, ENVIRONMENT: the two sources of the value of a secret."""

_MAX_NETWORKS: Final = 100
_URL: Final = re.compile(rf"https?://[!-~]{{1,{MAX_URL}}}")

NAMES: Final = (
    re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,39}"),
    "1 to 40 letters, digits and -_., the first a letter or digit",
)
"""Pattern of a target's name, and its description."""

Network = IPv4Network | IPv6Network


class Secret(NamedTuple):
    """The place of a secret: FILE and a path, whose first line is the secret; or ENVIRONMENT and a variable."""

    kind: str
    place: str


@dataclass(frozen=True, slots=True)
class Target:
    """An address, and the restrictions on requests to it.

    name            its name in the configuration.
    url             the address; empty if it is a secret.
    secret_url      the place of the address; None if it is in `url`.
    token           the place of a bearer token; None without one.
    timeout         nanoseconds for a whole request, from the DNS query to the last byte of the response.
    ca_file         PEM file of the authorities that are trusted instead of the system's; empty for the system's.
    allows_plain    whether the address may begin with http://.
    allows_private  whether connections to private and loopback addresses are allowed.
    networks        further networks to which connections are allowed.
    """

    name: str
    url: str
    secret_url: Secret | None
    token: Secret | None
    timeout: int
    ca_file: str
    allows_plain: bool
    allows_private: bool
    networks: tuple[Network, ...]


def parse_url(text: str) -> SplitResult:
    """Return the parts of *text*, an address with a host and without credentials; raise ValueError if it is invalid."""
    if len(text) > MAX_URL or _URL.fullmatch(text) is None:
        raise ValueError
    parts = urlsplit(text)
    if not parts.hostname or parts.port == 0 or "@" in parts.netloc or "#" in text or "\\" in text:  # may raise
        raise ValueError
    return parts


def shown_url(text: str) -> str:
    """Return the scheme and the host of *text*, a valid address: its path may be a secret."""
    parts = urlsplit(text)
    return f"{parts.scheme}://{parts.netloc}"


_read_text: Final = typed(Annotated[str, Meta(min_length=1, max_length=MAX_URL)])
_read_networks: Final = typed(bool | Annotated[list[str], Meta(max_length=_MAX_NETWORKS)])


def _url(value: object) -> str:
    text: str = _read_text(value)
    parse_url(text)
    return text


def _path(value: object) -> str:
    text: str = _read_text(value)
    if not text.startswith("/") or not text.isprintable():
        raise ValueError
    return text


def _networks(value: object) -> bool | tuple[Network, ...]:
    """Return whether private addresses are allowed, or the networks to which connections are allowed."""
    found = _read_networks(value)
    return found if isinstance(found, bool) else tuple([ip_network(each) for each in found])


def _timeout(value: object) -> int:
    timeout = read_time(value, MAX_TIMEOUT)
    if timeout < SECOND:
        raise ValueError
    return timeout


FILE_KEY: Final = Key(_path, "the absolute path of a file")
VARIABLE_KEY: Final = Key(
    typed(Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}\Z")]), "the name of an environment variable"
)

TARGET_KEYS: Final[Mapping[str, Key]] = {
    "url": Key(
        _url, f"a URL that begins with https:// or http://, without a password, at most {MAX_URL} characters", True
    ),
    "url_file": FILE_KEY,
    "url_env": VARIABLE_KEY,
    "token_file": FILE_KEY,
    "token_env": VARIABLE_KEY,
    "timeout": Key(_timeout, f"a number of seconds from 1 to {MAX_TIMEOUT // SECOND}"),
    "ca_file": FILE_KEY,
    "allow_plain": FLAG,
    "allow_private": Key(
        _networks, 'true, false, or an array of networks in quotes, such as ["10.0.0.0/8", "fd00::/8"]'
    ),
}


def find_target_contradictions(table: Mapping[str, Any], *, has_default_url: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the contradictions in *table*, whose keys have valid values: the key, and the end of a message."""
    urls = [name for name in ("url", "url_file", "url_env") if name in table]
    if len(urls) > 1 or not (urls or has_default_url):
        yield urls[1] if urls else "", "must have exactly one of url, url_file and url_env"
    if "token_file" in table and "token_env" in table:
        yield "token_env", "must not have both token_file and token_env"
    if table.get("url", "").startswith("http:") and not table.get("allow_plain"):
        yield "url", "must begin with https://, or the table must have allow_plain = true"


def parse_target(name: str, table: Mapping[str, object], default_url: str = "") -> Target:
    """Return *table*, which must have no errors, as a Target."""
    values = {key: TARGET_KEYS[key].read(value) for key, value in table.items() if key in TARGET_KEYS}
    networks = values.get("allow_private", False)
    secret_url = parse_secret(table, "url")
    return Target(
        name=name,
        url=values.get("url", "" if secret_url else default_url),
        secret_url=secret_url,
        token=parse_secret(table, "token"),
        timeout=values.get("timeout", DEFAULT_TIMEOUT),
        ca_file=values.get("ca_file", ""),
        allows_plain=values.get("allow_plain", False),
        allows_private=networks is True,
        networks=networks if isinstance(networks, tuple) else (),
    )


def parse_secret(table: Mapping[str, object], name: str) -> Secret | None:
    """Return the place of the secret *name* in *table*: the key NAME_file or NAME_env; None without one."""
    for kind in (FILE, ENVIRONMENT):
        place = table.get(f"{name}_{kind}")
        if isinstance(place, str):
            return Secret(kind, place)
    return None


def shown_table(table: Mapping[str, object]) -> dict[str, object]:
    """Return *table* without the values that may be secret: the paths of addresses, and headers."""
    shown = dict(table)
    if isinstance(url := table.get("url"), str):
        shown["url"] = f"{shown_url(url)}/..." if urlsplit(url).path.strip("/") else url
    if isinstance(headers := table.get("headers"), dict):
        shown["headers"] = dict.fromkeys(headers, "...")
    return shown
