"""The dashboard's own data: job templates, saved searches, and the reasons for pauses.

A template is called `Sample` here, in the file, in URLs and in the API.

The data is one small JSON document, `dashboard.json` in the journal's directory; without a directory the data is in
memory only. A save replaces the whole file, in a thread, so a crash leaves either the old or the new version. A damaged
file is renamed, and the dashboard starts without data.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from gevent.lock import BoundedSemaphore

from greenstalk_server.runtime.threads import run_in_thread
from greenstalk_server.web.operations.documents import read_document, replace_document, set_aside

log = logging.getLogger(__name__)

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
    """The document of one server.

    trouble         why the file differs from the data in memory; empty if it does not.
    """

    def __init__(self, directory: str | None = None) -> None:
        """Read the document in *directory*, if there is one. Blocks, so call this before the server serves clients."""
        self.samples: dict[str, Sample] = {}
        self.searches: dict[str, SavedSearch] = {}
        self.trouble: str = ""
        self._reasons: dict[str, Reason] = {}
        self._path: Path | None = Path(directory, NAME) if directory is not None else None
        self._version: int = 0
        self._saved: int = 0
        self._disk: BoundedSemaphore = BoundedSemaphore(1)
        if self._path is not None:
            self._load(self._path)

    @property
    def is_kept(self) -> bool:
        """Whether the data survives a restart."""
        return self._path is not None

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
        self._version += 1

    def remove_sample(self, name: str) -> bool:
        """Remove the sample; return False if there is none. Call `save` afterwards. Does not switch."""
        if self.samples.pop(name, None) is None:
            return False
        self._version += 1
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
        self._version += 1

    def remove_search(self, name: str) -> bool:
        """Remove the search; return False if there is none. Call `save` afterwards. Does not switch."""
        if self.searches.pop(name, None) is None:
            return False
        self._version += 1
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
            self._version += 1

    def reason(self, tube: str, until: int) -> str:
        """Return the reason for the pause of *tube* that ends at *until*; empty if none was given."""
        reason = self._reasons.get(tube)
        return reason.text if reason is not None and reason.until == until else ""

    # The file

    def save(self) -> None:
        """Write the data to disk, or set `trouble`. Switches."""
        wanted = self._version
        if self._path is None:
            return
        with self._disk:
            if self._saved >= wanted and not self.trouble:
                return
            version, document = self._version, json.dumps(self._document(), ensure_ascii=False).encode()
            try:
                run_in_thread(replace_document, self._path, document)
            except OSError as error:
                self._report(f"{NAME} cannot be written: {error}")
            else:
                self._saved, self.trouble = version, ""

    def _document(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "samples": [asdict(sample) for sample in self.samples.values()],
            SEARCHES: [asdict(search) for search in self.searches.values()],
            "pauses": {tube: asdict(reason) for tube, reason in self._reasons.items()},
        }

    def _load(self, path: Path) -> None:
        try:
            document = json.loads(read_document(path, MAX_DOCUMENT_SIZE))
            _check(document)
            samples = [Sample(**values) for values in document["samples"]]
            searches = [SavedSearch(**values) for values in document.get(SEARCHES, [])]
            reasons = {tube: Reason(**values) for tube, values in document["pauses"].items()}
        except FileNotFoundError:
            return
        except OSError as error:
            self._report(f"{NAME} cannot be read: {error}")
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            self._set_aside(path, error)
        else:
            self.samples = {sample.name: sample for sample in samples}
            self.searches = {search.name: search for search in searches}
            self._reasons = reasons

    def _set_aside(self, path: Path, why: Exception) -> None:
        try:
            set_aside(path, why, "templates, saved searches and pause reasons are lost")
        except OSError as error:
            self._report(f"{NAME} cannot be moved: {error}")

    def _report(self, trouble: str) -> None:
        """Set *trouble*, and log it if it is new."""
        if trouble != self.trouble:
            log.error("dashboard: %s", trouble)
        self.trouble = trouble


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
