"""Actions of the pages as commands: for each form, the API request that does the same, by curl and greenstalkctl.

The functions of the action read the values from the form. All values are quoted for a POSIX shell; a text
with control characters is quoted for bash. Tokens and passwords appear only as names of variables.
"""

from __future__ import annotations

import json
import shlex
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode

from flask import Flask, jsonify, request
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import BadRequest, HTTPException
from werkzeug.wrappers import Response

from greenstalk_server.config.tables.targets import is_name
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import BURIED, DELAYED, MAX_ID, READY, SECOND, STATE_NAMES
from greenstalk_server.core.tags.tags import Tags
from greenstalk_server.web import fields
from greenstalk_server.web.api.framework.router import ROOT
from greenstalk_server.web.auth.access import visitor
from greenstalk_server.web.fields import MAX_NUMBER
from greenstalk_server.web.jobs.bodies import load_job_with_body
from greenstalk_server.web.jobs.matching import read_query
from greenstalk_server.web.jobs.query import Query, QueryError
from greenstalk_server.web.operations.bulk import Change, read_change, read_rate, ticked_ids
from greenstalk_server.web.operations.operations import MAX_REASON_LENGTH
from greenstalk_server.web.operations.tube_changes import KICK, PAUSE
from greenstalk_server.web.options import WebOptions
from greenstalk_server.web.pages.actions import find_job
from greenstalk_server.web.pages.alerts import read_silence
from greenstalk_server.web.pages.edit import read_changes
from greenstalk_server.web.pages.policy_form import submitted_form
from greenstalk_server.web.pages.saved_searches import MAX_NAME_LENGTH
from greenstalk_server.web.pages.tube_changes import read_pattern, read_tube_change

MAX_COMMAND: Final = 100_000
"""Maximum characters of a command: Linux accepts at most 128 KiB per argument."""

_ESCAPES: Final = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t", "\r": "\\r"}

Form = MultiDict[str, str]


@dataclass(frozen=True, slots=True)
class Call:
    """A request of the API.

    body            JSON of the request body; None if there is none.
    ctl             the equivalent arguments of greenstalkctl; None if there are none.
    ctl_input       the standard input of greenstalkctl.
    """

    method: str
    path: str
    query: Mapping[str, object] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    ctl: tuple[str, ...] | None = None
    ctl_input: str = ""


@dataclass(frozen=True, slots=True)
class Commands:
    """An action as commands. *problem*: the reason why a text is empty."""

    curl: str = ""
    ctl: str = ""
    problem: str = ""


