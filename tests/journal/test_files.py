"""Writes to the files of a directory, in any number of pieces and of short writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from greenstalk_server.journal.files import MAX_PIECES, Directory


@pytest.mark.parametrize("count", [1, 2, MAX_PIECES, MAX_PIECES + 1, 3 * MAX_PIECES])
def test_pieces_are_written_in_order(tmp_path: Path, count: int) -> None:
    files = Directory(str(tmp_path))
    handle = files.create("file", 10)
    pieces = [b"%d," % number for number in range(count)]
    files.write(handle, 10, pieces)
    files.close(handle)
    assert files.read("file") == bytes(10) + b"".join(pieces)


@pytest.mark.parametrize("written", range(9))
def test_rest_of_a_short_write_is_written(tmp_path: Path, written: int) -> None:
    files = Directory(str(tmp_path))
    handle = files.create("file", 1)
    os.pwrite(handle, b"abcdefgh"[:written], 1)
    files._write_rest(handle, 1, [b"abc", b"d", b"", b"efgh"], written)
    files.close(handle)
    assert files.read("file") == b"\0abcdefgh"
