"""Export of the jobs that match a query, streamed as CSV or JSON lines. Only the ids are held in memory.

The export of all shards merges the rows of the shards by id. Each other shard gets the same request, and answers with
its rows in frames: the id of the job, the size of a piece of its row, and the piece.

Only CSV alters text, against formula injection (see below). In both formats, a body that is not UTF-8, contains a NUL,
or is large is exported as base64.

In CSV, text is protected against formula injection. A spreadsheet executes a cell that begins with one of `=+-@`, a tab
or a line end. Such text is prefixed with an apostrophe, which marks it as text. Some spreadsheets also split cells at
semicolons, tabs and line ends, ignoring quotes. There, one of `=+-@` after a separator begins a formula too. In the
name of a tube, an apostrophe is inserted before that `=+-@`. A body that contains a separator followed by one of `=+-@`
is exported as base64.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from heapq import merge
from itertools import chain, repeat
from struct import Struct
from typing import Final

from flask import Flask, Response, request
from werkzeug.exceptions import BadRequest, Forbidden, ServiceUnavailable

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import Job
from greenstalk_server.protocol.stats import job_stats
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.framework.access import Principal, is_part, principal
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.reads.jobs.bodies import load_job_with_body
from greenstalk_server.web.reads.jobs.json_fields import Path, field_text, parse_body
from greenstalk_server.web.reads.jobs.matching import JobMatcher, candidate_ids, read_columns, read_query
from greenstalk_server.web.reads.jobs.query import Query, QueryError

FIELDS: Final = (
    "id",
    "tube",
    "state",
    "pri",
    "age",
    "delay",
    "ttr",
    "time_left",
    "reserves",
    "timeouts",
    "releases",
    "buries",
    "kicks",
    "size",
)
"""Columns; times in whole seconds. Principals who may see bodies also get `encoding` and `body`.

Fields of JSON bodies that the request names are columns `body.PATH` in CSV, and in JSON lines an object `fields`. Their
values are texts of at most MAX_SHOWN characters.

If a body is lost, `encoding` and `body` are empty in CSV, and null in JSON lines.
"""

CHUNK: Final = 32 * 1024
"""Approximate bytes per chunk sent."""

LARGE_BODY: Final = 192 * 1024
"""Largest body in bytes that is written in one piece: about 1 ms."""

PIECE: Final = 3 * 32 * 1024
"""Bytes of a larger body encoded per piece; a multiple of three, for base64."""

PATIENCE: Final = 0.5
"""Seconds after which another process gets an empty frame, while no job matches: its request has a timeout."""

MAX_EXPORTS: Final = 4
"""Concurrent exports; each holds the ids of all candidate jobs."""

_FORMULA: Final = re.compile("[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")  # the last four are full-width forms
_SECOND_FORMULA: Final = re.compile("([;\t\r\n][ \"']*)(?=[=+\\-@\uff1d\uff0b\uff0d\uff20])")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")

_FRAME: Final = Struct("<QI")

Row = dict[str, str | int | None]

RowPiece = tuple[int, bytes]
"""The id of a job, and a piece of its row. The pieces of a row follow each other."""

Pieces = Iterator[bytes]

Elsewhere = Callable[[], AbstractContextManager[list[Pieces]]]


class Exports:
    """The exports of one broker's dashboard."""

    def __init__(
        self, broker: Broker, clock: Clock, elsewhere: Callable[[], AbstractContextManager[list[Pieces]]]
    ) -> None:
        """*elsewhere* enters a context with the responses of all other shards to the current request."""
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._elsewhere: Elsewhere = elsewhere
        self._running: int = 0

    def init_app(self, app: Flask) -> None:
        """Add the download to *app*."""
        app.add_url_rule("/export", "export", self.export)

    def export(self) -> Response:
        """Serve `/export?tube=&state=&q=&cols=&format=`: the matching jobs, oldest first.

        Sending it may switch greenlets.
        """
        try:
            query = read_query(request.args)
        except QueryError as error:
            raise BadRequest(f"“q” is not a valid query. {error}") from error
        form = request.args.get("format", "")
        if form not in _FORMATS:
            raise BadRequest(f"“format” must be one of {', '.join(_FORMATS)}, not “{form[:40]}”.")
        return self.file(query, form, read_columns(request.args))

    def file(self, query: Query, form: str, paths: tuple[Path, ...] = ()) -> Response:
        """Return the jobs that match *query*, oldest first, as a *form* file. Sending it may switch greenlets.

        *paths* names the fields of JSON bodies to export too. Raise Forbidden if *paths* is not empty and bodies are
        hidden.
        """
        if paths and not principal().sees_bodies:
            raise Forbidden("Job bodies are hidden from you, so you cannot export their fields.")
        mimetype, make = _FORMATS[form]
        who = principal()  # the file is written after the end of the request
        writer = make(who.sees_bodies, paths)
        if is_part():
            return Response(framed(self._rows(query, writer, who)), mimetype="application/octet-stream")
        if self._running >= MAX_EXPORTS:
            raise ServiceUnavailable(
                f"{MAX_EXPORTS} exports are running, which is the limit. Try again when one has finished."
            )
        parts = ExitStack()
        elsewhere = parts.enter_context(self._elsewhere()) if not query.tube else []
        response = Response(self._stream(query, writer, who, elsewhere), mimetype=mimetype)
        response.call_on_close(parts.close)
        response.headers["Content-Disposition"] = f'attachment; filename="{_file_name(query)}.{form}"'
        return response

    def _stream(self, query: Query, writer: Writer, who: Principal, elsewhere: list[Pieces]) -> Iterator[bytes]:
        rows = [self._rows(query, writer, who), *map(unframed, elsewhere)]
        with self._counted():
            yield from _chunks(chain((writer.head(),), merged_rows(rows)))

    def _rows(self, query: Query, writer: Writer, who: Principal) -> Iterator[RowPiece]:
        """Yield the rows of this shard for *who* in small pieces; end if the session of *who* ends. Switches.

        A piece is empty if no job has matched for PATIENCE seconds.
        """
        pace, waiting_since = Pace(), time.monotonic()
        matcher = JobMatcher(self._broker, query, self._clock(), pace.yield_if_due, lambda job: writer.has_bodies, who)
        for id, job, body in matcher.match(candidate_ids(self._broker, query, who=who)[1]):
            if job is None:
                if time.monotonic() > waiting_since + PATIENCE:
                    waiting_since = time.monotonic()
                    yield id, b""
                continue
            if not who.lasts():
                raise ConnectionAbortedError("the session that requested the export has ended")
            for piece in writer.row(job, body, self._clock()):
                yield id, piece
                pace.yield_if_due()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1


