"""The dashboard, the API and the metrics of `--processes 3`: one web port about the whole queue.

One real server for the module. The names of tubes are such that each shard has some. Tests of the whole queue use
prefixes of their own, since other tests leave tubes behind.
"""

from __future__ import annotations

import base64
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote, urlencode

import psutil

from greenstalk_server.core.tube_shards import TubeShards
from greenstalk_server.web.auth.forwarding import PIECE
from tests.support.daemon import TIMEOUT, Daemon

SHARDS = 3
ADMIN, OPERATOR, VIEWER = "secret", "work", "look"


@dataclass
class Response:
    """A response whose body is read."""

    status: int
    location: str
    body: bytes


@dataclass
class Site:
    """The web port of a server with several processes."""

    daemon: Daemon
    port: int

    def tubes(self, prefix: str, count: int = 9) -> list[str]:
        """Return *count* names of tubes, of which each shard has some."""
        names = [f"{prefix}{number}" for number in range(count)]
        assert {shard_of(name) for name in names} == set(range(SHARDS))
        return names

    def put(self, tube: str, body: bytes = b"x", count: int = 1) -> list[int]:
        """Put jobs over the beanstalk protocol; return their ids."""
        request = b"put-in-tube %b 9 0 60 %d\r\n%b\r\n" % (tube.encode(), len(body), body)
        return [int(self.daemon.ask(request).split()[1]) for _ in range(count)]

    def ask(self, method: str, path: str, body: bytes | None = None, password: str = ADMIN, **headers: str) -> Response:
        login = base64.b64encode(f"somebody:{password}".encode()).decode()
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)) as connection:
            connection.request(method, path, body, {"Authorization": f"Basic {login}", **headers})
            with connection.getresponse() as response:
                return Response(response.status, response.headers.get("Location", ""), response.read())

    def page(self, path: str, status: int = 200, password: str = ADMIN) -> str:
        response = self.ask("GET", path, password=password)
        text = response.body.decode()
        assert response.status == status, text
        return text

    def submit(self, path: str, **fields: object) -> str:
        """Submit a form; return the location that the response redirects to."""
        origin = {"Origin": f"http://127.0.0.1:{self.port}", "Content-Type": "application/x-www-form-urlencoded"}
        response = self.ask("POST", path, urlencode(fields).encode(), **origin)
        assert response.status == 303, response.body
        return response.location

    def api(
        self, method: str, path: str, body: object = None, status: int = 200, password: str = ADMIN, **query: object
    ) -> Any:
        """Return the JSON of a response of the API; None if it is empty."""
        target = f"/api/v1{path}" + (f"?{urlencode(query)}" if query else "")
        sent = None if body is None else json.dumps(body).encode()
        response = self.ask(method, target, sent, password, **{"Content-Type": "application/json"})
        assert response.status == status, response.body
        return json.loads(response.body) if response.body else None

    def exists(self, path: str) -> bool:
        return self.ask("GET", path).status == 200

    def has_changed(self, task: str, jobs: int) -> bool:
        return bool(self.api("GET", f"/tasks/{task}")["changed"] == jobs)

    def ended(self, task: Any, password: str = ADMIN) -> Any:
        """Return *task* of the API as it is at its end."""
        until(lambda: self.api("GET", f"/tasks/{task['id']}", password=password)["state"] != "running")
        return self.api("GET", f"/tasks/{task['id']}", password=password)

    def live(self, page: str, **args: object) -> Any:
        return json.loads(self.page(f"/live?{urlencode({'page': page, **args})}"))

    def metric(self, name: str) -> dict[str, float]:
        """Return the values of the metric *name*, by labels."""
        lines = re.findall(rf"^greenstalk_{name}(?:{{(.*)}})? (\S+)$", self.page("/metrics"), re.MULTILINE)
        assert len(lines) == len({labels for labels, _ in lines})
        return {labels: float(value) for labels, value in lines}


def shard_of(tube: str) -> int:
    return TubeShards(SHARDS).shard_of(tube.encode())


