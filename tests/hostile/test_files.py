"""Without a free file descriptor, even for the journal, commands that need the disk wait until one is free."""

from __future__ import annotations

import resource
import socket
import time
from contextlib import ExitStack
from pathlib import Path

from tests.support.daemon import TIMEOUT, Daemon
from tests.support.peer import Peer, eventually, open_files

FILES = 40
COMERS = 60


def test_journal_without_file_descriptors_retries(tmp_path: Path) -> None:
    """The server cannot reserve a descriptor, as if other processes had used all descriptors of the system."""
    flags = ("-l", "127.0.0.1", "-p", "0", "--no-web", "-b", str(tmp_path), "-s", "4096")
    with Daemon(*flags) as server, Peer(server) as good, ExitStack() as comers:
        files = open_files(server)
        _, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (FILES, hard))
        for _ in range(COMERS):
            comers.enter_context(socket.create_connection(("127.0.0.1", server.port), TIMEOUT))
        eventually(lambda: open_files(server) >= FILES, "all are used up")
        for _ in range(20):  # each needs a file of its own
            good.send(b"put 0 0 60 4000\r\n%b\r\n" % bytes(4000))
        time.sleep(1.0)  # the server tries to create them, and fails
        comers.close()
        replies = [good.read_line().split()[0] for _ in range(20)]
        assert set(replies) <= {b"INSERTED", b"OUT_OF_MEMORY"}
        eventually(lambda: good.ask(b"put 0 0 60 1\r\nx").startswith(b"INSERTED"), "all is well again")
        eventually(lambda: open_files(server) <= files + 5, "all files are closed")
        code, said = server.stop()
    assert code == 0
    assert "Traceback" not in said, said
