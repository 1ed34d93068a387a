"""Commands that change or show jobs, with both servers and over the API."""

from __future__ import annotations

from pathlib import Path

import pytest

from greenstalkctl.commands import put
from tests.ctl.world import BY_PROTOCOL_AND_API, Client, ctl, ids, jobs
from tests.support.daemon import TIMEOUT
from tests.support.servers import Server

pytestmark = BY_PROTOCOL_AND_API


def test_put_reads_its_body_from_the_argument(server: Server, mail: Client) -> None:
    done = ctl(server, "put", "hello", "--tube", "mail", "--pri", "7", "--delay", "2m", "--ttr", "90")
    job_id = int(done.text)
    assert (done.code, mail.peek(job_id).body) == (0, b"hello")
    stats = mail.stats_job(job_id)
    assert (stats["pri"], stats["delay"], stats["ttr"], stats["state"]) == (7, 120, 90, "delayed")


def test_put_reads_its_body_unchanged_from_stdin(server: Server, mail: Client) -> None:
    done = ctl(server, "put", "--tube", "mail", "--json", stdin=b"\xff\x00\r\n")
    assert done.json == {"id": done.json["id"], "tube": "mail"}
    assert mail.peek(done.json["id"]).body == b"\xff\x00\r\n"


def test_put_reads_its_body_from_a_file(server: Server, mail: Client, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"from a file\n")
    done = ctl(server, "put", "--file", str(tmp_path / "body"))
    assert mail.peek(int(done.text)).body == b"from a file\n"


def test_put_puts_a_job_for_each_line(server: Server, mail: Client) -> None:
    done = ctl(server, "put", "--lines", "--tube", "mail", "--json", stdin=b"one\n\ntwo\r\nthree")
    assert [mail.peek(line["id"]).body for line in done.lines] == [b"one", b"", b"two\r", b"three"]