def until(condition: Callable[[], bool]) -> None:
    """Return once *condition* is true: what another process sends to the home process arrives a moment later."""
    limit = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


# The whole queue


def test_overview_and_api_list_the_tubes_of_all_shards(site: Site) -> None:
    names = site.tubes("list")
    for place, name in enumerate(names):
        site.put(name, count=place + 1)
    state = site.live("overview", q="list", sort="ready", desc="1")
    assert [row[0] for row in state["rows"]["tubes"]] == names[::-1]
    assert [row[2] for row in state["rows"]["tubes"]] == [str(count) for count in range(9, 0, -1)]
    assert state["fields"]["summary"].startswith("9 of ")
    found, cursor = list[str](), dict[str, Any]()
    while True:
        part = site.api("GET", "/tubes", q="list", sort="ready", limit=4, **cursor)
        found += [tube["name"] for tube in part["tubes"]]
        if part["next_cursor"] is None:
            break
        cursor = {"cursor": part["next_cursor"]}
    assert found == names
    assert site.api("GET", "/tubes/find", q="list") == {"tubes": names, "matched": 9}
    assert [tube["name"] for tube in site.api("GET", "/tubes", q="default")["tubes"]] == ["default"]


def test_figures_and_metrics_are_sums_over_all_shards(site: Site) -> None:
    before = site.api("GET", "/server")
    jobs = site.metric("tube_jobs")
    names = site.tubes("sum")
    for name in names:
        site.put(name)
    after = site.api("GET", "/server")
    for field in ("current_jobs_ready", "total_jobs", "current_tubes"):
        assert after["stats"][field] - before["stats"][field] == 9
    assert site.live("overview")["fields"]["current_jobs_ready"] == str(after["stats"]["current_jobs_ready"])
    now = site.metric("tube_jobs")
    assert sum(now.values()) - sum(jobs.values()) == 9
    assert all(now[f'state="ready",tube="{name}"'] == 1 for name in names)
    assert site.metric("connections")['role="any"'] == 0


def test_history_of_the_server_adds_up_all_shards(site: Site) -> None:
    def counted() -> tuple[float, float]:
        """Return the puts of the last ten minutes, and the ready jobs."""
        series = site.api("GET", "/server/history", span="10min")["series"]
        assert not {"wait_p50", "run_p99"} & series.keys()
        return sum([value or 0 for value in series.get("put", [])]), series.get("ready", [0])[-1]

    def ready() -> int:
        return int(site.api("GET", "/server")["stats"]["current_jobs_ready"])

    until(lambda: counted()[1] == ready())
    before = counted()
    for name in site.tubes("history"):
        site.put(name)
    until(lambda: counted() == (before[0] + 9, before[1] + 9))
    shown = json.loads(site.page("/server/history.json?span=10min&compare=day"))["series"]
    assert shown["ready"][-1] == before[1] + 9
    assert 'id="charts"' in site.page("/")


def test_marks_of_all_shards_are_in_the_charts_of_the_server_and_of_each_tube(site: Site) -> None:
    names = site.tubes("mark")
    for name in names:
        site.put(name)
        site.api("POST", "/marks", {"text": f"deployed {name}", "tube": name}, 201)
        site.api("POST", "/tube/pause", {"seconds": 60}, tube=name)
    found = site.api("GET", "/marks")["marks"]
    assert [one["at"] for one in found] == sorted([one["at"] for one in found])
    assert {one["tube"] for one in found if one["kind"] == "pause"} >= set(names)
    assert len([one for one in found if one["kind"] == "start" and re.match("shard [012]: ", one["text"])]) >= SHARDS
    for name in names:
        texts = [one["text"] for one in json.loads(site.page(f"/tube/history.json?tube={name}"))["marks"]]
        assert texts[-2:] == [f"deployed {name}", "Paused for 1\N{NO-BREAK SPACE}min"]
    shown = [one["text"] for one in json.loads(site.page("/server/history.json"))["marks"]]
    assert "deployed" not in str(shown)  # a chart of the server has its own marks only


