"""The command that `work` runs for a job gets its body on systems without files in memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from greenstalk_client.client import Job, JobMeta
from greenstalkctl.runner import Retries, Runner


def test_body_is_a_temporary_file_where_files_in_memory_do_not_exist(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    meta = JobMeta(tube="mail", pri=1, age=0.0, ttr=60.0, reserves=1, timeouts=0, releases=0, attempts=1)
    command = ("sh", "-c", f"cat > {tmp_path}/body; readlink /proc/self/fd/0 > {tmp_path}/name")
    Runner(command, Retries(attempts=1, backoff=1, max_backoff=1), None)(Job(1, b"x" * 100_000, meta))
    assert (tmp_path / "body").read_bytes() == b"x" * 100_000
    assert "memfd" not in (tmp_path / "name").read_text()
