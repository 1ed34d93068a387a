"""Error pages: which status, what happened, and what to do about it. The API's errors are api.framework.problems'."""

from __future__ import annotations

from typing import Final

from flask import Flask, Response, make_response, render_template, request, url_for
from werkzeug.exceptions import HTTPException

from greenstalk_server.web.api.framework import problems
from greenstalk_server.web.auth.access import is_api_request

ADVICE: Final = {
    400: "Nothing was changed.",
    401: "Reload the page to be asked again.",
    403: "Nothing was changed.",
    404: "There is no page at this address. Tubes and jobs are found from the overview.",
    405: "This page cannot be asked for in that way. Nothing was changed.",
    409: "Nothing was changed.",
    413: "The request is larger than this dashboard accepts. Nothing was changed.",
    429: "Nobody else is kept out. If this goes on, somebody or something there is trying wrong passwords.",
    421: "Nothing was shown, so that no other site can read this page through a name of its own.",
    503: "Nothing was changed. The overview tells how the server is.",
    500: "The dashboard failed to make this page; the queue itself goes on. The server's log has the details.",
}

WAY_BACK_AT_MOST: Final = 64 * 1024
"""Bytes of a request that is read to say where it came from."""


def init_app(app: Flask) -> None:
    """Have *app* answer every error with a page; a view's own failure is logged by Flask, and becomes a 500."""
    app.register_error_handler(HTTPException, error_page)


def error_page(error: HTTPException) -> Response:
    """Return *error* as a page, or as the API has it, with the headers that belong to it."""
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
        back=_way_back(error.code),
    )
    response = make_response(page, error.code)
    for key, value in error.get_headers():
        if key.lower() != "content-type":
            response.headers.add(key, value)
    return response


def _advice(code: int, is_ours: bool) -> str:
    if code == 404 and is_ours:
        return "Other tubes and jobs are found from the overview."
    if code == 500 and is_ours:
        return "Nothing was changed."
    return ADVICE.get(code, "")


def _way_back(code: int) -> tuple[str, str] | None:
    """Return the label and address of the confirmation, job or tube of a refused change, if it names one."""
    if request.method != "POST" or request.content_length is None or request.content_length > WAY_BACK_AT_MOST:
        return None
    try:
        form = request.form
    except HTTPException:  # it broke off, or is no form
        return None
    if request.endpoint == "bulk_run" and code != 404 and (task := form.get("task")):
        return "Back to the confirmation", url_for("bulk", task=task[:64])
    if id := form.get("id"):
        return f"Back to job {id[:20]}", url_for("job", id=id[:20])
    if name := form.get("tube"):
        return "Back to the tube", url_for("tube", tube=name[:200])
    return None
