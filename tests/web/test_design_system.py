"""The style sheets take colours, text sizes, weights and radii from static/tokens.css, whose text has contrast."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

from greenstalk_server.web.framework.assets import static_folder, template_folder

TOKENS = "tokens.css"
SHEETS = sorted(path.name for path in Path(static_folder()).glob("*.css") if path.name != TOKENS)

DECLARATION = re.compile(r"([a-z-]+):\s*([^;{}]+);")
COLOR = re.compile(r"#[0-9a-fA-F]{3,8}\b|\b(?:rgba?|hsla?|oklch|oklab|lab|lch|light-dark)\(")
NAMED = re.compile(r"\b(?:white|black|red|green|blue|gr[ae]y|orange|yellow|purple|violet|pink|brown|silver|gold)\b")
FROM_TOKENS = {
    "font-size": re.compile(r"var\(--text-[a-z]+\)|inherit|0"),
    "font-family": re.compile(r"var\(--(?:sans|mono)\)|inherit"),
    "font-weight": re.compile(r"var\(--(?:regular|medium|strong)\)|inherit"),
    "border-radius": re.compile(r"(?:(?:var\(--radius[a-z-]*\)|0|50%)\s*)+"),
    "box-shadow": re.compile(r"var\(--shadow\)|0 1px var\(--line\)"),
}
"""The values that a property may have outside the file of tokens."""

TEXTS = ("main", "muted", "faint", "accent", "reserved", "delayed", "buried", "failure")
GROUNDS = ("page", "panel", "hover")
ON_TINTS = (
    ("warning", "warning-tint"),
    ("main", "warning-tint"),
    ("main", "failure-tint"),
    *product(("on-fill",), ("accent-fill", "accent-fill-hover", "failure-fill", "failure-fill-hover")),
)
PAIRS = [*product(TEXTS, GROUNDS), *ON_TINTS]


def sheet(name: str) -> str:
    text = Path(static_folder(), name).read_text()
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def colors() -> dict[str, tuple[str, str]]:
    """Return the colours of the tokens by name, each as a pair: light theme, dark theme."""
    found = re.findall(r"--([a-z-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", sheet(TOKENS))
    return {name: (light, dark) for name, light, dark in found}


def luminance(color: str) -> float:
    """Return the relative luminance of WCAG 2.2."""
    shares = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", SHEETS)
def test_style_sheets_take_values_from_the_tokens(name: str) -> None:
    found = DECLARATION.findall(sheet(name))
    assert len(found) > 20
    literal = [(key, value) for key, value in found if COLOR.search(value) or NAMED.search(value)]
    assert literal == [], "a colour that is not a token"
    for key, allowed in FROM_TOKENS.items():
        assert [value for name, value in found if name == key and not allowed.fullmatch(value.strip())] == []
    assert [value for key, value in found if key == "font"] == [], "the shorthand hides its parts"


@pytest.mark.parametrize("name", SHEETS)
def test_style_sheets_use_tokens_that_exist(name: str) -> None:
    defined = set(re.findall(r"(--[a-z0-9-]+):", "".join(map(sheet, [TOKENS, *SHEETS]))))
    assert set(re.findall(r"var\((--[a-z0-9-]+)", sheet(name))) - defined == set()


def test_no_token_is_unused() -> None:
    used = set(re.findall(r"var\((--[a-z0-9-]+)", "".join(map(sheet, [TOKENS, *SHEETS]))))
    assert set(re.findall(r"(--[a-z0-9-]+):", sheet(TOKENS))) - used == set()


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_texts_have_contrast(theme: int) -> None:
    tokens = colors()
    ratios = {(text, ground): contrast(tokens[text][theme], tokens[ground][theme]) for text, ground in PAIRS}
    assert {pair: round(ratio, 2) for pair, ratio in ratios.items() if ratio < 4.5} == {}
    assert contrast(tokens["edge"][theme], tokens["panel"][theme]) >= 3, "the edge of a field"


def test_theme_color_of_the_browser_matches_the_header() -> None:
    declared = re.findall(
        r'name="theme-color".*content="(#[0-9a-f]{6})"', Path(template_folder(), "base.html").read_text()
    )
    assert tuple(declared) == colors()["panel"]