class CommandPages:
    """Renders the actions of one broker's dashboard as commands."""

    def __init__(self, broker: Broker, options: WebOptions) -> None:
        self._broker: Broker = broker
        self._options: WebOptions = options
        self._calls: dict[str, Callable[[Form], Call]] = dict(CALLS)
        self._calls["job/edit"] = self._edit

    def init_app(self, app: Flask) -> None:
        """Add `/commands` to *app*, and the function `commands` to its templates."""
        app.add_url_rule("/commands", "commands", self.commands, methods=["POST"])
        app.jinja_env.globals["commands"] = self.of

    def commands(self) -> Response:
        """Serve `/commands?action=`: the submitted form as commands, in JSON. Changes nothing. May switch."""
        found = self._render(request.args.get("action", ""), request.form)
        return jsonify({"curl": found.curl, "ctl": found.ctl, "problem": found.problem})

    def of(self, action: str, values: Mapping[str, object]) -> Commands:
        """Return the commands for *action* with the *values* of its form."""
        form = Form()
        for name, value in values.items():
            form.setlist(name, [str(one) for one in (value if isinstance(value, list | tuple) else (value,))])
        return self._render(action, form)

    def _render(self, action: str, form: Form) -> Commands:
        make = self._calls.get(action)
        if make is None:
            raise BadRequest(f"“action” must be one of {', '.join(self._calls)}, not “{action[:40]}”.")
        try:
            call = make(form)
        except HTTPException as error:
            return Commands(problem=error.description or "The form is not complete.")
        if self._options.oidc is not None and not (self._has_tokens or self._has_passwords):
            return Commands(problem="The API needs a token (GREENSTALK_API_TOKEN), and this server has none.")
        curl = self._curl(call)
        if len(curl) > MAX_COMMAND:
            return Commands(problem="The values are too long for a command line.")
        if call.ctl is None:
            return Commands(curl, problem="greenstalkctl has no command for this.")
        if self._has_passwords and not self._has_tokens:
            return Commands(curl, problem="greenstalkctl needs an API token, and this server has none.")
        if any("\0" in word for word in call.ctl):
            return Commands(curl, problem="A body with a null character cannot be passed to greenstalkctl.")
        return Commands(curl, self._ctl(call))

    @property
    def _has_tokens(self) -> bool:
        options = self._options
        return bool(options.api_token or options.api_operator_token or options.api_viewer_token)

    @property
    def _has_passwords(self) -> bool:
        options = self._options
        return bool(options.password or options.operator_password or options.viewer_password or options.users)

    def _curl(self, call: Call) -> str:
        words = ["curl"]
        if call.method != "POST":
            words += ["-X", call.method]
        if self._has_tokens:
            words += ["-H", '"Authorization: Bearer $GREENSTALK_API_TOKEN"']
        elif self._has_passwords:
            name = visitor().name or self._options.user or "admin"
            words += ["-u", quoted(name) + ':"$GREENSTALK_WEB_PASSWORD"']
        if call.body is not None or call.method == "POST":
            words += ["--json", quoted(json.dumps(call.body or {}))]
        query = f"?{urlencode(call.query, quote_via=quote)}" if call.query else ""
        return " ".join([*words, quoted(f"{_home()}{ROOT}{call.path}{query}")])

    def _ctl(self, call: Call) -> str:
        assert call.ctl is not None
        words = ['GREENSTALKCTL_API_TOKEN="$GREENSTALK_API_TOKEN"'] if self._has_tokens else []
        words += ["greenstalkctl", "--api", quoted(_home()), *map(quoted, call.ctl)]
        given = f"printf %s {quoted(call.ctl_input)} | " if call.ctl_input else ""
        return given + " ".join(words)

    def _edit(self, form: Form) -> Call:
        """Return the call for the values of the job's form that differ from the job. May switch."""
        job, body = load_job_with_body(self._broker, lambda: find_job(self._broker, form))
        changes = read_changes(form, job, body, self._broker.max_job_size, visitor().sees_bodies)
        new: dict[str, Any] = {}
        if changes.pri is not None:
            new["pri"] = changes.pri
        if changes.ttr is not None:
            new["ttr"] = changes.ttr // SECOND
        if changes.delay is not None:
            new["delay"] = changes.delay // SECOND
        if changes.body is not None:
            new |= _body(changes.body)
        if changes.is_renewed:
            new["renew"] = True
        if not new:
            raise BadRequest("The form has no new values.")
        return Call("PATCH", f"/jobs/{job.id}", body=new | _force(form))


def quoted(value: str) -> str:
    """Return *value* as one word of a shell. A value with unprintable characters becomes a `$'…'` word of bash."""
    if value.isprintable():
        return shlex.quote(value)
    return "$'" + "".join([_ESCAPES.get(mark) or (mark if mark.isprintable() else _hex(mark)) for mark in value]) + "'"


def _hex(mark: str) -> str:
    return "".join([f"\\x{byte:02x}" for byte in mark.encode(errors="replace")])


def _home() -> str:
    return request.url_root.rstrip("/")


def _pause(form: Form) -> Call:
    tube = fields.tube_name(form).decode()
    seconds = fields.number(form, "seconds", 1, MAX_NUMBER)
    reason = fields.line(form, "reason", MAX_REASON_LENGTH)
    return Call(
        "POST",
        "/tube/pause",
        {"tube": tube},
        _pause_body(seconds, reason),
        ("pause", tube, *_pause_words(seconds, reason)),
    )


def _pause_body(seconds: float, reason: str) -> dict[str, Any]:
    return {"seconds": seconds} | ({"reason": reason} if reason else {})


def _pause_words(seconds: float, reason: str) -> list[str]:
    return [str(seconds), *([f"--reason={reason}"] if reason else [])]


def _resume(form: Form) -> Call:
    tube = fields.tube_name(form).decode()
    return Call("POST", "/tube/resume", {"tube": tube}, None, ("resume", tube))


