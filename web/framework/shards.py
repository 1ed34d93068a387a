"""The shards of the queue, as the dashboard reaches them: each process asks the others for their part.

Questions about shards are for their owners. Those about connections are for all processes that accept clients, so in a
cluster also for the standbys, which lead no shard.

The process of shard 0 is *home*: it alone listens on the web port, checks who sends a request, and keeps the users'
data. A question has a name, and arguments and an answer in JSON. The other process answers it in a request context with
the same principal, so rights are checked where the data is. With one shard there is nobody to ask.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, TypeVar

import gevent
import msgspec
from flask import abort, has_request_context, request
from gevent import Greenlet
from werkzeug.exceptions import HTTPException, ServiceUnavailable

from greenstalk_server.cluster.status import HOME
from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.id_sequence import ONE_SHARD, IdSequence
from greenstalk_server.core.travel import NOWHERE
from greenstalk_server.net.link_calls import CallError, CallHandler, Message
from greenstalk_server.web.framework.access import principal

ASK_TIMEOUT: Final = 10.0
"""Seconds that a question waits for its answer."""

CONTEXT_KEYS: Final = (
    "SCRIPT_NAME", "PATH_INFO", "QUERY_STRING", "SERVER_NAME", "SERVER_PORT", "SERVER_PROTOCOL", "REMOTE_ADDR",
    "REQUEST_METHOD", "CONTENT_TYPE", "wsgi.url_scheme",
)  # fmt: skip
"""Keys of the WSGI environ that are passed on, besides the headers of the request."""

NO_SHARD: Final = -1

TOKEN_BYTES: Final = 8

PLACE: Final = "place-of-job"
"""Question: the shard to which a job has moved."""

MAX_PLACES: Final = 8
"""Shards that are asked for a job, which may move meanwhile."""

SHARD_DIGITS: Final = 3
"""Last digits of a token, which are the shard: there are at most 1,024."""

log = logging.getLogger(__name__)

Facts = Mapping[str, Any]
"""The principal and the request that a question belongs to."""

Target = int | str
"""A shard, whose owner is asked; or the id of a process that leads none."""

_Target = TypeVar("_Target", int, str, Target)


class Links(Protocol):
    """The connections to the other processes of the queue: see net.links."""

    front: Broker | None
    handlers: dict[str, CallHandler]

    def call(self, target: Target, name: str, arguments: Message, timeout: float) -> Message:
        """Return the answer of *target*; raise CallError."""

    def standbys(self) -> list[str]:
        """Return the ids of the other processes that lead no shard, and that can be reached now."""

    def shard_of(self, tube: bytes) -> int:
        """Return the shard that owns *tube*."""

    def is_linked(self, shard: int) -> bool:
        """Return whether *shard* can be reached now."""

    def is_relayed(self, shard: int) -> bool:
        """Return whether *shard* is reached over a third process now."""


class Shards:
    """The shards of one queue.

    own     number of the shard of this process; NO_SHARD at a standby, which answers questions about connections.
    others  numbers of the other shards.
    all     numbers of all shards that the dashboard is about, ascending.
    enter   enters the request context of a question.
    is_open whether the dashboard is complete and has read the data of the previous run, without which sessions are
            unknown. Until then, no question and no call of other shards is answered.
    """

    def __init__(self, ids: IdSequence = ONE_SHARD, links: Links | None = None, broker: Broker | None = None) -> None:
        """*broker* has the jobs of the own shard.

        *links* is None if there is one shard, or if the dashboard is about the own one alone.
        """
        self._broker: Broker | None = broker
        self.own: int = ids.shard
        self.count: int = ids.shards
        others = [shard for shard in range(ids.shards) if shard != ids.shard] if links is not None else []
        self.others: tuple[int, ...] = tuple(others)
        self.enter: Callable[[Facts], AbstractContextManager[None]]
        self.is_open: bool = False
        self.all: tuple[int, ...] = tuple(sorted((ids.shard, *others)))
        self._functions: dict[str, Callable[..., Any]] = {}
        self._ids: IdSequence = ids
        self._links: Links | None = links
        if self.own != NO_SHARD:
            self.answer(PLACE, self.of_job)

    @property
    def brokers(self) -> list[Broker]:
        """The brokers of the clients of this process: that of its shard, and the one from before it led a shard."""
        found = [self._broker, self.front]
        return [broker for broker in dict.fromkeys(found) if broker is not None]

    @property
    def front(self) -> Broker | None:
        """The broker of the clients that this process accepted while it led no shard; None if it always led one."""
        return self._links.front if self._links is not None else None

    @property
    def are_linked(self) -> bool:
        """Whether there are other processes, or may be."""
        return self._links is not None

    @property
    def is_home(self) -> bool:
        """Whether this process serves the web port."""
        return self.own == HOME or not self.others

    def of_tube(self, tube: bytes) -> int:
        """Return the shard that owns *tube*."""
        return self._links.shard_of(tube) if self._links is not None else self.own

    def owns(self, tube: bytes) -> bool:
        """Return whether this shard owns *tube*. Each shard has `default`, and one of them owns it."""
        return self._links is None or self._links.shard_of(tube) == self.own

    def unlinked(self) -> list[int]:
        """Return the other shards that cannot be reached now."""
        links = self._links
        return [shard for shard in self.others if links is not None and not links.is_linked(shard)]

    def relayed(self) -> list[int]:
        """Return the other shards that are reached over a third process now."""
        links = self._links
        return [shard for shard in self.others if links is not None and links.is_relayed(shard)]

    def of_job(self, id: int) -> int:
        """Return the shard that has the job *id*, or that knows where it is, or that has assigned *id*."""
        broker = self._broker
        if broker is None or broker.moves is None or id in broker.jobs:
            return self.own
        place = broker.moves.place_of(id)
        return place if place != NOWHERE else self._ids.home(id)

    def find_job(self, id: int) -> int:
        """Return the shard that has the job *id*, if there is one. Switches; raise ServiceUnavailable."""
        if id < self._ids.base:
            return self._look_for_job(id)
        shard = self.of_job(id)
        for _ in range(MAX_PLACES):
            if shard == self.own or (place := self.ask(shard, PLACE, id=id)) == shard:
                break
            shard = place
        return shard

    def _look_for_job(self, id: int) -> int:
        """Look for the job *id*, which was put before the queue had several shards, on all shards. Switches.

        Raise ServiceUnavailable if it may be on a shard that does not answer.
        """
        if self._broker is None or id in self._broker.jobs:
            return self.own
        places, home = self.ask_others(PLACE, id=id), self._ids.home(id)
        shard = next((shard for shard, place in places.items() if place == shard != home), None)
        if shard is None and (silent := set(self.others) - places.keys()):
            raise ServiceUnavailable(f"The process of shard {min(silent)}, which may have the job, does not answer.")
        return home if shard is None else shard

    def of_number(self, number: int) -> int:
        """Return the shard whose process has assigned *number*, of a change."""
        return number % self.count

    def next_number(self, number: int) -> int:
        """Return *number*, or the next one that this process may assign."""
        return number + (self.own - number) % self.count

    def new_token(self) -> str:
        """Return a random hexadecimal number that names its shard."""
        token = secrets.token_hex(TOKEN_BYTES)
        return token if self.count == 1 else f"{token[:-SHARD_DIGITS]}{self.own:0{SHARD_DIGITS}x}"

    def of_token(self, token: str) -> int:
        """Return the shard of a process that has made *token*; the own one if it is malformed."""
        try:
            shard = int(token[-SHARD_DIGITS:], 16)
        except ValueError:
            return self.own
        return shard if 0 <= shard < self.count else self.own

    # Questions

    def answer(self, name: str, function: Callable[..., Any]) -> None:
        """Answer the question *name* of other shards with the result of *function*, which may switch."""
        self._functions[name] = function
        if self._links is not None:
            self._links.handlers[f"web.{name}"] = lambda _, message: self._answer(function, message)

    def _answer(self, function: Callable[..., Any], message: Message) -> Message:
        self._require_open()
        with self.enter(message.value):
            try:
                found = function(**msgspec.json.decode(message.body))
            except HTTPException as error:
                return Message({"code": error.code, "text": error.description})
        return Message({}, encoded(found))

    def ask(self, target: Target, name: str, /, **arguments: Any) -> Any:
        """Return the answer of another *target* to the question *name*. Switches.

        Raise the HTTPException of the function that answers, or ServiceUnavailable if there is no answer.
        """
        return self._ask(target, name, context_facts(), arguments)

    def ask_as(self, facts: Facts, shard: int, name: str, /, **arguments: Any) -> Any:
        """Like `ask`, for the principal and the request of *facts*. *shard* may be the own one. Switches."""
        if shard != self.own:
            return self._ask(shard, name, facts, arguments)
        with self.enter(facts):
            return self._functions[name](**arguments)

    def _ask(self, target: Target, name: str, facts: Facts, arguments: Mapping[str, Any]) -> Any:
        answer = self.call(target, f"web.{name}", Message(facts, encoded(arguments)), ASK_TIMEOUT)
        if (code := answer.value.get("code")) is not None:
            abort(code, answer.value["text"])
        return msgspec.json.decode(answer.body)

    def ask_others(self, name: str, /, **arguments: Any) -> dict[int, Any]:
        """Return the answers to the question *name*, by shard, of the other shards that can be reached. Switches.

        All are asked at the same time. Raise the HTTPException of a function that answers.
        """
        return self.ask_each(name, dict.fromkeys(self.others, arguments))

    def ask_fronts(self, name: str, /, **arguments: Any) -> dict[Target, Any]:
        """Like `ask_others`, but ask all other processes that accept clients: owners of shards, and standbys."""
        return _answers(self._start(name, dict.fromkeys(self.fronts(), arguments)))

    def fronts(self) -> list[Target]:
        """Return all other processes that accept clients, whether they can be reached or not."""
        return [*self.others, *self._standbys()]

    def ask_standbys(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        """Like `ask_others`, but ask the processes that lead no shard."""
        return _answers(self._start(name, dict.fromkeys(self._standbys(), arguments)))

    def _standbys(self) -> list[str]:
        return self._links.standbys() if self._links is not None else []

    def ask_each(self, name: str, arguments: Mapping[int, Mapping[str, Any]]) -> dict[int, Any]:
        """Like `ask_others`, but ask the shards of *arguments*, each with its own.

        The own shard may be among them. Its answer need not be plain JSON.
        """
        asking = self._start(name, {shard: theirs for shard, theirs in arguments.items() if shard != self.own})
        own = {self.own: self._functions[name](**arguments[self.own])} if self.own in arguments else {}
        return own | _answers(asking)

    def _start(self, name: str, arguments: Mapping[_Target, Mapping[str, Any]]) -> dict[_Target, Greenlet]:
        """Start a greenlet for each target, which asks it with its own *arguments*."""
        facts = context_facts() if arguments else {}
        return {
            target: gevent.spawn(self._ask_if_reached, target, name, facts, theirs)
            for target, theirs in arguments.items()
        }

    def _ask_if_reached(self, target: Target, name: str, facts: Facts, arguments: Mapping[str, Any]) -> Any:
        try:
            return self._ask(target, name, facts, arguments)
        except ServiceUnavailable as error:
            level = logging.DEBUG if isinstance(target, str) else logging.INFO  # a standby may have no dashboard
            log.log(level, "dashboard: %s", error.description)
            return None

    def call(self, target: Target, name: str, arguments: Message, timeout: float) -> Message:
        """Return the answer of *target* to the call *name*; raise ServiceUnavailable if there is none. Switches."""
        assert self._links is not None
        return call(self._links, target, name, arguments, timeout)

    def handle(self, name: str, handler: Callable[[Message], Message]) -> None:
        """Answer the call *name* of other shards with *handler*, which may switch.

        It may raise an HTTPException, or a ConnectionError if the response has to end: the caller gets the reason.
        """

        def answer(source: int, message: Message) -> Message:
            self._require_open()
            try:
                return handler(message)
            except HTTPException as error:
                reason = str(error.description)
            except ConnectionError as error:
                reason = str(error)
            log.warning("dashboard: refused a call of shard %d: %s", source, reason)
            raise CallError(reason, may_have_run=True)

        if self._links is not None:
            self._links.handlers[name] = answer

    def _require_open(self) -> None:
        if not self.is_open:
            raise CallError("its dashboard is starting")


def call(links: Links, target: Target, name: str, arguments: Message, timeout: float) -> Message:
    """Return the answer of *target* to the call *name*; raise ServiceUnavailable if there is none. Switches."""
    try:
        return links.call(target, name, arguments, timeout)
    except CallError as error:
        done = " It may have made the change all the same." if error.may_have_run else ""
        asked = f"process {target}" if isinstance(target, str) else f"process of shard {target}"
        raise ServiceUnavailable(f"The {asked} does not answer: {error}.{done}") from error


def _answers(asking: Mapping[_Target, Greenlet]) -> dict[_Target, Any]:
    """Wait for the answers, and return those that are not None. Switches."""
    found = {target: one.get() for target, one in asking.items()}
    return {target: answer for target, answer in found.items() if answer is not None}


def context_facts() -> Facts:
    """Return the principal and the request of the current context; without a request, the server itself asks."""
    if not has_request_context():
        return {"name": "", "roles": [], "session": "", "environ": {"PATH_INFO": "/", "REQUEST_METHOD": "GET"}}
    who = principal()
    return {
        "name": who.name,
        "roles": who.role_names,
        "session": who.session,
        "environ": {
            name: value
            for name, value in request.environ.items()
            if isinstance(value, str) and (name in CONTEXT_KEYS or name.startswith("HTTP_"))
        },
    }


def encoded(value: Any) -> bytes:
    """Return *value* as JSON."""
    return msgspec.json.encode(value, enc_hook=str)


ALONE: Final = Shards()
"""The shards of a queue that has one."""
