"""Requests whose forms are bounded, because the event loop parses them: a field takes about a microsecond."""

from __future__ import annotations

from typing import Final

from flask import Request
from werkzeug.exceptions import RequestEntityTooLarge

MAX_FIELDS: Final = 1200
"""Maximum fields of a form: the largest form has 1000 ticked jobs. MAX_FORM_PARTS of Flask bounds multipart forms."""

MAX_SIGN_IN_FORM: Final = 32 * 1024
"""Bytes of a form that anybody may send, without credentials."""

URLENCODED: Final = "application/x-www-form-urlencoded"


class BoundedRequest(Request):
    """A request that refuses a form with too many fields before it parses the form."""

    def _load_form_data(self) -> None:
        is_loaded = "form" in self.__dict__
        if not is_loaded and self.mimetype == URLENCODED and self.get_data().count(b"&") >= MAX_FIELDS:
            raise RequestEntityTooLarge(f"The form has more than {MAX_FIELDS} fields.")
        super()._load_form_data()
