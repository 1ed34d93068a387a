"""Refused forms keep what was typed, and show the error beside its field. Large kicks ask for a confirmation."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape

import pytest
from flask.testing import FlaskClient

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.web.features.jobs.pages.actions import MAX_UNCONFIRMED
from greenstalk_server.web.framework.presets import DAY, PAUSE_PRESETS, TOMORROW, pause_seconds
from greenstalk_server.web.framework.refusals import FIELDS

from .conftest import Queue
from .forms import SAME_ORIGIN, done
from .table import Page

EVIL = '<script>"\N{RIGHT-TO-LEFT OVERRIDE}é'

PUT = {"tube": "mail", "body": "typed\n  text", "pri": "5", "delay": "6", "ttr": "70", "idp": "k1", "grp": "g1"}

WRONG = [
    ("tube/pause", {"tube": "mail", "seconds": "0", "reason": EVIL}, "seconds"),
    ("tube/pause", {"tube": "mail", "seconds": "77", "reason": "x" * 201}, "reason"),
    ("tube/kick", {"tube": "mail", "state": "buried", "count": "many"}, "count"),
    ("tube/clear", {"tube": "mail", "state": "ready", "confirm": EVIL}, "confirm"),
    *[("tube/put", PUT | {name: "-1"}, name) for name in ("pri", "delay", "ttr")],
    ("tube/put", PUT | {"body": "x" * 66_000}, "body"),
    *[("tube/put", PUT | {name: "a b"}, name) for name in ("idp", "grp", "aft", "con")],
    ("tube/put", PUT | {"idp-ttl": "-3"}, "idp-ttl"),
    ("tube/put", PUT | {"con": "c", "con-limit": "0"}, "con-limit"),
    ("sample/save", PUT | {"name": ""}, "name"),
    ("bulk/preview", {"tube": "mail", "state": "ready", "scope": "all", "action": "move", "to": "-no"}, "to"),
    ("bulk/preview", {"tube": "mail", "scope": "all", "action": "pri", "pri": "x"}, "pri"),
    ("bulk/preview", {"tube": "mail", "scope": "all", "action": "delay", "delay": ""}, "delay"),
    ("job/move", {"id": "1", "tube": EVIL}, "tube"),
    ("job/copy", {"id": "1", "delay": "soon"}, "delay"),
    ("tubes/preview", {"pattern": EVIL, "action": "pause", "seconds": "77", "reason": "why"}, "pattern"),
    ("tubes/preview", {"pattern": "a.*", "action": "pause", "seconds": "soon", "reason": "why"}, "seconds"),
    ("tubes/preview", {"pattern": "a.*", "action": "pause", "seconds": "77", "reason": "x" * 201}, "reason"),
]  # fmt: skip


@pytest.fixture
def client(queue: Queue, client: FlaskClient) -> FlaskClient:
    queue.put("mail", count=3)
    return client


def send(client: FlaskClient, path: str, form: dict[str, str]) -> tuple[int, str]:
    response = client.post(f"/{path}", data=form, headers=SAME_ORIGIN)
    return response.status_code, response.text


def form_of(html: str, path: str) -> str:
    """Return the HTML of the form, or of the forms, that *path* serves."""
    forms = re.findall(r"<form\b.*?</form>", html, re.DOTALL)
    found = [form for form in forms if f'action="/{path}"' in form or f'formaction="/{path}"' in form]
    assert found, path
    return "".join(found)


def shown(form: str, name: str) -> str:
    """Return the value of the visible field *name*."""
    area = re.search(rf'<textarea[^>]*name="{name}"[^>]*>\n?(.*?)</textarea>', form, re.DOTALL)
    if area is not None:
        return unescape(area[1])
    field = next(tag for tag in re.findall(r"<input[^>]*>", form) if f'name="{name}"' in tag and "hidden" not in tag)
    value = re.search(r' value="([^"]*)"', field)
    return unescape(value[1]) if value is not None else ""


@pytest.mark.parametrize(("path", "sent", "wrong"), WRONG)
def test_error_is_beside_the_field_and_the_form_is_kept(
    client: FlaskClient, path: str, sent: dict[str, str], wrong: str
) -> None:
    status, html = send(client, path, sent)
    assert status == 400
    form = form_of(html, path)
    endpoint = path.replace("/", "_")
    assert wrong in FIELDS[endpoint]
    beside = re.search(rf'id="{endpoint}-{wrong}-error" role="alert">(.*?)</p>', form, re.DOTALL)
    assert beside is not None and unescape(beside[1]).startswith(f"“{wrong}” ")
    field = next(tag for tag in re.findall(r"<(?:input|textarea)[^>]*>", form) if f'name="{wrong}"' in tag)
    assert "autofocus" in field and f'aria-describedby="{endpoint}-{wrong}-error"' in field
    for name, value in sent.items():
        if name not in ("tube", "id", "state", "scope", "action") or (path, name) == ("job/move", "tube"):
            assert shown(form, name) == value, name
    assert "banner refusal" not in html
    assert Page(html).runs_only_our_scripts()


def test_tested_forms_are_all_forms_with_fields() -> None:
    tested = {(path.replace("/", "_"), name) for path, _, name in WRONG}
    shared = {("sample_save", name) for name in ("body", "pri", "delay", "ttr")}  # the fields of tube_put
    only_with_dead_letters = {("bulk_preview", "rate")}
    fields = {(endpoint, name) for endpoint, names in FIELDS.items() for name in names}
    assert fields == tested | shared | only_with_dead_letters


def test_refused_view_does_not_speak_of_changes(queue: Queue, visit: Callable[..., FlaskClient]) -> None:
    client = visit(hides_bodies=True)
    view = client.get("/search?q=body:x")
    assert view.status_code == 403 and "you cannot search them." in view.text and "changed" not in Page(view.text).text
    change = client.post("/job/kick", data={"id": "x"}, headers=SAME_ORIGIN)
    assert change.status_code == 400 and "Nothing was changed." in change.text


def test_error_about_no_field_is_at_the_top(queue: Queue, client: FlaskClient) -> None:
    status, html = send(client, "bulk/preview", {"tube": "mail", "scope": "ticked", "action": "move", "to": "archive"})
    assert status == 400 and "No job is selected." in html and "banner refusal" in html
    form = form_of(html, "bulk/preview")
    assert shown(form, "to") == "archive" and '<option value="move" selected>' in form


# Kicks


def test_large_kick_asks_for_confirmation(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail", count=MAX_UNCONFIRMED + 50, delay=60)
    tube = queue.broker.tubes[b"mail"]
    status, html = send(client, "tube/kick", {"tube": "mail", "state": "delayed", "all": "1"})
    assert status == 200 and "Retry 150 jobs?" in html and "of 150 delayed" in html
    assert "No worker watches the tube" in html
    assert tube.delayed.count == 150, "nothing has been kicked"
    form = form_of(html, "tube/kick")
    sent = dict(re.findall(r'type="hidden" name="([^"]*)" value="([^"]*)"', form))
    assert sent == {"tube": "mail", "state": "delayed", "count": "150", "confirm": "1"}
    assert done(client.post("/tube/kick", data=sent, headers=SAME_ORIGIN)) == ("kicked", 150)


# Pauses


@pytest.mark.parametrize("preset", [one.key for one in PAUSE_PRESETS])
def test_preset_pauses_with_the_reason(queue: Queue, client: FlaskClient, preset: str) -> None:
    form = {"tube": "mail", "preset": preset, "seconds": "not used", "reason": "lunch"}
    seconds = done(client.post("/tube/pause", data=form, headers=SAME_ORIGIN))[1]
    assert seconds == (16 * 3600 if preset == TOMORROW else int(preset)), "it is 08:00 UTC"
    assert queue.broker.tubes[b"mail"].paused_until == queue.now + seconds * SECOND


@pytest.mark.parametrize(
    ("clock", "offset", "hours"),
    [(0, "0", 24), (23, "0", 1), (8, "60", 15), (23, "60", 24), (8, "-300", 21), (2, "-300", 3), (8, "840", 2)],
)
def test_tomorrow_begins_at_midnight_in_the_zone_of_the_principal(clock: int, offset: str, hours: int) -> None:
    now = (20_000 * DAY + clock * 3600) * SECOND
    assert pause_seconds({"preset": TOMORROW, "utc-offset": offset}, now) == hours * 3600


@pytest.mark.parametrize(
    "form", [{"preset": "5"}, {"preset": TOMORROW, "utc-offset": "841"}, {"preset": TOMORROW, "utc-offset": "x"}]
)
def test_invalid_preset_is_refused(queue: Queue, client: FlaskClient, form: dict[str, str]) -> None:
    status, html = send(client, "tube/pause", {"tube": "mail", **form})
    assert status == 400 and "banner refusal" in html
    assert not queue.broker.tubes[b"mail"].paused_until