def _kick(form: Form) -> Call:
    tube, state = fields.tube_name(form).decode(), STATE_NAMES[fields.state(form, (BURIED, DELAYED))]
    count = None if form.get("all") else fields.number(form, "count", 1, MAX_NUMBER)
    how_many = ("--all",) if count is None else ("--count", str(count))
    words = ("kick", "--tube", tube, "--state", state, *how_many)
    return Call("POST", "/tube/kick", {"tube": tube}, {"state": state, "count": count}, words)


def _clear(form: Form) -> Call:
    tube, state = fields.tube_name(form).decode(), STATE_NAMES[fields.state(form, (READY, DELAYED, BURIED))]
    return Call("POST", "/tube/clear", {"tube": tube}, {"state": state}, ("clear", tube, "--state", state))


def _put(form: Form) -> Call:
    job = _job_values(form)
    body = form.get("body", "").replace("\r\n", "\n")
    tags = fields.tags(form)
    new = job | {"body": body} | ({"tags": _tags(tags)} if tags is not None else {})
    options = [word for name in ("tube", "pri", "delay", "ttr") for word in (f"--{name}", str(job[name]))]
    for name, value in (_tags(tags) if tags is not None else {}).items():
        options += [f"--{'limit' if name == 'concurrency_limit' else name.replace('_', '-')}", str(value)]
    return Call("POST", "/jobs", {}, new, ("put", *options, "--", body))


def _job_values(form: Form) -> dict[str, Any]:
    return {
        "tube": fields.tube_name(form).decode(),
        "pri": fields.number(form, "pri", 0, MAX_NUMBER),
        "delay": fields.number(form, "delay", 0, MAX_NUMBER),
        "ttr": fields.number(form, "ttr", 1, MAX_NUMBER),
    }


def _tags(tags: Tags) -> dict[str, str | int]:
    """Return the *tags* that are set, in the form of the API."""
    given: dict[str, str | int] = {
        "idempotency_key": tags.idempotency_key.decode(),
        "idempotency_ttl": tags.idempotency_ttl // SECOND,
        "group": tags.group.decode(),
        "after": tags.after.decode(),
        "concurrency_key": tags.concurrency_key.decode(),
        "concurrency_limit": tags.concurrency_limit,
    }
    return {name: value for name, value in given.items() if value}


