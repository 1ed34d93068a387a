"""The parts of a saved change: jobs in the format of a journal segment, or pauses of tubes as lines of JSON."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from greenstalk_server.core.jobs.job import Job
from greenstalk_server.journal.saved_jobs import EncodedJob, SavedJobs, SavedJobsWriter, read_saved_jobs
from greenstalk_server.runtime.threads import run_in_thread

PART_SIZE: Final = 2**15
"""Bytes of jobs after which a part ends. Reading a part takes less than two milliseconds, unless a job is larger."""

BEFORE: Final = "jobs-before"
AFTER: Final = "jobs-after"
PAUSES: Final = "pauses"
"""Kinds of the rows of a part."""

KINDS: Final = (BEFORE, AFTER, PAUSES)


class SavedPause(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change of the pause of *tube*. Times are in nanoseconds since the Unix epoch; 0 without a pause.

    before      end of the former pause.
    after       end of the pause after the change.
    reason      reason for the former pause.
    """

    tube: str
    before: int = 0
    after: int = 0
    reason: str = ""


class SavedPart(NamedTuple):
    """The jobs or the pauses of one part. The tube of each job is an object that only has the tube's name.

    before      the jobs before the change.
    after       the jobs after the change, by id; empty if they were deleted.
    pauses      the changes of pauses.
    damage      what was lost, in words; empty if nothing was.
    """

    before: list[Job]
    after: dict[int, Job]
    pauses: list[SavedPause]
    damage: str


class PartWriter:
    """Encodes one part. Add either jobs or pauses.

    size    bytes of the jobs or the pauses.
    """

    def __init__(self) -> None:
        self.size: int = 0
        self._before: SavedJobsWriter = SavedJobsWriter(secrets.token_bytes(4))
        self._after: SavedJobsWriter = SavedJobsWriter(secrets.token_bytes(4))
        self._pauses: list[bytes] = []

    @property
    def count(self) -> int:
        """Number of the jobs or the pauses added."""
        return self._before.count or len(self._pauses)

    def encode(self, job: Job, body: bytes | None) -> EncodedJob:
        """Return *job*, which is about to be changed, for `add`; without its body if *body* is None."""
        return self._before.encode_without_body(job) if body is None else self._before.encode(job, body)

    def add(self, before: EncodedJob, after: Job | None) -> None:
        """Add a job, and its state *after* the change, unless it was deleted."""
        self._before.add(before)
        if after is not None:
            self._after.add(self._after.encode_result(after))
        self.size = self._before.size + self._after.size

    def add_pause(self, pause: SavedPause) -> None:
        """Add a change of a pause."""
        self._pauses.append(line := msgspec.json.encode(pause) + b"\n")
        self.size += len(line)

    def rows(self) -> dict[str, bytes]:
        """Return the rows by kind; call it once. It may run in any thread."""
        rows = {BEFORE: self._before.data()} if self._before.count else {}
        if self._after.count:
            rows[AFTER] = self._after.data()
        return rows | ({PAUSES: b"".join(self._pauses)} if self._pauses else {})


def read_part(rows: Mapping[str, bytes], number: int) -> SavedPart:
    """Return the part *number* from the *rows* of its kinds, each empty if it is missing. May switch."""
    missing = f"part {number + 1} is missing" if not all(rows.values()) else ""
    before, after = (_read_jobs(rows.get(kind, b"")) for kind in (BEFORE, AFTER))
    pauses, damage = _read_pauses(rows.get(PAUSES, b""))
    after_by_id = {job.id: job for job in after.jobs}
    return SavedPart(before.jobs, after_by_id, pauses, missing or before.damage or after.damage or damage)


def _read_jobs(data: bytes) -> SavedJobs:
    """Return the jobs of a row, none if *data* is empty. May switch."""
    if not data:
        return SavedJobs([], "")
    return run_in_thread(read_saved_jobs, data) if len(data) > 2 * PART_SIZE else read_saved_jobs(data)


_PAUSES_DECODER: Final = msgspec.json.Decoder(SavedPause)


def _read_pauses(data: bytes) -> tuple[list[SavedPause], str]:
    try:
        return _PAUSES_DECODER.decode_lines(data), ""
    except msgspec.DecodeError as error:
        return [], str(error)