class JsonLines:
    """Writes one JSON object per line."""

    def __init__(self, has_bodies: bool, paths: tuple[Path, ...] = ()) -> None:
        self.has_bodies: bool = has_bodies
        self._paths: tuple[Path, ...] = paths

    def head(self) -> bytes:
        return b""

    def row(self, job: Job, body: bytes | None, now: int) -> Iterator[bytes]:
        """Yield the line of *job* in pieces; *body* is None if it is lost."""
        row: dict[str, object] = {**_row(job, now)}
        if self._paths:
            row["fields"] = field_texts(body, self._paths)
        is_large = self.has_bodies and body is not None and len(body) > LARGE_BODY
        if self.has_bodies and not is_large:
            row["encoding"], row["body"] = (None, None) if body is None else encode_body(body)
        line = json.dumps(row, ensure_ascii=False).encode(errors="replace")
        if is_large and body is not None:
            yield line[:-1] + b', "encoding": "base64", "body": "'
            yield from _base64_pieces(body)
            line = b'"}'
        yield line + b"\n"


class Csv:
    """Writes a CSV file with a header."""

    def __init__(self, has_bodies: bool, paths: tuple[Path, ...] = ()) -> None:
        self.has_bodies: bool = has_bodies
        self._paths: tuple[Path, ...] = paths

    def head(self) -> bytes:
        fields_of_body = [f"body.{'.'.join(path)}" for path in self._paths]
        return _csv_line([*FIELDS, *fields_of_body, "encoding", "body"] if self.has_bodies else FIELDS)

    def row(self, job: Job, body: bytes | None, now: int) -> Iterator[bytes]:
        """Yield the line of *job* in pieces; *body* is None if it is lost."""
        texts = field_texts(body, self._paths).values() if self._paths else ()
        cells = [escape_formulas(value) for value in (*_row(job, now).values(), *texts)]
        if not self.has_bodies:
            yield _csv_line(cells)
        elif body is None:
            yield _csv_line([*cells, "", ""])
        elif len(body) <= LARGE_BODY:
            encoding, shown = encode_body(body)
            if _SECOND_FORMULA.search(shown):
                encoding, shown = "base64", base64.b64encode(body).decode()
            yield _csv_line([*cells, encoding, escape_formulas(shown)])
        else:
            yield _csv_line([*cells, "base64"])[:-2] + (b",'" if body[0] >> 2 == PLUS else b",")
            yield from _base64_pieces(body)
            yield b"\r\n"


