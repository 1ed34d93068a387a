"""Job templates (`Sample` in the code): saved from the put form, loaded into it, and deleted. For admins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flask import Flask, redirect, request, url_for
from werkzeug.exceptions import BadRequest, Conflict, NotFound
from werkzeug.wrappers import Response

from greenstalk_server.config.tables.roles import OPERATOR
from greenstalk_server.web.framework import fields
from greenstalk_server.web.framework.access import require_operator, visitor
from greenstalk_server.web.framework.fields import MAX_NUMBER, Fields
from greenstalk_server.web.framework.rights import open_to
from greenstalk_server.web.store.audit import Audit
from greenstalk_server.web.store.store import Sample, SampleLimitExceeded, Store

MAX_NAME_LENGTH: Final = 60
"""Characters."""

DEFAULT_PRI: Final = 65536
DEFAULT_TTR: Final = 60
"""Initial values of the put form, the defaults of client libraries."""


@dataclass(frozen=True, slots=True)
class SampleList:
    """The samples for the put form of a tube.

    loaded          the sample that the request names, or None.
    job             the initial values of the form.
    own, others     names of this tube's samples, and names of other tubes' samples.
    trouble         why the last changes are not in the file; empty if they are.
    """

    loaded: Sample | None
    job: Sample
    own: list[str]
    others: list[str]
    trouble: str


class Samples:
    """The actions that save and delete samples in *store*."""

    def __init__(self, store: Store, audit: Audit) -> None:
        self._store: Store = store
        self._audit: Audit = audit

    def init_app(self, app: Flask) -> None:
        """Add the actions to *app*."""
        app.add_url_rule("/sample/save", "sample_save", self.save, methods=["POST"])
        app.add_url_rule("/sample/delete", "sample_delete", self.delete, methods=["POST"])

    @open_to(OPERATOR)
    def save(self) -> Response:
        """Serve `/sample/save`: save the put form's values under `name` for `tube`. Switches."""
        form = request.form
        name = fields.line(form, "name", MAX_NAME_LENGTH)
        if not name:
            raise BadRequest("“name” is missing. Give the template a name.")
        sample = Sample(
            name,
            fields.tube_name(form).decode(),
            fields.number(form, "pri", 0, MAX_NUMBER),
            fields.number(form, "delay", 0, MAX_NUMBER),
            fields.number(form, "ttr", 1, MAX_NUMBER),
            form.get("body", "").replace("\r\n", "\n"),
        )
        self.keep(sample)
        return _redirect(sample.tube, "saved-sample", name)

    @open_to(OPERATOR)
    def delete(self) -> Response:
        """Serve `/sample/delete`: delete the sample `name`, and redirect to `tube`. Switches."""
        tube = fields.tube_name(request.form).decode()
        self.forget(request.form.get("name", ""))
        return _redirect(tube, "deleted-sample", None)

    def keep(self, sample: Sample) -> None:
        """Save *sample*, replacing any sample of the same name; raise Conflict if the store is full. Switches."""
        require_operator(sample.tube.encode())
        if (replaced := self._store.samples.get(sample.name)) is not None:
            require_operator(replaced.tube.encode())
        try:
            self._store.add_sample(sample)
        except SampleLimitExceeded as error:
            raise Conflict(f"The template was not saved: {error}.") from None
        self._audit.note("sample/save", name=sample.name, tube=sample.tube, bytes=len(sample.body.encode()))
        self._store.save()

    def forget(self, name: str) -> None:
        """Delete the sample *name*; raise NotFound if it does not exist. Switches."""
        sample = visible_samples(self._store).get(name)
        if sample is not None:
            require_operator(sample.tube.encode())
        if sample is None or not self._store.remove_sample(name):
            raise NotFound(f"There is no template “{name[:MAX_NAME_LENGTH]}”.")
        self._audit.note("sample/delete", name=name)
        self._store.save()


def visible_samples(store: Store) -> dict[str, Sample]:
    """Return the samples for tubes that the visitor may see, by name."""
    sees = visitor().sees
    return {name: sample for name, sample in store.samples.items() if sees(sample.tube.encode())}


def samples_for(store: Store, given: Fields, tube: str) -> SampleList:
    """Return the samples for the put form of *tube*; the field `sample` names the one to load, if any."""
    visible = visible_samples(store)
    names = sorted(visible, key=str.casefold)
    own = [name for name in names if store.samples[name].tube == tube]
    others = [name for name in names if store.samples[name].tube != tube]
    loaded = visible.get(given.get("sample", ""))
    return SampleList(loaded, loaded or Sample("", tube, DEFAULT_PRI, 0, DEFAULT_TTR, ""), own, others, store.trouble)


def _redirect(tube: str, notice: str, sample: str | None) -> Response:
    return redirect(url_for("tube", tube=tube, sample=sample, notice=notice, n=0), 303)
