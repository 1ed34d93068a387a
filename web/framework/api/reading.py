"""Strict parsing of requests into the types of an endpoint. An error names the field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Final, NoReturn, TypeVar

import msgspec
from flask import request
from msgspec import Struct
from werkzeug.exceptions import UnsupportedMediaType

from greenstalk_server.web.framework.api.endpoint import JSON
from greenstalk_server.web.framework.api.problems import WHOLE, refuse
from greenstalk_server.web.framework.api.schema import at, fields_of, in_words, resolved

T = TypeVar("T")

_DIGITS: Final = re.compile(r"[0-9]{1,20}")
_BOOLEANS: Final = {"true": True, "false": False}

_ERROR: Final = re.compile(r"(?P<what>.*?)(?: - at `\$(?P<path>[^`]*)`)?", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(\w+)`")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
"""Messages of msgspec: any error with the path of the value; a missing field; an unknown field."""


def read_query(struct: type[Struct] | None) -> Struct | None:
    """Return the query parameters as a *struct*; None if the endpoint has none."""
    properties = fields_of(struct)[0] if struct is not None else {}
    values: dict[str, Any] = {}
    for name, texts in request.args.lists():
        if name not in properties:
            known = f"the parameters are {', '.join(properties)}" if properties else "there are no parameters here"
            refuse(name[:100], f"is not known: {known}")
        if len(texts) > 1:
            refuse(name, "is given more than once")
        values[name] = _from_text(texts[0], properties[name])
    return _converted(values, struct) if struct is not None else None


def read_path(types: Mapping[str, Any], texts: dict[str, str]) -> dict[str, Any]:
    """Return the path parameters, each converted to its type."""
    return {name: _part(name, types[name], text) for name, text in texts.items()}


def read_body(type: Any, raw: bytes, *, is_needed: bool) -> Any:
    """Return the request body *raw* as a *type*; None if it is empty and optional."""
    if not raw and not is_needed:
        return None
    if request.mimetype != JSON:
        raise UnsupportedMediaType("Send the body as JSON, with the header “Content-Type: application/json”.")
    try:
        _refuse_long(type, raw)
        return msgspec.json.decode(raw, type=type)
    except msgspec.ValidationError as error:
        _refuse_invalid(error, type)
    except ValueError as error:  # UnicodeDecodeError is one, and so is msgspec.DecodeError
        refuse(WHOLE, f"is not JSON: {error}")


def _refuse_long(type: Any, raw: bytes) -> None:
    """Raise ValidationError if *raw* is an array with more elements than *type* allows, before decoding the elements.

    msgspec checks `max_length` only after it has decoded all elements, which takes 150 ms for 60,000 jobs.
    """
    schema = at(type, "")
    most = max([choice.get("maxItems", 0) for choice in schema.get("anyOf", [schema])])
    if most and raw.lstrip().startswith(b"["):
        with suppress(RecursionError):  # an element is nested too deeply; decoding will refuse it
            msgspec.json.decode(raw, type=_array_of(most))


@cache
def _array_of(most: int) -> type[Struct]:
    """Return the type of an array of at most *most* elements, which are not decoded."""
    elements = [(f"element_{place}", msgspec.Raw, msgspec.Raw()) for place in range(most)]
    return msgspec.defstruct("Elements", elements, array_like=True, forbid_unknown_fields=True)


def _part(name: str, type: Any, text: str) -> Any:
    schema = at(type, "")
    try:
        value = msgspec.convert(_from_text(text, schema), type)
    except msgspec.ValidationError:
        value = None
    # msgspec supports no bounds above 2**63, but a job id can be larger.
    if value is None or (isinstance(value, int) and value > schema.get("maximum", value)):
        refuse(name, f"must be {in_words(schema)}")
    return value


def _converted(values: dict[str, Any], type: type[T]) -> T:
    try:
        return msgspec.convert(values, type)
    except msgspec.ValidationError as error:
        _refuse_invalid(error, type)


def _from_text(text: str, schema: dict[str, Any]) -> Any:
    """Return *text* as a value of the type of *schema*; *text* itself if that is not possible."""
    kind = schema.get("type")
    if kind == "integer" and _DIGITS.fullmatch(text):
        return int(text)
    return _BOOLEANS.get(text, text) if kind == "boolean" else text


def _refuse_invalid(error: msgspec.ValidationError, type: Any) -> NoReturn:
    """Raise Invalid for the field that *error* names; *error* comes from decoding a *type*."""
    match = _ERROR.fullmatch(str(error))
    assert match is not None
    what, path = match["what"], match["path"] or ""
    if missing := _MISSING.fullmatch(what):
        refuse(_field(f"{path}.{missing[1]}"), "is missing")
    if unknown := _UNKNOWN.fullmatch(what):
        known = ", ".join(resolved(at(type, path), {}).get("properties", {}))
        refuse(_field(f"{path}.{unknown[1][:100]}"), f"is not known{f': the fields are {known}' if known else ''}")
    allowed = in_words(at(type, path))
    refuse(_field(path), f"must be {allowed}" if allowed else what)


def _field(path: str) -> str:
    return path.removeprefix(".") or WHOLE
