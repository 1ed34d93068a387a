"""Saved searches: queries under a name, shared by all users. Admins save and delete them."""

from __future__ import annotations

from werkzeug.exceptions import BadRequest, Conflict, NotFound

from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.reads.jobs.query import Query, QueryError, TextMatch, parse
from greenstalk_server.web.store.audit import Audit
from greenstalk_server.web.store.saved_data import MAX_NAME_LENGTH, LimitExceeded, SavedData, SavedSearch


class SavedSearches:
    """Saves, lists and deletes searches."""

    def __init__(self, saved: SavedData, audit: Audit) -> None:
        self.saved: SavedData = saved
        self._audit: Audit = audit

    def visible(self) -> list[SavedSearch]:
        """Return the searches by name, without searches of a tube that the principal may not see."""
        found = sorted(self.saved.searches.values(), key=lambda search: search.name.casefold())
        return [search for search in found if _is_visible(search)]

    def keep(self, name: str, query: Query) -> SavedSearch:
        """Save *query* under *name*, replacing a search of that name; return it. Switches.

        Raise BadRequest if the query is empty, and Conflict if there is no room.
        """
        if not query.terms:
            raise BadRequest("“q” is empty: a search needs at least one term.")
        search = SavedSearch(name, str(query))
        try:
            self.saved.add_search(search)
        except LimitExceeded as error:
            raise Conflict(f"The search was not saved: {error}.") from None
        self._audit.note("search/save", name=name, query=search.q)
        self.saved.save()
        return search

    def forget(self, name: str) -> None:
        """Delete the search *name*; raise NotFound if it does not exist, or is not visible. Switches."""
        search = self.saved.searches.get(name)
        if search is None or not _is_visible(search):
            raise NotFound(f"There is no saved search “{name[:MAX_NAME_LENGTH]}”.")
        self.saved.remove_search(name)
        self._audit.note("search/delete", name=name)
        self.saved.save()


def _is_visible(search: SavedSearch) -> bool:
    """Return whether the principal may see every tube that *search* names, and all tubes of its name prefixes."""
    try:
        terms = parse(search.q).terms
    except QueryError:  # saved by another version of the server, or edited by hand
        return principal().sees_all
    tubes = [term.value.text for term in terms if term.name == "tube" and isinstance(term.value, TextMatch)]
    return all(principal().sees(tube.encode()) for tube in tubes)
