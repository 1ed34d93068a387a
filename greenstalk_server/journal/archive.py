"""The archive of a journal as JSON lines, which `journal export` writes and `journal import` reads.

The first line identifies the format, and the last one has the number of lines and their checksum, so that a truncated
archive is detected. Between them are the paused tubes, the policies and the unique keys that outlive their jobs, by
name, and all jobs, by id. docs/archive-format.md describes the format; units and values are as in
docs/journal-format.md.

Pure: no I/O, and no access to the clock.
"""

from __future__ import annotations

import json
import struct
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, Final

from greenstalk_server import __version__
from greenstalk_server.core.job_attributes import MAX_KEY, REASON_NAMES, DeadLetter
from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.body_cache import resident_body
from greenstalk_server.core.jobs.id_sequence import ID_END
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, SECOND, STATE_NAMES, Job
from greenstalk_server.core.tags.idempotency import is_idempotency_scope, scope_of
from greenstalk_server.core.tags.tags import TaggedJob, Tags, tags_of
from greenstalk_server.core.tube_names import is_tube_name
from greenstalk_server.core.tubes.tube import Tube

FORMAT: Final = "greenstalk journal"
VERSION: Final = 2

NOT_AN_ARCHIVE: Final = f"not the first line of a {FORMAT} archive, which `journal export` writes"

_U32: Final = 2**32 - 1
_U64: Final = 2**64 - 1
_MAX_BURIAL: Final = 2**62
"""Maximum burial number. No server reaches it; higher numbers are left for new burials."""

_MAX_DURATION: Final = _U32 * SECOND
"""Maximum delay or ttr that a client can request, nanoseconds."""