def _body(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body": b64encode(body).decode(), "encoding": "base64"}


def _force(form: Form) -> dict[str, bool]:
    """Return the field `force` if the form confirms a change of a reserved job."""
    return {"force": True} if form.get("confirm") else {}


def _on_job(verb: str, *ctl: str, can_force: bool = True) -> Callable[[Form], Call]:
    """Return the function for the action *verb* of a job; *ctl* is the command of greenstalkctl, if there is one."""

    def call(form: Form) -> Call:
        id = fields.job_id(form)
        force = _force(form) if can_force else {}
        return Call("POST", f"/jobs/{id}/{verb}", {}, force or None, (*ctl, str(id)) if ctl and not force else None)

    return call


def _delete(form: Form) -> Call:
    id, force = fields.job_id(form), bool(_force(form))
    return Call(
        "DELETE", f"/jobs/{id}", {"force": "true"} if force else {}, None, None if force else ("delete", str(id))
    )


def _move(form: Form) -> Call:
    return Call(
        "POST", f"/jobs/{fields.job_id(form)}/move", {}, {"tube": fields.tube_name(form).decode()} | _force(form)
    )


def _copy(form: Form) -> Call:
    return Call("POST", f"/jobs/{fields.job_id(form)}/copy", {}, {"delay": fields.number(form, "delay", 0, MAX_NUMBER)})


def _close(form: Form) -> Call:
    return Call("DELETE", f"/connections/{fields.number(form, 'number', 1, MAX_ID)}")


def _query(form: Form) -> Query:
    try:
        return read_query(form)
    except QueryError as error:
        raise BadRequest(f"“q” is not a valid query. {error}") from error


def _bulk(form: Form) -> Call:
    """Return the call that makes the change of the form at once, without a dry run."""
    query = _query(form)
    change, ids = read_change(form), ticked_ids(form)
    rate = read_rate(form) if change.key == "redrive" else 0.0
    is_forced = bool(form.get("force"))
    body: dict[str, Any] = {"action": change.key, **change.audit_details()}
    if ids is not None:
        body["ids"] = list(ids)
    if query.terms:
        body["q"] = str(query)
    elif ids is None:
        body["all"] = True
    body |= ({"rate": rate} if rate else {}) | ({"force": True} if is_forced else {}) | {"dry_run": False}
    return Call("POST", "/bulk", {}, body, None if is_forced else _bulk_words(change, query, ids, rate))


def _bulk_words(change: Change, query: Query, ids: tuple[int, ...] | None, rate: float) -> tuple[str, ...] | None:
    """Return the arguments of greenstalkctl; None if it has no command for this change."""
    is_whole_state = bool(query.tube and query.state) and query == Query().within(query.tube, query.state)
    if change.key in ("kick", "bury", "delete") and ids is not None:
        return (change.key, *map(str, ids))
    if change.key in ("kick", "bury", "delete") and is_whole_state:
        return (change.key, "--tube", query.tube, "--state", query.state, "--all")
    if change.key == "move" and ids is None and is_whole_state:
        return ("move", query.tube, str(change.audit_details()["to"]), "--state", query.state)
    if change.key == "redrive" and query.tube:
        words = ["redrive", query.tube]
        words += [f"--ids={','.join(map(str, ids))}"] if ids is not None else []
        words += [f"--query={query}"] if query != Query().within(query.tube, "") else []
        return (*words, *([f"--rate={rate:g}"] if rate else []))
    return None


def _tubes(form: Form) -> Call:
    change, pattern = read_tube_change(form), read_pattern(form)
    query, words, body = {"pattern": pattern, "dry_run": "false"}, [change.key, f"--pattern={pattern}"], None
    if change.key == PAUSE:
        body = _pause_body(change.seconds, change.reason)
        words += _pause_words(change.seconds, change.reason)
    elif change.key == KICK:
        body = {"state": STATE_NAMES[change.state]}
        words += ["--state", STATE_NAMES[change.state]]
    return Call("POST", f"/tubes/{change.key}", query, body, tuple(words))


def _set_policy(form: Form) -> Call:
    read, policy = submitted_form(form)
    if policy is None:
        raise BadRequest(" ".join([f"“{name}” {problem}." for name, problem in read.errors.items()]))
    document = policy.document()
    words = ("policy", "set", policy.name, "--file", "-")
    return Call("PUT", f"/policies/{policy.name}", {}, document, words, json.dumps(document))


def _remove_policy(form: Form) -> Call:
    name = form.get("name", "")
    return Call("DELETE", f"/policies/{quote(name, safe='')}", {}, None, ("policy", "delete", name))


def _save_search(form: Form) -> Call:
    name = fields.line(form, "name", MAX_NAME_LENGTH)
    if not name:
        raise BadRequest("“name” is missing. Give the search a name.")
    return Call("POST", "/saved-searches", {}, {"name": name, "q": str(_query(form))})


def _test_receiver(form: Form) -> Call:
    receiver = form.get("receiver", "")
    if not is_name(receiver):
        raise BadRequest("“receiver” must be the name of a receiver.")
    return Call("POST", "/alerts/test", {}, {"receiver": receiver})


def _silence(form: Form) -> Call:
    tubes, kind, seconds, reason = read_silence(form)
    given = {"tubes": tubes, "condition": kind, "reason": reason}
    return Call(
        "POST", "/alerts/silences", {}, {"seconds": seconds, **{key: text for key, text in given.items() if text}}
    )


def _end_silence(form: Form) -> Call:
    return Call("DELETE", "/alerts/silences", {"id": fields.number(form, "id", 1, MAX_ID)})


CALLS: Final[Mapping[str, Callable[[Form], Call]]] = {
    "tube/pause": _pause,
    "tube/resume": _resume,
    "tube/kick": _kick,
    "tube/clear": _clear,
    "tube/put": _put,
    "tubes/preview": _tubes,
    "job/kick": _on_job("kick", "kick", can_force=False),
    "job/bury": _on_job("bury", "bury"),
    "job/release": _on_job("release"),
    "job/delete": _delete,
    "job/move": _move,
    "job/copy": _copy,
    "job/redrive": _on_job("redrive", can_force=False),
    "connection/close": _close,
    "bulk/preview": _bulk,
    "search/save": _save_search,
    "policy/set": _set_policy,
    "policy/remove": _remove_policy,
    "alerts/test": _test_receiver,
    "alerts/silence": _silence,
    "alerts/silence/end": _end_silence,
}
"""The API call of each action, by the path of its form. `job/edit` needs the job: see CommandPages."""
