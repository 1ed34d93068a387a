"""Job templates (`Sample` in the code). Principals who may operate the tube of a template save and delete it."""

from __future__ import annotations

from typing import Final

from werkzeug.exceptions import Conflict, NotFound

from greenstalk_server.web.framework.access import principal, require_operator
from greenstalk_server.web.store.audit import Audit
from greenstalk_server.web.store.saved_data import MAX_NAME_LENGTH, LimitExceeded, Sample, SavedData

DEFAULT_PRI: Final = 65536
DEFAULT_TTR: Final = 60
"""Initial values of the put form, the defaults of client libraries."""


class Samples:
    """Saves and deletes job templates."""

    def __init__(self, saved: SavedData, audit: Audit) -> None:
        self._saved: SavedData = saved
        self._audit: Audit = audit

    def keep(self, sample: Sample) -> None:
        """Save *sample*, replacing any sample of the same name; raise Conflict if the store is full. Switches."""
        require_operator(sample.tube.encode())
        if (replaced := self._saved.samples.get(sample.name)) is not None:
            require_operator(replaced.tube.encode())
        try:
            self._saved.add_sample(sample)
        except LimitExceeded as error:
            raise Conflict(f"The template was not saved: {error}.") from None
        self._audit.note("sample/save", name=sample.name, tube=sample.tube, bytes=len(sample.body.encode()))
        self._saved.save()

    def forget(self, name: str) -> None:
        """Delete the sample *name*; raise NotFound if it does not exist. Switches."""
        sample = visible_samples(self._saved).get(name)
        if sample is not None:
            require_operator(sample.tube.encode())
        if sample is None or not self._saved.remove_sample(name):
            raise NotFound(f"There is no template “{name[:MAX_NAME_LENGTH]}”.")
        self._audit.note("sample/delete", name=name)
        self._saved.save()


def visible_samples(saved: SavedData) -> dict[str, Sample]:
    """Return the samples for tubes that the principal may see, by name."""
    sees = principal().sees
    return {name: sample for name, sample in saved.samples.items() if sees(sample.tube.encode())}
