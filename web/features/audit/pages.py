"""The audit log as a page and as files, for admins: filtered, newest first."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from flask import Flask, Response, render_template, request, url_for
from markupsafe import Markup
from msgspec import structs
from werkzeug.exceptions import BadRequest

from greenstalk_server.core.jobs.job import MAX_ID, SECOND
from greenstalk_server.web.changes.tasks import Tasks
from greenstalk_server.web.features.audit.entries import (
    END_OF_TIME,
    MAX_CURSOR,
    MAX_FILTER_LENGTH,
    Filter,
    find_entries,
    require_audit_access,
)
from greenstalk_server.web.features.policies.setting_texts import document_text
from greenstalk_server.web.framework import fields, text
from greenstalk_server.web.store.audit import Audit, Entry

PAGE: Final = 100
"""Entries on a page."""

CSV_HEAD: Final = ("at", "who", "address", "what", "tube", "id", "details")
FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""First characters of cells that a spreadsheet treats as a formula."""

CHUNK: Final = 16384
"""Characters of an export per chunk sent."""

FIELDS: Final = ("who", "what", "tube", "id", "since", "until")
"""The fields of the filter in the URL of the page."""

STARTS: Final = ("bulk/run", "tubes/run")
ENDS: Final = ("bulk/end", "tubes/end")
"""Actions of the entries at the start and at the end of a task that changes many jobs or tubes."""


DETAIL_NAMES: Final = {"counted": "previewed", "document": "settings", "seconds": "for", "bytes": "size"}
"""Names of details on the page that differ from the names in the log."""


@dataclass(frozen=True, slots=True)
class AuditRow:
    """An entry as text.

    links           label and URL of its tube, its job, its policy and its task, if any.
    details         the other names and values.
    """

    at: Markup
    who: str
    address: str
    what: str
    links: list[tuple[str, str]]
    details: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class AuditPage:
    """A page of rows. *before* is the cursor of the next page, or 0. *is_cut* means that the scan hit its limit."""

    rows: list[AuditRow]
    before: int
    is_cut: bool


class AuditPages:
    """The pages of *audit*."""

    def __init__(self, audit: Audit, tasks: Tasks) -> None:
        self._audit: Audit = audit
        self._tasks: Tasks = tasks

    def init_app(self, app: Flask) -> None:
        """Add the pages to *app*."""
        app.add_url_rule("/audit", "audit", self.audit)
        app.add_url_rule("/audit/export", "audit_export", self.export)

    def audit(self) -> str:
        """Serve `/audit?before=`, filtered by the arguments in FIELDS: a page of entries. May switch."""
        require_audit_access()
        wanted, before = _filter(), 0
        if request.args.get("before"):
            before = fields.number(request.args, "before", 1, MAX_CURSOR)
        return render_template(
            "audit.html",
            page=self._page(wanted, before),
            kept={name: value for name in FIELDS if (value := _given(name))},
            longest_filter=MAX_FILTER_LENGTH,
            is_first=not before,
            is_kept=self._audit.store.is_kept,
            trouble=self._audit.store.last_error,
        )

    def export(self) -> Response:
        """Serve `/audit/export?format=`: all entries that match the FIELDS, as `jsonl` or `csv`. May switch."""
        require_audit_access()
        kinds = {"jsonl": ("application/x-ndjson", _as_jsonl), "csv": ("text/csv", _as_csv)}
        format = request.args.get("format", "")
        if format not in kinds:
            raise BadRequest(f"“format” must be jsonl or csv, not “{format[:40]}”.")
        wanted, (mimetype, write) = _filter(), kinds[format]
        response = Response(_in_chunks(write(filter(wanted.passes, self._audit.newest_first()))), mimetype=mimetype)
        response.headers["Content-Disposition"] = f'attachment; filename="audit.{format}"'
        return response

    def _page(self, wanted: Filter, before: int) -> AuditPage:
        """Return the page of entries older than the cursor *before*. May switch."""
        found, following, is_cut = find_entries(self._audit, wanted, before, PAGE)
        return AuditPage([self._row(entry) for entry in merge_bulk_entries(found)], following, is_cut)

    def _row(self, entry: Entry) -> AuditRow:
        links, rest = [], dict(entry.details)
        if tube := str(rest.pop("tube", "")):
            links.append((tube, url_for("tube", tube=tube)))
        if id := str(rest.pop("id", "")):
            links.append((f"job {id}", url_for("job", id=id)))
        if policy := str(rest.pop("policy", "")):
            links.append((f"policy {policy}", url_for("policy", name=policy)))
        if self._tasks.has(str(rest.get("task", ""))):
            links.append(("task", url_for("task", id=rest.pop("task"))))
        started = rest.pop("started", "")
        details = [_detail(name, value) for name, value in rest.items() if (name, value) != ("forced", 0)]
        if started:
            details.append(("started", text.tag_instant(str(started))))
        return AuditRow(text.time_tag(entry.at), entry.who or text.NONE, entry.address, _action(entry), links, details)


