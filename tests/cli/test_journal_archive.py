"""`journal export` and `journal import`: a round trip restores the same state, and an import is all or nothing."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from greenstalk_server.core.job_attributes import DeadLetter, DeadLetterReason
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import BURIED, DELAYED, SECOND, Job
from greenstalk_server.core.tags.tags import TaggedJob, Tags
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.journal import archive, record
from greenstalk_server.journal.archive import BadLine, Key, Pause, Policy, Reader, Writer
from greenstalk_server.journal.transfer import SEGMENT_SIZE
from tests.support import forking
from tests.support.daemon import COMMAND, REPOSITORY, TIMEOUT, Daemon, environment, run
from tests.support.pages import block
from tests.support.peer import eventually
from tests.support.processes import ending
from tests.support.wire import Connection

QUIET = ("-l", "127.0.0.1", "-p", "0", "--no-web")
BINARY = bytes(range(256)) + b"\r\n"
TEXT = "ä\u2028\0\x1b[2J \U0001f331".encode()


@contextmanager
def serving(directory: Path, *flags: str) -> Iterator[tuple[Daemon, Connection]]:
    """A server on *directory*, and a client of it."""
    with Daemon(*QUIET, "-b", str(directory), *flags) as daemon, client_of(daemon) as peer:
        yield daemon, peer


def client_of(daemon: Daemon) -> closing[Connection]:
    return closing(Connection(("127.0.0.1", daemon.port), TIMEOUT))


def put(peer: Connection, tube: bytes, body: bytes, delay: int = 0, pri: int = 0) -> bytes:
    peer.ask(b"use " + tube)
    return peer.ask(b"put %d %d 60 %d\r\n%b" % (pri, delay, len(body), body))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a stopped server, with jobs in all states, and paused tubes."""
    directory = tmp_path_factory.mktemp("original")
    with serving(directory) as (daemon, peer):
        peer.ask(b"watch mail")
        for body in (b"", TEXT, BINARY, b"fourth"):
            put(peer, b"mail", body, pri=5)
        put(peer, b"later", b"delayed", delay=10_000)
        put(peer, b"gone", b"deleted")
        for id in (4, 2, 1, 6):
            peer.ask(b"reserve-job %d" % id)
        peer.ask(b"bury 4 7")
        peer.ask(b"bury 2 7")
        peer.ask(b"release 1 9 5000")
        peer.ask(b"delete 6")
        with client_of(daemon) as holder:
            holder.ask(b"reserve-job 3")
        eventually(lambda: b"state: ready" in peer.ask(b"stats-job 3"), "job 3 is ready again")
        peer.ask(b"pause-tube mail 10000")
        daemon.stop()
    return directory


def state_of(directory: Path) -> dict[str, bytes]:
    """Return the replies of a server on *directory* about its jobs and tubes, without values that depend on time."""
    replies = {}
    with serving(directory) as (_, peer):
        for id in range(1, 8):
            replies[f"peek {id}"] = peer.ask(b"peek %d" % id)
            stats = peer.ask(b"stats-job %d" % id)
            replies[f"stats-job {id}"] = re.sub(rb"(?m)^(age|time-left|file): \d+\n|^OK.*\n", b"", stats)
        for tube in (b"mail", b"later"):
            stats = peer.ask(b"stats-tube " + tube)
            replies[f"stats-tube {tube!r}"] = re.sub(
                rb"(?m)^(pause-time-left|oldest-\w+-age): \d+\n|^OK.*\n", b"", stats
            )
        peer.ask(b"use mail")
        replies["kick"] = peer.ask(b"kick 1") + b"".join(peer.ask(b"stats-job %d" % id) for id in (2, 4))[:40]
        replies["first buried"] = peer.ask(b"peek-buried")
        replies["next id"] = put(peer, b"mail", b"next")
    return replies


