"""API endpoints of saved searches: queries stored under a name."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from greenstalk_server.config.tables.roles import ADMIN
from greenstalk_server.web.features.saved_searches.saved_searches import SavedSearches as SearchChanges
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.api.problems import refuse
from greenstalk_server.web.framework.api.values import RequestModel, ResponseModel
from greenstalk_server.web.reads.jobs.matching import read_query
from greenstalk_server.web.reads.jobs.query import QueryError
from greenstalk_server.web.store.saved_data import Name, QueryText, SavedSearch


class SavedSearchList(ResponseModel):
    """All saved searches."""

    searches: list[SavedSearch]
    trouble: Annotated[str, Meta(description="Reason why the last change is not on disk; empty if it is.")]


class SaveSearchRequest(RequestModel):
    """A query to save under a name."""

    name: Name
    q: QueryText


class SavedSearchRequest(RequestModel):
    """The saved search."""

    name: Name


class SavedSearchesEndpoints:
    """Saved searches: queries under a name, shared by all users of the dashboard."""

    def __init__(self, searches: SearchChanges) -> None:
        self._searches: SearchChanges = searches

    @endpoint("GET", "/saved-searches")
    def list_saved_searches(self) -> SavedSearchList:
        """List the saved searches, by name."""
        return SavedSearchList(searches=self._searches.visible(), trouble=self._searches.saved.store.last_error)

    @endpoint("POST", "/saved-searches", role=ADMIN, status=201, errors={409: "There is no room for another search."})
    def save_search(self, body: SaveSearchRequest) -> SavedSearch:
        """Save a search. It replaces a search of the same name."""
        name = " ".join(body.name.split())
        if not name:
            refuse("name", "must not be blank")
        try:
            query = read_query({"q": body.q})
        except QueryError as error:
            refuse("q", str(error))
        if not query.terms:
            refuse("q", "must have at least one term")
        return self._searches.keep(name, query)

    @endpoint("DELETE", "/saved-searches", role=ADMIN, status=204, errors={404: "The search does not exist."})
    def delete_saved_search(self, query: SavedSearchRequest) -> None:
        """Delete a saved search."""
        self._searches.forget(query.name)
