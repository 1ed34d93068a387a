"""Fuzz archives, generated line by line; some have a correct checksum whatever their content.

An import must either raise StartError and leave nothing behind, or succeed. If it succeeds, a start on the imported
journal keeps the invariants and accepts puts and other commands, and an export of it has the same jobs.
"""

from __future__ import annotations

import contextlib
import io
import json
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import BURIED, READY, SECOND, Job
from greenstalk_server.core.operations import connecting, finishing, reserving, ticking
from greenstalk_server.journal import startup
from greenstalk_server.journal.archive import Reader, Writer
from greenstalk_server.journal.lock import LOCK_NAME
from greenstalk_server.journal.transfer import import_journal
from greenstalk_server.runtime.exit_codes import StartError
from tests.fuzz.journal import LATER, facts, put_one, recovered, scratch
from tests.fuzz.source import Source
from tests.journal.disk import Disk
from tests.support import invariants
from tests.support.world import START

ODD: Final[tuple[Any, ...]] = (
    None, True, False, 0, 1, -1, 1.0, 1e400, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64, "", "default", "a",
    "ready", "delayed", "buried", "\ud800", "\0", "job", "end", "pause", "head", "utf-8", "base64", "====", [], {},
    [[]],
    [[1, "kicked", 1]], [[1, [], 1]], [[1, "kicked", -1]], [[2**64, "kicked", 1]], [[1, "reserved", 2**32 - 1]] * 17,
    ["abc"], "abc", {"a": 1}, "x" * 5000,
)  # fmt: skip
RAW: Final = (
    b"\n", b"{}\n", b"[]\n", b"1\n", b"NaN\n", b'"', b"[" * 3000 + b"\n", b"9" * 5000 + b"\n", b"\xff\n", b"\0\n",
    b'{"type":"job","type":"end"}\n', b"", b'{"type":' + b"[" * 100_000 + b"\n",
)  # fmt: skip
KEYS: Final = ("k", "l", "k" * 200, "k" * 201, "-k", "")
ALL_TAGS: Final[dict[str, Any]] = {
    "idempotency_key": "k", "idempotency_ttl": SECOND, "group": "g", "after": "h", "concurrency_key": "c",
    "concurrency_limit": 1,
}  # fmt: skip
POLICIES: Final = tuple(
    json.dumps({"tubes": ["*"], **settings})
    for settings in (
        {"expire_after": 1, "buried_expire_after": 1, "expired_to": "dead-letter", "dead_letter": "failed"},
        {"max_attempts": 1, "dead_letter": "failed", "retry_delay": 1},
        {"unique": "body", "unique_for": 9, "max_jobs": 2, "overflow": "drop-oldest"},
        {"max_reserved": 1, "rate": 1},
    )
)
"""Documents of policies whose effects on the imported jobs are due at once."""

MAX_LINES: Final = 40


def one(data: bytes) -> None:
    """Make an archive from *data*, import it, and start on the result."""
    archive = _archive(Source(data))
    file = scratch() / "archive"
    file.write_bytes(archive)
    directory = file.parent / "journal"
    directory.mkdir(exist_ok=True)
    for path in directory.iterdir():
        path.unlink()
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            import_journal(str(directory), str(file))
        except StartError:
            assert [path.name for path in directory.iterdir() if path.name != LOCK_NAME] == []
            return
    _use(directory, archive)


def _use(directory: Path, archive: bytes) -> None:
    reader = Reader(archive.splitlines(keepends=True))
    next_id = reader.head()
    listed: dict[int, Any] = {each.id: facts(each) for each in reader.entries(next_id) if isinstance(each, Job)}
    assert sum(len(body) for _, _, body, _, _ in listed.values()) <= len(archive)
    disk = Disk({path.name: path.read_bytes() for path in directory.iterdir()})
    broker, journal = recovered(disk)
    listed = {id: (*rest, min(created_at, LATER)) for id, (*rest, created_at) in listed.items()}
    found = {id: facts(job) for id, job in broker.jobs.items()}
    if broker.policies.policies:  # a start moves jobs that have used up their attempts
        assert _bodies(found) == _bodies(listed)
    else:
        assert found == listed
    exported = list(Writer().lines(START, broker.next_id, [], [broker.jobs[id] for id in sorted(broker.jobs)]))
    again = Reader(exported)
    assert {each.id: facts(each) for each in again.entries(again.head()) if isinstance(each, Job)} == found
    _tick(broker, LATER)
    put_one(broker)
    _command(broker)
    startup.write_out(journal)
    restarted, _ = recovered(disk)
    assert {id: facts(job) for id, job in restarted.jobs.items()} == {id: facts(job) for id, job in broker.jobs.items()}


def _bodies(jobs: dict[int, Any]) -> dict[int, bytes]:
    return {id: body for id, (_, _, body, *_) in jobs.items()}


def _command(broker: Broker) -> None:
    """Change each job as clients do, so that it is recorded again."""
    client, now = connecting.connect(broker, lambda: None), LATER + SECOND
    for id in list(broker.jobs):
        job = broker.jobs.get(id)  # None if a policy has deleted it since
        if job is None or job.state not in (READY, BURIED):
            continue
        tube = job.tube
        if not reserving.reserve_job(broker, client, id, now):
            assert tube.policy_state is not None, "only a policy refuses a reserve"
        else:
            assert reserving.touch(broker, client, id, now)
            assert (
                finishing.bury(broker, client, id, 1, now)
                if id % 2
                else finishing.release(broker, client, id, 1, SECOND, now)
            )
        invariants.check(broker)
    connecting.disconnect(broker, client, now)
    _tick(broker, now + SECOND)