def journal(*arguments: str, data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    command = [*COMMAND, "journal", *arguments]
    return forking.run(command, cwd=REPOSITORY, env=environment(), data=data, timeout=TIMEOUT)


def export(directory: Path, *flags: str) -> subprocess.CompletedProcess[bytes]:
    return journal("export", str(directory), *flags)


def import_archive(directory: Path, data: bytes) -> subprocess.CompletedProcess[bytes]:
    directory.mkdir(exist_ok=True)
    return journal("import", str(directory), data=data)


@pytest.fixture(scope="module")
def exported(original: Path) -> bytes:
    done = export(original)
    assert done.stderr == b"journal export: 5 jobs and 1 paused tube exported\n"
    assert done.returncode == 0
    return done.stdout


def lines_of(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.splitlines()]


# Round trips


def test_archive_has_every_job_and_tube(exported: bytes) -> None:
    head, pause, *jobs, end = lines_of(exported)
    assert (head["type"], head["format"], head["version"], head["next_id"]) == ("head", "greenstalk journal", 2, 7)
    assert (pause["tube"], pause["length"]) == ("mail", 10_000 * SECOND)
    assert [(job["id"], job["state"], job["pri"]) for job in jobs] == [
        (1, "delayed", 9),
        (2, "buried", 7),
        (3, "ready", 5),
        (4, "buried", 7),
        (5, "delayed", 0),
    ]
    assert [job["deadline"] for job in jobs if job["state"] == "buried"] == [2, 1]
    assert (jobs[1]["encoding"], jobs[1]["body"]) == ("utf-8", TEXT.decode())
    assert jobs[2]["encoding"] == "base64"
    assert [kind for _, kind, _ in jobs[2]["events"]] == ["reserved", "returned"]
    assert "events" not in jobs[4]
    last = exported.splitlines(keepends=True)[-1]
    before = exported.removesuffix(last)
    counts = {"pauses": 1, "policies": 0, "keys": 0, "jobs": 5}
    assert end == {"type": "end", **counts, "sha256": hashlib.sha256(before).hexdigest()}


def test_import_of_an_export_restores_the_same_state(original: Path, exported: bytes, tmp_path: Path) -> None:
    done = import_archive(tmp_path / "copy", exported)
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr.decode() == f"{tmp_path / 'copy'}: 5 jobs and 1 paused tube imported\n"
    checked = run("journal", "check", str(tmp_path / "copy"))
    assert (checked.returncode, "\nnext job id: 7\njobs: 5\n" in checked.stdout) == (0, True)
    again = export(tmp_path / "copy").stdout
    assert without_time(again) == without_time(exported)
    shutil.copytree(original, tmp_path / "original")
    assert state_of(tmp_path / "copy") == state_of(tmp_path / "original")


def without_time(data: bytes) -> list[dict[str, Any]]:
    """Return the lines without the time of the export, and without the checksum, which depends on it."""
    head, *rest, end = lines_of(data)
    del head["exported_at"], end["sha256"]
    return [head, *rest, end]


def test_export_to_a_file_and_import_from_it(original: Path, exported: bytes, tmp_path: Path) -> None:
    target = tmp_path / "archive.jsonl"
    target.write_text("an older archive")
    target.chmod(0o644)
    done = export(original, "-o", str(target))
    assert (done.returncode, done.stdout) == (0, b"")
    assert without_time(target.read_bytes()) == without_time(exported)
    assert target.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["archive.jsonl"]
    (tmp_path / "copy").mkdir()
    assert run("journal", "import", str(tmp_path / "copy"), str(target)).returncode == 0
    assert without_time(export(tmp_path / "copy").stdout) == without_time(exported)


def test_export_and_import_of_many_segments_and_a_large_job(tmp_path: Path) -> None:
    tube = Tube(b"big", {})
    sizes = [10, SEGMENT_SIZE + 1, 0, SEGMENT_SIZE // 2, SEGMENT_SIZE // 2, SEGMENT_SIZE // 2]
    jobs = [Job(id, tube, bytes(size), 0, 0, SECOND, 1) for id, size in enumerate(sizes, 1)]
    data = b"".join(Writer().lines(1, 100, [], jobs))
    assert import_archive(tmp_path, data).returncode == 0
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["journal.1", "journal.2", "journal.3", "lock"]
    assert without_time(export(tmp_path).stdout) == without_time(data)
    with serving(tmp_path) as (_, peer):
        assert len(peer.ask(b"peek 2")) > SEGMENT_SIZE
        assert put(peer, b"big", b"") == b"INSERTED 100"


def test_journal_of_a_running_server_can_be_exported(tmp_path: Path) -> None:
    with serving(tmp_path, "-f", "0") as (daemon, peer):
        put(peer, b"default", b"one")
        peer.ask(b"reserve")
        done = export(tmp_path)
        assert done.returncode == 0
        (job,) = lines_of(done.stdout)[1:-1]
        assert (job["id"], job["state"], job["body"]) == (1, "ready", "one")
        message = (
            f"{tmp_path} is in use by process {daemon.process.pid}; the archive has all changes that were acknowledged"
            " before the export began"
        )
        assert message in done.stderr.decode()
        file = tmp_path / "quiet.jsonl"
        for flags in (["-q"], ["-o", str(file), "-q"], ["-q", "-o", str(file)]):
            quiet = run("journal", "export", str(tmp_path), *flags)
            assert (quiet.returncode, quiet.stderr) == (0, "")
        assert [job["id"] for job in lines_of(file.read_bytes())[1:-1]] == [1]
        assert peer.ask(b"delete 1") == b"DELETED"


# Refusals and reports


def test_export_of_a_directory_without_a_journal_is_refused(tmp_path: Path) -> None:
    done = export(tmp_path)
    assert (done.returncode, done.stdout) == (10, b"")
    assert done.stderr.decode() == f"greenstalk-server: journal export: {tmp_path}: there is no journal in it\n"
    done = export(tmp_path / "missing")
    assert done.returncode == 10
    assert b"journal export: " in done.stderr and b"No such file or directory" in done.stderr
    (tmp_path / "binlog.1").write_bytes(b"\x07\0\0\0")
    assert export(tmp_path).returncode == 10


def test_export_of_a_damaged_journal_has_the_intact_jobs(exported: bytes, tmp_path: Path) -> None:
    import_archive(tmp_path, exported)
    file = tmp_path / "journal.1"
    data = bytearray(file.read_bytes())
    data[data.index(BINARY)] ^= 1
    file.write_bytes(data)
    done = export(tmp_path)
    assert done.returncode == 1
    assert [line["id"] for line in lines_of(done.stdout)[2:-1]] == [1, 2, 4, 5]
    assert b"journal export: journal.1: damaged at offset " in done.stderr
    assert b"journal export: 4 jobs and 1 paused tube exported\n" in done.stderr


def test_export_that_cannot_be_written_leaves_no_file(original: Path, tmp_path: Path) -> None:
    done = export(original, "-o", str(tmp_path / "no" / "archive"))
    assert (done.returncode, b"No such file or directory" in done.stderr) == (10, True)
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as broken:  # noqa: PTH123  a descriptor
        command = [*COMMAND, "journal", "export", str(original)]
        process = forking.run(command, cwd=REPOSITORY, env=environment(), stdout=broken, timeout=TIMEOUT)
    assert process.stderr == b"greenstalk-server: journal export: stdout: Broken pipe; the output is not complete\n"
    assert process.returncode == 10


# Dated exports


def test_only_the_newest_exports_are_kept(original: Path, exported: bytes, tmp_path: Path) -> None:
    for day in (1, 2, 3):
        (tmp_path / f"greenstalk-2026110{day}T031500Z.jsonl").write_bytes(exported)
    others = {"greenstalk-20261101T040000Z.jsonl": b"not an export", "old.jsonl": exported, "notes.txt": b""}
    for name, content in others.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "greenstalk-20261101T050000Z.jsonl").symlink_to(tmp_path / "old.jsonl")
    (tmp_path / "greenstalk-20261104T031500Z.jsonl.part").write_bytes(b"left by a killed export")
    done = export(original, "-q", "-o", str(tmp_path), "--keep", "2")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    left = {path.name for path in tmp_path.iterdir()} - others.keys() - {"greenstalk-20261101T050000Z.jsonl"}
    assert {name for name in left if name < "greenstalk-20261104"} == {"greenstalk-20261103T031500Z.jsonl"}
    (made,) = left - {"greenstalk-20261103T031500Z.jsonl"}
    assert re.fullmatch(r"greenstalk-\d{8}T\d{6}Z\.jsonl", made)
    assert lines_of((tmp_path / made).read_bytes())[1:-1] == lines_of(exported)[1:-1]
    assert {name: (tmp_path / name).read_bytes() for name in others} == others


def test_new_export_is_kept_although_others_have_later_times(original: Path, exported: bytes, tmp_path: Path) -> None:
    for year in (2000, 2998, 2999):
        (tmp_path / f"greenstalk-{year}1101T031500Z.jsonl").write_bytes(exported)
    assert export(original, "-q", "-o", str(tmp_path), "--keep", "2").returncode == 0
    made, later = sorted(path.name for path in tmp_path.iterdir())
    assert (later, made[:15] < "greenstalk-2998") == ("greenstalk-29991101T031500Z.jsonl", True)


def test_export_of_a_damaged_journal_removes_no_export(original: Path, exported: bytes, tmp_path: Path) -> None:
    queue, backups = tmp_path / "queue", tmp_path / "backups"
    shutil.copytree(original, queue)
    data = bytearray((queue / "journal.1").read_bytes())
    data[data.index(BINARY)] ^= 1
    (queue / "journal.1").write_bytes(data)
    backups.mkdir()
    (backups / "greenstalk-20261101T031500Z.jsonl").write_bytes(exported)
    assert export(queue, "-q", "-o", str(backups), "--keep", "1").returncode == 1
    assert len(list(backups.iterdir())) == 2


def test_dated_export_needs_a_directory_that_no_other_export_uses(original: Path, tmp_path: Path) -> None:
    done = export(original, "-o", str(tmp_path / "missing"), "--keep", "1")
    assert (done.returncode, done.stderr.count(b"No such file or directory")) == (10, 1)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    done = export(original, "-o", str(tmp_path), "--keep", "1")
    os.close(descriptor)
    assert (done.returncode, b"another export into " in done.stderr) == (10, True)
    assert list(tmp_path.iterdir()) == []


def test_import_needs_an_empty_unused_directory(exported: bytes, tmp_path: Path) -> None:
    with Daemon(*QUIET, "-b", str(tmp_path)):
        done = import_archive(tmp_path, exported)
        assert done.returncode == 10
        assert done.stderr.decode() == (
            f"greenstalk-server: journal import: {tmp_path}: must be empty, but contains journal.1\n"
        )
    missing = run("journal", "import", str(tmp_path / "missing"))
    assert missing.returncode == 10
    assert "journal import: " in missing.stderr
    assert "No such file or directory; it must be a directory" in missing.stderr
    file = run("journal", "import", str(tmp_path / "lock"))
    assert (file.returncode, "Not a directory; it must be a directory" in file.stderr) == (10, True)


def test_import_into_a_locked_directory_is_refused(exported: bytes, tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        done = import_archive(tmp_path, exported)
    assert done.returncode == 10
    assert done.stderr.decode() == (
        f"greenstalk-server: journal import: {tmp_path}: in use by process {os.getpid()};"
        " only one server may use a directory at a time\n"
    )


def test_import_of_a_missing_file_is_refused(tmp_path: Path) -> None:
    done = run("journal", "import", str(tmp_path), "/no/such/file")
    assert done.returncode == 10
    assert done.stderr == (
        "greenstalk-server: journal import: /no/such/file: No such file or directory; nothing was imported\n"
    )


@pytest.mark.parametrize("part", [0.3, 0.9, -1, -2])
def test_truncated_archive_is_not_imported(exported: bytes, tmp_path: Path, part: float) -> None:
    size = int(len(exported) * part) if part >= 0 else len(exported) + int(part)
    done = import_archive(tmp_path, exported[:size])
    assert done.returncode == 1
    assert done.stderr.endswith(b"; nothing was imported\n")
    assert (
        b"stdin:%d: unexpected end of the archive: it is truncated" % (exported.count(b"\n", 0, size) + 1)
        in done.stderr
    )
    assert {path.name for path in tmp_path.iterdir()} == {"lock"}


@pytest.mark.parametrize("source", ["/dev/null", "/dev/zero"])
def test_input_that_is_not_an_archive_is_not_imported(tmp_path: Path, source: str) -> None:
    done = run("journal", "import", str(tmp_path), source)
    assert done.returncode == 1
    assert done.stderr == (
        f"greenstalk-server: journal import: {source}:1:"
        " not the first line of a greenstalk journal archive, which `journal export` writes; nothing was imported\n"
    )


def test_killed_import_leaves_no_jobs(exported: bytes, tmp_path: Path) -> None:
    """The import has written a segment when it is killed. A start reports the interrupted import, and has no jobs."""
    jobs = [Job(id, Tube(b"default", {}), bytes(SEGMENT_SIZE), 0, 0, SECOND, 1) for id in (1, 2)]
    data = b"".join(list(Writer().lines(1, 3, [], jobs))[:-1])
    command = [*COMMAND, "journal", "import", str(tmp_path)]
    process = forking.Process(command, cwd=REPOSITORY, env=environment(), stdin=subprocess.PIPE)
    with ending(process):
        assert process.stdin is not None
        process.stdin.write(data)
        process.stdin.flush()
        eventually((tmp_path / "journal.1").exists, "the first segment exists")
        process.kill()
        assert process.wait(TIMEOUT) == -signal.SIGKILL
    assert "an import was interrupted" in run("journal", "check", str(tmp_path)).stdout
    assert b"an import into it was interrupted; there is nothing to export" in export(tmp_path).stderr
    with serving(tmp_path) as (daemon, peer):
        assert peer.ask(b"peek 1") == b"NOT_FOUND"
        assert "WARNING journal: an import was interrupted; its jobs are ignored" in daemon.stop()[1]


# The codec


def read(lines: list[bytes]) -> list[Pause | Policy | Key | Job]:
    reader = Reader(lines)
    return list(reader.entries(reader.head()))


def sealed(*lines: dict[str, Any]) -> list[bytes]:
    """Return an archive of *lines* with a matching last line."""
    encoded = [json.dumps(line).encode() + b"\n" for line in lines]
    types = [line.get("type") for line in lines]
    checksum = hashlib.sha256(b"".join(encoded)).hexdigest()
    counts = {"pauses": types.count("pause"), "jobs": types.count("job")}
    if lines[0].get("version") != 1:
        counts |= {"policies": types.count("policy"), "keys": types.count("key") + types.count("idempotency-key")}
    end = {"type": "end", **counts, "sha256": checksum}
    return [*encoded, json.dumps(end).encode() + b"\n"]


HEAD = {"type": "head", "format": "greenstalk journal", "version": 2, "server": "1", "exported_at": 1, "next_id": 9}
VERSION_1 = HEAD | {"version": 1}
POLICY = {"type": "policy", "name": "mail", "encoding": "utf-8", "document": "{}"}
KEY = {"type": "key", "tube": "mail", "key": "00ff", "id": 8, "until": 2}
LETTER = {"reason": "expired", "source": "mail", "attempts": 2, "first_at": 3, "last_at": 4}
PAUSE = {"type": "pause", "tube": "mail", "until": 2, "length": 1}
JOB = {
    "type": "job", "id": 1, "tube": "mail", "state": "ready", "pri": 0, "delay": 0, "ttr": SECOND, "created_at": 1,
    "deadline": 1, "reserves": 0, "timeouts": 0, "releases": 0, "buries": 0, "kicks": 0,
    "events": [[1, "kicked", 0]], "encoding": "utf-8", "body": "",
}  # fmt: skip


def test_valid_lines_are_accepted() -> None:
    pause, job = read(sealed(HEAD, PAUSE, JOB))
    assert pause == Pause(b"mail", 2, 1)
    assert isinstance(job, Job)
    assert job_history.unpack(job.events) == [(1, job_history.KICKED, 0)]


def test_lines_of_policies_keys_and_attributes_are_accepted() -> None:
    attributes = {"reserves": 1, "attempts_base": 1, "expires_from": 2, "unique_key": "00ff", "dead_letter": LETTER}
    policy, key, job = read(sealed(HEAD, POLICY, KEY, JOB | attributes))
    assert (policy, key) == (Policy("mail", b"{}"), Key(b"mail", b"\0\xff", 8, 2))
    assert isinstance(job, Job)
    assert (job.attempts_base, job.expires_from, job.unique_key) == (1, 2, b"\0\xff")
    assert DeadLetter.unpack(job.dead_letter) == DeadLetter(DeadLetterReason.EXPIRED, b"mail", 2, 3, 4)


def test_lines_of_tags_and_idempotency_keys_are_accepted() -> None:
    tags = {"idempotency_key": "k", "idempotency_ttl": 5, "group": "g", "after": "a"}
    tags |= {"concurrency_key": "c", "concurrency_limit": 3}
    key = {"type": "idempotency-key", "tube": "mail", "key": "k-1", "id": 1, "until": 9}
    found, job = read(sealed(HEAD, key, JOB | {"tags": tags}))
    assert found == Key(b"mail:", b"k-1", 1, 9)
    assert isinstance(job, TaggedJob)
    assert job.more_tags is not None
    assert job.more_tags.idempotency_ttl == 5
    assert (job.more_tags.group, job.more_tags.after) == (b"g", b"a")
    assert (job.more_tags.concurrency_key, job.more_tags.concurrency_limit) == (b"c", 3)


def test_archive_of_version_1_is_read() -> None:
    pause, job = read(sealed(VERSION_1, PAUSE, JOB))
    assert isinstance(pause, Pause)
    assert isinstance(job, Job)


@pytest.mark.parametrize(
    ("lines", "number", "message"),
    [
        ([PAUSE], 1, "not the first line of a greenstalk journal archive, which `journal export` writes"),
        (
            [HEAD | {"format": "x"}],
            1,
            "not the first line of a greenstalk journal archive, which `journal export` writes",
        ),
        ([HEAD | {"version": 3}], 1, "archive version 3, but this server reads 1 to 2"),
        ([HEAD | {"version": True}], 1, "archive version True, but this server reads 1 to 2"),
        ([VERSION_1, POLICY], 2, "its type must be job, end, or"),
        ([VERSION_1, JOB | {"attempts_base": 1}], 2, "unknown field 'attempts_base'"),
        ([HEAD, JOB, KEY], 3, "its type must be job, end, or"),
        ([HEAD, POLICY | {"name": ""}], 2, "name '': must be the name of a policy, at most 255 bytes"),
        ([HEAD, POLICY | {"name": "\ud800"}], 2, "name '\\ud800': must be the name of a policy"),
        ([HEAD, POLICY | {"name": "n" * 256}], 2, "name 'nnnnn"),
        ([HEAD, POLICY | {"document": 1}], 2, "document: must be text encoded as utf-8 or base64"),
        ([HEAD, KEY | {"key": ""}], 2, "unique key '': must be 1 to 64 bytes in hexadecimal"),
        ([HEAD, KEY | {"key": "0g"}], 2, "unique key '0g': must be 1 to 64 bytes in hexadecimal"),
        ([HEAD, KEY | {"id": 9}], 2, "id 9: must be a whole number from 1 to 8"),
        ([HEAD, JOB | {"unique_key": "00" * 65}], 2, "unique key '0000"),
        ([HEAD, JOB | {"attempts_base": -1}], 2, "attempts_base -1: must be a whole number"),
        ([HEAD, JOB | {"reserves": 4, "attempts_base": 5}], 2, "attempts_base 5: must be a whole number from 0 to 4"),
        ([HEAD, JOB | {"expires_from": 2**64}], 2, "expires_from 18446744073709551616: must be a whole number"),
        ([HEAD, JOB | {"dead_letter": 1}], 2, "dead_letter: must be an object"),
        ([HEAD, JOB | {"tags": 1}], 2, "tags: must be an object"),
        ([HEAD, JOB | {"tags": {}}], 2, "tags: must have a key or group"),
        ([HEAD, JOB | {"tags": {"group": "a:b"}}], 2, "group 'a:b': must be a valid tube name"),
        ([HEAD, JOB | {"tags": {"concurrency_key": "a"}}], 2, "tags: must have a key or group, and concurrency_key"),
        ([HEAD, JOB | {"tags": {"group": "a", "idempotency_ttl": 1}}], 2, "tags: idempotency_ttl needs"),
        ([HEAD, JOB | {"tags": {"group": "a", "other": 1}}], 2, "unknown field 'other'"),
        ([HEAD, JOB | {"dead_letter": LETTER | {"reason": ""}}], 2, "reason '': must be one of attempts, expired"),
        ([HEAD, JOB | {"dead_letter": LETTER | {"source": " "}}], 2, "source ' ': must be a valid tube name"),
        ([HEAD, JOB | {"dead_letter": {}}], 2, "attempts is missing"),
        ([HEAD | {"next_id": 0}], 1, "next_id 0: must be a whole number from 1 to 9007199254740992"),
        ([HEAD | {"next_id": 2**64 - 1}], 1, "next_id 18446744073709551615: must be a whole number from 1 to 900719"),
        ([HEAD, JOB | {"state": "buried", "deadline": 2**64 - 1}], 2, "deadline 18446744073709551615: must be a whole"),
        ([HEAD, HEAD], 2, "its type must be job, end, or, before the first job, pause, policy, key or"),
        ([HEAD, JOB, PAUSE], 3, "its type must be job, end, or, before the first job, pause, policy, key or"),
        ([HEAD, JOB, JOB], 3, "id 1: must be above 1 and below the head's next_id, 9"),
        ([HEAD, JOB | {"id": 9}], 2, "id 9: must be above 0 and below the head's next_id, 9"),
        ([HEAD, JOB | {"id": 0}], 2, "id 0: must be a whole number from 1 to 9007199254740992"),
        ([HEAD, JOB | {"id": "1"}], 2, "id '1': must be a whole number from 1 to 9007199254740992"),
        ([HEAD, JOB | {"pri": 2**32}], 2, "pri 4294967296: must be a whole number from 0 to 4294967295"),
        ([HEAD, JOB | {"pri": True}], 2, "pri True: must be a whole number from 0 to 4294967295"),
        ([HEAD, JOB | {"ttr": 1.5}], 2, "ttr 1.5: must be a whole number from 1000000000 to 4294967295000000000"),
        ([HEAD, JOB | {"tube": "a b"}], 2, "tube 'a b': must be a valid tube name"),
        ([HEAD, JOB | {"tube": "\ud800"}], 2, "tube '\\ud800': must be a valid tube name"),
        ([HEAD, PAUSE | {"tube": None}], 2, "tube None: must be a valid tube name"),
        ([HEAD, JOB | {"state": "reserved"}], 2, "state 'reserved': must be one of ready, delayed, buried"),
        ([HEAD, JOB | {"state": []}], 2, "state []: must be one of ready, delayed, buried"),
        ([HEAD, JOB | {"encoding": "base64", "body": "?"}], 2, "body: must be text encoded as utf-8 or base64"),
        ([HEAD, JOB | {"encoding": "hex"}], 2, "body: must be text encoded as utf-8 or base64, not 'hex'"),
        ([HEAD, JOB | {"body": "\ud800"}], 2, "body: must be text encoded as utf-8 or base64, not 'utf-8'"),
        ([HEAD, JOB | {"events": [[1, "x", 0]]}], 2, "events: must be at most 16 lists of time, kind and client"),
        ([HEAD, JOB | {"events": [[1, "kicked", -1]]}], 2, "events: must be at most 16"),
        ([HEAD, JOB | {"events": [[1, "kicked", 0]] * 17}], 2, "events: must be at most 16"),
        ([HEAD, JOB | {"events": 3}], 2, "events: must be at most 16"),
        ([HEAD, JOB | {"colour": 1}], 2, "unknown field 'colour'"),
        ([HEAD, {key: JOB[key] for key in JOB if key != "kicks"}], 2, "kicks is missing"),
    ],
)
def test_invalid_line_is_refused(lines: list[dict[str, Any]], number: int, message: str) -> None:
    reader = Reader(sealed(*lines))
    with pytest.raises(BadLine) as caught:
        list(reader.entries(reader.head()))
    assert str(caught.value).startswith(message)
    assert reader.number == number


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"no\n", "not valid JSON: Expecting value"),
        (b"\xff\n", "not valid JSON: "),
        (b"[" * 100_000 + b"\n", "not valid JSON: "),
        (b"[]\n", "not a JSON object"),
        (b'{"type":"end","pauses":0,"policies":0,"keys":0,"jobs":0}\n', "sha256 is missing"),
    ],
)
def test_line_that_is_not_an_object_is_refused(line: bytes, message: str) -> None:
    with pytest.raises(BadLine, match=re.escape(message)):
        read([sealed(HEAD)[0], line])