def test_policy_is_set_and_removed_on_every_shard(site: Site) -> None:
    names = site.tubes("policy")
    for name in names:
        site.put(name)
    site.api("PUT", "/policies/name", {"tubes": ["policy*"], "max_attempts": 3})
    found = [site.api("GET", "/tube", tube=name)["policy"]["max_attempts"]["value"] for name in names]
    assert found == [3] * 9
    site.api("DELETE", "/policies/name", status=204)
    assert [site.api("GET", "/tube", tube=name)["policy"] for name in names] == [{}] * 9


def test_dry_run_of_a_policy_counts_the_jobs_of_all_shards(site: Site) -> None:
    names = site.tubes("dry")
    for place, name in enumerate(names):
        site.put(name, count=place + 1)
    document = {"tubes": ["dry*", "default"], "max_jobs": 4, "overflow": "drop-oldest"}
    task = site.ended(site.api("POST", "/policies/dry/dry-run", document, 202))
    effect = task["effect"]
    assert (task["state"], effect["tubes"], effect["changed_tubes"]) == ("done", 10, 10)
    assert (effect["jobs"], effect["evicted"]) == (45, 1 + 2 + 3 + 4 + 5)
    assert set(effect["sample"]) == {*names, "default"}
    assert "15" in site.page(f"/policy?task={task['id']}")
    site.api("GET", "/policies/dry", status=404)


def test_change_of_many_tubes_is_of_all_shards_and_can_be_undone(site: Site) -> None:
    names = site.tubes("many")
    buried = []
    for name in names:
        buried += [id := site.put(name)[0]]
        site.api("POST", f"/jobs/{id}/bury")
        site.put(name)
    assert json.loads(site.page("/tubes/find?pattern=many*"))["text"] == "9 tubes match"
    assert set(json.loads(site.page("/tubes/find?q=many"))["tubes"]) == set(names)
    for action, body, noun in (("pause", {"seconds": 60, "reason": "together"}, "paused"), ("resume", None, "resumed")):
        task = site.ended(site.api("POST", f"/tubes/{action}?pattern=many*", body, 202))
        counted = task["tubes"]
        assert (counted["matched"], counted["tubes"], counted["jobs"], len(counted["sample"])) == (9, 9, 9, 9)
        done = site.ended(site.api("POST", f"/tasks/{task['id']}/run", status=202))
        assert (done["state"], done["changed"], noun in site.page(f"/task?id={done['id']}")) == ("done", 9, True)
        reasons = {site.api("GET", "/tube", tube=name)["pause_reason"] for name in names}
        assert reasons == ({"together"} if action == "pause" else {""})
    where = site.submit("/tubes/preview", pattern="many*", action="kick", state="buried")
    page = site.page(where)
    assert re.search("Retry 9.buried jobs of 9.tubes", page) and "This can be undone for a day" in page
    where = site.submit("/tubes/run", task=where.split("task=")[1])
    done = site.ended({"id": where.split("id=")[1]})
    assert (done["state"], done["changed"]) == ("done", 9)
    assert {site.api("GET", f"/jobs/{id}")["state"] for id in buried} == {"ready"}
    undone = site.ended({"id": site.submit("/undo", change=done["change_number"]).split("id=")[1]})
    assert (undone["state"], undone["changed"], undone["message"]) == ("done", 9, "")
    assert {site.api("GET", f"/jobs/{id}")["state"] for id in buried} == {"buried"}
    entries = [
        one for one in site.api("GET", "/audit", limit=1000)["entries"] if one["details"].get("pattern") == "many*"
    ]
    assert sorted([one["what"] for one in entries]) == ["tubes/end"] * 3 + ["tubes/run"] * 3
    assert {one["details"]["tubes"] for one in entries if one["what"] == "tubes/end"} == {9}


def test_policy_counts_its_tubes_on_all_shards(site: Site) -> None:
    for name in site.tubes("counted"):
        site.put(name)
    site.api("PUT", "/policies/counted", {"tubes": ["counted*"], "max_attempts": 3})
    assert re.search(r"counted\*.*data-label=\"Tubes\">9<", site.page("/policies"), re.DOTALL)
    site.api("DELETE", "/policies/counted", status=204)


