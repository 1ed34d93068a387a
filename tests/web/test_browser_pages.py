"""The pages of tubes and jobs with every action, in a real browser, with a real daemon and clients."""

from __future__ import annotations

import greenstalk
import pytest

from tests.support.daemon import Daemon

from .browser import Browser, Tab
from .visit import (
    WITH_AND_WITHOUT_SCRIPTS,
    Clients,
    notice_text,
    press,
)

ODD_NAMES = ("//x", "..", "/", ";", "$(reboot)", "a+b", "A" * 200)


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
