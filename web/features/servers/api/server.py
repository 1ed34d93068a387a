"""API endpoints of this server: its figures, recent history, and a stream of changes."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from flask import Response
from msgspec import UNSET, Meta, UnsetType, convert

from greenstalk_server.core.broker import Broker
from greenstalk_server.protocol.extended_stats import server_extension
from greenstalk_server.protocol.stats import ServerStats
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.features.history.figures import BodyFigures, Figures, WholeFigures
from greenstalk_server.web.features.tubes.api.tubes import (
    HistoryRequest,
    ListTubesRequest,
    RatesPerSecond,
    Series,
    TubesEndpoints,
    rates_model,
    series_model,
)
from greenstalk_server.web.framework.access import require_full_view
from greenstalk_server.web.framework.api.cursors import MAX_LIMIT
from greenstalk_server.web.framework.api.endpoint import endpoint
from greenstalk_server.web.framework.api.values import (
    Count,
    RequestModel,
    ResponseModel,
    TubeName,
    model_of,
)
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.framework.fields import Fields
from greenstalk_server.web.live.hub import LiveHub, State
from greenstalk_server.web.reads.lookup import tube_of

LIVE: Final = "api"
"""Name under which the LiveHub knows the API's event stream."""

EVENT_STREAM: Final = "text/event-stream"


class Journal(ResponseModel):
    """The state of the journal."""

    is_on_disk: Annotated[bool, Meta(description="Whether jobs survive a restart of the server.")]
    trouble: Annotated[
        str | None, Meta(description="Reason why the journal cannot be written, so that puts are refused.")
    ]
    is_full: Annotated[bool, Meta(description="Whether the disk has no room for another file.")]
    files: Count
    bytes_on_disk: Annotated[Count, Meta(description="Size of the files.")]
    bytes_recorded: Annotated[Count, Meta(description="Size of the records in files that are in use.")]
    bytes_live: Annotated[Count, Meta(description="Size of the records that hold a job.")]
    synced_ago: Annotated[
        float | None,
        Meta(description="Seconds since the last time that all records were known to be on disk; null if never."),
    ]


class Memory(ResponseModel):
    """The memory of the process, in bytes."""

    bytes: Count
    private: Annotated[Count, Meta(description="The part that is not shared with other processes.")]


class Bodies(ResponseModel):
    """The bodies of jobs in memory and on disk, if memory is limited."""

    limit: Annotated[Count, Meta(description="Bytes of memory that jobs may use.")]
    taken: Annotated[Count, Meta(description="Bytes of memory that jobs use, approximately.")]
    in_memory: Annotated[Count, Meta(description="Jobs whose bodies are in memory.")]
    bytes_in_memory: Count
    on_disk: Annotated[Count, Meta(description="Jobs whose bodies are only on disk.")]
    bytes_on_disk: Count
    is_full: Annotated[bool, Meta(description="Whether puts are refused because of the limit.")]


class ServerExtension(ResponseModel):
    """The extended keys of `stats` of the protocol; sizes in bytes. The last two are null without a memory limit."""

    # Not the dataclass of the protocol: mypyc removes the types of its optional fields.
    greenstalk_version: str
    binlog_enabled: bool
    binlog_file_count: Count
    binlog_total_bytes: Count
    body_bytes_in_memory: Count | None
    body_bytes_on_disk: Count | None


class ServerFigures(ResponseModel):
    """The server and its figures."""

    stats: ServerStats
    extended: ServerExtension
    build: Annotated[str, Meta(description="How the core runs: `compiled` or `pure Python`.", examples=["compiled"])]
    role: Annotated[
        Literal["leader", "single"],
        Meta(description="`leader` of the servers that share its journal, or `single`. A standby has no API."),
    ]
    shards: Annotated[Count, Meta(description="Number of parts of the queue, each with a process.")]
    extensions: Annotated[
        list[str],
        Meta(
            description="Protocol extensions that are on: their commands, `fractions`, `tags` and `weights`.",
            examples=[["delete-batch", "fractions"]],
        ),
    ]
    rates: Annotated[RatesPerSecond, Meta(description="Rates of all tubes together.")]
    journal: Journal
    memory: Annotated[Memory | None, Meta(description="Null if the system does not report it.")]
    bodies: Annotated[Bodies | None, Meta(description="Null if memory is not limited.")]
    limited: Annotated[
        dict[str, Count],
        Meta(description="Number of times that each limit or access rule has refused or delayed something."),
    ]


