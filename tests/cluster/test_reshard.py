"""`journal reshard`: every job keeps its id and attributes, also when a crash interrupts it."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from greenstalk_server.core.tube_shards import parse_pins, shard_of_tube
from greenstalk_server.journal.archive import Writer
from greenstalk_server.journal.check import inspect
from greenstalk_server.journal.layout import directory_of, finish_change, read_shards
from greenstalk_server.journal.reshard import reshard
from greenstalk_server.journal.transfer import entries_of, next_id_above
from greenstalk_server.runtime.exit_codes import StartError
from tests.support.daemon import Daemon, run, run_here
from tests.support.wire import Connection

QUIET = ("-l", "127.0.0.1", "-p", "0", "--no-web", "--log-level", "error")
NOW = 2 * 10**18
"""Later than every deadline in the directory except that of the delayed job, nanoseconds."""

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree")
"""Audit events of changes of a directory; a file opened for writing is one too."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of one process, with jobs of all states and attributes in six tubes."""
    directory = tmp_path_factory.mktemp("source")
    with Daemon("-b", str(directory), "-s", "65536", *QUIET) as server:  # small files: they are copied for each crash
        client = Connection(("127.0.0.1", server.port), timeout=60.0)

        def ask(line: bytes, expected: bytes) -> None:
            assert client.ask(line).startswith(expected), line

        for number in range(6):
            ask(b"use tube-%d" % number, b"USING")
            for body in (b"first", b"\x00\xff", b"x" * 3000):
                ask(b"put %d 0 60 %d\r\n%b" % (number, len(body), body), b"INSERTED")
            ask(b"put 5 4000000000 60 1\r\nd", b"INSERTED")
        ask(b"watch tube-1", b"WATCHING")
        ask(b"reserve", b"RESERVED 5 ")
        ask(b"bury 5 7", b"BURIED")
        ask(b"reserve", b"RESERVED 6 ")
        ask(b"release 6 3 0", b"RELEASED")
        ask(b"pause-tube tube-2 4000000000", b"PAUSED")
        client.close()
    return directory


def content(directory: Path) -> dict[str, Any]:
    """Return what the journals of *directory* hold, whatever their number."""
    shards = [Path(directory_of(str(directory), place)) for place, _ in enumerate(read_shards(str(directory)))]
    found: dict[str, Any] = {"next_id": 0, "lines": []}
    for place in shards or [directory]:
        recovery = inspect(str(place), NOW).recovery
        lines = Writer().lines(0, 1, entries_of(recovery), [job for _, job in sorted(recovery.jobs.items())])
        parsed = [json.loads(line) for line in lines]
        if shards:
            assert {shard_of_tube(line["tube"].encode(), len(shards)) for line in parsed[1:-1]} <= {shards.index(place)}
        found["next_id"] = max(found["next_id"], next_id_above(recovery))
        found["lines"] += [line for line in parsed[1:-1] if line["type"] != "policy"]
    found["lines"].sort(key=json.dumps)
    return found


def test_tubes_live_on_the_shards_that_the_format_says() -> None:
    names = (b"default", b"emails", b"reports", b"a")
    assert [shard_of_tube(name, 3) for name in names] == [1, 0, 1, 0]
    assert [shard_of_tube(name, 1) for name in names] == [0, 0, 0, 0]
    assert [shard_of_tube(name, 7) for name in names] == [1, 0, 4, 4]


