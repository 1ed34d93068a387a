"""The dashboard, the API and the metrics of a queue with shards in a database, at owners and at a standby.

Real servers: two shards, and one server more. Every page is asked for at each of them.
"""

from __future__ import annotations

import base64
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.message import Message
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

import pytest

from greenstalk_server.core.jobs.job_history import FIRST_OF_FRONT
from greenstalk_server.core.tube_shards import shard_of_tube
from tests.ctl.world import Done, run
from tests.support.cluster import Cluster
from tests.support.load import Connection, Gone
from tests.support.nodes import Node, Nodes, wait_until

SHARDS: Final = 2
QUEUE: Final = "cluster-web"
FLAGS: Final = ("--journal-name", QUEUE, "--shards", str(SHARDS), "--link", "127.0.0.1:0", "--lease", "2")
PASSWORD: Final = "secret"  # noqa: S105  of our own server
TOKEN: Final = "of-admins"  # noqa: S105
OPERATOR_TOKEN: Final = "of-operators"  # noqa: S105


class Unredirected(urllib.request.HTTPRedirectHandler):
    """Returns redirects as they are."""

    def redirect_request(self, *_: object) -> None:
        return None


OPENER: Final = urllib.request.build_opener(Unredirected)


class Site:
    """The servers of the queue: *owners* by shard, and the *standby*."""

    def __init__(self, cluster: Cluster, nodes: list[Node]) -> None:
        self._cluster: Cluster = cluster
        self.nodes: list[Node] = nodes
        self.owners: list[Node] = []
        self.standby: Node = nodes[0]

    def settle(self, nodes: list[Node]) -> None:
        """Wait until all *nodes* serve the dashboard of the whole queue, and note their roles."""
        query = f"""SELECT holder_name FROM greenstalk_journal
            WHERE name LIKE '{QUEUE}/%' AND holder IS NOT NULL AND lease_until > clock_timestamp() ORDER BY name"""  # noqa: S608

        def is_settled() -> bool:
            if not all(node.listens() for node in nodes):
                return False
            names = [str(name) for (name,) in self._cluster.ask(query)]
            self.owners = [node for name in names for node in nodes if name == f"127.0.0.1:{node.port}"]
            return len(self.owners) == SHARDS and all(self._is_whole(node) for node in nodes)

        wait_until(is_settled, lambda: "\n".join([node.log for node in nodes]))
        self.standby = next((node for node in nodes if node not in self.owners), self.standby)

    def _is_whole(self, node: Node) -> bool:
        status, _, body = ask(node, "GET", "/api/v1/servers")
        return status == 200 and {one["state"] for one in json.loads(body)["processes"]} <= {"serving", "standby"}


