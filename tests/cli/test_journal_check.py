"""`journal check` on directories written by the real server and by the real beanstalkd."""

from __future__ import annotations

import io
import os
import re
import shutil
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from threading import Event, Thread
from zlib import crc32

import greenstalk
import pytest

from greenstalk_server.cli import main
from greenstalk_server.core.jobs.job import Job
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.journal import record
from greenstalk_server.journal.check import Report, inspect
from tests.journal.test_beanstalkd import V7, beanstalkd, client_of, full, header, kill, make_job
from tests.support.daemon import TIMEOUT, Daemon, run, run_here
from tests.support.peer import eventually
from tests.support.processes import join

QUIET = ("-l", "127.0.0.1", "-p", "0", "--no-web")
SMALL = ("-s", "16384", "-f", "0")
BODY = "x" * 4500


def check(directory: Path) -> tuple[int, str]:
    """Run the command in this process; return its exit code and output. It must change nothing."""
    before = state_of(directory)
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = main(["journal", "check", str(directory)])
    assert err.getvalue() == ""
    assert state_of(directory) == before
    return code, out.getvalue()


def state_of(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Return the content and modification time of each file, and of *directory*."""
    files = {path.name: path for path in sorted(directory.rglob("*")) if path.is_file()}
    state = {name: (path.stat().st_mtime_ns, path.read_bytes()) for name, path in files.items()}
    return state | {".": (directory.stat().st_mtime_ns, b"")}


def segments(directory: Path) -> list[Path]:
    """Return the journal's files in use, oldest first."""
    found = [path for path in directory.glob("journal.*") if path.read_bytes().strip(b"\0")]
    return sorted(found, key=lambda path: int(path.suffix[1:]))


def client(daemon: Daemon, tube: str = "default") -> greenstalk.Client:
    return greenstalk.Client(("127.0.0.1", daemon.port), use=tube, watch=tube)


@pytest.fixture
def beanstalkd_directory(tmp_path: Path) -> Path:
    """The directory of a killed beanstalkd with three jobs: the second is buried, the third deleted."""
    with beanstalkd(tmp_path, "-f", "0") as server, client_of(server) as queue:
        for pri in (3, 1, 2):
            queue.put(b"body", priority=pri)
        queue.bury(queue.reserve())
        queue.delete(queue.reserve())
        kill(server)
    return tmp_path


@pytest.fixture
def four_segments(tmp_path: Path) -> Path:
    """The directory of a real server: ten ready jobs in four segments."""
    with Daemon(*QUIET, *SMALL, "-b", str(tmp_path)) as daemon, client(daemon) as queue:
        for _ in range(10):
            queue.put(BODY)
    assert len(segments(tmp_path)) == 4
    return tmp_path


def ready_after_start(directory: Path) -> int:
    """Return the number of ready jobs of a server that is started on *directory*."""
    with Daemon(*QUIET, *SMALL, "-b", str(directory)) as daemon, client(daemon) as queue:
        count = queue.stats()["current-jobs-ready"]
        assert isinstance(count, int)
        return count


def test_directory_without_a_journal_is_sound(tmp_path: Path) -> None:
    assert check(tmp_path) == (0, f"{tmp_path}: sound\njournal: no file\njobs: 0\n")


def test_jobs_are_counted_by_tube_and_state(tmp_path: Path) -> None:
    with Daemon(*QUIET, "-b", str(tmp_path)) as daemon:
        with client(daemon) as queue, client(daemon, "mail") as mail:
            for _ in range(3):
                queue.put("ready")
            queue.put("delayed", delay=3600)
            queue.delete(queue.reserve())
            mail.put("buried")
            mail.bury(mail.reserve())
            mail.put("a reserved job comes back ready")
            mail.reserve()
            mail.pause_tube("mail", 3600)
        daemon.stop()
    code, output = check(tmp_path)
    assert code == 0
    assert f"{tmp_path}: sound\n" in output
    assert "in use" not in output
    assert "jobs: 5\n  default: 2 ready, 1 delayed, 0 buried\n  mail: 1 ready, 0 delayed, 1 buried\n" in output
    assert re.search(r"^records: 6 job, 1 update, \d reserve, 1 delete, \d pause, 1 ids$", output, re.MULTILINE)
    assert "next job id: 7\n" in output
    assert re.search(r"^paused: mail, until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+00:00$", output, re.MULTILINE)
    (file,) = segments(tmp_path)
    assert re.search(rf"^  {file.name}: \d+ bytes, \d+ records$", output, re.MULTILINE)
    assert re.search(r"^bytes: \d+ live of \d+ on disk$", output, re.MULTILINE)
    assert "DAMAGE" not in output


def test_running_server_is_named_and_not_disturbed(tmp_path: Path) -> None:
    with Daemon(*QUIET, "-b", str(tmp_path)) as daemon, client(daemon) as queue:
        queue.put("one")
        following = tmp_path / "journal.2"
        eventually(lambda: following.exists() and following.stat().st_size > 0, "the next segment is allocated")
        done = run_here("journal", "check", str(tmp_path))
        assert done.returncode == 0
        assert f"in use by process {daemon.process.pid}: " in done.stdout
        assert "\njobs: 1\n" in done.stdout
        assert "allocated ahead" in done.stdout
        assert run(*QUIET, "-b", str(tmp_path)).returncode == 10, "the server still has its lock"
        assert queue.put("two") == 2


def test_journal_of_a_server_under_load_is_sound(tmp_path: Path) -> None:
    """Files appear and disappear during the check, and the newest one is being written."""
    with Daemon(*QUIET, *SMALL, "-F", "-b", str(tmp_path)) as daemon:
        has_fifty_jobs, is_over = Event(), Event()
        thread = Thread(target=keep_busy, args=(daemon, has_fifty_jobs, is_over), daemon=True)
        thread.start()
        try:
            assert has_fifty_jobs.wait(TIMEOUT)
            reports = list[Report]()
            while len(reports) < 200 or len(file_sets(reports)) <= 3:
                reports.append(inspect(str(tmp_path), time.time_ns()))
        finally:
            is_over.set()
            join(thread)
    assert all(report.exit_code == 0 for report in reports)
    assert all(len(report.recovery.jobs) >= 50 for report in reports)


def file_sets(reports: list[Report]) -> set[tuple[str, ...]]:
    return {tuple(report.sizes) for report in reports}


def keep_busy(daemon: Daemon, has_fifty_jobs: Event, is_over: Event) -> None:
    """Keep fifty jobs, and put and delete others, so that compaction has to run."""
    with client(daemon) as queue, client(daemon, "short") as short:
        for _ in range(50):
            queue.put("y" * 100)
        has_fifty_jobs.set()
        while not is_over.is_set():
            short.put(BODY)
            short.delete(short.reserve())


# Damage


def test_torn_tail_is_reported_but_not_as_damage(four_segments: Path) -> None:
    newest = segments(four_segments)[-1]
    os.truncate(newest, len(newest.read_bytes().rstrip(b"\0")) - 7)
    code, output = check(four_segments)
    assert code == 0
    assert f"\ntorn by a crash: {newest.name}: torn tail at offset " in output
    assert "\njobs: 9\n" in output
    assert ready_after_start(four_segments) == 9


def test_damage_in_the_middle_loses_one_record(four_segments: Path) -> None:
    """The report has the offset and size of the damaged record; the records next to it are read."""
    file = segments(four_segments)[1]
    data = bytearray(file.read_bytes())
    at = record.SEGMENT_HEADER_SIZE
    size = record.HEADER_SIZE + record.HEADER.unpack_from(data, at)[2]
    data[at + 500] ^= 1
    file.write_bytes(data)
    code, output = check(four_segments)
    assert code == 1
    assert f"{four_segments}: DAMAGED\n" in output
    assert f"\nDAMAGE: {file.name}: damaged at offset {at}: {size} bytes, 1 records lost\n" in output
    assert "\nrecords: 9 job\n" in output
    assert ready_after_start(four_segments) == 9


def test_torn_header_of_the_newest_file_is_not_damage(four_segments: Path) -> None:
    """Power was lost while the first sectors of a segment were written. A start removes the segment."""
    torn = four_segments / "journal.99"
    torn.write_bytes(bytes(512) + b"written, but nothing before it" + bytes(512))
    code, output = check(four_segments)
    assert code == 0
    assert "\ntorn by a crash: journal.99: does not start with the magic bytes of a journal segment" in output
    assert "\njobs: 10\n" in output
    assert ready_after_start(four_segments) == 10
    assert not torn.exists()


def test_rewrite_after_a_failed_write_is_not_damage(tmp_path: Path) -> None:
    job = Job(1, Tube(b"default", {}), b"body", 0, 0, 1, 1)
    first, rewrite = record.Encoder(b"salt"), record.Encoder(b"next")
    torn = record.SegmentHeader(b"salt", 1, 1, 1).encode() + first.job(job, 1) + b"torn"
    (tmp_path / "journal.1").write_bytes(torn)
    header = record.SegmentHeader(b"next", 2, first_sequence=1, next_id=2).encode()
    (tmp_path / "journal.2").write_bytes(header + rewrite.job(job, 3))
    code, output = check(tmp_path)
    assert code == 0
    assert "\nrewritten after a disk failure: journal.1: damaged to its end at offset " in output
    assert "\njobs: 1\n" in output


@pytest.mark.parametrize(
    ("version", "advice"),
    [(record.VERSION + 1, record.LATER_VERSION), (record.VERSION - 1, record.EARLIER_VERSION)],
)
def test_other_version_is_reported_and_a_start_refuses_it(four_segments: Path, version: int, advice: str) -> None:
    file = segments(four_segments)[1]
    data = file.read_bytes()
    head = data[:8] + version.to_bytes(4, "little") + data[12 : record.SEGMENT_HEADER_SIZE - 4]
    file.write_bytes(head + crc32(head).to_bytes(4, "little") + data[record.SEGMENT_HEADER_SIZE :])
    code, output = check(four_segments)
    assert code == 10
    assert f"{four_segments}: WRITTEN BY ANOTHER VERSION\n" in output
    assert f"{file.name}: format version {version}, but this server reads only version {record.VERSION} " in output
    assert output.endswith(f"\na start would fail: {advice}\n")
    before = {path.name: path.read_bytes() for path in four_segments.iterdir()}
    start = run(*QUIET, "-b", str(four_segments))
    assert start.returncode == 10
    assert advice in start.stderr
    assert {path.name: path.read_bytes() for path in four_segments.iterdir()} == before


def test_interrupted_import_is_ignored(tmp_path: Path) -> None:
    encoder = record.Encoder(b"salt")
    job = Job(7, Tube(b"default", {}), b"body", 0, 0, 1, 1)
    (tmp_path / "journal.1").write_bytes(
        record.SegmentHeader(b"salt", 1, 1, 1).encode() + encoder.mark(record.IMPORT_BEGIN, 1) + encoder.job(job, 2)
    )
    code, output = check(tmp_path)
    assert code == 0
    assert "\nrecords: 1 job, 1 import begun\n" in output
    assert output.endswith(
        "\njobs: 0\nan import was interrupted, and its jobs are ignored: repeat it, in an empty directory\n"
    )


# Files of beanstalkd


def test_files_of_beanstalkd_are_counted_and_unchanged(beanstalkd_directory: Path) -> None:
    code, output = check(beanstalkd_directory)
    assert code == 0
    assert re.search(r"\nbeanstalkd: 1 file, \d+ records; a start would import 2 jobs\n$", output)


def test_damage_in_files_of_beanstalkd_is_reported(beanstalkd_directory: Path) -> None:
    (file,) = beanstalkd_directory.glob("binlog.*")
    file.chmod(0o600)
    (beanstalkd_directory / "binlog.99").write_bytes(b"\x09\0\0\0")
    data = bytearray(file.read_bytes())
    data[:4] = b"\0\0\0\1"
    file.write_bytes(data)
    code, output = check(beanstalkd_directory)
    assert code == 10
    assert f"{beanstalkd_directory}: CANNOT BE IMPORTED\n" in output
    assert "beanstalkd: a start would fail: a file has an unknown version\n" in output
    assert f"  {file.name}: not read: unknown version 16777216\n" in output
    assert "  binlog.99: not read: unknown version 9\n" in output


JOBS = header(V7) + full(V7, make_job(1)) + full(V7, make_job(2))


@pytest.mark.parametrize("flags", [(), ("--strict-recovery",)])
@pytest.mark.parametrize(
    ("content", "codes"),
    [
        (JOBS, (0, 0, 0)),
        (JOBS + full(V7, make_job(3))[:-9], (0, 0, 0)),
        (bytes(4096), (0, 0, 0)),
        (b"", (0, 0, 0)),
        (bytes(4) + JOBS[4:], (0, 10, 1)),
        (JOBS[:3], (0, 10, 1)),
        (JOBS + full(V7, make_job(0)) + full(V7, make_job(3)), (0, 10, 1)),
        (b"\x08" + JOBS[1:], (10, 10, 10)),
    ],
    ids=["sound", "torn", "zeroed", "empty", "version zeroed", "short", "damaged", "unknown version"],
)
def test_start_and_checks_agree_on_a_file_of_beanstalkd(
    tmp_path: Path, content: bytes, codes: tuple[int, int, int], flags: tuple[str, ...]
) -> None:
    """*codes* are the exit codes of a start, of one with --strict-recovery, and of the check."""
    lenient, strict, checked = codes
    (tmp_path / "binlog.1").write_bytes(content)
    (tmp_path / "binlog.2").write_bytes(header(V7) + full(V7, make_job(9)))
    assert check(tmp_path)[0] == checked
    assert run_here("config", "--check", *QUIET, "-b", str(tmp_path)).returncode == lenient
    expected = strict if flags else lenient
    if expected:
        assert run(*QUIET, "-b", str(tmp_path), *flags).returncode == expected
        assert {path.name for path in tmp_path.iterdir()} == {"binlog.1", "binlog.2", "lock"}
        return
    with Daemon(*QUIET, "-b", str(tmp_path), *flags) as daemon:
        assert daemon.ask(b"peek 9\r\n").startswith(b"FOUND 9 ")
        is_read = daemon.ask(b"peek 1\r\n").startswith(b"FOUND 1 ")
    assert is_read == content.startswith(header(V7))
    assert (tmp_path / "binlog.1").exists() != is_read
    assert (tmp_path / "beanstalkd-imported" / "binlog.2").exists()


def test_ids_allocated_by_both_servers_are_reported(
    beanstalkd_directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ours = tmp_path_factory.mktemp("ours")
    with Daemon(*QUIET, "-b", str(ours)) as daemon, client(daemon) as queue:
        queue.put("another job 1")
    for file in beanstalkd_directory.glob("binlog.*"):
        shutil.copy(file, ours)
    code, output = check(ours)
    assert code == 10
    assert "  a start would fail: 1 of their ids are in the journal too; the first is 1\n" in output
    assert run(*QUIET, "-b", str(ours)).returncode == 10


def test_import_without_its_renames_is_reported(beanstalkd_directory: Path) -> None:
    before = {file: file.read_bytes() for file in beanstalkd_directory.glob("binlog.*")}
    assert ready_after_start(beanstalkd_directory) == 1
    for file, data in before.items():
        file.write_bytes(data)
    code, output = check(beanstalkd_directory)
    assert code == 0
    assert output.endswith("; a start would only move the files: the journal has their 2 jobs\n")
    assert ready_after_start(beanstalkd_directory) == 1


# The command


@pytest.mark.parametrize("name", ["missing", "file", "directory as a segment"])
def test_unreadable_file_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "journal.1").mkdir()
    path = tmp_path / name if name != "directory as a segment" else tmp_path
    reason = {"missing": "No such file or directory", "file": "Not a directory"}.get(name, "Is a directory")
    shown = path if path != tmp_path else path / "journal.1"
    done = run_here("journal", "check", str(path))
    assert (done.stdout, done.stderr) == ("", f"greenstalk-server: journal check: {shown}: {reason}\n")
    assert done.returncode == 10


def test_journal_is_a_command_only_as_the_first_argument(tmp_path: Path) -> None:
    assert run("-b", "journal", "-l", "127.0.0.1", "-p", "0", "--no-web").returncode == 10
    assert "unknown argument journal" in run_here("-V", "journal", "check", str(tmp_path)).stderr
