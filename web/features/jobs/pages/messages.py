"""The message of a job framework in a body, as the page of the job shows it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from greenstalk_server.web.reads.jobs.body_format import Pane, json_pane
from greenstalk_server.web.reads.jobs.body_terms import CLASS, FieldMatch
from greenstalk_server.web.reads.jobs.frameworks import DecodedJob, decode
from greenstalk_server.web.reads.jobs.query import Query, Term


@dataclass(frozen=True, slots=True)
class MessageDetails:
    """A message; *arguments* is None if they are unknown; *query* finds the jobs of its class."""

    message: DecodedJob
    arguments: Pane | None
    query: str


def message_details(body: bytes) -> MessageDetails | None:
    """Return the message in *body*; None if its format is unknown."""
    message = decode(body)
    if message is None:
        return None
    arguments = None
    if message.arguments is not None:
        arguments = json_pane("Arguments", json.dumps(message.arguments, ensure_ascii=False, indent=2))
    query = Query((Term(CLASS, FieldMatch(message.class_name, is_quoted=True)),))
    return MessageDetails(message, arguments, str(query))
