"""Searches, bulk changes, undos and exports of jobs on all shards, of `--processes 3`.

One real server for the module. Each test uses tubes and bodies of its own, since other tests leave jobs behind.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import socket
import time
from typing import Any

from greenstalk_server.web.auth.forwarding import PIECE
from greenstalk_server.web.features.jobs.export import MAX_EXPORTS
from tests.cluster.test_web import ADMIN, OPERATOR, SHARDS, VIEWER, Site, dead_process, shard_of, until
from tests.support.daemon import TIMEOUT


def put_everywhere(site: Site, prefix: str, body: bytes = b"x", count: int = 1) -> list[int]:
    """Put *count* jobs into each of nine tubes, of which each shard has some; return their ids."""
    return [id for name in site.tubes(prefix) for id in site.put(name, body, count)]


def search(site: Site, q: str, password: str = ADMIN, **options: object) -> Any:
    return site.ended(site.api("POST", "/searches", {"q": q, **options}, 202, password), password)


def found(site: Site, task: Any, limit: int = 100, password: str = ADMIN) -> list[Any]:
    """Return the jobs of a search, page by page."""
    return pages(site, f"/tasks/{task['id']}/jobs", password, limit=limit)


def pages(site: Site, path: str, password: str = ADMIN, **query: Any) -> list[Any]:
    jobs, cursor = list[Any](), dict[str, Any]()
    while True:
        page = site.api("GET", path, password=password, **query, **cursor)
        assert "warning" not in page
        jobs += page["jobs"]
        if page["next_cursor"] is None:
            return jobs
        cursor = {"cursor": page["next_cursor"]}


# Searches


def test_search_finds_the_jobs_of_all_shards_in_order(site: Site) -> None:
    ids = put_everywhere(site, "search", b"needle-search", 3)
    task = search(site, "body:needle-search")
    assert (task["state"], task["matched"], task["message"]) == ("done", len(ids), "")
    assert task["scanned"] == task["total"] >= len(ids)
    assert [one["id"] for one in site.api("GET", "/tasks")["tasks"]].count(task["id"]) == 1
    assert all(one["title"] for one in site.api("GET", "/tasks")["tasks"])  # its parts are not listed
    jobs = found(site, task, limit=10)
    assert [job["id"] for job in jobs] == sorted(ids)
    assert {job["body"] for job in jobs} == {"needle-search"}
    by_tube = found(site, search(site, "body:needle-search", sort="tube", desc=True))
    assert [(job["tube"], job["id"]) for job in by_tube] == sorted([(job["tube"], job["id"]) for job in jobs])[::-1]


def test_search_page_shows_the_jobs_of_all_shards_and_is_live(site: Site) -> None:
    ids = put_everywhere(site, "page", b'{"job": "App\\\\Jobs\\\\Send", "needle": "page"}')
    page = site.page("/search?q=body.needle:page&sort=id&desc=1")
    assert "shard" not in page.partition("<main")[2]
    assert 'value="needle"' in page  # a suggested column
    shown = [page.index(f">{id}</a>") for id in sorted(ids, reverse=True)]
    assert shown == sorted(shown)
    task = search(site, "body.needle:page")
    state = site.live("search", task=task["id"], cols="needle")
    assert [row[0] for row in state["rows"]["matches"]] == [str(id) for id in sorted(ids)]
    assert {row[-2] for row in state["rows"]["matches"]} == {"page"}
    site.api("DELETE", f"/jobs/{ids[0]}", status=204)
    state = site.live("search", task=task["id"])
    assert [int(row[0]) for row in state["rows"]["matches"]] == sorted(ids[1:])


def test_search_shows_jobs_that_have_moved_to_another_shard_since(site: Site) -> None:
    names = {shard_of(name): name for name in site.tubes("hop")}
    [id] = site.put(names[0], b"needle-hop")
    task = search(site, "body:needle-hop")
    for name in (names[1], names[2]):
        site.api("POST", f"/jobs/{id}/move", {"tube": name})
        until(lambda name=name: site.api("GET", f"/jobs/{id}")["tube"] == name)  # type: ignore[misc]
        assert [job["tube"] for job in found(site, task)] == [name]
        assert name in str(site.live("search", task=task["id"])["rows"])


def test_list_pages_through_the_jobs_of_all_shards(site: Site) -> None:
    ids = put_everywhere(site, "list", b"needle-list", 5)
    jobs = pages(site, "/jobs", q="body:needle-list", limit=7)
    assert [job["id"] for job in jobs] == sorted(ids)
    assert {job["tube"] for job in jobs} == set(site.tubes("list"))
    by_tube = pages(site, "/jobs", q="body:needle-list", limit=7, sort="tube", desc="true", bodies="false")
    assert [(job["tube"], job["id"]) for job in by_tube] == sorted([(job["tube"], job["id"]) for job in jobs])[::-1]
    assert {job["body"] for job in by_tube} == {None}


def test_list_of_large_bodies_has_every_job_once(site: Site) -> None:
    ids = put_everywhere(site, "big", b"\1" * 65_000, 3)
    jobs = pages(site, "/jobs", q="tube:big* size:65000", limit=100)
    assert [job["id"] for job in jobs] == sorted(ids)


def test_lists_and_searches_show_only_visible_tubes_on_every_shard(site: Site) -> None:
    seen, hidden = put_everywhere(site, "seen.look"), put_everywhere(site, "hidden.look")
    jobs = pages(site, "/jobs", VIEWER, q="tube:seen.look*")
    assert [job["id"] for job in jobs] == sorted(seen)
    assert pages(site, "/jobs", VIEWER, q="tube:hidden.look*") == []
    task = search(site, "size:1")
    both = {job["id"] for job in found(site, task)}
    assert {*seen, *hidden} <= both
    site.api("GET", f"/tasks/{task['id']}", status=404, password=VIEWER)
    theirs = {job["tube"] for job in found(site, search(site, "size:1", VIEWER), password=VIEWER)}
    assert theirs == set(site.tubes("seen.look"))


def test_malformed_cursors_and_long_sorted_lists_are_refused(site: Site) -> None:
    put_everywhere(site, "deny")
    page = site.api("GET", "/jobs", q="tube:deny*", limit=2, sort="pri")
    site.api("GET", "/jobs", status=400, q="tube:deny*", limit=2, sort="age", cursor=page["next_cursor"])
    site.api("GET", "/jobs", status=400, q="tube:deny*", limit=2, cursor=page["next_cursor"])


def test_suggestions_come_from_the_jobs_of_all_shards(site: Site) -> None:
    names = {shard_of(name): name for name in site.tubes("look")}
    for shard, name in names.items():
        site.put(name, b'{"color%d": "red%d"}' % (shard, shard))
    offered = json.loads(site.page("/suggest?q=-color"))["options"]
    assert {option["text"] for option in offered} == {f"-body.color{shard}:" for shard in range(SHARDS)}
    offered = json.loads(site.page(f"/suggest?q=tube:{names[1]}+color"))["options"]
    assert {option["text"] for option in offered} == {"body.color1:"}
    assert "red2" in site.page("/suggest?q=body.color2:")


# Bulk changes


def change(site: Site, q: str, password: str = ADMIN, **options: object) -> Any:
    """Return the task of a bulk change at its end."""
    return site.ended(site.api("POST", "/bulk", {"q": q, **options}, 202, password), password)


def states(site: Site, ids: list[int]) -> list[str]:
    return [site.api("GET", f"/jobs/{id}")["state"] for id in ids]


def entries(site: Site, what: str, task: str) -> list[Any]:
    """Return the details of the entries of the audit log about *task*."""
    listed = site.api("GET", "/audit", limit=200)["entries"]
    return [one["details"] for one in listed if one["what"] == what and one["details"]["task"] == task]


def test_bulk_change_of_all_shards_is_previewed_run_audited_and_undone_as_one(site: Site) -> None:
    ids = put_everywhere(site, "many", b"needle-many", 2)
    site.api("POST", f"/jobs/{ids[0]}/bury")
    preview = change(site, "body:needle-many", action="bury")
    assert (preview["state"], preview["kind"]) == ("done", "dry-run")
    counted = preview["counted"]
    assert (counted["would_change"], counted["as_they_are"], counted["run"]) == (len(ids) - 1, 1, None)
    assert counted["sample"] == sorted(ids[1:])[:10]
    assert counted["undo"].startswith("This can be undone for a day")
    assert "ready" in states(site, ids)
    run = site.ended(site.api("POST", f"/tasks/{preview['id']}/run", {}, 202))
    assert (run["state"], run["matched"], run["changed"]) == ("done", len(ids), len(ids) - 1)
    assert site.api("POST", f"/tasks/{preview['id']}/run", {}, 202)["id"] == run["id"]  # at most once
    assert states(site, ids) == ["buried"] * len(ids)
    until(lambda: len(entries(site, "bulk/end", run["id"])) == 1)
    assert len(entries(site, "bulk/run", run["id"])) == 1
    assert entries(site, "bulk/end", run["id"])[0]["jobs"] == len(ids) - 1
    [listed] = [one for one in site.api("GET", "/changes")["changes"] if one["title"] == run["title"]]
    assert (listed["jobs"], listed["undone_at"]) == (len(ids) - 1, None)
    undo = site.ended(site.api("POST", f"/changes/{listed['number']}/undo", status=202))
    assert (undo["state"], undo["changed"], undo["refused"]) == ("done", len(ids) - 1, [])
    assert states(site, ids) == ["buried", *["ready"] * (len(ids) - 1)]
    until(lambda: len(entries(site, "undo/end", undo["id"])) == 1)
    [listed] = [one for one in site.api("GET", "/changes")["changes"] if one["title"] == run["title"]]
    assert listed["undone_at"] is not None
    site.api("POST", f"/changes/{run['change_number']}/undo", status=409)


def test_undo_of_a_deletion_on_all_shards_reports_the_jobs_that_it_does_not_restore(site: Site) -> None:
    ids = put_everywhere(site, "undo", b"needle-undo")
    done = change(site, "body:needle-undo", action="kick", dry_run=False)
    assert (done["changed"], done["change_number"]) == (0, None)
    done = change(site, "body:needle-undo", action="bury", dry_run=False)
    site.api("DELETE", f"/jobs/{ids[0]}", status=204)
    site.api("DELETE", f"/jobs/{ids[-1]}", status=204)
    undo = site.ended(site.api("POST", f"/changes/{done['change_number']}/undo", status=202))
    [refused] = undo["refused"]
    assert (refused["jobs"], sorted(refused["sample"])) == (2, sorted([ids[0], ids[-1]]))
    assert (undo["changed"], undo["skipped"]) == (len(ids) - 2, 2)


def test_move_to_a_tube_of_one_shard_gathers_the_jobs_of_all(site: Site) -> None:
    ids, target = put_everywhere(site, "gather", b"needle-gather"), "together"
    done = change(site, "body:needle-gather", action="move", to=target, dry_run=False)
    assert (done["state"], done["changed"]) == ("done", len(ids))
    until(lambda: len(site.api("GET", "/jobs", tube=target)["jobs"]) == len(ids))
    assert {job["id"] for job in site.api("GET", "/jobs", tube=target)["jobs"]} == set(ids)


def test_change_of_selected_jobs_finds_each_on_its_shard(site: Site) -> None:
    ids = put_everywhere(site, "some")
    done = site.ended(site.api("POST", "/bulk", {"ids": ids[::2], "action": "delete", "dry_run": False}, 202))
    assert (done["total"], done["scanned"], done["changed"]) == (len(ids[::2]),) * 3
    assert [site.ask("GET", f"/api/v1/jobs/{id}").status for id in ids] == [404, 200] * 4 + [404]


def test_cancelled_change_stops_on_all_shards(site: Site) -> None:
    ids = put_everywhere(site, "stop", b"needle-stop", 5)
    started = site.api(
        "POST", "/bulk", {"q": "body:needle-stop", "action": "bury", "rate": 10.0, "dry_run": False}, 202
    )
    assert started["state"] == "running"
    site.api("DELETE", f"/tasks/{started['id']}")
    task = site.ended(started)
    assert task["state"] == "cancelled"
    changed = task["changed"]
    assert changed < len(ids)
    assert states(site, ids).count("buried") == changed  # no part continues


def test_rate_of_a_change_is_divided_among_the_shards(site: Site) -> None:
    ids = put_everywhere(site, "rate", b"needle-rate")
    preview = change(site, "body:needle-rate", action="bury", rate=20.0)
    begin = time.monotonic()
    run = site.ended(site.api("POST", f"/tasks/{preview['id']}/run", {}, 202))
    assert run["changed"] == len(ids)
    assert time.monotonic() - begin > (len(ids) - SHARDS) / 20.0 - SHARDS * 0.05  # the first job of a shard is at once


def test_operator_changes_only_the_jobs_of_own_tubes_on_every_shard(site: Site) -> None:
    own, others = put_everywhere(site, "own.", b"needle-rights"), put_everywhere(site, "their.", b"needle-rights")
    done = change(site, "body:needle-rights", OPERATOR, action="bury", dry_run=False)
    assert (done["state"], done["changed"]) == ("done", len(own))
    assert states(site, own) == ["buried"] * len(own)
    assert states(site, others) == ["ready"] * len(others)
    site.api("POST", "/bulk", {"q": "body:needle-rights", "action": "move", "to": "their.0"}, 403, OPERATOR)
    listed = site.api("GET", "/changes", password=OPERATOR)["changes"]
    assert [one["jobs"] for one in listed if one["title"] == done["title"]] == [len(own)]


def test_preview_page_shows_jobs_of_all_shards_and_confirms_their_number(site: Site) -> None:
    ids = put_everywhere(site, "form", b"needle-form")
    where = site.submit("/bulk/preview", scope="all", q="body:needle-form", action="delete")
    page = site.page(where)
    assert f"Delete {len(ids)} jobs?" in page
    assert all(f">{id}</a>" in page for id in ids)
    task = where.partition("task=")[2]
    origin = {"Origin": f"http://127.0.0.1:{site.port}", "Content-Type": "application/x-www-form-urlencoded"}
    assert site.ask("POST", "/bulk/run", f"task={task}&confirm=1".encode(), **origin).status == 400
    progress = site.submit("/bulk/run", task=task, confirm=len(ids))
    until(lambda: site.live("task", id=progress.partition("id=")[2])["fields"]["task-done"] == str(len(ids)))
    assert pages(site, "/jobs", q="body:needle-form") == []


# Exports


def test_export_of_all_shards_is_ordered_by_id(site: Site) -> None:
    ids = put_everywhere(site, "export", b"needle-export", 40)
    lines = site.ask("GET", "/api/v1/jobs/export?q=body:needle-export").body.splitlines()
    assert [json.loads(line)["id"] for line in lines] == sorted(ids)
    rows = list(csv.DictReader(io.StringIO(site.page("/export?q=body:needle-export&format=csv"))))
    assert [int(row["id"]) for row in rows] == sorted(ids)
    assert {row["body"] for row in rows} == {"needle-export"}
    assert {row["tube"] for row in rows} == set(site.tubes("export"))


def test_export_larger_than_a_piece_is_whole_though_one_shard_comes_last(site: Site) -> None:
    """The ids of one shard are ahead of those of the others, so its rows wait until the others have ended."""
    names = {shard_of(name): name for name in site.tubes("files")}
    body = b"needle\r\n," * 6_000
    ids = [id for shard in (1, 0, 2) for id in site.put(names[shard], body, 12 if shard else 2)]
    response = site.ask("GET", "/api/v1/jobs/export?q=tube:files*&format=csv")
    rows = list(csv.DictReader(io.StringIO(response.body.decode(), newline="")))
    assert [int(row["id"]) for row in rows] == sorted(ids)
    assert {row["body"] for row in rows} == {body.decode()}
    assert len(response.body) > 4 * PIECE
    assert site.ask("GET", "/api/v1/jobs/export?q=tube:files*", password=VIEWER).body == b""


def test_export_that_its_client_leaves_ends_on_all_shards(site: Site) -> None:
    put_everywhere(site, "leave", b"l" * 60_000, 20)
    for _ in range(MAX_EXPORTS + 2):
        with socket.create_connection(("127.0.0.1", site.port), TIMEOUT) as sock:
            login = base64.b64encode(f"somebody:{ADMIN}".encode()).decode()
            request = f"GET /api/v1/jobs/export?q=tube:leave* HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\n"
            sock.sendall(f"{request}Authorization: Basic {login}\r\n\r\n".encode())
            assert sock.recv(100)
    until(lambda: site.ask("GET", "/api/v1/jobs/export?q=tube:nothing*").status == 200)


# A shard without a process. This test is the last: the jobs of that shard are lost.


def test_shard_that_does_not_answer_is_named_and_the_others_are_served(site: Site) -> None:
    ids = put_everywhere(site, "dead", b"needle-dead")
    with dead_process(site) as gone:
        until(lambda: "warning" in site.api("GET", "/jobs", q="body:needle-dead"))
        left = [id for id in ids if id % SHARDS != gone]
        page = site.api("GET", "/jobs", q="body:needle-dead")
        assert [job["id"] for job in page["jobs"]] == sorted(left)
        assert page["warning"] == f"The jobs of shard {gone} are missing: its process does not answer."
        task = search(site, "body:needle-dead")
        assert (task["state"], task["matched"]) == ("failed", len(left))
        assert f"The process of shard {gone} does not answer" in task["message"]
        assert [job["id"] for job in found(site, task)] == sorted(left)
        assert site.ask("GET", "/api/v1/jobs/export?q=body:needle-dead").status == 503
        preview = change(site, "body:needle-dead", action="bury")
        assert (preview["state"], preview["counted"]["would_change"]) == ("failed", len(left))
        site.api("POST", f"/tasks/{preview['id']}/run", {}, 409)
        done = change(site, "body:needle-dead", action="bury", dry_run=False)
        assert (done["state"], done["changed"]) == ("failed", len(left))
        assert f"The process of shard {gone} does not answer" in done["message"]
        assert states(site, left) == ["buried"] * len(left)
        site.api("POST", f"/changes/{done['change_number']}/undo", status=503)
    until(lambda: "warning" not in site.api("GET", "/jobs", q="body:needle-dead"))
    undo = site.ended(site.api("POST", f"/changes/{done['change_number']}/undo", status=202))
    assert (undo["state"], undo["changed"]) == ("done", len(left))
    assert search(site, "body:needle-dead")["state"] == "done"