class WatchEventsRequest(RequestModel):
    """The tube to watch."""

    tube: Annotated[
        TubeName | UnsetType, Meta(description="Only this tube; without it, the server and the first 1000 tubes.")
    ] = UNSET


class ServerEndpoints:
    """The server: its figures, recent history, and a stream of all changes."""

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        tubes: TubesEndpoints,
        live: LiveHub,
        whole: WholeFigures,
        *,
        shares_journal: bool,
    ) -> None:
        """*shares_journal*: whether other servers may take over its journal."""
        self._role: Literal["leader", "single"] = "leader" if shares_journal else "single"
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._tubes: TubesEndpoints = tubes
        self._live: LiveHub = live
        self._whole: WholeFigures = whole
        live.register(LIVE, self.live_state, is_page=False)

    @endpoint("GET", "/server")
    def get_server(self) -> ServerFigures:
        """Get the figures of the server.

        If you may see only some tubes, the numbers of jobs and tubes, and the rates, include only these tubes.
        """
        return self._figures(self._clock())

    @endpoint("GET", "/server/history", errors={403: "You may not see all tubes."})
    def get_server_history(self, query: HistoryRequest) -> Series:
        """Get the history of all tubes together."""
        require_full_view("The history of the server")
        return series_model(self._whole.columns, query)

    @endpoint(
        "GET",
        "/events",
        content=(EVENT_STREAM,),
        errors={404: "The tube does not exist.", 503: "The maximum number of streams is open."},
    )
    def watch(self, query: WatchEventsRequest) -> Response:
        """Watch the figures of the server and of its tubes, as server-sent events.

        The data of the first event is `{"server": {…}, "tubes": {NAME: {…}}}`, with the contents of `/server` and
        `/tubes`. Then one event is sent for each second with changes. It has the changed members of `server` and the
        changed tubes; a tube that is gone is null. A stream of a single tube sends an event `gone` and ends when the
        tube is gone. While nothing changes, an empty object is sent every 15 seconds.
        """
        return self._live.stream(LIVE, {} if query.tube is UNSET else {"tube": query.tube})

    def live_state(self, args: Fields, now: int) -> State:
        """Return the state of the stream, in the format that web.live.hub describes. May switch."""
        if "tube" in args:
            tube = tube_of(self._broker, args["tube"])
            return {"tubes": {args["tube"]: msgspec.to_builtins(self._tubes.tube_model(tube, now))}}
        pace, tubes = Pace(), {}
        for model in self._tubes.list_tubes(ListTubesRequest(limit=MAX_LIMIT)).tubes:
            tubes[model.name] = msgspec.to_builtins(model)
            pace.yield_if_due()
        return {"server": msgspec.to_builtins(self._figures(now)), "tubes": tubes}

    def _figures(self, now: int) -> ServerFigures:
        """Return the figures of the server that the principal may see. May switch."""
        figures = self._whole.read(now)
        journal, memory = figures.journal, figures.memory
        return ServerFigures(
            stats=figures.stats,
            extended=self._extended(figures),
            build=self._broker.facts.build,
            role=self._role,
            shards=self._broker.ids.shards,
            extensions=list(self._broker.facts.extensions),
            rates=rates_model(figures.rates),
            journal=model_of(Journal, journal, trouble=figures.trouble),
            memory=None if memory is None else Memory(bytes=memory[0], private=memory[1]),
            bodies=_bodies(figures.bodies),
            limited=figures.limited,
        )

    def _extended(self, figures: Figures) -> ServerExtension:
        extended = convert(server_extension(self._broker), ServerExtension, from_attributes=True)
        extended.binlog_file_count, extended.binlog_total_bytes = figures.journal.files, figures.journal.bytes_on_disk
        if (bodies := figures.bodies) is not None:
            extended.body_bytes_in_memory, extended.body_bytes_on_disk = bodies.in_memory, bodies.on_disk
        return extended


def _bodies(bodies: BodyFigures | None) -> Bodies | None:
    if bodies is None:
        return None
    return Bodies(
        limit=bodies.limit,
        taken=bodies.taken,
        in_memory=bodies.resident,
        bytes_in_memory=bodies.in_memory,
        on_disk=bodies.jobs - bodies.resident,
        bytes_on_disk=bodies.on_disk,
        is_full=bodies.is_full,
    )
