"""Fuzz beanstalkd's files, generated and damaged. They have no checksum, so every consistent record is a job.

Checked: reading raises nothing, and finds no more bytes than the files have; every body is part of a file; a start
imports all jobs, or refuses with StartError; and the imported journal is consistent, accepts puts, and is restored by
the next start.
"""

from __future__ import annotations

import struct
from typing import Final

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.journal import beanstalkd, startup
from greenstalk_server.runtime.exit_codes import StartError
from tests.fuzz.journal import facts, put_one, started
from tests.fuzz.source import Source
from tests.journal.disk import Disk
from tests.journal.test_beanstalkd import CREATED, FIELDS, LENGTH

IDS: Final = (1, 2, 3, 4, 0, 2**63 - 1, 2**63, 2**64 - 1)
TIMES: Final = (0, SECOND, 60 * SECOND, 1, -1, 4_294_967_295 * SECOND, 2**63 - 1, -(2**63))
CREATIONS: Final = (CREATED, CREATED + 1, 0, -1, 2**63 - 1, 10**18)
NAMES: Final = (b"default", b"a", b"a" * 200, b"-a", b"\0", b"a" * 201)
LENGTHS: Final = (0, 1, -1, 200, 201, 2**31 - 1, -(2**31))
SIZES: Final = (0, 1, -1, 2**31 - 1, -(2**31), 100)
MAX_STEPS: Final = 60


def one(data: bytes) -> None:
    """Make files from *data*, read them, and start on them."""
    files = _files(Source(data))
    size = sum(map(len, files.values()))
    source = beanstalkd.BeanstalkdBinlog()
    for name in beanstalkd.find(files):
        source.read(name, files[name])
    assert source.records * FIELDS[5].size <= size
    assert sum(len(job.body) for job in source.jobs.values()) <= size
    assert sum(damage.bytes_lost for damage in source.damage) <= size
    assert all(any(job.body in each for each in files.values()) for job in source.jobs.values())
    assert all(isinstance(line, str) for line in source.warnings())
    disk = Disk(files)
    try:
        broker, journal = started(disk)
    except StartError:
        return
    assert {id: (job.tube.name, job.body) for id, job in broker.jobs.items()} == {
        id: (job.tube, job.body) for id, job in source.jobs.items()
    }
    put_one(broker)
    startup.write_out(journal)
    again, _ = started(disk)
    assert {id: facts(job) for id, job in again.jobs.items()} == {id: facts(job) for id, job in broker.jobs.items()}


def _files(source: Source) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    version = source.pick((7, 5))
    data = struct.pack("<i", version)
    for _ in range(MAX_STEPS):
        if not source:
            break
        kind = source.byte() % 8
        if kind < 3:
            data += _record(version, source, is_full=True)
        elif kind == 3:
            data += _record(version, source, is_full=False)
        elif kind == 4:
            data += source.take(source.byte())
        elif kind == 5:
            data += bytes(source.byte())
        elif kind == 6:
            at = source.short() % max(1, len(data))
            data = data[:at] + source.take(source.byte() % 9) + data[at + source.byte() % 9 :]
        else:
            files[f"binlog.{len(files) + 1}"] = data
            version = source.pick((7, 5, 5, 7, 6))
            data = struct.pack("<i", version)
    files[f"binlog.{len(files) + 1}"] = data
    return files


def _record(version: int, source: Source, *, is_full: bool) -> bytes:
    """Return a record, usually of a job that may exist."""
    version = 5 if version == 5 else 7
    oddity = source.byte()
    name = source.pick(NAMES) if is_full else b""
    body = source.take(source.byte() % 16)
    unit = 1000 if version == 5 else 1
    delay, ttr, deadline = (
        time // unit if odd else SECOND // unit * 60
        for time, odd in ((source.pick(TIMES), oddity & 1), (source.pick(TIMES), oddity & 2), (source.pick(TIMES), 1))
    )
    size = source.pick(SIZES) if oddity & 4 else len(body) + 2
    created = (source.pick(CREATIONS) if oddity & 8 else CREATED) // unit
    times = (delay, ttr, size, created, deadline)
    counts = (source.byte(), 2**32 - 1 if oddity & 16 else 0, 0, 0, 0)
    state = source.byte() % (256 if oddity & 32 else 5)
    fields = FIELDS[version].pack(source.pick(IDS), source.byte(), *times, *counts, state)
    length = source.pick(LENGTHS) if oddity & 64 else len(name)
    if version == 5:
        length &= 2**64 - 1
    head = LENGTH[version].pack(length) + name + fields
    return head + body + (b"xy" if oddity & 128 else b"\r\n") if is_full else head
