"""shard.json: what a directory belongs to, and the starts that are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from greenstalk_server.core.jobs.id_sequence import ONE_SHARD, IdSequence
from greenstalk_server.journal import check, transfer
from greenstalk_server.journal.shard_file import (
    SHARD_FILE,
    ShardIdentity,
    decode,
    read_identity,
    require_identity,
    write_identity,
)
from greenstalk_server.runtime.exit_codes import EXIT_OK, StartError

SHARD = ShardIdentity("0123456789abcdef" * 2, IdSequence(base=1000, shards=3, shard=1))


def test_identity_is_read_as_written(tmp_path: Path) -> None:
    (tmp_path / f"{SHARD_FILE}.part").write_text("left by a process that was killed")
    write_identity(str(tmp_path), ShardIdentity("f" * 32))
    write_identity(str(tmp_path), SHARD)
    assert read_identity(str(tmp_path)) == SHARD
    assert [path.name for path in tmp_path.iterdir()] == [SHARD_FILE]
    assert require_identity(str(tmp_path), SHARD) == SHARD.ids


def test_directory_without_the_file_is_a_queue_of_one_shard(tmp_path: Path) -> None:
    assert read_identity(str(tmp_path)) is None
    assert require_identity(str(tmp_path), None) == ONE_SHARD


@pytest.mark.parametrize(
    ("expected", "reason"),
    [
        (None, "it is shard 1 of 3 shards of a queue; start all shards of the queue together"),
        (replace(SHARD, queue="f" * 32), "it belongs to the queue 0123456789abcdef0123456789abcdef, not to fff"),
        (replace(SHARD, ids=IdSequence(1000, 4, 1)), "its queue has 3 shards, not 4; start it with 3; to change"),
        (replace(SHARD, ids=IdSequence(1000, 3, 2)), "it is shard 1, not shard 2; give each shard its own directory"),
        (replace(SHARD, ids=IdSequence(0, 3, 1)), "the base of its ids is 1000, not 0 as in the other shards; rest"),
    ],
)
def test_other_directory_than_expected_is_refused(tmp_path: Path, expected: ShardIdentity | None, reason: str) -> None:
    write_identity(str(tmp_path), SHARD)
    with pytest.raises(StartError) as raised:
        require_identity(str(tmp_path), expected)
    assert str(raised.value).startswith(f"-b {tmp_path}: {reason}")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not valid JSON"),
        (b"{}", "must be an object"),
        (SHARD.encode().replace(b'"0123', b'"xyz3'), "queue: must be 32 hexadecimal digits"),
        (SHARD.encode().replace(b"1000", b'"1"'), "must be whole numbers"),
        (SHARD.encode().replace(b"1000", b"%d" % 2**53), "base 9007199254740992: must be 0 to 9007199254740991"),
    ],
)
def test_invalid_file_is_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode(data)
    (tmp_path / SHARD_FILE).write_bytes(data)
    with pytest.raises(StartError, match=reason):
        require_identity(str(tmp_path), None)


def test_archive_of_a_shard_is_imported_and_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty, archive, copy = tmp_path / "empty", str(tmp_path / "archive"), tmp_path / "copy"
    for directory in (empty, copy):
        directory.mkdir()
        write_identity(str(directory), SHARD)
    (empty / "journal.1").write_bytes(b"")
    assert transfer.export_journal(str(empty), archive) == EXIT_OK
    assert transfer.import_journal(str(copy), archive) == EXIT_OK
    assert check.check(str(copy)) == EXIT_OK
    printed = capsys.readouterr().out
    assert "shard: 1 of 3 shards, base of the ids: 1000" in printed and "next job id: 1001" in printed