@pytest.mark.parametrize("options", [("--file", "/dev/zero"), ("--file", "/dev/zero", "--lines")])
def test_put_stops_reading_above_the_largest_body(
    server: Server, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.setattr(put, "MAX_BODY", 100_000)
    done = ctl(server, "put", *options)
    assert (done.code, "larger than 100000 bytes" in done.err, len(done.err.splitlines())) == (2, True, 1)


def test_put_accepts_the_largest_body(server: Server, mail: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(put, "MAX_BODY", 3)
    done = ctl(server, "put", "--lines", "--tube", "mail", "--json", stdin=b"one\ntwo\nfour\n")
    assert [mail.peek(line["id"]).body for line in done.lines] == [b"one", b"two"]
    assert (done.code, ctl(server, "put", stdin=b"one").code) == (2, 0)


def test_put_defaults_match_greenstalk(server: Server, mail: Client) -> None:
    stats = mail.stats_job(int(ctl(server, "put", "x").text))
    assert (stats["tube"], stats["pri"], stats["delay"], stats["ttr"]) == ("default", 65536, 0, 60)


def test_peek_by_id_shows_statistics_and_body(server: Server, mail: Client) -> None:
    job_id = mail.put(b'{"to": ["ann"]}', priority=3)
    done = ctl(server, "peek", str(job_id))
    assert done.code == 0
    assert '"to": [\n    "ann"\n  ]' in done.text
    found = ctl(server, "peek", str(job_id), "--json").json
    expected = {"id": job_id, "tube": "mail", "pri": 3, "bytes": 15, "body": '{"to": ["ann"]}', "encoding": "utf-8"}
    assert expected.items() <= found.items()


@pytest.mark.parametrize("state", ["ready", "delayed", "buried"])
def test_peek_by_state(server: Server, mail: Client, state: str) -> None:
    mail.put(b"buried")
    mail.bury(mail.reserve(0))
    mail.put(b"ready")
    mail.put(b"delayed", delay=100)
    assert ctl(server, "peek", "--tube", "mail", f"--{state}", "--raw").out == state.encode()


def test_peek_raw_writes_only_the_body(server: Server, mail: Client) -> None:
    body = b"\xff\x1b[2J\r\n\x00"
    assert ctl(server, "peek", str(mail.put(body)), "--raw").out == body
    assert ctl(server, "peek", "--tube", "mail", "--raw").out == body


def test_peek_of_a_missing_job_is_exit_code_1(server: Server) -> None:
    assert ctl(server, "peek", "4711").code == 1
    assert ctl(server, "peek", "--tube", "mail").code == 1


def test_kick_by_id_reports_missed_jobs(server: Server, mail: Client) -> None:
    delayed, ready = mail.put(b"", delay=100), mail.put(b"")
    done = ctl(server, "kick", str(delayed), str(ready), "--json")
    assert (done.code, done.json) == (1, {"kicked": 1, "missed": [ready]})
    assert str(ready) in done.err
    assert mail.stats_job(delayed)["state"] == "ready"


def test_kick_count_kicks_buried_before_delayed_jobs(server: Server, mail: Client) -> None:
    bury(mail, 3)
    delayed = mail.put(b"", delay=100)
    assert ctl(server, "kick", "--tube", "mail", "--count", "2", "--json").json == {"kicked": 2}
    assert ctl(server, "kick", "--tube", "mail", "--all", "--json").json == {"kicked": 1}
    assert mail.stats_job(delayed)["state"] == "delayed"
    assert ctl(server, "kick", "--tube", "mail", "--all", "--json").json == {"kicked": 1}
    assert ctl(server, "kick", "--tube", "mail", "--all").code == 1


def test_kick_of_delayed_jobs_leaves_buried_ones(server: Server, mail: Client) -> None:
    buried, delayed = bury(mail, 1), mail.put(b"", delay=100)
    assert ctl(server, "kick", "--tube", "mail", "--state", "delayed", "--all").code == 0
    assert (ids(mail, "mail", "buried"), ids(mail, "mail", "ready")) == (buried, [delayed])


def test_bury_by_id_keeps_the_pri(server: Server, mail: Client) -> None:
    job_id = mail.put(b"", priority=9, delay=100)
    assert ctl(server, "bury", str(job_id)).code == 0
    stats = mail.stats_job(job_id)
    assert (stats["state"], stats["pri"]) == ("buried", 9)
    assert ctl(server, "bury", str(job_id)).code == 1


def test_bury_of_a_tube_buries_up_to_the_count(server: Server, mail: Client) -> None:
    for number in range(4):
        mail.put(b"", priority=number)
    first = ids(mail, "mail", "ready")[:2]
    assert ctl(server, "bury", "--tube", "mail", "--count", "2", "--json").json == {"buried": 2}
    assert ids(mail, "mail", "buried") == first
    assert ctl(server, "bury", "--tube", "mail", "--all", "--json").json == {"buried": 2}
    assert ctl(server, "bury", "--tube", "mail", "--all").code == 1


def test_delete_by_id_reports_missed_jobs(server: Server, mail: Client) -> None:
    job_id, held = mail.put(b"", priority=5), mail.put(b"", priority=1)
    mail.reserve(0)
    done = ctl(server, "--yes", "delete", str(job_id), str(held), "--json")
    assert (done.code, done.json) == (1, {"deleted": 1, "missed": [held]})
    assert jobs(server, "mail") == [("reserved", b"", 1, 60)]


@pytest.mark.parametrize("state", ["ready", "delayed", "buried"])
def test_delete_of_a_tube_deletes_one_state(server: Server, mail: Client, state: str) -> None:
    fill(mail)
    assert ctl(server, "delete", "--tube", "mail", "--state", state, "--count", "1", "--yes").code == 0
    assert [job[0] for job in jobs(server, "mail")].count(state) == 1
    done = ctl(server, "delete", "--tube", "mail", "--state", state, "--all", "--yes", "--json")
    assert (done.code, done.json) == (0, {"deleted": 1})
    assert len(jobs(server, "mail")) == 4
    assert ctl(server, "delete", "--tube", "mail", "--state", state, "--all", "--yes").code == 1


def test_clear_keeps_reserved_jobs(server: Server, mail: Client) -> None:
    fill(mail)
    mail.reserve(0)
    done = ctl(server, "clear", "mail", "--yes", "--json")
    assert (done.code, done.json) == (0, {"deleted": 5})
    assert [job[0] for job in jobs(server, "mail")] == ["reserved"]


def test_clear_of_one_state_keeps_the_others(server: Server, mail: Client) -> None:
    fill(mail)
    assert ctl(server, "clear", "mail", "--state", "buried", "--yes", "--json").json == {"deleted": 2}
    assert [job[0] for job in jobs(server, "mail")] == ["delayed", "delayed", "ready", "ready"]


def test_clear_names_the_missing_tube(server: Server) -> None:
    done = ctl(server, "clear", "nothing", "--yes")
    assert done.code == 1
    assert "no tube nothing" in done.err


def test_move_keeps_state_pri_ttr_and_order(server: Server, mail: Client) -> None:
    fill(mail)
    before = jobs(server, "mail")
    done = ctl(server, "move", "mail", "post", "--json")
    expected = {"moved": {"ready": 2, "delayed": 2, "buried": 2}, "taken": 0, "doubled": 0}
    assert (done.code, done.json) == (0, expected)
    assert (jobs(server, "post"), jobs(server, "mail")) == (before, [])
    mail.use("post")
    assert mail.peek_buried().body == b"buried 0"
    assert mail.peek_ready().body == b"ready 0"
    left = [mail.stats_job(job_id)["time-left"] for job_id in ids(mail, "post", "delayed")]
    assert all(1000 - TIMEOUT < seconds <= 1000 for seconds in left), left


def test_move_of_one_state_moves_up_to_the_count(server: Server, mail: Client) -> None:
    fill(mail)
    assert ctl(server, "move", "mail", "post", "--state", "delayed", "--count", "1").code == 0
    assert [job[:2] for job in jobs(server, "post")] == [("delayed", b"delayed 0")]
    assert len(jobs(server, "mail")) == 5


def test_move_without_jobs_is_exit_code_1(server: Server, mail: Client) -> None:
    assert ctl(server, "move", "mail", "post").code == 1
    assert ctl(server, "move", "nothing", "post").code == 1


def test_tube_is_an_argument_or_an_option(server: Server, mail: Client) -> None:
    """The other tests use the other form of each command."""
    mail.put(b"first")
    mail.put(b"second")
    for command, shown in (
        ("peek mail --tube mail --raw", "first"),
        ("tube --tube mail", "current-jobs-ready"),
        ("tail --tube mail", "second"),
        ("bury mail --all", "buried 2 jobs"),
        ("kick mail --all", "kicked 2 jobs"),
        ("delete mail --state ready --count 1 --yes", "deleted 1 job"),
        ("clear --tube mail --yes", "deleted 1 job"),
    ):
        assert shown in ctl(server, *command.split()).text


def bury(client: Client, count: int) -> list[int]:
    """Put and bury *count* jobs; return their ids."""
    found = []
    for _ in range(count):
        client.put(b"", priority=0)
        job = client.reserve(0)
        client.bury(job)
        found.append(job.id)
    return found


def fill(client: Client) -> None:
    """Put two jobs of each state into tube `mail`."""
    for number in range(2):
        client.put(b"buried %d" % number, priority=30 + number)
        client.bury(client.reserve(0), priority=40 - number)
        client.put(b"delayed %d" % number, priority=20 + number, delay=1000, ttr=11)
    for number in range(2):
        client.put(b"ready %d" % number, priority=10 + number, ttr=12)
