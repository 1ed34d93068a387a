"""Moves the dashboard's files of earlier versions into the store.

Each file is written in a transaction of its own, and then renamed to `NAME.migrated`, so a crash repeats at most one
file. A damaged file, or a damaged part of one, is logged and left out.
"""

from __future__ import annotations

import json
import logging
import os
import re
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from struct import Struct
from typing import Any, Final

from greenstalk_server.journal.files import open_regular
from greenstalk_server.web.features.history.archive import TIERS, log_kind
from greenstalk_server.web.features.history.points import frame_number
from greenstalk_server.web.store.rows import Change, Rows

log = logging.getLogger(__name__)

SUFFIX: Final = ".migrated"

MAX_FILE: Final = 256 * 2**20
"""Maximum bytes of a file that is read."""

_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_BLOCK: Final = re.compile(rf"({'|'.join(tier.name for tier in TIERS)})-([0-9]{{1,12}})(\.log|)")
_HEAD: Final = Struct("<II")
"""Length and CRC-32 of the following payload."""

_MAGIC: Final = 8
"""Bytes at the beginning of the files of the history."""

_DAMAGE: Final = (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError)


def migrate(directory: str, rows: Rows) -> None:
    """Move the files in *directory* into *rows*; raise OSError. Blocks."""
    for path, convert in _files(Path(directory)):
        with os.fdopen(open_regular(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            data = file.read(MAX_FILE)
        try:
            rows.write(list(convert(data)), {})
        except _DAMAGE as error:
            log.error("dashboard: %s is damaged (%s), and what it has is lost", path, error)  # noqa: TRY400  the message is complete
        path.replace(path.with_name(path.name + SUFFIX))
        log.info("dashboard: moved %s into the store, and renamed it to %s%s", path, path.name, SUFFIX)


def _files(directory: Path) -> Iterator[tuple[Path, Callable[[bytes], Iterator[Change]]]]:
    """Yield each existing file of an earlier version, and the function that converts it."""
    for name, convert in (
        ("dashboard.json", _saved_data),
        ("sessions.jsonl", _sessions),
        ("alerts.json", _alerts),
        *[(f"audit.jsonl{age}", _audit) for age in (".3", ".2", ".1", "")],
        ("history/marks.json", _marks),
    ):
        if (directory / name).exists():
            yield directory / name, convert
    for path in sorted((directory / "history").glob("*-*")):
        match = _BLOCK.fullmatch(path.name)
        if match and not match[3]:
            yield path, _block(match[1], int(match[2]))
        elif match and not path.with_suffix("").exists() and not path.with_suffix(SUFFIX).exists():
            yield path, _log(match[1])  # a crash may have left the log of a block


def _saved_data(data: bytes) -> Iterator[Change]:
    document = json.loads(data)
    for sample in document["samples"]:
        yield "sample", 0, sample["name"].encode(), _json(sample)
    for search in document.get("searches", []):
        yield "search", 0, search["name"].encode(), _json({"name": search["name"], "q": search["query"]})
    for tube, reason in document["pauses"].items():
        yield "pause-reason", 0, tube.encode(), _json(reason)


def _sessions(data: bytes) -> Iterator[Change]:
    head, *lines = data.splitlines()
    yield "session-salt", 0, b"", bytes.fromhex(json.loads(head)["salt"])
    for session in map(json.loads, lines):
        yield "session", 0, session["key"].encode(), _json(session)


def _alerts(data: bytes) -> Iterator[Change]:
    document = json.loads(data)
    silences = document.pop("silences")
    for silence in silences:
        silence |= {"tubes": silence["tubes"] or None, "condition": silence["kind"] or None, "covers_new": True}
        silence |= {"since": _instant(silence["since"]), "until": _instant(silence["until"])}
    last = document.pop("last_silence")
    yield "acknowledgements", 0, b"", _json({"last": last, "acknowledgements": silences})
    for delivery in document["log"]:
        delivery |= {"at": _instant(delivery["at"]), "status": delivery["status"] or None}
    yield "alerts", 0, b"", _json(document | {"version": 2})


def _audit(data: bytes) -> Iterator[Change]:
    for line in data.splitlines():
        try:
            entry = json.loads(line)
            microseconds = (datetime.fromisoformat(entry["at"]) - _EPOCH) // timedelta(microseconds=1)
            yield "audit", entry["n"], b"", _json(entry | {"at": microseconds * 1000})
        except _DAMAGE:
            continue  # a crash left a part of a line


def _marks(data: bytes) -> Iterator[Change]:
    for number, mark in enumerate(json.loads(_checked(data)), 1):
        yield "mark", number, b"", _json(mark | {"at": _instant(mark["at"]), "tube": mark["tube"] or None})


def _log(tier: str) -> Callable[[bytes], Iterator[Change]]:
    def convert(data: bytes) -> Iterator[Change]:
        at = _MAGIC
        while at + _HEAD.size <= len(data):
            length, crc = _HEAD.unpack_from(data, at)
            frame = data[at + _HEAD.size : at + _HEAD.size + length]
            at += _HEAD.size + length
            if length and len(frame) == length and zlib.crc32(frame) == crc:
                yield log_kind(tier), frame_number(frame), b"", frame

    return convert


def _block(tier: str, number: int) -> Callable[[bytes], Iterator[Change]]:
    def convert(data: bytes) -> Iterator[Change]:
        index = _checked(data)
        chunks = data[_MAGIC + _HEAD.size + len(index) :]
        for line in index.splitlines()[1:]:
            name, offset, size, crc = line.rsplit(b" ", 3)
            chunk = chunks[int(offset) : int(offset) + int(size)]
            if zlib.crc32(chunk) == int(crc):
                yield tier, number, name, chunk

    return convert


def _checked(data: bytes) -> bytes:
    """Return the payload after the head of *data*; raise ValueError if it is damaged."""
    if len(data) < _MAGIC + _HEAD.size:
        raise ValueError("it is too short")
    length, crc = _HEAD.unpack_from(data, _MAGIC)
    payload = data[_MAGIC + _HEAD.size :][:length]
    if zlib.crc32(payload) != crc:
        raise ValueError("its checksum is wrong")
    return payload


def _instant(nanoseconds: int) -> str:
    return (_EPOCH + timedelta(microseconds=nanoseconds // 1000)).isoformat()


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
