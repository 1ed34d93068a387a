"""Segments of the journal during a replay: their damage, and checks of their bytes.

Pure, and safe for arbitrary input.
"""

from __future__ import annotations

from array import array
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

from greenstalk_server.journal import record
from greenstalk_server.journal.record import BadSegment, SegmentHeader

UNKNOWN_SEQUENCE: Final = -2
"""The number that stands for the last record before damage to the oldest file.

If a later segment begins a rewrite, the lost records were rewritten, so the damage is a torn tail.
"""

NOT_REWRITTEN: Final = 2**64
"""Value of `rewritten_from` for a segment without rewritten records."""

_COPIED: Final = 4096
"""A record of fewer bytes is copied to compute its CRC."""

SECTOR: Final = 512
"""Bytes that a disk writes atomically."""

_ZEROS: Final = bytes(65536)


@dataclass(slots=True)
class Damage:
    """A damaged part of a file.

    offset          start of the part, bytes from the start of the file.
    bytes_lost      length of the part.
    records_lost    number of records in it, by the sequence numbers around it; None if unknown.
    is_torn_tail    a crash or a failing disk has caused it, and nothing acknowledged is lost: it is the end of the
                    newest segment, or its records were rewritten.
    """

    file: str
    offset: int
    bytes_lost: int
    reason: str
    records_lost: int | None = None
    is_torn_tail: bool = False

    def __str__(self) -> str:
        lost = "" if self.records_lost is None else f", {self.records_lost} records"
        return f"{self.file}: {self.reason} at offset {self.offset}: {self.bytes_lost} bytes{lost} lost"


@dataclass(slots=True)
class ReplayedSegment:
    """One segment after its replay.

    end     offset of the end of its last sound record that takes effect.
    size    bytes of its file.
    ids     id of each JOB record, in order.
    starts  offset of each JOB record, if bodies may be read back.
    has_repeats it has two JOB records of one job.
    entries     policies and keys of its records, in order.
    is_newest   no later segment was begun.
    rewritten_from  number of the first record that a later segment rewrites; NOT_REWRITTEN if none is.
    """

    file: str
    header: SegmentHeader
    end: int
    size: int
    ids: array[int]
    is_newest: bool
    rewritten_from: int
    records: int = 0
    starts: array[int] = field(default_factory=lambda: array("Q"))
    has_repeats: bool = False
    entries: list[record.Entry] = field(default_factory=list)


def rewrite_points(heads: dict[int, bytes]) -> dict[int, int]:
    """Map each segment number to the number of the first record that later segments rewrite, or to NOT_REWRITTEN.

    *heads* are the first bytes of each segment. After a disk failure, records from that number on were rewritten.
    """
    found, lowest = {}, NOT_REWRITTEN
    for number in sorted(heads, reverse=True):
        found[number] = lowest
        with suppress(BadSegment):
            header = record.decode_segment_header(heads[number])
            if header.number == number:
                lowest = min(lowest, header.first_sequence)
    return found


def crc_of(data: bytes, view: memoryview, at: int, stop: int, seed: int) -> int:
    """Return the CRC-32 of *data* from *at* to *stop*; *view* is a view of *data*.

    A copy of a short part takes less time than a slice of the view.
    """
    return crc32(data[at:stop] if stop - at < _COPIED else view[at:stop], seed)


def sound_job(data: bytes, at: int, sequence: int, salt: bytes) -> int:
    """Return the end of the record at *at* if it is a sound JOB record with number *sequence*, else 0."""
    if at + record.HEADER_SIZE > len(data):
        return 0
    marker, crc, length, number, kind = record.HEADER.unpack_from(data, at)
    stop = at + record.HEADER_SIZE + length
    if marker != salt or number != sequence or kind not in record.JOB_KINDS or stop > len(data):
        return 0
    is_sound = crc32(memoryview(data)[at + record.PREFIX_SIZE : stop], record.seed_of(salt)) == crc
    return stop if is_sound and length >= record.MIN_PAYLOAD[kind] else 0


def is_blank(data: bytes, at: int = 0) -> bool:
    """Return whether *data* has only zeros from *at* on. `strip` alone would take 20 ms for 10 MB."""
    while data.startswith(_ZEROS, at):
        at += len(_ZEROS)
    return not data[at : at + len(_ZEROS)].strip(b"\0")


def is_begun(data: bytes) -> bool:
    """Return whether the header of the segment *data* is complete; if not, nothing in the segment was acknowledged."""
    size = record.SEGMENT_HEADER_SIZE
    return not is_blank(data[:size]) and not is_blank(data, size - 1)


def is_unwritten(data: bytes, at: int, end: int) -> bool:
    """Return whether a sector between *at* and *end* is all zeros. The first sector is tested from *at* on."""
    ends = range(at // SECTOR * SECTOR + SECTOR, end + 1, SECTOR)
    return any(not data[max(at, stop - SECTOR) : stop].strip(b"\0") for stop in ends)
