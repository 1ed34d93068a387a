"""Features that need the API, the choice between protocol and API, and messages for failures of the API."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from greenstalk_server.protocol.extended_stats import TubeExtension
from greenstalkctl.address import Url, parse_url
from greenstalkctl.errors import Unreachable
from greenstalkctl.http_client import HttpClient
from tests.ctl.test_jobs import fill
from tests.ctl.world import (
    Client,
    Done,
    Terminal,
    WithApi,
    address,
    connect,
    ctl,
    finish,
    front,
    jobs,
    run,
    spawn,
)
from tests.support.daemon import TIMEOUT, Daemon, environment
from tests.support.peer import eventually
from tests.support.processes import join
from tests.support.servers import Server

ADMIN, VIEWER = "admins-token", "viewers-token"
JOB_COUNT = 2500


@pytest.fixture
def mail(with_api: WithApi) -> Iterator[Client]:
    with connect(with_api, "mail") as client:
        yield client


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    """The URL of a server that requires a token, under a prefix."""
    tokens = environment(GREENSTALK_API_TOKEN=ADMIN, GREENSTALK_API_VIEWER_TOKEN=VIEWER)
    with Daemon("-l", "127.0.0.1", "-p", "0", "--web-port", "0", "--url-prefix", "/queue", environ=tokens) as daemon:
        yield daemon.dashboard


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("GREENSTALKCTL_API_TOKEN", ADMIN)
    return ADMIN


# Statistics


def by_both(server: WithApi, *args: str) -> tuple[Any, Any]:
    """Return the JSON of a command over the protocol, and over the API."""
    ways = (run("--server", address(server), *args, "--json"), ctl(server, *args, "--json"))
    return ways[0].json, ways[1].json


@pytest.mark.parametrize("command", ["stats", "tube mail", "peek {}"])
def test_statistics_have_the_same_names_and_types_by_protocol_and_api(
    with_api: WithApi, mail: Client, command: str
) -> None:
    tags = ("--idempotency-key", "7", "--group", "g", "--after", "h", "--concurrency-key", "c", "--limit", "2")
    job_id = run("--server", address(with_api), "put", "hello", "--tube", "mail", "--delay", "100", *tags).text.strip()
    before, found = by_both(with_api, *command.format(job_id).split())
    assert before.keys() <= found.keys()
    for key in before:
        assert type(before[key]) is type(found[key]), key
        is_changing = key.startswith(("cmd-", "rusage-")) or key.endswith(("age", "-left", "uptime", "connections"))
        assert before[key] == found[key] or is_changing, key


def test_tubes_of_a_list_lack_the_documented_statistics_by_the_api(with_api: WithApi, mail: Client) -> None:
    before, found = by_both(with_api, "tubes")
    extended = {name.replace("_", "-") for name in TubeExtension.__dataclass_fields__}
    assert [one.keys() - other.keys() for one, other in zip(before, found, strict=True)] == [
        {"cmd-pause-tube", *extended - {"oldest-ready-age"}}
    ] * 2


def test_additional_statistics_of_the_api(with_api: WithApi, mail: Client) -> None:
    mail.put(b"hello")
    found = ctl(with_api, "tube", "mail", "--json").json
    assert (found["bytes"], found["has-no-consumers"]) == (5, False)
    assert found["oldest-ready-age"] in {0, 1}
    assert found["puts-per-second"] >= 0
    assert ctl(with_api, "stats", "--json").json["journal-is-on-disk"] is False
    head = ctl(with_api, "tubes", "--sort", "oldest").text.splitlines()[0].split()
    assert head[-3:] == ["oldest", "puts/s", "deletes/s"]


def test_top_has_the_age_of_the_oldest(with_api: WithApi, mail: Client) -> None:
    mail.put(b"")
    found = ctl(with_api, "top", "--once", "--interval", "0.1", "--sort", "oldest", "--json").json
    assert {row["tube"]: row["oldest"] is None for row in found["tubes"]} == {"mail": False, "default": True}
    assert "Oldest" in ctl(with_api, "top", "--once", "--interval", "0.1").text


def test_pause_with_a_reason(with_api: WithApi, mail: Client) -> None:
    done = ctl(with_api, "pause", "mail", "5m", "--reason", "the relay is down", "--json")
    assert done.json == {"tube": "mail", "pause": 300}
    assert "the relay is down" in ctl(with_api, "tube", "mail").text
    assert ctl(with_api, "pause", "nothing", "5m", "--reason", "none").code == 1


# Lists


def test_mark(with_api: WithApi) -> None:
    done = ctl(with_api, "mark", "deployed 4.2", "--json")
    assert done.code == 0
    assert (done.json["text"], done.json["tube"]) == ("deployed 4.2", None)
    assert ctl(with_api, "mark", "import", "--tube", "mail").out == b"marked: import\n"
    assert ctl(with_api, "mark", "x" * 201).code == 2


def test_jobs_have_statistics_and_bodies(with_api: WithApi, mail: Client) -> None:
    job_id = mail.put(b"\xff\x00", priority=3)
    (found,) = ctl(with_api, "jobs", "--json").lines
    assert found == ctl(with_api, "peek", str(job_id), "--json").json
    assert (found["body"], found["encoding"], found["bytes"]) == ("/wA=", "base64", 2)
    head, _, row = ctl(with_api, "jobs").text.splitlines()
    assert head.split() == ["id", "tube", "state", "pri", "age", "reserves", "bytes", "body"]
    assert row.split() == [str(job_id), "mail", "ready", "3", "0", "0", "2", "base64:", "/wA="]


def test_jobs_that_match_a_search(with_api: WithApi, mail: Client) -> None:
    fill(mail)
    found = ctl(with_api, "jobs", "mail", "--query", "pri:>20 -body:buried", "--json").lines
    assert [job["body"] for job in found] == ["delayed 1"]
    assert ctl(with_api, "jobs", "mail", "--query", "pri:>99").code == 1
    done = ctl(with_api, "jobs", "--query", "colour:red")
    assert (done.code, "--query is not a valid query" in done.err) == (2, True)


def test_too_long_query_is_exit_code_2(with_api: WithApi) -> None:
    for length in (10_000, 60_000, 100_000, 5_000_000):
        done = ctl(with_api, "jobs", "--query", "x" * length)
        assert (done.code, done.err) == (2, "greenstalkctl: the --query is too long\n")


def test_list_continues_across_pages(with_api: WithApi) -> None:
    put_many(with_api, "mail")
    assert len(ctl(with_api, "jobs", "mail", "-n", "9999", "--json").lines) == JOB_COUNT
    assert len(ctl(with_api, "jobs", "mail", "-n", "1200", "--json").lines) == 1200


def put_many(server: Server, tube: str, count: int = JOB_COUNT) -> None:
    """Put *count* ready jobs of descending urgency in one batch."""
    with socket.create_connection(server.address) as sock, sock.makefile("rb") as replies:
        sock.sendall(b"use %b\r\n" % tube.encode())
        sock.sendall(b"".join(b"put %d 0 60 0\r\n\r\n" % number for number in range(count)))
        for _ in range(count + 1):
            assert replies.readline()


def test_hostile_body_is_escaped_in_a_list(with_api: WithApi, mail: Client) -> None:
    mail.put(b"\x1b[2J\xe2\x80\xae" + b"long" * 99)
    view = ctl(with_api, "jobs").text
    assert (r"\x1b[2J\u202e" in view, "…" in view, "\x1b" in view) == (True, True, False)


# Changes


@pytest.mark.parametrize(
    "command",
    [("clear", "mail"), ("delete", "--tube", "mail", "--state", "ready", "--count", "100")],
    ids=lambda command: command[0],
)
def test_delete_keeps_jobs_put_during_the_confirmation(
    with_api: WithApi, mail: Client, command: tuple[str, ...]
) -> None:
    """Jobs put while the confirmation is pending are not deleted."""
    mail.put(b"old")
    with Terminal("--api", with_api.dashboard, *command) as terminal:
        terminal.wait_for("This will delete 1 job of mail .*Continue\\?")
        for body in (b"new", b"newer"):
            mail.put(body)
        terminal.press("y\n")
        code, view = terminal.end()
    assert (code, "deleted 1 job" in view) == (0, True), view
    assert [body for _, body, *_ in jobs(with_api, "mail")] == [b"new", b"newer"]
    assert ctl(with_api, "clear", "mail", "--yes").code == 0


@pytest.mark.parametrize("option", ["--server", "--api", "--api-token-file"])
def test_empty_option_is_refused(option: str) -> None:
    """A script with an unset variable passes an empty option. It must not select the default server."""
    done = run(option, "", "tubes")
    assert (done.code, done.out) == (2, b"")
    assert option in done.err


@contextmanager
def under_load(server: WithApi) -> Iterator[WithApi]:
    """Put many jobs into `mail` of *server*, and keep it busy, so that a bulk change is slow."""
    put_many(server, "mail", 10 * JOB_COUNT)
    stop = threading.Event()

    def work() -> None:
        with (
            suppress(ConnectionError),
            socket.create_connection(server.address) as sock,
            sock.makefile("rb") as replies,
        ):
            while not stop.is_set():
                sock.sendall(b"kick 0\r\n" * 1000)
                for _ in range(1000):
                    replies.readline()

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    try:
        yield server
    finally:
        stop.set()
        join(worker)


@pytest.fixture
def busy(with_api: WithApi) -> Iterator[WithApi]:
    """A server under load."""
    with under_load(with_api):
        yield with_api
    assert ctl(with_api, "clear", "mail", "--yes").code == 0


def test_ctrl_c_cancels_the_change(busy: WithApi) -> None:
    with connect(busy, "post") as post:
        post.put(b"dear")
        process = spawn(busy, "clear", "mail", "post", "--yes", "--json")
        eventually(lambda: post.stats_tube("mail")["current-jobs-ready"] < 10 * JOB_COUNT, "the change has begun")
        done = finish(process, signal.SIGINT)
        deleted = 10 * JOB_COUNT - post.stats_tube("mail")["current-jobs-ready"]
        assert (done.code, done.json, 0 < deleted < 10 * JOB_COUNT) == (130, {"deleted": deleted}, True)
        assert "the other jobs are unchanged" in done.err
        assert post.peek_ready().body == b"dear", "the change of the second tube has not begun"


def test_task_cancelled_by_another_client_is_exit_code_1(busy: WithApi) -> None:
    process = spawn(busy, "move", "mail", "post", "--json")
    with connect(busy, "post") as post:
        eventually(lambda: bool(post.stats_tube("post")["current-jobs-ready"]), "the change has begun")
        cancel_tasks(busy)
        done = finish(process)
        moved = post.stats_tube("post")["current-jobs-ready"]
        assert ctl(busy, "clear", "post", "--yes").code == 0
    assert (done.code, done.json["moved"]["ready"], moved > 0) == (1, moved, True)
    assert "was cancelled" in done.err


@pytest.mark.parametrize(
    ("number", "code", "message"), [(signal.SIGUSR1, 4, "draining"), (signal.SIGKILL, 3, "continues on the server")]
)
def test_server_that_stops_during_a_task_is_reported(number: signal.Signals, code: int, message: str) -> None:
    with closing(WithApi()) as server, under_load(server), connect(server, "mail") as mail:
        process = spawn(server, "bury", "--tube", "mail", "--all", "--json")
        eventually(lambda: has_polled(server), "the command has requested the progress")
        assert mail.stats_tube("mail")["current-jobs-buried"]
        os.kill(server.pid, number)
        done = finish(process)
    assert (done.code, 0 < done.json["buried"] < 10 * JOB_COUNT) == (code, True)
    assert message in done.err


def has_polled(server: WithApi) -> bool:
    """Return whether a client has requested the progress of a task."""
    with urlopen(f"{server.dashboard}/metrics") as metrics:  # noqa: S310  it is http
        return b'endpoint="api_get_task"' in metrics.read()


def cancel_tasks(server: WithApi) -> None:
    """Cancel the running tasks, as another client of the API."""
    with closing(HttpClient(parse_url(server.dashboard), "", TIMEOUT)) as channel:
        for task in channel.request("GET", "/tasks").data["tasks"]:
            if task["state"] == "running":
                channel.request("DELETE", f"/tasks/{task['id']}")


# Following


def test_tail_puts_no_probe(with_api: WithApi, mail: Client) -> None:
    before = mail.stats()["total-jobs"]
    mail.put(b"one")
    assert ctl(with_api, "tail", "mail").code == 0
    assert mail.stats()["total-jobs"] == before + 1


def test_tail_follow_shows_new_jobs(with_api: WithApi, mail: Client) -> None:
    for number in range(2):
        mail.put(b"before %d" % number)
    process = spawn(with_api, "tail", "mail", "-n", "1", "--follow", "--interval", "0.05")
    assert process.stdout is not None
    assert process.stdout.readline().endswith(b"before 1\n")
    with connect(with_api, "post") as post:
        for number in range(3):
            post.put(b"not this")
            mail.put(b"number %d" % number, delay=number)
            assert process.stdout.readline().endswith(b"number %d\n" % number)
    process.terminate()
    assert finish(process).code == 130


def test_tail_follow_starts_with_new_jobs(with_api: WithApi, mail: Client) -> None:
    mail.put(b"before")
    process = spawn(with_api, "tail", "mail", "-n", "0", "--follow", "--interval", "0.05")
    assert process.stdout is not None
    later = [mail.put(b"later", delay=9)]
    while not select.select([process.stdout], [], [], 0.05)[0]:
        later.append(mail.put(b"later", delay=9))  # until the follower has started
    assert int(process.stdout.readline().partition(b"\t")[0]) in later
    process.terminate()
    assert finish(process).code == 130


# Protocol or API


def test_api_alone_is_sufficient(with_api: WithApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GREENSTALKCTL_SERVER", "127.0.0.1:1")
    monkeypatch.setenv("GREENSTALKCTL_API", with_api.dashboard)
    job_id = run("put", "hello", "--tube", "mail").text.strip()
    assert run("peek", job_id, "--raw").out == b"hello"
    assert run("delete", job_id, "--yes").code == 0


@pytest.mark.parametrize("command", ["drain-to 127.0.0.1:1", "tail mail --consume"])
def test_command_that_needs_the_protocol_names_the_option(with_api: WithApi, command: str) -> None:
    done = ctl(with_api, *command.split(), "--yes")
    assert (done.code, "--server HOST:PORT" in done.err) == (2, True)
    done = ctl(with_api, *command.split(), "--yes", "--server", "127.0.0.1:1")
    assert (done.code, "cannot connect to 127.0.0.1:1" in done.err) == (3, True)


def test_server_option_overrides_api_variable(one: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GREENSTALKCTL_API", "http://127.0.0.1:1")
    assert ctl(one, "stats", "--json").json["pid"] == one.pid
    assert run("stats").code == 3
    assert "add --api" in ctl(one, "jobs").err


def test_api_option_overrides_server_variable(with_api: WithApi, one: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of the environment may be another one, and must not be cleared by mistake."""
    monkeypatch.setenv("GREENSTALKCTL_SERVER", address(one))
    with connect(one, "mail") as mail:
        mail.put(b"dear")
        assert ctl(with_api, "tail", "mail", "--consume", "--yes").code == 2
        assert ctl(with_api, "clear", "mail", "--yes").code == 1
        assert len(jobs(one, "mail")) == 1


