"""The boundary between tubes: an operator of `billing.*` sees nothing of other tubes, and changes nothing in them.

TABLE has requests for every route of the app: a new route without an entry fails a test. Each request is sent twice,
about an object of a hidden tube, and about one that does not exist. Both responses must be the same, apart from the
name or number in the request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
from flask import Flask
from flask.testing import FlaskClient

from greenstalk_server.config.tables.roles import Rights, Role
from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs.job import RESERVED, SECOND
from greenstalk_server.core.operations import connecting, editing, finishing, policy_changes, putting, reserving
from greenstalk_server.core.policies.policy import parse_policy
from greenstalk_server.web.app import Dashboard
from tests.support import invariants

from .conftest import Queue
from .forms import SAME_ORIGIN
from .test_guard import basic

ADMIN = "change-it"
OPERATOR = "operate-it"

HIDDEN, ABSENT = "covert.payroll", "absent.payroll"
TRACES = ("covert.", "MaRkEr", "TWFSa0Vy", "4d61526b4572", "4d 61 52 6b 45 72")
"""The beginning of the names of hidden tubes, and the marker in the bodies of their jobs, as text, base64 and hex."""

BODY = b"MaRkEr"

FIRST_ID = 7000
"""Ids of jobs are larger than all other numbers on the pages."""

LIMITED = Rights(view=frozenset({"billing.*"}), operate=frozenset({"billing.*"}))

JSON = dict[str, Any]


class Probe(NamedTuple):
    """A request. `{tube}`, `{id}` and so on in it are replaced by names of hidden or absent objects.

    form, json      the body, if any.
    has_twin        the responses for hidden and absent objects must be equal.
    """

    path: str
    form: Mapping[str, str] | None = None
    json: JSON | list[JSON] | None = None
    has_twin: bool = True


def form(path: str, **values: str) -> Probe:
    return Probe(path, form=values)


def of_job(path: str, **values: str) -> list[Probe]:
    """Return requests of a form about a ready, a reserved and a buried job, and about a dead letter."""
    ids = ("{id}", "{held}", "{buried}", "{letter}")
    confirm = {"confirm": "1", "force": "1", "version": "0"}
    return [form(path, id=id, **confirm, **values) for id in ids]


def api_of_job(path: str, body: JSON | None = None) -> list[Probe]:
    ids = ("{id}", "{held}", "{buried}", "{letter}")
    return [Probe(f"/api/v1/jobs/{id}{path}", json=body) for id in ids]


def api(path: str, body: JSON | list[JSON] | None = None, *, has_twin: bool = True) -> Probe:
    return Probe(f"/api/v1{path}", json=body, has_twin=has_twin)


NEW_JOB = {"tube": "{tube}", "pri": "1", "delay": "0", "ttr": "9", "body": "x", "name": "mine"}
POLICY = {"tubes": ["billing.*"], "dead_letter": "billing.failed"}

TABLE: dict[str, list[Probe]] = {
    "GET /": [Probe("/"), Probe("/?q={tube}"), Probe("/?sort=ready&desc=1"), Probe("/?sort=attention")],
    "GET /tube": [Probe(f"/tube?tube={{tube}}&state={s}&q=pri:1") for s in ("ready", "reserved", "delayed", "buried")]
    + [Probe("/tube?tube={tube}&sort=age&desc=1"),
       Probe("/tube?tube=billing.failed"), Probe("/tube?tube=billing.invoice&sample=hidden&state=reserved")],
    "GET /suggest": [Probe("/suggest?q=tube:"), Probe("/suggest?q=body.", has_twin=False),
                     Probe("/suggest?q=tube:{tube} body."), Probe("/suggest?q=error:&tube={tube}"),
                     Probe("/suggest?q=body.secret:&tube={tube}")],
    "GET /tube/oldest": [Probe("/tube/oldest?tube={tube}")],
    "GET /tube/history": [Probe("/tube/history?tube={tube}"), Probe("/tube/history?tube=billing.invoice")],
    "GET /tube/history.json": [Probe("/tube/history.json?tube={tube}"),
                               Probe("/tube/history.json?tube=billing.invoice&span=10min")],
    "GET /server/history.json": [Probe("/server/history.json")],
    "POST /mark/add": [form("/mark/add", text="x", tube="{tube}"), form("/mark/add", text="x")],
    "GET /api/v1/marks": [api("/marks"), api("/marks?tube={tube}")],
    "POST /api/v1/marks": [api("/marks", {"text": "x", "tube": "{tube}"}), api("/marks", {"text": "x"})],
    "GET /job": [Probe("/job?id={id}"), Probe("/job?id={held}"), Probe("/job?id={own_letter}", has_twin=False)],
    "GET /job/body": [Probe("/job/body?id={id}")],
    "GET /job/form": [Probe("/job/form?id={id}")],
    "GET /job/holder": [Probe("/job/holder?id={held}")],
    "GET /find": [Probe("/find?q={id}"), Probe("/find?q=tube:{tube}")],
    "GET /search": [Probe("/search"), Probe("/search?q=pri:%3C9999"), Probe("/search?q=tube:{tube}"),
                    Probe("/search?q=MaRkEr", has_twin=False), Probe("/search?task={task}"),
                    Probe("/search?q=id:{id}")],
    "GET /export": [Probe("/export?format=csv"), Probe("/export?format=jsonl"),
                    Probe("/export?format=jsonl&tube={tube}"), Probe("/export?format=csv&q=id:{id}")],
    "GET /connections": [Probe("/connections"), Probe("/connections?q={tube}"), Probe("/connections?sort=held")],
    "GET /connection": [Probe("/connection?number={number}"), Probe("/connection?number={shared}", has_twin=False)],
    "GET /task": [Probe("/task"), Probe("/task?id={task}"), Probe("/task?id={dry_run}")],
    "GET /bulk": [Probe("/bulk?task={dry_run}")],
    "GET /changes": [Probe("/changes")],
    "GET /policies": [Probe("/policies"), Probe("/policies?q={tube}")],
    "GET /policy": [Probe("/policy?name=hidden"), Probe("/policy"), Probe("/policy?task={preview}")],
    "GET /tubes/change": [Probe("/tubes/change?task={tubes}")],
    "GET /tubes/find": [Probe("/tubes/find?q={tube}"), Probe("/tubes/find?q=o"), Probe("/tubes/find?pattern={tube}"),
                        Probe("/tubes/find?pattern=*")],
    "POST /tubes/preview": [form("/tubes/preview", pattern="{tube}", action="pause", seconds="9"),
                            form("/tubes/preview", pattern="*", action="kick", state="buried")],
    "POST /tubes/run": [form("/tubes/run", task="{tubes}")],
    "GET /api/v1/tubes/find": [api("/tubes/find?q={tube}"), api("/tubes/find?q=o")],
    "POST /api/v1/tubes/pause": [api("/tubes/pause?pattern=*&dry_run=false", {"seconds": 9})],
    "POST /api/v1/tubes/resume": [api("/tubes/resume?pattern=*&dry_run=false")],
    "POST /api/v1/tubes/kick": [api("/tubes/kick?pattern=*&dry_run=false")],
    "GET /errors": [Probe("/errors"), Probe("/errors?task={task}"), Probe("/errors?jobs=dead-letters")],
    "GET /tube/errors": [Probe("/tube/errors?tube={tube}"), Probe("/tube/errors?task={task}"),
                         Probe("/tube/errors?tube=billing.failed")],
    "POST /zone": [form("/zone", zone="local")],
    "GET /alerts": [Probe("/alerts")],
    "GET /attention": [Probe("/attention"), Probe("/attention?tubes={tube}")],
    "POST /attention/acknowledge": [
        form("/attention/acknowledge", tubes="{tube}", kind="", preset="3600", reason="x"),
        form("/attention/acknowledge", tubes="*", kind="", preset="3600", reason="x"),
        form("/attention/acknowledge", tubes="covert.*", kind="", preset="3600", reason="x"),
    ],
    "POST /attention/acknowledge/end": [
        form("/attention/acknowledge/end", id="1"), form("/attention/acknowledge/end", id="2"),
    ],
    "POST /alerts/test": [form("/alerts/test", receiver="x")],
    "GET /api/v1/alerts": [api("/alerts")],
    "GET /api/v1/attention/acknowledgements": [api("/attention/acknowledgements")],
    "POST /api/v1/attention/acknowledgements": [
        api("/attention/acknowledgements", {"tubes": "{tube}", "seconds": 60, "reason": "x"}),
    ],
    "DELETE /api/v1/attention/acknowledgements": [
        api("/attention/acknowledgements?id=1"), api("/attention/acknowledgements?id=2"),
    ],
    "POST /api/v1/alerts/test": [api("/alerts/test", {"receiver": "x"})],
    "GET /servers": [Probe("/servers")],
    "GET /api/v1/servers": [api("/servers")],
    "GET /api/v1/cluster": [api("/cluster")],
    "POST /api/v1/cluster/move": [api("/cluster/move", {"shard": 0})],
    "POST /servers/move": [form("/servers/move", shard="0")],
    "POST /search/save": [form("/search/save", name="new", q="tube:{tube}")],
    "POST /search/delete": [form("/search/delete", name="hidden")],
    "GET /api/v1/saved-searches": [api("/saved-searches")],
    "POST /api/v1/saved-searches": [api("/saved-searches", {"name": "new", "q": "tube:{tube}"})],
    "DELETE /api/v1/saved-searches": [api("/saved-searches?name=hidden")],
    "GET /api/v1/errors": [api("/errors"), api("/errors?jobs=dead_letters")],
    "GET /api/v1/tube/errors": [api("/tube/errors?tube={tube}"), api("/tube/errors?tube=billing.failed")],
    "GET /login": [Probe("/login?next=/tube?tube={tube}")],
    "POST /login": [form("/login", name="eve", next="/tube?tube={tube}")],
    "POST /logout": [form("/logout")],
    "GET /sessions": [Probe("/sessions")],
    "POST /sessions/end": [form("/sessions/end", number="1"), form("/sessions/end", all="1")],
    "GET /api/v1/sessions": [api("/sessions")],
    "DELETE /api/v1/sessions": [api("/sessions")],
    "DELETE /api/v1/sessions/<number>": [api("/sessions/1")],
    "GET /audit": [Probe("/audit"), Probe("/audit?tube={tube}")],
    "GET /audit/export": [Probe("/audit/export?format=jsonl"), Probe("/audit/export?format=csv")],
    "GET /metrics": [Probe("/metrics")],
    "GET /healthz": [Probe("/healthz")],
    "GET /readyz": [Probe("/readyz")],
    "GET /static/<path:filename>": [Probe("/static/style.css")],
    "GET /live": [Probe(f"/live?page={page}") for page in ("overview", "connections", "api")]
    + [Probe("/live?page=tube&tube={tube}"), Probe("/live?page=job&id={id}"), Probe("/live?page=task&id={task}"),
       Probe("/live?page=search&task={task}"), Probe("/live?page=connection&number={number}"),
       Probe("/live?page=connection&number={shared}", has_twin=False), Probe("/live?page=api&tube={tube}"),
       Probe("/live?page=tube&tube=billing.invoice&state=reserved")],
    "GET /events": [Probe("/events?page=overview"), Probe("/events?page=tube&tube={tube}"),
                    Probe("/events?page=connections")],
    "POST /theme": [form("/theme", theme="dark")],
    "POST /tube/pause": [form("/tube/pause", tube="{tube}", seconds="9")],
    "POST /tube/resume": [form("/tube/resume", tube="{tube}")],
    "POST /tube/kick": [form("/tube/kick", tube="{tube}", state="buried", all="1")],
    "POST /tube/clear": [form("/tube/clear", tube="{tube}", state="ready", confirm="{tube}")],
    "POST /tube/put": [Probe("/tube/put", form=NEW_JOB)],
    "POST /job/kick": of_job("/job/kick"),
    "POST /job/bury": of_job("/job/bury"),
    "POST /job/release": of_job("/job/release"),
    "POST /job/delete": of_job("/job/delete"),
    "POST /job/move": [*of_job("/job/move", tube="billing.invoice"), form("/job/move", id="{own}", tube="{tube}")],
    "POST /job/edit": of_job("/job/edit", pri="1", ttr="1", delay="", body="x", encoding="text"),
    "POST /job/copy": of_job("/job/copy", delay="0"),
    "POST /job/redrive": [*of_job("/job/redrive"), form("/job/redrive", id="{own_letter}")],
    "POST /connection/close": [form("/connection/close", number=n, confirm=n) for n in ("{number}", "{shared}")],
    "POST /sample/save": [Probe("/sample/save", form=NEW_JOB),
                          Probe("/sample/save", form=NEW_JOB | {"tube": "billing.invoice", "name": "hidden"},
                                has_twin=False)],
    "POST /sample/delete": [form("/sample/delete", tube="{tube}", name="hidden"),
                            form("/sample/delete", tube="billing.invoice", name="hidden")],
    "POST /bulk/preview": [
        form("/bulk/preview", scope="all", q="", action="delete"),
        form("/bulk/preview", scope="all", q="", tube="{tube}", action="kick"),
        form("/bulk/preview", scope="ticked", id="{id}", q="", action="delete"),
        form("/bulk/preview", scope="all", q="", tube="billing.invoice", action="move", to="{tube}"),
        form("/bulk/preview", scope="all", q="", tube="billing.failed", action="redrive"),
    ],
    "POST /bulk/run": [form("/bulk/run", task="{dry_run}", force="1", confirm="3")],
    "POST /undo": [form("/undo", change="{change}")],
    "POST /task/cancel": [form("/task/cancel", id="{task}")],
    "POST /policy/preview": [form("/policy/preview", name="new", tubes="{tube}", max_attempts="1")],
    "POST /policy/set": [form("/policy/set", name="new", tubes="{tube}", max_attempts="1", task="{preview}")],
    "POST /policy/remove": [form("/policy/remove", name="hidden")],
    "GET /api/v1/attention": [api("/attention")],
    "GET /api/v1/audit": [api("/audit")],
    "GET /api/v1/connections": [api("/connections"), api("/connections?q={tube}"), api("/connections?sort=held")],
    "GET /api/v1/connections/<number>": [api("/connections/{number}"), api("/connections/{shared}", has_twin=False)],
    "GET /api/v1/events": [api("/events"), api("/events?tube={tube}")],
    "GET /api/v1/jobs": [api("/jobs"), api("/jobs?tube={tube}"), api("/jobs?tube={tube}&state=ready"),
                         api("/jobs?q=id:{id}"), api("/jobs?state=reserved")],
    "GET /api/v1/jobs/<id>": api_of_job(""),
    "GET /api/v1/jobs/<id>/body": api_of_job("/body"),
    "GET /api/v1/jobs/<id>/failure": api_of_job("/failure"),
    "GET /api/v1/jobs/export": [api("/jobs/export"), api("/jobs/export?format=csv&tube={tube}")],
    "GET /api/v1/openapi.json": [api("/openapi.json")],
    "GET /api/v1/policies": [api("/policies")],
    "GET /api/v1/policies/<name>": [api("/policies/hidden")],
    "GET /api/v1/changes": [api("/changes")],
    "POST /api/v1/changes/<number>/undo": [api("/changes/{change}/undo", {})],
    "GET /api/v1/samples": [api("/samples")],
    "GET /api/v1/server": [api("/server")],
    "GET /api/v1/server/history": [api("/server/history")],
    "GET /api/v1/tasks": [api("/tasks")],
    "GET /api/v1/tasks/<task>": [api("/tasks/{task}"), api("/tasks/{dry_run}"), api("/tasks/{preview}")],
    "GET /api/v1/tasks/<task>/jobs": [api("/tasks/{task}/jobs")],
    "GET /api/v1/tube": [api("/tube?tube={tube}"), api("/tube?tube=billing.invoice"), api("/tube?tube=billing.failed")],
    "GET /api/v1/tubes": [api("/tubes"), api("/tubes?q={tube}"), api("/tubes?sort=ready&desc=true")],
    "GET /api/v1/tubes/history": [api("/tubes/history?tube={tube}")],
    "POST /api/v1/bulk": [
        api("/bulk", {"action": "delete", "all": True, "dry_run": False, "force": True}),
        api("/bulk", {"action": "delete", "tube": "{tube}", "dry_run": False}),
        api("/bulk", {"action": "move", "to": "{tube}", "tube": "billing.invoice", "dry_run": False}),
    ],
    "POST /api/v1/redrive": [api("/redrive", {"all": True}), api("/redrive", {"tube": "{tube}"}),
                             api("/redrive", {"tube": "billing.failed"})],
    "POST /api/v1/jobs": [api("/jobs", {"tube": "{tube}", "body": "x"}),
                          api("/jobs", [{"tube": "billing.invoice"}, {"tube": "{tube}"}])],
    "PATCH /api/v1/jobs/<id>": api_of_job("", {"pri": 7, "force": True}),
    "DELETE /api/v1/jobs/<id>": api_of_job("?force=true"),
    "POST /api/v1/jobs/<id>/bury": api_of_job("/bury", {"force": True}),
    "POST /api/v1/jobs/<id>/copy": api_of_job("/copy"),
    "POST /api/v1/jobs/<id>/kick": api_of_job("/kick"),
    "POST /api/v1/jobs/<id>/move": [*api_of_job("/move", {"tube": "billing.invoice", "force": True}),
                                    api("/jobs/{own}/move", {"tube": "{tube}"})],
    "POST /api/v1/jobs/<id>/redrive": [*api_of_job("/redrive"), api("/jobs/{own_letter}/redrive")],
    "POST /api/v1/jobs/<id>/release": api_of_job("/release", {"force": True}),
    **{f"POST /api/v1/leases/{verb}": [api(f"/leases/{verb}", {"token": "{token}"}, has_twin=False)]
       for verb in ("bury", "delete", "release", "show", "touch")},
    "POST /api/v1/leases/delete-batch": [api("/leases/delete-batch", {"tokens": ["{token}"]}, has_twin=False)],
    "POST /api/v1/reserve": [api("/reserve", {"tubes": ["{tube}"]}),
                             api("/reserve", {"tubes": ["billing.empty", "{tube}"]})],
    "POST /api/v1/samples": [api("/samples", {"name": "new", "tube": "{tube}"})],
    "DELETE /api/v1/samples": [api("/samples?name=hidden")],
    "POST /api/v1/searches": [api("/searches", {"q": "pri:<9999"}), api("/searches", {"q": "MaRkEr"}, has_twin=False)],
    "POST /api/v1/tube/clear": [api("/tube/clear?tube={tube}", {"state": "ready"})],
    "POST /api/v1/tube/flush": [api("/tube/flush?tube={tube}")],
    "POST /api/v1/tube/kick": [api("/tube/kick?tube={tube}")],
    "POST /api/v1/tube/pause": [api("/tube/pause?tube={tube}", {"seconds": 9})],
    "POST /api/v1/tube/resume": [api("/tube/resume?tube={tube}")],
    "POST /api/v1/tasks/<task>/run": [api("/tasks/{dry_run}/run", {"force": True})],
    "DELETE /api/v1/tasks/<task>": [api("/tasks/{task}")],
    "POST /api/v1/policies/<name>/dry-run": [api("/policies/new/dry-run", POLICY)],
    "PUT /api/v1/policies/<name>": [api("/policies/new", POLICY)],
    "DELETE /api/v1/policies/<name>": [api("/policies/hidden")],
    "DELETE /api/v1/connections/<number>": [api("/connections/{number}"), api("/connections/{shared}")],
}  # fmt: skip
"""Requests by method and rule."""


class World:
    """A broker with jobs in billing tubes and in hidden tubes, and its dashboard.

    hidden, absent  values of the placeholders of a Probe.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.app: Flask = queue.app(password=ADMIN, operator_password=OPERATOR, roles=ROLES)
        self.dashboard: Dashboard = self.app.extensions["dashboard"]
        self.client: FlaskClient = self.app.test_client()
        self.as_admin = SAME_ORIGIN | basic("ann", ADMIN)
        self.as_operator = SAME_ORIGIN | basic("bea", OPERATOR)
        for _ in range(FIRST_ID):
            queue.broker.allocate_id()
        self._put_jobs()
        self.dashboard.attention.tick()
        queue.now += 39000 * SECOND  # the hidden tubes have had no consumers for an hour
        self.dashboard.attention.tick()
        self._use_dashboard()

    def fill(self, value: Any, names: Mapping[str, str]) -> Any:
        """Return *value* with its placeholders replaced."""
        if isinstance(value, str):
            return re.sub(r"\{(\w+)\}", lambda match: names[match[1]], value)
        if isinstance(value, Mapping):
            return {key: self.fill(each, names) for key, each in value.items()}
        return [self.fill(each, names) for each in value] if isinstance(value, list) else value

    def send(self, method: str, probe: Probe, names: Mapping[str, str], headers: Mapping[str, str]) -> tuple[int, str]:
        """Send *probe*; return the status, and the headers and the body with the names removed."""
        path, body = self.fill(probe.path, names), self.fill(probe.form, names)
        response = self.client.open(
            path, method=method, data=body, json=self.fill(probe.json, names), headers=dict(headers)
        )
        chunks = response.iter_encoded()
        is_stream = response.mimetype == "text/event-stream"
        text = b"".join([next(chunks), next(chunks)] if is_stream else chunks).decode()
        response.close()
        text = f"{response.headers.get('Location')}\n{text}"
        for name in [names[key] for key in placeholders(probe)]:
            text = re.sub(rf"(?<![\w.]){re.escape(name)}(?![\w.])", "…", text)
        self.wait_for_tasks()
        return response.status_code, re.sub(r"(?<=[=/\"])[0-9a-f]{16}(?!\w)", "ID", text)

    def wait_for_tasks(self) -> None:
        for task in [*self.dashboard.tasks._kept.values()]:
            task.wait(30)

    def state(self) -> Any:
        """Return everything in hidden tubes that a request could change, and what belongs to the whole server."""
        invariants.check(self.queue.broker)
        broker, dashboard = self.queue.broker, self.dashboard
        jobs = [
            (job.id, job.state, job.pri, job.body, job.ttr, job.deadline if job.state == RESERVED else 0, job.kicks)
            for job in broker.jobs.values()
            if not job.tube.name.startswith(b"billing.")
        ]
        return (
            sorted(jobs),
            {name: tube.paused_until for name, tube in broker.tubes.items() if not name.startswith(b"billing.")},
            sorted(client.number for client in broker.clients),
            sorted(broker.policies.policies),
            {name: sample.tube for name, sample in self.saved.samples.items() if sample.tube.startswith("covert.")},
            sorted(self.saved.searches),
            len(dashboard.acknowledgements.all()),
            [mark for mark in dashboard.marks.find(None, 0, 2**63) if not mark.tube.startswith("billing.")],
            [(task.id, task.is_cancelled) for task in dashboard.tasks._kept.values() if task.who.name == "ann"],
        )

    def _put_jobs(self) -> None:
        queue, broker = self.queue, self.queue.broker
        for name, document in (
            ("hidden", {"tubes": ["covert.*"], "dead_letter": "billing.failed", "copy_to": ["covert.copies"]}),
            ("own", {"tubes": ["billing.invoice"], "dead_letter": "covert.letters"}),
        ):
            policy_changes.set_policy(broker, parse_policy(name, document | {"max_attempts": 1}), queue.now)
        self.jobs = {name: self._put(name) for name in ("covert.payroll", "covert.letters", "billing.invoice")}
        self.letters = {tube: self._dead_letter(tube) for tube in ("covert.payroll", "billing.invoice")}
        self.hidden_client, self.shared_client = queue.connect(), queue.connect()
        connecting.use(broker, self.hidden_client, HIDDEN.encode())
        connecting.watch(broker, self.hidden_client, HIDDEN.encode())
        for tube in ("billing.invoice", "covert.payroll"):
            connecting.watch(broker, self.shared_client, tube.encode())
            reserving.reserve_job(broker, self.shared_client, self.jobs[tube][1], queue.now)
        connecting.use(broker, self.shared_client, b"covert.payroll")
        editing.pause_tube(broker, b"covert.letters", 39000 * SECOND, queue.now)

    def _put(self, tube: str) -> list[int]:
        """Put a ready, a reserved and a buried job; return their ids."""
        client: Client = self.queue.connect()
        broker, now = self.queue.broker, self.queue.now
        connecting.use(broker, client, tube.encode())
        ids = [broker.allocate_id() for _ in range(3)]
        for id in ids:
            assert putting.put(broker, client, id, 10, 0, 9000 * SECOND, BODY if "covert" in tube else b"bill", now) > 0
        finishing.bury_job(broker, ids[2], now)
        connecting.disconnect(broker, client, now)
        return ids

    def _dead_letter(self, tube: str) -> int:
        """Let a job of *tube* fail until it is a dead letter; return its id."""
        broker, now = self.queue.broker, self.queue.now
        client = self.queue.connect()
        connecting.use(broker, client, tube.encode())
        id = broker.allocate_id()
        assert putting.put(broker, client, id, 10, 0, 9000 * SECOND, b"bill" if tube == HIDDEN else BODY, now) > 0
        reserving.reserve_job(broker, client, id, now)
        finishing.release(broker, client, id, 10, 0, now)
        connecting.disconnect(broker, client, now)
        job = broker.jobs[id]
        assert job.dead_letter, job.tube.name
        return id

    def _use_dashboard(self) -> None:
        """Leave traces as an admin: tasks, a sample, an audit log, and a lease."""
        post = self.client.post
        new = NEW_JOB | {"tube": HIDDEN, "name": "hidden", "body": BODY.decode()}
        assert post("/sample/save", data=new, headers=self.as_admin).status_code == 303
        for name, query in (("hidden", "tube:covert.payroll"), ("hidden prefix", "tube:covert.*")):
            kept = post("/search/save", data={"name": name, "q": query}, headers=self.as_admin)
            assert kept.status_code == 303, kept.text
        for pattern in (HIDDEN, "covert.*"):
            acknowledged = {"tubes": pattern, "kind": "", "preset": "3600", "reason": "known"}
            assert post("/attention/acknowledge", data=acknowledged, headers=self.as_admin).status_code == 303
        found = post("/api/v1/searches", json={"q": "tube:covert.* MaRkEr"}, headers=self.as_admin)
        dry_run = post("/api/v1/bulk", json={"action": "delete", "tube": HIDDEN}, headers=self.as_admin)
        preview = post("/api/v1/policies/new/dry-run", json={"tubes": ["covert.*"]}, headers=self.as_admin)
        tubes = post("/api/v1/tubes/pause?pattern=covert.*", json={"seconds": 9}, headers=self.as_admin)
        assert [response.status_code for response in (found, dry_run, preview, tubes)] == [202] * 4
        reserved = post("/api/v1/reserve", json={"tubes": ["covert.payroll"]}, headers=self.as_admin).json["jobs"][0]
        self.saved = self.dashboard.saved
        letter = self.letters["billing.invoice"]
        payroll = self.jobs["covert.payroll"]
        own = self.jobs["billing.invoice"][0]
        gone = self._deleted_id()
        hidden_ready = self._put("covert.payroll")[0]
        common = {"own": str(own), "own_letter": str(self.letters[HIDDEN]), "shared": str(self.shared_client.number)}
        deleted = self._put(HIDDEN)[0]
        assert self.client.delete(f"/api/v1/jobs/{deleted}", headers=self.as_admin).status_code == 204
        (change,) = self.client.get("/api/v1/changes", headers=self.as_admin).get_json()["changes"]
        self.hidden = common | {
            "tube": HIDDEN, "id": str(hidden_ready), "held": str(payroll[1]), "buried": str(payroll[2]),
            "letter": str(letter), "number": str(self.hidden_client.number), "task": found.json["id"],
            "dry_run": dry_run.json["id"], "preview": preview.json["id"], "tubes": tubes.json["id"],
            "token": reserved["token"], "change": str(change["number"]),
        }  # fmt: skip
        self.absent = common | {
            "tube": ABSENT, **dict.fromkeys(("id", "held", "buried", "letter"), str(gone)), "number": "999",
            "task": "0" * 16, "dry_run": "0" * 16, "preview": "0" * 16, "tubes": "0" * 16, "token": "A" * 44,
            "change": "1111111111111",
        }  # fmt: skip
        self.wait_for_tasks()

    def _deleted_id(self) -> int:
        (id,) = self.queue.put("billing.gone")
        finishing.delete_job(self.queue.broker, id, self.queue.now, False)
        return id


