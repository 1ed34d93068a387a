"""The tasks of an operator. Each begins on the overview, and asserts its outcome."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from playwright.sync_api import expect

from tools.usability.operator import Operator
from tools.usability.scenario import CUSTOMER, CUSTOMER_JOBS, FAILED, QUIET_TUBES, Scenario

TUBES: Final = QUIET_TUBES + 6
"""Tubes of the scenario, `default` included."""


@dataclass(frozen=True, slots=True)
class Task:
    """A question that an operator answers with the dashboard, or a change that they make with it.

    max_clicks      the largest number of clicks that is acceptable.
    """

    title: str
    carry_out: Callable[[Operator, Scenario], None]
    max_clicks: int


def _find_what_is_wrong(operator: Operator, scenario: Scenario) -> None:
    operator.sees(operator.page.get_by_role("heading", name="Needs attention"))
    for tube in ("exports.csv", "imports", "billing.invoices"):
        operator.sees(operator.page.locator(".condition", has_text=tube).first)


def _find_the_most_common_error(operator: Operator, scenario: Scenario) -> None:
    row = operator.page.locator(".condition", has_text="imports")
    expect(row.locator(".top-error")).to_contain_text("KeyError")
    operator.sees(row)


def _retry_one_error(operator: Operator, scenario: Scenario) -> None:
    _open_errors(operator)
    operator.click(operator.page.locator(".error-group").nth(1).get_by_role("button", name=re.compile("Retry")))
    operator.click_button(f"Retry {FAILED['TimeoutError']} jobs")
    expect(operator.page.locator("#main")).to_contain_text(f"{FAILED['TimeoutError']} retried")


def _find_the_holder_of_a_job(operator: Operator, scenario: Scenario) -> None:
    operator.write(operator.page.locator("#find"), str(scenario.held))
    operator.press("Enter")
    operator.sees(operator.page.locator("section", has_text="Held by").get_by_text(f"127.0.0.1:{scenario.worker}"))


def _find_why_a_tube_lags(operator: Operator, scenario: Scenario) -> None:
    _open_condition(operator, "billing.invoices")
    workers = operator.page.locator(".workers")
    operator.sees(workers.get_by_role("link", name=f"job {scenario.held}"))
    operator.sees(operator.page.locator(".vital", has_text="Oldest ready"))


def _find_the_jobs_of_a_customer(operator: Operator, scenario: Scenario) -> None:
    _search_customer(operator)


def _move_the_jobs_of_a_customer(operator: Operator, scenario: Scenario) -> None:
    _search_customer(operator)
    operator.click(operator.page.locator("#bulk-panel > summary"))
    expect(operator.page.locator("#bulk-panel input[value=all]")).to_be_checked()
    operator.choose(operator.page.locator("#bulk-panel select[name=action]"), "Move to another tube")
    operator.write(operator.page.locator("#bulk-panel input[name=to]"), "moved")
    operator.click(operator.page.locator("#bulk-panel").get_by_role("button", name="Preview"))
    operator.click_button(f"Move {CUSTOMER_JOBS} jobs")
    expect(operator.page.locator("#main")).to_contain_text(f"{CUSTOMER_JOBS} moved")


def _pause_the_quiet_tubes(operator: Operator, scenario: Scenario) -> None:
    operator.click(operator.page.get_by_text("Act on tubes", exact=True))
    operator.write(operator.page.locator("#act-pattern"), "quiet.*")
    operator.click_button("Preview")
    operator.click_button(f"Pause {QUIET_TUBES} tubes")
    expect(operator.page.locator("#main")).to_contain_text(f"{QUIET_TUBES} paused")


def _delete_one_failed_job(operator: Operator, scenario: Scenario) -> None:
    _open_errors(operator)
    operator.click(operator.page.locator(".error-group").last.locator(".error-sample a"))
    operator.click_button(re.compile("Delete job [0-9]+"))
    expect(operator.page.locator(".banner.done")).to_contain_text("deleted")


def _compare_with_last_week(operator: Operator, scenario: Scenario) -> None:
    operator.click(operator.page.locator(".spans").get_by_role("link", name=re.compile("week")))
    operator.click(operator.page.locator(".compares").get_by_role("link", name="a week ago"))
    operator.sees(operator.page.get_by_text(re.compile("alues.* of a week ago")))


def _open_errors(operator: Operator) -> None:
    _open_condition(operator, "imports")


def _open_condition(operator: Operator, tube: str) -> None:
    operator.click(operator.page.locator(".condition", has_text=tube).locator(".sentence"))


def _search_customer(operator: Operator) -> None:
    operator.write(operator.page.locator("#find"), f"body.customer.id:{CUSTOMER}")
    operator.press("Enter")
    expect(operator.page.locator("tbody tr[data-key]")).to_have_count(CUSTOMER_JOBS)


TASKS: Final = (
    Task("Is anything wrong?", _find_what_is_wrong, 0),
    Task("What is the most common error of the failing tube?", _find_the_most_common_error, 0),
    Task("Retry the jobs with one error", _retry_one_error, 3),
    Task("Which worker holds job N?", _find_the_holder_of_a_job, 1),
    Task("Why does a tube lag?", _find_why_a_tube_lags, 1),
    Task("Which jobs belong to a customer?", _find_the_jobs_of_a_customer, 1),
    Task("Move the jobs of a customer to another tube", _move_the_jobs_of_a_customer, 7),
    Task("Pause all tubes that match a pattern", _pause_the_quiet_tubes, 4),
    Task("Delete one failed job", _delete_one_failed_job, 3),
    Task("Compare with last week", _compare_with_last_week, 2),
)