_JOB_NUMBERS: Final = {
    "id": (1, ID_END),
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
_POLICY_KEYS: Final = frozenset(("type", "name", "encoding", "document"))
_KEY_KEYS: Final = frozenset(("type", "tube", "key", "id", "until"))
_OPTIONAL_JOB_KEYS: Final = frozenset(("events", "attempts_base", "expires_from", "unique_key", "dead_letter", "tags"))
_LETTER_KEYS: Final = frozenset(("reason", "source", "attempts", "first_at", "last_at"))
_TAG_NAMES: Final = ("idempotency_key", "group", "after", "concurrency_key")
_TAG_NUMBERS: Final = {"idempotency_ttl": (1, _MAX_DURATION), "concurrency_limit": (1, _U32)}
_TAGS: Final = frozenset((*_TAG_NAMES, *_TAG_NUMBERS))
_END_KEYS: Final = frozenset(("type", "pauses", "policies", "keys", "jobs", "sha256"))

_VERSION_1_OPTIONAL: Final = frozenset(("events",))
_VERSION_1_END: Final = frozenset(("type", "pauses", "jobs", "sha256"))

_MAX_NAME: Final = 255
"""Maximum size of a policy's name in bytes."""

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
class Policy:
    """A policy that was set at run time: its name and document."""

    name: str
    document: bytes


@dataclass(frozen=True, slots=True)
class Key:
    """A key that outlives its job: scope (see RetainedKeys), key, job id, and the time at which it becomes free."""

    tube: bytes
    key: bytes
    id: int
    until: int


@dataclass(slots=True)
class Count:
    """Numbers of pauses, policies, keys and jobs in an archive."""

    pauses: int = 0
    policies: int = 0
    keys: int = 0
    jobs: int = 0


class Writer:
    """Writes the lines of one archive."""

    def __init__(self) -> None:
        self._checksum = sha256()
        self.count: Count = Count()

    def lines(
        self, now: int, next_id: int, entries: Iterable[Pause | Policy | Key], jobs: Iterable[Job]
    ) -> Iterator[bytes]:
        """Yield all lines; *jobs* must be in the order of their ids; *now* is the time of the export."""
        head = {"type": "head", "format": FORMAT, "version": VERSION, "server": __version__, "exported_at": now}
        yield self._line({**head, "next_id": next_id})
        for entry in entries:
            _add(self.count, entry)
            yield self._line(_entry_line(entry))
        for job in jobs:
            self.count.jobs += 1
            yield self._line(_job_line(job))
        yield self._line({"type": "end", **asdict(self.count), "sha256": self._checksum.hexdigest()})

    def _line(self, value: dict[str, object]) -> bytes:
        line = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        self._checksum.update(line)
        return line


class Reader:
    """Reads the lines of one archive; raises BadLine at the first invalid one."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        """Each of *lines* ends with a line feed, unless it is a truncated last line."""
        self.number: int = 0
        self.count: Count = Count()
        self._version: int = VERSION
        self._lines: Iterator[bytes] = iter(lines)
        self._checksum = sha256()
        self._tube: Tube = Tube(b"", {})

    def head(self) -> int:
        """Read the first line; return the next job id."""
        line = self._next()
        if line.get("type") != "head" or line.get("format") != FORMAT:
            raise BadLine(NOT_AN_ARCHIVE)
        version = line.get("version")
        if type(version) is not int or not 1 <= version <= VERSION:
            raise BadLine(f"archive version {_excerpt(version)}, but this server reads 1 to {VERSION}")
        self._version = version
        _expect(line, _HEAD_KEYS)
        return _number(line, "next_id", 1, ID_END)

    def entries(self, next_id: int) -> Iterator[Pause | Policy | Key | Job]:
        """Yield all entries, jobs last; return at the end of a complete archive with the right checksum.

        *next_id* comes from the head of the archive.
        """
        count, last_id = self.count, 0
        while True:
            checksum = self._checksum.hexdigest()
            line = self._next()
            match line.get("type"):
                case "job":
                    job = self._job(line)
                    if not last_id < job.id < next_id:
                        raise BadLine(f"id {job.id}: must be above {last_id} and below the head's next_id, {next_id}")
                    last_id = job.id
                    count.jobs += 1
                    yield job
                case "pause" | "policy" | "key" | "idempotency-key" if not count.jobs and (
                    entry := self._entry(line, next_id)
                ):
                    _add(count, entry)
                    yield entry
                case "end":
                    self._end(line, checksum)
                    return
                case _:
                    raise BadLine(
                        "its type must be job, end, or, before the first job, pause, policy, key or idempotency-key"
                    )

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

    def _end(self, line: dict[str, Any], checksum: str) -> None:
        _expect(line, _END_KEYS if self._version > 1 else _VERSION_1_END)
        for name, found in asdict(self.count).items():
            exported = line.get(name, 0)
            if exported != found:
                raise BadLine(f"{_excerpt(exported)} {name} were exported, but the archive has {found}")
        if line["sha256"] != checksum:
            raise BadLine("checksum mismatch: the lines differ from those that were exported")
        if next(self._lines, b""):
            self.number += 1
            raise BadLine("no line may follow the end line")

    def _entry(self, line: dict[str, Any], next_id: int) -> Pause | Policy | Key | None:
        """Return the entry of *line*, a pause, policy or key; None if the format's version has no such type."""
        if line["type"] == "pause":
            return self._pause(line)
        if self._version == 1:
            return None
        if line["type"] == "policy":
            _expect(line, _POLICY_KEYS)
            return Policy(_policy_name(line["name"]), _encoded(line, "document"))
        _expect(line, _KEY_KEYS)
        is_idempotency_key = line["type"] == "idempotency-key"
        key = _tube_name(line, "key") if is_idempotency_key else _unique_key(line["key"])
        id, tube = _number(line, "id", 1, next_id - 1), _tube_name(line)
        return Key(scope_of(tube) if is_idempotency_key else tube, key, id, _number(line, "until", 1, _U64))

    def _pause(self, line: dict[str, Any]) -> Pause:
        _expect(line, _PAUSE_KEYS)
        until, length = _number(line, "until", 1, _U64), _number(line, "length", 0, _U64)
        return Pause(_tube_name(line), until, length)

    def _job(self, line: dict[str, Any]) -> Job:
        _expect(line, _JOB_KEYS, _OPTIONAL_JOB_KEYS if self._version > 1 else _VERSION_1_OPTIONAL)
        fields = [_number(line, name, *bounds) for name, bounds in _JOB_NUMBERS.items()]
        id, pri, delay, ttr, created_at, deadline = fields[:6]
        name = _tube_name(line)
        if name != self._tube.name:
            self._tube = Tube(name, {})
        body = _encoded(line, "body")
        if "tags" in line:
            tags = _tags(line["tags"]).packed()
            job: Job = TaggedJob(id, self._tube, body, pri, delay, ttr, created_at, tags)
        else:
            job = Job(id, self._tube, body, pri, delay, ttr, created_at)
        job.deadline = deadline
        job.reserves, job.timeouts, job.releases, job.buries, job.kicks = fields[6:]
        job.state = _one_of(line, "state", _STATES)
        if job.state == BURIED:
            _number(line, "deadline", 0, _MAX_BURIAL)  # the deadline field of a buried job is its burial number
        job.events = _pack_events(line.get("events", []))
        if "attempts_base" in line:
            job.attempts_base = _number(line, "attempts_base", 0, job.reserves)
        if "expires_from" in line:
            job.expires_from = _number(line, "expires_from", 0, _U64)
        if "unique_key" in line:
            job.unique_key = _unique_key(line["unique_key"])
        if "dead_letter" in line:
            job.dead_letter = _pack_letter(line["dead_letter"])
        return job


def _add(count: Count, entry: Pause | Policy | Key) -> None:
    """Count *entry*."""
    count.pauses += isinstance(entry, Pause)
    count.policies += isinstance(entry, Policy)
    count.keys += isinstance(entry, Key)


def _entry_line(entry: Pause | Policy | Key) -> dict[str, object]:
    if isinstance(entry, Pause):
        return {"type": "pause", "tube": entry.tube.decode(), "until": entry.until, "length": entry.length}
    if isinstance(entry, Policy):
        return {"type": "policy", "name": entry.name, **_as_text("document", entry.document)}
    if is_idempotency_scope(entry.tube):
        key = {"type": "idempotency-key", "tube": entry.tube[:-1].decode(), "key": entry.key.decode()}
    else:
        key = {"type": "key", "tube": entry.tube.decode(), "key": entry.key.hex()}
    return {**key, "id": entry.id, "until": entry.until}


def _job_line(job: Job) -> dict[str, object]:
    line: dict[str, object] = {"type": "job", "id": job.id, "tube": job.tube.name.decode()}
    line["state"] = STATE_NAMES[job.state]
    for name in _JOB_NUMBERS:
        line[name] = getattr(job, name)
    if job.events:
        line["events"] = [[at, job_history.KINDS[kind], client] for at, kind, client in job_history.unpack(job.events)]
    if job.attempts_base:
        line["attempts_base"] = job.attempts_base
    if job.expires_from:
        line["expires_from"] = job.expires_from
    if job.unique_key:
        line["unique_key"] = job.unique_key.hex()
    if job.dead_letter:
        letter = DeadLetter.unpack(job.dead_letter)
        names = {"reason": REASON_NAMES[letter.reason], "source": letter.source.decode()}
        line["dead_letter"] = letter._asdict() | names
    if isinstance(job, TaggedJob):
        line["tags"] = _tags_line(tags_of(job))
    return line | _as_text("body", resident_body(job))


def _as_text(name: str, data: bytes) -> dict[str, object]:
    """Return the fields `encoding` and *name* for *data*."""
    try:
        return {"encoding": "utf-8", name: data.decode()}
    except UnicodeDecodeError:
        return {"encoding": "base64", name: b64encode(data).decode()}


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


def _tube_name(line: dict[str, Any], field: str = "tube") -> bytes:
    value = line[field]
    name = value.encode("utf-8", "replace") if isinstance(value, str) else b""
    if not is_tube_name(name):
        raise BadLine(f"{field} {_excerpt(value)}: must be a valid tube name")
    return name


def _policy_name(value: object) -> str:
    try:
        if isinstance(value, str) and 0 < len(value.encode()) <= _MAX_NAME:
            return value
    except UnicodeEncodeError:  # it has lone surrogates
        pass
    raise BadLine(f"name {_excerpt(value)}: must be the name of a policy, at most {_MAX_NAME} bytes")


def _unique_key(value: object) -> bytes:
    try:
        key = bytes.fromhex(value) if isinstance(value, str) else b""
    except ValueError:
        key = b""
    if not 0 < len(key) <= MAX_KEY:
        raise BadLine(f"unique key {_excerpt(value)}: must be 1 to {MAX_KEY} bytes in hexadecimal")
    return key


def _tags_line(tags: Tags) -> dict[str, object]:
    """Return the non-empty fields of *tags*."""
    found: dict[str, object] = {name: getattr(tags, name).decode() for name in _TAG_NAMES if getattr(tags, name)}
    return found | {name: getattr(tags, name) for name in _TAG_NUMBERS if getattr(tags, name)}


def _tags(value: object) -> Tags:
    """Parse *value*, the tags of a job."""
    if not isinstance(value, dict):
        raise BadLine("tags: must be an object")
    _expect(value, frozenset(), _TAGS)
    tags = Tags()
    for name in _TAG_NAMES:
        if name in value:
            setattr(tags, name, _tube_name(value, name))
    for name, bounds in _TAG_NUMBERS.items():
        if name in value:
            setattr(tags, name, _number(value, name, *bounds))
    if not tags.packed() or bool(tags.concurrency_key) != bool(tags.concurrency_limit):
        raise BadLine("tags: must have a key or group, and concurrency_key and concurrency_limit together")
    if tags.idempotency_ttl and not tags.idempotency_key:
        raise BadLine("tags: idempotency_ttl needs an idempotency_key")
    return tags


def _pack_letter(value: object) -> bytes:
    """Return *value*, the dead letter of a job, packed as in Job.dead_letter."""
    if not isinstance(value, dict):
        raise BadLine("dead_letter: must be an object")
    _expect(value, _LETTER_KEYS)
    reasons = {name: number for number, name in enumerate(REASON_NAMES) if number}
    return DeadLetter(
        _one_of(value, "reason", reasons),
        _tube_name(value, "source"),
        _number(value, "attempts", 0, _U32),
        _number(value, "first_at", 0, _U64),
        _number(value, "last_at", 0, _U64),
    ).pack()


def _one_of(line: dict[str, Any], name: str, allowed: dict[str, int]) -> int:
    value = line[name]
    if not isinstance(value, str) or value not in allowed:
        raise BadLine(f"{name} {_excerpt(value)}: must be one of {', '.join(allowed)}")
    return allowed[value]


def _encoded(line: dict[str, Any], name: str) -> bytes:
    """Return the bytes of the field *name*, which `_as_text` has encoded."""
    text, encoding = line[name], line["encoding"]
    if isinstance(text, str) and encoding in ("utf-8", "base64"):
        try:
            return text.encode() if encoding == "utf-8" else b64decode(text, validate=True)
        except ValueError:
            pass
    raise BadLine(f"{name}: must be text encoded as utf-8 or base64, not {_excerpt(encoding)}")


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
