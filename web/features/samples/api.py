"""API endpoints of samples: job templates, stored under a name."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta
from werkzeug.exceptions import Forbidden

from greenstalk_server.config.tables.roles import OPERATOR
from greenstalk_server.web.features.samples.samples import DEFAULT_PRI, DEFAULT_TTR, visible_samples
from greenstalk_server.web.features.samples.samples import Samples as SampleChanges
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.api.problems import refuse
from greenstalk_server.web.framework.api.values import Delay, Pri, RequestModel, ResponseModel, Ttr, TubeName, model_of
from greenstalk_server.web.store.saved_data import MAX_SAMPLE_SIZE, Name, Sample, SavedData


class SampleList(ResponseModel):
    """All samples."""

    samples: list[Sample]
    trouble: Annotated[str, Meta(description="Reason why the last change is not on disk; empty if it is.")]


class SaveSampleRequest(RequestModel):
    """A job template to save under a name."""

    name: Name
    tube: TubeName
    body: Annotated[str, Meta(max_length=MAX_SAMPLE_SIZE)] = ""
    pri: Pri = DEFAULT_PRI
    delay: Delay = 0
    ttr: Ttr = DEFAULT_TTR


class SampleRequest(RequestModel):
    """The sample."""

    name: Name


HIDDEN: Final = {403: "Bodies are hidden from you, and so are samples."}


class SamplesEndpoints:
    """Samples: job templates. The dashboard's form for a new job can be filled from them."""

    def __init__(self, saved: SavedData, samples: SampleChanges) -> None:
        self._saved: SavedData = saved
        self._samples: SampleChanges = samples

    @endpoint("GET", "/samples", errors=HIDDEN)
    def list_samples(self) -> SampleList:
        """List all samples."""
        if not principal().sees_bodies:
            raise Forbidden("Bodies are hidden from you, and so are samples.")
        samples = sorted(visible_samples(self._saved).values(), key=lambda sample: sample.name.casefold())
        return SampleList(samples=samples, trouble=self._saved.store.last_error)

    @endpoint(
        "POST",
        "/samples",
        role=OPERATOR,
        status=201,
        errors={409: "There is no room for another sample."},
        has_bodies=True,
    )
    def save_sample(self, body: SaveSampleRequest) -> Sample:
        """Save a sample. It replaces a sample of the same name."""
        name = " ".join(body.name.split())
        if not name:
            refuse("name", "must not be blank")
        sample = model_of(Sample, body, name=name)
        self._samples.keep(sample)
        return sample

    @endpoint("DELETE", "/samples", role=OPERATOR, status=204, errors={404: "The sample does not exist."})
    def delete_sample(self, query: SampleRequest) -> None:
        """Delete a sample."""
        self._samples.forget(query.name)
