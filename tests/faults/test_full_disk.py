"""A full disk: puts are refused until there is space, and all other commands work."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.crash.rounds import Rounds
from tests.faults.disks import ext4, fill, tmpfs
from tests.faults.serving import (
    OUT_OF_MEMORY,
    call,
    critical,
    id_of,
    jobs,
    put,
    put_until_full,
    readiness,
    serving,
    states,
)
from tests.support.daemon import Daemon, run
from tests.support.peer import Peer, eventually

SEGMENT_SIZES = (65_536, 262_144, 1_048_576, 10_485_760)
"""Values of -s: from a ninth of the smallest disk to more than the largest."""

ROUNDS = 2
LONGEST_WAIT = 5.0
"""Seconds within which every command is answered, on a slow machine."""

syncing = pytest.mark.parametrize("flags", [("-f", "0"), ("-F",)], ids=" ".join)

MANY = 1500
"""Times that a job is buried, kicked and released: the records are four times what is free on the full disk."""

BATCH = 10
"""Jobs whose commands are sent together, since each batch waits for a sync."""


def test_full_disk_refuses_puts_and_accepts_other_commands(small_disk: Path) -> None:
    with serving(small_disk, "-f", "0") as server, Peer(server) as peer:
        ids = put_until_full(peer, 1000)
        assert len(ids) > 300
        for id in ids[:50]:
            assert peer.ask(b"reserve-job %d" % id) == b"RESERVED %d 1000" % id
            peer.read(1002)
        replies = [
            peer.ask(request % id)
            for request, some in (
                (b"delete %d", ids[:10]),
                (b"release %d 7 0", ids[10:20]),
                (b"release %d 7 3600", ids[20:30]),
                (b"bury %d 9", ids[30:50]),
                (b"kick-job %d", ids[30:40]),
                (b"delete %d", ids[50:60]),
            )
            for id in some
        ]
        expected = ((b"DELETED", 10), (b"RELEASED", 20), (b"BURIED", 20), (b"KICKED", 10), (b"DELETED", 10))
        assert replies == [reply for reply, count in expected for _ in range(count)]
        assert peer.ask(b"pause-tube default 3600") == b"PAUSED"
        _, said = server.stop()
        assert "No space left on device" in said
    with serving(small_disk, "-f", "0") as server, Peer(server) as peer:
        assert list(jobs(peer, ids)) == [*ids[10:50], *ids[60:]]
        wanted = ["ready"] * 10 + ["delayed"] * 10 + ["ready"] * 10 + ["buried"] * 10
        assert states(peer, ids[10:50]) == wanted
        assert int(peer.stats(b"stats-tube default")["pause-time-left"]) > 3500


def test_release_and_bury_work_without_limit_on_a_full_disk(small_disk: Path) -> None:
    with serving(small_disk, "-f", "0") as server, Peer(server) as peer:
        ids = put_until_full(peer, 1000)
        some = ids[:BATCH]
        for _ in range(MANY // BATCH):
            for id in some:
                peer.send(b"reserve-job %d\r\nbury %d 5\r\nkick-job %d\r\n" % (id, id, id))
                peer.send(b"reserve-job %d\r\nrelease %d 5 0\r\n" % (id, id))
            for _ in some:
                assert peer.read_line().startswith(b"RESERVED")
                peer.read(1002)
                assert (peer.read_line(), peer.read_line()) == (b"BURIED", b"KICKED")
                assert peer.read_line().startswith(b"RESERVED")
                peer.read(1002)
                assert peer.read_line() == b"RELEASED"
        assert list(jobs(peer, ids)) == ids


def test_put_is_accepted_after_jobs_were_deleted(small_disk: Path) -> None:
    with serving(small_disk, "-f", "0") as server, Peer(server) as peer:
        ids = put_until_full(peer, 1000)
        gone = ids[::2]
        for id in gone:
            assert peer.ask(b"delete %d" % id) == b"DELETED"
        more: list[int] = []

        def is_put() -> bool:
            reply = put(peer, bytes(1000))
            if reply != OUT_OF_MEMORY:
                more.append(id_of(reply))
            return len(more) == len(gone) // 2

        eventually(is_put, "half of the room that was made is used")
        server.stop(signal.SIGKILL)
    with serving(small_disk, "-f", "0") as server, Peer(server) as peer:
        assert list(jobs(peer, [*ids, *more])) == [*ids[1::2], *more]


@syncing
def test_put_is_accepted_after_all_jobs_were_deleted(small_disk: Path, flags: Sequence[str]) -> None:
    """Then no record is copied whose sync would allow the removal of old segments."""
    with serving(small_disk, *flags) as server, Peer(server) as peer:
        ids = put_until_full(peer, 1000)
        peer.send(b"".join(b"delete %d\r\n" % id for id in ids))
        assert {peer.read_line() for _ in ids} == {b"DELETED"}
        eventually(lambda: put(peer, bytes(1000)) != OUT_OF_MEMORY, "a put is accepted")
        more = [id_of(put(peer, bytes(1000))) for _ in range(len(ids) // 2)]
        server.stop(signal.SIGKILL)
    with serving(small_disk, *flags) as server, Peer(server) as peer:
        assert list(jobs(peer, [*ids, *more])) == more


def test_put_is_accepted_after_another_program_has_freed_space(small_disk: Path) -> None:
    filler = small_disk / "filler"
    with serving(small_disk, "-f", "0") as server, Peer(server) as peer:
        ids = [id_of(put(peer, bytes(10)))]
        fill(filler)
        ids += put_until_full(peer, 1000)
        assert put(peer, bytes(1000)) == OUT_OF_MEMORY
        eventually(lambda: critical(server)["disk"].endswith("puts are refused."), "the dashboard says so")
        filler.unlink()
        ids += [id_of(put(peer, bytes(1000))) for _ in range(200)]
        eventually(lambda: readiness(server)[0] == 200, "it is ready")
        server.stop(signal.SIGKILL)
    with serving(small_disk, "-f", "0") as server, Peer(server) as peer:
        assert list(jobs(peer, ids)) == ids


def test_clear_on_a_full_disk_takes_no_space_for_an_undo(small_disk: Path) -> None:
    with serving(small_disk, "-f", "0") as server, Peer(server) as peer:
        ids = put_until_full(peer, 1000)
        before = {path.name: path.stat().st_size for path in small_disk.glob("undo.*")}
        assert peer.ask(b"reserve-job %d" % ids[0]) == b"RESERVED %d 1000" % ids[0]
        peer.read(1002)
        cleared = call(server, "tube/clear?tube=default", {"state": "ready"})
        assert (cleared["jobs"], cleared["left"], cleared["change_number"]) == (len(ids) - 1, 0, None)
        assert before == {path.name: path.stat().st_size for path in small_disk.glob("undo.*")}
        assert peer.ask(b"bury %d 5" % ids[0]) == b"BURIED"
        server.stop(signal.SIGKILL)
    with serving(small_disk, "-f", "0") as server, Peer(server) as peer:
        assert list(jobs(peer, ids)) == ids[:1]
        assert states(peer, ids[:1]) == ["buried"]


def test_every_job_can_be_deleted_on_a_full_disk(small_disk: Path) -> None:
    """Deletes may take more space than the jobs did, because each put reserves this space."""
    with serving(small_disk, "-f", "0") as server, Peer(server) as peer:
        count = 4000
        peer.send(b"put 0 0 60 0\r\n\r\n" * count)
        ids = [id_of(peer.read_line()) for _ in range(count)]
        fill(small_disk / "filler")
        for start in range(0, count, 100):
            peer.send(b"".join(b"delete %d\r\n" % id for id in ids[start : start + 100]))
            assert {peer.read_line() for _ in range(100)} == {b"DELETED"}
        server.stop(signal.SIGKILL)
    with serving(small_disk, "-f", "0") as server, Peer(server) as peer:
        assert jobs(peer, ids) == {}


def test_server_starts_on_a_full_disk(small_disk: Path) -> None:
    with serving(small_disk, "-f", "0") as server, Peer(server) as peer:
        ids = put_until_full(peer, 1000)
        server.stop(signal.SIGKILL)
    fill(small_disk / "filler")
    with serving(small_disk, "-f", "0") as server, Peer(server) as peer:
        assert list(jobs(peer, ids)) == ids
        assert peer.ask(b"delete %d" % ids[0]) == b"DELETED"
        assert peer.ask(b"kick 1") == b"KICKED 0"


def test_server_starts_on_a_full_disk_with_more_ended_reservations_than_fit_into_the_first_segment(
    small_disk: Path,
) -> None:
    with serving(small_disk, "-f", "0") as server, Peer(server) as peer:
        *ids, last = put_until_full(peer, 10)[:2001]
        for start in range(0, len(ids), 100):
            some = ids[start : start + 100]
            peer.send(b"".join(b"reserve-job %d\r\n" % id for id in some))
            for id in some:
                assert peer.read_line() == b"RESERVED %d 10" % id
                peer.read(12)
        assert peer.ask(b"delete %d" % last) == b"DELETED"  # after this reply, all earlier records are in files
        server.stop(signal.SIGKILL)
    with serving(small_disk, "-f", "0") as server, Peer(server) as peer:
        assert set(states(peer, ids)) == {"ready"}
        assert [peer.ask(b"delete %d" % id) for id in ids[:50]] == [b"DELETED"] * 50
        server.stop(signal.SIGKILL)
    with serving(small_disk, "-f", "0") as server, Peer(server) as peer:
        assert list(jobs(peer, ids[:100])) == ids[50:100]


@syncing
def test_stop_on_a_full_disk_loses_nothing(small_disk: Path, flags: Sequence[str]) -> None:
    """The jobs can be deleted although another program has taken the space reserved for compaction."""
    with serving(small_disk, *flags) as server, Peer(server) as peer:
        ids = put_until_full(peer, 10)
        some = ids[:1000]
        peer.send(b"".join(b"reserve-job %d\r\nrelease %d 7 0\r\n" % (id, id) for id in some))
        for id in some:
            assert peer.read_line() == b"RESERVED %d 10" % id
            peer.read(12)
            assert peer.read_line() == b"RELEASED"
        fill(small_disk / "filler")
        status, said = server.stop()
        assert status == 0
        assert "Traceback" not in said
    (small_disk / "filler").unlink()
    with serving(small_disk, *flags) as server, Peer(server) as peer:
        assert list(jobs(peer, ids)) == ids
        assert {peer.stats(b"stats-job %d" % id)["pri"] for id in some} == {"7"}


@pytest.mark.parametrize(
    ("disk", "size"),
    [(tmpfs, 600_000), (ext4, 1_100_000)],
    ids=["tmpfs 0.6 MB", "ext4 1.1 MB"],
)
def test_small_disk_under_load_loses_nothing_and_answers_every_command(
    tmp_path: Path, disk: Callable[[Path, int], AbstractContextManager[Path]], size: int
) -> None:
    with disk(tmp_path / "disk", size) as directory:
        journal = directory / "journal"
        journal.mkdir()
        syncing = (["-f", "0"], ["-f", "50"], ["-F"])
        rounds = Rounds(journal, size, *syncing, segment_sizes=SEGMENT_SIZES, is_disk_small=True)
        for number in range(1, ROUNDS + 1):
            report = rounds.run(is_whole=number == ROUNDS)
            print(report)
            assert report.longest_wait < LONGEST_WAIT


def test_batch_of_releases_larger_than_free_space_is_answered(small_disk: Path) -> None:
    """Each release writes a record of 83 bytes, and one of 50 for the reservation: together more than is free."""
    with serving(small_disk, "-f", "0") as server, contextlib.ExitStack() as stack:
        peers = [stack.enter_context(Peer(server)) for _ in range(8)]
        ids = put_until_full(peers[0], 10)
        for turn in range(5):
            for at, peer in enumerate(peers):
                some = ids[at::8][:400]
                peer.send(b"".join(b"reserve-job %d\r\nrelease %d %d 0\r\n" % (id, id, turn) for id in some))
            for at, peer in enumerate(peers):
                for id in ids[at::8][:400]:
                    assert peer.read_line() == b"RESERVED %d 10" % id
                    peer.read(12)
                    assert peer.read_line() == b"RELEASED"
        assert readiness(server) == (200, "ready\n")
        server.stop(signal.SIGKILL)
    with serving(small_disk, "-f", "0") as server, Peer(server) as peer:
        assert list(jobs(peer, ids)) == ids
        assert [peer.stats(b"stats-job %d" % id)["pri"] for id in ids[:400]] == ["4"] * 400


@pytest.mark.parametrize(
    ("size", "body"),
    [(700_000, 4000), (2_000_000, 16_300)],
)
def test_full_disk_with_small_files_answers_every_command(tmp_path: Path, size: int, body: int) -> None:
    """The blocks of the disk are large compared with the records and the files."""
    with ext4(tmp_path / "disk", size) as directory:
        journal = directory / "journal"
        journal.mkdir()
        with serving(journal, "-f", "0", "-s", "4096") as server, Peer(server) as peer:
            ids = put_until_full(peer, body)
            for id in ids[:40] * 3:
                assert peer.ask(b"reserve-job %d" % id) == b"RESERVED %d %d" % (id, body)
                peer.read(body + 2)
                assert peer.ask(b"bury %d 5" % id) == b"BURIED"
                assert peer.ask(b"kick-job %d" % id) == b"KICKED"
            server.stop(signal.SIGKILL)
        with serving(journal, "-f", "0", "-s", "4096") as server, Peer(server) as peer:
            assert list(jobs(peer, ids)) == ids
            assert set(states(peer, ids)) == {"ready"}


def test_export_to_a_full_disk_leaves_no_file_and_removes_none(small_disk: Path, tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    queue.mkdir()
    with Daemon("-l", "127.0.0.1", "-p", "0", "--no-web", "-b", str(queue)) as daemon:
        for _ in range(20):
            daemon.ask(b"put 0 0 60 60000\r\n" + b"x" * 60000 + b"\r\n")
    old = small_disk / "greenstalk-20261101T031500Z.jsonl"
    old.write_text('{"type":"head","format":"greenstalk journal"}')
    done = run("journal", "export", str(queue), "-o", str(small_disk), "--keep", "1")
    assert done.returncode == 10
    assert done.stderr.endswith(": No space left on device; no file was written\n")
    assert list(small_disk.iterdir()) == [old]
