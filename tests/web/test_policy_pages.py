"""Policies in the dashboard: the list, the form with its preview, and the pages of tubes, jobs and connections."""

from __future__ import annotations

import re
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from greenstalk_server.core.jobs.job import READY, SECOND
from greenstalk_server.core.operations import connecting, finishing, policy_changes, reserving
from greenstalk_server.core.policies.policy import SETTINGS, parse_policy
from greenstalk_server.core.policies.policy_counts import PolicyCounts
from greenstalk_server.web.changes import tasks
from greenstalk_server.web.features.policies.pages.policy_form import form_of, submitted_form
from greenstalk_server.web.features.policies.setting_texts import COUNT_TEXTS, GROUPS, SETTING_TEXTS, value_text
from tests.support.world import slots

from .conftest import Queue, visiting
from .forms import post
from .table import Page
from .test_policy_operations import fail, set_policy, settle

FORM = {"name": "mail", "tubes": "mail.*", "priority": "0"}


def shown(client: FlaskClient, path: str, **query: object) -> Page:
    response = client.get(path, query_string=query or None)
    assert response.status_code == 200, response.text
    return Spaced(response.text)


class Spaced(Page):
    """A page in whose text an element ends a word."""

    def handle_endtag(self, tag: str) -> None:
        super().handle_endtag(tag)
        self.text += " "


def words(page: Page) -> str:
    """Return the text of *page* with single spaces, and none before a full stop or a comma."""
    return re.sub(r" ([.,])", r"\1", " ".join(page.text.split()))


def preview(client: FlaskClient, **form: str) -> tuple[str, str]:
    """Preview a policy; return the id of the task, and the page."""
    response = post(client, "/policy/preview", **FORM | form)
    assert response.status_code == 303, response.text
    (task,) = parse_qs(urlsplit(response.headers["Location"]).query)["task"]
    page = client.get(response.headers["Location"])
    assert page.status_code == 200
    return task, page.text


def save(client: FlaskClient, **form: str) -> TestResponse:
    """Preview a policy, and save it."""
    task, page = preview(client, **form)
    assert 'formaction="/policy/set"' in page
    return post(client, "/policy/set", task=task, **FORM | form)


def field(html: str, name: str) -> str | None:
    """Return the value of the form field *name*."""
    for tag, attributes in Page(html).elements:
        if tag in ("input", "select") and attributes.get("name") == name:
            return attributes.get("value")
    raise AssertionError(name)


def errors(html: str) -> dict[str, str]:
    """Return the error beside each field, and check that the field refers to it."""
    found = re.findall(r'<p class="field-error" id="(\w+)-error" role="alert">(.*?)</p>', html)
    for key, _ in found:
        described = [one for tag, one in Page(html).elements if one.get("name") == key and tag != "meta"]
        (invalid,) = [one for one in described if one.get("aria-invalid") == "true"]
        assert f"{key}-error" in (invalid["aria-describedby"] or "")
    return {key: unescape(error) for key, error in found}


def dead_letter(queue: Queue, tube: str = "mail", **document: Any) -> int:
    """Return the id of a job of *tube* that has become a dead letter after one attempt."""
    set_policy(queue, tube, tubes=[tube], max_attempts=1, dead_letter="failed", **document)
    (id,) = queue.put(tube)
    fail(queue, id, 1)
    assert queue.broker.jobs[id].tube.name == b"failed"
    return id


# The list


