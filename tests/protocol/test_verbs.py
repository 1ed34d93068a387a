"""The documentation agrees with the table of verbs, and the examples of all verbs are commands."""

from __future__ import annotations

import re

import pytest

from greenstalk_server.protocol import codec
from greenstalk_server.protocol.verb import Verb
from greenstalk_server.protocol.verbs import VERBS
from tests.support.daemon import REPOSITORY
from tests.support.grammar import example

EXTENSIONS = [verb for verb in VERBS if verb.is_extension]
NAMES = {verb.name.decode() for verb in VERBS}


def name(verb: Verb) -> str:
    return verb.name.decode()


def test_names_are_unique() -> None:
    assert len(NAMES) == len(VERBS)


@pytest.mark.parametrize("verb", VERBS, ids=name)
def test_documented_arguments_are_parsed(verb: Verb) -> None:
    line = example(verb).partition(b"\r\n")[0]
    assert (codec.known.get(line) or codec.parse(line))[0] is verb


@pytest.mark.parametrize("verb", EXTENSIONS, ids=name)
def test_extension_is_documented(verb: Verb) -> None:
    page = (REPOSITORY / "docs" / "protocol-extensions.md").read_text()
    usage = f"{name(verb)} {verb.arguments}".strip()
    assert usage in page.splitlines(), f"docs/protocol-extensions.md has no line {usage!r}"


def test_documented_grants_match_the_table() -> None:
    table = (REPOSITORY / "docs" / "security.md").read_text().partition("| command | wants |")[2].partition("\n\n")[0]
    wants: dict[str, list[str]] = {}
    for row in table.splitlines()[2:]:
        _, commands, grant, *_ = row.split("|")
        for verb in re.findall(r"`([a-z-]+)`", commands):
            wants.setdefault(verb, []).append(grant)
    assert wants.keys() == NAMES
    for verb in VERBS:
        grants = wants[name(verb)]
        text = verb.permission.text
        assert any(text in grant for grant in grants), f"docs/security.md: {name(verb)} wants {text}, not {grants}"
