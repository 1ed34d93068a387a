"""Tags in a real browser: a job is put with keys, waits, and is found."""

from __future__ import annotations

from tests.support.daemon import Daemon

from .browser import Tab
from .visit import Clients, notice_text, press


def unfold(tab: Tab, name: str) -> None:
    tab.page.locator("summary", has_text=name).last.click()


def test_job_with_keys_is_put_shown_and_found(tab: Tab, daemon: Daemon, clients: Clients) -> None:
    [first] = clients.put(b"first", ttr=600)
    group = f"g.{clients.tube}"
    page = tab.page
    for label in ("Group", "After group"):
        page.goto(f"{daemon.dashboard}tube?tube={clients.tube}")
        unfold(tab, "Put a job")
        unfold(tab, "Keys")
        page.get_by_label(label, exact=True).fill(group)
        page.get_by_label("Concurrency key").fill("user-5")
        page.get_by_label("Limit", exact=True).fill("2")
        tab.screenshot("tags-form")
        press(tab, "Put")
        assert "was put" in notice_text(tab)
    member, waiting = first + 1, first + 2
    tab.screenshot("tags-list")
    reason = f"waits for group {group} with 1 job left"
    assert reason in page.inner_text("table.jobs").replace("\xa0", " ")
    page.goto(f"{daemon.dashboard}job?id={waiting}")
    tab.screenshot("tags-job")
    assert reason in page.inner_text("main").replace("\xa0", " ")
    page.goto(f"{daemon.dashboard}search?q=grp:{group}")
    assert str(member) in page.inner_text("table.jobs")
    clients.producer.delete(member)
    page.goto(f"{daemon.dashboard}job?id={waiting}")
    assert reason not in page.inner_text("main")