def test_list_shows_policies_of_both_sources_and_the_tubes_they_match(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail.high")
    queue.put("mail.low")
    queue.put("other")
    every = parse_policy("all", {"tubes": ["*"], "priority": -1, "expire_after": 86400})
    policy_changes.set_file_policies(queue.broker, [every], queue.now)
    set_policy(queue, "mail", tubes=["mail.*", "letters"], max_attempts=5, dead_letter="failed")
    page = words(shown(client, "/policies"))
    assert "2 policies" in page
    assert "all * 4 -1 Expire after 1 d configuration file" in page.replace("\xa0", " ")  # with the tube `default`
    assert "mail mail.*, letters 2 0 Maximum attempts 5, Dead-letter tube failed run time" in page


# The form


def test_every_setting_has_a_label_a_group_and_a_field(client: FlaskClient) -> None:
    assert list(SETTING_TEXTS) == list(SETTINGS)
    assert [key for _, keys in GROUPS for key in keys] == list(SETTINGS)
    names = {attributes.get("name") for _, attributes in shown(client, "/policy").elements}
    assert names >= {"name", "tubes", "priority", *SETTINGS}
    assert {name for _, name in COUNT_TEXTS} == set(slots(PolicyCounts()))


EVERY = {
    "max_attempts": 5, "dead_letter": "", "retry_delay": 0.5, "retry_delay_max": "1h30m", "retry_factor": 1.5,
    "retry_jitter": 0.1, "expire_after": 86400, "buried_expire_after": "7d", "expired_to": "dead-letter",
    "max_jobs": 10, "max_bytes": "10MB", "overflow": "drop-oldest", "max_reserved": 20, "rate": 100, "rate_burst": 7,
    "unique": "body", "unique_for": "waiting", "copy_to": ["audit", "search"], "ttr_min": 1, "ttr_max": 60,
    "max_job_size": 65536,
}  # fmt: skip


@pytest.mark.parametrize("changed", [{}, {"dead_letter": "failed", "copy_to": [], "unique_for": 60, "max_jobs": 0}])
def test_form_returns_the_document_it_was_opened_with(changed: dict[str, Any]) -> None:
    document: dict[str, object] = {"tubes": ["mail.*", "*.x"], "priority": -3, **EVERY, **changed}
    assert set(document) == {"tubes", "priority", *SETTINGS}
    policy = parse_policy("mail", document)
    form, again = submitted_form(form_of("mail", policy.document(), "").values)
    assert not form.errors
    assert again == policy


def test_preview_counts_the_effect_and_changes_nothing(queue: Queue, client: FlaskClient) -> None:
    for id in queue.put("mail.a", count=3):
        fail(queue, id, 2)
    queue.put("mail.b", count=4)
    queue.put("other")
    _, html = preview(client, max_attempts="2", dead_letter="failed", max_reserved="3")
    page = words(Spaced(html))
    assert "Nothing has been saved yet" in page
    assert "Tubes that match 2" in page
    assert "Would become dead letters 3" in page
    assert "Ready jobs that would wait 1" in page
    assert "mail.a mail.b" in page
    assert [field(html, key) for key in ("name", "max_attempts", "dead_letter")] == ["mail", "2", "failed"]
    assert not queue.broker.policies.policies
    assert queue.broker.tubes[b"mail.a"].ready.count == 3


def test_previewed_policy_is_saved_and_applied(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail.a")
    response = save(client, max_attempts="5", retry_delay="1m30s")
    assert response.status_code == 303
    assert "The policy was saved." in shown(client, response.headers["Location"]).text
    assert queue.broker.policies.policies["mail"].settings == {"max_attempts": 5, "retry_delay": "1m30s"}
    settle(queue)
    page = words(shown(client, "/tube", tube="mail.a"))
    assert "Maximum attempts 5 from mail" in page


def test_save_without_a_preview_of_the_same_values_previews_them(queue: Queue, client: FlaskClient) -> None:
    task, _ = preview(client, max_attempts="5")
    for form in ({"max_attempts": "6", "task": task}, {"max_attempts": "5"}, {"max_attempts": "5", "task": "none"}):
        response = post(client, "/policy/set", **FORM | form)
        assert urlsplit(response.headers["Location"]).path == "/policy"
        assert "Nothing has been saved yet" in shown(client, response.headers["Location"]).text
    assert not queue.broker.policies.policies


def test_invalid_values_are_kept_and_each_has_its_error_beside_it(queue: Queue, client: FlaskClient) -> None:
    bad = {"tubes": "mail.* b@d", "priority": "high", "max_attempts": "-1", "retry_jitter": "0.1", "ttr_min": "9",
           "ttr_max": "5", "expire_after": "<b>", "unique_for": "forever", "unique": "body"}  # fmt: skip
    for path in ("/policy/preview", "/policy/set"):
        response = post(client, path, **FORM | bad)
        assert response.status_code == 400
        found = errors(response.text)
        assert set(found) == {"tubes", "priority", "max_attempts", "retry_jitter", "ttr_max", "expire_after",
                              "unique_for"}  # fmt: skip
        assert found["max_attempts"].startswith("max_attempts -1: must be a whole number of attempts")
        assert "'mail" not in found["tubes"]
        assert {key: field(response.text, key) for key in bad if key not in ("tubes", "unique")} == {
            key: value for key, value in bad.items() if key not in ("tubes", "unique")
        }
        assert "mail.* b@d</textarea>" in response.text
        assert '<option value="body" selected>' in response.text
        assert "Nothing was changed." in response.text
    assert not queue.broker.policies.policies


def test_preview_that_still_runs_reloads_itself(queue: Queue, client: FlaskClient) -> None:
    task, _ = preview(client, max_attempts="2")
    with visiting(client.application):
        found = client.application.extensions["dashboard"].tasks.find({"task": task})
    found.state = tasks.RUNNING
    html = client.get(f"/policy?task={task}").text
    assert '<meta http-equiv="refresh" content="2">' in html
    assert "The server is counting jobs." in html
    assert "policy-form" not in {attributes.get("id") for _, attributes in Page(html).elements}
    found.end(tasks.FAILED, "It took too long.", queue.now)
    html = client.get(f"/policy?task={task}").text
    assert "The preview failed, so the effect is not known." in html
    assert 'formaction="/policy/set"' not in html


def test_new_policy_does_not_replace_one_of_the_same_name(queue: Queue, client: FlaskClient) -> None:
    set_policy(queue, "mail", max_jobs=1)
    response = save(client, max_jobs="2")
    assert response.status_code == 409
    assert errors(response.text) == {"name": "a policy of this name already exists"}
    assert queue.broker.policies.policies["mail"].settings == {"max_jobs": 1}


def test_policy_is_edited_unless_it_has_changed_since(queue: Queue, client: FlaskClient) -> None:
    set_policy(queue, "mail", tubes=["mail.*"], max_jobs=1)
    html = client.get("/policy?name=mail").text
    version = field(html, "version")
    assert version
    assert field(html, "max_jobs") == "1"
    assert save(client, max_jobs="2", version=version).status_code == 303
    assert queue.broker.policies.policies["mail"].settings == {"max_jobs": 2}
    response = save(client, max_jobs="3", version=version)
    assert response.status_code == 409
    assert "has changed since you opened the form" in response.text
    assert "Maximum jobs 2" in words(Spaced(response.text))
    assert field(response.text, "max_jobs") == "3"
    assert queue.broker.policies.policies["mail"].settings == {"max_jobs": 2}


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("expire_after", 86400, "1 d"),
        ("retry_delay", 5400, "90 min"),
        ("retry_delay", 3661, "3,661 s"),
        ("retry_delay", 0.5, "0.5 s"),
        ("retry_delay", "90s", "90 s"),
        ("retry_delay", 0, "off"),
        ("max_bytes", 65536, "65,536 bytes"),
        ("rate", 1000, "1,000 per second"),
        ("copy_to", ["a", "b"], "a, b"),
        ("copy_to", [], "off"),
        ("dead_letter", "", "off"),
        ("unique_for", "waiting", "waiting"),
        ("unique_for", "1h30m", "90 min"),
        ("expire_after", "14d", "14 d"),
        ("max_job_size", "64k", "65,536 bytes"),
        ("retry_factor", 1.5, "1.5"),
    ],
)
def test_value_text_is_exact(key: str, value: object, expected: str) -> None:
    assert value_text(key, value).replace("\xa0", " ") == expected


