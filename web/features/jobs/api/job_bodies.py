"""The bodies of jobs as text in JSON."""

from __future__ import annotations

import base64
from typing import Final, Literal

from greenstalk_server.web.features.jobs.export import encode_body
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.api.problems import refuse
from greenstalk_server.web.framework.fields import MAX_PUT

Encoding = Literal["utf-8", "base64"]

MAX_JSON_BODY: Final = MAX_PUT
"""Bytes of the largest job body inside JSON. Larger bodies are available at `/jobs/{id}/body` only."""


def body_in(body: str, encoding: Encoding, limit: int, field: str = "body") -> bytes:
    """Decode *body*; refuse *field* if that fails, or if the result exceeds MAX_JSON_BODY or *limit* bytes."""
    if encoding == "utf-8":
        raw = body.encode()
    else:
        try:
            raw = base64.b64decode(body, validate=True)
        except ValueError as error:  # also binascii.Error, and the error for characters outside ASCII
            refuse(field, f"is not base64: {error}")
    most = min(MAX_JSON_BODY, limit)
    if len(raw) > most:
        refuse(field, f"must be at most {text.size(most)}, but has {text.number(len(raw))} bytes")
    return raw


def body_out(body: bytes) -> tuple[Encoding, str]:
    """Return the encoding of *body* in JSON, and *body* as text in that encoding."""
    encoding, shown = encode_body(body)
    return ("utf-8" if encoding == "utf-8" else "base64"), shown
