"""The tables and the example of docs/journal-format.md match the codec."""

from __future__ import annotations

import re
import struct

import pytest

from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import BURIED, RESERVED, SECOND, Job
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.journal import record
from greenstalk_server.journal.recovery import Recovery
from tests.support.daemon import REPOSITORY
from tests.support.pages import block

DOCUMENT = (REPOSITORY / "docs" / "journal-format.md").read_text()

SALT = bytes.fromhex("c0ffee42")
PUT_AT = 1_700_000_000 * SECOND

TABLES = {
    "Header": struct.Struct("<8sI4sQQQI"),
    "Record": record.HEADER,
    "Event": job_history.EVENT,
    "Reservation of a remote client": record.RESERVATION_FIELDS,
    "Kind 1, JOB": record.JOB_FIELDS,
    "Kind 4, DELETE": record.DELETE_FIELDS,
    "Kind 5, PAUSE": record.PAUSE_FIELDS,
    "Kind 9, JOB_WITH_EVENTS": record.JOB_WITH_EVENTS_FIELDS,
    "Kind 10, UPDATE": record.UPDATE_FIELDS,
    "Kind 11, RESERVE": record.RESERVE_FIELDS,
    "Kind 12, IDS": record.IDS_FIELDS,
    "Kind 13, JOB_WITH_ATTRIBUTES": record.JOB_WITH_ATTRIBUTES_FIELDS,
    "Kind 14, MOVE": record.MOVE_FIELDS,
    "Kind 15, GROUP": record.GROUP_FIELDS,
    "Kind 16, POLICY": record.POLICY_FIELDS,
    "Kind 17, KEY": record.KEY_FIELDS,
    "Kind 18, LOCATION": record.LOCATION_FIELDS,
}


def example() -> bytes:
    """Return the bytes of the example in the document; assert that its offsets are right."""
    text = block("journal-format.md", "text", "0000  ")
    data = b""
    for offset, digits in re.findall(r"^([0-9a-f]{4})  ((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:  .*)?$", text, re.MULTILINE):
        assert int(offset, 16) == len(data)
        data += bytes.fromhex(digits)
    return data


def encoded() -> bytes:
    """Return the bytes that the codec writes for the example's records."""
    encoder = record.Encoder(SALT)
    tube = Tube(b"mail", {})
    job = Job(43, tube, b"hello", 1024, 0, 60 * SECOND, PUT_AT)
    data = record.SegmentHeader(SALT, number=7, first_sequence=1001, next_id=43).encode()
    data += encoder.job(job, 1001)
    job.reserves, job.state, job.reserved_at, job.holder = 1, RESERVED, PUT_AT + SECOND, Client(tube, lambda: None, 3)
    data += encoder.reserve(job, 1002)
    job.state, job.buries, job.deadline, job.holder = BURIED, 1, 5, None
    job.events = job_history.add(
        job_history.add(b"", job_history.RESERVED, PUT_AT + SECOND, 3), job_history.BURIED, PUT_AT + 2 * SECOND, 3
    )
    data += encoder.update(job, 1003) + encoder.job(job, 1004, job.events)
    return data + encoder.ids(44, 1005)


def test_codec_writes_the_example() -> None:
    assert example() == encoded()


def test_codec_reads_the_example() -> None:
    jobs: dict[int, Job] = {}
    recovery = Recovery(lambda name: Tube(name, jobs), jobs)
    segment = recovery.replay("journal.7", 7, example() + bytes(100), is_newest=True)
    recovery.settle(now=PUT_AT + 3 * SECOND)
    assert segment is not None
    assert segment.header == record.SegmentHeader(SALT, 7, 1001, 43)
    assert (segment.end, segment.records) == (len(example()), 5)
    assert (recovery.damage, recovery.sequence, recovery.next_id) == ([], 1005, 44)
    (job,) = jobs.values()
    assert (job.id, job.tube.name, job.body, job.pri, job.ttr) == (43, b"mail", b"hello", 1024, 60 * SECOND)
    assert (job.state, job.deadline, job.reserves, job.buries) == (BURIED, 5, 1, 1)
    reserved, buried = (PUT_AT + SECOND, job_history.RESERVED, 3), (PUT_AT + 2 * SECOND, job_history.BURIED, 3)
    assert job_history.unpack(job.events) == [reserved, buried]


@pytest.mark.parametrize("heading", TABLES)
def test_tables_match_the_layouts_of_the_codec(heading: str) -> None:
    section = re.search(rf"^### {heading}\b.*?\n(?=##)", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert section is not None
    rows = [(int(offset), int(size)) for offset, size in re.findall(r"^\| (\d+) \| (\d+) \|", section[0], re.MULTILINE)]
    layout = TABLES[heading]
    sizes = [struct.calcsize("<" + field) for field in re.findall(r"\d*[a-zA-Z]", layout.format)]
    assert [size for _, size in rows] == sizes
    assert [offset for offset, _ in rows] == [sum(sizes[:at]) for at in range(len(sizes))]
    assert sum(sizes) == layout.size


def test_version_and_kinds_match_the_codec() -> None:
    assert f"Version {record.VERSION}." in DOCUMENT
    kinds = {
        int(number): name
        for text in re.findall(r"^### Kinds? (.*?)(?::.*)?$", DOCUMENT, re.MULTILINE)
        for number, name in re.findall(r"(\d+),? ([A-Z_]+)", text)
    }
    assert set(kinds) == set(record.MIN_PAYLOAD)
    assert all(getattr(record, name) == number for number, name in kinds.items())
    assert f"| kind | 1 to {max(kinds)}, below |" in DOCUMENT
    assert f"| version | {record.VERSION} |" in DOCUMENT


def test_kinds_of_events_match_the_codec() -> None:
    kinds = re.findall(r"(\d+) ([a-z -]+)", re.findall(r"^\| 8 \| 1 \| kind \| (.*) \|$", DOCUMENT, re.MULTILINE)[0])
    assert [(int(number), name) for number, name in kinds] == list(enumerate(job_history.KINDS))[1:]
    assert f"keeps its last {job_history.MAX_EVENTS}" in DOCUMENT
