"""Encoders of the record kinds without events, which version 1 of the format wrote and later versions only read."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final
from zlib import crc32

from greenstalk_server.core.jobs.job import Job
from greenstalk_server.journal import record

DIRECTORY: Final = Path(__file__).with_name("version1_files")
"""A journal that the last server with version 1 of the format wrote."""


def files() -> dict[str, bytes]:
    """Return the content of each file of DIRECTORY by name."""
    return {path.name: path.read_bytes() for path in DIRECTORY.iterdir()}


def update(salt: bytes, job: Job, sequence: int) -> bytes:
    """Return an UPDATE record of *job* as it is now."""
    counts = (job.reserves, job.timeouts, job.releases, job.buries, job.kicks)
    payload = record.UPDATE_FIELDS.pack(job.id, job.pri, job.delay, job.deadline, *counts, job.state)
    return _sealed(salt, record.UPDATE, sequence, payload)


def reserve(salt: bytes, job: Job, sequence: int) -> bytes:
    """Return a RESERVE record of *job* as it is now."""
    return _sealed(salt, record.RESERVE, sequence, record.RESERVE_FIELDS.pack(job.id, job.reserves, job.timeouts))


def _sealed(salt: bytes, kind: int, sequence: int, payload: bytes) -> bytes:
    rest = struct.pack("<IQB", len(payload), sequence, kind) + payload
    return salt + struct.pack("<I", crc32(rest, record.seed_of(salt))) + rest
