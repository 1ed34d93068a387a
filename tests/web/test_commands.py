"""Actions as commands: bash runs each command against a real server, which then does what the form would do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import greenstalk
import pytest
from flask.testing import FlaskClient

from greenstalk_server.web.pages.commands import CALLS, quoted
from tests.support.daemon import Daemon, environment

from .conftest import Queue
from .test_actions import SAME_ORIGIN
from .test_guard import basic
from .visit import FLAGS

TOKEN = "a$secret;'token'\"!"  # noqa: S105
TUBE = "$(x);a+b/_"
"""A tube name with characters that a shell interprets."""

REASON = """it's "down"; $(touch /tmp/x) `id` \\ !! & é \u202egnp"""
BODY = "first line\n'quoted' \"$HOME\" \\n `id`\n\ttab\u202e é"


@pytest.fixture(scope="module")
def server() -> Iterator[Daemon]:
    with Daemon(*FLAGS, environ=environment(GREENSTALK_API_TOKEN=TOKEN)) as running:
        yield running


@pytest.fixture
def client(server: Daemon) -> Iterator[greenstalk.Client]:
    with greenstalk.Client(("127.0.0.1", server.port), encoding=None, use=TUBE, watch=TUBE) as found:
        yield found
        found.use("default")


class Api:
    """Asks the server for commands, and for its state."""

    def __init__(self, server: Daemon) -> None:
        self._home = server.dashboard

    def commands(self, action: str, /, **form: str) -> dict[str, str]:
        boundary = "x" * 30
        parts = [
            f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
            for name, value in form.items()
        ]
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}", "Sec-Fetch-Site": "same-origin"}
        body = f"{''.join(parts)}--{boundary}--\r\n".encode()
        with urlopen(Request(f"{self._home}commands?action={action}", body, headers)) as response:  # noqa: S310
            found: dict[str, str] = json.load(response)
        return found

    def get(self, path: str) -> Any:
        with urlopen(Request(f"{self._home}api/v1{path}", headers={"Authorization": f"Bearer {TOKEN}"})) as response:  # noqa: S310
            return json.load(response)


@pytest.fixture
def api(server: Daemon) -> Api:
    return Api(server)