@pytest.mark.parametrize(
    "command",
    ["jobs", "jobs mail --state ready", "pause mail 5 --reason x", "tubes --sort oldest", "top --once --sort oldest"],
)
def test_missing_api_names_the_option(server: Server, command: str) -> None:
    done = ctl(server, *command.split())
    assert (done.code, done.out, len(done.err.splitlines())) == (2, b"", 1)
    assert "the beanstalk protocol has no" in done.err
    assert "GREENSTALKCTL_API" in done.err


# Tokens


def test_missing_or_wrong_token_is_exit_code_4(guarded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run("--api", guarded, "stats")
    assert (done.code, "GREENSTALKCTL_API_TOKEN" in done.err, "requires a token" in done.err) == (4, True, True)
    monkeypatch.setenv("GREENSTALKCTL_API_TOKEN", "wrong")
    done = run("--api", guarded, "stats")
    assert (done.code, "refused the token" in done.err, "wrong" in done.err) == (4, True, False)
    monkeypatch.setenv("GREENSTALKCTL_API_TOKEN", "no\ntoken")
    assert run("--api", guarded, "stats").code == 2


def test_viewer_token_reads_but_changes_nothing(guarded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GREENSTALKCTL_API_TOKEN", VIEWER)
    assert run("--api", guarded, "tubes").code == 0
    for command in (["put", "x"], ["pause", "default", "5"], ["delete", "1", "--yes"]):
        done = run("--api", guarded, *command)
        assert (done.code, "admin token" in done.err) == (4, True)


def test_token_is_read_from_a_file(guarded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GREENSTALKCTL_API_TOKEN", "wrong")
    (tmp_path / "token").write_text(f"{ADMIN}\nand more\n")
    (tmp_path / "empty").write_text("\n")
    assert run("--api", guarded, "--api-token-file", str(tmp_path / "token"), "stats").code == 0
    assert run("--api", guarded, "stats", "--api-token-file", str(tmp_path / "token")).code == 0
    for name in ("empty", "missing"):
        assert run("--api", guarded, "--api-token-file", str(tmp_path / name), "stats").code == 2


def test_wrong_prefix_is_not_the_api(guarded: str, token: str) -> None:
    done = run("--api", guarded.removesuffix("/queue/").removesuffix("/queue"), "tube", "mail")
    assert (done.code, "is not the API" in done.err) == (3, True)


def test_hidden_bodies_and_read_only_server() -> None:
    with Daemon("-l", "127.0.0.1", "-p", "0", "--web-port", "0", "--read-only", "--hide-bodies") as daemon:
        assert daemon.ask(b"put 0 0 60 6\r\nsecret\r\n") == b"INSERTED 1"
        api = ["--api", daemon.dashboard]
        assert run(*api, "peek", "1", "--json").json["body"] is None
        assert "not shown" in run(*api, "peek", "1").text
        assert "not shown" in run(*api, "tail", "default").text
        assert "not shown" in run(*api, "jobs").text
        assert run(*api, "peek", "1", "--raw").code == 4
        assert run(*api, "jobs", "--query", "secret").code == 4
        done = run(*api, "delete", "1", "--yes")
        assert (done.code, "read-only" in done.err) == (4, True)


# Other servers and failures


def test_body_above_a_mib_is_complete(tmp_path: Path) -> None:
    body = bytes(range(256)) * 5000
    (tmp_path / "body").write_bytes(body)
    with Daemon("-l", "127.0.0.1", "-p", "0", "--web-port", "0", "-z", "2000000") as daemon:
        api, put = ["--api", daemon.dashboard], ["put", "--file", str(tmp_path / "body")]
        assert run(*api, *put).code == 4
        assert run("--server", f"127.0.0.1:{daemon.port}", *put).code == 0
        job_id = str(run(*api, "jobs", "--json").lines[0]["id"])
        assert run(*api, "peek", job_id, "--raw").out == body
        assert run(*api, "tail", "default", "--json").json["encoding"] == "base64"


def test_unreachable_server_is_exit_code_3() -> None:
    done = run("--api", "http://127.0.0.1:1", "stats")
    assert (done.code, "cannot connect to http://127.0.0.1:1: Connection refused" in done.err) == (3, True)
    assert run("--api", "http://host.invalid", "stats").code == 3


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ("", "closed the connection"),
        ("SSH-2.0-OpenSSH\r\n", "does not speak HTTP"),
        ("HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\n\x1b[2J", "not the API"),
        ("HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", "not the API"),
        ("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1\r\n\r\n{", "not the API"),
        ('HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n{"stats": 1}', "not the API"),
        ("HTTP/1.1 204 No Content\r\n\r\n", "not the API"),
        ("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{}", "closed the connection"),
        ("HTTP/1.1 301 Moved\r\nLocation: https://\x1b[2J\r\nContent-Length: 0\r\n\r\n", "redirects to"),
        ("HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\nContent-Length: 0\r\n\r\n", "may not be running"),
    ],
)  # fmt: skip
def test_response_of_another_http_server_is_a_one_line_error(reply: str, message: str) -> None:
    done = against(reply)
    assert (done.code, "\x1b" in done.err, len(done.err.splitlines())) == (3, False, 1)
    assert message in done.err


def test_problem_of_any_form_is_exit_code_4() -> None:
    for problem in ("[]", "{}", '{"detail": 3, "errors": [3]}', '{"detail": "\\u001b[2J", "errors": 7}'):
        head = f"HTTP/1.1 400 Bad\r\nContent-Type: application/problem+json\r\nContent-Length: {len(problem)}\r\n\r\n"
        done = against(head + problem)
        assert (done.code, "\x1b" in done.err, len(done.err.splitlines())) == (4, False, 1)


SERVER_ALONE = json.dumps({"stats": {"version": "1"}, "journal": {}, "memory": None, "rates": {}})


@pytest.mark.parametrize("command", ["stats", "tubes", "tube mail", "peek 1", "jobs", "put x", "clear mail --yes"])
@pytest.mark.parametrize(
    "answer",
    ["[]", "{}", "null", "1", '"x"', '{"tubes": [{}], "next_cursor": null}',
     '{"tubes": 1, "jobs": 1, "next_cursor": null}',
     '{"tubes": [], "jobs": [], "next_cursor": 3}', '{"jobs": [1], "next_cursor": null}', '{"id": "x"}'],
)  # fmt: skip
def test_response_of_another_format_is_one_line_error(command: str, answer: str) -> None:
    first, then = (
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n{text}"
        for text in (SERVER_ALONE, answer)
    )
    done = against(first, then, command=command)
    assert (done.code, done.out, len(done.err.splitlines())) == (3, b"", 1)
    assert "is not the API" in done.err


def against(*replies: str, command: str = "tubes") -> Done:
    """Run a command against a server that sends these *replies*, then repeats the last one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def respond() -> None:
            sock, _ = listener.accept()
            with sock, suppress(ConnectionResetError):  # the command may close before it has read everything
                for reply in replies[:-1]:
                    sock.recv(65536)
                    sock.sendall(reply.encode())
                while sock.recv(65536):
                    sock.sendall(replies[-1].encode())
                    if len(replies) == 1:
                        sock.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=respond, daemon=True)
        thread.start()
        done = run("--api", f"http://127.0.0.1:{listener.getsockname()[1]}", *command.split())
        join(thread)
    return done


@pytest.mark.parametrize("is_late", [False, True])
def test_closed_idle_connection_is_reopened(with_api: WithApi, mail: Client, is_late: bool) -> None:
    mail.put(b"hello")
    with front(with_api.dashboard, is_brief=not is_late, is_late=is_late) as proxy:
        done = run("--api", f"http://{proxy}", "peek", "--tube", "mail", "--raw")
    assert (done.code, done.out) == (0, b"hello")


def test_change_is_not_sent_twice(with_api: WithApi, mail: Client) -> None:
    id = mail.put(b"hello")
    with front(with_api.dashboard, is_late=True) as proxy:
        url = parse_url(f"http://{proxy}")
        with closing(HttpClient(url, "", TIMEOUT)) as channel:
            assert channel.request("GET", f"/jobs/{id}").is_success
            with pytest.raises(Unreachable, match="the change may have been made"):
                channel.request("DELETE", f"/jobs/{id}")
    assert mail.peek(id).body == b"hello"


# URLs


@pytest.mark.parametrize(
    ("written", "expected", "shown"),
    [
        ("http://127.0.0.1:8080", Url("127.0.0.1", 8080), "http://127.0.0.1:8080"),
        ("http://queue/", Url("queue", 80), "http://queue"),
        ("https://queue.example/api/v1", Url("queue.example", 443, is_secure=True), "https://queue.example"),
        ("http://[::1]:80/a/b/", Url("::1", 80, "/a/b/api/v1"), "http://[::1]/a/b"),
        ("https://queue:80/a/api/v1/", Url("queue", 80, "/a/api/v1", is_secure=True), "https://queue:80/a"),
    ],
)
def test_url_is_parsed(written: str, expected: Url, shown: str) -> None:
    assert parse_url(written) == expected
    assert str(expected) == shown
    assert parse_url(shown) == expected


@pytest.mark.parametrize(
    "written",
    ["", "queue", "queue:8080", "ftp://queue", "http://", "http://queue:0", "http://queue:65536", "http://a:b@queue",
     "http://queue?x", "http://queue#x", "http://queue/ä", "http://queue/ ", "http://que ue", "http://queue\r\nX: y"],
)  # fmt: skip
def test_invalid_url_is_rejected(written: str) -> None:
    with pytest.raises(ValueError, match="http://HOST"):
        parse_url(written)
    if written:
        assert run("--api", written, "stats").code == 2
