"""Error pages: which status, what happened, and what to do about it."""

from __future__ import annotations

from typing import Final

from flask import Flask, Response, make_response, render_template
from werkzeug.exceptions import HTTPException

ADVICE: Final = {
    400: "The request could not be understood.",
    401: "Reload the page to be asked again.",
    403: "Nothing was changed.",
    404: "There is no page at this address. Tubes and jobs are found from the overview.",
    405: "This page cannot be asked for in that way. Nothing was changed.",
    413: "The request is larger than this dashboard accepts. Nothing was changed.",
    421: "Nothing was shown, so that no other site can read this page through a name of its own.",
    500: "The dashboard failed to make this page; the queue itself goes on. The server's log has the details.",
}


def install(app: Flask) -> None:
    """Have *app* answer every error with a page; a view's own failure is logged by Flask, and becomes a 500."""
    app.register_error_handler(HTTPException, error_page)


def error_page(error: HTTPException) -> Response:
    """Return *error* as a page, with the headers that belong to it."""
    if error.code is None:  # a ready-made response, such as a redirect
        return make_response(error.get_response())
    is_ours = error.description is not None and error.description != type(error).description
    page = render_template(
        "error.html",
        code=error.code,
        name=error.name,
        message=error.description if is_ours else "",
        advice=ADVICE.get(error.code, ""),
    )
    response = make_response(page, error.code)
    for key, value in error.get_headers():
        if key.lower() != "content-type":
            response.headers.add(key, value)
    return response