ROLES = {"admin": Role("admin", Rights(is_admin=True)), "operator": Role("operator", LIMITED)}


LISTS_OF_TASKS = ("GET /task", "GET /api/v1/tasks")
"""Routes that show the tasks that the operator began earlier, with the names in them."""


@pytest.fixture(scope="module")
def unchanged_world() -> World:
    """A world for tests that change nothing but the operator's own tasks."""
    return World(Queue())


@pytest.fixture
def world(queue: Queue) -> World:
    return World(queue)


def routes(app: Flask) -> dict[str, str]:
    """Return the endpoint of each method and rule."""
    return {
        f"{method} {rule.rule}": rule.endpoint
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }


def placeholders(probe: Probe) -> list[str]:
    return sorted(set(re.findall(r"\{(\w+)\}", f"{probe.path}{probe.form}{probe.json}")))


def traces(text: str) -> list[str]:
    return [trace for trace in TRACES if trace in text]


def test_table_covers_every_route(queue: Queue) -> None:
    assert set(TABLE) == set(routes(queue.app()))


@pytest.mark.parametrize("route", TABLE)
def test_operator_of_some_tubes_sees_and_changes_nothing_else(unchanged_world: World, route: str) -> None:
    world = World(Queue()) if route in LISTS_OF_TASKS else unchanged_world
    method = route.partition(" ")[0]
    before = world.state()
    for probe in TABLE[route]:
        hidden = world.send(method, probe, world.hidden, world.as_operator)
        assert hidden[0] < 500, hidden
        searched = hidden[1].replace("MaRkEr", "") if "MaRkEr" in f"{probe.path}{probe.json}" else hidden[1]
        assert traces(searched) == [], probe
        assert world.state() == before, probe
        absent = world.send(method, probe, world.absent, world.as_operator)
        assert world.state() == before, probe
        if probe.has_twin and placeholders(probe):
            assert hidden == absent, probe


