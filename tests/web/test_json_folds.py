"""Indented JSON with parts to fold: no line is lost, and only long parts fold."""

from __future__ import annotations

import json

from hypothesis import given

from greenstalk_server.web.reads.jobs.body_format import MAX_JSON_TOKENS, indent_json
from greenstalk_server.web.reads.jobs.json_folds import FOLDED_FROM, MAX_FOLDS, Fold, Node, fold_json

from .test_body import JSON_VALUES


def text_of(nodes: tuple[Node, ...]) -> str:
    """Return the text in which all *nodes* are unfolded."""
    parts = list[str]()
    for node in nodes:
        parts += [node] if isinstance(node, str) else [node.first, text_of(node.nodes), node.last]
    return "\n".join(parts)


def depth_of(nodes: tuple[Node, ...]) -> int:
    return max((1 + depth_of(node.nodes) for node in nodes if isinstance(node, Fold)), default=0)


def folded(value: object) -> tuple[Node, ...]:
    return fold_json(indent_json(json.dumps(value)))


def test_long_object_or_array_inside_another_is_a_fold() -> None:
    value = {"id": 1, "lines": list(range(FOLDED_FROM)), "end": "{"}
    before, fold, after = folded(value)
    assert (before, after) == ('{\n  "id": 1,', '  "end": "{"\n}')
    assert isinstance(fold, Fold)
    assert (fold.first, fold.last, fold.lines) == ('  "lines": [', "  ],", FOLDED_FROM)
    assert fold.nodes == ("\n".join(f"    {at}," for at in range(FOLDED_FROM))[:-1],)


def test_short_parts_and_the_outermost_are_text() -> None:
    for value in ({"lines": list(range(FOLDED_FROM - 1))}, list(range(9 * FOLDED_FROM))):
        assert folded(value) == (indent_json(json.dumps(value)),)


def test_folds_are_nested_up_to_a_maximum() -> None:
    value: object = list(range(FOLDED_FROM))
    for _ in range(3 * MAX_FOLDS):
        value = {"more": value}
    assert depth_of(folded(value)) == MAX_FOLDS
    brackets = "[" * MAX_JSON_TOKENS + "]" * MAX_JSON_TOKENS
    assert text_of(fold_json(indent_json(brackets))) == indent_json(brackets)


@given(JSON_VALUES)
def test_unfolded_text_is_the_indented_text(value: object) -> None:
    source = indent_json(json.dumps([value] * 9))
    assert text_of(fold_json(source)) == source
