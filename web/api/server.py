"""The server of the API: its figures, what has happened lately, as a stream too, and who changed what."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from flask import Response
from msgspec import UNSET, Meta, Struct, UnsetType

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.stats import ServerStats, server_stats
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.api.cursors import DEFAULT_LIMIT, MOST, Cursor, Limit, NextCursor, dump, load
from greenstalk_server.web.api.framework.endpoint import endpoint
from greenstalk_server.web.api.tubes import ListTubes, RatesPerSecond, Series, Spanned, Tubes, rates_told
from greenstalk_server.web.api.values import Asked, Count, Instant, Told, TubeName, instant, tube_of
from greenstalk_server.web.fields import Fields
from greenstalk_server.web.live.hub import LiveHub, State
from greenstalk_server.web.metrics.history import History
from greenstalk_server.web.metrics.rings import SPANS
from greenstalk_server.web.operations.audit import Audit
from greenstalk_server.web.pages.audit import MAX_CURSOR, MAX_FILTER_LENGTH, Filter, find_entries, require_audit_access
from greenstalk_server.web.pages.charts import history_json
from greenstalk_server.web.pages.overview import OverviewBuilder

LIVE: Final = "api"
"""The name of the API's stream among the live pages."""

EVENT_STREAM: Final = "text/event-stream"


class Journal(Told):
    """How the journal is."""

    is_on_disk: Annotated[bool, Meta(description="Jobs survive the process.")]
    trouble: Annotated[str | None, Meta(description="Why it cannot be written, and so puts are refused.")]
    is_full: Annotated[bool, Meta(description="The disk has no room for a file ahead.")]
    files: Count
    bytes_on_disk: Annotated[Count, Meta(description="What the files take.")]
    bytes_recorded: Annotated[Count, Meta(description="What the records of files in use take.")]
    bytes_live: Annotated[Count, Meta(description="Those of them that hold a job.")]
    synced_ago: Annotated[
        float | None, Meta(description="Seconds since all written before was known to be on disk; null if never.")
    ]


class Memory(Told):
    """What the process has of memory."""

    bytes: Count
    private: Annotated[Count, Meta(description="Of it, shared with no other process.")]


class Bodies(Told):
    """The bodies of jobs, where there is a limit to memory."""

    limit: Annotated[Count, Meta(description="Bytes that jobs may take of memory.")]
    taken: Annotated[Count, Meta(description="Bytes that they take, about.")]
    in_memory: Annotated[Count, Meta(description="Jobs whose bodies are in memory.")]
    bytes_in_memory: Count
    on_disk: Annotated[Count, Meta(description="Jobs whose bodies are on disk alone.")]
    bytes_on_disk: Count
    is_full: Annotated[bool, Meta(description="Puts are refused, as jobs take too much.")]


class ServerFigures(Told):
    """The server and its figures."""

    stats: ServerStats
    rates: Annotated[RatesPerSecond, Meta(description="What happens in all tubes.")]
    journal: Journal
    memory: Annotated[Memory | None, Meta(description="Null where the system does not tell.")]
    bodies: Annotated[Bodies | None, Meta(description="Null without a limit to memory.")]
    limited: Annotated[
        dict[str, Count],
        Meta(description="How often each limit, or an access rule, refused something or held it up."),
    ]


class AuditEntry(Told):
    """One change, or one refusal."""

    number: Annotated[Count, Meta(description="Counts up, and on after a restart.")]
    at: Instant
    who: Annotated[str, Meta(description="The name that was given; with a token, which one it was.")]
    address: Annotated[str, Meta(description="Where it came from.")]
    what: Annotated[str, Meta(examples=["tube/pause"])]
    details: dict[str, str | int]


class AuditList(Told):
    """Some of the audit log, the newest first."""

    entries: list[AuditEntry]
    next_cursor: NextCursor
    trouble: Annotated[str, Meta(description="Why not all of it is on disk; empty if it is.")]


Part = Annotated[str, Meta(max_length=MAX_FILTER_LENGTH, description="Only entries that have this there, in any case.")]


class ListAudit(Asked):
    """Which entries."""

    who: Part = ""
    what: Part = ""
    cursor: Cursor | UnsetType = UNSET
    limit: Limit = DEFAULT_LIMIT


class Watched(Asked):
    """What to watch."""

    tube: Annotated[
        TubeName | UnsetType, Meta(description="This tube alone; else the server, and the first 1000 tubes by name.")
    ] = UNSET


