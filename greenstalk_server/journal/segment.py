"""One segment of the journal: the content of its file, and the records not written yet."""

from __future__ import annotations

import re
from array import array
from typing import Final

from greenstalk_server.journal import record

PREFIX: Final = "journal."
_FILE_NAME: Final = re.compile(r"journal\.([1-9][0-9]{0,17})", re.ASCII)
BLOCK: Final = 4096
"""Bytes that a file system allocates at a time."""

DISCARDING_CAPACITY: Final = 2**63

LARGE_BODY: int = 16384
"""Size in bytes above which a body is written without copying, and its checksum is computed at write time.

Not Final, so that a test can change it in the compiled build.
"""

COPIED_BODY: Final = 1024
"""Maximum bytes of a body that is copied into its record.

The copy costs no more than the second checksum and the second chunk that it saves.
"""


def name_of(number: int) -> str:
    """Return the file name of the segment *number*."""
    return f"{PREFIX}{number}"


def numbers(names: list[str]) -> list[int]:
    """Return the segment numbers in the file names *names*, in ascending order."""
    return sorted([int(match[1]) for match in map(_FILE_NAME.fullmatch, names) if match is not None])


def on_disk(size: int) -> int:
    """Return the bytes of the disk that a file of *size* bytes takes."""
    return -(-size // BLOCK) * BLOCK


class PendingRecords:
    """Records to append to a segment; `chunks` and `unsealed` are as in Segment."""

    __slots__ = ("_chunks", "_encoder", "_unsealed")

    def __init__(self, encoder: record.Encoder, chunks: list[bytes], unsealed: list[int]) -> None:
        self._encoder: record.Encoder = encoder
        self._chunks: list[bytes] = chunks
        self._unsealed: list[int] = unsealed

    def encode(self) -> list[bytes]:
        """Return the bytes in as few pieces as possible, without copying large bodies.

        May run in any thread; call it only once.

        The checksums of large bodies are computed here.
        """
        chunks = self._chunks
        if not self._unsealed:
            return [b"".join(chunks)] if chunks else []
        self._chunks = []  # else a batch would keep bodies of deleted jobs in memory
        pieces, done = list[bytes](), 0
        for at in self._unsealed:
            chunks[at] = self._encoder.seal_job(chunks[at], chunks[at + 1])
            pieces.append(b"".join(chunks[done : at + 1]))
            pieces.append(chunks[at + 1])
            done = at + 2
        if done < len(chunks):
            pieces.append(b"".join(chunks[done:]))
        return pieces


class Segment:
    """One segment.

    handle      descriptor of the open file, or None if there is no file yet or it is closed.
    has_file    a file with its name may exist.
    capacity    maximum bytes of its records.
    allocated   bytes of its file; 0 if it has none.
    first_sequence  the field of its header.
    used        bytes of its records, written or not.
    written     bytes that were written to the file.
    chunks      records not written yet, in order. A JOB record may be two chunks: its start and its body.
    unsealed    indexes in `chunks` of the starts of records with a large body, ascending. They lack the prefix.
    ids         id of each JOB record, in order.
    cursor      number of `ids` that compaction has examined.
    starts      offset of each JOB record in the file, if bodies may be read back.
    has_repeats it has two JOB records of one job.
    live_bytes  bytes of its JOB records that are the newest of their jobs.
    copied      bytes of JOB records that compaction has copied out of it.
    pending_copies  bytes of copies by compaction in `chunks`.
    last_sequence   number of its last record; set when the next segment is begun.
    is_listed   its directory entry is known to be on disk.
    is_begun    a write to it was attempted.
    is_proven   a batch that wrote to it has succeeded, so clients may depend on its records.
    touched     job ids of all its records until it is known to be fully on disk; then None.
    entries     policies, pauses and keys of its records, in order, except those that compaction has examined.
    growth      upper bound of the bytes by which copies of its jobs exceed their JOB records: moves and kicks add
                attributes and change names.
    """

    def __init__(self, number: int, capacity: int) -> None:
        self.number: int = number
        self.capacity: int = capacity
        self.allocated: int = 0
        self.handle: int | None = None
        self.has_file: bool = False
        self.first_sequence: int = 0
        self.last_sequence: int = 0
        self.used: int = 0
        self.written: int = 0
        self.chunks: list[bytes] = []
        self.unsealed: list[int] = []
        self.ids: array[int] = array("Q")
        self.starts: array[int] = array("Q")
        self.has_repeats: bool = False
        self.cursor: int = 0
        self.live_bytes: int = 0
        self.copied: int = 0
        self.pending_copies: int = 0
        self.is_listed: bool = False
        self.is_begun: bool = False
        self.is_proven: bool = False
        self.touched: array[int] | None = array("Q")
        self.entries: list[record.Entry] = []
        self.growth: int = 0
        self.encoder: record.Encoder = record.Encoder(b"\0\0\0\0")

    def reuse_file(self) -> Segment:
        """Return a new segment that reuses the file of this one, which must have no bytes written."""
        segment = Segment(self.number, self.capacity)
        segment.handle, segment.has_file, segment.is_listed = self.handle, self.has_file, self.is_listed
        segment.capacity = segment.allocated = self.allocated
        return segment

    @property
    def unallocated(self) -> int:
        """Bytes of the disk that the segment takes in addition once its whole capacity is allocated."""
        return on_disk(self.capacity) - on_disk(self.allocated)

    def begin(self, salt: bytes, first_sequence: int, next_id: int) -> None:
        """Append the header, and accept records."""
        self.encoder = record.Encoder(salt)
        self.first_sequence = first_sequence
        self.add_bare(record.SegmentHeader(salt, self.number, first_sequence, next_id).encode())

    def add(self, data: bytes, id: int) -> None:
        """Append *data*, a record of the job *id*."""
        self.chunks.append(data)
        self.used += len(data)
        if self.touched is not None:
            self.touched.append(id)

    def add_job(self, start: bytes, body: bytes, id: int, *, is_large: bool) -> None:
        """Append a JOB record of the job *id*; *start* is what `Encoder.begin_job` returned.

        If its body *is_large*, the checksum is computed when the record is written.
        """
        self.used += record.PREFIX_SIZE + len(start) + len(body)
        if len(body) <= COPIED_BODY and not is_large:
            self.chunks.append(self.encoder.seal(start, body))
        else:
            if is_large:
                self.unsealed.append(len(self.chunks))
            else:
                start = self.encoder.seal_job(start, body)
            self.chunks.append(start)
            self.chunks.append(body)
        if self.touched is not None:
            self.touched.append(id)

    def add_bare(self, data: bytes) -> None:
        """Append *data*, a record that belongs to no job."""
        self.chunks.append(data)
        self.used += len(data)

    def add_entry(self, data: bytes, entry: record.Entry) -> None:
        """Append *data*, a record of *entry*."""
        self.entries.append(entry)
        self.add_bare(data)

    def take_pending(self) -> PendingRecords:
        """Return the records not written yet, and forget them."""
        pending = PendingRecords(self.encoder, self.chunks, self.unsealed)
        self.chunks, self.unsealed = [], []
        return pending

    def __repr__(self) -> str:
        return f"<Segment {self.number} used={self.used} written={self.written} live={self.live_bytes}>"


class DiscardingSegment(Segment):
    """Replaces the current segment until a rewrite: discards records, but collects their jobs and entries."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(0, DISCARDING_CAPACITY)

    def add(self, data: bytes, id: int) -> None:
        assert self.touched is not None
        self.touched.append(id)

    def add_job(self, start: bytes, body: bytes, id: int, *, is_large: bool) -> None:
        assert self.touched is not None
        self.touched.append(id)

    def add_bare(self, data: bytes) -> None:
        pass
