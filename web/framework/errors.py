"""Error pages: the status, what happened, and what to do. The API's errors are in framework.api.problems."""

from __future__ import annotations

from typing import Final

from flask import Flask, Response, make_response, render_template, request, url_for
from werkzeug.exceptions import HTTPException

from greenstalk_server.web.framework.access import is_api_request
from greenstalk_server.web.framework.api import problems

ADVICE: Final = {
    401: "Reload the page to sign in.",
    404: "There is no page at this address. Find tubes and jobs from the overview.",
    405: "This page does not support the request method.",
    413: "The request exceeds the dashboard's size limit.",
    429: "Other addresses can still sign in. If this persists, a client at your address is sending wrong passwords.",
    421: "Nothing was shown, so that no other site can read this page through its own host name (DNS rebinding).",
    503: "See the overview for the state of the server.",
    500: "The dashboard failed to build this page. The queue is not affected. See the server's log for details.",
}

REFUSED: Final = (400, 403, 405, 409, 413, 503)
"""Statuses of a change that was refused as a whole."""

MAX_PARSED_FORM: Final = 64 * 1024
"""Largest request, in bytes, whose form is parsed to build the link back."""


def init_app(app: Flask) -> None:
    """Have *app* answer every error with a page. Flask logs an exception in a view and makes it a 500."""
    app.register_error_handler(HTTPException, error_page)


def error_page(error: HTTPException) -> Response:
    """Return *error* as a page, or as a problem document for the API, with its headers."""
    if error.code is None:  # a ready-made response, such as a redirect
        return make_response(error.get_response())
    if is_api_request():
        return problems.answer(error)
    is_ours = error.description is not None and error.description != type(error).description
    page = render_template(
        "error.html",
        code=error.code,
        name=error.name,
        message=error.description if is_ours else "",
        advice=_advice(error.code, is_ours),
        back=_back_link(error.code),
    )
    response = make_response(page, error.code)
    for key, value in error.get_headers():
        if key.lower() != "content-type":
            response.headers.add(key, value)
    return response


def _advice(code: int, is_ours: bool) -> str:
    if code == 404 and is_ours:
        return "Find other tubes and jobs from the overview."
    if code == 500 and is_ours:
        return "Nothing was changed."
    is_refused_change = code in REFUSED and request.method not in ("GET", "HEAD")
    return " ".join(filter(None, ("Nothing was changed." if is_refused_change else "", ADVICE.get(code, ""))))


def _back_link(code: int) -> tuple[str, str] | None:
    """Return label and URL of the confirmation, job or tube that a refused change names, or None."""
    if request.method != "POST" or request.content_length is None or request.content_length > MAX_PARSED_FORM:
        return None
    try:
        form = request.form
    except HTTPException:  # truncated, or not a form
        return None
    if request.endpoint == "bulk_run" and code != 404 and (task := form.get("task")):
        return "Back to the confirmation", url_for("bulk", task=task[:64])
    if id := form.get("id"):
        return f"Back to job {id[:20]}", url_for("job", id=id[:20])
    if name := form.get("tube"):
        return "Back to the tube", url_for("tube", tube=name[:200])
    return None