def run(command: str) -> str:
    """Run *command* in bash, with greenstalkctl of this installation, which does not ask for confirmation."""
    python = Path(sys.executable)
    setup = f'greenstalkctl() {{ "{python}" -m greenstalkctl --yes "$@"; }}\n'
    done = subprocess.run(
        ["bash", "-c", setup + command.replace("curl ", "curl --silent --show-error --fail-with-body ", 1)],
        env={"PATH": "/usr/bin:/bin", "GREENSTALK_API_TOKEN": TOKEN, "LANG": "C.UTF-8"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout.decode()


BOTH = pytest.mark.parametrize("program", ["curl", "ctl"])


def bury(client: greenstalk.Client, count: int) -> list[int]:
    ids = [client.put(b"x") for _ in range(count)]
    for id in ids:
        client.bury(client.reserve_job(id))
    return ids


@BOTH
def test_pause_and_resume(api: Api, client: greenstalk.Client, program: str) -> None:
    run(api.commands("tube/pause", tube=TUBE, seconds="600", reason=REASON)[program])
    stats = api.get(f"/tubes?q={TUBE.replace('+', '%2B').replace(';', '%3B')}")["tubes"][0]
    assert (stats["name"], stats["pause"], stats["pause_reason"]) == (TUBE, 600, REASON)
    run(api.commands("tube/resume", tube=TUBE)[program])
    assert client.stats_tube(TUBE)["pause-time-left"] == 0


@BOTH
def test_kick_and_clear(api: Api, client: greenstalk.Client, program: str) -> None:
    bury(client, 4)
    run(api.commands("tube/kick", tube=TUBE, state="buried", count="3")[program])
    assert client.stats_tube(TUBE)["current-jobs-buried"] == 1
    run(api.commands("tube/kick", tube=TUBE, state="buried", count="1", all="1")[program])
    assert client.stats_tube(TUBE)["current-jobs-ready"] == 4
    run(api.commands("tube/clear", tube=TUBE, state="ready")[program])
    assert client.stats_tube(TUBE)["current-jobs-ready"] == 0


@BOTH
@pytest.mark.parametrize("body", [BODY, "", "-x", "--help"])
def test_put(api: Api, client: greenstalk.Client, program: str, body: str) -> None:
    form = {"tube": TUBE, "pri": "7", "delay": "0", "ttr": "90", "body": body, "idp": f"{program}$k", "idp-ttl": "0",
            "grp": "g", "con": "c", "con-limit": "2"}  # fmt: skip
    run(api.commands("tube/put", **form)[program])
    job = client.reserve(0)
    stats = client.stats_job(job)
    assert job.body == body.encode()
    assert (stats["tube"], stats["pri"], stats["ttr"]) == (TUBE, 7, 90)
    tags = api.get(f"/jobs/{job.id}")["tags"]
    assert (tags["idempotency_key"], tags["group"], tags["concurrency_limit"]) == (f"{program}$k", "g", 2)
    client.delete(job)


@BOTH
def test_actions_of_a_job(api: Api, client: greenstalk.Client, program: str) -> None:
    id = client.put(b"x")
    run(api.commands("job/bury", id=str(id))[program])
    assert client.stats_job(id)["state"] == "buried"
    run(api.commands("job/kick", id=str(id))[program])
    assert client.stats_job(id)["state"] == "ready"
    run(api.commands("job/delete", id=str(id))[program])
    with pytest.raises(greenstalk.NotFoundError):
        client.peek(id)


def test_actions_of_a_job_by_the_api_alone(api: Api, client: greenstalk.Client) -> None:
    id = client.put(b"x")
    commands = api.commands("job/move", id=str(id), tube="$(y);b")
    assert commands["ctl"] == "" and "no command" in commands["problem"]
    run(commands["curl"])
    assert client.stats_job(id)["tube"] == "$(y);b"
    copy = json.loads(run(api.commands("job/copy", id=str(id), delay="5")["curl"]))["id"]
    assert client.stats_job(copy)["delay"] == 5
    held = client.reserve_job(id)
    run(api.commands("job/release", id=str(id), confirm="1")["curl"])
    assert client.stats_job(held)["state"] == "ready"
    client.reserve_job(id)
    run(api.commands("job/delete", id=str(id), confirm="1")["curl"])
    client.delete(copy)


@pytest.mark.parametrize(
    ("encoding", "body", "expected"), [("text", BODY, BODY.encode()), ("base64", "/wA=", b"\xff\0")]
)
def test_edit(api: Api, client: greenstalk.Client, encoding: str, body: str, expected: bytes) -> None:
    id = client.put(b"x", priority=5, ttr=60)
    form = {"id": str(id), "pri": "5", "ttr": "61", "delay": "", "encoding": encoding, "body": body}
    command = api.commands("job/edit", **form)["curl"]
    assert '"pri"' not in command, "only what the form changes"
    run(command)
    assert (client.peek(id).body, client.stats_job(id)["ttr"]) == (expected, 61)
    assert api.commands("job/edit", **form)["problem"] == "The form has no new values."
    client.delete(id)


@BOTH
@pytest.mark.parametrize(
    "form",
    [
        {"scope": "all", "tube": TUBE, "state": "buried", "action": "kick"},
        {"scope": "ticked", "action": "delete"},
        {"scope": "all", "tube": TUBE, "state": "buried", "action": "move", "to": "$(z);c"},
    ],
)
def test_bulk_changes(api: Api, client: greenstalk.Client, program: str, form: dict[str, str]) -> None:
    (id,) = bury(client, 1)
    run(api.commands("bulk/preview", **form, **({"id": str(id)} if form["scope"] == "ticked" else {}))[program])
    if form["action"] == "delete":
        with pytest.raises(greenstalk.NotFoundError):
            client.peek(id)
        return
    stats = client.stats_job(id)
    assert (stats["state"], stats["tube"]) == (("ready", TUBE) if form["action"] == "kick" else ("buried", "$(z);c"))
    client.delete(id)


def test_bulk_change_with_a_query(api: Api, client: greenstalk.Client) -> None:
    (id,) = bury(client, 1)
    form = {"scope": "all", "tube": TUBE, "q": "age:>=0 -state:ready", "action": "pri", "pri": "9"}
    commands = api.commands("bulk/preview", **form)
    assert commands["ctl"] == ""
    run(commands["curl"])
    assert client.stats_job(id)["pri"] == 9
    client.delete(id)


@BOTH
def test_policies_and_redrive(api: Api, client: greenstalk.Client, program: str) -> None:
    form = {"name": "dead", "tubes": TUBE, "max_attempts": "1", "dead_letter": "$(dead);x", "priority": "3"}
    run(api.commands("policy/set", **form)[program])
    assert api.get("/policies/dead")["document"]["dead_letter"] == "$(dead);x"
    id = client.put(b"x")
    client.release(client.reserve(0))
    assert client.stats_job(id)["tube"] == "$(dead);x"
    run(api.commands("bulk/preview", tube="$(dead);x", scope="all", action="redrive", rate="50")[program])
    assert client.stats_job(id)["tube"] == TUBE
    client.delete(id)
    run(api.commands("policy/remove", name="dead")[program])
    assert api.get("/policies")["policies"] == []


@BOTH
def test_changes_of_many_tubes(api: Api, client: greenstalk.Client, program: str) -> None:
    pattern = f"*{TUBE[:4]}*"
    bury(client, 2)
    run(api.commands("tubes/preview", pattern=pattern, action="pause", seconds="60", reason=REASON)[program])
    assert client.stats_tube(TUBE)["pause-time-left"] > 50
    run(api.commands("tubes/preview", pattern=pattern, action="resume")[program])
    assert client.stats_tube(TUBE)["pause-time-left"] == 0
    run(api.commands("tubes/preview", pattern=pattern, action="kick", state="buried")[program])
    assert client.stats_tube(TUBE)["current-jobs-buried"] == 0
    run(api.commands("tube/clear", tube=TUBE, state="ready")["curl"])


def test_silences(api: Api) -> None:
    form = {"tubes": "mail.$(x)*", "kind": "disk", "seconds": "3600", "reason": REASON}
    run(api.commands("alerts/silence", **form)["curl"])
    (silence,) = api.get("/alerts/silences")["silences"]
    assert (silence["tubes"], silence["condition"], silence["reason"]) == (
        "mail.$(x)*",
        "disk",
        " ".join(REASON.split()),
    )
    run(api.commands("alerts/silence/end", id=str(silence["id"]))["curl"])
    assert api.get("/alerts/silences") == {"silences": []}
    assert "/alerts/test" in api.commands("alerts/test", receiver="ops")["curl"]


def test_connection_is_closed(api: Api, server: Daemon) -> None:
    victim = greenstalk.Client(("127.0.0.1", server.port), use="victim")
    number = next(one["number"] for one in api.get("/connections")["connections"] if one["uses"] == "victim")
    run(api.commands("connection/close", number=str(number), confirm=str(number))["curl"])
    with pytest.raises((ConnectionError, greenstalk.Error)):
        victim.put("x")
    victim.close()


# Without a server


@pytest.mark.parametrize("value", [BODY, REASON, "", "plain", "\x01\x1b[2J9", "a\\'b\n", "'", "\u2066x"])
def test_quoted_value_is_one_word_of_bash(value: str) -> None:
    done = subprocess.run(["bash", "-c", f"printf '%s|' {quoted(value)}"], capture_output=True, check=True)
    assert done.stdout.decode() == f"{value}|"
    assert quoted(value).isprintable()


@pytest.mark.parametrize("action", CALLS)
def test_incomplete_form_is_a_problem(client_of_app: FlaskClient, action: str) -> None:
    response = client_of_app.post(f"/commands?action={action}", data={}, headers=SAME_ORIGIN)
    assert response.status_code == 200
    if action != "policy/remove":
        assert response.json is not None and response.json["problem"] and not response.json["curl"]


@pytest.fixture
def client_of_app(queue: Queue) -> FlaskClient:
    return queue.app().test_client()


def test_unknown_action_is_refused(client_of_app: FlaskClient) -> None:
    assert client_of_app.post("/commands?action=x", headers=SAME_ORIGIN).status_code == 400


@pytest.mark.parametrize(
    ("options", "curl", "ctl"),
    [
        ({}, "curl --json", "greenstalkctl --api http://localhost resume mail"),
        (
            {"api_token": "t"},
            'curl -H "Authorization: Bearer $GREENSTALK_API_TOKEN" --json',
            "GREENSTALKCTL_API_TOKEN=",
        ),
        ({"password": "p", "user": "a b"}, "curl -u 'a b':\"$GREENSTALK_WEB_PASSWORD\" --json", ""),
        ({"operator_password": "p"}, 'curl -u admin:"$GREENSTALK_WEB_PASSWORD" --json', ""),
        ({"operator_password": "p", "api_operator_token": "t"}, "curl -H ", "GREENSTALKCTL_API_TOKEN="),
    ],
)
def test_credentials_are_variables(queue: Queue, options: dict[str, Any], curl: str, ctl: str) -> None:
    app = queue.app(**options)
    with app.test_request_context():
        commands: Any = app.jinja_env.globals["commands"]
        found = commands("tube/resume", {"tube": "mail"})
    assert found.curl.startswith(curl) and found.ctl.startswith(ctl)
    assert bool(found.ctl) == bool(ctl) == (not found.problem)


def test_command_names_the_visitor(queue: Queue) -> None:
    client = queue.app(operator_password="p").test_client()  # noqa: S106
    headers = SAME_ORIGIN | basic("o'hara", "p")
    response = client.post("/commands?action=tube/resume", data={"tube": "mail"}, headers=headers)
    assert response.json is not None
    assert response.json["curl"].startswith("""curl -u 'o'"'"'hara':"$GREENSTALK_WEB_PASSWORD" --json""")


def test_long_body_is_a_problem(client_of_app: FlaskClient) -> None:
    form = {"tube": "mail", "pri": "0", "delay": "0", "ttr": "1", "body": "é" * 30_000}
    response = client_of_app.post("/commands?action=tube/put", data=form, headers=SAME_ORIGIN)
    assert response.json == {"curl": "", "ctl": "", "problem": "The values are too long for a command line."}


def test_url_has_the_prefix(queue: Queue) -> None:
    client = queue.app(url_prefix="/queue").test_client()
    response = client.post("/queue/commands?action=tube/resume", data={"tube": "mail"}, headers=SAME_ORIGIN)
    assert response.json is not None
    assert response.json["curl"].endswith("'http://localhost/queue/api/v1/tube/resume?tube=mail'")
