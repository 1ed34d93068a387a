"""Exports: all matching jobs with unchanged bodies, no formulas for spreadsheets, and little memory."""

from __future__ import annotations

import base64
import csv
import io
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from flask.testing import FlaskClient

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import finishing
from greenstalk_server.web.features.jobs.export import (
    LARGE_BODY,
    MAX_EXPORTS,
    escape_formulas,
    framed,
    merged_rows,
    unframed,
)

from .conftest import Queue
from .forms import refused
from .test_search import put
from .turns import LoopIterations

BODIES = (
    b"plain",
    b"",
    '{"to": "a@b", "snowman": "☃", "n": 123456789012345678901234567890}'.encode(),
    b'quoted "text", with commas\r\nand lines\n',
    b"\x00nul",
    b"\xff\xfe not UTF-8",
    b"=1+1",
    b"+cmd|' /C calc'!A0",
    b"-2+3",
    b"@SUM(A1)",
    b"\t=1+1",
    b"\r\n=1+1",
    "\uff1d1+1".encode(),
    b"</script><script>alert(1)</script>",
    b"x;=cmd|'/c calc'!A1",
    b"x\t@SUM(A1)",
    b'say "x";"+1"',
    b"\n\n=1",
    b"x\r\n ' -1",
    "x;\uff1d1".encode(),
    b"\xfb\xef\xbe\xff",  # its base64 begins with a plus
    b"x" * LARGE_BODY,
    b"y" * (LARGE_BODY + 1),
    b"\xfb\xff\xfe" * LARGE_BODY,
)


def rows(client: FlaskClient, form: str, **query: str) -> list[dict[str, Any]]:
    response = client.get("/export", query_string={"format": form, **query})
    assert response.status_code == 200
    if form == "jsonl":
        return [json.loads(line) for line in response.text.splitlines()]
    csv.field_size_limit(10**8)
    return list(csv.DictReader(io.StringIO(response.text, newline=""), strict=True))


def body_of(row: dict[str, Any]) -> bytes:
    return base64.b64decode(row["body"]) if row["encoding"] == "base64" else row["body"].encode()


def test_json_lines_contain_every_field(queue: Queue, visit: Callable[..., FlaskClient]) -> None:
    [id] = put(queue, "//x", b"body", pri=7)
    finishing.bury_job(queue.broker, id, queue.now)
    queue.now += 90 * SECOND
    assert rows(visit(), "jsonl") == [
        {
            "id": id, "tube": "//x", "state": "buried", "pri": 7, "age": 90, "delay": 0, "ttr": 60, "time_left": 0,
            "reserves": 0, "timeouts": 0, "releases": 0, "buries": 1, "kicks": 0, "size": 4,
            "encoding": "utf-8", "body": "body",
        }
    ]  # fmt: skip


def test_json_lines_contain_each_body_unchanged(queue: Queue, client: FlaskClient) -> None:
    put(queue, "mail", *BODIES)
    found = rows(client, "jsonl", tube="mail")
    assert [body_of(row) for row in found] == list(BODIES)
    assert [row["size"] for row in found] == list(map(len, BODIES))
    assert {row["encoding"] for row in found if row["size"] > LARGE_BODY} == {"base64"}


def test_csv_contains_each_body_with_formulas_escaped(queue: Queue, client: FlaskClient) -> None:
    put(queue, "mail", *BODIES)
    found = rows(client, "csv", tube="mail")
    for row in found:
        assert row["body"][:1] not in tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
        row["body"] = row["body"].removeprefix("'")
    assert [body_of(row) for row in found] == list(BODIES)


def test_csv_header_names_the_columns(queue: Queue, client: FlaskClient) -> None:
    put(queue, "+x", b"body")
    head, line = client.get("/export?format=csv").text.splitlines()
    assert head == (
        "id,tube,state,pri,age,delay,ttr,time_left,reserves,timeouts,releases,buries,kicks,size,encoding,body"
    )
    assert line == "1,'+x,ready,2000,0,0,60,0,0,0,0,0,0,4,utf-8,body"