def _action(entry: Entry) -> str:
    """Return the action of *entry*; the start and the end of a change of many have one name."""
    return entry.what.rpartition("/")[0] if entry.what in (*STARTS, *ENDS) else entry.what


def _detail(name: str, value: str | int) -> tuple[str, str]:
    """Return the *name* and the *value* of a detail for people."""
    shown = str(value)
    if name == "document":
        shown = document_text(shown)
    elif name == "seconds":
        seconds = float(value)  # the value is text in changes with fractions of seconds, and in changes of many tubes
        shown = text.duration(int(seconds)) if seconds.is_integer() else f"{seconds:g}{text.NBSP}s"
    elif name == "bytes" and isinstance(value, int):
        shown = text.size(value)
    return DETAIL_NAMES.get(name, name), "yes" if name == "forced" else shown


def _given(name: str) -> str:
    """Return the first MAX_FILTER_LENGTH characters of the field *name*."""
    return request.args.get(name, "").strip()[:MAX_FILTER_LENGTH]


def _filter() -> Filter:
    return Filter(
        who=_given("who"),
        what=_given("what"),
        tube=_given("tube"),
        id=fields.number(request.args, "id", 1, MAX_ID) if _given("id") else 0,
        since=_instant("since")[0] if _given("since") else 0,
        until=_instant("until")[1] if _given("until") else END_OF_TIME,
    )


def _instant(name: str) -> tuple[int, int]:
    """Return the start and end of the minute or second that the field *name* gives, in nanoseconds."""
    given = _given(name)
    for shape, seconds in (("%Y-%m-%dT%H:%M", 60), ("%Y-%m-%dT%H:%M:%S", 1)):
        with suppress(ValueError):
            begin = int(datetime.strptime(given, shape).replace(tzinfo=UTC).timestamp()) * SECOND
            return begin, begin + seconds * SECOND
    raise BadRequest(f"“{name}” must be a time in UTC such as 2026-11-22T14:30, not “{given[:40]}”.")


def merge_bulk_entries(entries: list[Entry]) -> list[Entry]:
    """Return *entries*, newest first, with the start and end of each change of many jobs or tubes merged into one.

    The merged entry is the end entry, plus the details and the time of the start entry.
    """
    starts = {entry.details["task"]: entry for entry in entries if entry.what in STARTS}
    found = []
    for entry in entries:
        start = starts.get(entry.details.get("task", ""))
        if entry.what in ENDS and start is not None:
            del starts[entry.details["task"]]
            details = {("counted" if name == "jobs" else name): value for name, value in start.details.items()}
            found.append(structs.replace(entry, details=details | entry.details | {"started": text.instant(start.at)}))
        elif entry.what not in STARTS or start is entry:
            found.append(entry)
    return found


def _as_jsonl(entries: Iterator[Entry]) -> Iterator[str]:
    for entry in entries:
        base = {"at": text.instant(entry.at), "who": entry.who, "address": entry.address, "what": entry.what}
        yield json.dumps({**base, "details": entry.details}, ensure_ascii=False) + "\n"


def _as_csv(entries: Iterator[Entry]) -> Iterator[str]:
    line = io.StringIO()
    writer = csv.writer(line)
    writer.writerow(CSV_HEAD)
    for entry in entries:
        rest = dict(entry.details)
        tube, id = rest.pop("tube", ""), rest.pop("id", "")
        details = json.dumps(rest, ensure_ascii=False) if rest else ""
        cells = (text.instant(entry.at), entry.who, entry.address, entry.what, tube, id, details)
        writer.writerow([f"'{cell}" if str(cell).startswith(FORMULA) else cell for cell in cells])
        yield line.getvalue()
        line.seek(0)
        line.truncate()
    yield line.getvalue()  # only the header, if there are no entries


def _in_chunks(lines: Iterator[str]) -> Iterator[str]:
    """Join *lines* into chunks of about CHUNK characters."""
    chunk: list[str] = []
    size = 0
    for line in lines:
        chunk.append(line)
        size += len(line)
        if size > CHUNK:
            yield "".join(chunk)
            chunk, size = [], 0
    yield "".join(chunk)