WITHOUT_TRACES = frozenset(
    {
        *("/healthz", "/readyz", "/static/<path:filename>", "/login", "/sessions", "/job/holder", "/find", "/search"),
        "/tube/oldest",
        *("/server/history.json", "/tube/history", "/tube/history.json", "/events"),
        *(f"/api/v1{path}" for path in ("/openapi.json", "/server", "/server/history", "/tubes/history")),
        *(
            f"/api/v1{path}"
            for path in ("/cluster", "/sessions", "/tasks/<task>", "/alerts", "/errors", "/tube/errors")
        ),
        "/api/v1/jobs/<id>/failure",
    }
)
"""Routes that show no names, or only those in the request."""


def test_admin_sees_the_traces(world: World) -> None:
    """Shows that the test above can fail: admins see hidden tubes on the other pages."""
    pages = {route: probes for route, probes in TABLE.items() if route.startswith("GET ")}
    shown = {
        route.removeprefix("GET ")
        for route, probes in pages.items()
        if any(traces(world.send("GET", probe, world.hidden, world.as_admin)[1]) for probe in probes)
    }
    assert {route.removeprefix("GET ") for route in pages} - shown <= WITHOUT_TRACES


def test_operator_acts_on_own_tubes(world: World) -> None:
    ready, _, buried = world.jobs["billing.invoice"]
    client, broker = world.client, world.queue.broker
    assert broker.totals.buried > 1
    for headers, count in ((world.as_operator, 1), (world.as_admin, broker.totals.buried)):
        assert f'data-badge="errors">{count}<' in client.get("/search", headers=headers).text
    for path, values in (
        ("/tube/pause", {"tube": "billing.invoice", "seconds": "60"}),
        ("/tube/put", NEW_JOB | {"tube": "billing.new"}),
        ("/job/kick", {"id": str(buried)}),
        ("/job/move", {"id": str(ready), "tube": "billing.other"}),
    ):
        response = client.post(path, data=values, headers=world.as_operator)
        assert response.status_code == 303, response.text
    assert broker.tubes[b"billing.invoice"].paused_until
    assert broker.jobs[ready].tube.name == b"billing.other"
    assert broker.tubes[b"billing.new"].ready.count == 1
    page = client.get("/tube?tube=billing.invoice", headers=world.as_operator).text
    assert "/tube/pause" in page
    assert client.get("/tube?tube=covert.payroll", headers=world.as_operator).status_code == 404