def errors_of(site: Site, jobs: str = "buried") -> Any:
    """Return the grouped errors of all tubes."""
    query: dict[str, Any] = {"jobs": jobs, "refresh": "true"}
    while True:
        found = site.api("GET", "/errors", **query)
        if found["state"] != "running":
            assert found["state"] == "done"
            return found
        query = {"jobs": jobs}


def test_errors_of_all_shards_are_in_one_list(site: Site) -> None:
    names = site.tubes("error")
    for place, name in enumerate(names):
        for _ in range(place + 1):
            for error in ("no route to 7", f"only in {'abc'[shard_of(name)]}"):
                [id] = site.put(name, json.dumps({"error": error}).encode())
                site.api("POST", f"/jobs/{id}/bury")
    groups = {group["error"]: group for group in errors_of(site)["groups"]}
    group = groups["no route to #"]
    assert (group["jobs"], group["new"]) == (45, 45)
    assert group["tubes"] == names[: -len(group["tubes"]) - 1 : -1]
    assert (len(group["tubes"]), group["other_tubes"]) == (5, 4)
    assert site.api("GET", f"/jobs/{group['sample']}")["tube"] == names[-1]
    assert sum([groups[f"only in {letter}"]["jobs"] for letter in "abc"]) == 45
    page = site.page("/errors")
    assert "no route to #" in page and all(name in page for name in group["tubes"])
    until(lambda: "no route to #" in site.page("/attention"))  # once the conditions have been evaluated


def test_connections_of_all_processes_have_numbers_that_lead_to_them(site: Site) -> None:
    with ExitStack() as stack:
        socks = [
            stack.enter_context(socket.create_connection(("127.0.0.1", site.daemon.port), TIMEOUT)) for _ in range(12)
        ]
        for place, sock in enumerate(socks):
            sock.sendall(b"use connections%02d\r\n" % place)
            assert sock.recv(100)
        ports = {f"127.0.0.1:{sock.getsockname()[1]}" for sock in socks}
        found = site.api("GET", "/connections")["connections"]
        assert {one["address"] for one in found} >= ports
        assert len({one["number"] for one in found}) == len(found)
        for place in range(12):
            [one] = site.api("GET", f"/connections?q=connections{place:02}")["connections"]
            assert (one["uses"], one["address"] in ports) == (f"connections{place:02}", True)
        for one in found:
            assert site.api("GET", f"/connections/{one['number']}")["address"] == one["address"]
        seen = site.tubes("seen.watched")
        for sock, tube in zip(socks, seen, strict=False):
            sock.sendall(b"watch %b\r\n" % tube.encode())
            assert sock.recv(100)
        shown = {one["address"]: one for one in site.api("GET", "/connections", password=VIEWER)["connections"]}
        assert shown.keys() == {f"127.0.0.1:{sock.getsockname()[1]}" for sock in socks[: len(seen)]}
        assert sorted(one["watches"] for one in shown.values()) == sorted([tube] for tube in seen)
        for one in shown.values():
            assert site.api("GET", f"/connections/{one['number']}", password=VIEWER)["watches"] == one["watches"]
        assert {one["uses"] for one in shown.values()} == {None}
        worker, name = socks[0], site.tubes("held")[0]
        elsewhere = next(tube for tube in site.tubes("held") if shard_of(tube) != shard_of(name))
        for tube in (name, elsewhere):
            [id] = site.put(tube)
            worker.sendall(b"use %b\r\nwatch %b\r\nreserve-job %d\r\n" % (tube.encode(), tube.encode(), id))
            while b"\r\nx\r\n" not in worker.recv(1000):
                pass
        [number] = [one["number"] for one in found if one["address"].endswith(f":{worker.getsockname()[1]}")]
        one = site.api("GET", f"/connections/{number}")
        assert (one["uses"], one["held"]) == (elsewhere, 2)
        assert {name, elsewhere} <= set(one["watches"])
        assert {job["tube"] for job in one["jobs"]} == {name, elsewhere}
        assert {site.api("GET", f"/jobs/{job['id']}")["held_by"] for job in one["jobs"]} == {number}
        rows = site.page("/connections")
        assert all(port in rows for port in ports)
        victim = found[0]["number"]
        site.api("DELETE", f"/connections/{victim}", status=204)
        site.page(f"/connection?number={victim}", 404)


