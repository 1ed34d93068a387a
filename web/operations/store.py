"""What the dashboard itself remembers: samples of jobs to put, and why tubes are paused.

One small JSON document, `dashboard.json` beside the journal; without a directory it is in memory only. It is replaced
whole, in a thread, so that a crash leaves the old one or the new. A damaged one is set aside, and nothing else stops.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from gevent.lock import BoundedSemaphore

from greenstalk_server.journal.files import open_regular
from greenstalk_server.runtime.threads import run_in_thread

log = logging.getLogger(__name__)

NAME: Final = "dashboard.json"
VERSION: Final = 1

SAMPLES_AT_MOST: Final = 100
LARGEST_SAMPLE: Final = 64 * 1024
LARGEST_SAMPLES: Final = 1024 * 1024
"""Bytes of a sample's body, and of all together."""

REASONS_AT_MOST: Final = 1000

LARGEST_FILE: Final = 16 * 1024 * 1024
"""Bytes of the document that are read: more than all samples and reasons take, each character of them escaped."""


class Full(Exception):
    """There is no room for one more sample; str() says what is in the way."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A job to put, by its name; *delay* and *ttr* in seconds."""

    name: str
    tube: str
    pri: int
    delay: int
    ttr: int
    body: str


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a tube is paused; *until* tells that pause from others: its end, in nanoseconds since the Unix epoch."""

    text: str
    until: int


class Store:
    """The document of one server.

    trouble         why the file is not as what is in memory; empty if it is.
    """

    def __init__(self, directory: str | None = None) -> None:
        """Read the document in *directory*, if there is one. Blocks, for the time before anyone is served."""
        self.samples: dict[str, Sample] = {}
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
        """Whether it survives a restart."""
        return self._path is not None

    # Samples

    def add_sample(self, sample: Sample) -> None:
        """Remember *sample*, in place of one of the same name; raise Full. Does not switch; `save` then."""
        others = [one for name, one in self.samples.items() if name != sample.name]
        if len(others) >= SAMPLES_AT_MOST:
            raise Full(f"there are {SAMPLES_AT_MOST} samples already, which is as many as are kept")
        if _size(sample) > LARGEST_SAMPLE:
            raise Full(f"its body has more than {LARGEST_SAMPLE:,} bytes")
        if sum(map(_size, others)) + _size(sample) > LARGEST_SAMPLES:
            raise Full(f"all samples together would have more than {LARGEST_SAMPLES:,} bytes")
        self.samples[sample.name] = sample
        self._version += 1

    def remove_sample(self, name: str) -> bool:
        """Forget the sample; False if there is none. Does not switch; `save` then."""
        if self.samples.pop(name, None) is None:
            return False
        self._version += 1
        return True

    # Reasons of pauses

    def set_reason(self, tube: str, text: str, until: int, now: int) -> None:
        """Remember why *tube* is paused until *until*; with no text forget it. Does not switch; `save` then."""
        reasons = {name: reason for name, reason in self._reasons.items() if reason.until > now and name != tube}
        if text and len(reasons) < REASONS_AT_MOST:
            reasons[tube] = Reason(text, until)
        if reasons != self._reasons:
            self._reasons = reasons
            self._version += 1

    def reason(self, tube: str, until: int) -> str:
        """Why *tube* is paused until *until*; empty if it was not said, or of another pause."""
        reason = self._reasons.get(tube)
        return reason.text if reason is not None and reason.until == until else ""

    # The file

    def save(self) -> None:
        """Have what is remembered by now on disk, or `trouble`. Switches."""
        wanted = self._version
        if self._path is None:
            return
        with self._disk:
            if self._saved >= wanted and not self.trouble:
                return
            version, document = self._version, json.dumps(self._document(), ensure_ascii=False).encode()
            try:
                run_in_thread(_replace, self._path, document)
            except OSError as error:
                self._tell(f"{NAME} cannot be written: {error}")
            else:
                self._saved, self.trouble = version, ""

    def _document(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "samples": [asdict(sample) for sample in self.samples.values()],
            "pauses": {tube: asdict(reason) for tube, reason in self._reasons.items()},
        }

    def _load(self, path: Path) -> None:
        try:
            document = json.loads(_read(path))
            _check(document)
            samples = [Sample(**said) for said in document["samples"]]
            reasons = {tube: Reason(**said) for tube, said in document["pauses"].items()}
        except FileNotFoundError:
            return
        except OSError as error:
            self._tell(f"{NAME} cannot be read: {error}")
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            self._set_aside(path, error)
        else:
            self.samples = {sample.name: sample for sample in samples}
            self._reasons = reasons

    def _set_aside(self, path: Path, why: Exception) -> None:
        aside = path.with_name(f"{NAME}.damaged")
        log.error("dashboard: %s is damaged (%s): it is %s now, and its samples and reasons are gone", path, why, aside)
        try:
            path.replace(aside)
        except OSError as error:
            self._tell(f"{NAME} cannot be moved: {error}")

    def _tell(self, trouble: str) -> None:
        if trouble != self.trouble:
            log.error("dashboard: %s", trouble)
        self.trouble = trouble


def _size(sample: Sample) -> int:
    return len(sample.body.encode())


def _check(document: Any) -> None:
    """Raise ValueError unless all values are of the right type: anybody may have written the file."""
    if document["version"] != VERSION:
        raise ValueError(f"it is of version {document['version']!r}, not {VERSION}")
    for said, texts, numbers in (
        *[(sample, ("name", "tube", "body"), ("pri", "delay", "ttr")) for sample in document["samples"]],
        *[(reason, ("text",), ("until",)) for reason in document["pauses"].values()],
    ):
        if not all(isinstance(said[key], str) for key in texts) or not all(type(said[key]) is int for key in numbers):
            raise ValueError(f"a value is of the wrong type in {str(said)[:200]}")
    json.dumps(document, ensure_ascii=False).encode()  # or half a character lurks behind an escape


def _read(path: Path) -> bytes:
    """Return what is in the regular file *path*; raise OSError, or ValueError if it is too large. Blocks."""
    with os.fdopen(open_regular(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        document = file.read(LARGEST_FILE + 1)
    if len(document) > LARGEST_FILE:
        raise ValueError(f"it has more than {LARGEST_FILE:,} bytes")
    return document


def _replace(path: Path, document: bytes) -> None:
    """Put *document* at *path* whole, and wait until it is on disk. Blocks; raises OSError."""
    new = path.with_name(f"{NAME}.new")
    new.unlink(missing_ok=True)  # a crash has left it
    with os.fdopen(open_regular(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        file.write(document)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
