"""The forms that save and delete searches, and the list of searches for templates."""

from __future__ import annotations

from flask import Flask, redirect, request, url_for
from werkzeug.exceptions import BadRequest
from werkzeug.wrappers import Response

from greenstalk_server.config.tables.roles import ADMIN
from greenstalk_server.web.features.saved_searches.saved_searches import SavedSearches
from greenstalk_server.web.framework import fields
from greenstalk_server.web.framework.rights import open_to
from greenstalk_server.web.reads.jobs.matching import read_query
from greenstalk_server.web.reads.jobs.query import QueryError
from greenstalk_server.web.store.saved_data import MAX_NAME_LENGTH


class SavedSearchPages:
    """The forms that save and delete searches."""

    def __init__(self, searches: SavedSearches) -> None:
        self._searches: SavedSearches = searches

    def init_app(self, app: Flask) -> None:
        """Add the actions to *app*, and the function `saved_searches` to its templates."""
        app.add_url_rule("/search/save", "search_save", self.save, methods=["POST"])
        app.add_url_rule("/search/delete", "search_delete", self.delete, methods=["POST"])
        app.jinja_env.globals["saved_searches"] = self._searches.visible

    @open_to(ADMIN)
    def save(self) -> Response:
        """Form `name`, `q`, and `tube` and `state` if the query is the filter of a tube: save the query. Switches."""
        name = fields.line(request.form, "name", MAX_NAME_LENGTH)
        if not name:
            raise BadRequest("“name” is missing. Give the search a name.")
        try:
            query = read_query(request.form)
        except QueryError as error:
            raise BadRequest(f"“q” is not a valid query. {error}") from error
        saved = self._searches.keep(name, query)
        return redirect(url_for("search", q=saved.q, notice="saved-search", n=0), 303)

    @open_to(ADMIN)
    def delete(self) -> Response:
        """Form `name`: delete the search. Switches."""
        self._searches.forget(request.form.get("name", ""))
        return redirect(url_for("search", notice="deleted-search", n=0), 303)
