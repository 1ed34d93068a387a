"""The dashboard's store after kills and losses of power: all rows that `save` confirmed exist undamaged.

A child process writes numbered rows, and prints each number once it is saved. strace(1) records the writes and syncs
of its file, from which the test builds the possible contents of a disk after a loss of power.
"""

from __future__ import annotations

import random
import re
import signal
import sqlite3
import subprocess
import sys
from ast import literal_eval
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from greenstalk_server.web.store.rows import MAX_NUMBER
from greenstalk_server.web.store.sqlite import NAME, SqliteRows
from tests.support.daemon import TIMEOUT

WRITER = """
import os, sys
from greenstalk_server.web.store.sqlite import SqliteRows
rows = SqliteRows(sys.argv[1])
for number in range(1, int(sys.argv[2]) + 1):
    data = b"%d" % number
    rows.write([("audit", number, b"", data * 500), ("alerts", 0, b"", data)], {"audit": number - 40})
    os.write(1, b"%d\\n" % number)
"""

CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+)")
SECTOR = 512
DIRECTORY = "."


def check(directory: Path, saved: int) -> None:
    """Assert that the file has the rows up to *saved*, perhaps those of the next write, and nothing else."""
    rows = SqliteRows(str(directory))
    found = rows.read("audit", 0, MAX_NUMBER, None)
    last = found[-1][0] if found else 0
    assert last in (saved, saved + 1)
    assert found == [(number, b"", b"%d" % number * 500) for number in range(max(1, last - 39), last + 1)]
    assert [data for _, _, data in rows.read("alerts", 0, 0, None)] == ([b"%d" % last] if last else [])
    rows.close()
    with closing(sqlite3.connect(directory / NAME)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert not list(directory.glob("*.damaged"))


def test_killed_process_loses_nothing_that_was_saved(tmp_path: Path) -> None:
    saved = 0
    rng = random.Random(7)  # noqa: S311
    for count in (1, 2, *(rng.randrange(3, 120) for _ in range(6))):
        (tmp_path / str(count)).mkdir()
        command = [sys.executable, "-c", WRITER, str(tmp_path / str(count)), "100000"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(count):
                saved = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            saved = max([saved, *map(int, process.stdout.read().split()[:])])
        check(tmp_path / str(count), saved)


@dataclass
class Disk:
    """The files of the writer in *directory*: synced content, and writes and removals since then.

    names           the names of the open files by their handle.
    saved           the last number that the writer has printed.
    """

    directory: Path
    names: dict[int, str] = field(default_factory=dict)
    saved: int = 0
    synced: dict[str, bytearray] = field(default_factory=dict)
    pending: list[tuple[str, int, bytes | None]] = field(default_factory=list)
    removed: set[str] = field(default_factory=set)

    def note(self, call: str, arguments: list[str], result: int) -> None:
        """Note a system call of the writer."""
        if call == "openat":
            path = Path(text(arguments[1]).decode())
            self.names.pop(result, None)
            if path == self.directory or path.parent == self.directory:
                self.names[result] = DIRECTORY if path == self.directory else path.name
        elif call == "unlink":
            self.removed.add(Path(text(arguments[0]).decode()).name)
        elif call == "write":
            self.saved = int(text(arguments[1])) if arguments[0] == "1" else self.saved
        elif (name := self.names.get(int(arguments[0]), "-shm")).endswith("-shm"):
            return
        elif call == "pwrite64":
            self.pending.append((name, int(arguments[3]), text(arguments[1])))
        elif call in ("fsync", "fdatasync"):
            self.sync(name)
        elif call == "ftruncate":
            self.pending.append((name, int(arguments[1]), None))

    def sync(self, name: str) -> None:
        if name == DIRECTORY:
            self.synced = {file: data for file, data in self.synced.items() if file not in self.removed}
            self.pending = [write for write in self.pending if write[0] not in self.removed]
            self.removed.clear()
        for write in [write for write in self.pending if write[0] == name]:
            apply(self.synced, *write)
        self.pending = [write for write in self.pending if write[0] != name]

    def after_power_loss(self, rng: random.Random) -> dict[str, bytearray]:
        """Return the files with a random part of the sectors that were not synced."""
        files = {name: bytearray(data) for name, data in self.synced.items()}
        for name, offset, data in self.pending:
            if data is None:
                apply(files, name, offset, data if rng.random() < 0.5 else b"")
                continue
            for at in range(0, len(data), SECTOR):
                if rng.random() < 0.5:
                    apply(files, name, offset + at, data[at : at + SECTOR])
        return {name: data for name, data in files.items() if name not in self.removed or rng.random() < 0.5}


def apply(files: dict[str, bytearray], name: str, offset: int, data: bytes | None) -> None:
    """Write *data* at *offset*, or truncate the file there if it is None."""
    file = files.setdefault(name, bytearray())
    if data is None:
        del file[offset:]
        return
    file.extend(bytes(max(0, offset + len(data) - len(file))))
    file[offset : offset + len(data)] = data


def test_loss_of_power_loses_nothing_that_was_saved(tmp_path: Path) -> None:
    """The power fails at any moment, and any part of the unsynced sectors is lost."""
    data, trace = tmp_path / "data", tmp_path / "trace"
    data.mkdir()
    calls = "trace=openat,pwrite64,write,fsync,fdatasync,ftruncate,unlink"
    # The write-ahead log becomes large enough for a checkpoint, after 64 pages.
    command = ["strace", "-xx", "-s1000000", "-e", calls, "-o", trace, sys.executable, "-c", WRITER, data, "300"]
    subprocess.run(list(map(str, command)), check=True, timeout=TIMEOUT, stdout=subprocess.DEVNULL)
    disk, checked = Disk(data), 0
    rng = random.Random(11)  # noqa: S311
    for line in trace.read_text().splitlines():
        match = CALL.match(line)
        if match is None or int(match[3]) < 0:
            continue
        disk.note(match[1], match[2].split(", "), int(match[3]))
        if disk.names and rng.random() < 0.08:
            checked += 1
            state = tmp_path / f"state{checked}"
            state.mkdir()
            for file, content in disk.after_power_loss(rng).items():
                (state / file).write_bytes(content)
            check(state, disk.saved)
    assert disk.saved == 300
    assert checked > 100


def text(argument: str) -> bytes:
    """Return the bytes of a string in the output of strace, which writes each byte as a hexadecimal number."""
    value: bytes = literal_eval("b" + argument)
    return value
