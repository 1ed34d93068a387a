"""Policies of the configuration file in a running server: at the start, after SIGHUP, and after a mistake."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.daemon import COMMAND, MINDING_SIGNALS, Daemon
from tests.support.log import Log
from tests.support.peer import Peer, eventually

LOOPBACK = ("-l", "127.0.0.1", "-p", "0", "--no-web")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "greenstalk.toml"


def serve(file: Path, *flags: str) -> Daemon:
    return Daemon(*LOOPBACK, "--config", str(file), *flags, command=(*MINDING_SIGNALS, *COMMAND))


def put(daemon: Daemon, body: bytes = b"hi", tube: bytes = b"mail") -> bytes:
    """Return the reply to a put into *tube*."""
    with Peer(daemon) as peer:
        assert peer.ask(b"use %b" % tube) == b"USING " + tube
        return peer.ask(b"put 0 0 60 %d\r\n%b" % (len(body), body))


def hang_up(daemon: Daemon, log: Log) -> str:
    """Send SIGHUP; return the log line about the policies."""
    daemon.process.send_signal(signal.SIGHUP)
    return log.find(" policies")


def test_policies_are_in_force_at_the_start(file: Path) -> None:
    file.write_text('[policies.mail]\ntubes = ["mail"]\nmax_jobs = 1\n')
    with serve(file) as daemon:
        assert put(daemon) == b"INSERTED 1"
        assert put(daemon) == b"OUT_OF_MEMORY"
        assert put(daemon, tube=b"sms").startswith(b"INSERTED")


def test_sighup_applies_the_changed_file(file: Path) -> None:
    file.write_text('[policies.mail]\ntubes = ["mail"]\nmax_job_size = 1\n')
    with serve(file) as daemon:
        log = Log(daemon.process)
        assert put(daemon) == b"JOB_TOO_BIG"
        file.write_text('[policies.mail]\ntubes = ["mail"]\nmax_job_size = 2\n[policies.sms]\ntubes = ["sms"]\n')
        line = hang_up(daemon, log)
        assert line.endswith(
            f" INFO applied the reloadable settings of {file} (SIGHUP), policies: 2; other changes need a restart\n"
        )
        assert put(daemon).startswith(b"INSERTED")
        assert put(daemon, b"hello") == b"JOB_TOO_BIG"
        file.write_text("")
        assert "(SIGHUP), policies: 0; " in hang_up(daemon, log)
        assert put(daemon, b"hello").startswith(b"INSERTED")


def test_sighup_applies_the_changed_file_to_existing_jobs(file: Path) -> None:
    file.write_text("")
    with serve(file) as daemon:
        ids = [int(put(daemon).split()[1]) for _ in range(3)]
        file.write_text('[policies.mail]\ntubes = ["mail"]\nexpire_after = 0.001\n')
        assert "(SIGHUP), policies: 1; " in hang_up(daemon, Log(daemon.process))
        eventually(lambda: daemon.ask(b"peek %d\r\n" % ids[-1]) == b"NOT_FOUND", "the jobs expire")
        assert [daemon.ask(b"peek %d\r\n" % id) for id in ids] == [b"NOT_FOUND"] * 3


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[policies.mail]\ntubes = ["mail"]\nmax_jobs = -1\n', "{}:3: policy mail: max_jobs -1: must be a whole"),
        ('[policies.mail]\ntubes = ["mail"]\n[web]\nport = "x"\n', "{}:4: web.port x: must be a port number"),
        ("[policies", "{}: "),
        (None, "--config {}: No such file or directory; it must be a file of options, in TOML\n"),
    ],
)
def test_sighup_with_a_mistake_keeps_the_policies(file: Path, text: str | None, reason: str) -> None:
    file.write_text('[policies.mail]\ntubes = ["mail"]\nmax_job_size = 1\n')
    with serve(file) as daemon:
        if text is None:
            file.unlink()
        else:
            file.write_text(text)
        line = hang_up(daemon, Log(daemon.process))
        assert line.partition(" ERROR ")[2].startswith(
            f"keeping the present policies and other settings: {reason.format(file)}"
        )
        assert put(daemon) == b"JOB_TOO_BIG"
        assert daemon.stop()[1].count("ERROR") == 0


def test_loop_of_dead_letters_is_logged_at_the_start_and_after_sighup(file: Path) -> None:
    loop = '[policies.a]\ntubes = ["a"]\ndead_letter = "b"\n[policies.b]\ntubes = ["b"]\ndead_letter = "a"\n'
    file.write_text(loop)
    with serve(file) as daemon:
        log = Log(daemon.process)
        assert f"WARNING {file}:1: policies: the dead letters of a go to b go to a: " in log.find("dead letters")
        daemon.process.send_signal(signal.SIGHUP)
        assert "WARNING the dead letters of a go to b go to a: " in log.find("dead letters")


def test_policies_are_in_force_when_the_journal_is_read(file: Path, tmp_path: Path) -> None:
    """A job that has used up its attempts while no policy was in force is a dead letter after the restart."""
    directory = tmp_path / "queue"
    directory.mkdir()
    file.write_text("")
    with serve(file, "-b", str(directory)) as daemon:
        id = int(put(daemon).split()[1])
        with Peer(daemon) as peer:
            assert peer.ask(b"reserve-job %d" % id) == b"RESERVED %d 2" % id
            assert peer.read_line() == b"hi"
            assert peer.ask(b"release %d 0 0" % id) == b"RELEASED"
    file.write_text('[policies.mail]\ntubes = ["mail"]\nmax_attempts = 1\ndead_letter = "mail.failed"\n')
    with serve(file, "-b", str(directory)) as daemon, Peer(daemon) as peer:
        assert peer.ask(b"use mail.failed") == b"USING mail.failed"
        assert peer.ask(b"peek-ready") == b"FOUND %d 2" % id


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_file_that_the_user_cannot_read_keeps_the_policies(file: Path) -> None:
    file.touch(mode=0o600)
    file.write_text('[policies.mail]\ntubes = ["mail"]\nmax_job_size = 1\n')
    with serve(file, "-u", "nobody") as daemon:
        line = hang_up(daemon, Log(daemon.process))
        assert f"ERROR keeping the present policies and other settings: --config {file}: Permission denied; " in line
        assert put(daemon) == b"JOB_TOO_BIG"
