"""The data that users save in the dashboard: job templates, searches, and the reasons for pauses.

A template is called `Sample` here, in its rows, in URLs and in the API.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from greenstalk_server.web.framework.api.values import Delay, Pri, ResponseModel, Ttr, TubeName
from greenstalk_server.web.store.rows import Row, decoded
from greenstalk_server.web.store.store import Store

T = TypeVar("T")

SAMPLE: Final = "sample"
SEARCH: Final = "search"
PAUSE: Final = "pause-reason"
"""Kinds of rows. Their names are the names of the sample, the search and the tube."""

MAX_SAMPLES: Final = 100
MAX_SAMPLE_SIZE: Final = 64 * 1024
"""Bytes of one sample's body."""

MAX_SAMPLES_SIZE: Final = 1024 * 1024
"""Bytes of the bodies of all samples."""

MAX_SEARCHES: Final = 100
MAX_QUERY_LENGTH: Final = 1000
"""Maximum characters of a saved query."""

MAX_NAME_LENGTH: Final = 60
"""Maximum characters of a name."""

MAX_REASONS: Final = 1000


Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_LENGTH, description="Its name.", examples=["stuck"])]

QueryText = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_QUERY_LENGTH,
        description="A query in the dashboard's language.",
        examples=["tube:mail state:buried age:>2h"],
    ),
]


class LimitExceeded(Exception):
    """There is no room for a template or a search; the message names the limit."""


class Sample(ResponseModel):
    """A job template: the tube, body and options of a job, stored under a name."""

    name: Name
    tube: TubeName
    pri: Pri
    delay: Delay
    ttr: Ttr
    body: str


class SavedSearch(ResponseModel):
    """A query stored under a name."""

    name: Name
    q: QueryText


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason for a pause. *until* identifies the pause: its end in nanoseconds since the Unix epoch."""

    text: str
    until: int


class SavedData:
    """The saved data of one server, which *store* keeps. No method switches, except `save`."""

    def __init__(self, store: Store) -> None:
        self.samples: dict[str, Sample] = {}
        self.searches: dict[str, SavedSearch] = {}
        self._reasons: dict[str, Reason] = {}
        self.store: Store = store
        store.on_restore(SAMPLE, partial(_restore, Sample, self.samples))
        store.on_restore(SEARCH, partial(_restore, SavedSearch, self.searches))
        store.on_restore(PAUSE, partial(_restore, Reason, self._reasons))

    # Samples

    def add_sample(self, sample: Sample) -> None:
        """Add *sample*, or replace the sample of that name; raise LimitExceeded if it exceeds a limit."""
        others = [one for name, one in self.samples.items() if name != sample.name]
        if len(others) >= MAX_SAMPLES:
            raise LimitExceeded(f"there are already {MAX_SAMPLES} templates, the maximum")
        if _size(sample) > MAX_SAMPLE_SIZE:
            raise LimitExceeded(f"its body has more than {MAX_SAMPLE_SIZE:,} bytes")
        if sum(map(_size, others)) + _size(sample) > MAX_SAMPLES_SIZE:
            raise LimitExceeded(f"all templates together would have more than {MAX_SAMPLES_SIZE:,} bytes")
        self.samples[sample.name] = sample
        self._put(SAMPLE, sample.name, sample)

    def remove_sample(self, name: str) -> bool:
        """Remove the sample; return False if there is none."""
        self._remove(SAMPLE, name)
        return self.samples.pop(name, None) is not None

    # Saved searches

    def add_search(self, search: SavedSearch) -> None:
        """Add *search*, or replace the search with the same name; raise LimitExceeded if there is no room."""
        if search.name not in self.searches and len(self.searches) >= MAX_SEARCHES:
            raise LimitExceeded(f"there are already {MAX_SEARCHES} saved searches, the maximum")
        if len(search.q) > MAX_QUERY_LENGTH:
            raise LimitExceeded(f"the query has more than {MAX_QUERY_LENGTH:,} characters")
        self.searches[search.name] = search
        self._put(SEARCH, search.name, search)

    def remove_search(self, name: str) -> bool:
        """Remove the search; return False if there is none."""
        self._remove(SEARCH, name)
        return self.searches.pop(name, None) is not None

    # Reasons for pauses

    def set_reason(self, tube: str, text: str, until: int, now: int) -> None:
        """Set the reason for the pause of *tube* that ends at *until*; empty *text* removes it.

        Also removes the reasons for pauses that have ended.
        """
        for name in [name for name, reason in self._reasons.items() if reason.until <= now or name == tube]:
            del self._reasons[name]
            self._remove(PAUSE, name)
        if text and len(self._reasons) < MAX_REASONS:
            self._reasons[tube] = Reason(text, until)
            self._put(PAUSE, tube, self._reasons[tube])

    def reason(self, tube: str, until: int) -> str:
        """Return the reason for the pause of *tube* that ends at *until*; empty if none was given."""
        reason = self._reasons.get(tube)
        return reason.text if reason is not None and reason.until == until else ""

    # Rows

    def save(self) -> None:
        """Wait until the changes are written, or set `last_error` of the store. Switches."""
        self.store.save()

    def _put(self, kind: str, name: str, value: Sample | SavedSearch | Reason) -> None:
        self.store.put(kind, 0, name.encode(), msgspec.json.encode(value))

    def _remove(self, kind: str, name: str) -> None:
        self.store.remove(kind, 0, name.encode(errors="replace"))


def _restore(kind: type[T], into: dict[str, T], rows: list[Row]) -> None:
    """Add the values of *rows* to *into*, unless *into* has newer values."""
    for _, name, value in decoded(rows, kind, f"so a {kind.__name__} is lost"):
        into.setdefault(name, value)


def _size(sample: Sample) -> int:
    return len(sample.body.encode())
