"""The pages of tubes and jobs with every action, in a real browser, with a real daemon and clients."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import greenstalk
import pytest

from tests.support.daemon import Daemon

from .browser import Browser, Tab
from .visit import (
    AXE,
    AXE_VIOLATIONS,
    FLAGS,
    WITH_AND_WITHOUT_SCRIPTS,
    Clients,
    follow,
    is_too_wide,
    notice_text,
    press,
)

ODD_NAMES = ("//x", "..", "/", ";", "$(reboot)", "a+b", "A" * 200)
HOSTILE = b'{"<script>": "</pre><script>document.title = 1</script>", "n": 123456789012345678901234567890}'


@WITH_AND_WITHOUT_SCRIPTS
def test_pause_and_resume(tab: Tab, clients: Clients) -> None:
    clients.put(b"x")
    tab.page.goto(clients.url)
    tab.page.get_by_label("For", exact=True).fill("5400")
    press(tab, "Pause")
    assert notice_text(tab) == "Paused for 1\xa0h 30\xa0min."
    assert "left" in tab.page.inner_text(".badge[data-state=paused]")
    assert clients.producer.stats_tube(clients.tube)["pause"] == 5400
    with pytest.raises(greenstalk.TimedOutError):
        clients.worker.reserve(timeout=0)
    press(tab, "Resume now")
    assert notice_text(tab) == "Resumed."
    assert clients.worker.reserve(timeout=0).body == b"x"


def test_kick_some_then_all(tab: Tab, clients: Clients) -> None:
    clients.bury(5)
    tab.page.goto(f"{clients.url}&state=buried")
    tab.page.get_by_label("How many").fill("2")
    press(tab, "Kick")
    assert notice_text(tab) == "2 jobs kicked."
    assert clients.states() == (2, 0, 0, 3)
    press(tab, "Kick all")
    assert notice_text(tab) == "3 jobs kicked."
    assert clients.states() == (5, 0, 0, 0)
    assert "No job is buried." in tab.page.inner_text("main")


@WITH_AND_WITHOUT_SCRIPTS
def test_put_view_bury_kick_and_delete(tab: Tab, clients: Clients) -> None:
    tab.page.goto(clients.url)
    tab.page.get_by_text("Put a job", exact=True).click()
    tab.page.get_by_label("Body").fill("one\ntwo ☃ <b>")
    tab.page.get_by_label("Priority").fill("7")
    tab.page.get_by_label("TTR, s").fill("90")
    press(tab, "Put")
    [id] = [int(text) for text in tab.page.locator(".jobs th.id a").all_text_contents()]
    assert notice_text(tab) == f"Job {id} was put. Job {id}"
    assert clients.producer.peek(id).body == "one\ntwo ☃ <b>".encode()
    tab.page.locator(".jobs th.id a").click()
    assert tab.page.inner_text("pre.body") == "one\ntwo ☃ <b>"
    press(tab, "Bury: set aside")
    assert notice_text(tab) == f"Job {id} was buried."
    assert clients.states() == (0, 0, 0, 1)
    press(tab, "Kick: make ready")
    assert notice_text(tab) == f"Job {id} was kicked and is ready."
    assert clients.states() == (1, 0, 0, 0)
    tab.page.get_by_text("Delete", exact=True).click()
    press(tab, f"Delete job {id} permanently")
    assert notice_text(tab) == f"Job {id} was deleted."
    assert clients.states() == (0, 0, 0, 0)
    with pytest.raises(greenstalk.NotFoundError):
        clients.producer.peek(id)


@WITH_AND_WITHOUT_SCRIPTS
def test_clear_requires_the_tube_name(tab: Tab, clients: Clients) -> None:
    clients.put(*[b"x"] * 700)
    clients.put(b"y", delay=60)
    tab.page.goto(clients.url)
    tab.page.get_by_text("Clear ready jobs").click()
    tab.page.get_by_label("name to confirm").fill("something")
    press(tab, "Delete all ready jobs")
    assert "Nothing was deleted" in tab.page.get_by_role("alert").inner_text()
    tab.console.clear()  # the browser logs the status 400
    assert tab.page.get_by_label("name to confirm").input_value() == "something", "the form has lost the typed text"
    assert tab.page.inner_text("h1") == clients.tube
    assert clients.states() == (700, 0, 1, 0)
    ready = tab.page.get_by_role("link", name="Ready 700")
    assert ready.evaluate("link => link.href").endswith(f"/tube?tube={clients.tube}&state=ready")
    tab.page.get_by_label("name to confirm").fill(clients.tube)
    press(tab, "Delete all ready jobs")
    assert notice_text(tab) == "700 jobs deleted."
    assert clients.states() == (0, 0, 1, 0)


def test_job_reserved_meanwhile_is_not_changed(tab: Tab, clients: Clients) -> None:
    [id] = clients.put(b"x", ttr=60)
    tab.page.goto(clients.url.replace(f"tube?tube={clients.tube}", f"job?id={id}"))
    tab.page.get_by_text("Delete", exact=True).click()
    clients.worker.reserve()
    press(tab, f"Delete job {id} permanently")
    assert "a client holds it" in tab.page.inner_text("main")
    tab.console.clear()  # the browser logs the status 409
    assert tab.page.inner_text("h1") == f"Job {id}"
    assert "Held by a client" in tab.page.inner_text("main")
    assert clients.states() == (0, 1, 0, 0)


def test_pages_of_a_long_list_and_the_jump_to_an_id(tab: Tab, clients: Clients) -> None:
    ids = clients.put(*[b"x"] * 130)
    tab.page.goto(clients.url)
    follow(tab, tab.page.get_by_role("link", name="Next"))
    assert [int(text) for text in tab.page.locator(".jobs th.id a").all_text_contents()] == ids[100:]
    tab.page.get_by_role("textbox", name="Job").fill(str(ids[64]))
    tab.page.get_by_role("button", name="Go").click()
    assert tab.page.inner_text("h1") == f"Job {ids[64]}"


def test_pages_follow_the_queue(chromium: Browser, daemon: Daemon, clients: Clients) -> None:
    with chromium.tab(daemon.dashboard) as tube, chromium.tab(daemon.dashboard) as job:
        [id] = clients.put(b"x", ttr=60)
        tube.page.goto(f"{clients.url}&notice=kicked&n=1")
        job.page.goto(f"{daemon.dashboard}job?id={id}")
        tube.page.wait_for_selector("#live[data-state=live]")
        assert "notice" not in tube.page.url
        tube.page.get_by_label("For", exact=True).fill("77")
        held = clients.worker.reserve()
        job.page.wait_for_selector(".badge[data-state=reserved]")
        tube.page.wait_for_selector(".tab[data-state=ready] .zero")
        clients.put(b"y")
        tube.page.wait_for_selector(".jobs tbody th.id")
        assert tube.page.input_value("#seconds") == "77"
        assert "x" in job.page.inner_text("pre.body")
        clients.worker.delete(held)
        job.page.wait_for_selector("#live[data-state=lost]")
        assert job.page.inner_text("#live") == "Deleted"
        assert tube.console == tube.elsewhere == []


def test_hostile_body_stays_text_and_downloads(tab: Tab, clients: Clients) -> None:
    [id] = clients.put(HOSTILE)
    tab.page.goto(clients.url)
    assert "<script>" in tab.page.inner_text("td.body")
    tab.page.locator(".jobs th.id a").click()
    assert '"n": 123456789012345678901234567890' in tab.page.inner_text("pre.body")
    assert tab.page.title().startswith(f"Job {id} ")
    with tab.page.expect_download() as download:
        tab.page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == f"job-{id}.bin"
    assert Path(download.value.path()).read_bytes() == HOSTILE


def test_tubes_with_odd_names_can_be_opened(chromium: Browser, daemon: Daemon, clients: Clients) -> None:
    with chromium.tab(daemon.dashboard) as tab:
        tab.page.goto(daemon.dashboard)
        tab.page.wait_for_selector("#live[data-state=live]")
        for name in ODD_NAMES:
            tab.page.goto(f"{daemon.dashboard}?q=zzz")  # leave the previous tube, which is about to be dropped
            clients.producer.use(name)
            [id] = clients.put(b"x")
            tab.page.get_by_label("Filter tubes by name").fill(name)
            tab.page.locator("#tubes a", has=tab.page.get_by_title(name, exact=True)).click()
            assert tab.page.text_content("h1") == name
            assert tab.page.inner_text(".jobs tbody th.id") == str(id)
            tab.page.get_by_text("Clear ready jobs").click()
            tab.page.get_by_label("name to confirm").fill(name)
            press(tab, "Delete all ready jobs")
            assert notice_text(tab) == "1 job deleted."
        assert (tab.console, tab.elsewhere) == ([], [])


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (360, "dark")])
def test_pages_fit(chromium: Browser, daemon: Daemon, clients: Clients, width: int, theme: Any) -> None:
    body = json.dumps({"to": "someone@example.org", "order": 12345678901234567890, "long": "x" * 300}).encode()
    ids = clients.put(
        body, gzip.compress(body), base64.b64encode(body), bytes(range(256)) * 16, "☃".encode() * 300, b""
    )
    clients.put(body, delay=4000, priority=2**32 - 1, ttr=2**32 - 1)
    clients.bury(3)
    clients.worker.reserve_job(ids[1])
    clients.producer.pause_tube(clients.tube, 5400)
    with chromium.tab(daemon.dashboard, width, color_scheme=theme) as tab:
        paths = [f"tube?tube={clients.tube}&state={state}" for state in ("ready", "reserved", "delayed", "buried")]
        paths += ["", "tube?tube=default"]
        for path in ["tube?tube=nowhere&", *paths, *[f"job?id={id}" for id in ids]]:
            tab.page.goto(daemon.dashboard + path)
            for summary in tab.page.locator("details > summary").all():
                summary.click()
            assert not is_too_wide(tab), path
            assert tab.page.evaluate(f"{AXE};{AXE_VIOLATIONS}") == [], path
            tab.screenshot(f"{path.partition('?')[0]}-{path[-8:]}-{width}-{theme}")
        assert (tab.console[1:], tab.elsewhere) == ([], [])  # the browser logs the status 404


def test_acknowledged_change_is_on_disk(chromium: Browser, tmp_path: Path) -> None:
    flags = (*FLAGS, "-b", str(tmp_path), "-f", "0")
    with Daemon(*flags) as daemon, chromium.tab(daemon.dashboard) as tab:
        tab.page.goto(f"{daemon.dashboard}tube?tube=default")
        tab.page.get_by_text("Put a job", exact=True).click()
        for body in ("kept", "gone"):
            tab.page.goto(f"{daemon.dashboard}tube?tube=default")
            tab.page.get_by_text("Put a job", exact=True).click()
            tab.page.get_by_label("Body").fill(body)
            press(tab, "Put")
        tab.page.goto(f"{daemon.dashboard}job?id=1")
        press(tab, "Bury: set aside")
        tab.page.goto(f"{daemon.dashboard}job?id=2")
        tab.page.get_by_text("Delete", exact=True).click()
        press(tab, "Delete job 2 permanently")
        assert notice_text(tab) == "Job 2 was deleted."
        daemon.process.kill()
        daemon.process.wait()
    with Daemon(*flags) as daemon:
        assert daemon.ask(b"peek 1\r\n") == b"FOUND 1 4"
        assert daemon.ask(b"peek 2\r\n") == b"NOT_FOUND"
        assert daemon.ask(b"peek-buried\r\n") == b"FOUND 1 4"
