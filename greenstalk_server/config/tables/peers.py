"""Other servers that the dashboard shows: the tables `[servers.NAME]` of the configuration file. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from greenstalk_server.config.tables.config_tables import find_key_mistakes
from greenstalk_server.config.tables.targets import (
    TARGET_KEYS,
    Target,
    find_target_mistakes,
    find_target_name_mistakes,
    parse_target,
    shown_table,
)

MAX_PEERS: Final = 32


@dataclass(frozen=True, slots=True)
class Peer:
    """Another server; *document* is its table in the configuration. The address is that of its dashboard."""

    name: str
    target: Target
    document: Mapping[str, object]


def find_mistakes(name: str, table: object) -> list[tuple[str, str]]:
    """Return each mistake in *table*, `[servers.NAME]`: the key, and a complete message."""
    if mistakes := find_target_name_mistakes("servers", name, table):
        return mistakes
    assert isinstance(table, dict)
    place = f"servers.{name}"
    mistakes = find_key_mistakes(place, table, TARGET_KEYS)
    found = [] if mistakes else find_target_mistakes(table)
    return mistakes + [(key, f"{place}: {text}") for key, text in found]


def parse_peer(name: str, table: Mapping[str, object]) -> Peer:
    """Return *table*, which must have no mistakes, as a Peer."""
    return Peer(name, parse_target(name, table), table)


def shown_peer(peer: Peer) -> dict[str, object]:
    """Return the table of *peer* without the values that may be secret."""
    return shown_table(peer.document)
