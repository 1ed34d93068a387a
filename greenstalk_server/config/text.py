"""Option values in messages and logs: quoted, short, and without passwords."""

from __future__ import annotations

import re
from typing import Final

MAX_QUOTED: Final = 60
"""Maximum characters of a value in a message."""

_PASSWORD: Final = re.compile(
    r"(://[^:/@?]*:)(?:.*(?=@)|[^@&]*)|(:/[^:/@?]*:).*(?=@)"
    r"|([?&](?:ssl)?password=)[^&]*|((?:^|\s)password\s*=).*",
    re.DOTALL,
)
"""The password in a database URL, in one that is mistyped with a single slash, or in a libpq `keyword=value` string."""


def is_database_url(where: str) -> bool:
    """Return whether *where* is the URL of a database rather than a directory."""
    return where.startswith(("postgresql://", "postgres://"))


def without_password(url: str) -> str:
    """Return *url* with its password, if any, replaced by stars."""
    return _PASSWORD.sub(r"\1\2\3\4***", url)


def quote_value(text: str) -> str:
    """Return the option value *text* for a message: without a password, cut if it is long, and quoted."""
    text = without_password(text)
    return quote(text if len(text) <= MAX_QUOTED else text[:MAX_QUOTED] + "…")


def quote(text: str) -> str:
    """Return *text*, quoted and escaped if it is empty or contains spaces or unprintable characters."""
    return text if text.isprintable() and text and " " not in text else repr(text)
