"""Fields of JSON bodies in lists and exports of jobs."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta
from werkzeug.exceptions import Forbidden

from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.api.problems import refuse
from greenstalk_server.web.reads.jobs.json_fields import (
    MAX_COLUMNS,
    MAX_PARSED,
    MAX_PATH,
    Path,
    PathError,
    parse_columns,
)

FieldPaths = Annotated[
    str,
    Meta(
        max_length=MAX_COLUMNS * (MAX_PATH + 1),
        description=f"Fields of JSON bodies to include, separated by commas, at most {MAX_COLUMNS}. Bodies of more than"
        f" {MAX_PARSED} bytes have no fields.",
        examples=["customer.id,kind"],
    ),
]


def parse_fields(given: str) -> tuple[Path, ...]:
    """Return the paths in *given*; raise an error if one is invalid, or if bodies are hidden."""
    try:
        paths = parse_columns(given)
    except PathError as error:
        refuse("fields", f"is invalid: {error}".rstrip("."))
    if paths and not principal().sees_bodies:
        raise Forbidden("Job bodies are hidden from you, so you cannot read their fields.")
    return paths