def test_exported_key_is_read_back_equal() -> None:
    keys = [Key(b"mail", b"\xff", 1, 2), Key(b"mail:", b"order-17", 3, 4)]
    assert read(list(Writer().lines(1, 4, keys, []))) == keys


def test_missing_or_changed_job_fails_the_checksum() -> None:
    lines = sealed(HEAD, PAUSE, JOB, JOB | {"id": 2})
    with pytest.raises(BadLine, match="2 jobs were exported, but the archive has 1"):
        read([*lines[:3], lines[4]])
    with pytest.raises(BadLine, match="checksum mismatch: the lines differ from those that were exported"):
        read([*lines[:3], lines[3].replace(b'"pri": 0', b'"pri": 1'), lines[4]])
    with pytest.raises(BadLine, match="no line may follow the end line"):
        read([*lines, b"\n"])


def test_example_in_the_format_document_is_valid() -> None:
    page = (REPOSITORY / "docs" / "archive-format.md").read_text()
    example = block("archive-format.md", "json", '{"type":"head"')
    pause, policy, key, job = read(example.encode().splitlines(keepends=True))
    assert isinstance(pause, Pause)
    assert isinstance(policy, Policy)
    assert isinstance(key, Key)
    assert isinstance(job, Job)
    assert (job.state, job.body, archive.VERSION) == (BURIED, b"hello", 2)
    table = page.partition("| field | meaning |")[2]
    for name in lines_of(example.encode())[4].keys() - {"type", "tube"}:
        assert f"`{name}`" in table


