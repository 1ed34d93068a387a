"""Moves the dashboard's files of version 0.1.0 into the store.

Each file is written in a transaction of its own, and then renamed to `NAME.migrated`, so a crash repeats at most one
file. A damaged file, or a damaged part of one, is logged and left out.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from greenstalk_server.journal.files import open_regular
from greenstalk_server.web.store.audit import ROW as AUDIT
from greenstalk_server.web.store.rows import Change, Rows
from greenstalk_server.web.store.saved_data import PAUSE, SAMPLE

log = logging.getLogger(__name__)

SUFFIX: Final = ".migrated"

MAX_FILE: Final = 256 * 2**20
"""Maximum bytes of a file that is read."""

_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_DAMAGE: Final = (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError)


def migrate(directory: str, rows: Rows) -> None:
    """Move the files in *directory* into *rows*; raise OSError. Blocks."""
    for name, convert in _CONVERTERS.items():
        path = Path(directory, name)
        if not path.exists():
            continue
        with os.fdopen(open_regular(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            data = file.read(MAX_FILE)
        try:
            rows.write(list(convert(data)), {})
        except _DAMAGE as error:
            log.error("dashboard: %s is damaged (%s), and its contents are lost", path, error)  # noqa: TRY400  the message is complete
        path.replace(path.with_name(path.name + SUFFIX))
        log.info("dashboard: moved %s into the store, and renamed it to %s%s", path, path.name, SUFFIX)


def _saved_data(data: bytes) -> Iterator[Change]:
    document = json.loads(data)
    for sample in document["samples"]:
        yield SAMPLE, 0, sample["name"].encode(), _json(sample)
    for tube, reason in document["pauses"].items():
        yield PAUSE, 0, tube.encode(), _json(reason)


def _audit(data: bytes) -> Iterator[Change]:
    for line in data.splitlines():
        try:
            entry = json.loads(line)
            microseconds = (datetime.fromisoformat(entry["at"]) - _EPOCH) // timedelta(microseconds=1)
            yield AUDIT, entry["n"], b"", _json(entry | {"at": microseconds * 1000})
        except _DAMAGE:
            continue  # a crash left a part of a line


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


_CONVERTERS: Final[dict[str, Callable[[bytes], Iterator[Change]]]] = {
    "dashboard.json": _saved_data,
    **{f"audit.jsonl{age}": _audit for age in (".3", ".2", ".1", "")},
}