def test_conditions_and_buried_jobs_of_all_shards_are_shown_on_every_page(site: Site) -> None:
    names = site.tubes("buried")
    for name in names:
        [id] = site.put(name)
        site.api("POST", f"/jobs/{id}/bury")

    def found() -> set[str]:
        listed = site.api("GET", "/attention", limit=100)["conditions"]
        return {one["tube"] for one in listed if one["condition"] == "buried"}

    until(lambda: found() >= set(names))
    active = site.metric("attention")
    assert all(f'condition="buried",limit="",severity="failure",tube="{name}"' in active for name in names)
    badges = site.live("overview")["badges"]
    assert int(badges["alerts"]) >= 9
    assert int(badges["errors"]) >= 9
    assert {site.live("tube", tube=name)["badges"]["errors"] for name in names} == {badges["errors"]}
    assert names[0] in site.page("/attention")


def test_page_of_servers_lists_the_processes(site: Site) -> None:
    until(lambda: not any(one["unlinked"] for one in site.api("GET", "/servers")["processes"]))
    found = site.api("GET", "/servers")["processes"]
    children = {child.pid for child in psutil.Process(site.daemon.process.pid).children()}
    assert [one["shard"] for one in found] == [0, 1, 2]
    assert {one["pid"] for one in found} == children
    assert {one["state"] for one in found} == {"serving"}
    assert sum([one["tubes"] for one in found]) == site.api("GET", "/server")["stats"]["current_tubes"]
    shown = site.page("/servers")
    assert all(f"{one['pid']} <span" in shown for one in found)
    assert 'href="/servers"' in site.page("/")
    [this] = site.api("GET", "/servers")["servers"]
    assert (this["role"], this["shards"]) == ("single", 3)
    assert "3 processes, up" in shown


# One tube, one job


def test_pages_and_forms_of_a_tube_are_those_of_its_shard(site: Site) -> None:
    for name in site.tubes("page"):
        site.put(name)
        assert f"{name} · Greenstalk Server</title>" in site.page(f"/tube?tube={name}")
        where = site.submit("/tube/put", tube=name, pri=1, delay=0, ttr=5, body="hello")
        assert where.startswith(f"/tube?tube={name}&")
        assert site.live("tube", tube=name)["fields"]["count-ready"] == "2"
        site.submit("/tube/pause", tube=name, seconds=60, reason="by hand")
        assert site.api("GET", "/tube", tube=name)["pause_reason"] == "by hand"
        assert "by hand" in str(site.live("overview", q=name)["rows"])
        paused = site.api("POST", "/tube/pause", {"seconds": 60, "reason": "by a program"}, tube=name)
        assert paused["pause_reason"] == "by a program"


def test_pages_and_forms_of_a_job_are_those_of_its_shard(site: Site) -> None:
    for name in site.tubes("job"):
        [id] = site.put(name, b"a body")
        assert "a body" in site.page(f"/job?id={id}")
        site.submit("/job/bury", id=id)
        assert site.api("GET", f"/jobs/{id}")["state"] == "buried"
        assert site.ask("GET", f"/job/body?id={id}").body == b"a body"
        assert site.live("job", id=id)["parts"]["badges"]
        change = re.search(r"undo=(\d+)", site.submit("/job/delete", id=id))
        assert change is not None
        site.page(f"/job?id={id}", 404)
        assert int(change[1]) in [one["number"] for one in site.api("GET", "/changes")["changes"]]
        task = site.submit("/undo", change=change[1])
        assert "Undo: " in site.page(task)
        until(partial(site.exists, f"/job?id={id}"))


