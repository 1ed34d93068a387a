"""Other servers that the dashboard shows: the tables `[servers.NAME]` of the configuration file. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from greenstalk_server.config.tables.config_tables import Tables, tables_of_keys
from greenstalk_server.config.tables.targets import (
    NAMES,
    TARGET_KEYS,
    Target,
    find_target_contradictions,
    parse_target,
)

MAX_PEERS: Final = 32


@dataclass(frozen=True, slots=True)
class Peer:
    """Another server; *document* is its table in the configuration. The address is its dashboard's."""

    name: str
    target: Target
    document: Mapping[str, object]


def parse_peer(name: str, table: Mapping[str, object]) -> Peer:
    """Return *table*, which must have no errors, as a Peer."""
    return Peer(name, parse_target(name, table), table)


PEERS: Final[Tables[Peer]] = tables_of_keys(
    "servers", MAX_PEERS, NAMES, TARGET_KEYS, lambda _, table: find_target_contradictions(table), parse_peer
)
