"""The commands `policy` and `redrive`, and the policies in the output of `tube` and `peek`; all with a real server."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from greenstalk_server.core.policies.policy import SETTINGS, parse_policy
from greenstalkctl import policy_document
from greenstalkctl.cli import cli
from greenstalkctl.errors import InvalidUsage
from tests.ctl.world import HOSTILE, Client, WithApi, connect, ctl, ids, run
from tests.support.servers import Server

DEAD = ("tubes=mail", "max_attempts=1", "dead_letter=mail.failed")


@pytest.fixture(autouse=True)
def _no_policies(with_api: WithApi) -> Iterator[None]:
    """Remove the policies of each test: the tests share a server."""
    yield
    for one in ctl(with_api, "policy", "list", "--json").json["policies"]:
        assert ctl(with_api, "policy", "delete", one["name"]).code == 0


@pytest.fixture
def mail(with_api: WithApi) -> Iterator[Client]:
    with connect(with_api, "mail") as client:
        yield client


def kill(with_api: WithApi, mail: Client, count: int = 1) -> list[int]:
    """Make *count* jobs of `mail` dead letters in `mail.failed`; return their ids."""
    assert ctl(with_api, "policy", "set", "dead", *DEAD).code == 0
    killed = []
    for number in range(count):
        job_id = mail.put(b"%d" % number, priority=number)
        mail.release(mail.reserve(0), priority=number)
        killed.append(job_id)
    assert ids(mail, "mail.failed", "ready") == killed
    return killed


# Documents


@pytest.mark.parametrize(
    ("words", "policy"),
    [
        ([], {}),
        (["tubes=mail"], {"tubes": ["mail"]}),
        (["tubes=mail.*, post"], {"tubes": ["mail.*", "post"]}),
        (["copy_to="], {"copy_to": []}),
        (["dead_letter=17", "overflow=drop-oldest"], {"dead_letter": "17", "overflow": "drop-oldest"}),
        (["max_attempts=5", "priority=-1", "rate=2.5"], {"max_attempts": 5, "priority": -1, "rate": 2.5}),
        (
            ["retry_delay=1m", "max_bytes=10MB", "dead_letter="],
            {"retry_delay": "1m", "max_bytes": "10MB", "dead_letter": ""},
        ),
        (["unique_for=1e3", "rate=nan"], {"unique_for": "1e3", "rate": "nan"}),
    ],
)
def test_words_become_a_policy(words: list[str], policy: dict[str, Any]) -> None:
    assert policy_document.from_words(words) == policy


def test_kinds_of_keys_match_the_server() -> None:
    assert {"tubes", *SETTINGS} >= policy_document.LISTS
    for key in policy_document.TEXTS:
        with pytest.raises(ValueError):  # noqa: PT011  it has no message
            SETTINGS[key].read(17)
    for key in {*SETTINGS} - policy_document.TEXTS - policy_document.LISTS:
        SETTINGS[key].read(1)


@pytest.mark.parametrize("name", ["retries", "a.b", "17"])
def test_policy_as_toml_is_read_by_the_configuration_file_and_by_set(name: str) -> None:
    policy = {"tubes": ["mail.*"], "priority": -5, "rate": 0.5, "retry_delay": "1m", "copy_to": [], "dead_letter": ""}
    shown = policy_document.to_toml(name, policy)
    assert tomllib.loads(shown) == {"policies": {name: policy}}
    assert policy_document.from_file(shown.encode(), name) == policy
    assert parse_policy(name, policy_document.from_file(shown.encode(), name)).name == name


@pytest.mark.parametrize(
    "content",
    [
        b"", b" \n", b"{}", b"[]", b"3", b"{", b'{"tubes": ["a"]', b"tubes = [", b"tubes = 1979-05-27", b"\xff",
        b'{"rate": NaN}', b"rate = inf", b"[policies.other]\ntubes = []", b"[policies]\nretries = 1", b"{" * 100_000,
        b'{"a":' * 5000, b"a" * 65537,
    ],
    ids=lambda content: repr(content[:20]),
)  # fmt: skip
def test_malformed_file_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidUsage, match=r"^the policy (is|must)"):
        policy_document.from_file(content, "retries")


# Policies


def test_policy_is_set_shown_listed_and_deleted(with_api: WithApi) -> None:
    done = ctl(with_api, "policy", "set", "retries", "tubes=mail.*,post", "max_attempts=5", "retry_delay=1m")
    assert (done.code, done.text, done.err) == (0, "set the policy retries\n", "")
    document = {"tubes": ["mail.*", "post"], "priority": 0, "max_attempts": 5, "retry_delay": "1m"}
    listed = {"name": "retries", "source": "runtime", "problem": "", "document": document}
    assert ctl(with_api, "policy", "list", "--json").json == {"policies": [listed], "warnings": []}
    assert ctl(with_api, "policy", "--json", "show", "retries").json == listed
    head, _, row = ctl(with_api, "policy", "list").text.splitlines()
    assert head.split() == ["name", "source", "priority", "tubes", "settings"]
    assert row.split() == ["retries", "runtime", "0", "mail.*,post", "max_attempts=5", "retry_delay=1m"]
    shown = ctl(with_api, "policy", "show", "retries").text
    assert shown.startswith("# set at run time\n[policies.retries]\n")
    assert tomllib.loads(shown) == {"policies": {"retries": document}}
    done = ctl(with_api, "policy", "delete", "retries")
    assert (done.code, done.text) == (0, "deleted the policy retries\n")
    for command in (["show", "retries"], ["delete", "retries"]):
        done = ctl(with_api, "policy", *command)
        assert (done.code, "there is no policy retries on" in done.err) == (1, True)
    done = ctl(with_api, "policy", "list", "--json")
    assert (done.code, done.json["policies"]) == (1, [])


def test_policy_is_read_from_a_file_or_standard_input(with_api: WithApi, tmp_path: Path) -> None:
    path = tmp_path / "policy"
    path.write_text('tubes = ["a"]\nrate = 2.5')
    for arguments in (["--file", str(path)], ["--file", "-"], []):
        assert ctl(with_api, "policy", "set", "p", *arguments, stdin=path.read_bytes()).code == 0
        document = ctl(with_api, "policy", "show", "p", "--json").json["document"]
        assert document == {"tubes": ["a"], "priority": 0, "rate": 2.5}
        assert ctl(with_api, "policy", "delete", "p").code == 0


@pytest.mark.parametrize(
    "content",
    [b'{"tubes": ["a"], "rate": 2.5}', b'tubes = ["a"]\nrate = 2.5', b'[policies.p]\ntubes=["a"]\nrate=2.5'],
)
def test_file_is_json_or_toml(content: bytes) -> None:
    assert policy_document.from_file(content, "p") == {"tubes": ["a"], "rate": 2.5}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["tubes=mail", "max_attempts=-1"],
            "the policy is invalid: “max_attempts” -1: must be a whole number",
        ),
        (["max_attempts=5"], "the policy is invalid: “tubes” is missing"),
        (["tubes=mail", "max_attemps=5"], "“max_attemps” is not known: the fields are tubes, priority"),
        (["tubes=a b"], "cannot match any tube"),
        (["tubes"], "'tubes' is not a setting: write KEY=VALUE"),
        (["=5"], "'=5' is not a setting"),
        (["tubes=a", "tubes=b"], "tubes is given more than once"),
        (["--file", "/dev/null", "tubes=a"], "either as KEY=VALUE or with --file"),
        (["--file", "/dev/null"], "the policy is empty"),
        (["--file", "/"], "Is a directory"),
        ([], "the policy is empty"),
    ],
)
@pytest.mark.parametrize("verb", ["set", "dry-run"])
def test_invalid_policy_is_exit_code_2(with_api: WithApi, verb: str, words: list[str], message: str) -> None:
    done = ctl(with_api, "policy", verb, "retries", *words)
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert message in done.err
    assert ctl(with_api, "policy", "list").code == 1


@pytest.mark.parametrize("name", ["-x", "a/b", "../jobs", "x" * 101, "", "é", "a\n"])
def test_invalid_name_is_exit_code_2(with_api: WithApi, name: str) -> None:
    assert ctl(with_api, "policy", "show", "--", name).code == 2


def test_loop_of_dead_letters_is_a_warning_on_stderr(with_api: WithApi) -> None:
    assert ctl(with_api, "policy", "set", "a", "tubes=a", "dead_letter=b").err == ""
    for command in (["set", "b", "tubes=b", "dead_letter=a"], ["list"]):
        done = ctl(with_api, "policy", *command)
        assert (done.code, done.err.startswith("warning: the dead letters of ")) == (0, True)


def test_commands_need_the_api(one: Server) -> None:
    for command in (["policy", "list"], ["policy", "set", "a", "tubes=b"], ["redrive", "mail"]):
        done = ctl(one, *command)
        assert (done.code, "the API of Greenstalk Server has" in done.err) == (2, True)


def test_group_without_a_command_shows_its_commands() -> None:
    done = run("policy")
    assert (done.code, "dry-run" in done.err) == (2, True)
    group = cli.commands["policy"]
    assert isinstance(group, click.Group)
    for name, command in group.commands.items():
        done = run("policy", name, "--help")
        assert (done.code, "Global options:" in done.text) == (0, True)
        assert run("help", "policy", name).text == done.text
        assert all(getattr(param, "help", None) for param in command.params)
    assert run("help", "policy", "nonsense").code == run("help", "ping", "nonsense").code == 2


# Dry runs


def test_dry_run_counts_and_changes_nothing(with_api: WithApi, mail: Client) -> None:
    for _ in range(5):
        mail.put(b"body")
    arguments = ("policy", "dry-run", "caps", "tubes=mail", "max_jobs=3", "overflow=drop-oldest", "max_reserved=1")
    found = ctl(with_api, *arguments, "--json").json
    assert (found["tubes"], found["jobs"], found["evicted"], found["held"], found["sample"]) == (1, 5, 2, 2, ["mail"])
    lines = ctl(with_api, *arguments).text.splitlines()
    assert lines[0].split() == ["tubes", "that", "match", "1"]
    assert any(line.startswith("jobs dropped, because their tube is above a cap") and line[-1] == "2" for line in lines)
    assert mail.stats_tube("mail")["current-jobs-ready"] == 5
    assert ctl(with_api, "policy", "list").code == 1


# Tubes and jobs


def test_tube_shows_its_settings_and_why_it_is_held(with_api: WithApi, mail: Client) -> None:
    ctl(with_api, "policy", "set", "one", "tubes=mail", "max_reserved=1", "dead_letter=bad", "copy_to=a,b")
    mail.put(b"first")
    mail.put(b"second")
    found = ctl(with_api, "tube", "mail", "--json").json
    assert found["policy"]["max_reserved"] == {"value": 1, "policy": "one"}
    assert (found["held-by"], found["max-reserved"], found["dead-letter"]) == (None, 1, "bad")
    mail.reserve(0)
    lines = {
        line.split()[0]: line.partition(" ")[2].strip() for line in ctl(with_api, "tube", "mail").text.splitlines()
    }
    assert (lines["held-by"], lines["current-jobs-reserved"]) == ("max_reserved", "1")
    assert (lines["policy.max_reserved"], lines["policy.copy_to"]) == ("1 (from one)", "a,b (from one)")
    assert lines["dead-letters-from"] == "-"


def test_peek_shows_the_origin_of_a_dead_letter(with_api: WithApi, mail: Client) -> None:
    (job_id,) = kill(with_api, mail)
    found = ctl(with_api, "peek", str(job_id), "--json").json
    assert (found["attempts"], found["expires-at"], found["dead-letter"]["source"]) == (0, None, "mail")
    text = ctl(with_api, "peek", str(job_id)).text
    assert "dead-letter.reason" in text and "dead-letter.first-at" in text


# Redrive


def test_redrive_moves_all_dead_letters_of_a_tube_back(with_api: WithApi, mail: Client) -> None:
    killed = kill(with_api, mail, 3)
    done = ctl(with_api, "redrive", "mail.failed")
    assert (done.code, done.text, done.err) == (0, "moved 3 jobs back\n", "")
    assert ids(mail, "mail", "ready") == killed
    done = ctl(with_api, "redrive", "mail", "--json")
    assert (done.code, done.json) == (1, {"redriven": 0, "skipped": 0})
    assert "nothing moved: tube mail has no dead letter that matches" in done.err
    assert ctl(with_api, "redrive", "nothing").code == 1


def test_redrive_of_ids_and_of_a_search(with_api: WithApi, mail: Client) -> None:
    killed = kill(with_api, mail, 4)
    both = f"{killed[0]},{killed[2]}"
    assert ctl(with_api, "redrive", "mail.failed", "--ids", both, "--json").json == {"redriven": 2, "skipped": 0}
    assert ids(mail, "mail", "ready") == [killed[0], killed[2]]
    assert ctl(with_api, "redrive", "mail.failed", "--search", "pri:3", "--rate", "1000").text == "moved 1 job back\n"
    assert ids(mail, "mail.failed", "ready") == [killed[1]]
    done = ctl(with_api, "redrive", "mail.failed", "--query", "colour:red")
    assert (done.code, "--query is not a valid query" in done.err) == (2, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--ids", "x"], ["--ids", ""], ["--ids", "1,,2"], ["--ids", ",".join(map(str, range(1, 1002)))],
        ["--rate", "0"], ["--rate", "-1"], ["--rate", "nan"], ["--rate", "fast"],
    ],
)  # fmt: skip
def test_invalid_redrive_is_exit_code_2(with_api: WithApi, mail: Client, arguments: list[str]) -> None:
    killed = kill(with_api, mail)
    assert ctl(with_api, "redrive", "mail.failed", *arguments).code == 2
    assert ids(mail, "mail.failed", "ready") == killed


def test_hostile_text_of_a_server_is_escaped(with_api: WithApi) -> None:
    text = policy_document.to_toml("a", {"tubes": [HOSTILE]})
    assert text.isascii() and "\x1b" not in text
    assert json.loads(text.partition("tubes = ")[2]) == [HOSTILE]
