"""The marks that the current principal may see and add."""

from __future__ import annotations

from typing import Final

from msgspec import convert
from msgspec.structs import replace
from werkzeug.exceptions import Forbidden

from greenstalk_server.web.features.marks.marks import POLICY, Mark, Marks
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.shards import Shards
from greenstalk_server.web.store.audit import Audit

QUESTION: Final = "marks"


def may_mark(tube: str) -> bool:
    """Return whether the principal may add marks to *tube*, or to the whole server if it is empty."""
    who = principal()
    if not tube:
        return who.is_admin or (who.operates_any and who.sees_all)
    return who.operates(tube.encode())


def add_mark(marks: Marks, audit: Audit, text: str, tube: str = "", at: int = 0) -> Mark:
    """Add a mark of the principal; raise Forbidden if it is not allowed. Does not switch."""
    if not may_mark(tube):
        raise Forbidden(f"You may not add marks to {f'the tube “{tube}”' if tube else 'the whole server'}.")
    mark = marks.add(text, tube=tube, at=at, who=principal().name)
    audit.note("mark/add", tube=tube, text=mark.text)
    return mark


class VisibleMarks:
    """The marks of all shards that the current principal may see."""

    def __init__(self, marks: Marks, shards: Shards) -> None:
        """*marks* are those of the own shard."""
        self._marks: Marks = marks
        self._shards: Shards = shards
        shards.answer(QUESTION, self._own)

    def find(self, tube: str | None, since: int, until: int) -> list[Mark]:
        """Return the marks of all shards that `Marks.find` selects, oldest first. Switches if there are others."""
        found = self._own(tube, since, until)
        for answer in self._shards.ask_others(QUESTION, tube=tube, since=since, until=until).values():
            found += convert(answer, list[Mark])
        return sorted(found, key=lambda mark: mark.at) if self._shards.others else found

    def _own(self, tube: str | None, since: int, until: int) -> list[Mark]:
        return _visible(self._marks.find(tube, since, until))


def _visible(marks: list[Mark]) -> list[Mark]:
    """Return those of *marks* that the principal may see.

    A mark of a policy names the policy, so it needs the right to see all tubes. Authors are shown only to principals
    who may read the audit log.
    """
    who, found = principal(), list[Mark]()
    for mark in marks:
        if not who.sees_all and (mark.kind == POLICY or (mark.tube and not who.sees(mark.tube.encode()))):
            continue
        found.append(mark if who.sees_audit or not mark.who else replace(mark, who=""))
    return found
