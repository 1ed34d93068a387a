"""The tools of the suite: the language of the corpus, splitting into replies, and normalisation."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.support.servers import Baseline
from tests.support.wire import END, MISSING_CRLF, QUIET, SILENCE, Connection

from .differences import as_ours
from .ids import Ids, LearnedIds
from .normalise import normalise
from .script import parse_payload

BASELINE = Baseline(
    pids=frozenset((7,)), last_id=40, stats={"cmd-put": "5"}, default_tube={"total-jobs": "3", "current-using": "1"}
)


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("", b""),
        ("delete {1}", b"delete 41"),
        ("{2}{1}", b"4241"),
        (r"put 0 0 1 1\r\nx", b"put 0 0 1 1\r\nx"),
        (r"{ab*3}", b"ababab"),
        (r"{\r\n*2}", b"\r\n\r\n"),
        (r"\0\t\\\xff\x7b", b"\0\t\\\xff{"),
    ],
)
def test_payload_is_rendered(text: str, rendered: bytes) -> None:
    assert parse_payload(text).render(Ids(40)) == rendered


@pytest.fixture
def link() -> Iterator[tuple[Connection, socket.socket]]:
    """A Connection, and the server's end of it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = Connection(listener.getsockname(), timeout=0.05)
        server, _ = listener.accept()
        with server:
            yield connection, server
        connection.close()


def test_replies_are_split_by_their_announced_size(link: tuple[Connection, socket.socket]) -> None:
    connection, server = link
    server.sendall(b"USING x\r\nRESERVED 1 4\r\na\r\nb\r\nOK 2\r\n{}\r\nOK\r\nFOUND 1 0\r\n\r\n")
    server.shutdown(socket.SHUT_WR)
    expected = [b"USING x", b"RESERVED 1 4\r\na\r\nb", b"OK 2\r\n{}", b"OK", b"FOUND 1 0\r\n", END]
    assert connection.read_to_end() == expected


def test_body_longer_than_announced_is_recorded(link: tuple[Connection, socket.socket]) -> None:
    connection, server = link
    server.sendall(b"RESERVED 1 1\r\nabc\r\n")
    assert connection.read_reply() == b"RESERVED 1 1\r\nabc" + MISSING_CRLF


def test_incomplete_reply_is_recorded(link: tuple[Connection, socket.socket]) -> None:
    connection, server = link
    server.sendall(b"RESERVED 1 4\r\nab")
    assert connection.read_reply() == b"RESERVED 1 4\r\nab" + SILENCE
    assert connection.read_arrived() == [QUIET]
    server.sendall(b"USING")
    server.close()
    assert connection.read_to_end() == [b"USING" + END]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"INSERTED 41", "INSERTED {1}"),
        (b"BURIED", "BURIED"),
        (b"RESERVED 42 1\r\n\xff", r"RESERVED {2} 1\r\n\xff"),
        (b"", ""),
        (b"OK 3\r\n{}\n", r"OK 3\r\n{}\n"),
        (b"OK 8\r\n---\n- t\n<end>", r"OK 8\r\n---\n- t\n<end>"),
        (b"OK 9\r\n---\n- t\n", r"OK 9\r\n---\n- t\n"),
        (b"OK 8\r\n---\n- t\n", "OK *\n- t"),
    ],
)
def test_reply_is_normalised(raw: bytes, text: str) -> None:
    assert normalise(raw, BASELINE, Ids(40)) == text


@pytest.mark.parametrize(
    ("lines", "normalised"),
    [
        ("cmd-put: 6", "cmd-put: 1"),
        ("current-tubes: 6", "current-tubes: 6"),
        ("pid: 7\nuptime: -1", "pid: <pid>\nuptime: -1"),
        ("pid: 8\nuptime: 10", "pid: 8\nuptime: <uptime>"),
        ('version: "1.0"', "version: <version>"),
        ("version: 1.0", "version: 1.0"),
        ("id: 41\nage: 0", "id: {1}\nage: 0"),
        ('name: "default"\ntotal-jobs: 4', 'name: "default"\ntotal-jobs: 1'),
        ("name: t\ntotal-jobs: 4", "name: t\ntotal-jobs: 4"),
    ],
)
def test_stats_reply_is_normalised(lines: str, normalised: str) -> None:
    body = f"---\n{lines}\n".encode()
    assert normalise(b"OK %d\r\n%s" % (len(body), body), BASELINE, Ids(40)) == f"OK *\n{normalised}"


def test_long_bodies_differ_by_their_checksum() -> None:
    one, other = (
        normalise(b"FOUND 41 500\r\n" + b"x" * 249 + middle + b"x" * 250, BASELINE, Ids(40)) for middle in (b"y", b"z")
    )
    assert one != other
    assert "(506 bytes, crc " in one


def test_names_that_yaml_misreads_are_expected_in_quotes() -> None:
    assert as_ours("OK *\nname: t\npause: 0") == "OK *\nname: t\npause: 0"
    assert as_ours("OK *\nid: {1}\ntube: 1e3\nfile: 0") == 'OK *\nid: {1}\ntube: "1e3"\nfile: 0'
    assert as_ours("OK *\n- name: 1") == "OK *\n- name: 1"
    assert as_ours("name: 1") == "name: 1"


def test_ids_of_several_shards_are_learned_from_the_expected_replies() -> None:
    ids = LearnedIds(40, 3, ["INSERTED {1}", "NOT_FOUND", "INSERTED {3}", r"RESERVED {3} 1\r\nx"])
    for reply in (b"INSERTED 43", b"NOT_FOUND", b"INSERTED 41", b"RESERVED 43 1\r\nx"):
        ids.learn(reply)
    assert [ids.id(number) for number in (1, 3)] == [43, 41]
    assert [ids.name(id) for id in (43, 41, 46)] == ["{1}", "{3}", "{id 46}"]
    assert ids.id(2) == 46  # if it was put into `default`
    assert ids.id(4) == 52


def test_number_that_never_gets_an_id_is_not_another_job() -> None:
    ids = LearnedIds(40, 3, ["EXPECTED_CRLF", "INSERTED {2}"])
    ids.learn(b"EXPECTED_CRLF")
    ids.learn(b"INSERTED 43")
    assert ids.name(43) == "{2}"
    assert ids.id(1) > 43
