"""Tags of jobs on the pages: keys, the reason why a job is held back, the form of a put, and searches."""

from __future__ import annotations

from html import unescape

import pytest
from flask.testing import FlaskClient

from greenstalk_server.core.jobs.job import DELAYED, READY, RESERVED, SECOND
from greenstalk_server.core.operations import connecting, finishing, putting, reserving, ticking
from greenstalk_server.core.tags.tags import Tags, tags_of

from .conftest import Queue
from .forms import post


def put(queue: Queue, tube: str = "mail", delay: int = 0, **tags: bytes | int) -> int:
    """Put a job with *tags*; return its id."""
    client = queue.connect()
    id, made = queue.broker.allocate_id(), Tags(**tags)  # type: ignore[arg-type]
    ttr = 60 * SECOND
    assert (
        putting.put_tagged(queue.broker, client, tube.encode(), id, 9, delay * SECOND, ttr, b"body", made, queue.now)
        == id
    )
    connecting.disconnect(queue.broker, client, queue.now)
    return id


def reserve(queue: Queue, id: int) -> None:
    reserving.reserve_job(queue.broker, queue.connect(), id, queue.now)


def page(client: FlaskClient, path: str) -> str:
    response = client.get(path)
    assert response.status_code == 200
    return unescape(response.text).replace("\xa0", " ")


def test_page_of_a_job_shows_its_tags(queue: Queue, client: FlaskClient) -> None:
    id = put(
        queue,
        idempotency_key=b"order-7",
        idempotency_ttl=3600 * SECOND,
        group=b"import",
        concurrency_key=b"user-5",
        concurrency_limit=2,
    )
    shown = page(client, f"/job?id={id}")
    for text in (
        "order-7, kept for 1 h after the job",
        "import, 1 job",
        "user-5",
        "2 at a time; 0 of 2 slots taken",
    ):
        assert text in shown, text
    plain = page(client, f"/job?id={queue.put('mail')[0]}")
    for label in ("Idempotency key", "Group", "Concurrency key", "Concurrency limit"):
        assert f"<dt>{label}</dt>" in shown
        assert f"<dt>{label}</dt>" not in plain


def test_job_that_waits_for_a_group_says_so(queue: Queue, client: FlaskClient) -> None:
    members = [put(queue, group=b"import") for _ in range(3)]
    id = put(queue, after=b"import")
    assert queue.broker.jobs[id].state == DELAYED
    reason = "waits for group import with 3 jobs left"
    assert reason in page(client, f"/job?id={id}")
    listed = page(client, "/tube?tube=mail&state=delayed")
    assert reason in listed
    assert "aft:import" in listed
    for member in members:
        finishing.delete_job(queue.broker, member, queue.now)
    ticking.tick(queue.broker, queue.now)
    assert queue.broker.jobs[id].state == READY
    shown = page(client, f"/job?id={id}")
    assert "waits for group" not in shown
    assert "the group that it waited for has no jobs left" in shown
    assert client.get(f"/api/v1/jobs/{id}").json["events"][-1]["kind"] == "unblocked"


def test_job_whose_concurrency_key_has_no_slot_says_so(queue: Queue, client: FlaskClient) -> None:
    running, id = (put(queue, concurrency_key=b"user-5", concurrency_limit=1) for _ in range(2))
    assert "slots taken" not in page(client, "/tube?tube=mail&state=ready")
    reserve(queue, running)
    assert queue.broker.jobs[running].state == RESERVED
    reason = "concurrency key user-5 has 1 of 1 slots taken"
    assert reason in page(client, f"/job?id={id}")
    listed = page(client, "/tube?tube=mail&state=ready")
    assert reason in listed
    assert "con:user-5 (at most 1)" in listed
    assert reason not in page(client, f"/job?id={running}")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("idp:order-7", [1]),
        ("idp:order-*", [1, 5]),
        ("grp:import", [2]),
        ("aft:import", [3]),
        ("con:user-5", [4]),
        ("con:user*", [4]),
        ("-con:user-5 tube:mail", [1, 2, 3, 5, 6]),
        ("grp:import con:user-5", []),
    ],
)
def test_search_by_tags(queue: Queue, client: FlaskClient, query: str, found: list[int]) -> None:
    put(queue, idempotency_key=b"order-7")
    put(queue, group=b"import")
    put(queue, after=b"import")
    put(queue, concurrency_key=b"user-5", concurrency_limit=3)
    put(queue, idempotency_key=b"order-8", idempotency_ttl=SECOND)
    queue.put("mail")
    listed = client.get("/api/v1/jobs", query_string={"q": query}).json
    assert [job["id"] for job in listed["jobs"]] == found


def test_form_puts_a_job_with_tags(queue: Queue, client: FlaskClient) -> None:
    form = {"tube": "mail", "pri": 1, "delay": 0, "ttr": 60, "body": "x"}
    keys = {"idp": "order-7", "idp-ttl": 60, "grp": "import", "aft": "", "con": "user-5", "con-limit": 3}
    post(client, "/tube/put", **form, **keys)
    tags = tags_of(queue.broker.jobs[1])
    assert (tags.idempotency_key, tags.idempotency_ttl, tags.group) == (b"order-7", 60 * SECOND, b"import")
    assert (tags.after, tags.concurrency_key, tags.concurrency_limit) == (b"", b"user-5", 3)
    post(client, "/tube/put", **form, idp="order-7")
    assert [*queue.broker.jobs] == [1]
    post(client, "/tube/put", **form, con="user-6")
    (other,) = set(queue.broker.jobs) - {1}
    assert tags_of(queue.broker.jobs[other]).concurrency_limit == 1
    post(client, "/tube/put", **form, idp="", con="")
    assert type(queue.broker.jobs[max(queue.broker.jobs)]).__name__ == "Job"
