"""Jobs saved outside the journal, in the format of a segment, so that an operator can undo a deletion or a change.

Pure, and safe for arbitrary input: see recovery.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from greenstalk_server.core import job_attributes
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import Job
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.journal import record
from greenstalk_server.journal.recovery import Recovery
from greenstalk_server.journal.segment import LARGE_BODY, PendingRecords

HEAD: Final = "change"
BEFORE: Final = "jobs-before"
AFTER: Final = "jobs-after"
"""Kinds of rows among the dashboard's data: a description of the change, and the jobs before and after it."""

_NUMBER = 1
"""Number of the segment. Each one stands alone."""


class EncodedJob(NamedTuple):
    """The start of the record of a job, without its checksum, and the body."""

    start: bytes
    body: bytes


class SavedJobsWriter:
    """Encodes jobs.

    jobs    number of the jobs added.
    size    bytes of their records.
    """

    def __init__(self, salt: bytes) -> None:
        """*salt*: four random bytes, the start of each record."""
        self.jobs: int = 0
        self.size: int = 0
        self._salt: bytes = salt
        self._encoder: record.Encoder = record.Encoder(salt)
        self._chunks: list[bytes] = []
        self._unsealed: list[int] = []

    def encode(self, job: Job, body: bytes) -> EncodedJob:
        """Return *job* as it is now, without its current reservation. Pass it to the next `add`."""
        start = self._encoder.begin_job(job, self.jobs + 1, job.events, job_attributes.encode(job))
        return EncodedJob(start, body)

    def encode_without_body(self, job: Job) -> EncodedJob:
        """Return *job* as `encode` does, with an empty body."""
        return self.encode(job.copy_with(job.tube, b""), b"")

    def encode_result(self, job: Job) -> EncodedJob:
        """Return *job* with an empty body, no attributes and its last event only, as `undoing.revert` needs it."""
        copy = job.copy_with(job.tube, b"")
        return EncodedJob(self._encoder.begin_job(copy, self.jobs + 1, job.events[-job_history.EVENT.size :]), b"")

    def add(self, job: EncodedJob) -> None:
        """Add *job*."""
        self.jobs += 1
        self.size += record.PREFIX_SIZE + len(job.start) + len(job.body)
        if len(job.body) > LARGE_BODY:
            self._unsealed.append(len(self._chunks))
            self._chunks += job
        else:
            self._chunks.append(self._encoder.seal(job.start, job.body))

    def data(self) -> bytes:
        """Return the segment; call it once. It may run in any thread, and computes the checksums of large bodies."""
        header = record.SegmentHeader(self._salt, _NUMBER, first_sequence=1, next_id=1)
        records = PendingRecords(self._encoder, self._chunks, self._unsealed)
        return b"".join([header.encode(), *records.encode()])


@dataclass(frozen=True, slots=True)
class SavedJobs:
    """The jobs of a segment, in the order in which they were added, each in a tube that only has the name.

    damage      what was lost, in words; empty if nothing was.
    """

    jobs: list[Job]
    damage: str


def read_saved_jobs(data: bytes) -> SavedJobs:
    """Return the jobs in *data*."""
    jobs: dict[int, Job] = {}
    recovery = Recovery(lambda name: Tube(name, {}), jobs)
    recovery.replay("saved jobs", _NUMBER, data, is_newest=False)
    return SavedJobs(list(jobs.values()), "; ".join(map(str, recovery.damage)))
