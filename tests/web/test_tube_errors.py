"""The page of a tube's errors, the grouping behind it, and actions on a group."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html import unescape

import msgspec
import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st

from greenstalk_server.core.job_attributes import DeadLetter, DeadLetterReason
from greenstalk_server.core.jobs.job import SECOND, STATE_NAMES
from greenstalk_server.core.operations import connecting, finishing, putting
from greenstalk_server.web.changes.tasks import CANCELLED, Task
from greenstalk_server.web.features.errors import groups as error_groups
from greenstalk_server.web.features.errors import pages as tube_errors
from greenstalk_server.web.features.errors.groups import MAX_GROUPS, ErrorGroups
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.reads.jobs.json_fields import MAX_PARSED
from greenstalk_server.web.reads.jobs.query import Query, parse
from tests.support.daemon import TIMEOUT

from .conftest import Queue
from .forms import SAME_ORIGIN
from .table import Page
from .test_query import holds, job
from .turns import LoopIterations


def put(queue: Queue, *bodies: object, tube: str = "mail", is_buried: bool = True) -> list[int]:
    """Put a job with each body, text as it is and others as JSON, and bury it."""
    client = queue.connect()
    connecting.use(queue.broker, client, tube.encode())
    ids = []
    for body in bodies:
        raw = body.encode() if isinstance(body, str) else body if isinstance(body, bytes) else json.dumps(body).encode()
        ids.append(queue.broker.allocate_id())
        assert putting.put(queue.broker, client, ids[-1], 100, 0, 60 * SECOND, raw, queue.now) > 0
        if is_buried:
            assert finishing.bury_job(queue.broker, ids[-1], queue.now)
    connecting.disconnect(queue.broker, client, queue.now)
    return ids


def failing(error: object, **more: object) -> dict[str, object]:
    return {"kind": "order", "error": error, **more}


def read(client: FlaskClient, path: str = "/tube/errors?tube=mail") -> Page:
    response = client.get(path)
    assert response.status_code == 200, response.text
    return Page(response.text)


def shown(client: FlaskClient, path: str = "/tube/errors?tube=mail") -> list[tuple[str, str]]:
    """Return title and count of each group, in order."""
    html = client.get(path).text
    titles = re.findall(r'<h3 class="error-title[^"]*">(.*?)</h3>', html)
    counts = re.findall(r'<div class="error-count">\s*<span class="value">(.*?)</span>', html)
    return [(unescape(title), count) for title, count in zip(titles, counts, strict=True)]


def hidden_fields(page: Page, button: str, at: int = 0) -> dict[str, str]:
    """Return the fields of the form whose button has the value *button*, the one numbered *at*."""
    fields: dict[str, str] = {}
    forms = []
    for tag, attributes in page.elements:
        if tag == "form":
            fields = {}
        elif tag in ("input", "button") and attributes.get("name"):
            fields[str(attributes["name"])] = str(attributes.get("value") or "")
            if attributes.get("value") == button:
                forms.append(fields)
    return forms[at]


def carry_out(client: FlaskClient, form: dict[str, str], **more: str) -> None:
    """Submit *form* to the dry run, and confirm the change."""
    preview = client.post("/bulk/preview", data=form | more, headers=SAME_ORIGIN)
    assert preview.status_code == 303, preview.text
    task = settled(client, preview.location.partition("task=")[2]).id
    page = Page(client.get(preview.location).text)
    confirm = {"confirm": "mail"} if "to confirm" in page.text else {}
    done = client.post("/bulk/run", data={"task": task, **confirm}, headers=SAME_ORIGIN)
    assert done.status_code == 303, done.text
    settled(client, done.location.partition("id=")[2])


def settled(client: FlaskClient, id: str) -> Task:
    """Return the task *id* when it has ended."""
    app = client.application
    with app.test_request_context():
        app.preprocess_request()
        task: Task = app.extensions["dashboard"].tasks.find({"task": id})
    task.wait(TIMEOUT)
    assert not task.is_running
    return task


# Grouping


def test_errors_are_grouped_most_common_first(queue: Queue, client: FlaskClient) -> None:
    put(queue, *[failing(f"no route to host {number}") for number in range(3)], failing({"type": "Late"}), "plain text")
    put(queue, *[failing("no such user 'x'") for _ in range(2)])
    put(queue, failing("ready jobs do not count"), is_buried=False)
    put(queue, failing("other tubes do not count"), tube="sms")
    assert shown(client) == [
        ("no route to host #", "3"),
        ("no such user '…'", "2"),
        ("Late", "1"),
        ("No error in the body", "1"),
    ]
    page = read(client)
    assert "7 jobs in 4 groups" in page.text
    assert "no route to host 2" in page.text, "the sample is the job that failed last"
    assert page.runs_only_our_scripts()


def test_principal_chooses_the_field_and_the_state(queue: Queue, client: FlaskClient) -> None:
    put(queue, *[failing(f"e{number}", job={"why": "quota"}) for number in "abc"])
    put(queue, failing("waits", job={"why": "later"}), is_buried=False)
    assert len(shown(client)) == 3
    assert shown(client, "/tube/errors?tube=mail&field=job.why") == [("quota", "3")]
    assert shown(client, "/tube/errors?tube=mail&field=job.none") == [("No error in the body", "3")]
    assert shown(client, "/tube/errors?tube=mail&state=ready&field=job.why") == [("later", "1")]
    page = read(client)
    options = [attributes["value"] for tag, attributes in page.elements if tag == "option"]
    assert options == ["buried", "ready", "delayed", "kind", "error", "job.why"]


def test_missing_tube_and_foreign_task_are_not_found(queue: Queue, client: FlaskClient) -> None:
    put(queue, failing("late"))
    assert client.get("/tube/errors?tube=gone").status_code == 404
    assert client.get("/tube/errors?task=0123").status_code == 404
    client.get("/search?q=tube:mail")
    task = client.get("/task").text.partition('href="/task?id=')[2].partition('"')[0]
    assert client.get(f"/tube/errors?task={task}").status_code == 404


def dead_letter(queue: Queue, id: int, reason: int, at: int = 0) -> None:
    queue.broker.jobs[id].dead_letter = DeadLetter(reason, b"mail", 3, at or queue.now, at or queue.now).pack()


def test_dead_letters_of_all_states_are_grouped(queue: Queue, client: FlaskClient) -> None:
    ids = put(queue, failing("late"), failing("late"), "x", "x", tube="mail.dead", is_buried=False)
    for id, reason in zip(ids, (1, 2, DeadLetterReason.EXPIRED, DeadLetterReason.ATTEMPTS), strict=True):
        dead_letter(queue, id, reason, queue.now - 5 * SECOND)
    finishing.bury_job(queue.broker, ids[0], queue.now)
    put(queue, "no dead letter", tube="mail.dead")
    path = "/tube/errors?tube=mail.dead"
    assert shown(client, path) == [
        ("late", "2"),
        ("No error in the body, expired", "1"),
        ("No error in the body, out of attempts", "1"),
        ("No error in the body", "1"),
    ]
    page = read(client, path)
    assert hidden_fields(page, "redrive") == {
        "tube": "mail.dead",
        "q": '-state:reserved error:"late"',
        "scope": "all",
        "action": "redrive",
    }
    assert hidden_fields(page, "redrive", 1)["q"] == "-state:reserved -error:* reason:expired"
    assert hidden_fields(page, "kick")["q"] == "-state:reserved -error:* -reason:*"


def test_large_and_lost_bodies_are_counted(queue: Queue) -> None:
    groups = ErrorGroups(Query(), (), 0)
    groups.add(job(body=b'{"error":"%s"}' % (b"x" * MAX_PARSED)), None)
    lost = job(body=b"x")
    groups.add(lost, None)
    groups.close(Pace())
    assert [(group.error, group.jobs) for group in groups.groups] == [(None, 1)]
    assert (groups.total, groups.unread) == (2, 1)


def test_number_of_groups_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_groups, "MAX_DISTINCT", MAX_GROUPS + 10)
    groups = ErrorGroups(Query(), (), 0)
    words = [f"{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(MAX_GROUPS + 30)]
    for word in [*words, words[7]]:
        body = json.dumps(failing(word)).encode()
        groups.add(job(body=body), body)
    groups.close(Pace())
    assert len(groups.groups) == MAX_GROUPS
    assert (groups.groups[0].error, groups.groups[0].jobs) == (words[7], 2)
    assert (groups.total, groups.others, groups.other_groups) == (MAX_GROUPS + 31, 30, 10)


# Requests that share a grouping


def test_finished_grouping_is_reused_for_ten_times_its_duration(queue: Queue, client: FlaskClient) -> None:
    put(queue, failing("late"))
    ticks = iter(range(10**6))
    started = queue.now
    queue.clock = lambda: started + next(ticks) * SECOND  # type: ignore[method-assign]  # each look at the clock takes 1 s
    client = queue.app().test_client()
    assert shown(client) == [("late", "1")]
    put(queue, failing("late"))
    assert shown(client) == [("late", "1")]
    assert shown(client, "/tube/errors?tube=mail&refresh=1") == [("late", "2")]
    put(queue, failing("late"))
    for _ in range(100):
        queue.clock()
    assert shown(client) == [("late", "3")]


def test_long_grouping_shows_its_progress_and_can_be_cancelled(
    queue: Queue, client: FlaskClient, short_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tube_errors, "INITIAL_WAIT", 0.0)
    put(queue, *[failing("late")] * 5000)

    def begin(path: str) -> str:
        """Return the task of the page at *path*, which shows its progress."""
        html = client.get(path).text
        found = re.search(r'data-live="task" data-live-args="id=(\w+)" data-result="/tube/errors\?task=(\w+)"', html)
        assert found is not None and found[1] == found[2]
        assert f'content="2; url=/tube/errors?task={found[1]}"' in html
        return found[1]

    first = begin("/tube/errors?tube=mail")
    assert begin("/tube/errors?tube=mail") == begin("/tube/errors?tube=mail&refresh=1") == first
    assert begin("/tube/errors?tube=mail&field=error") != first
    settled(client, first)
    assert shown(client, f"/tube/errors?task={first}") == [("late", "5,000")]
    other = begin("/tube/errors?tube=mail&refresh=1")
    assert client.post("/task/cancel", data={"id": other}, headers=SAME_ORIGIN).status_code == 303
    assert settled(client, other).state == CANCELLED
    assert "the task was cancelled. The counts are too small." in client.get(f"/tube/errors?task={other}").text


def test_grouping_yields_between_jobs(queue: Queue, client: FlaskClient, short_steps: None) -> None:
    put(queue, *[failing(f"late {number}") for number in range(200)])
    with LoopIterations() as loop:
        assert shown(client) == [("late #", "200")]
    assert loop.count >= 200


# Actions on a group


def test_retry_kicks_exactly_the_jobs_of_the_group(queue: Queue, client: FlaskClient) -> None:
    ids = put(queue, *[failing(f'bad "{number}" \\ number {number}') for number in range(3)])
    others = put(queue, failing('bad "…" \\ number'), failing("x"), "y")
    page = read(client)
    assert shown(client)[0] == ('bad "…" \\ number #', "3")
    carry_out(client, hidden_fields(page, "kick"))
    states = {id: STATE_NAMES[queue.broker.jobs[id].state] for id in (*ids, *others)}
    assert states == dict.fromkeys(ids, "ready") | dict.fromkeys(others, "buried")


def test_links_list_and_export_the_group(queue: Queue, client: FlaskClient) -> None:
    put(queue, failing("late 1"), failing("late 2"), failing("quota"))
    links = [attributes["href"] for tag, attributes in read(client).elements if tag == "a" and attributes.get("href")]
    (jobs, *_), (csv, *_) = ([link for link in links if link and part in link] for part in ("q=error", "format=csv"))
    assert jobs == "/tube?tube=mail&state=buried&q=error:%22late+%23%22"
    listed = client.get(str(jobs))
    assert listed.status_code == 200 and "2 matching, among all 3" in listed.text
    assert client.get(str(csv)).text.count("buried") == 2


def test_principal_who_sees_no_bodies_gets_the_list_of_jobs(queue: Queue, visit: Callable[..., FlaskClient]) -> None:
    put(queue, failing("late"))
    response = visit(hides_bodies=True).get("/tube/errors?tube=mail")
    assert (response.status_code, response.location) == (302, "/tube?tube=mail&state=buried")


@given(
    st.lists(st.sampled_from(["late 1", "late 22", 'a "b" c', "'q'", "", "x" * 400, "\u202eevil", "a\nb"]), max_size=6)
)
def test_queries_of_the_groups_divide_the_jobs(errors: list[str]) -> None:
    jobs = [job(id=number, body=json.dumps(failing(error)).encode()) for number, error in enumerate(errors)]
    groups = ErrorGroups(Query(), (), 0)
    for one in jobs:
        groups.add(one, one.body)
    groups.close(Pace())
    found: list[int] = []
    for group in groups.groups:
        query = parse(group.q)
        ids = [one.id for one in jobs if holds(query, one)]
        assert len(ids) == group.jobs and group.sample in ids
        found += ids
    assert sorted(found) == [one.id for one in jobs]


# Groups of several shards


def test_parts_of_shards_add_up_to_the_groups_of_all_jobs() -> None:
    words = [f"{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(MAX_GROUPS + 30)]
    whole, parts = ErrorGroups(Query(), (), 0), [ErrorGroups(Query(), (), 0) for _ in range(2)]
    for place, word in enumerate([*words, *words[:7]]):
        body = json.dumps(failing(word)).encode()
        failed = job(id=place, body=body)
        for groups in (whole, parts[place % 2]):
            groups.add(failed, body)
    whole.close(Pace())
    for part in parts:
        part.close(Pace(), limit=500)
    merged, sent = ErrorGroups(Query(), (), 0), [json.loads(msgspec.json.encode(part.part())) for part in parts]
    for _ in range(2):  # a task merges what it has so far, again and again
        merged.merge({0: parts[0].part(), 1: sent[1]})
    assert {group.error: group.jobs for group in merged.groups[:7]} == dict.fromkeys(words[:7], 2)
    assert [group.jobs for group in merged.groups] == [group.jobs for group in whole.groups]
    assert (merged.total, merged.others, merged.other_groups) == (whole.total, whole.others, whole.other_groups)
    assert (merged.is_closed, merged.worst.keys(), merged.fields) == (True, whole.worst.keys(), whole.fields)
