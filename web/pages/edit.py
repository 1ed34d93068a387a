"""The form that changes a job: what it begins with, what it brings back, and how it tells that the job has changed.

A text area cannot hold every body: browsers send each line's end as CRLF, and drop NULs. So a body stands there as text
only if it comes back as it was, and in base64 else.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from flask import render_template
from werkzeug.exceptions import BadRequest, Forbidden, HTTPException

from greenstalk_server.core.job import DELAYED, READY, RESERVED, SECOND, STATE_NAMES, Job
from greenstalk_server.web import fields, text
from greenstalk_server.web.auth.access import visitor
from greenstalk_server.web.fields import MAX_NUMBER, MAX_PUT, Fields
from greenstalk_server.web.jobs.body_format import decode_text, describe_body
from greenstalk_server.web.pages.details import reservation

TEXT: Final = "text"
BASE64: Final = "base64"

CRLF: Final = "CRLF"
LF: Final = "LF"


@dataclass(frozen=True, slots=True)
class Form:
    """What stands in the form.

    version         what the job was when it was filled in.
    delay           empty to leave it as it is.
    body            None if it cannot be changed here; *why_no_body* says why.
    encoding        what *body* is given in, TEXT or BASE64.
    can_be_text     the job's body can stand there as text.
    is_reordered    *body* has characters that change the order in which it is shown.
    line_ends       what the ends of its lines become: CRLF or LF.
    """

    version: str
    pri: str
    delay: str
    ttr: str
    encoding: str
    can_be_text: bool
    is_reordered: bool
    body: str | None
    why_no_body: str
    line_ends: str


@dataclass(frozen=True, slots=True)
class Changes:
    """What the form changes of a job: None for what it leaves; times in nanoseconds."""

    pri: int | None
    delay: int | None
    ttr: int | None
    body: bytes | None

    def names(self) -> str:
        """Which they are, as one text; empty if none."""
        return ", ".join(name for name in self.__slots__ if getattr(self, name) is not None)


def version(job: Job, body: bytes, sees_bodies: bool) -> str:
    """A digest of all that the form changes of *job* with its *body*, and of what decides how: its tube and state."""
    seen = (job.tube.name, job.state, job.pri, job.delay, job.ttr, job.size)
    digest = blake2b(repr(seen).encode(), digest_size=16)
    if not _why_no_body(job, sees_bodies):
        digest.update(body)
    return digest.hexdigest()


def initial_form(job: Job, body: bytes, sees_bodies: bool, encoding: str = "") -> Form:
    """The form as it begins; the job's *body* in *encoding*, or in TEXT if that can hold it."""
    why_no_body = _why_no_body(job, sees_bodies)
    as_text = None if why_no_body else as_lines(body)
    is_text = as_text is not None and encoding != BASE64
    shown = None if why_no_body else as_text if is_text else base64.encodebytes(body).decode()
    return Form(
        version=version(job, body, sees_bodies),
        pri=str(job.pri),
        delay="",
        ttr=str(job.ttr // SECOND),
        encoding=TEXT if is_text else BASE64,
        can_be_text=as_text is not None,
        is_reordered=shown is not None and text.is_reordered(shown),
        body=shown,
        why_no_body=why_no_body,
        line_ends=line_ends(body),
    )


def submitted_form(job: Job, body: bytes, form: Fields, sees_bodies: bool) -> Form:
    """The form as it came back, to be shown again over *job* and its *body* as they are by now."""
    why_no_body = _why_no_body(job, sees_bodies)
    return Form(
        version=version(job, body, sees_bodies),
        pri=form.get("pri", ""),
        delay=form.get("delay", ""),
        ttr=form.get("ttr", ""),
        encoding=BASE64 if form.get("encoding") == BASE64 else TEXT,
        can_be_text=True,
        is_reordered=text.is_reordered(form.get("body", "")),
        body=None if why_no_body else form.get("body", ""),
        why_no_body=why_no_body,
        line_ends=line_ends(body),
    )


def read_changes(form: Fields, job: Job, old: bytes, max_job_size: int, sees_bodies: bool) -> Changes:
    """What *form* changes of *job*, whose body is *old*; raise BadRequest, which names the field, if that cannot be."""
    pri = fields.number(form, "pri", 0, MAX_NUMBER)
    ttr = fields.number(form, "ttr", 1, MAX_NUMBER) * SECOND
    delay = None
    if form.get("delay", "").strip():
        delay = fields.number(form, "delay", 0, MAX_NUMBER) * SECOND
        if job.state not in (READY, DELAYED):
            raise BadRequest("“delay” can be given only while the job is ready or delayed.")
    body = read_body(form, job, old, sees_bodies) if "body" in form else old
    if body != old and len(body) > max_job_size:
        raise BadRequest(f"“body” must be at most {text.size(max_job_size)}, and has {text.number(len(body))}.")
    return Changes(
        pri=pri if pri != job.pri else None,
        delay=delay,
        ttr=ttr if ttr != job.ttr else None,
        body=body if body != old else None,
    )


def read_body(form: Fields, job: Job, old: bytes, sees_bodies: bool) -> bytes:
    """The body that *form* brings for *job*, in the place of *old*."""
    why_not = _why_no_body(job, sees_bodies)
    if why_not:
        raise Forbidden(f"The body cannot be changed here: {why_not}.")
    if form.get("encoding", TEXT) == TEXT:
        return from_lines(form["body"], line_ends(old))
    if form["encoding"] != BASE64:
        raise BadRequest(f"“encoding” must be {TEXT} or {BASE64}, not “{form['encoding'][:40]}”.")
    try:
        return base64.b64decode("".join(form["body"].split()), validate=True)
    except ValueError as error:  # binascii.Error is one, and so is what it says of other than ASCII
        raise BadRequest(f"“body” is not base64: {error}.") from error


def as_lines(body: bytes) -> str | None:
    """*body* as text with LF between lines; None if a text area would not give the same back."""
    found = decode_text(body, is_cut=False)
    if found is None:
        return None
    lines = found.replace("\r\n", "\n")
    return lines if from_lines(lines, line_ends(body)) == body and "\r" not in lines else None


def from_lines(lines: str, ends: str) -> bytes:
    """The body of *lines* as a browser sends them, with CRLF or LF between."""
    found = lines.replace("\r\n", "\n")
    return (found.replace("\n", "\r\n") if ends == CRLF else found).encode(errors="replace")


def line_ends(body: bytes) -> str:
    """What ends the lines of *body*: CRLF if there is one in it, else LF."""
    return CRLF if b"\r\n" in body else LF


def edit_page(job: Job, body: bytes, form: Form, now: int, refusal: HTTPException | None = None) -> str:
    """The page with *form* over *job* and its *body*; *refusal* is why what was sent was refused."""
    left = max(0, job.deadline - now) // SECOND if job.state in (DELAYED, RESERVED) else 0
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
        look=describe_body(body) if refusal is not None and visitor().sees_bodies else None,
        max_number=MAX_NUMBER,
    )  # fmt: skip


def _why_no_body(job: Job, sees_bodies: bool) -> str:
    if not sees_bodies:
        return "bodies are hidden from you"
    return f"it is larger than {text.size(MAX_PUT)}" if job.size > MAX_PUT else ""