PLUS: Final = 62
"""The six bits that base64 encodes as `+`: a body that begins with them would look like a formula."""

Writer = JsonLines | Csv

_FORMATS: Final[Mapping[str, tuple[str, Callable[[bool, tuple[Path, ...]], Writer]]]] = {
    "csv": ("text/csv", Csv),
    "jsonl": ("application/jsonl", JsonLines),
}


def body_file(broker: Broker, find: Callable[[], Job]) -> Response:
    """Return a download of the body of the job that *find* returns. May switch.

    Raise Forbidden if bodies are hidden. The headers of the response keep the browser from displaying the body.
    """
    job = find()
    if not principal().sees_bodies:
        raise Forbidden("Bodies are hidden from you on this dashboard.")
    job, body = load_job_with_body(broker, find)
    response = Response(body, mimetype="application/octet-stream")
    response.headers["Content-Disposition"] = f'attachment; filename="job-{job.id}.bin"'
    return response


def field_texts(body: bytes | None, paths: Iterable[Path]) -> dict[str, str | None]:
    """Return the fields of *body* at *paths* as text, None for those that it lacks. May switch."""
    root, pace, texts = None if body is None else parse_body(body), Pace(), dict[str, str | None]()
    for path in paths:
        pace.yield_if_due()
        texts[".".join(path)] = field_text(root, path)
    return texts


def encode_body(body: bytes) -> tuple[str, str]:
    """Return the encoding of *body*, `utf-8` or `base64`, and the encoded body."""
    if b"\0" not in body:
        try:
            return "utf-8", body.decode()
        except UnicodeDecodeError:
            pass
    return "base64", base64.b64encode(body).decode()


def escape_formulas(cell: str | int | None) -> str | int | None:
    """Return *cell*, escaped so that a spreadsheet treats no part of it as a formula."""
    if not isinstance(cell, str):
        return cell
    cell = _SECOND_FORMULA.sub(r"\1'", cell)
    return f"'{cell}" if _FORMULA.match(cell) else cell


def _row(job: Job, now: int) -> Row:
    stats = job_stats(job, now)
    row: Row = {name: getattr(stats, name) for name in FIELDS if name != "size"}
    return row | {"size": job.size}


def _csv_line(cells: Sequence[str | int | None]) -> bytes:
    out = io.StringIO(newline="")
    csv.writer(out).writerow(cells)
    return out.getvalue().encode()


def _base64_pieces(body: bytes) -> Iterator[bytes]:
    """Yield *body* in base64, in pieces."""
    for at in range(0, len(body), PIECE):
        yield base64.b64encode(body[at : at + PIECE])


def framed(rows: Iterable[RowPiece]) -> Iterator[bytes]:
    """Return the pieces of *rows* as frames."""
    return (_FRAME.pack(id, len(piece)) + piece for id, piece in rows)


def unframed(frames: Iterable[bytes]) -> Iterator[RowPiece]:
    """Return the pieces of rows whose *frames* come in pieces of any size."""
    data = bytearray()
    for received in frames:
        data += received
        begin = 0
        while len(data) >= begin + _FRAME.size:
            id, size = _FRAME.unpack_from(data, begin)
            end = begin + _FRAME.size + size
            if len(data) < end:
                break
            yield id, bytes(data[begin + _FRAME.size : end])
            begin = end
        del data[:begin]


def merged_rows(shards: list[Iterator[RowPiece]]) -> Iterator[bytes]:
    """Yield the pieces of the rows of several *shards* by id. A job that moves meanwhile has one row. Switches."""
    pace, last = Pace(), (-1, -1)
    numbered = [zip(rows, repeat(shard)) for shard, rows in enumerate(shards)]
    for (id, piece), shard in merge(*numbered, key=lambda row: row[0][0]):
        if piece and (id != last[0] or shard == last[1]):
            last = (id, shard)
            yield piece
            pace.yield_if_due()


def _chunks(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Join *pieces* into chunks of about CHUNK bytes."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= CHUNK:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join(held)


def _file_name(query: Query) -> str:
    """Return the file name, in characters that every system accepts."""
    parts = [_UNSAFE.sub("-", part).strip("-.")[:100] for part in (query.tube, query.state) if part]
    return "-".join(["jobs", *[part for part in parts if part]])
