"""JSON Schemas of the API's types, and descriptions of schemas in words for messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import msgspec

Schema = dict[str, Any]

REFERENCE: Final = "#/components/schemas/{name}"

_DESCRIPTIONS: Final = {
    "ServerStats": "The keys that `stats` of the protocol has in beanstalkd; times in seconds.",
    "TubeExtension": "The extended keys of `stats-tube` of the protocol; times in seconds.",
}
"""Descriptions of compiled types, which have no docstrings."""

_STEP: Final = re.compile(r"\.([A-Za-z_]\w*)|\[(?:\d+|\.\.\.)\]")


@cache
def of_type(type: Any) -> tuple[Schema, dict[str, Schema]]:
    """Return the schema of *type*, and the schemas that it refers to, by name."""
    (schema,), components = msgspec.json.schema_components([type], ref_template=REFERENCE)
    for name in _DESCRIPTIONS.keys() & components.keys():
        components[name].setdefault("description", _DESCRIPTIONS[name])
    return schema, components


def fields_of(struct: type[msgspec.Struct]) -> tuple[dict[str, Schema], list[str]]:
    """Return the schemas of the fields of *struct*, and the names of its required fields."""
    schema, components = of_type(struct)
    target = resolved(schema, components)
    return target.get("properties", {}), target.get("required", [])


def resolved(schema: Schema, components: Mapping[str, Schema]) -> Schema:
    """Return the schema that *schema* refers to, or *schema* itself."""
    reference = schema.get("$ref")
    return components[reference.rpartition("/")[2]] if reference else schema


def at(type: Any, path: str) -> Schema:
    """Return the schema at *path*, such as `[0].pri`, in a value of *type*; empty if it is unknown."""
    schema, components = of_type(type)
    for step in _STEP.finditer(path):
        schema = _below(schema, components, step[1])
    return resolved(schema, components)


def in_words(schema: Schema) -> str:
    """Describe the values of *schema*: `a whole number from 0 to 10`, `one of ready, buried`; empty for any value."""
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    if "anyOf" in schema:
        choices = sorted(schema["anyOf"], key=lambda one: one.get("type") == "array")  # "a list of …" ends the sentence
        return " or ".join(filter(None, map(in_words, choices)))
    if "$ref" in schema:
        return f"an object ({schema['$ref'].rpartition('/')[2]})"
    words = _WORDS.get(schema.get("type", ""))
    return words(schema) if words is not None else ""


def _below(schema: Schema, components: Mapping[str, Schema], name: str | None) -> Schema:
    """Return the schema of the property *name*, or of an array's items if *name* is None."""
    schema = resolved(schema, components)
    for choice in (resolved(one, components) for one in schema.get("anyOf", [schema])):
        if name is None and "items" in choice:
            return dict(choice["items"])
        if name is not None and name in choice.get("properties", {}):
            return dict(choice["properties"][name])
    return {}


def _number(schema: Schema) -> str:
    noun = "a whole number" if schema["type"] == "integer" else "a number"
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None and most is not None:
        return f"{noun} from {least} to {most}"
    return f"{noun} of at least {least}" if least is not None else noun


def _string(schema: Schema) -> str:
    if "pattern" in schema:
        return str(schema.get("description", "a string of the documented form")).rstrip(".").partition(". ")[0]
    if schema.get("format") == "date-time":
        return "a time"
    return f"a string of at most {schema['maxLength']} characters" if "maxLength" in schema else "a string"


def _array(schema: Schema) -> str:
    least, most = schema.get("minItems"), schema.get("maxItems")
    many = f" of {least or 0} to {most} items" if most is not None else ""
    return f"a list{many}, each {in_words(schema.get('items', {}))}"


_WORDS: Final[Mapping[str, Callable[[Schema], str]]] = {
    "integer": _number,
    "number": _number,
    "string": _string,
    "array": _array,
    "boolean": lambda _: "true or false",
    "null": lambda _: "null",
    "object": lambda _: "an object",
}
