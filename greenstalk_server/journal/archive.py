"""The archive of a journal as JSON lines, which `journal export` writes and `journal import` reads.

The first line identifies the format, and the last one has the number of lines and their checksum, so that a truncated
archive is detected. Between them are the paused tubes, by name, and all jobs, by id. The format is described in
docs/archive-format.md; units and values are those of docs/journal-format.md.

Pure: no I/O, and no access to the clock.
"""

from __future__ import annotations

import json
import struct
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from greenstalk_server import __version__
from greenstalk_server.core import job_history
from greenstalk_server.core.body_cache import held_body
from greenstalk_server.core.job import BURIED, DELAYED, READY, SECOND, STATE_NAMES, Job
from greenstalk_server.core.tube import Tube, is_tube_name

FORMAT: Final = "greenstalk journal"
VERSION: Final = 1

NOT_AN_ARCHIVE: Final = f"not the first line of a {FORMAT} archive, which `journal export` writes"

_U32: Final = 2**32 - 1
_U64: Final = 2**64 - 1
_MAX_ID: Final = 2**62
"""Maximum id, and maximum burial number. No server reaches it; higher numbers are left for new jobs and burials."""

_MAX_DURATION: Final = _U32 * SECOND
"""Maximum delay or ttr that a client can request, nanoseconds."""

_JOB_NUMBERS: Final = {
    "id": (1, _MAX_ID),
    "pri": (0, _U32),
    "delay": (0, _MAX_DURATION),
    "ttr": (SECOND, _MAX_DURATION),
    "created_at": (0, _U64),
    "deadline": (0, _U64),
    "reserves": (0, _U32),
    "timeouts": (0, _U32),
    "releases": (0, _U32),
    "buries": (0, _U32),
    "kicks": (0, _U32),
}
"""Numeric fields of a job, with the minimum and maximum of each."""

_HEAD_KEYS: Final = frozenset(("type", "format", "version", "server", "exported_at", "next_id"))
_PAUSE_KEYS: Final = frozenset(("type", "tube", "until", "length"))
_JOB_KEYS: Final = frozenset(("type", "tube", "state", *_JOB_NUMBERS, "encoding", "body"))
_OPTIONAL_JOB_KEYS: Final = frozenset(("events",))
_END_KEYS: Final = frozenset(("type", "pauses", "jobs", "sha256"))

_STATES: Final = {STATE_NAMES[state]: state for state in (READY, DELAYED, BURIED)}
_KINDS: Final = {kind: number for number, kind in enumerate(job_history.KINDS) if number}


class BadLine(Exception):
    """A line of the archive is invalid; str() gives the reason."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A paused tube: the end and the length of the pause, nanoseconds."""

    tube: bytes
    until: int
    length: int


@dataclass(frozen=True, slots=True)
class Count:
    """Numbers of pauses and jobs in an archive."""

    pauses: int
    jobs: int


class Writer:
    """Writes the lines of one archive."""

    def __init__(self) -> None:
        self._checksum = sha256()
        self._pauses: int = 0
        self._jobs: int = 0

    def lines(self, now: int, next_id: int, pauses: Iterable[Pause], jobs: Iterable[Job]) -> Iterator[bytes]:
        """Yield all lines; *jobs* must be in the order of their ids; *now* is the time of the export."""
        head = {"type": "head", "format": FORMAT, "version": VERSION, "server": __version__, "exported_at": now}
        yield self._line({**head, "next_id": next_id})
        for pause in pauses:
            self._pauses += 1
            yield self._line(
                {"type": "pause", "tube": pause.tube.decode(), "until": pause.until, "length": pause.length}
            )
        for job in jobs:
            self._jobs += 1
            yield self._line(_job_line(job))
        counts = {"type": "end", "pauses": self._pauses, "jobs": self._jobs}
        yield self._line({**counts, "sha256": self._checksum.hexdigest()})

    def _line(self, value: dict[str, object]) -> bytes:
        line = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        self._checksum.update(line)
        return line


