"""Job templates on the page of a tube: saved from the put form, loaded into it, and deleted."""

from __future__ import annotations

from dataclasses import dataclass

from flask import Flask, redirect, request, url_for
from werkzeug.exceptions import BadRequest
from werkzeug.wrappers import Response

from greenstalk_server.config.tables.roles import OPERATOR
from greenstalk_server.web.features.samples.samples import (
    DEFAULT_PRI,
    DEFAULT_TTR,
    Samples,
    visible_samples,
)
from greenstalk_server.web.framework import fields
from greenstalk_server.web.framework.fields import MAX_NUMBER, Fields
from greenstalk_server.web.framework.rights import open_to
from greenstalk_server.web.store.saved_data import MAX_NAME_LENGTH, Sample, SavedData


@dataclass(frozen=True, slots=True)
class SampleList:
    """The samples for the put form of a tube.

    loaded          the sample that the request names, or None.
    job             the initial values of the form.
    own, others     names of this tube's samples, and names of other tubes' samples.
    last_error      why the last changes are not in the file; empty if they are.
    """

    loaded: Sample | None
    job: Sample
    own: list[str]
    others: list[str]
    last_error: str


class SamplePages:
    """The forms that save and delete samples."""

    def __init__(self, samples: Samples) -> None:
        self._samples: Samples = samples

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
        self._samples.keep(sample)
        return _redirect(sample.tube, "saved-sample", name)

    @open_to(OPERATOR)
    def delete(self) -> Response:
        """Serve `/sample/delete`: delete the sample `name`, and redirect to `tube`. Switches."""
        tube = fields.tube_name(request.form).decode()
        self._samples.forget(request.form.get("name", ""))
        return _redirect(tube, "deleted-sample", None)


def samples_for(saved: SavedData, given: Fields, tube: str) -> SampleList:
    """Return the samples for the put form of *tube*; the field `sample` names the one to load, if any."""
    visible = visible_samples(saved)
    names = sorted(visible, key=str.casefold)
    own = [name for name in names if saved.samples[name].tube == tube]
    others = [name for name in names if saved.samples[name].tube != tube]
    loaded = visible.get(given.get("sample", ""))
    return SampleList(
        loaded, loaded or Sample("", tube, DEFAULT_PRI, 0, DEFAULT_TTR, ""), own, others, saved.store.last_error
    )


def _redirect(tube: str, notice: str, sample: str | None) -> Response:
    return redirect(url_for("tube", tube=tube, sample=sample, notice=notice, n=0), 303)
