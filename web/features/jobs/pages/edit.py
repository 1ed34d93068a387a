"""The form that edits a job: its initial values, its submitted values, and the detection of concurrent changes.

A text area cannot return every body unchanged: browsers send line endings as CRLF, and drop NULs. So the form shows a
body as text only if the text area returns the same bytes, and as base64 otherwise.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from flask import render_template
from werkzeug.exceptions import BadRequest, Forbidden, HTTPException

from greenstalk_server.core.jobs.job import DELAYED, READY, RESERVED, SECOND, STATE_NAMES, Job
from greenstalk_server.core.tags.tags import NO_DEADLINE
from greenstalk_server.web.changes.operations import Changes
from greenstalk_server.web.features.jobs.pages.details import reservation
from greenstalk_server.web.framework import fields, text
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.fields import MAX_NUMBER, MAX_PUT, Fields
from greenstalk_server.web.reads.jobs.body_format import decode_text, describe_body, indented_json

TEXT: Final = "text"
BASE64: Final = "base64"
INDENTED: Final = "indented"
"""Encodings of the body in a form. INDENTED is TEXT with each value of the JSON on its own line."""

CRLF: Final = "CRLF"
LF: Final = "LF"


@dataclass(frozen=True, slots=True)
class Form:
    """The values of the form.

    version         digest of the job when the server rendered the form; see `version`.
    delay           empty to keep the current delay.
    expires         the policy of the tube makes the job expire.
    is_renewed      the job will expire as if it had been put now.
    body            None if it cannot be edited here; *why_no_body* gives the reason.
    encoding        encoding of *body*: TEXT or BASE64.
    can_be_text     the job's body can be edited as text.
    can_be_indented *body* is JSON that is not indented yet.
    is_reordered    *body* has characters that change the direction of text.
    line_ends       line endings of the saved body: CRLF or LF.
    """

    version: str
    pri: str
    delay: str
    ttr: str
    encoding: str
    can_be_text: bool
    can_be_indented: bool
    is_reordered: bool
    body: str | None
    why_no_body: str
    line_ends: str
    expires: bool
    is_renewed: bool


def version(job: Job, body: bytes, sees_bodies: bool) -> str:
    """Return a digest of the values of *job* that the form can change, and of its tube and state."""
    seen = (job.tube.name, job.state, job.pri, job.delay, job.ttr, job.size)
    digest = blake2b(repr(seen).encode(), digest_size=16)
    if not _why_no_body(job, sees_bodies):
        digest.update(body)
    return digest.hexdigest()


def initial_form(job: Job, body: bytes, sees_bodies: bool, encoding: str = "") -> Form:
    """Return the form with the values of *job*; its *body* is in *encoding*, by default in TEXT if possible."""
    why_no_body = _why_no_body(job, sees_bodies)
    as_text = None if why_no_body else as_lines(body)
    is_text = as_text is not None and encoding != BASE64
    indented = indented_json(as_text) if as_text is not None else None
    if is_text and encoding == INDENTED and indented is not None:
        as_text = indented
    shown = None if why_no_body else as_text if is_text else base64.encodebytes(body).decode()
    return Form(
        version=version(job, body, sees_bodies),
        pri=str(job.pri),
        delay="",
        ttr=str(job.ttr // SECOND),
        encoding=TEXT if is_text else BASE64,
        can_be_text=as_text is not None,
        can_be_indented=is_text and indented not in (None, as_text),
        is_reordered=shown is not None and text.is_reordered(shown),
        body=shown,
        why_no_body=why_no_body,
        line_ends=line_ends(body),
        expires=_expires(job),
        is_renewed=False,
    )


def submitted_form(job: Job, body: bytes, form: Fields, sees_bodies: bool) -> Form:
    """Return the submitted form, to show it again with the current *job* and *body*."""
    why_no_body = _why_no_body(job, sees_bodies)
    return Form(
        version=version(job, body, sees_bodies),
        pri=form.get("pri", ""),
        delay=form.get("delay", ""),
        ttr=form.get("ttr", ""),
        encoding=BASE64 if form.get("encoding") == BASE64 else TEXT,
        can_be_text=True,
        can_be_indented=False,
        is_reordered=text.is_reordered(form.get("body", "")),
        body=None if why_no_body else form.get("body", ""),
        why_no_body=why_no_body,
        line_ends=line_ends(body),
        expires=_expires(job),
        is_renewed=form.get("renew") == "1",
    )


def read_changes(form: Fields, job: Job, old: bytes, max_job_size: int, sees_bodies: bool) -> Changes:
    """Return the changes that *form* makes to *job*, whose body is *old*; raise BadRequest for an invalid field."""
    pri = fields.number(form, "pri", 0, MAX_NUMBER)
    ttr = fields.number(form, "ttr", 1, MAX_NUMBER) * SECOND
    delay = None
    if form.get("delay", "").strip():
        delay = fields.number(form, "delay", 0, MAX_NUMBER) * SECOND
        if job.state not in (READY, DELAYED):
            raise BadRequest("“delay” can be changed only while the job is ready or delayed. Leave it empty.")
    body = read_body(form, job, old, sees_bodies) if "body" in form else old
    if body != old and len(body) > max_job_size:
        raise BadRequest(f"“body” must be at most {text.size(max_job_size)}, but has {text.number(len(body))} bytes.")
    return Changes(
        pri=pri if pri != job.pri else None,
        delay=delay,
        ttr=ttr if ttr != job.ttr else None,
        body=body if body != old else None,
        is_renewed=form.get("renew") == "1",
    )


def read_body(form: Fields, job: Job, old: bytes, sees_bodies: bool) -> bytes:
    """Return the new body of *job* from *form*; *old* is its current body."""
    why_not = _why_no_body(job, sees_bodies)
    if why_not:
        raise Forbidden(f"The body cannot be edited here: {why_not}. Nothing was changed.")
    if form.get("encoding", TEXT) == TEXT:
        return from_lines(form["body"], line_ends(old))
    if form["encoding"] != BASE64:
        raise BadRequest(f"“encoding” must be {TEXT} or {BASE64}, not “{form['encoding'][:40]}”.")
    try:
        return base64.b64decode("".join(form["body"].split()), validate=True)
    except ValueError as error:  # binascii.Error, or non-ASCII characters
        raise BadRequest(f"“body” is not valid base64: {error}.") from error


def as_lines(body: bytes) -> str | None:
    """Return *body* as text with LF line endings; None if a text area would not return the same bytes."""
    found = decode_text(body, is_cut=False)
    if found is None:
        return None
    lines = found.replace("\r\n", "\n")
    return lines if from_lines(lines, line_ends(body)) == body and "\r" not in lines else None


def from_lines(lines: str, ends: str) -> bytes:
    """Return the body for *lines*, as sent by a browser, with the line endings *ends* (CRLF or LF)."""
    found = lines.replace("\r\n", "\n")
    return (found.replace("\n", "\r\n") if ends == CRLF else found).encode(errors="replace")


def line_ends(body: bytes) -> str:
    """Return the line endings of *body*: CRLF if it contains a CRLF, else LF."""
    return CRLF if b"\r\n" in body else LF


def edit_page(job: Job, body: bytes, form: Form, now: int, refusal: HTTPException | None = None) -> str:
    """Return the page with *form* for *job* and its *body*; *refusal* is the reason if the form was refused."""
    has_deadline = job.state in (DELAYED, RESERVED) and job.deadline < NO_DEADLINE
    left = max(0, job.deadline - now) // SECOND if has_deadline else 0
    return render_template(
        "edit.html",
        id=str(job.id),
        tube=job.tube.name.decode(),
        state=STATE_NAMES[job.state],
        left=text.duration(left),
        reservation=reservation(job),
        form=form,
        refusal=refusal.description if refusal is not None else "",
        now={"State": STATE_NAMES[job.state], "Tube": job.tube.name.decode(), "Priority": str(job.pri),
             "TTR, s": str(job.ttr // SECOND), "Body": text.size(job.size)},
        body_view=describe_body(body) if refusal is not None and principal().sees_bodies else None,
        max_number=MAX_NUMBER,
    )  # fmt: skip


def _expires(job: Job) -> bool:
    """Whether the policy of its tube makes *job* expire some time after its put."""
    return job.tube.policy_state is not None and job.tube.policy_state.policy.expire_after > 0


def _why_no_body(job: Job, sees_bodies: bool) -> str:
    if not sees_bodies:
        return "bodies are hidden from you"
    return f"it is larger than {text.size(MAX_PUT)}" if job.size > MAX_PUT else ""
