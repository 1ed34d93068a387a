"""The samples of the API: jobs that are kept by a name, to be put again."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta
from werkzeug.exceptions import Forbidden

from greenstalk_server.web.api.framework.endpoint import endpoint
from greenstalk_server.web.api.framework.problems import refuse
from greenstalk_server.web.api.values import Asked, Delay, Pri, Told, Ttr, TubeName
from greenstalk_server.web.auth.access import visitor
from greenstalk_server.web.operations.store import LARGEST_SAMPLE, Store
from greenstalk_server.web.operations.store import Sample as Stored
from greenstalk_server.web.pages.samples import DEFAULT_PRI, DEFAULT_TTR, MAX_NAME_LENGTH
from greenstalk_server.web.pages.samples import Samples as Kept

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_LENGTH, description="Its name.", examples=["welcome"])]


class Sample(Told):
    """A job that is kept, to be put again."""

    name: Name
    tube: TubeName
    body: str
    pri: Pri
    delay: Delay
    ttr: Ttr


class SampleList(Told):
    """All samples there are."""

    samples: list[Sample]
    trouble: Annotated[str, Meta(description="Why the last change of them is not on disk; empty if it is.")]


class NewSample(Asked):
    """A job to keep, by a name."""

    name: Name
    tube: TubeName
    body: Annotated[str, Meta(max_length=LARGEST_SAMPLE)] = ""
    pri: Pri = DEFAULT_PRI
    delay: Delay = 0
    ttr: Ttr = DEFAULT_TTR


class ByName(Asked):
    """Which sample."""

    name: Name


HIDDEN: Final = {403: "Bodies are hidden from you, and so are samples."}


class Samples:
    """Samples: jobs kept by name, as the form for a new job offers them."""

    def __init__(self, store: Store, samples: Kept) -> None:
        self._store: Store = store
        self._samples: Kept = samples

    @endpoint("GET", "/samples", errors=HIDDEN)
    def list_samples(self) -> SampleList:
        """List the samples."""
        if not visitor().sees_bodies:
            raise Forbidden("Bodies are hidden from you, and so are samples.")
        found = sorted(self._store.samples.values(), key=lambda sample: sample.name.casefold())
        return SampleList(samples=[_told(sample) for sample in found], trouble=self._store.trouble)

    @endpoint("POST", "/samples", status=201, errors={409: "There is no room for one more."}, has_bodies=True)
    def save_sample(self, body: NewSample) -> Sample:
        """Save a sample, in place of one of the same name."""
        name = " ".join(body.name.split())
        if not name:
            refuse("name", "must have other characters than spaces")
        sample = Stored(name, body.tube, body.pri, body.delay, body.ttr, body.body)
        self._samples.keep(sample)
        return _told(sample)

    @endpoint("DELETE", "/samples", status=204, errors={404: "There is no such sample."})
    def delete_sample(self, query: ByName) -> None:
        """Delete a sample."""
        self._samples.forget(query.name)


def _told(sample: Stored) -> Sample:
    return Sample(
        name=sample.name, tube=sample.tube, body=sample.body, pri=sample.pri, delay=sample.delay, ttr=sample.ttr
    )
