"""Untrusted bodies are escaped on the terminal, and tube names cannot inject commands."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from greenstalkctl import text
from greenstalkctl.address import parse_url
from greenstalkctl.api import Api
from greenstalkctl.errors import Unreachable
from tests.ctl.world import HOSTILE, Client, Terminal, address, ctl, replying, run
from tests.support.daemon import TIMEOUT
from tests.support.processes import join
from tests.support.servers import Server

BODY = HOSTILE.encode()
ESCAPED = r"\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\x0d\x08[bold]x[/bold]"


@pytest.mark.parametrize("command", [["peek", "{}"], ["peek", "--tube", "mail"], ["tail", "mail"]])
def test_hostile_body_is_escaped(server: Server, mail: Client, command: list[str]) -> None:
    job_id = mail.put(BODY)
    done = ctl(server, *(word.format(job_id) for word in command))
    assert done.code == 0
    assert ESCAPED in done.text
    assert all(char.isprintable() or char in "\n\t" for char in done.text)


def test_hostile_body_in_json_is_complete_and_ascii(server: Server, mail: Client) -> None:
    job_id = mail.put(BODY + b"\x7f")
    done = ctl(server, "peek", str(job_id), "--json")
    assert all(0x20 <= byte < 0x7F for byte in done.out.rstrip(b"\n"))
    assert done.json["body"] == HOSTILE + "\x7f"


def test_hostile_json_body_is_escaped(server: Server, mail: Client) -> None:
    done = ctl(server, "peek", str(mail.put(json.dumps([HOSTILE]).encode())))
    assert all(char.isprintable() or char == "\n" for char in done.text)


def test_body_that_is_not_utf_8_is_base64(server: Server, mail: Client) -> None:
    job_id = mail.put(b"\xff\xfe\x1b[2J")
    assert "base64: //4bWzJK" in ctl(server, "peek", str(job_id)).text
    found = ctl(server, "peek", str(job_id), "--json").json
    assert (found["body"], found["encoding"]) == ("//4bWzJK", "base64")
    assert ctl(server, "tail", "mail").text.endswith("\tbase64: //4bWzJK\n")


@pytest.mark.parametrize("body", ["[" * 100_000, "[" + "9" * 5000 + "]", "{", "[1,]", "{\x1b}"])
def test_invalid_json_is_shown_as_text(body: str) -> None:
    assert text.block(body.encode()) == body.replace("\x1b", r"\x1b")


def test_raw_refuses_control_characters_on_a_terminal(one: Server) -> None:
    bodies = {BODY: 2, b"\xff\xfe": 2, b"plain\n\ttext": 0}
    for body, code in bodies.items():
        job_id = ctl(one, "put", "--json", stdin=body).json["id"]
        with Terminal("--server", address(one), "peek", str(job_id), "--raw") as terminal:
            exit_code, view = terminal.end()
        assert exit_code == code
        assert "\x1b" not in view


@pytest.mark.parametrize("name", ["", "-x", "a b", "a\r\ndelete 1", "ä", "x" * 201, "a\nb", "\x1b[2J"])
@pytest.mark.parametrize("command", [["tube", "--"], ["put", "x", "--tube"], ["clear", "--"], ["move", "mail", "--"]])
def test_invalid_tube_name_is_not_sent(one: Server, name: str, command: list[str]) -> None:
    done = ctl(one, "--yes", *command, name)
    assert done.code == 2
    assert "\x1b" not in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize("name", ["x" * 200, "(a)+b/c;d.$e_f-g", "0"])
def test_every_valid_tube_name_is_accepted(server: Server, name: str) -> None:
    assert ctl(server, "put", "x", "--tube", name).code == 0
    assert name in [tube["name"] for tube in ctl(server, "tubes", "--json").json]
    assert ctl(server, "clear", name, "--yes").code == 0


@pytest.mark.parametrize(
    "reply",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x1b[2J\r\n",
        b"\r\n",
        b"no end",
        b"OK 3\r\nabc",
        b"OK x\r\n",
        b"OK 9\r\n---\n- a b\r\n",
        b"OK 14\r\n---\n- a\r\nput 0\n\r\n",
        b"NOT_FOUND\r\n",
        b"",
    ],
)
def test_other_server_is_one_line_error(reply: bytes) -> None:
    with replying(reply) as where:
        done = run("--server", where, "tubes")
    assert done.code == 3
    assert "\x1b" not in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize("reply", [b"OK \r\n", b"OK -1\r\n", b"OK 99999999999\r\n", b"\xff\r\n", b"OK 3\r\nab"])
def test_reply_that_raw_cannot_read_is_one_line_error(reply: bytes) -> None:
    with replying(reply) as where:
        done = run("--server", where, "raw", "stats")
    assert (done.code, done.out, len(done.err.splitlines())) == (3, b"", 1)


@contextmanager
def answering(**document: object) -> Iterator[str]:
    """Yield the URL of an API that answers every request with *document*."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps({"stats": {"version": "1"}, **document}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        join(thread)


@pytest.mark.parametrize("document", [{}, {"jobs": 3}, {"jobs": [3]}, {"jobs": [{}]}])
def test_incomplete_reservation_is_one_line_error(document: dict[str, object]) -> None:
    with answering(**document) as url:
        done = run("--api", url, "reserve", "mail")
    assert (done.code, len(done.err.splitlines())) == (3, 1), done.err


def test_incomplete_conditions_are_refused() -> None:
    for document in ({}, {"evaluated_at": 3}, {"evaluated_at": "now"}):
        with answering(conditions=[], **document) as url:
            api = Api(parse_url(url), "", TIMEOUT)
            with api, pytest.raises(Unreachable, match="is not the API"):
                api.attention()


FIGURES = b"---\nversion: 1\nuptime: 1\ncurrent-connections: 1\ncurrent-workers: 1\n"


@pytest.mark.parametrize("command", ["stats", "top --once --interval 0.1", "ping"])
@pytest.mark.parametrize("document", [b"---\n", FIGURES, FIGURES + b"total-jobs: many\n", FIGURES + b"total-jobs\n"])
def test_incomplete_statistics_are_one_line_error(command: str, document: bytes) -> None:
    with replying(b"OK %d\r\n%b\r\n" % (len(document), document)) as where:
        done = run("--server", where, *command.split())
    assert (done.code, len(done.err.splitlines())) == (3, 1)