def test_changes_on_all_shards_are_in_one_audit_log(site: Site) -> None:
    ids = [site.put(name)[0] for name in site.tubes("audit")]
    for id in ids:
        site.api("POST", f"/jobs/{id}/bury")

    def found() -> set[object]:
        entries = site.api("GET", "/audit", limit=100)["entries"]
        return {one["details"]["id"] for one in entries if one["what"] == "job/bury" and one["who"] == "somebody"}

    until(lambda: found() >= set(ids))


def test_tasks_and_searches_of_a_tube_run_on_its_shard(site: Site) -> None:
    for name in site.tubes("task"):
        site.put(name, count=2)
        task = site.api("POST", "/searches", {"q": f"tube:{name}"}, 202)
        found = site.api("GET", f"/tasks/{task['id']}/jobs")
        assert {job["tube"] for job in found["jobs"]} == {name}
        assert len(found["jobs"]) == 2
        done = site.api("POST", "/bulk", {"action": "delete", "tube": name, "dry_run": False}, 202)
        until(partial(site.has_changed, done["id"], 2))
        listed = [one["id"] for one in site.api("GET", "/tasks")["tasks"]]
        assert {task["id"], done["id"]} <= set(listed)
        assert done["id"] in site.page("/task")


def test_large_response_of_another_shard_arrives_whole(site: Site) -> None:
    name = next(name for name in site.tubes("large") if shard_of(name) != 0)
    bodies = site.api("POST", "/jobs", [{"tube": name, "body": "y" * 60_000}] * 20, 201)
    assert len(bodies) == 20
    response = site.ask("GET", f"/api/v1/jobs/export?tube={name}&format=jsonl")
    lines = response.body.splitlines()
    assert [json.loads(line)["id"] for line in lines] == [job["id"] for job in bodies]
    assert sum(map(len, lines)) > 4 * PIECE


# Jobs over HTTP


def test_jobs_are_put_reserved_and_deleted_on_the_shards_of_their_tubes(site: Site) -> None:
    names = site.tubes("http")
    put = site.api("POST", "/jobs", [{"tube": name, "body": name} for name in names], 201)
    assert [job["tube"] for job in put] == names
    for name, job in zip(names, put, strict=True):
        assert job["id"] % SHARDS == shard_of(name)
    leases = [site.api("POST", "/reserve", {"tubes": [name]})["jobs"][0] for name in names[:8]]
    assert [lease["body"] for lease in leases] == names[:8]
    assert site.api("POST", "/reserve", {"tubes": names, "wait": 5})["jobs"][0]["tube"] == names[8]
    site.api("POST", "/leases/delete", {"token": leases[0]["token"]}, 204)
    tokens = [lease["token"] for lease in leases]
    assert site.api("POST", "/leases/delete-batch", {"tokens": tokens}) == {"deleted": 7, "lost": tokens[:1]}
    assert site.api("POST", "/reserve", {"tubes": names[:8], "wait": 0.1}) == {"jobs": []}


def test_invalid_job_of_a_list_prevents_all(site: Site) -> None:
    names = site.tubes("invalid")
    jobs = [{"tube": name} for name in names]
    problem = site.api("POST", "/jobs", [*jobs, {"tube": names[0], "body": "?", "encoding": "base64"}], 400)
    assert problem["errors"][0]["field"] == "[9].body"
    assert site.api("GET", "/tubes", q="invalid")["tubes"] == []


def is_in(site: Site, id: int, tube: str) -> bool:
    """Whether the job *id* is in *tube*, and no longer moving."""
    job = site.api("GET", f"/jobs/{id}")
    return bool(job["tube"] == tube and job["state"] == "ready")


def test_job_moves_to_the_tubes_of_all_shards_and_is_found_there(site: Site) -> None:
    names = {shard_of(name): name for name in site.tubes("move")}
    [id] = site.put(names[0])
    for name in (names[1], names[2], names[0], names[2]):
        site.api("POST", f"/jobs/{id}/move", {"tube": name})
        until(partial(is_in, site, id, name))
        assert name in site.page(f"/job?id={id}")
    site.api("DELETE", f"/jobs/{id}", status=204)
    site.api("GET", f"/jobs/{id}", status=404)