def _tick(broker: Broker, now: int) -> None:
    """Do all that is due at *now*."""
    while (due := ticking.tick(broker, now)) is not None and due <= now:
        pass
    invariants.check(broker)


def _archive(source: Source) -> bytes:
    oddity = source.byte()
    version = 1 + (oddity >> 6 != 0)
    head = {"type": "head", "format": "greenstalk journal", "version": version, "server": "0", "exported_at": 1}
    lines = [_line({**head, "next_id": source.pick((10, 300, 2**63 - 1, 2**64 - 1, 1))}, source, bool(oddity & 1))]
    pauses = jobs = policies = keys = 0
    for _ in range(MAX_LINES):
        if not source:
            break
        kind, is_odd = source.byte() % 8, not source.byte() % 4
        if kind == 0:
            pauses += 1
            until = source.pick((START + 3 * SECOND, 1, 2**63, 2**64 - 1))
            pause = {"type": "pause", "tube": source.pick(("default", "a")), "until": until, "length": SECOND}
            lines.append(_line(pause, source, is_odd))
        elif kind == 2 and version == 2:
            policies += 1
            document = source.pick(("{}", '{"max_attempts":5}', "", "\ufffd", *POLICIES))
            policy = {"type": "policy", "name": source.pick(("a", "b")), "encoding": "utf-8", "document": document}
            lines.append(_line(policy, source, is_odd))
        elif kind == 3 and version == 2:
            keys += 1
            until = source.pick((START, LATER + SECOND, 2**64 - 1))
            name = source.take(1 + source.byte() % 64).hex()
            key = {"type": "key", "tube": "a", "key": name, "id": 1, "until": until}
            if source.byte() & 1:
                key |= {"type": "idempotency-key", "key": source.pick(KEYS)}
            lines.append(_line(key, source, is_odd))
        elif kind == 1 and is_odd:
            lines.append(source.pick(RAW))
        else:
            jobs += 1
            attributes = _attributes(source) if version == 2 else {}
            lines.append(_line(_job(source, jobs) | attributes, source, is_odd))
    if oddity & 2:
        jobs += source.byte() % 3
    checksum = sha256(b"".join(lines)).hexdigest() if not oddity & 4 else "0" * 64
    if not oddity & 8:
        entries = {"policies": policies, "keys": keys} if version == 2 else {}
        end = {"type": "end", "pauses": pauses, **entries, "jobs": jobs, "sha256": checksum}
        lines.append(_line(end, source, bool(oddity & 16)))
    if oddity & 32:
        lines.append(source.take(10))
    return b"".join(lines)


def _job(source: Source, id: int) -> dict[str, Any]:
    body = source.take(source.byte() % 9)
    encoded, encoding = (
        (b64encode(body).decode(), "base64") if source.byte() & 1 else (body.decode("utf-8", "replace"), "utf-8")
    )
    numbers = dict.fromkeys(("reserves", "timeouts", "releases", "buries", "kicks"), source.pick((0, 1, 2**32 - 1)))
    return {
        "type": "job",
        "id": source.pick((id, id, id + 1, 2**63 - 2, 2**64 - 2)),
        "tube": source.pick(("default", "a", "a" * 200, "-a")),
        "state": source.pick(("ready", "delayed", "buried")),
        "pri": source.pick((0, 2**32 - 1)),
        "delay": source.pick((0, SECOND, (2**32 - 1) * SECOND)),
        "ttr": source.pick((SECOND, (2**32 - 1) * SECOND, 1)),
        "created_at": source.pick((START, 0, 2**63 - 1, 2**64 - 1)),
        "deadline": source.pick((START + SECOND, 0, 5, 2**63 - 1, 2**64 - 1)),
        **numbers,
        "encoding": encoding,
        "body": encoded,
    }


def _attributes(source: Source) -> dict[str, Any]:
    """Return the attributes of a job, or none."""
    letter = {"reason": "expired", "source": source.pick(("a", "b" * 200)), "attempts": 1, "first_at": 2, "last_at": 3}
    all_of_them: dict[str, Any] = {
        "attempts_base": source.pick((1, 2**32 - 1)),
        "expires_from": source.pick((START, 2**64 - 1)),
        "unique_key": source.pick(("00", "ff" * 64)),
        "dead_letter": letter,
    }
    tags = {name: value for name, value in ALL_TAGS.items() if source.byte() & 1}
    if source.byte() & 1:
        name = source.pick(sorted(ALL_TAGS))
        tags[name] = source.pick(KEYS) if isinstance(ALL_TAGS[name], str) else source.pick((0, 1, 2**32, 2**64))
    all_of_them["tags"] = tags
    present = source.byte()
    return {name: value for bit, (name, value) in enumerate(all_of_them.items()) if present >> bit & 1}


def _line(value: dict[str, Any], source: Source, is_odd: bool) -> bytes:
    """Return *value* as a line; if *is_odd*, with one item changed, added or removed."""
    if is_odd:
        name, odd = source.pick(sorted(value)), source.pick((*ODD, "drop", "add"))
        if odd == "drop":
            del value[name]
        else:
            value["events" if odd == "add" or isinstance(odd, list) else name] = odd
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
