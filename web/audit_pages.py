"""The audit log as a page and as files, for admins: newest first, and what the visitor asked for only."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from flask import Flask, Response, render_template, request, url_for
from werkzeug.exceptions import BadRequest, Forbidden

from web import fields, text
from web.access import visitor
from web.audit import Audit, Entry

PAGE: Final = 100
"""Entries on a page."""

SCANNED_AT_MOST: Final = 50_000
"""Entries looked at for one page, about half a second; the page then says how far it has come."""

LONGEST_FILTER: Final = 200
MAX_CURSOR: Final = 2**63 - 1

CSV_HEAD: Final = ("at", "who", "address", "what", "tube", "id", "details")
FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes a cell for a formula by."""

CHUNK: Final = 16384
"""Characters of an export that are sent at once."""


@dataclass(frozen=True, slots=True)
class Filter:
    """What somebody wants to see: entries whose who and what contain these, in any case."""

    who: str
    what: str

    def passes(self, entry: Entry) -> bool:
        return self.who.lower() in entry.who.lower() and self.what.lower() in entry.what


@dataclass(frozen=True, slots=True)
class Row:
    """One entry as shown; *links* are labels and addresses of its tube and its job, *details* the rest."""

    at: str
    who: str
    address: str
    what: str
    links: list[tuple[str, str]]
    details: str


@dataclass(frozen=True, slots=True)
class Page:
    """A page of rows; *before* is the cursor of the next, or 0; *is_cut* if it has fewer since it took too long."""

    rows: list[Row]
    before: int
    is_cut: bool


class AuditPages:
    """The pages of *audit*."""

    def __init__(self, audit: Audit) -> None:
        self._audit: Audit = audit

    def install(self, app: Flask) -> None:
        """Add the pages to *app*."""
        app.add_url_rule("/audit", "audit", self.audit)
        app.add_url_rule("/audit/export", "audit_export", self.export)

    def audit(self) -> str:
        """`/audit?who=&what=&before=`: a page of entries. May switch."""
        refuse_others()
        wanted, before = _filter(), 0
        if request.args.get("before"):
            before = fields.number(request.args, "before", 1, MAX_CURSOR)
        return render_template(
            "audit.html",
            page=_page(self._audit, wanted, before),
            filter=wanted,
            longest_filter=LONGEST_FILTER,
            is_first=not before,
            is_kept=self._audit.is_kept,
            trouble=self._audit.trouble,
        )

    def export(self) -> Response:
        """`/audit/export?format=&who=&what=`: every entry there is, as `jsonl` or `csv`. May switch."""
        refuse_others()
        kinds = {"jsonl": ("application/x-ndjson", _as_jsonl), "csv": ("text/csv", _as_csv)}
        format = request.args.get("format", "")
        if format not in kinds:
            raise BadRequest(f"“format” must be jsonl or csv, not “{format[:40]}”.")
        wanted, (mimetype, write) = _filter(), kinds[format]
        response = Response(_in_chunks(write(filter(wanted.passes, self._audit.back()))), mimetype=mimetype)
        response.headers["Content-Disposition"] = f'attachment; filename="audit.{format}"'
        return response


def refuse_others() -> None:
    """Raise Forbidden for who may not see the audit log."""
    if not visitor().sees_audit:
        raise Forbidden("Only admins can see the audit log.")


def _filter() -> Filter:
    who, what = (request.args.get(name, "").strip()[:LONGEST_FILTER] for name in ("who", "what"))
    return Filter(who, what)


def collect(audit: Audit, wanted: Filter, before: int, at_most: int) -> tuple[list[Entry], int, bool]:
    """The last entries that are wanted before *before*; the cursor of the next, or 0; and if it took too long for more.

    May switch.
    """
    found: list[Entry] = []
    for scanned, entry in enumerate(audit.back(before)):
        if len(found) == at_most:
            return found, found[-1].number, False
        if scanned == SCANNED_AT_MOST:
            return found, entry.number + 1, True
        if wanted.passes(entry):
            found.append(entry)
    return found, 0, False


def _page(audit: Audit, wanted: Filter, before: int) -> Page:
    """A page of the entries before *before*. May switch."""
    found, following, is_cut = collect(audit, wanted, before, PAGE)
    return Page([_row(one) for one in found], following, is_cut)


def _row(entry: Entry) -> Row:
    links, rest = [], dict(entry.details)
    if tube := str(rest.pop("tube", "")):
        links.append((tube, url_for("tube", tube=tube)))
    if id := str(rest.pop("id", "")):
        links.append((f"job {id}", url_for("job", id=id)))
    details = ", ".join(f"{name} {value}" for name, value in rest.items())
    return Row(text.instant(entry.at), entry.who or text.NONE, entry.address, entry.what, links, details)


def _as_jsonl(entries: Iterator[Entry]) -> Iterator[str]:
    for entry in entries:
        said = {"at": text.instant(entry.at), "who": entry.who, "address": entry.address, "what": entry.what}
        yield json.dumps({**said, "details": entry.details}, ensure_ascii=False) + "\n"


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
    yield line.getvalue()  # the head, if nothing has followed it


def _in_chunks(lines: Iterator[str]) -> Iterator[str]:
    """Join *lines* to pieces worth sending."""
    chunk: list[str] = []
    size = 0
    for line in lines:
        chunk.append(line)
        size += len(line)
        if size > CHUNK:
            yield "".join(chunk)
            chunk, size = [], 0
    yield "".join(chunk)
