"""Error messages of `journal import`, `export` and `check`, and of a start, with too little memory for a job."""

from __future__ import annotations

import json
import resource
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from tests.support.daemon import COMMAND, REPOSITORY, TIMEOUT, environment, run

BODY = 150 * 10**6
"""Bytes of the body."""

ADDRESS_SPACE = 300 * 10**6
"""Bytes of the address space of a process: enough for Python and one copy of the body."""

HINT = "free some, or raise the limit of this process (ulimit -v, MemoryMax=)"


def limited(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command with little memory."""
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=REPOSITORY,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE)),
    )


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive with one job."""
    job = {"type": "job", "id": 1, "tube": "default", "state": "ready", "pri": 1, "delay": 0, "ttr": 10**9}
    job |= {"created_at": 10**18, "deadline": 10**18}
    job |= dict.fromkeys(("reserves", "timeouts", "releases", "buries", "kicks"), 0)
    head = {"type": "head", "format": "greenstalk journal", "version": 1, "server": "1", "exported_at": 1, "next_id": 2}
    lines = [json.dumps(line) + "\n" for line in (head, job | {"encoding": "utf-8", "body": "x" * BODY})]
    checksum = sha256("".join(lines).encode()).hexdigest()
    lines.append(json.dumps({"type": "end", "pauses": 0, "jobs": 1, "sha256": checksum}) + "\n")
    path = tmp_path_factory.mktemp("archive") / "archive.jsonl"
    path.write_text("".join(lines))
    return path


@pytest.fixture(scope="module")
def journal(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a journal with the job of *archive*."""
    directory = tmp_path_factory.mktemp("journal")
    assert run("journal", "import", str(directory), str(archive)).returncode == 0
    return directory


def test_import_reports_too_little_memory_and_leaves_nothing(archive: Path, tmp_path: Path) -> None:
    done = limited("journal", "import", str(tmp_path), str(archive))
    message = f"journal import: {archive}: not enough memory to read it; nothing was imported; {HINT}"
    assert (done.returncode, done.stdout, done.stderr) == (10, "", f"greenstalk-server: {message}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_export_reports_too_little_memory_and_keeps_the_previous_file(journal: Path, tmp_path: Path) -> None:
    target = tmp_path / "archive.jsonl"
    target.write_text("previous")
    done = limited("journal", "export", str(journal), "-o", str(target))
    message = f"journal export: {journal}: not enough memory to read it; nothing was exported; {HINT}"
    assert (done.returncode, done.stdout, done.stderr) == (10, "", f"greenstalk-server: {message}\n")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["previous"]


def test_check_and_start_report_too_little_memory_and_change_nothing(journal: Path) -> None:
    files = {path: path.stat().st_mtime_ns for path in journal.glob("journal.*")}
    checked = limited("journal", "check", str(journal))
    message = f"journal check: {journal}: not enough memory to read it; {HINT}"
    assert (checked.returncode, checked.stdout, checked.stderr) == (10, "", f"greenstalk-server: {message}\n")
    started = limited("-l", "127.0.0.1", "-p", "0", "--no-web", "-b", str(journal))
    message = f"journal: not enough memory to read it; {HINT}"
    assert (started.returncode, started.stdout, started.stderr) == (10, "", f"greenstalk-server: {message}\n")
    assert {path: path.stat().st_mtime_ns for path in journal.glob("journal.*")} == files