class Reader:
    """Reads the lines of one archive; raises BadLine at the first invalid one."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        """Each of *lines* ends with a line feed, unless it is a truncated last line."""
        self.number: int = 0
        self._lines: Iterator[bytes] = iter(lines)
        self._checksum = sha256()
        self._tube: Tube = Tube(b"", {})

    def head(self) -> int:
        """Read the first line; return the next job id."""
        line = self._next()
        if line.get("type") != "head" or line.get("format") != FORMAT:
            raise BadLine(NOT_AN_ARCHIVE)
        if line.get("version") != VERSION:
            raise BadLine(f"archive version {_excerpt(line.get('version'))}, but this server reads {VERSION}")
        _expect(line, _HEAD_KEYS)
        return _number(line, "next_id", 1, _MAX_ID)

    def entries(self, next_id: int) -> Iterator[Pause | Job]:
        """Yield pauses, then jobs; return at the end of a complete archive with the right checksum."""
        pauses = jobs = last_id = 0
        while True:
            checksum = self._checksum.hexdigest()
            line = self._next()
            match line.get("type"):
                case "job":
                    job = self._job(line)
                    if not last_id < job.id < next_id:
                        raise BadLine(f"id {job.id}: must be above {last_id} and below the head's next_id, {next_id}")
                    last_id = job.id
                    jobs += 1
                    yield job
                case "pause" if not jobs:
                    pauses += 1
                    yield self._pause(line)
                case "end":
                    self._end(line, Count(pauses, jobs), checksum)
                    return
                case _:
                    raise BadLine("its type must be job, pause (before the first job) or end")

    def _next(self) -> dict[str, Any]:
        self.number += 1
        line = next(self._lines, b"")
        if not line.endswith(b"\n"):
            raise BadLine("unexpected end of the archive: it is truncated" if self.number > 1 else NOT_AN_ARCHIVE)
        self._checksum.update(line)
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadLine(f"not valid JSON: {error}") from None
        if not isinstance(value, dict):
            raise BadLine("not a JSON object")
        return value

    def _end(self, line: dict[str, Any], found: Count, checksum: str) -> None:
        _expect(line, _END_KEYS)
        if (line["pauses"], line["jobs"]) != (found.pauses, found.jobs):
            counts = f"{_excerpt(line['jobs'])} jobs and {_excerpt(line['pauses'])} pauses"
            raise BadLine(f"{counts} were exported, but the archive has {found.jobs} and {found.pauses}")
        if line["sha256"] != checksum:
            raise BadLine("checksum mismatch: the lines differ from those that were exported")
        if next(self._lines, b""):
            self.number += 1
            raise BadLine("no line may follow the end line")

    def _pause(self, line: dict[str, Any]) -> Pause:
        _expect(line, _PAUSE_KEYS)
        until, length = _number(line, "until", 1, _U64), _number(line, "length", 0, _U64)
        return Pause(_tube_name(line), until, length)

    def _job(self, line: dict[str, Any]) -> Job:
        _expect(line, _JOB_KEYS, _OPTIONAL_JOB_KEYS)
        fields = [_number(line, name, *bounds) for name, bounds in _JOB_NUMBERS.items()]
        id, pri, delay, ttr, created_at, deadline = fields[:6]
        name = _tube_name(line)
        if name != self._tube.name:
            self._tube = Tube(name, {})
        job = Job(id, self._tube, _body(line), pri, delay, ttr, created_at)
        job.deadline = deadline
        job.reserves, job.timeouts, job.releases, job.buries, job.kicks = fields[6:]
        job.state = _one_of(line, "state", _STATES)
        if job.state == BURIED:
            _number(line, "deadline", 0, _MAX_ID)  # the deadline field of a buried job is its burial number
        job.events = _pack_events(line.get("events", []))
        return job


def _job_line(job: Job) -> dict[str, object]:
    line: dict[str, object] = {"type": "job", "id": job.id, "tube": job.tube.name.decode()}
    line["state"] = STATE_NAMES[job.state]
    for name in _JOB_NUMBERS:
        line[name] = getattr(job, name)
    if job.events:
        line["events"] = [[at, job_history.KINDS[kind], client] for at, kind, client in job_history.unpack(job.events)]
    body = held_body(job)
    try:
        line["encoding"], line["body"] = "utf-8", body.decode()
    except UnicodeDecodeError:
        line["encoding"], line["body"] = "base64", b64encode(body).decode()
    return line


def _expect(line: dict[str, Any], names: frozenset[str], optional: frozenset[str] = frozenset()) -> None:
    """Raise BadLine unless *line* has all *names*, and no others except *optional* ones."""
    if missing := names - line.keys():
        raise BadLine(f"{min(missing)} is missing")
    if unknown := line.keys() - names - optional:
        raise BadLine(f"unknown field {_excerpt(min(unknown))}")


def _number(line: dict[str, Any], name: str, least: int, most: int) -> int:
    value = line[name]
    if type(value) is not int or not least <= value <= most:
        raise BadLine(f"{name} {_excerpt(value)}: must be a whole number from {least} to {most}")
    return value


def _tube_name(line: dict[str, Any]) -> bytes:
    value = line["tube"]
    name = value.encode("utf-8", "replace") if isinstance(value, str) else b""
    if not is_tube_name(name):
        raise BadLine(f"tube {_excerpt(value)}: must be a valid tube name")
    return name


def _one_of(line: dict[str, Any], name: str, allowed: dict[str, int]) -> int:
    value = line[name]
    if not isinstance(value, str) or value not in allowed:
        raise BadLine(f"{name} {_excerpt(value)}: must be one of {', '.join(allowed)}")
    return allowed[value]


def _body(line: dict[str, Any]) -> bytes:
    body, encoding = line["body"], line["encoding"]
    if isinstance(body, str) and encoding in ("utf-8", "base64"):
        try:
            return body.encode() if encoding == "utf-8" else b64decode(body, validate=True)
        except ValueError:
            pass
    raise BadLine(f"body: must be text encoded as utf-8 or base64, not {_excerpt(encoding)}")


def _pack_events(events: object) -> bytes:
    """Return *events* packed as in Job.events."""
    if isinstance(events, list) and len(events) <= job_history.MAX_EVENTS:
        try:
            return b"".join([job_history.EVENT.pack(at, _KINDS[kind], client) for at, kind, client in events])
        except (TypeError, ValueError, KeyError, struct.error):
            pass
    raise BadLine(f"events: must be at most {job_history.MAX_EVENTS} lists of time, kind and client")


def _excerpt(value: object) -> str:
    return ascii(value)[:60]
