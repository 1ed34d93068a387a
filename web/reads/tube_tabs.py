"""The tabs of a tube's pages, which belong to several features."""

from __future__ import annotations

from dataclasses import dataclass

from flask import url_for


@dataclass(frozen=True, slots=True)
class PageTab:
    """A tab of the pages of a tube."""

    label: str
    href: str
    is_current: bool


def page_tabs(tube: str, current: str) -> list[PageTab]:
    """Return the tabs of the pages of *tube*; *current* is the label of the current one."""
    here = url_for("tube", tube=tube)
    tabs = (
        ("Jobs", here),
        ("Errors", url_for("tube_errors", tube=tube)),
        ("History", url_for("tube_history", tube=tube)),
        ("Policy", f"{here}#policy"),
    )
    return [PageTab(label, href, label == current) for label, href in tabs]
