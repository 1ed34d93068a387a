"""Parser of a page: its table of tubes, its visible text, and its elements."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = frozenset({"meta", "link", "img", "input", "br", "wbr", "hr"})


class Page(HTMLParser):
    """A parsed page.

    tubes       a list of cell texts per row of the table of tubes.
    elements    tag and attributes of every element outside `<template>`.
    text        all text outside `<template>`.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tubes: list[list[str]] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self._is_tubes = False
        self.feed(html)
        self.close()
        assert not self._open, f"left open: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        assert len(attributes) == len(attrs), f"attribute twice in {tag}: {attrs}"
        if "template" not in self._open:
            self.elements.append((tag, attributes))
        if tag not in VOID:
            self._open.append(tag)
        if attributes.get("id") == "tubes":
            self._is_tubes = True
        elif self._is_tubes and tag == "tr":
            self.tubes.append([])
        elif self._is_tubes and tag in ("td", "th"):
            self.tubes[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"never opened: {tag}"
        assert self._open.pop() == tag, f"closed in the wrong order: {tag}"
        if tag == "tbody":
            self._is_tubes = False

    def handle_data(self, data: str) -> None:
        if "template" in self._open:
            return
        self.text += data
        if self._is_tubes and self._open[-1] in ("td", "th", "a", "span"):
            self.tubes[-1][-1] += data

    def attribute(self, id: str, name: str) -> str | None:
        """Return the attribute *name* of the element with *id*."""
        return next(attributes for _, attributes in self.elements if attributes.get("id") == id).get(name)

    def runs_only_our_scripts(self) -> bool:
        """Return whether every script is one of our files, and no attribute contains a script."""
        sources = [attributes.get("src") or "" for tag, attributes in self.elements if tag == "script"]
        names = [name for _, attributes in self.elements for name in attributes]
        return all(source.startswith("/static/") for source in sources) and not any(n.startswith("on") for n in names)

    def is_shown(self, id: str) -> bool:
        return "hidden" not in next(attributes for _, attributes in self.elements if attributes.get("id") == id)
