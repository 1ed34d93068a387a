"""The stylesheet: text has the contrast that WCAG AA requires on every background."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from greenstalk_server.web.framework.assets import static_folder, template_folder

TEXT_COLORS = ("ink", "ink-soft", "ink-faint", "accent", "ready", "reserved", "delayed", "buried")
BACKGROUNDS = ("canvas", "surface", "raised")


def themes() -> dict[str, dict[str, str]]:
    css = Path(static_folder(), "style.css").read_text()
    colors = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\);", css)
    return {
        "light": {name: light for name, light, _ in colors},
        "dark": {name: dark for name, _, dark in colors},
    }


def luminance(color: str) -> float:
    channels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast_is_aa(theme: str) -> None:
    colors = themes()[theme]
    pairs = [(ink, ground) for ink in TEXT_COLORS for ground in BACKGROUNDS] + [("ink", "notice")]
    weak = {(ink, ground): contrast(colors[ink], colors[ground]) for ink, ground in pairs}
    assert {pair: round(ratio, 2) for pair, ratio in weak.items() if ratio < 4.5} == {}


def test_every_color_is_defined_for_both_themes() -> None:
    css = Path(static_folder(), "style.css").read_text()
    assert re.findall(r"--[\w-]+: #.*", css) == []
    assert set(re.findall(r"var\(--([\w-]+)\)", css)) <= set(re.findall(r"--([\w-]+):", css))


def test_theme_color_is_the_canvas_color() -> None:
    html = Path(template_folder(), "base.html").read_text()
    found = re.findall(r'prefers-color-scheme: (\w+)\)".*? content="(#\w+)"', html)
    assert found == [(name, colors["canvas"]) for name, colors in themes().items()]