@pytest.mark.parametrize("tag", ["group", "after", "concurrency_key"])
def test_operator_of_some_tubes_puts_no_keys_of_the_whole_server(world: World, tag: str) -> None:
    job = {"tube": "billing.new", "body": "x", "tags": {tag: "shared"}}
    for body in (job, [job]):
        refused = world.client.post("/api/v1/jobs", json=body, headers=world.as_operator)
        assert refused.status_code == 403 and "operates every tube" in refused.text
        assert b"billing.new" not in world.queue.broker.tubes
    own = job | {"tags": {"idempotency_key": "mine"}}
    assert world.client.post("/api/v1/jobs", json=own, headers=world.as_operator).status_code == 201
    assert world.client.post("/api/v1/jobs", json=job, headers=world.as_admin).status_code == 201


def test_operator_cannot_use_endpoints_of_admins(world: World) -> None:
    """An operator of all tubes sets no policies, closes no connections and reads no audit log."""
    queue = world.queue
    client = queue.app(operator_password=OPERATOR).test_client()
    operator = SAME_ORIGIN | basic("bea", OPERATOR)
    number = str(world.hidden_client.number)
    for path, values in (
        ("/connection/close", {"number": number, "confirm": number}),
        ("/policy/remove", {"name": "hidden"}),
    ):
        response = client.post(path, data=values, headers=operator)
        assert response.status_code == 403
        assert "Only admins may do this" in response.text
    assert client.get("/audit", headers=operator).status_code == 403
    assert client.get("/policies", headers=operator).status_code == 200
    put = client.post("/api/v1/jobs", data=json.dumps({"tube": "any"}), content_type="application/json",
                      headers=operator)  # fmt: skip
    assert put.status_code == 201
