"""One file of the journal while a server has it: what is in it, and what is still to be written to it."""

from __future__ import annotations

import re
from array import array
from typing import Final

from greenstalk_server.journal import record

PREFIX: Final = "journal."
_FILE_NAME: Final = re.compile(r"journal\.([1-9][0-9]{0,17})", re.ASCII)
LIMBO_CAPACITY: Final = 2**63


def name_of(number: int) -> str:
    """The file name of the segment *number*."""
    return f"{PREFIX}{number}"


def numbers(names: list[str]) -> list[int]:
    """The numbers of the segments among files of these *names*, rising."""
    return sorted([int(match[1]) for match in map(_FILE_NAME.fullmatch, names) if match is not None])


class Segment:
    """One segment.

    handle      the open file, or None if there is no file yet, or no more.
    capacity    bytes the file has room for.
    first_sequence  as in its header.
    used        bytes of its records, written or not.
    written     bytes that are in the file.
    chunks      records not written yet, in order.
    ids         the jobs it has a JOB record of; `cursor` of them have been looked at by compaction.
    starts      where those records begin, if bodies may have to be read back.
    has_repeats it has two JOB records of one job.
    live_count  how many jobs have their newest JOB record in it.
    is_listed   its name in the directory is known to be on disk.
    is_proven   a batch on it has worked, so something may have been promised on it.
    touched     the jobs of all its records, until it is known to be on disk whole; then None.
    touched_tubes  names of the tubes whose pause, or its end, is in it.
    """

    __slots__ = (
        "capacity",
        "chunks",
        "cursor",
        "encoder",
        "first_sequence",
        "handle",
        "has_repeats",
        "ids",
        "is_listed",
        "is_proven",
        "live_count",
        "number",
        "starts",
        "touched",
        "touched_tubes",
        "used",
        "written",
    )

    def __init__(self, number: int, capacity: int) -> None:
        self.number: int = number
        self.capacity: int = capacity
        self.handle: int | None = None
        self.first_sequence: int = 0
        self.used: int = 0
        self.written: int = 0
        self.chunks: list[bytes] = []
        self.ids: array[int] = array("Q")
        self.starts: array[int] = array("Q")
        self.has_repeats: bool = False
        self.cursor: int = 0
        self.live_count: int = 0
        self.is_listed: bool = False
        self.is_proven: bool = False
        self.touched: array[int] | None = array("Q")
        self.touched_tubes: set[bytes] = set()
        self.encoder: record.Encoder = record.Encoder(b"\0\0\0\0")

    def begin(self, salt: bytes, first_sequence: int, next_id: int) -> None:
        """Make it ready for records, the header first."""
        self.encoder = record.Encoder(salt)
        self.first_sequence = first_sequence
        self.add_bare(record.SegmentHeader(salt, self.number, first_sequence, next_id).encode())

    def add(self, data: bytes, id: int) -> None:
        """Have *data*, a record about the job *id*, written after all else."""
        self.chunks.append(data)
        self.used += len(data)
        if self.touched is not None:
            self.touched.append(id)

    def add_bare(self, data: bytes) -> None:
        """Have *data*, about no job, written after all else."""
        self.chunks.append(data)
        self.used += len(data)

    def add_pause(self, data: bytes, name: bytes) -> None:
        """Have *data*, about the tube *name*, written after all else."""
        self.touched_tubes.add(name)
        self.add_bare(data)

    def __repr__(self) -> str:
        return f"<Segment {self.number} used={self.used} written={self.written} live={self.live_count}>"


class Limbo(Segment):
    """What stands in for a segment while the disk fails: it keeps only which jobs its records are about."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(0, LIMBO_CAPACITY)

    def add(self, data: bytes, id: int) -> None:
        assert self.touched is not None
        self.touched.append(id)

    def add_bare(self, data: bytes) -> None:
        pass
