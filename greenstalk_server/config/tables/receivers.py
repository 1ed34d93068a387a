"""Receivers of alerts: the tables `[alerts.NAME]` of the configuration file. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from greenstalk_server.config.tables.config_tables import FLAG, Key, Tables, one_of, read_time, tables_of_keys, typed
from greenstalk_server.config.tables.targets import (
    FILE_KEY,
    NAMES,
    TARGET_KEYS,
    VARIABLE_KEY,
    Secret,
    Target,
    find_target_contradictions,
    parse_secret,
    parse_target,
    parse_url,
)
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.tube_names import any_of, is_tube_pattern

MAX_RECEIVERS: Final = 16
MAX_PATTERNS: Final = 100
MAX_HEADERS: Final = 20
MAX_SOURCE: Final = 100
"""Maximum characters of the name of this server."""

JSON: Final = "json"
SLACK: Final = "slack"
PAGERDUTY: Final = "pagerduty"
TEMPLATES: Final = (JSON, SLACK, PAGERDUTY)

PAGERDUTY_URL: Final = "https://events.pagerduty.com/v2/enqueue"

SEVERITIES: Final = ("critical", "failure", "warning")
CONDITION_KINDS: Final = (
    "journal", "shard", "disk", "memory", "limit", "standby", "moving", "refused", "buried",
    "waiting_dead_letters", "buried_growth", "no_consumers", "oldest_ready", "held_back", "timeouts",
    "failed_attempts", "dead_letters", "backlog_growth", "held_job", "paused",
)  # fmt: skip
"""The kinds of conditions that need attention, the worst first."""

_DAY: Final = 24 * 3600 * SECOND
_OWN_HEADERS: Final = frozenset(
    {"accept-encoding", "authorization", "connection", "content-length", "content-type", "host", "transfer-encoding"}
)


@dataclass(frozen=True, slots=True)
class Receiver:
    """A receiver of alerts. Times are nanoseconds.

    template        one of TEMPLATES: the form of its messages.
    secret          key of the signature (json), or the routing key (pagerduty); None without one.
    severities, kinds   the conditions that it receives.
    tubes           patterns of the tubes whose conditions it receives; empty for all.
    with_server     whether it receives conditions of the server.
    wait            time for which a condition must hold before it is sent.
    resolve_after   time for which a condition must be over before its end is sent.
    repeat          time after which a condition that still holds is sent again; 0 for never.
    interval        minimum time between two messages; critical conditions are sent earlier.
    with_resolved   whether the end of a condition is sent.
    headers         further headers of its requests.
    source          name of this server in messages; empty for the name of the host, or of the shared journal.
    dashboard_url   address of the dashboard for links; empty for messages without links.
    document        the table in the configuration.
    """

    name: str
    target: Target
    template: str
    secret: Secret | None
    severities: frozenset[str]
    kinds: frozenset[str]
    tubes: tuple[str, ...]
    with_server: bool
    wait: int
    resolve_after: int
    repeat: int
    interval: int
    with_resolved: bool
    headers: Mapping[str, str]
    source: str
    dashboard_url: str
    document: Mapping[str, object]
    _tubes: re.Pattern[bytes] | None = field(compare=False, repr=False)

    def wants(self, kind: str, severity: str, tube: bytes) -> bool:
        """Whether it receives conditions of *kind* and *severity* about *tube*; an empty *tube* is the server."""
        if severity not in self.severities or kind not in self.kinds:
            return False
        if not tube:
            return self.with_server
        return self._tubes is None or self._tubes.fullmatch(tube) is not None


def _some_of(words: tuple[str, ...]) -> Callable[[object], Any]:
    return typed(Annotated[frozenset[Literal[words]], Meta(min_length=1)])  # type: ignore[valid-type]  # made here


def _patterns(value: object) -> tuple[str, ...]:
    patterns: tuple[str, ...] = _read_patterns(value)
    if not all(is_tube_pattern(each) for each in patterns):
        raise ValueError
    return patterns


def _headers(value: object) -> dict[str, str]:
    headers: dict[str, str] = _read_headers(value)
    if any(name.lower() in _OWN_HEADERS for name in headers):
        raise ValueError
    return headers


def _dashboard_url(value: object) -> str:
    if not isinstance(value, str) or parse_url(value).query:
        raise ValueError
    return value.rstrip("/")


def _source(value: object) -> str:
    source: str = _read_source(value)
    if not source.isprintable():
        raise ValueError
    return source


_read_patterns: Final = typed(Annotated[tuple[str, ...], Meta(min_length=1, max_length=MAX_PATTERNS)])
_read_headers: Final = typed(
    Annotated[
        dict[Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]{1,100}\Z")], Annotated[str, Meta(pattern=r"^[ -~]{0,500}\Z")]],
        Meta(max_length=MAX_HEADERS),
    ]
)
_read_source: Final = typed(Annotated[str, Meta(min_length=1, max_length=MAX_SOURCE)])

_TIME_KEY: Final = Key(
    partial(read_time, most=30 * _DAY),
    f'a number of seconds from 0 to {30 * _DAY // SECOND}, or text with units in quotes ("90s", "4h")',
)

_KEYS: Final[Mapping[str, Key]] = {
    **TARGET_KEYS,
    "template": Key(typed(Literal[TEMPLATES]), f"{one_of(TEMPLATES)}, in quotes", is_required=True),
    "secret_file": FILE_KEY,
    "secret_env": VARIABLE_KEY,
    "severities": Key(_some_of(SEVERITIES), f"an array of {one_of(SEVERITIES)}, in quotes"),
    "kinds": Key(_some_of(CONDITION_KINDS), f"an array of {one_of(CONDITION_KINDS)}, in quotes"),
    "tubes": Key(_patterns, f"an array of 1 to {MAX_PATTERNS} patterns of tube names, in quotes"),
    "server": FLAG,
    "for": _TIME_KEY,
    "resolve_after": _TIME_KEY,
    "repeat": _TIME_KEY,
    "interval": _TIME_KEY,
    "resolved": FLAG,
    "headers": Key(
        _headers,
        f'a table of at most {MAX_HEADERS} headers, such as {{ "X-Team" = "mail" }}, but none that the server sets',
        is_secret=True,
    ),
    "source": Key(_source, f"1 to {MAX_SOURCE} printable characters, in quotes"),
    "dashboard_url": Key(_dashboard_url, "the URL of the dashboard, such as https://queue.example.com"),
}


def _find_contradictions(_: str, table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from find_target_contradictions(table, has_default_url=table["template"] == PAGERDUTY)
    if "secret_file" in table and "secret_env" in table:
        yield "secret_env", "must not have both secret_file and secret_env"
    has_secret = "secret_file" in table or "secret_env" in table
    if table["template"] == PAGERDUTY and not has_secret:
        yield "template", "must have secret_file or secret_env, the routing key"
    if table["template"] == SLACK and has_secret:
        yield "template", "must not have a secret: messages in this form are not signed"


def parse_receiver(name: str, table: Mapping[str, object]) -> Receiver:
    """Return *table*, which must have no errors, as a Receiver."""
    values = {key: _KEYS[key].read(value) for key, value in table.items()}
    tubes = values.get("tubes", ())
    return Receiver(
        name=name,
        target=parse_target(name, table, PAGERDUTY_URL if values["template"] == PAGERDUTY else ""),
        template=values["template"],
        secret=parse_secret(table, "secret"),
        severities=values.get("severities", frozenset(SEVERITIES)),
        kinds=values.get("kinds", frozenset(CONDITION_KINDS)),
        tubes=tubes,
        with_server=values.get("server", not tubes),
        wait=values.get("for", 60 * SECOND),
        resolve_after=values.get("resolve_after", 60 * SECOND),
        repeat=values.get("repeat", 4 * 3600 * SECOND),
        interval=values.get("interval", 30 * SECOND),
        with_resolved=values.get("resolved", True),
        headers=values.get("headers", {}),
        source=values.get("source", ""),
        dashboard_url=values.get("dashboard_url", ""),
        document=table,
        _tubes=any_of(tubes),
    )


RECEIVERS: Final[Tables[Receiver]] = tables_of_keys(
    "alerts", MAX_RECEIVERS, NAMES, _KEYS, _find_contradictions, parse_receiver
)
