"""Searches, bulk changes, undos and exports of jobs on all shards, of `--processes 3`.

One real server for the module. Each test uses tubes and bodies of its own, since other tests leave jobs behind.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.test_web import ADMIN, CONFIG, SHARDS, VIEWER, Site, dead_process, shard_of, until
from tests.support.daemon import Daemon, environment
from tests.support.ports import free_ports


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    [port] = free_ports(1)
    config = tmp_path_factory.mktemp("web") / "server.toml"
    config.write_text(CONFIG)
    flags = ["--processes", str(SHARDS), "-l", "127.0.0.1", "-p", "0", "--web-port", str(port), "--config", str(config)]
    passwords = environment(GREENSTALK_WEB_PASSWORD=ADMIN, GREENSTALK_WEB_VIEWER_PASSWORD=VIEWER)
    with Daemon(*flags, environ=passwords) as daemon:
        yield Site(daemon, port)


def put_everywhere(site: Site, prefix: str, body: bytes = b"x", count: int = 1) -> list[int]:
    """Put *count* jobs into each of nine tubes, of which each shard has some; return their ids."""
    return [id for name in site.tubes(prefix) for id in site.put(name, body, count)]


def ended(site: Site, task: Any) -> Any:
    """Return *task* as it is at its end."""
    until(lambda: site.api("GET", f"/tasks/{task['id']}")["state"] != "running")
    return site.api("GET", f"/tasks/{task['id']}")


def search(site: Site, q: str, password: str = ADMIN, **options: object) -> Any:
    return ended(site, site.api("POST", "/searches", {"q": q, **options}, 202, password))


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
    own = site.api("POST", "/searches", {"q": "size:1"}, 202, VIEWER)
    until(lambda: site.api("GET", f"/tasks/{own['id']}", password=VIEWER)["state"] == "done")
    theirs = {job["tube"] for job in found(site, own, password=VIEWER)}
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


# A shard without a process. This test is the last: the jobs of that shard are lost.


def test_searches_and_lists_name_the_shard_that_does_not_answer(site: Site) -> None:
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
    until(lambda: "warning" not in site.api("GET", "/jobs", q="body:needle-dead"))
    assert search(site, "body:needle-dead")["state"] == "done"