def test_all_jobs_keep_their_ids_and_attributes(source: Path, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    shutil.copytree(source, directory)
    before = content(directory)
    assert len(before["lines"]) == 25
    next_id = before["next_id"]
    for shards in (3, 2, 1, 2, 3, 1):
        assert reshard(str(directory), shards) == 0
        after = content(directory)
        assert after["lines"] == before["lines"]
        assert next_id <= after["next_id"] < next_id + 3
        next_id = after["next_id"]
        assert len(read_shards(str(directory))) == (shards if shards > 1 else 0)


def test_servers_continue_on_the_new_layout(source: Path, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    shutil.copytree(source, directory)
    last = content(directory)["next_id"]
    done = run_here("journal", "reshard", str(directory), "--processes", "2")
    assert (done.returncode, done.stderr) == (
        0,
        f"{directory}: 24 jobs are now divided among 2 processes\n",
    )
    with Daemon("--processes", "2", "-b", str(directory), *QUIET) as server:
        reply = server.ask(b"put 0 0 60 1\r\nx\r\n")
        assert int(reply.split()[1]) >= last
        busy = run_here("journal", "reshard", str(directory), "--processes", "1")
        assert busy.returncode == 10
        assert "in use by process" in busy.stderr
    assert len(content_unsorted(directory)) == 26


def content_unsorted(directory: Path) -> list[Any]:
    """Return the entries of the shards of *directory*, each job of the routing test wherever it was put."""
    found = []
    for place, _ in enumerate(read_shards(str(directory))):
        recovery = inspect(directory_of(str(directory), place), NOW).recovery
        found += [*recovery.jobs, *recovery.pauses]
    return found


def crash_at(change: int, directory: Path, shards: int) -> bool:
    """Run reshard in another process, which ends at once before the change number *change*; return whether it did."""
    pid = os.fork()
    if pid == 0:
        left = itertools.count(change, -1)

        def audit(event: str, arguments: tuple[Any, ...]) -> None:
            is_write = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if (is_write or event in CHANGES) and next(left) == 0:
                os._exit(1)

        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        sys.addaudithook(audit)
        try:
            reshard(str(directory), shards)
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) == 1


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2), (2, 1)])
def test_crash_at_any_moment_leaves_one_of_the_layouts(source: Path, tmp_path: Path, before: int, after: int) -> None:
    start = tmp_path / "start"
    shutil.copytree(source, start)
    reshard(str(start), before)
    expected = content(start)["lines"]
    counts = {"former": 0, "new": 0}
    for change in itertools.count():
        directory = tmp_path / f"crash-{change}"
        shutil.copytree(start, directory)
        if not crash_at(change, directory, after):
            break
        finish_change(str(directory))
        found = len(read_shards(str(directory))) or 1
        assert found in (before, after)
        counts["new" if found == after else "former"] += 1
        assert content(directory)["lines"] == expected
        assert reshard(str(directory), after) == 0
        assert content(directory)["lines"] == expected
        shutil.rmtree(directory)
    assert min(counts.values()) > 3


def test_pins_decide_where_tubes_go(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "data"
    shutil.copytree(source, directory)
    before = content(directory)
    pins = parse_pins("tube-*=2,tube-3,missing=0")
    for _ in range(2):  # the second has nothing to do
        assert reshard(str(directory), 3, pins) == 0
        tubes = [names_in(Path(directory_of(str(directory), shard))) for shard in range(3)]
        assert tubes == [{b"tube-3"}, set(), {b"tube-%d" % number for number in (0, 1, 2, 4, 5)}]
    assert capsys.readouterr().err.endswith(f"{directory}: is for 3 processes already\n")
    assert reshard(str(directory), 3) == 0  # the same number, without the pins
    assert content(directory)["lines"] == before["lines"]


def names_in(directory: Path) -> set[bytes]:
    """Return the names of the tubes that have jobs in *directory*."""
    return {job.tube.name for job in inspect(str(directory), NOW).recovery.jobs.values()}


def test_start_with_other_pins_is_refused_until_the_jobs_are_moved(source: Path, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    shutil.copytree(source, directory)
    reshard(str(directory), 2)
    options = ("--processes", "2", "-b", str(directory), *QUIET, "--pin", "tube-*=1", "--pin", "default=0")
    refused = run(*options)
    assert refused.returncode == 10
    assert "shard 0 has 4 jobs of the tube tube-" in refused.stderr
    convert = "greenstalk-server journal reshard DIR --processes 2 --pin tube-*=1 --pin default=0"
    assert convert in refused.stderr
    assert run_here(*convert.replace("DIR", str(directory)).split()[1:]).returncode == 0
    with Daemon(*options) as server:
        ids = [
            int(server.ask(b"put-in-tube %b 0 0 60 1\r\nx\r\n" % tube).split()[1]) for tube in (b"tube-7", b"default")
        ]
        assert ids[0] % 2 != ids[1] % 2


def test_missing_shard_is_not_replaced_by_an_empty_one(source: Path, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    shutil.copytree(source, directory)
    reshard(str(directory), 3)
    shutil.rmtree(directory / "shard-1")
    with pytest.raises(StartError, match="shard-1 is missing: its queue has 3 shards"):
        read_shards(str(directory))


@pytest.mark.parametrize("count", ["0", "1025", "x", ""])
def test_bad_number_is_refused(count: str, tmp_path: Path) -> None:
    done = run_here("journal", "reshard", str(tmp_path), "--processes", count)
    assert done.returncode == 5
    assert "with N from 1 to 1024" in done.stderr
