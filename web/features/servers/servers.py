"""Other servers in the configuration, as their APIs describe them, beside this one.

A server is queried only while a page or an API request needs its figures, and at most every REFRESH_INTERVAL. The
requests run at the same time in native threads (web.framework.outbound). Responses are bounded and untrusted: they are
parsed strictly, and shown as text only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

import gevent
import msgspec
from msgspec import Meta, Struct
from werkzeug.exceptions import Forbidden

from greenstalk_server.cluster.status import ClusterStatus
from greenstalk_server.config.tables.peers import Peer
from greenstalk_server.config.tables.targets import ENVIRONMENT, shown_url
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.protocol.stats import server_stats
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.features.conditions.monitor import ConditionMonitor
from greenstalk_server.web.features.history.history import History
from greenstalk_server.web.framework.access import principal
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
    """A part of the statistics of a server."""

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


class _Figures(Struct):
    """A part of the response to `GET /server`. Earlier versions have no role."""

    stats: _Stats
    rates: _Rates
    role: str = ""


class _Condition(Struct):
    severity: str
    sentence: str


class _Attention(Struct):
    """A part of the response to `GET /attention`."""

    total: _Number
    conditions: list[_Condition]


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a server. *uptime* in seconds; rates per second, over the last ten seconds.

    role            LEADER, SINGLE or empty if it is not known.
    conditions      number of conditions that need attention.
    worst           sentence of the worst one; empty if there is none. *severity* is that of the same condition.
    """

    version: str
    hostname: str
    role: str
    uptime: int
    connections: int
    ready: int
    reserved: int
    delayed: int
    buried: int
    put: float
    reserve: float
    delete: float
    conditions: int
    severity: str
    worst: str


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """A server as this one sees it.

    address         scheme and host, or where the address is configured; empty for this server.
    href            address of its dashboard; empty if that is a secret, and for this server.
    figures         None if it did not respond, or is a standby.
    role            one of the roles; empty if it is not known.
    problem         reason why it did not respond; for a standby, its state.
    at              time of the response or the failure, nanoseconds since the Unix epoch; 0 before the first request.
    """

    name: str
    address: str
    href: str
    is_this: bool = False
    figures: Figures | None = None
    role: str = ""
    problem: str = ""
    at: int = 0

    @property
    def is_reachable(self) -> bool:
        """Whether the server responded."""
        return self.figures is not None or self.role == STANDBY


class Servers:
    """This server and the others in the configuration."""

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        history: History,
        attention: ConditionMonitor,
        peers: Callable[[], tuple[Peer, ...]],
        role: Callable[[], ClusterStatus] | None,
    ) -> None:
        """*peers* returns the configured servers, and *role* the status of a server that shares its journal."""
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._history: History = history
        self._attention: ConditionMonitor = attention
        self._peers: Callable[[], tuple[Peer, ...]] = peers
        self._role: Callable[[], ClusterStatus] | None = role
        self._known: dict[str, tuple[Peer, ServerStatus]] = {}
        self._asking: dict[str, tuple[Peer, gevent.Greenlet]] = {}

    @property
    def are_configured(self) -> bool:
        """Whether there is another server in the configuration."""
        return bool(self._peers())

    def statuses(self, wait: float) -> list[ServerStatus]:
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
        if known is not None and known[0] == peer and self._clock() - known[1].at < REFRESH_INTERVAL:
            return None
        asking = gevent.spawn(self._note_answer, peer)
        self._asking[peer.name] = peer, asking
        return asking

    def _note_answer(self, peer: Peer) -> None:
        """Request the figures of *peer*, and store them. Switches."""
        try:
            status = replace(_ask(peer), at=self._clock())
        finally:
            if self._asking.get(peer.name, (None,))[0] is peer:
                del self._asking[peer.name]
        self._known[peer.name] = peer, status
        for name in self._known.keys() - {each.name for each in self._peers()}:
            del self._known[name]

    def _status(self, peer: Peer) -> ServerStatus:
        known = self._known.get(peer.name)
        return known[1] if known is not None and known[0] == peer else _unknown(peer)

    def _own(self) -> ServerStatus:
        stats, rates = server_stats(self._broker, self._clock()), self._history.total_rates()
        conditions = self._attention.conditions
        worst = conditions[0].measure if conditions else None
        role = SINGLE if self._role is None else LEADER
        figures = Figures(
            version=stats.version,
            hostname=stats.hostname,
            role=role,
            uptime=stats.uptime,
            connections=stats.current_connections,
            ready=stats.current_jobs_ready,
            reserved=stats.current_jobs_reserved,
            delayed=stats.current_jobs_delayed,
            buried=stats.current_jobs_buried,
            put=rates.put,
            reserve=rates.reserve,
            delete=rates.delete,
            conditions=self._attention.counts.total(),
            severity=worst.severity if worst is not None else "",
            worst=worst.sentence if worst is not None else "",
        )
        return ServerStatus(stats.hostname, "", "", True, figures, role, at=self._clock())


def _ask(peer: Peer) -> ServerStatus:
    """Return the status of *peer*. Switches."""
    status = _unknown(peer)
    try:
        response = _get(peer, "/api/v1/server")
        text = response.body.decode(errors="replace")
        if response.status == 503 and text.startswith(STANDBY_LINE):
            return replace(status, role=STANDBY, problem=_cleaned(text))
        figures = _decoded(response, _Figures)
        attention = _decoded(_get(peer, "/api/v1/attention?limit=1"), _Attention)
    except RequestFailed as error:
        return replace(status, problem=_cleaned(str(error)))
    worst = attention.conditions[0] if attention.conditions else None
    stats, rates = figures.stats, figures.rates
    role = figures.role if figures.role in (LEADER, SINGLE) else ""
    found = Figures(
        version=_cleaned(stats.version),
        hostname=_cleaned(stats.hostname),
        role=role,
        uptime=stats.uptime,
        connections=stats.current_connections,
        ready=stats.current_jobs_ready,
        reserved=stats.current_jobs_reserved,
        delayed=stats.current_jobs_delayed,
        buried=stats.current_jobs_buried,
        put=rates.put,
        reserve=rates.reserve,
        delete=rates.delete,
        conditions=attention.total,
        severity="critical" if worst is not None and worst.severity == "critical" else "warning" if worst else "",
        worst=_cleaned(worst.sentence) if worst is not None else "",
    )
    return replace(status, figures=found, role=role)


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
        raise RequestFailed("the response is not that of a Greenstalk Server of this version") from None


def _detail(response: Response) -> str:
    """Return the reason in *response*, a problem document, as the end of a message; empty if there is none."""
    try:
        detail = msgspec.json.decode(response.body).get("detail", "")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, AttributeError):
        return ""
    return f": {detail}" if isinstance(detail, str) and detail else ""


def _unknown(peer: Peer) -> ServerStatus:
    target = peer.target
    if target.secret_url is not None:
        kind, place = target.secret_url
        return ServerStatus(peer.name, f"in the {'variable' if kind == ENVIRONMENT else 'file'} {place}", "")
    return ServerStatus(peer.name, shown_url(target.url), target.url)


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