@pytest.mark.parametrize("tags", [b"", b"key", Tags(b"key", 7, b"g", b"a", b"c", 2), Tags(after=b"a")])
def test_exported_job_is_read_back_equal(tags: Tags | bytes) -> None:
    """The state, counters, events and tags of a job survive the archive's codec."""
    job: Job = Job(3, Tube(b"a", {}), b"x", 1, 2 * SECOND, 3 * SECOND, 4)
    if tags:
        job = TaggedJob(3, Tube(b"a", {}), b"x", 1, 2 * SECOND, 3 * SECOND, 4, tags)
    job.state, job.deadline = DELAYED, 5
    job.reserves, job.timeouts, job.releases, job.buries, job.kicks = 1, 2, 3, 4, 5
    job.events = job_history.add(b"", job_history.RELEASED, 6, 7)
    job.attempts_base, job.expires_from, job.unique_key = 1, 9, b"\0key"
    job.dead_letter = DeadLetter(DeadLetterReason.OVERFLOW, b"mail", 3, 4, 5).pack()
    (copy,) = read(list(Writer().lines(1, 4, [], [job])))
    assert isinstance(copy, Job)
    encoder = record.Encoder(b"salt")
    assert encoder.job(copy, 1, copy.events) == encoder.job(job, 1, job.events)
