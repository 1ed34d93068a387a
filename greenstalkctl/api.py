"""One server's JSON API, as a Queue; and what it can do beyond one: list jobs, and change many as a task of its own.

Figures bear the protocol's names, and those that the protocol does not have bear names in its manner. What the protocol
has and the API has not is left out: `file` of a job, `cmd-pause-tube` of a tube.
"""

from __future__ import annotations

import ssl
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from greenstalkctl import text
from greenstalkctl.address import Url
from greenstalkctl.channel import Channel
from greenstalkctl.exits import Failure
from greenstalkctl.queue import MAX_TUBES, OF_JOB, OF_SERVER, OF_TUBE, TUBE_NAME, Seen, Stats, checked

T = TypeVar("T")

PAGE: Final = 1000
"""What a list answers at most, and how many ids a change may name."""

MISSING: Final = frozenset({404})
UNDONE: Final = frozenset({404, 409})
"""Not there, or not in a state in which it can be done."""

HIDDEN: Final = frozenset({403, 404})

_JOB: Final = (
    "id", "tube", "state", "pri", "age", "delay", "ttr", "time_left",
    "reserves", "timeouts", "releases", "buries", "kicks", "created_at", "held_by",
)  # fmt: skip
_TUBE: Final = {
    "name": "name",
    "current-jobs-urgent": "urgent",
    "current-jobs-ready": "ready",
    "current-jobs-reserved": "reserved",
    "current-jobs-delayed": "delayed",
    "current-jobs-buried": "buried",
    "total-jobs": "total_jobs",
    "current-using": "using",
    "current-watching": "watching",
    "current-waiting": "waiting",
    "cmd-delete": "total_deletes",
    "pause": "pause",
    "pause-time-left": "pause_time_left",
    "pause-reason": "pause_reason",
    "bytes": "bytes",
    "oldest-ready-age": "oldest_ready_age",
    "drain-time": "drain_time",
    "has-no-consumers": "has_no_consumers",
}
_RATES: Final = {
    "puts": "put",
    "reserves": "reserve",
    "deletes": "delete",
    "buries": "bury",
    "timeouts": "timeout",
    "releases": "release",
    "kicks": "kick",
}


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be done to jobs of *tube* in *state*; *target* is the tube to which `move` moves them."""

    action: str
    tube: str
    state: str
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """A change that the server makes, as far as it is; `message` says why it has failed."""

    id: str
    state: str
    changed: int
    message: str
    matched: int


class Api:
    """The API at *url*, by *token*, which is empty if there is none. An answer takes *timeout* seconds at most.

    *context* is that of TLS, for a URL with https://.
    """

    def __init__(self, url: Url, token: str, timeout: float, context: ssl.SSLContext | None = None) -> None:
        """Make sure that it is one; raise Unreachable or Refused."""
        self.address = url
        self._channel = Channel(url, token, timeout, context)
        try:
            self._greet()
        except Failure:
            self._channel.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    # What there is

    def stats(self) -> Stats:
        return self._made(_server, self._get("/server"))

    def tubes(self) -> list[str]:
        return [stats["name"] for stats in self.figures() if TUBE_NAME.fullmatch(stats["name"])]

    def figures(self) -> list[Stats]:
        found = list(islice(self._pages("/tubes", "tubes", {"limit": PAGE}), MAX_TUBES + 1))
        if len(found) > MAX_TUBES:
            raise self._channel.is_none_of_ours(f"it has a list of more than {MAX_TUBES} tubes")
        return [self._made(_tube, each) for each in found]

    def tube(self, name: str) -> Stats | None:
        answer = self._channel.ask("GET", "/tube", {"tube": name}, ordinary=MISSING)
        return self._made(_tube, answer.data) if answer.is_success else None

    def see(self, job_id: int) -> Seen | None:
        answer = self._channel.ask("GET", f"/jobs/{job_id}", ordinary=MISSING)
        return self._whole(self._made(_seen, answer.data)) if answer.is_success else None

    def see_first(self, tube: str, state: str) -> Seen | None:
        first = next(self.jobs(tube, state, limit=1), None)
        return self._whole(first) if first is not None else None

    def jobs(
        self,
        tube: str | None,
        state: str | None = None,
        query: str = "",
        *,
        limit: int = PAGE,
        has_bodies: bool = True,
    ) -> Iterator[Seen]:
        """All jobs of *tube*, in *state*, that match *query*; bodies only if *has_bodies*, and none above a MiB.

        *limit* is how many are asked for at once, at most PAGE. Of a tube in a state, without a query, the first PAGE
        come in the order of that state; all others by their ids.
        """
        given = {"tube": tube, "state": state, "q": query, "limit": limit, "bodies": str(has_bodies).lower()}
        asked = {name: value for name, value in given.items() if value}
        return (self._made(_seen, found) for found in self._pages("/jobs", "jobs", asked))

    # What changes something

    def put(self, tube: str, body: bytes, pri: int, delay: int, ttr: int) -> int:
        new = text.fields(body) | {"tube": tube, "pri": pri, "delay": delay, "ttr": ttr}
        return self._made(lambda answer: int(answer["id"]), self._channel.ask("POST", "/jobs", body=new).data)

    def kick_job(self, job_id: int) -> bool:
        return self._does("POST", f"/jobs/{job_id}/kick")

    def bury_job(self, job_id: int) -> bool:
        return self._does("POST", f"/jobs/{job_id}/bury")

    def delete(self, job_id: int) -> bool:
        return self._does("DELETE", f"/jobs/{job_id}")

    def pause(self, tube: str, seconds: int, reason: str = "") -> bool:
        verb, body = ("pause", {"seconds": seconds, "reason": reason}) if seconds else ("resume", None)
        return self._channel.ask("POST", f"/tube/{verb}", {"tube": tube}, body, ordinary=MISSING).is_success

    # Changes of many jobs, which the server makes by itself

    def start(self, change: Change, ids: Sequence[int] | None = None, *, is_dry: bool = False) -> Task:
        """Start to make *change*: of those of *ids* alone, PAGE at most, if given; or just to count, if it *is_dry*."""
        asked = {"action": change.action, "tube": change.tube, "state": change.state, "dry_run": is_dry}
        asked |= {"to": change.target} if change.target is not None else {}
        asked |= {"ids": ids} if ids is not None else {}
        return self._made(_task, self._channel.ask("POST", "/bulk", body=asked).data)

    def run(self, task_id: str) -> Task:
        """Start to do what a dry run has counted: to those jobs that still match, and to none newer."""
        return self._made(_task, self._channel.ask("POST", f"/tasks/{task_id}/run").data)

    def task(self, task_id: str) -> Task:
        return self._made(_task, self._get(f"/tasks/{task_id}"))

    def cancel(self, task_id: str) -> Task:
        """Have a task end soon."""
        return self._made(_task, self._channel.ask("DELETE", f"/tasks/{task_id}").data)

    # How it is asked

    def _greet(self) -> None:
        """Ask for what every version of it tells; from then on, 404 means that there is no such job or tube."""
        answer = self._channel.ask("GET", "/server", ordinary=MISSING)
        stats = answer.data.get("stats") if isinstance(answer.data, dict) else None
        if not answer.is_success or not isinstance(stats, dict) or "version" not in stats:
            raise self._channel.is_none_of_ours("or it is of another version")

    def _get(self, path: str) -> Any:
        return self._channel.ask("GET", path).data

    def _does(self, method: str, path: str) -> bool:
        return self._channel.ask(method, path, ordinary=UNDONE).is_success

    def _pages(self, path: str, key: str, query: Mapping[str, object]) -> Iterator[Any]:
        """Yield the items of all pages of a list. A page may be empty and not be the last."""
        cursor: object = None
        while True:
            asked = {**query, "cursor": cursor} if cursor is not None else query
            items, following = self._made(_page(key), self._channel.ask("GET", path, asked).data)
            yield from items
            if following is None:
                return
            if following == cursor:
                raise self._channel.is_none_of_ours("its list does not end")
            cursor = following

    def _made(self, make: Callable[[Any], T], data: Any) -> T:
        """Return what *make* makes of *data*, or raise Unreachable if the API never has such data."""
        try:
            return make(data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._channel.is_none_of_ours("its answer has not the form of the API's") from error

    def _whole(self, seen: Seen) -> Seen:
        """*seen* with its body, if that is only too large for JSON; it stays None if it is hidden or gone."""
        if seen.body is not None:
            return seen
        answer = self._channel.ask("GET", f"/jobs/{seen.id}/body", ordinary=HIDDEN)
        return Seen(seen.stats, answer.data) if answer.is_success else seen


def _page(key: str) -> Callable[[Any], tuple[list[Any], object]]:
    """Return what takes the items under *key*, and the next cursor, out of a page."""

    def taken(page: Any) -> tuple[list[Any], object]:
        return list(page[key]), page["next_cursor"]

    return taken


def _server(found: Mapping[str, Any]) -> Stats:
    """The figures of the server; texts are as the protocol has them."""
    journal, memory = found["journal"], found["memory"] or {}
    stats = {
        **{_name(key): _as_stat(value) for key, value in found["stats"].items()},
        **_rates(found["rates"]),
        **{f"journal-{_name(key)}": value for key, value in journal.items()},
        **{f"memory-{_name(key)}": value for key, value in memory.items()},
    }
    return checked(stats, OF_SERVER)


def _tube(found: Mapping[str, Any]) -> Stats:
    return checked({key: found[name] for key, name in _TUBE.items()} | _rates(found["rates"]), OF_TUBE)


def _seen(found: Mapping[str, Any]) -> Seen:
    stats = checked({_name(key): found[key] for key in _JOB} | {"bytes": found["size"]}, OF_JOB)
    body = found["body"]
    if body is None:
        return Seen(stats, None)
    return Seen(stats, body.encode() if found["encoding"] == "utf-8" else b64decode(body))


def _task(found: Mapping[str, Any]) -> Task:
    return Task(str(found["id"]), found["state"], int(found["changed"]), str(found["message"]), int(found["matched"]))


def _rates(found: Mapping[str, float]) -> Stats:
    return {f"{noun}-per-second": float(found[verb]) for noun, verb in _RATES.items()}


def _name(key: str) -> str:
    return key.replace("_", "-")


def _as_stat(value: Any) -> Any:
    """*value* as `stats` has it: whole numbers are such, all else is text."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6f}" if isinstance(value, float) else value
