"""The log: its formats, which clients cannot forge, and the signals that change its level."""

from __future__ import annotations

import json
import logging
import pty
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest

from greenstalk_server import BUILD
from greenstalk_server.runtime.log_format import JsonFormatter, TextFormatter
from tests.support.daemon import COMMAND, MINDING_SIGNALS, REPOSITORY, TIMEOUT, Daemon, ask, environment, run
from tests.support.log import Log
from tests.support.pages import block
from tests.support.processes import ending

LOOPBACK = ("-l", "127.0.0.1", "-p", "0")
QUIET = (*LOOPBACK, "--no-web")


@pytest.fixture
def json_server() -> Iterator[subprocess.Popen[bytes]]:
    """A server that logs everything, as JSON."""
    command = [*COMMAND, *LOOPBACK, "--web-port", "0", "-V"]
    process = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=environment(GREENSTALK_LOG_FORMAT="json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    with ending(process):
        yield process


def test_every_line_of_the_json_log_is_an_event(json_server: subprocess.Popen[bytes]) -> None:
    log = Log(json_server)
    serving = log.event("serving")
    assert serving["pid"] == json_server.pid
    assert serving["build"] == BUILD.name
    assert serving["jobs"] == "in memory only; they do not survive a restart"
    assert (serving["level"], serving["logger"]) == ("info", "greenstalk_server.daemon")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", serving["time"])
    host, _, port = serving["beanstalk"].rpartition(":")

    with socket.create_connection((host, int(port)), TIMEOUT) as sock:
        address = "{}:{}".format(*sock.getsockname())
        context = {"connection": 1, "address": address, "level": "debug", "logger": "greenstalk_server.net.server"}
        assert log.event("connected").items() >= context.items()
        ask(sock, b"bogus \x1b[31m\xff\n{} \r\n")
        refused = log.event("refused: UNKNOWN_COMMAND")
        assert refused.items() >= {**context, "command": "bogus \x1b[31m\ufffd\n{} "}.items()
        ask(sock, b"put 0 0 60 70000\r\n" + bytes(70000) + b"\r\n")
        assert log.event("refused: JOB_TOO_BIG").items() >= {**context, "command": "put of 70000 bytes"}.items()
        ask(sock, b"use mail\r\n")
        ask(sock, b"watch mail\r\n")
        ask(sock, b"put 0 0 1 2\r\nhi\r\n")
        ask(sock, b"reserve\r\n")
        assert log.event("job timed out").items() >= {**context, "job": 1, "tube": "mail"}.items()
        ask(sock, b"delete 1\r\n")
        ask(sock, b"put 0 0 60 2\r\nhi\r\n")
        ask(sock, b"reserve\r\n")
        ask(sock, b"put 0 0 60 2\r\nhello\r\n")
    assert log.event("refused: EXPECTED_CRLF").items() >= {**context, "command": "put of 2 bytes"}.items()
    assert log.event("disconnected").items() >= {**context, "jobs": [2]}.items()

    with urllib.request.urlopen(f"{serving['dashboard']}healthz?secret=1", timeout=TIMEOUT) as answer:  # noqa: S310
        assert answer.status == 200
    request = log.event("GET /healthz")
    assert request.items() >= {"address": "127.0.0.1", "status": 200, "level": "debug", "logger": "web"}.items()
    assert request["bytes"] > 0
    assert 0 < request["seconds"] < TIMEOUT

    host, _, port = serving["dashboard"].removeprefix("http://").strip("/").rpartition(":")
    with socket.create_connection((host, int(port)), TIMEOUT) as sock:
        assert ask(sock, b"no\nrequest\r\n\r\n") == b"HTTP/1.1 400 Bad Request"
    bad = log.event("bad request: Invalid HTTP method: 'no\\n'")
    assert bad.items() >= {"address": "127.0.0.1", "level": "debug", "logger": "web"}.items()

    json_server.send_signal(signal.SIGTERM)
    assert log.event("stopped")["level"] == "info"
    assert json_server.stdout is not None
    assert json_server.stdout.read() == b""
    assert json_server.wait(TIMEOUT) == 0


def test_client_cannot_forge_a_line() -> None:
    with Daemon(*QUIET, "-V") as daemon:
        daemon.ask(b"x\n2026-01-01 00:00:00.000 ERROR forged\x1b[2J\r\n")
        _, stderr = daemon.stop()
    (line,) = [line for line in stderr.splitlines() if "forged" in line]
    assert "DEBUG refused: UNKNOWN_COMMAND connection=1" in line
    assert line.endswith(r"command='x\n2026-01-01 00:00:00.000 ERROR forged\x1b[2J'")
    assert "\x1b" not in stderr


def test_clients_are_not_logged_at_info() -> None:
    with Daemon(*LOOPBACK, "--web-port", "0") as daemon:
        daemon.ask(b"bogus\r\n")
        with urllib.request.urlopen(daemon.dashboard, timeout=TIMEOUT):  # noqa: S310  our own, on loopback
            pass
        _, stderr = daemon.stop()
    assert [line.split(" ", 2)[2] for line in stderr.splitlines()] == [
        "INFO stopping: refusing new connections, finishing commands and requests",
        "INFO stopped",
    ]


def test_failed_start_is_an_event_of_the_json_log() -> None:
    done = run("--no-web", "-p0", "-b", "/no/such/directory", "--log-format=json")
    (line,) = done.stderr.splitlines()
    event = json.loads(line)
    assert (event["level"], event["exit_code"], done.returncode) == ("critical", 10, 10)
    assert event["message"].startswith("-b /no/such/directory: No such file or directory")


# Signals


def test_sigusr2_switches_to_debug_and_back() -> None:
    with Daemon(*QUIET, "--log-level", "warning") as daemon:
        log = Log(daemon.process)
        daemon.process.send_signal(signal.SIGUSR2)
        assert "INFO log level changed to debug (SIGUSR2)\n" in next(iter(log))
        daemon.ask(b"stats\r\n")
        assert "DEBUG connected connection=1 address=127.0.0.1:" in next(iter(log))
        assert "DEBUG disconnected" in next(iter(log))
        daemon.process.send_signal(signal.SIGUSR2)
        assert "INFO log level changed to warning (SIGUSR2)\n" in next(iter(log))
        daemon.ask(b"stats\r\n")
        assert daemon.stop() == (0, "")


def test_sighup_is_logged() -> None:
    with Daemon(*QUIET, command=(*MINDING_SIGNALS, *COMMAND)) as daemon:
        daemon.process.send_signal(signal.SIGHUP)
        assert "INFO SIGHUP is ignored" in Log(daemon.process).find("SIGHUP")
        assert daemon.ask(b"use a\r\n") == b"USING a"


def test_sighup_is_ignored_under_nohup() -> None:
    with Daemon(*QUIET, command=("nohup", *COMMAND)) as daemon:
        daemon.process.send_signal(signal.SIGHUP)
        assert "SIGHUP" not in daemon.stop()[1]


def test_sighup_stops_the_server_in_a_terminal() -> None:
    terminal, stdin = pty.openpty()
    with open(terminal, "wb"), open(stdin, "rb") as end:  # noqa: PTH123  descriptors
        script = "import os, sys; os.dup2(int(sys.argv[1]), 0); os.execv(sys.argv[2], sys.argv[2:])"
        command = (*MINDING_SIGNALS, sys.executable, "-c", script, str(end.fileno()), *COMMAND)
        with Daemon(*QUIET, command=command, pass_fds=[end.fileno()]) as daemon:
            exit_code, stderr = daemon.stop(signal.SIGHUP)
    assert exit_code == 0
    assert "stopping" in stderr


# Uncaught exceptions

UNCAUGHT = """\
import sys, threading, warnings
import gevent
from greenstalk_server.runtime import logs
logs.install("info", sys.argv[1])
def fail(what):
    raise ValueError(f"{what}\\n2026-01-01 00:00:00.000 ERROR forged \\x1b[2J")
gevent.spawn(fail, "greenlet").join()
gevent.get_hub().loop.run_callback(fail, "callback")
gevent.sleep(0.001)
thread = threading.Thread(target=fail, args=["thread"])
thread.start()
thread.join()
warnings.warn("old")
fail("main")
"""


def uncaught(log_format: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", UNCAUGHT, log_format],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=TIMEOUT, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr.splitlines()


def test_uncaught_exception_is_an_event() -> None:
    events = [json.loads(line) for line in uncaught("json")]
    assert [(event["level"], event["logger"]) for event in events] == [
        ("error", "greenstalk_server.runtime.logs"),
        ("error", "greenstalk_server.runtime.logs"),
        ("error", "greenstalk_server.runtime.logs"),
        ("warning", "py.warnings"),
        ("critical", "greenstalk_server.runtime.logs"),
    ]
    failed = [event for event in events if "exception" in event]
    for event, what in zip(failed, ("greenlet", "callback", "thread", "main"), strict=True):
        assert event["exception"].startswith("Traceback (most recent call last):\n")
        assert f"ValueError: {what}\n" in event["exception"]


def test_traceback_lines_do_not_look_like_events() -> None:
    lines = uncaught("text")
    events = [line for line in lines if not line.startswith("    ")]
    assert [line.split()[2] for line in events] == ["ERROR", "ERROR", "ERROR", "WARNING", "CRITICAL"]
    assert sum("forged" in line for line in lines) == 4
    assert "\x1b" not in "".join(lines)


VIEWS = """\
import sys, urllib.error, urllib.request
import gevent
from flask import Flask
from gevent.pywsgi import WSGIServer
from greenstalk_server.runtime import logs
logs.install("info", "json")
app = Flask("web")
@app.get("/view")
def view():
    raise ValueError("in a view")
@app.get("/stream")
def stream():
    yield "a"
    raise ValueError("in a stream")
server = WSGIServer(("127.0.0.1", 0), app, log=None, error_log=logs.web_errors, handler_class=logs.RequestHandler)
server.start()
def visit(request):
    sock = gevent.socket.create_connection(("127.0.0.1", server.server_port))
    sock.sendall(request)
    while sock.recv(1000):
        pass
    sock.close()
for path in (b"/view", b"/stream"):
    visit(b"GET %b HTTP/1.0\\r\\nAuthorization: s3cret\\r\\n\\r\\n" % path)
visit(b"no request\\r\\n\\r\\n")
server.stop()
"""


def test_failed_view_is_one_event_and_a_bad_request_none() -> None:
    done = subprocess.run(
        [sys.executable, "-c", VIEWS], cwd=REPOSITORY, capture_output=True, text=True, timeout=TIMEOUT, check=True
    )
    view, stream = map(json.loads, done.stderr.splitlines())
    assert view["message"] == "Exception on /view [GET]"
    assert "ValueError: in a view" in view["exception"]
    assert stream["message"] == "internal error in the answer to GET /stream"
    assert "ValueError: in a stream" in stream["exception"]
    assert "s3cret" not in done.stderr


# Formats


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    return logging.getLogger("test").makeRecord("test", logging.INFO, "f", 1, message, args, None, extra=extra)


def test_text_field_is_quoted_where_needed() -> None:
    text = TextFormatter().format(record("got %s", "ä\u2028", a=1, b="", c="x y", d='"', e="k=v", f=[1, 2], g="plain"))
    assert text.endswith(""" INFO got ä\\u2028 a=1 b='' c='x y' d='"' e='k=v' f='[1, 2]' g=plain""")


def test_json_log_accepts_any_field_value() -> None:
    text = JsonFormatter().format(record("\udc80 \x9b ä", a=b"\xff", b={1: object}, level="forged", c=None))
    event = json.loads(text)
    assert text.isascii()
    assert "\n" not in text
    assert (event["message"], event["level"], event["a"], event["c"]) == ("\udc80 \x9b ä", "info", "b'\\xff'", None)


def test_lines_of_the_page_match_the_formatters(monkeypatch: pytest.MonkeyPatch) -> None:
    record = logging.makeLogRecord(
        {
            "name": "greenstalk_server.net.server",
            "levelname": "DEBUG",
            "msg": "job timed out",
            "created": 1769860800.0,
            "msecs": 0.0,
            "connection": 7,
            "address": "10.0.0.3:50112",
            "job": 1234,
            "tube": "mail",
        }
    )
    monkeypatch.setattr("time.localtime", time.gmtime)
    assert TextFormatter().format(record) == block("configuration.md", "text", "2026-01-31 ").rstrip()
    assert JsonFormatter().format(record) == block("configuration.md", "json", '{"time"').rstrip()
