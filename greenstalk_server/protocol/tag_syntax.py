"""Syntax of the tags at the end of a put line: `idp:KEY[:TTL]`, `grp:KEY`, `aft:KEY` and `con:KEY[:N]`, in any order.

A KEY has the syntax of a tube name, so it contains no colon. docs/protocol-extensions.md describes the tags.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from greenstalk_server.core.tags.tags import Tags
from greenstalk_server.core.tube_names import is_tube_name

MAX_U32: Final = 2**32 - 1
_MAX_DIGITS: Final = len(str(MAX_U32))

BEGINS_TAG: Final = rb" (?:idp|grp|aft|con):"
"""Pattern of the beginning of a tag, with the space before it."""

_begins_tag: Final = re.compile(BEGINS_TAG)


def has_tag(text: bytes) -> bool:
    """Whether a word of *text*, the part of a put line after the size, begins like a tag."""
    return _begins_tag.search(text) is not None


def parse_tags(words: list[bytes], seconds: Callable[[bytes, int], int]) -> Tags | None:
    """Parse *words* as tags; return None if a tag is malformed or repeated, or if `grp` and `aft` name the same group.

    *seconds* parses a number of seconds, at most its second argument, into nanoseconds. Its exceptions propagate.
    """
    tags = Tags()
    for word in words:
        tag, _, rest = word.partition(b":")
        key, colon, number = rest.partition(b":")
        if not is_tube_name(key):
            return None
        if tag == b"idp" and not tags.idempotency_key:
            tags.idempotency_key = key
            tags.idempotency_ttl = seconds(number, MAX_U32) if colon else 0
        elif tag == b"con" and not tags.concurrency_key:
            tags.concurrency_key = key
            tags.concurrency_limit = _limit(number) if colon else 1
            if not tags.concurrency_limit:
                return None
        elif tag == b"grp" and not tags.group and not colon:
            tags.group = key
        elif tag == b"aft" and not tags.after and not colon:
            tags.after = key
        else:
            return None
    return None if tags.group and tags.group == tags.after else tags  # such a job would wait for itself


def _limit(digits: bytes) -> int:
    """Return the number in *digits*, 1 to 2**32-1; 0 if it is malformed or out of range."""
    if not digits.isdigit() or len(digits.lstrip(b"0")) > _MAX_DIGITS:
        return 0
    value = int(digits)
    return value if value <= MAX_U32 else 0