# The page of a tube


def test_exhausted_limit_is_shown_as_the_reason_for_a_wait(queue: Queue, client: FlaskClient) -> None:
    set_policy(queue, "mail", max_reserved=2)
    queue.put("mail", count=3)
    worker, waiting = queue.connect(), queue.connect()
    for one in (worker, waiting):
        connecting.watch(queue.broker, one, b"mail")
    assert "Workers wait:" not in shown(client, "/tube", tube="mail").text
    for _ in range(2):
        assert reserving.reserve(queue.broker, worker, queue.now)
    assert reserving.reserve(queue.broker, waiting, queue.now) is None
    reserving.wait(queue.broker, waiting, None, queue.now)
    page = shown(client, "/tube", tube="mail")
    assert "Workers wait: at most 2 jobs reserved: 2 are." in words(page)
    assert "Held by maximum reserved 1" in words(page)
    assert "at max. reserved" in shown(client, "/").text
    connection = words(shown(client, "/connection", number=waiting.number))
    assert "Held back mail: at most 2 jobs reserved: 2 are" in connection
    live = client.get("/live?page=tube&tube=mail&state=ready").json
    assert "at most 2 jobs reserved: 2 are" in live["parts"]["badges"]
    finishing.delete(queue.broker, worker, next(iter(worker.reserved)), queue.now)
    finishing.delete(queue.broker, waiting, next(iter(waiting.reserved)), queue.now)
    assert "Workers wait:" not in shown(client, "/tube", tube="mail").text


