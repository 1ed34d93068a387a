"""The body of a job to put, as the API receives it."""

from __future__ import annotations

import base64

from greenstalk_server.web.features.jobs.jobs import MAX_JSON_BODY, Encoding
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.api.problems import refuse


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
