"""Texts with bidirectional control characters: pages show them in logical order, and forms do not change them."""

from __future__ import annotations

import pytest
from flask import Flask, render_template_string
from flask.testing import FlaskClient
from markupsafe import Markup, escape

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import putting
from greenstalk_server.web.framework import text
from greenstalk_server.web.reads.jobs.body_format import describe_body, row_preview

from .conftest import Queue
from .forms import post
from .table import Page

EVIL = "reason=\N{RIGHT-TO-LEFT OVERRIDE}evil\N{POP DIRECTIONAL FORMATTING}"
SPELLED = "reason=⟨U+202E⟩evil⟨U+202C⟩"
CONTROLS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


@pytest.mark.parametrize("control", CONTROLS)
def test_control_is_spelled_out(control: str) -> None:
    assert text.spelled(f"a{control}b") == f"a⟨U+{ord(control):04X}⟩b"
    assert text.is_reordered(control)


@pytest.mark.parametrize("value", ["", "a", "שלום", "☃", "\u200d", "é", 5, None, Markup("\u202e")])
def test_other_values_are_unchanged(value: object) -> None:
    assert text.html(value) == str(value)


@pytest.mark.parametrize("value", ["<b>&amp;</b>", "'single' \"double\"", "a\u202e<b", 5, True, Markup("<b>")])
def test_value_is_shown_as_escaped_html(app: Flask, value: object) -> None:
    shown = escape(text.spelled(value) if isinstance(value, str) and not isinstance(value, Markup) else value)
    assert text.html(value) == shown
    with app.test_request_context():
        assert render_template_string("{{ value }}", value=value) == shown


def test_body_is_spelled_out_in_lists_and_panes() -> None:
    assert row_preview(EVIL.encode()) == SPELLED
    (pane,) = describe_body(EVIL.encode()).panes
    assert pane.text == EVIL and "spelled out" in pane.note
    assert "spelled out" not in describe_body("שלום".encode()).panes[0].note


def test_pages_spell_out_what_a_form_keeps(queue: Queue, client: FlaskClient) -> None:
    id = putting.put_into(queue.broker, b"mail", 0, 0, 60 * SECOND, EVIL.encode(), queue.now)
    post(client, "/tube/pause", tube="mail", seconds=60, reason=EVIL)
    for path in ("/tube?tube=mail", f"/job?id={id}", "/search?q=evil", "/audit"):
        page = Page(client.get(path).text)
        assert SPELLED in page.text, path
        titles = [attributes.get("title") or "" for _, attributes in page.elements]
        assert not [shown for shown in (page.text, *titles) if text.is_reordered(shown)], path
    assert client.get("/live?page=tube&tube=mail").json["rows"]["jobs"][0][-1] == SPELLED
    form = client.get(f"/job/form?id={id}").text
    assert EVIL in form
    assert "characters that change the direction of text" in form