@pytest.fixture(scope="module")
def site(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    logs = tmp_path_factory.mktemp("logs")
    secrets = {"WEB_PASSWORD": PASSWORD, "API_TOKEN": TOKEN, "API_OPERATOR_TOKEN": OPERATOR_TOKEN}
    variables: Any = {f"GREENSTALK_{name}": secret for name, secret in secrets.items()}
    servers = [Node(f"web-{n}", cluster.url, logs, *FLAGS, **variables) for n in range(3)]
    with Nodes(servers) as nodes:
        found = Site(cluster, nodes.nodes)
        found.settle(nodes.nodes)
        yield found


def ask(node: Node, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Message, str]:
    """Return the status, the headers and the body of a response of *node*."""
    login = base64.b64encode(f"ann:{PASSWORD}".encode()).decode()
    origin = f"http://127.0.0.1:{node.web_port}"
    given = {"Authorization": f"Basic {login}", "Origin": origin} | headers
    given = {name: value for name, value in given.items() if value}
    request = urllib.request.Request(origin + path, body, given, method=method)  # noqa: S310  our own server
    try:
        with OPENER.open(request, timeout=20) as response:
            return response.status, response.headers, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()
    except OSError:
        return 0, Message(), ""


def exists(node: Node, path: str) -> bool:
    return ask(node, "GET", path)[0] == 200


def page(node: Node, path: str) -> str:
    status, _, body = ask(node, "GET", path)
    assert status == 200, body
    return body


def api(node: Node, method: str, path: str, body: object = None, **query: object) -> Any:
    sent = None if body is None else json.dumps(body).encode()
    target = f"/api/v1{path}" + (f"?{urlencode(query)}" if query else "")
    status, _, text = ask(node, method, target, sent, **{"Content-Type": "application/json"})
    assert 200 <= status < 300, text
    return json.loads(text) if text else None


def submit(node: Node, path: str, **fields: object) -> str:
    """Submit a form; return where the response redirects to."""
    status, headers, body = ask(node, "POST", path, urlencode(fields).encode())
    assert status == 303, body
    return headers["Location"]


def sign_in(node: Node, name: str) -> str:
    """Sign in, and return the token of the session."""
    form = urlencode({"name": name, "password": PASSWORD}).encode()
    status, headers, body = ask(node, "POST", "/login", form, Authorization="")
    assert status == 303, body
    found = re.match(r"greenstalk-\d+=([^;]+)", str(headers["Set-Cookie"]))
    assert found is not None
    return found[1]


def ask_in_session(node: Node, method: str, path: str, token: str) -> int:
    """Return the status of a response to a browser with a session; the name of its cookie has the port of *node*."""
    body = b"" if method == "POST" else None
    return ask(node, method, path, body, Authorization="", Cookie=f"greenstalk-{node.web_port}={token}")[0]


def tubes(prefix: str) -> list[str]:
    """Return a name of a tube for each shard."""
    names = [f"{prefix}{number}" for number in range(20)]
    return [next(name for name in names if shard_of_tube(name.encode(), SHARDS) == shard) for shard in range(SHARDS)]


def put(node: Node, tube: str) -> int:
    with Connection(node.port, 40.0) as client:
        return int(client.ask(b"put-in-tube %b 0 0 600 1\r\nx" % tube.encode()).split()[1])


def test_each_server_lists_all_tubes_and_changes_them(site: Site) -> None:
    names = tubes("list")
    for name in names:
        put(site.standby, name)
    before = len(api(site.nodes[0], "GET", "/audit", limit=1000)["entries"])
    for node in site.nodes:
        assert [tube["name"] for tube in api(node, "GET", "/tubes", q="list")["tubes"]] == sorted(names)
        for name in names:
            submit(node, "/tube/pause", tube=name, seconds=60, reason=node.name)
            assert node.name in page(node, f"/tube?tube={name}")
        assert all(name in page(node, "/?q=list") for name in names)

    def audited() -> set[int]:
        return {len(api(node, "GET", "/audit", limit=1000)["entries"]) - before for node in site.nodes}

    wait_until(lambda: audited() == {6}, lambda: f"{audited()}")


def test_each_server_shows_and_changes_each_job(site: Site) -> None:
    for node in site.nodes:
        for name in tubes("job"):
            id = put(node, name)
            assert f"Job {id} · {name}" in page(node, f"/job?id={id}")
            submit(node, "/job/bury", id=id)
            assert api(node, "GET", f"/jobs/{id}")["state"] == "buried"
            number = re.search(r"undo=(\d+)", submit(node, "/job/delete", id=id))
            assert number is not None
            assert ask(node, "GET", f"/job?id={id}")[0] == 404
            assert "Undo: " in page(node, submit(node, "/undo", change=number[1]))
            wait_until(partial(exists, node, f"/job?id={id}"), lambda: "not put back")


def test_metrics_of_owners_are_of_the_whole_queue_and_those_of_the_standby_its_own(site: Site) -> None:
    names = tubes("metric")
    for name in names:
        put(site.standby, name)
    for node in site.owners:
        found = page(node, "/metrics")
        assert all(f'greenstalk_tube_jobs{{state="ready",tube="{name}"}} 1.0' in found for name in names)
        assert "greenstalk_leader 1.0" in found
    text = page(site.standby, "/metrics")
    assert "greenstalk_leader 0.0" in text and "greenstalk_replication_lag_seconds" in text
    assert "greenstalk_tube_jobs" not in text


def test_each_server_lists_owners_and_standbys_as_processes(site: Site) -> None:
    listed = [*site.owners, site.standby]
    names = [name_of(each) for each in listed]
    pids = [node.process.pid for node in listed if node.process is not None]
    with Connection(site.standby.port, 40.0):
        for node in site.nodes:

            def named(node: Node = node) -> bool:
                return [one["server"] for one in api(node, "GET", "/servers")["processes"]] == names

            wait_until(named, lambda: "a server that has just started has no name")
            found = api(node, "GET", "/servers")
            assert [one["pid"] for one in found["processes"]] == pids
            assert [one["shard"] for one in found["processes"]] == [0, 1, None]
            assert (found["servers"][0]["role"], found["servers"][0]["shards"]) == ("leader", SHARDS)
            standby = found["processes"][-1]
            assert (standby["state"], standby["connections"]) == ("standby", 1)
            assert (standby["jobs"], standby["unlinked"]) == (0, [])
            shown = page(node, "/servers")
            assert "2 shards, up" in shown and str(standby["pid"]) in shown


def name_of(node: Node) -> str:
    return f"127.0.0.1:{node.port}"


def hold(client: Connection, tube: str) -> int:
    """Put a job into *tube*, and reserve it; return its id."""
    id = int(client.ask(b"put-in-tube %b 0 0 600 1\r\nx" % tube.encode()).split()[1])
    assert client.ask(b"watch %b" % tube.encode()).startswith(b"WATCHING ")
    assert client.reserve() == (id, b"x")
    return id


def listed(node: Node, client: Connection, **query: object) -> list[dict[str, Any]]:
    """Return *client* as *node* lists it; empty if it does not."""
    found = api(node, "GET", "/connections", limit=1000, **query)["connections"]
    return [one for one in found if one["address"] == f"127.0.0.1:{client.own_port}"]


def test_each_server_lists_connections_to_the_standby(site: Site) -> None:
    names = tubes("held")
    with Connection(site.standby.port, 40.0) as client, Connection(site.owners[0].port, 40.0) as other:
        ids = [hold(client, name) for name in names]
        for node in site.nodes:
            [one], [its] = listed(node, client), listed(node, other)
            assert one["number"] != its["number"] and (one["held"], one["is_producer"], one["is_worker"]) == (
                2,
                True,
                True,
            )
            assert {*names, "default"} == set(one["watches"])
            assert [listed(node, client, q=q) for q in (names[0], one["number"], one["address"])] == [[one]] * 3
            assert listed(node, client, q="held-by-nobody") == listed(node, other, q=names[1]) == []
            details = api(node, "GET", f"/connections/{one['number']}")
            assert {job["id"] for job in details["jobs"]} == set(ids)
            assert {api(node, "GET", f"/jobs/{id}")["held_by"] for id in ids} == {one["number"]}
            assert one["address"] in page(node, "/connections")
            assert all(f"/job?id={id}" in page(node, f"/connection?number={one['number']}") for id in ids)
            assert one["address"] in page(node, f"/tube?tube={names[1]}")


def test_counts_include_connections_to_the_standby(site: Site) -> None:
    def counts(node: Node) -> list[tuple[int, ...]]:
        """Return the numbers of connections, producers, workers and waiting ones, by the metrics and by the API."""
        metrics = dict(re.findall(r'greenstalk_connections\{role="(\w+)"\} (\d+)', page(node, "/metrics")))
        stats = api(node, "GET", "/server")["stats"]
        return [
            tuple(int(metrics[role]) for role in ("any", "producer", "worker", "waiting")),
            tuple(stats[f"current_{role}"] for role in ("connections", "producers", "workers", "waiting")),
        ]

    def await_counts(nodes: list[Node], *expected: int) -> None:
        wait_until(
            lambda: all(counts(node) == [expected, expected] for node in nodes),
            lambda: str([counts(node) for node in nodes]),
        )

    await_counts(site.owners[:1], 0, 0, 0, 0)
    with Connection(site.standby.port, 40.0) as client, Connection(site.standby.port, 40.0) as waiter:
        hold(client, tubes("counted")[1])
        waiter.send(b"reserve\r\n")
        await_counts(site.owners, 2, 1, 2, 1)
    await_counts(site.owners[:1], 0, 0, 0, 0)


def test_each_server_closes_connections_to_the_standby(site: Site) -> None:
    for node in site.nodes:
        for is_page in (False, True):
            with Connection(site.standby.port, 40.0) as client:
                id = hold(client, tubes("closed")[1])
                [one] = listed(node, client)
                number = one["number"]
                if is_page:
                    submit(node, "/connection/close", number=number, confirm=number)
                else:
                    api(node, "DELETE", f"/connections/{number}")
                with pytest.raises((Gone, OSError)):
                    client.ask(b"list-tube-used")
                assert ask(node, "GET", f"/connection?number={number}")[0] == 404
                assert listed(node, client) == []
                wait_until(lambda: api(node, "GET", f"/jobs/{id}")["state"] == "ready", lambda: "it is not ready")  # noqa: B023
                api(node, "DELETE", f"/jobs/{id}")
                entry = api(node, "GET", "/audit", what="connection/close", limit=1)["entries"][0]
                assert entry["details"] == {"number": number, "address": one["address"], "jobs": 1}


def ctl(node: Node, *words: str, token: str = TOKEN) -> Done:
    """Run greenstalkctl with the API of *node*."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GREENSTALKCTL_API_TOKEN", token)
        return run("--api", f"http://127.0.0.1:{node.web_port}", *words)


def test_greenstalkctl_shows_shards_and_servers_at_each_server(site: Site) -> None:
    owners = [name_of(node) for node in site.owners]
    for node in site.nodes:
        found = ctl(node, "cluster", "--json").json
        assert [(one["shard"], one["owner"]) for one in found["shards"]] == list(enumerate(owners))
        followed = [one["shard"] for one in found["shards"] for each in one["followers"]]
        standby = next(one for one in found["servers"] if one["server"] == name_of(site.standby))
        assert (standby["state"], [standby["shard"]]) == ("follows", followed)
        assert standby["behind"] < 5 and found["age"] < 5
    shown = ctl(site.nodes[0], "cluster").text
    for shard, owner in enumerate(owners):
        assert re.search(rf"^ *{shard} +{owner} +\d+ +", shown, re.MULTILINE), shown
        assert re.search(rf"^{owner} +leads shard {shard} +- ", shown, re.MULTILINE), shown
    assert re.search(rf"^{name_of(site.standby)} +follows shard \d +\d\.\d s ", shown, re.MULTILINE), shown
    assert re.search(rf"{name_of(site.standby)} \(\d\.\d s\)", shown), shown


def test_greenstalkctl_moves_a_shard_and_waits_for_it(site: Site) -> None:
    """The move of shard 0 moves the dashboard too."""
    former, target = site.owners[0], site.standby
    done = ctl(target, "cluster", "move", "0", name_of(target))
    assert (done.code, done.text) == (0, f"shard 0: {name_of(former)} has handed over to {name_of(target)}\n"), done.err
    site.settle(site.nodes)
    assert site.owners[0] is target and site.standby is former
    entry = api(target, "GET", "/audit", what="cluster/move", limit=1)["entries"][0]
    assert entry["details"] == {"shard": 0, "owner": name_of(former), "server": name_of(target)}


def test_wrong_move_of_a_shard_is_refused(site: Site) -> None:
    first, second = map(name_of, site.owners)
    for words, code, message in (
        (("7", first), 1, "there is no shard 7; the queue has the shards 0 to 1"),
        (("0", "nobody"), 1, "there is no process nobody; there are "),
        (("0", first), 4, f"{first} leads shard 0 already"),
        (("0", second), 4, f"{second} leads shard 1, and leads one at most"),
    ):
        done = ctl(site.standby, "cluster", "move", *words)
        assert done.code == code and f"The shard was not moved: {message}" in done.err, done.err
    refused = ctl(site.standby, "cluster", "move", "0", token=OPERATOR_TOKEN)
    assert refused.code == 4 and "403" in refused.err, refused.err


def test_live_updates_reach_a_browser_at_each_server(site: Site) -> None:
    names = tubes("live")
    for name in names:
        put(site.standby, name)
    login = base64.b64encode(f"ann:{PASSWORD}".encode()).decode()
    for node in site.nodes:
        url = f"http://127.0.0.1:{node.web_port}/events?page=overview"
        request = urllib.request.Request(url, headers={"Authorization": f"Basic {login}"})
        with urllib.request.urlopen(request, timeout=20) as events:  # noqa: S310  our own server
            lines = [events.readline().decode() for _ in range(4)]
        assert any(line.startswith("data: ") and all(name in line for name in names) for line in lines)


def test_session_holds_at_all_servers(site: Site) -> None:
    for node in site.nodes:
        token = sign_in(node, "bob")
        assert [ask_in_session(other, "GET", "/", token) for other in site.nodes] == [200] * 3
        assert ask_in_session(node, "POST", "/logout", token) == 303
        assert [ask_in_session(other, "GET", "/", token) for other in site.nodes] == [401] * 3


def test_standby_that_takes_over_shard_0_serves_the_dashboard(site: Site) -> None:
    home, successor = site.owners[0], site.standby
    token, id = sign_in(successor, "eve"), put(successor, tubes("taken")[0])
    with Connection(successor.port, 40.0) as client:
        [before] = listed(home, client)
        assert home.stop() == 0
        site.settle([node for node in site.nodes if node is not home])
        assert site.owners[0] is successor
        for node in site.owners:
            assert f"Job {id}" in page(node, f"/job?id={id}")
            assert ask_in_session(node, "GET", "/", token) == 200
            assert listed(node, client) == [before]
            assert 'greenstalk_connections{role="any"} 1.0' in page(node, "/metrics")
        with Connection(successor.port, 40.0) as later:
            [one] = listed(successor, later)
            assert one["number"] < FIRST_OF_FRONT <= before["number"]
            api(site.owners[1], "DELETE", f"/connections/{before['number']}")
            assert listed(successor, client) == []
    assert not re.search(r"ERROR (dashboard|history)", successor.log), successor.log
    home.start()
    site.settle(site.nodes)
    assert site.standby is home