@pytest.mark.parametrize(
    "text", ["=1", "+1", "-1", "@x", "\tx", "\rx", "\nx", "\uff1d1", "\uff0b1", "\uff0d1", "\uff20x"]
)
def test_formulas_are_escaped(text: str) -> None:
    assert escape_formulas(text) == f"'{text}"


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("x;=1", "x;'=1"),
        ("x;+1;-1", "x;'+1;'-1"),
        ("a\t@b", "a\t'@b"),
        (";=1", ";'=1"),
        ("=1;=2", "'=1;'=2"),
        ('x;"=1', "x;\"'=1"),
    ],
)
def test_formulas_after_a_separator_are_escaped(text: str, escaped: str) -> None:
    assert escape_formulas(text) == escaped


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_NONE])
def test_no_cell_is_a_formula_with_any_separator(
    queue: Queue, client: FlaskClient, separator: str, quoting: int
) -> None:
    """Quoted bodies contain commas; a reader that ignores quotes splits at them."""
    csv.field_size_limit(10**8)
    for number, body in enumerate(BODIES):
        if quoting == csv.QUOTE_NONE and b"," in body:
            continue
        put(queue, f"mail;+{number}", body)
        text = client.get(f"/export?format=csv&tube=mail%3B%2B{number}").text
        lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator, quoting=quoting)  # type: ignore[arg-type]
        cells = [cell.lstrip(' "') for line in lines for cell in line]
        assert len(cells) > 1
        assert not [cell for cell in cells if cell.startswith(tuple("=+-@\uff1d\uff0b\uff0d\uff20"))], body


def test_export_contains_all_matches(queue: Queue, client: FlaskClient) -> None:
    found = queue.put("mail", count=2500)
    queue.put("other", count=10)
    for id in found[:1200]:
        finishing.bury_job(queue.broker, id, queue.now)
    assert [row["id"] for row in rows(client, "jsonl", tube="mail", state="buried", q="buries:1")] == found[:1200]
    assert len(rows(client, "csv", tube="mail")) == 2500
    assert rows(client, "jsonl", tube="nowhere") == rows(client, "csv", tube="nowhere") == []


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ({"tube": "mail", "state": "buried"}, "jobs-mail-buried.csv"),
        ({"tube": "../../etc/passwd"}, "jobs-etc-passwd.csv"),
        ({"tube": "$(reboot);//x"}, "jobs-reboot-x.csv"),
        ({"tube": ".."}, "jobs.csv"),
        ({"tube": "a" * 200}, f"jobs-{'a' * 100}.csv"),
        ({"q": '"\r\nX-Evil: 1"'}, "jobs.csv"),
    ],
)
def test_file_name_is_safe(client: FlaskClient, query: dict[str, str], name: str) -> None:
    response = client.get("/export", query_string={"format": "csv", **query})
    assert response.headers["Content-Disposition"] == f'attachment; filename="{name}"'
    assert response.headers["X-Content-Type-Options"] == "nosniff" and "X-Evil" not in response.headers
    assert response.mimetype == "text/csv"


def test_concurrent_exports_are_limited_and_abandoned_ones_do_not_count(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail", count=5000)
    path = "/export?format=jsonl"
    running = [client.get(path, buffered=False) for _ in range(MAX_EXPORTS)]
    for response in running:
        next(iter(response.response))
    assert "exports are running" in refused(client.get(path), 503)
    running[0].close()
    assert client.get(path).status_code == 200
    for response in running[1:]:
        response.close()


def test_jobs_deleted_during_the_export_are_omitted(queue: Queue, client: FlaskClient) -> None:
    found = queue.put("mail", count=3000)
    response = client.get("/export?format=jsonl", buffered=False)
    stream: Any = iter(response.response)
    first = next(stream)
    for id in found[2000:]:
        finishing.delete_job(queue.broker, id, queue.now)
    lines = (first + b"".join(stream)).splitlines()
    assert [json.loads(line)["id"] for line in lines] == found[:2000]


def test_export_of_many_jobs_uses_little_memory_and_does_not_delay_workers(
    queue: Queue, client: FlaskClient, short_steps: None
) -> None:
    queue.put("mail", count=20_000)
    with LoopIterations() as turns:
        stream = iter(client.get("/export?format=csv", buffered=False).response)
        count = sum(chunk.count(b"\r\n") for chunk in stream)
    assert count == 20_001 and turns.count >= 20_000
    tracemalloc.start()
    try:
        stream = iter(client.get("/export?format=jsonl", buffered=False).response)
        largest = max(len(chunk) for chunk, _ in zip(stream, range(20), strict=False))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert largest < 64 * 1024 and peak < 2 * 1024 * 1024


def test_rows_of_another_process_may_arrive_in_pieces_of_any_size() -> None:
    rows = [(1, b"one"), (1, b" and more"), (2**53, b""), (7, b"x" * 100)]
    sent = b"".join(framed(rows))
    for size in (1, 2, 11, 12, 13, 50, len(sent)):
        assert list(unframed(sent[at : at + size] for at in range(0, len(sent), size))) == rows


def test_merged_rows_are_whole_and_a_job_that_is_on_two_shards_has_one() -> None:
    first = [(1, b"1a"), (1, b"1b"), (4, b"4a"), (4, b"4b"), (9, b"")]
    second = [(2, b"2"), (4, b"4x"), (4, b"4y"), (5, b"5")]
    assert list(merged_rows([iter(first), iter(second)])) == [b"1a", b"1b", b"2", b"4a", b"4b", b"5"]