# Dead letters


def test_dead_letter_tube_says_so_and_names_its_sources(queue: Queue, client: FlaskClient) -> None:
    dead_letter(queue)
    queue.put("mail")
    page = shown(client, "/tube", tube="failed")
    assert "This is a dead-letter tube of mail. Dead letters come here from mail." in words(page)
    assert "no workers" not in page.text
    assert "Received as dead letters 1" in words(page)
    assert "Dead letters go to failed, which has 1 job." in words(shown(client, "/tube", tube="mail"))
    overview = shown(client, "/")
    assert "dead letters" in next(row for row in overview.tubes if row[0] == "failed")[1]
    assert client.get("/live?page=overview").json["fields"]["dead_letters"] == "1"


def test_dead_letters_are_listed_with_source_reason_attempts_and_times(queue: Queue, client: FlaskClient) -> None:
    dead_letter(queue)
    queue.now += 90 * SECOND
    html = client.get("/tube?tube=failed").text
    assert "mail out of attempts 1 1 min 30 s ago 1 min 30 s ago 0 4 body" in words(Spaced(html)).replace("\xa0", " ")
    args = unescape(re.findall(r'data-live-args="([^"]*)"', html)[0])
    (row,) = client.get(f"/live?page=tube&{args}").json["rows"]["jobs"]
    assert row[1:4] == ["mail", "out of attempts", "1"]


def test_list_and_job_show_attempts_and_expiry(queue: Queue, client: FlaskClient) -> None:
    set_policy(queue, "mail", max_attempts=3, expire_after=3600, buried_expire_after=60)
    ready, buried = queue.put("mail", count=2)
    fail(queue, ready, 2)
    assert finishing.bury_job(queue.broker, buried, queue.now)
    queue.now += 2 * SECOND
    assert "2 of 3 59 min" in words(shown(client, "/tube", tube="mail")).replace("\xa0", " ")
    job = words(shown(client, "/job", id=ready)).replace("\xa0", " ")
    assert "Attempts 2 of 3" in job
    assert re.search(r"Expires 2027-\d\d-\d\d \d\d:\d\d:\d\d UTC, in 59 min", job)
    assert "Expires" in words(shown(client, "/job", id=buried))
    assert " 58 s 4 body" in words(shown(client, "/tube", tube="mail", state="buried")).replace("\xa0", " ")


def test_job_is_redriven(queue: Queue, client: FlaskClient) -> None:
    id = dead_letter(queue)
    response = post(client, "/job/redrive", id=str(id))
    assert response.status_code == 303
    page = shown(client, response.headers["Location"])
    assert f"Job {id} was moved back to the tube that it came from, and is ready." in page.text
    assert "Moved back from a dead-letter tube by an admin" in words(page)
    job = queue.broker.jobs[id]
    assert (job.tube.name, job.state, job.dead_letter) == (b"mail", READY, b"")
    assert post(client, "/job/redrive", id=str(id)).status_code == 409


def test_only_pages_of_dead_letter_tubes_offer_a_redrive(queue: Queue, client: FlaskClient) -> None:
    dead_letter(queue)
    queue.put("mail")
    assert 'value="redrive"' in client.get("/tube?tube=failed").text
    assert 'value="redrive"' not in client.get("/tube?tube=mail").text
