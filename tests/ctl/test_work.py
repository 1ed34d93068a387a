"""`work` with real commands and both servers: exit codes, variables, retries, time limits, signals, reconnects."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.ctl.world import COMMAND, Client, connect, ctl, finish, ids, jobs, run, spawn, spawn_at, where
from tests.support.daemon import MINDING_SIGNALS, REPOSITORY, Daemon
from tests.support.peer import eventually
from tests.support.ports import free_ports
from tests.support.processes import ending
from tests.support.servers import Server


def test_command_gets_the_body_and_the_facts_and_its_job_is_deleted(
    server: Server, mail: Client, tmp_path: Path
) -> None:
    job = mail.put(b"hello\0" * 100_00, priority=7, ttr=90)
    out = tmp_path / "out"
    script = f"cat > {out}; env | grep ^GREENSTALK_JOB_ | sort > {out}.facts"
    done = ctl(server, "work", "mail", "--count", "1", "--", "sh", "-c", script)
    assert (done.code, done.out) == (0, b"")
    assert out.read_bytes() == b"hello\0" * 100_00
    assert Path(f"{out}.facts").read_text().split() == [
        "GREENSTALK_JOB_ATTEMPT=1",
        f"GREENSTALK_JOB_ID={job}",
        "GREENSTALK_JOB_PRI=7",
        "GREENSTALK_JOB_TTR=90",
        "GREENSTALK_JOB_TUBE=mail",
    ]
    assert f"job {job} of mail is done in " in done.err
    assert jobs(server, "mail") == []


def test_exit_code_decides_about_the_job(server: Server, mail: Client) -> None:
    for code in (0, 65, 75, 1):
        mail.put(b"%d" % code, ttr=99)
    done = ctl(server, "work", "mail", "--count", "4", "--backoff", "40s", "--", "sh", "-c", "exit `cat`")
    assert done.code == 1 and done.err.endswith("greenstalkctl: the command failed for 3 jobs\n")
    assert [job[:2] for job in jobs(server, "mail")] == [("buried", b"65"), ("delayed", b"1"), ("delayed", b"75")]
    assert {mail.stats_job(job)["delay"] for job in ids(mail, "mail", "delayed")} == {40}


def test_failure_is_buried_if_asked(one: Server) -> None:
    with connect(one, "mail") as mail:
        mail.put(b"75")
        mail.put(b"3")
    command = ("--until-empty", "--on-failure", "bury", "--", "sh", "-c", "exit `cat`")
    assert ctl(one, "work", "mail", *command).code == 1
    assert [job[:2] for job in jobs(one, "mail")] == [("buried", b"3"), ("delayed", b"75")]


def test_job_is_buried_after_its_last_attempt(server: Server, mail: Client, tmp_path: Path) -> None:
    job = mail.put(b"")
    script = f"echo $GREENSTALK_JOB_ATTEMPT >> {tmp_path / 'attempts'}; kill -9 $$"
    command = ("--attempts", "3", "--backoff", "0", "--until-empty", "--", "sh", "-c", script)
    done = ctl(server, "work", "mail", *command)
    assert (tmp_path / "attempts").read_text().split() == ["1", "2", "3"]
    assert ids(mail, "mail", "buried") == [job]
    assert f"job {job} is buried: signal SIGKILL on attempt 3 of 3\n" in done.err


def test_real_time_signal_has_no_name(one: Server) -> None:
    with connect(one, "mail") as mail:
        job = mail.put(b"")
    done = ctl(one, "work", "mail", "--attempts", "1", "--count", "1", "--", "sh", "-c", "kill -40 $$")
    assert f"job {job} is buried: signal 40 on attempt 1 of 1\n" in done.err


def test_delay_doubles_up_to_a_maximum(one: Server) -> None:
    delays = []
    with connect(one, "mail") as mail:
        job = mail.put(b"")
        for _ in range(4):
            ctl(one, "work", "mail", "--count", "1", "--backoff", "30", "--max-backoff", "100", "--", "false")
            delays.append(mail.stats_job(job)["delay"])
            mail.kick(1)
    assert delays == [30, 60, 100, 100]


def test_command_that_takes_too_long_is_ended_and_its_job_is_released(server: Server, mail: Client) -> None:
    """The command runs longer than the TTR before it is ended, and its job is touched during that time."""
    job = mail.put(b"", ttr=1)
    done = ctl(server, "work", "mail", "--count", "1", "--timeout", "2500ms", "--", "sleep", "99")
    assert f"job {job} of mail failed on attempt 1: the command took more than 2.5 s; it runs again in 10 s" in done.err
    stats = mail.stats_job(job)
    assert (stats["state"], stats["timeouts"], stats["releases"]) == ("delayed", 0, 1)


def test_commands_run_at_the_same_time(one: Server, tmp_path: Path) -> None:
    with connect(one, "a") as client:
        client.put(b"1")
        client.use("b")
        client.put(b"2")
    script = f"cd {tmp_path}; touch $GREENSTALK_JOB_TUBE; until [ -e a ] && [ -e b ]; do sleep 0.05; done"
    done = ctl(one, "work", "a", "b", "--concurrency", "2", "--count", "2", "--", "sh", "-c", script)
    assert done.code == 0


def test_first_signal_waits_for_the_command(one: Server, tmp_path: Path) -> None:
    with connect(one, "mail") as mail:
        mail.put(b"")
        script = f"cd {tmp_path}; touch begun; until [ -e go ]; do sleep 0.05; done"
        process = spawn(one, "work", "mail", "--", "sh", "-c", script)
        eventually((tmp_path / "begun").exists, "the command runs")
        second = mail.put(b"second")
        process.send_signal(signal.SIGTERM)
        assert process.stderr.readline().startswith(b"stopping when")
        (tmp_path / "go").touch()
        assert finish(process).code == 0
        assert ids(mail, "mail", "ready") == [second]
    assert len(jobs(one, "mail")) == 1


def test_second_signal_ends_the_command_and_releases_the_job(one: Server, tmp_path: Path) -> None:
    with connect(one, "mail") as mail:
        job = mail.put(b"")
        script = f"touch {tmp_path / 'begun'}; sleep 99"
        process = spawn(one, "work", "mail", "--", "sh", "-c", script)
        eventually((tmp_path / "begun").exists, "the command runs")
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline().startswith(b"stopping when")
        done = finish(process, signal.SIGTERM)
        assert done.code == 130
        assert done.err.endswith("greenstalkctl: the commands were ended, and their jobs are ready again\n")
        assert ids(mail, "mail", "ready") == [job]


def test_third_signal_ends_a_command_that_ignores_the_second(one: Server, tmp_path: Path) -> None:
    with connect(one, "mail") as mail:
        job = mail.put(b"")
        script = f"trap 'touch {tmp_path / 'second'}' TERM; touch {tmp_path / 'begun'}; while :; do sleep 0.05; done"
        process = spawn(one, "work", "mail", "--", "sh", "-c", script)
        eventually((tmp_path / "begun").exists, "the command runs")
        process.send_signal(signal.SIGTERM)
        assert process.stderr.readline().startswith(b"stopping when")
        process.send_signal(signal.SIGTERM)
        eventually((tmp_path / "second").exists, "the command has the second signal")
        assert finish(process, signal.SIGTERM).code == 130
        assert ids(mail, "mail", "ready") == [job]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can run a command as another user")
def test_signals_do_not_end_a_command_of_another_user(one: Server) -> None:
    """The worker is root without the capability CAP_KILL, so it cannot signal the command, as with `sudo`."""
    with connect(one, "mail") as mail:
        job = mail.put(b"")
        command = ("setpriv", "--reuid=65534", "--clear-groups", "sh", "-c", "echo $$; exec sleep 99")
        arguments = [*MINDING_SIGNALS, *COMMAND, *where(one), "work", "mail", "--", *command]
        worker = subprocess.Popen(
            ["setpriv", "--bounding-set=-kill", *arguments],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with ending(worker):
            assert worker.stdout is not None and worker.stderr is not None
            pid = int(worker.stdout.readline())
            try:
                worker.send_signal(signal.SIGTERM)
                assert worker.stderr.readline().startswith(b"stopping when")
                for _ in range(2):
                    worker.send_signal(signal.SIGTERM)
                    with pytest.raises(subprocess.TimeoutExpired):
                        worker.wait(0.2)
                assert mail.stats_job(job)["state"] == "reserved"
            finally:
                os.kill(pid, signal.SIGKILL)
            done = finish(worker)
        assert (done.code, done.err.splitlines()[-1]) == (
            130, "greenstalkctl: the commands were ended, and their jobs are ready again",
        )  # fmt: skip
        assert ids(mail, "mail", "ready") == [job]


def test_job_of_a_command_that_does_not_start_is_released(one: Server, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    with connect(one, "mail") as mail:
        job = mail.put(b"")
        done = ctl(one, "work", "mail", "--count", "1", "--", str(program))
        assert (done.code, f"cannot run {program}: No such file or directory" in done.err) == (1, True)
        assert ids(mail, "mail", "delayed") == [job]


def test_worker_reconnects_after_a_restart_of_the_server(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    options = ("-l", "127.0.0.1", "-p", str(port), "--no-web")
    where = ("--server", f"127.0.0.1:{port}")
    with Daemon(*options):
        process = spawn_at(where, "work", "mail", "--count", "2", "--", "sh", "-c", f"cat >> {tmp_path / 'bodies'}")
        assert run(*where, "put", "one", "--tube", "mail").code == 0
        eventually((tmp_path / "bodies").exists, "the first job is done")
    with Daemon(*options):
        assert run(*where, "put", "two", "--tube", "mail").code == 0
        done = finish(process)
    assert done.code == 0
    assert (tmp_path / "bodies").read_text() == "onetwo"
    assert f"cannot reserve from 127.0.0.1:{port}: " in done.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("mail",), "write the command after --"),
        (("mail", "cat"), "write the command after --"),
        (("--", "cat"), "name the tube"),
        (("mail", "--", "no-such-program"), "there is no program no-such-program"),
        (("two words", "--", "cat"), "is not a valid tube name"),
    ],
)
def test_wrong_command_line_reserves_nothing(args: tuple[str, ...], message: str) -> None:
    done = run("work", *args)
    assert done.code == 2 and message in done.err


def test_server_that_is_not_reachable_at_the_start_is_an_error() -> None:
    assert run("--server", f"127.0.0.1:{free_ports(1)[0]}", "work", "mail", "--", "cat").code == 3
