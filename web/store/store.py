"""The dashboard's own data: job templates, saved searches, and the reasons for pauses.

A template is called `Sample` here, in the file, in URLs and in the API.

The data is one small JSON document, `dashboard.json` in the journal's directory; without a directory the data is in
memory only. A save replaces the whole file, in a thread, so a crash leaves either the old or the new version. A damaged
file is renamed, and the dashboard starts without data.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from greenstalk_server.web.store.documents import DocumentFile

NAME: Final = "dashboard.json"
VERSION: Final = 1
SEARCHES: Final = "searches"
"""The key of the saved searches, which files of earlier servers do not have."""


MAX_SAMPLES: Final = 100
MAX_SAMPLE_SIZE: Final = 64 * 1024
"""Bytes of one sample's body."""

MAX_SAMPLES_SIZE: Final = 1024 * 1024
"""Bytes of the bodies of all samples."""

MAX_SEARCHES: Final = 100
MAX_QUERY_LENGTH: Final = 1000
"""Maximum characters of a saved query."""

MAX_REASONS: Final = 1000

MAX_DOCUMENT_SIZE: Final = 16 * 1024 * 1024
"""Bytes of the largest document that is read. All samples and reasons fit, even with every byte escaped."""


class SearchLimitExceeded(Exception):
    """There is no room for another saved search; the message names the limit."""


class SampleLimitExceeded(Exception):
    """A sample exceeds a limit; the message names the limit."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A named job to put; *delay* and *ttr* in seconds."""

    name: str
    tube: str
    pri: int
    delay: int
    ttr: int
    body: str


@dataclass(frozen=True, slots=True)
class SavedSearch:
    """A query in the syntax of the search page, stored under a name."""

    name: str
    query: str


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason for a pause. *until* identifies the pause: its end in nanoseconds since the Unix epoch."""

    text: str
    until: int


class Store:
    """The document of one server."""

    def __init__(self, directory: str | None = None) -> None:
        """Read the document in *directory*, if there is one. Blocks, so call this before the server serves clients."""
        self.samples: dict[str, Sample] = {}
        self.searches: dict[str, SavedSearch] = {}
        self._reasons: dict[str, Reason] = {}
        self._file: DocumentFile = DocumentFile(directory, NAME, "dashboard: %s")
        found = self._file.load(_parse, MAX_DOCUMENT_SIZE, "templates, saved searches and pause reasons are lost")
        if found is not None:
            samples, searches, self._reasons = found
            self.samples = {sample.name: sample for sample in samples}
            self.searches = {search.name: search for search in searches}

    @property
    def is_kept(self) -> bool:
        """Whether the data survives a restart."""
        return self._file.is_kept

    @property
    def trouble(self) -> str:
        """Why the file differs from the data in memory; empty if it does not."""
        return self._file.trouble

    # Samples

    def add_sample(self, sample: Sample) -> None:
        """Add *sample*, or replace the sample of that name; raise SampleLimitExceeded if it exceeds a limit.

        Call `save` afterwards. Does not switch.
        """
        others = [one for name, one in self.samples.items() if name != sample.name]
        if len(others) >= MAX_SAMPLES:
            raise SampleLimitExceeded(f"there are already {MAX_SAMPLES} templates, the maximum")
        if _size(sample) > MAX_SAMPLE_SIZE:
            raise SampleLimitExceeded(f"its body has more than {MAX_SAMPLE_SIZE:,} bytes")
        if sum(map(_size, others)) + _size(sample) > MAX_SAMPLES_SIZE:
            raise SampleLimitExceeded(f"all templates together would have more than {MAX_SAMPLES_SIZE:,} bytes")
        self.samples[sample.name] = sample
        self._file.note_change()

    def remove_sample(self, name: str) -> bool:
        """Remove the sample; return False if there is none. Call `save` afterwards. Does not switch."""
        if self.samples.pop(name, None) is None:
            return False
        self._file.note_change()
        return True

    # Saved searches

    def add_search(self, search: SavedSearch) -> None:
        """Add *search*, or replace the one of that name; raise SearchLimitExceeded if there is no room.

        Call `save` afterwards. Does not switch.
        """
        if search.name not in self.searches and len(self.searches) >= MAX_SEARCHES:
            raise SearchLimitExceeded(f"there are already {MAX_SEARCHES} saved searches, the maximum")
        if len(search.query) > MAX_QUERY_LENGTH:
            raise SearchLimitExceeded(f"the query has more than {MAX_QUERY_LENGTH:,} characters")
        self.searches[search.name] = search
        self._file.note_change()

    def remove_search(self, name: str) -> bool:
        """Remove the search; return False if there is none. Call `save` afterwards. Does not switch."""
        if self.searches.pop(name, None) is None:
            return False
        self._file.note_change()
        return True

    # Reasons for pauses

    def set_reason(self, tube: str, text: str, until: int, now: int) -> None:
        """Set the reason for the pause of *tube* that ends at *until*; empty *text* removes it.

        Also removes the reasons for pauses that have ended. Call `save` afterwards. Does not switch.
        """
        reasons = {name: reason for name, reason in self._reasons.items() if reason.until > now and name != tube}
        if text and len(reasons) < MAX_REASONS:
            reasons[tube] = Reason(text, until)
        if reasons != self._reasons:
            self._reasons = reasons
            self._file.note_change()

    def reason(self, tube: str, until: int) -> str:
        """Return the reason for the pause of *tube* that ends at *until*; empty if none was given."""
        reason = self._reasons.get(tube)
        return reason.text if reason is not None and reason.until == until else ""

    # The file

    def save(self) -> None:
        """Write the data to disk, or set `trouble`. Switches."""
        self._file.save(lambda: partial(_encoded, self._document()))

    def _document(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "samples": [asdict(sample) for sample in self.samples.values()],
            SEARCHES: [asdict(search) for search in self.searches.values()],
            "pauses": {tube: asdict(reason) for tube, reason in self._reasons.items()},
        }


def _parse(data: bytes) -> tuple[list[Sample], list[SavedSearch], dict[str, Reason]]:
    """Return the parts of the document; raise KeyError, TypeError or ValueError if it is damaged."""
    document = json.loads(data)
    _check(document)
    return (
        [Sample(**values) for values in document["samples"]],
        [SavedSearch(**values) for values in document.get(SEARCHES, [])],
        {tube: Reason(**values) for tube, values in document["pauses"].items()},
    )


def _encoded(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode()


def _size(sample: Sample) -> int:
    return len(sample.body.encode())


def _check(document: Any) -> None:
    """Raise ValueError, KeyError or TypeError unless *document* has the right version and types.

    Anything may have written the file.
    """
    if document["version"] != VERSION:
        raise ValueError(f"its version is {document['version']!r}, not {VERSION}")
    for values, texts, numbers in (
        *[(sample, ("name", "tube", "body"), ("pri", "delay", "ttr")) for sample in document["samples"]],
        *[(search, ("name", "query"), ()) for search in document.get(SEARCHES, [])],
        *[(reason, ("text",), ("until",)) for reason in document["pauses"].values()],
    ):
        if not all(isinstance(values[key], str) for key in texts):
            raise ValueError(f"a value is of the wrong type in {str(values)[:200]}")
        if not all(type(values[key]) is int for key in numbers):
            raise ValueError(f"a value is of the wrong type in {str(values)[:200]}")
    json.dumps(document, ensure_ascii=False).encode()  # fails on a lone surrogate, which JSON can hold as an escape
