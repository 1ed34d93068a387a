"""Option values in messages and logs: quoted, short, and without passwords."""

from __future__ import annotations

import re
from typing import Final

MAX_QUOTED: Final = 60
"""Characters of a value that a message shows."""

_PASSWORD: Final = re.compile(
    r"(://[^:/@?]*:)(?:.*(?=@)|[^@&]*)|(:/[^:/@?]*:).*(?=@)"
    r"|([?&](?:ssl)?password=)[^&]*|((?:^|\s)password\s*=).*",
    re.DOTALL,
)
"""The password in a database URL, in a mistyped one that lacks a slash, or in a list of keywords and values."""


def is_database_url(where: str) -> bool:
    """Whether *where* is the URL of a database rather than a directory."""
    return where.startswith(("postgresql://", "postgres://"))


def without_password(url: str) -> str:
    """Return *url* with its password, if any, replaced by stars."""
    return _PASSWORD.sub(r"\1\2\3\4***", url)


def quote_value(text: str) -> str:
    """Return the option value *text* for a message: without a password, cut if it is long, and quoted."""
    text = without_password(text)
    return quote(text if len(text) <= MAX_QUOTED else text[:MAX_QUOTED] + "…")


def quote(text: str) -> str:
    """Return *text* with quotes if its start or end would not be clear without them."""
    return text if text.isprintable() and text and " " not in text else repr(text)
