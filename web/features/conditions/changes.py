"""Changes of acknowledgements, with their audit entries."""

from __future__ import annotations

from werkzeug.exceptions import Forbidden, NotFound

from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.features.conditions.acknowledgements import Acknowledgement, Acknowledgements
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.api.values import instant
from greenstalk_server.web.store.audit import Audit


class AcknowledgementChanges:
    """The changes of acknowledgements by principals, and by failures."""

    def __init__(self, acknowledgements: Acknowledgements, clock: Clock, audit: Audit) -> None:
        self.acknowledgements: Acknowledgements = acknowledgements
        self._clock: Clock = clock
        self._audit: Audit = audit

    def acknowledge(self, tubes: str, kind: str, seconds: int, reason: str, *, covers_new: bool) -> Acknowledgement:
        """Acknowledge conditions, as Acknowledgements.add does; raise Forbidden or Conflict. Switches."""
        _require_right(tubes)
        one = self.acknowledgements.add(
            tubes, kind, seconds, principal().name, reason, self._clock(), covers_new=covers_new
        )
        self._audit.note("attention/acknowledge", acknowledgement=one.id, **_scope(one), seconds=seconds, reason=reason)
        self.acknowledgements.save()
        return one

    def end(self, id: int) -> None:
        """End an acknowledgement; raise Forbidden or NotFound. Switches."""
        one = self.acknowledgements.get(id)
        if one is None or not is_visible(one):
            raise NotFound(f"There is no acknowledgement {id}: it has ended.")
        _require_right(one.tubes or "")
        self.acknowledgements.remove(id)
        self._audit.note("attention/acknowledge/end", acknowledgement=id, **_scope(one))
        self.acknowledgements.save()

    def end_after_failure(self, tube: bytes, failed_at: int) -> None:
        """End the acknowledgements of *tube* that do not cover a job that failed at *failed_at*. Does not switch."""
        for one in self.acknowledgements.remove_failed(tube, failed_at):
            self._audit.note_own(
                "attention/acknowledge/end", acknowledgement=one.id, **_scope(one), cause="another job failed"
            )

    def visible(self) -> list[Acknowledgement]:
        """Return the acknowledgements that have not ended, and that the principal may see."""
        now = instant(self._clock())
        return [one for one in self.acknowledgements.all() if one.until > now and is_visible(one)]


def is_visible(one: Acknowledgement) -> bool:
    """Return whether the principal may see the scope of *one*."""
    who = principal()
    return who.sees_all or (bool(one.tubes) and "*" not in str(one.tubes) and who.sees(str(one.tubes).encode()))


def may_acknowledge(tubes: str) -> bool:
    """Return whether the principal may acknowledge the conditions of the pattern *tubes*; empty for all conditions."""
    who = principal()
    return who.is_admin or (bool(tubes) and "*" not in tubes and who.operates(tubes.encode()))


def _require_right(tubes: str) -> None:
    """Raise Forbidden unless `may_acknowledge` returns True."""
    if not may_acknowledge(tubes):
        raise Forbidden("You may acknowledge only conditions of single tubes whose jobs you may change.")


def _scope(one: Acknowledgement) -> dict[str, str | int]:
    return {"tubes": one.tubes or "", "kind": one.condition or ""}
