"""Saved searches: queries under a name, shared by all users. Admins save and delete them."""

from __future__ import annotations

from typing import Final

from flask import Flask, redirect, request, url_for
from werkzeug.exceptions import BadRequest, Conflict, NotFound
from werkzeug.wrappers import Response

from greenstalk_server.config.tables.roles import ADMIN
from greenstalk_server.web.framework import fields
from greenstalk_server.web.framework.access import visitor
from greenstalk_server.web.framework.rights import open_to
from greenstalk_server.web.reads.jobs.matching import read_query
from greenstalk_server.web.reads.jobs.query import Query, QueryError, TextMatch, parse
from greenstalk_server.web.store.audit import Audit
from greenstalk_server.web.store.store import SavedSearch, SearchLimitExceeded, Store

MAX_NAME_LENGTH: Final = 60
"""Characters."""


class SavedSearches:
    """The saved searches of *store*, and the actions that save and delete one."""

    def __init__(self, store: Store, audit: Audit) -> None:
        self._store: Store = store
        self._audit: Audit = audit

    def init_app(self, app: Flask) -> None:
        """Add the actions to *app*, and the function `saved_searches` to its templates."""
        app.add_url_rule("/search/save", "search_save", self.save, methods=["POST"])
        app.add_url_rule("/search/delete", "search_delete", self.delete, methods=["POST"])
        app.jinja_env.globals["saved_searches"] = self.visible

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
        saved = self.keep(name, query)
        return redirect(url_for("search", q=saved.query, notice="saved-search", n=0), 303)

    @open_to(ADMIN)
    def delete(self) -> Response:
        """Form `name`: delete the search. Switches."""
        self.forget(request.form.get("name", ""))
        return redirect(url_for("search", notice="deleted-search", n=0), 303)

    def visible(self) -> list[SavedSearch]:
        """Return the searches by name, without those of a tube that the visitor may not see."""
        found = sorted(self._store.searches.values(), key=lambda search: search.name.casefold())
        return [search for search in found if _is_visible(search)]

    @property
    def trouble(self) -> str:
        """Reason why the last changes are not on disk; empty if they are."""
        return self._store.trouble

    def keep(self, name: str, query: Query) -> SavedSearch:
        """Save *query* under *name*, replacing a search of that name; return it. Switches.

        Raise BadRequest if the query is empty, and Conflict if there is no room.
        """
        if not query.terms:
            raise BadRequest("“q” is empty: a search needs at least one term.")
        search = SavedSearch(name, str(query))
        try:
            self._store.add_search(search)
        except SearchLimitExceeded as error:
            raise Conflict(f"The search was not saved: {error}.") from None
        self._audit.note("search/save", name=name, query=search.query)
        self._store.save()
        return search

    def forget(self, name: str) -> None:
        """Delete the search *name*; raise NotFound if it does not exist, or is not visible. Switches."""
        search = self._store.searches.get(name)
        if search is None or not _is_visible(search):
            raise NotFound(f"There is no saved search “{name[:MAX_NAME_LENGTH]}”.")
        self._store.remove_search(name)
        self._audit.note("search/delete", name=name)
        self._store.save()


def _is_visible(search: SavedSearch) -> bool:
    """Return whether the visitor may see every tube that *search* names, and all tubes of its name prefixes."""
    try:
        terms = parse(search.query).terms
    except QueryError:  # of another version of the server, or edited by hand
        return visitor().sees_all
    tubes = [term.value.text for term in terms if term.name == "tube" and isinstance(term.value, TextMatch)]
    return all(visitor().sees(tube.encode()) for tube in tubes)