class _Place(Struct, array_like=True):
    """Before which entry a list goes on."""

    before: Annotated[int, Meta(ge=1, le=MAX_CURSOR)]


class Server:
    """The server: its figures, what has happened lately, a stream of all that changes, and the audit log."""

    def __init__(
        self, broker: Broker, clock: Clock, tubes: Tubes, history: History, audit: Audit, live: LiveHub
    ) -> None:
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._tubes: Tubes = tubes
        self._history: History = history
        self._builder: OverviewBuilder = OverviewBuilder(broker, history)
        self._audit: Audit = audit
        self._live: LiveHub = live
        live.register(LIVE, self.live_state)

    @endpoint("GET", "/server")
    def get_server(self) -> ServerFigures:
        """Look at the server."""
        return self._told(self._clock())

    @endpoint("GET", "/server/history")
    def get_server_history(self, query: Spanned) -> Series:
        """See what has happened in all tubes lately."""
        return Series(**history_json(self._history.columns(None, SPANS[query.span])))

    @endpoint(
        "GET",
        "/events",
        content=(EVENT_STREAM,),
        errors={404: "There is no such tube now.", 503: "There are as many streams as there may be."},
    )
    def watch(self, query: Watched) -> Response:
        """Watch the figures of the server and of its tubes, as server-sent events.

        The data of the first event is `{"server": {…}, "tubes": {NAME: {…}}}`, with what `/server` and `/tube` tell.
        Each second that something changes another follows, with what is other than before: a member of `server`, or
        a whole tube, which is null if it is gone. When a tube that alone is watched is gone, an event `gone` comes, and
        the stream ends. When nothing changes, an empty object comes every 15 seconds.
        """
        return self._live.stream(LIVE, {} if query.tube is UNSET else {"tube": query.tube})

    @endpoint("GET", "/audit", errors={403: "Only admins can see the audit log."})
    def list_audit(self, query: ListAudit) -> AuditList:
        """See who changed what, and what was refused, the newest first."""
        require_audit_access()
        before = load(query.cursor, _Place).before if query.cursor is not UNSET else 0
        wanted = Filter(query.who.strip(), query.what.strip())
        entries, following, _ = find_entries(self._audit, wanted, before, query.limit)
        return AuditList(
            entries=[
                AuditEntry(
                    number=one.number,
                    at=instant(one.at),
                    who=one.who,
                    address=one.address,
                    what=one.what,
                    details=one.details,
                )
                for one in entries
            ],
            next_cursor=dump(_Place(following)) if following else None,
            trouble=self._audit.trouble,
        )

    def live_state(self, args: Fields, now: int) -> State:
        """What the stream tells, as greenstalk_server.web.live.hub has it. May switch."""
        if "tube" in args:
            tube = tube_of(self._broker, args["tube"])
            return {"tubes": {args["tube"]: msgspec.to_builtins(self._tubes.told(tube, now))}}
        listed = self._tubes.list_tubes(ListTubes(limit=MOST))
        return {
            "server": msgspec.to_builtins(self._told(now)),
            "tubes": {tube.name: msgspec.to_builtins(tube) for tube in listed.tubes},
        }

    def _told(self, now: int) -> ServerFigures:
        journal, memory = self._broker.journal.stats(), self._broker.facts.memory()
        return ServerFigures(
            stats=server_stats(self._broker, now),
            rates=rates_told(self._history.total_rates()),
            journal=Journal(
                is_on_disk=journal.is_on_disk,
                trouble=self._broker.journal.trouble,
                is_full=journal.is_full,
                files=journal.files,
                bytes_on_disk=journal.bytes_on_disk,
                bytes_recorded=journal.bytes_recorded,
                bytes_live=journal.bytes_live,
                synced_ago=journal.synced_ago,
            ),
            memory=None if memory is None else Memory(bytes=memory[0], private=memory[1]),
            bodies=self._bodies(),
            limited=self._broker.limited.counts(),
        )

    def _bodies(self) -> Bodies | None:
        bodies = self._broker.bodies
        if bodies is None:
            return None
        return Bodies(
            limit=bodies.limit,
            taken=bodies.taken,
            in_memory=bodies.held,
            bytes_in_memory=bodies.in_memory,
            on_disk=bodies.jobs - bodies.held,
            bytes_on_disk=bodies.on_disk,
            is_full=not bodies.have_room(0),
        )
