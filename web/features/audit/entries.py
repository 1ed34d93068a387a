"""The entries of the audit log that match a filter, for admins."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from werkzeug.exceptions import Forbidden

from greenstalk_server.core.tube_names import to_regex
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.store.audit import Audit, Entry

MAX_SCANNED: Final = 50_000
"""Entries scanned for one page: about half a second. A page that hits the limit says so."""

MAX_FILTER_LENGTH: Final = 200

MAX_CURSOR: Final = 2**63 - 1

JOB_CHANGES: Final = {"tube/clear": "delete", "job/copy": "put"}
"""The change that an action makes to jobs, for actions whose path does not name the change."""

END_OF_TIME: Final = 2**63


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter of entries. A text matches as a case-insensitive substring; an empty text matches every entry.

    who             the user.
    what            the action's path, or the change that it makes to one or more jobs.
    tube            the tube, the tube that jobs were moved to, or a pattern that matches it.
    id              the job's id; 0 for any.
    since, until    in nanoseconds since the epoch; *until* is excluded.
    """

    who: str = ""
    what: str = ""
    tube: str = ""
    id: int = 0
    since: int = 0
    until: int = END_OF_TIME

    def passes(self, entry: Entry) -> bool:
        details = entry.details
        actions = (entry.what, JOB_CHANGES.get(entry.what, ""), details.get("action", ""))
        tubes = (details.get("tube", ""), details.get("to", ""), details.get("pattern", ""))
        return (
            self.since <= entry.at < self.until
            and self.who.lower() in entry.who.lower()
            and any(self.what.lower() in str(action) for action in actions)
            and (any(self.tube.lower() in str(tube).lower() for tube in tubes) or self._is_matched(tubes[-1]))
            and (not self.id or self.id in (details.get("id"), details.get("of")))
        )

    def _is_matched(self, pattern: str | int) -> bool:
        """Return whether *pattern*, by which tubes were changed, matches the tube of the filter."""
        return bool(pattern) and re.fullmatch(to_regex(str(pattern)), self.tube) is not None


def require_audit_access() -> None:
    """Raise Forbidden unless the principal may see the audit log."""
    if not principal().sees_audit:
        raise Forbidden("Only admins can see the audit log.")


def find_entries(audit: Audit, wanted: Filter, before: int, limit: int) -> tuple[list[Entry], int, bool]:
    """Return at most *limit* matching entries older than the cursor *before*, newest first. May switch.

    Also return the cursor of the next page, or 0, and whether the scan hit MAX_SCANNED.
    """
    found: list[Entry] = []
    for scanned, entry in enumerate(audit.newest_first(before)):
        if len(found) == limit:
            return found, found[-1].number, False
        if scanned == MAX_SCANNED:
            return found, entry.number + 1, True
        if wanted.passes(entry):
            found.append(entry)
    return found, 0, False
