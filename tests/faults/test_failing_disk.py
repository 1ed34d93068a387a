"""A disk that fails for a while: only safe changes are acknowledged, and all of them are recovered."""

from __future__ import annotations

import select
import signal

from tests.faults.disks import FailingDisk
from tests.faults.serving import OUT_OF_MEMORY, critical, id_of, jobs, put, readiness, serving, states
from tests.support.peer import Peer, eventually

SIZE = 1000
BLOCK = 60_000
"""Bytes of a body, so large that its record always reaches a block of the disk that was not written before."""


def test_nothing_is_acknowledged_while_syncs_fail(failing_disk: FailingDisk) -> None:
    with serving(failing_disk.path, "-f", "0") as server, Peer(server) as peer, Peer(server) as other:
        ids = [id_of(put(peer, bytes(SIZE))) for _ in range(100)]
        assert readiness(server) == (200, "ready\n")
        failing_disk.break_down()
        peer.send(b"put 0 0 60 %d\r\n%b\r\n" % (BLOCK, bytes(BLOCK)))
        eventually(lambda: readiness(server)[0] == 503, "it is not ready")
        assert "journal: " in readiness(server)[1]
        eventually(lambda: "Puts are refused" in critical(server).get("journal", ""), "the dashboard says so")
        assert put(other, b"refused") == OUT_OF_MEMORY
        other.send(b"delete %d\r\n" % ids[0])
        assert select.select([peer.sock, other.sock], [], [], 2.5)[0] == [], "an acknowledgement, and nothing is safe"
        failing_disk.mend()
        ids.append(id_of(peer.read_line()))
        assert other.read_line() == b"DELETED"
        eventually(lambda: readiness(server)[0] == 200, "it is ready again")
        eventually(lambda: "journal" not in critical(server), "the condition has ended")
        ids += [id_of(put(peer, bytes(SIZE))) for _ in range(100)]
        _, said = server.stop(signal.SIGKILL)
        assert "nothing is acknowledged" in said
    failing_disk.forget()
    with serving(failing_disk.path) as server, Peer(server) as peer:
        assert list(jobs(peer, ids)) == ids[1:]


def test_records_of_a_failed_sync_are_rewritten(failing_disk: FailingDisk) -> None:
    """Records acknowledged before a failed sync are in memory only: the kernel counts their pages as written."""
    with serving(failing_disk.path, "-f", "5000") as server, Peer(server) as peer:  # the changes take 0.1 to 2 s
        before = [id_of(put(peer, bytes(SIZE))) for _ in range(70)]  # the second segment has room for all that follows
        eventually(lambda: states(peer, before[:1]) == ["ready"], "it answers")
        failing_disk.break_down()
        ids = [id_of(put(peer, bytes(SIZE))) for _ in range(30)]
        for id in before[:20]:
            assert peer.ask(b"delete %d" % id) == b"DELETED"
        for id in before[20:40]:
            peer.ask(b"reserve-job %d" % id)
            peer.read(SIZE + 2)
            assert peer.ask(b"bury %d 3" % id) == b"BURIED"
        eventually(lambda: readiness(server)[0] == 503, "the sync has failed")
        failing_disk.mend()
        eventually(lambda: readiness(server)[0] == 200, "it is ready again")
        assert peer.ask(b"kick-job %d" % before[20]) == b"KICKED"
        server.stop()
    failing_disk.forget()
    with serving(failing_disk.path) as server, Peer(server) as peer:
        assert list(jobs(peer, [*before, *ids])) == [*before[20:], *ids]
        assert states(peer, before[20:41]) == ["ready", *["buried"] * 19, "ready"]


def test_stop_on_a_failing_disk_logs_the_loss(failing_disk: FailingDisk) -> None:
    with serving(failing_disk.path, "-f", "0") as server, Peer(server) as peer:
        ids = [id_of(put(peer, bytes(SIZE))) for _ in range(100)]
        failing_disk.break_down()
        peer.send(b"put 0 0 60 %d\r\n%b\r\n" % (BLOCK, bytes(BLOCK)))
        eventually(lambda: readiness(server)[0] == 503, "it is not ready")
        _, said = server.stop()
        assert "ERROR journal: stopped with changes that are not on disk" in said
        assert peer.read_to_end() == b""
    failing_disk.mend()
    failing_disk.forget()
    with serving(failing_disk.path) as server, Peer(server) as peer:
        assert list(jobs(peer, ids)) == ids