def test_job_that_is_moving_says_where_to_and_counts_in_the_metrics(site: Site) -> None:
    names = site.tubes("moving")
    with dead_process(site) as dead:
        [here, there] = [next(name for name in names if shard_of(name) == shard) for shard in (0, dead)]
        [id] = site.put(here)
        site.api("POST", f"/jobs/{id}/move", {"tube": there})
        job = site.api("GET", f"/jobs/{id}")
        assert (job["tube"], job["state"], job["held_by"], job["moving_to"]) == (here, "reserved", None, there)
        assert [event["kind"] for event in job["events"]] == ["moved"]
        page = site.page(f"/job?id={id}")
        assert f"The job is moving to the tube {there} (shard {dead})." in page
        assert not re.search("onnection 0|Held by|/job/delete|/job/move", page)
        assert f"moving to {there}" in site.page(f"/tube?tube={here}&state=reserved")
        assert site.ask("GET", f"/job/holder?id={id}").location == f"/job?id={id}"
        for action in ("bury", "release"):
            problem = site.api("POST", f"/jobs/{id}/{action}", {"force": True}, 409)
            assert f"it is moving to the tube “{there}” on another shard." in problem["detail"]
        assert site.metric("moving_jobs") == {"": 1}
        assert 0 < site.metric("moving_oldest_seconds")[""] < TIMEOUT
    until(partial(is_in, site, id, there))
    assert site.api("GET", f"/jobs/{id}")["moving_to"] is None
    assert (site.metric("moving_jobs"), site.metric("moving_oldest_seconds")) == ({"": 0}, {"": 0})


# Rights


def test_rights_of_the_visitor_hold_on_every_shard(site: Site) -> None:
    seen, hidden = site.tubes("seen."), site.tubes("hidden.")
    for name in (*seen, *hidden):
        site.put(name)
    found = site.api("GET", "/tubes", password=VIEWER)["tubes"]
    assert [tube["name"] for tube in found] == seen
    assert site.api("GET", "/server", password=VIEWER)["stats"]["current_jobs_ready"] == 9
    for name in seen:
        site.page(f"/tube?tube={quote(name)}", password=VIEWER)
        site.api("POST", "/tube/flush", status=403, password=VIEWER, tube=name)
    for name in hidden:
        site.page(f"/tube?tube={quote(name)}", 404, VIEWER)
    assert site.ask("GET", f"/tube?tube={seen[0]}", password="wrong").status == 401  # noqa: S106


# A shard without a process


def test_pages_of_a_dead_process_say_so_and_return(site: Site) -> None:
    names = site.tubes("dead")
    for name in names:
        site.put(name)

    def without() -> list[str]:
        """Return the tubes whose shard has no process."""
        return [name for name in names if site.ask("GET", f"/tube?tube={name}").status == 503]

    with dead_process(site) as dead:
        until(lambda: bool(without()))
        gone = without()
        assert {shard_of(name) for name in gone} == {dead}
        assert f"The process of shard {dead} does not answer" in site.page(f"/tube?tube={gone[0]}", 503)
        found = site.api("GET", "/tubes", q="dead")["tubes"]
        assert [tube["name"] for tube in found] == [name for name in names if name not in gone]
        states = {one["shard"]: one["state"] for one in site.api("GET", "/servers")["processes"]}
        assert [shard for shard, state in states.items() if state == "unreachable"] == [dead]
        missing = site.api("GET", "/connections/2147483647", status=404)
        assert missing["detail"].endswith("it has ended or never existed, or its process does not answer.")
    until(lambda: not without())
    site.page(f"/tube?tube={gone[0]}", 404)  # its jobs were in memory
    site.put(gone[0])
    site.page(f"/tube?tube={gone[0]}")


@contextmanager
def dead_process(site: Site) -> Iterator[int]:
    """Kill the process of the last shard, whose number is yielded, and let its parent restart it at the end."""
    parent = psutil.Process(site.daemon.process.pid)
    parent.suspend()
    try:
        psutil.Process(site.api("GET", "/servers")["processes"][-1]["pid"]).kill()
        yield SHARDS - 1
    finally:
        parent.resume()
