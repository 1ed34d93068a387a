"""Other servers in the configuration, as their APIs describe them, beside this one.

A server is queried only while a page or an API request needs its figures, and at most every REFRESH_INTERVAL. The
requests run at the same time in native threads (web.framework.outbound). Responses are bounded and untrusted: they are
parsed strictly, and shown as text only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

import gevent
import msgspec
from msgspec import Meta, Struct
from werkzeug.exceptions import Forbidden

from greenstalk_server.cluster.status import ClusterStatus
from greenstalk_server.config.tables.peers import Peer
from greenstalk_server.config.tables.targets import ENVIRONMENT, shown_url
from greenstalk_server.core.jobs.id_sequence import MAX_SHARDS
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.protocol.stats import ServerStats
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.features.conditions.measures import SEVERITIES, WARNING, Measure
from greenstalk_server.web.features.conditions.monitor import ConditionMonitor
from greenstalk_server.web.features.history.figures import WholeFigures
from greenstalk_server.web.features.history.history import Rates
from greenstalk_server.web.features.servers.processes import Processes
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.api.values import Count, Instant, ResponseModel, instant, nanoseconds
from greenstalk_server.web.framework.outbound import Request, RequestFailed, Response, send

REFRESH_INTERVAL: Final = 5 * SECOND
"""Minimum nanoseconds between two requests to a server."""

MAX_TEXT: Final = 300
"""Maximum characters of a text of another server."""

STANDBY: Final = "standby"
LEADER: Final = "leader"
SINGLE: Final = "single"
"""Roles: waiting to take over; leader of a shared journal; without a shared journal."""

STANDBY_LINE: Final = "standby of the journal "
"""Beginning of the response of a standby, which serves no API."""

_Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Rate = Annotated[float, Meta(ge=0, le=1e12)]


class _Stats(Struct):
    """A part of the statistics of a server. The statistics of this server have the same fields."""

    version: str
    hostname: str
    uptime: _Number
    current_connections: _Number
    current_jobs_ready: _Number
    current_jobs_reserved: _Number
    current_jobs_delayed: _Number
    current_jobs_buried: _Number


class _Rates(Struct):
    put: _Rate
    reserve: _Rate
    delete: _Rate


class _ServerResponse(Struct):
    """A part of the response to `GET /server`. Earlier versions have no role and no shards."""

    stats: _Stats
    rates: _Rates
    role: str = ""
    shards: Annotated[int, Meta(ge=0, le=MAX_SHARDS)] = 0


class _Condition(Struct):
    severity: str
    sentence: str


class _AttentionResponse(Struct):
    """A part of the response to `GET /attention`."""

    total: _Number
    conditions: list[_Condition]


class Totals(ResponseModel):
    """The figures of a server."""

    version: str
    hostname: str
    uptime: Annotated[Count, Meta(description="Seconds since the start.")]
    connections: Count
    ready: Count
    reserved: Count
    delayed: Count
    buried: Count
    put: Annotated[float, Meta(description="Puts per second, averaged over the last ten seconds.")]
    reserve: Annotated[float, Meta(description="Reservations per second.")]
    delete: Annotated[float, Meta(description="Deletions per second.")]
    conditions: Annotated[Count, Meta(description="Conditions that need attention.")]
    worst: Annotated[str | None, Meta(description="The sentence of the worst condition.")]
    severity: Annotated[str | None, Meta(description="The severity of the worst condition.", examples=["warning"])]


class ListedServer(ResponseModel):
    """A server as this one sees it."""

    name: Annotated[str, Meta(description="Its name in the configuration; the host name for this server.")]
    address: Annotated[
        str, Meta(description="Scheme and host, or where the address is configured; empty for this one.")
    ]
    href: Annotated[str, Meta(description="Address of its dashboard; empty if that is a secret, and for this one.")]
    is_this: bool
    state: Annotated[
        Literal["reachable", "standby", "unreachable", "pending"],
        Meta(description="`pending`: it has not responded yet."),
    ]
    role: Annotated[str | None, Meta(description="`leader`, `standby` or `single`; null if it is not known.")]
    shards: Annotated[
        Count | None, Meta(description="Number of parts of its queue, each with a process; null if it is not known.")
    ]
    problem: Annotated[str, Meta(description="Reason why it did not respond; for a standby, its state; else empty.")]
    at: Annotated[Instant | None, Meta(description="Time of the response or the failure.")]
    figures: Annotated[Totals | None, Meta(description="Null unless it is reachable.")]


class Servers:
    """This server and the others in the configuration.

    processes   the processes of this server.
    """

    def __init__(
        self,
        clock: Clock,
        attention: ConditionMonitor,
        peers: Callable[[], tuple[Peer, ...]],
        role: Callable[[], ClusterStatus] | None,
        figures: WholeFigures,
        processes: Processes,
    ) -> None:
        """*peers* returns the configured servers, and *role* the status of a server that shares its journal."""
        self._figures: WholeFigures = figures
        self.processes: Processes = processes
        self._clock: Clock = clock
        self._attention: ConditionMonitor = attention
        self._peers: Callable[[], tuple[Peer, ...]] = peers
        self._role: Callable[[], ClusterStatus] | None = role
        self._known: dict[str, tuple[Peer, ListedServer]] = {}
        self._asking: dict[str, tuple[Peer, gevent.Greenlet]] = {}

    @property
    def are_configured(self) -> bool:
        """Whether there is another server in the configuration."""
        return bool(self._peers())

    def statuses(self, wait: float) -> list[ListedServer]:
        """Return this server and the others; wait up to *wait* seconds for missing responses. Switches.

        A response that is older than REFRESH_INTERVAL is requested again, and returned until the new one arrives.
        """
        peers = self._peers()
        asked = [asking for peer in peers if (asking := self._ask(peer)) is not None]
        if wait:
            gevent.joinall(asked, timeout=wait)
        return [self._own(), *[self._status(peer) for peer in peers]]

    def _ask(self, peer: Peer) -> gevent.Greenlet | None:
        """Start a request to *peer* unless its last response is recent; return the greenlet of the request."""
        before = self._asking.get(peer.name)
        if before is not None and before[0] == peer:
            return before[1]
        known = self._known.get(peer.name)
        answered_at = known[1].at if known is not None and known[0] == peer else None
        if answered_at is not None and self._clock() - nanoseconds(answered_at) < REFRESH_INTERVAL:
            return None
        asking = gevent.spawn(self._note_answer, peer)
        self._asking[peer.name] = peer, asking
        return asking

    def _note_answer(self, peer: Peer) -> None:
        """Request the figures of *peer*, and store them. Switches."""
        try:
            server = _ask(peer)
            server.at = instant(self._clock())
        finally:
            if self._asking.get(peer.name, (None,))[0] is peer:
                del self._asking[peer.name]
        self._known[peer.name] = peer, server
        for name in self._known.keys() - {each.name for each in self._peers()}:
            del self._known[name]

    def _status(self, peer: Peer) -> ListedServer:
        known = self._known.get(peer.name)
        return known[1] if known is not None and known[0] == peer else _unknown(peer)

    def _own(self) -> ListedServer:
        figures = self._figures.read(self._clock())
        stats, rates = figures.stats, figures.rates
        conditions = self._attention.conditions
        worst = conditions[0].measure if conditions else None
        return ListedServer(
            name=stats.hostname,
            address="",
            href="",
            is_this=True,
            state="reachable",
            role=SINGLE if self._role is None else LEADER,
            shards=self.processes.count,
            problem="",
            at=instant(self._clock()),
            figures=_totals(stats, rates, self._attention.counts.total(), worst),
        )


def _ask(peer: Peer) -> ListedServer:
    """Return *peer* as it responds now. Switches."""
    server = _unknown(peer)
    server.state = "unreachable"
    try:
        response = _get(peer, "/api/v1/server")
        text = response.body.decode(errors="replace")
        if response.status == 503 and text.startswith(STANDBY_LINE):
            server.state, server.role, server.problem = STANDBY, STANDBY, _cleaned(text)
            return server
        found: _ServerResponse = _decoded(response, _ServerResponse)
        attention: _AttentionResponse = _decoded(_get(peer, "/api/v1/attention?limit=1"), _AttentionResponse)
    except RequestFailed as error:
        server.problem = _cleaned(str(error))
        return server
    worst = attention.conditions[0] if attention.conditions else None
    server.state, server.role = "reachable", found.role if found.role in (LEADER, SINGLE) else None
    server.shards = found.shards or None
    server.figures = _totals(found.stats, found.rates, attention.total, worst)
    return server


def _totals(
    stats: _Stats | ServerStats, rates: _Rates | Rates, conditions: int, worst: _Condition | Measure | None
) -> Totals:
    """Return the totals of a server with *conditions* that need attention, and the *worst* of them."""
    return Totals(
        version=_cleaned(stats.version),
        hostname=_cleaned(stats.hostname),
        uptime=stats.uptime,
        connections=stats.current_connections,
        ready=stats.current_jobs_ready,
        reserved=stats.current_jobs_reserved,
        delayed=stats.current_jobs_delayed,
        buried=stats.current_jobs_buried,
        put=rates.put,
        reserve=rates.reserve,
        delete=rates.delete,
        conditions=conditions,
        worst=_cleaned(worst.sentence) if worst is not None else None,
        severity=None if worst is None else worst.severity if worst.severity in SEVERITIES else WARNING,
    )


def _get(peer: Peer, path: str) -> Response:
    return send(peer.target, lambda _: Request("GET", path, headers={"Accept": "application/json"}))


def _decoded(response: Response, kind: Any) -> Any:
    """Return the body of *response* as *kind*; raise RequestFailed if it is an error or has another form."""
    if response.status != 200:
        raise RequestFailed(f"status {response.status}{_detail(response)}")
    if response.is_cut:
        raise RequestFailed("the response is too long")
    try:
        return msgspec.json.decode(response.body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise RequestFailed("the response does not come from a Greenstalk Server of this version") from None


def _detail(response: Response) -> str:
    """Return the reason in *response*, a problem document, as the end of a message; empty if there is none."""
    try:
        detail = msgspec.json.decode(response.body).get("detail", "")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, AttributeError):
        return ""
    return f": {detail}" if isinstance(detail, str) and detail else ""


def _unknown(peer: Peer) -> ListedServer:
    """Return *peer* before its first response."""
    target, href = peer.target, ""
    if target.secret_url is not None:
        kind, place = target.secret_url
        address = f"in the {'variable' if kind == ENVIRONMENT else 'file'} {place}"
    else:
        address, href = shown_url(target.url), target.url
    return ListedServer(
        name=peer.name,
        address=address,
        href=href,
        is_this=False,
        state="pending",
        role=None,
        shards=None,
        problem="",
        at=None,
        figures=None,
    )


def _cleaned(value: str) -> str:
    """Return the beginning of *value* as one line of printable text."""
    line = " ".join(value[: 4 * MAX_TEXT].split())[:MAX_TEXT]
    return "".join([character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in line])


def require_servers() -> None:
    """Raise Forbidden unless the principal may see every tube of this server."""
    if not sees_servers():
        raise Forbidden("The servers can be seen only by users who may see all tubes.")


def sees_servers() -> bool:
    """Return whether the principal may see the figures of whole servers."""
    return principal().sees_all
