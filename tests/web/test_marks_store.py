"""Marks as rows: restarts, damage and bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.web.features.marks.marks import MAX_MARKS, PAUSE, Marks

from .conftest import Queue
from .stored import local_store

EVER = (0, 2**63)
GOOD = b'{"at": "2027-01-15T08:00:00Z", "text": "deployed", "kind": "note", "tube": null, "who": ""}'


def marks_in(directory: Path, queue: Queue) -> Marks:
    store = local_store(directory)
    marks = Marks(store, queue.clock)
    store.restore()
    return marks


def save(marks: Marks) -> None:
    marks._store.save()


def test_marks_survive_a_restart(queue: Queue, tmp_path: Path) -> None:
    marks = marks_in(tmp_path, queue)
    late = marks.add("late", who="ada")
    early = marks.add("early", tube="mail", at=queue.now - SECOND)
    same_time = marks.add("same time", tube="mail", at=queue.now - SECOND)
    save(marks)
    assert marks_in(tmp_path, queue).find(None, *EVER) == [early, same_time, late]


def test_mark_that_is_added_before_the_restore_replaces_no_earlier_mark(queue: Queue, tmp_path: Path) -> None:
    marks = marks_in(tmp_path, queue)
    marks.add("deployed 4.1")
    save(marks)
    store = local_store(tmp_path)
    marks = Marks(store, queue.clock)
    marks.add("deployed 4.2")
    store.restore()
    store.save()
    assert [mark.text for mark in marks.find(None, *EVER)] == ["deployed 4.1", "deployed 4.2"]
    assert marks_in(tmp_path, queue).find(None, *EVER) == marks.find(None, *EVER)


def test_marks_of_each_kind_are_bounded(queue: Queue, tmp_path: Path) -> None:
    marks = marks_in(tmp_path, queue)
    note = marks.add("deployed")
    for number in range(MAX_MARKS + 2):
        marks.add(str(number), kind=PAUSE)
    save(marks)
    kept = marks_in(tmp_path, queue).find(None, *EVER)
    assert kept == marks.find(None, *EVER)
    assert kept[0] == note
    assert [mark.text for mark in kept[1:]] == [str(number) for number in range(2, MAX_MARKS + 2)]


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"at": 1}', b"\xff", GOOD.replace(b"Z", b""), GOOD.replace(b"null", b'"a b"')]
)
def test_damaged_mark_is_left_out(queue: Queue, tmp_path: Path, data: bytes) -> None:
    store = local_store(tmp_path)
    store.put("mark", 1, b"", data)
    store.put("mark", 2, b"", GOOD)
    store.restore()
    store.save()
    assert [mark.text for mark in marks_in(tmp_path, queue).find(None, *EVER)] == ["deployed"]
