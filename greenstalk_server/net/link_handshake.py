"""The handshake of a link: both processes check each other before any other frame. See docs/link-protocol.md.

Each side sends a HELLO with facts about itself and a nonce. Then each proves with an AUTH, which depends on its own
HELLO and the nonce of the other, that it knows the secret of the queue. The secret is never sent.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gevent.socket import wait_read, wait_write

from greenstalk_server.core.jobs.id_sequence import IdSequence
from greenstalk_server.protocol import link_frames as frames
from greenstalk_server.protocol.front_channel import NO_SHARD
from greenstalk_server.protocol.link_frames import LinkError, frame

MAX_ID: Final = 64
"""Characters of the id of a process."""

MAX_SHOWN: Final = 80
"""Characters of a value in a message."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A process of the queue, as it introduces itself.

    queue       id of the queue.
    secret      shared by the processes of the queue.
    process     random id of this start of the process.
    ids         the shards and the base are those of the queue.
    """

    queue: str
    secret: bytes = field(repr=False)
    process: str
    ids: IdSequence


@dataclass(frozen=True, slots=True)
class Peer:
    """The other process of a link, after the handshake.

    process     its id.
    shard       the shard that it leads; NO_SHARD if it leads none.
    version     newest version of the protocol that it speaks.
    unread      bytes that have arrived after its last frame of the handshake.
    nonce       nonce of the side that has connected.
    target      id of the process to which the peer wants this one to relay; empty for a link to this process.
    relay       id of the process that relays this connection; empty if it is direct.
    continues   whether a link that is relayed is to continue on this connection.
    """

    process: str
    shard: int
    version: int
    unread: bytes
    nonce: str
    target: str = ""
    relay: str = ""
    continues: bool = False


class SameShard(LinkError):
    """The process *process* has proved that it belongs to the queue, and leads the shard of this one."""

    def __init__(self, process: str, shard: int) -> None:
        super().__init__(f"process {process} says that it leads shard {shard}, as this process does")
        self.process: str = process


def shake_hands(
    sock: socket.socket,
    identity: Identity,
    shard: int,
    is_connecting: bool,
    request: Mapping[str, str | bool] | None = None,
    unread: bytes = b"",
) -> Peer:
    """Authenticate the peer of the non-blocking *sock*; raise LinkError if a check fails. Switches.

    *shard* is the shard that this process leads. *request*: `target`, `relay` and `continues` as of Peer, but of this
    process; the peer must speak RELAY_VERSION. *unread*: bytes that have arrived already. The caller ends a handshake
    that takes too long.
    """
    nonce = secrets.token_hex(16)
    hello = {
        "version": frames.VERSION,
        "oldest": frames.OLDEST_VERSION,
        "queue": identity.queue,
        "shards": identity.ids.shards,
        "base": identity.ids.base,
        "process": identity.process,
        "shard": shard,
        "nonce": nonce,
        **(request or {}),
    }
    stream = _Stream(sock, unread)
    stream.send(frame(frames.HELLO, 0, json.dumps(hello).encode()))
    theirs = _parse(stream.read(frames.HELLO))
    is_ordered = not ("target" in hello or theirs.get("target"))
    problem = _problem(theirs, hello) or _problem_of_order(
        theirs["process"], identity.process, is_connecting, is_ordered
    )
    if problem:
        raise LinkError(problem)
    stream.send(frame(frames.AUTH, 0, _proof(identity.secret, hello, theirs["nonce"])))
    if not hmac.compare_digest(stream.read(frames.AUTH), _proof(identity.secret, theirs, nonce)):
        raise LinkError(f"process {theirs['process']} does not know the secret")
    if theirs["shard"] == shard != NO_SHARD:
        raise SameShard(theirs["process"], shard)
    return Peer(
        theirs["process"],
        theirs["shard"],
        theirs["version"],
        stream.rest,
        nonce if is_connecting else theirs["nonce"],
        theirs.get("target", ""),
        theirs.get("relay", ""),
        theirs.get("continues", False),
    )


def connects(process: str, other: str) -> bool:
    """Return whether *process* connects to *other*, and not the other way round."""
    return process < other


_HELLO_TYPES: Final = {
    "version": int,
    "oldest": int,
    "queue": str,
    "shards": int,
    "base": int,
    "process": str,
    "shard": int,
    "nonce": str,
}

_OPTIONAL_TYPES: Final = {"target": str, "relay": str, "continues": bool}


def _parse(payload: bytes) -> dict[str, Any]:
    """Return the facts of HELLO; raise LinkError if they are malformed."""
    try:
        facts = json.loads(payload)
        if all(type(facts[name]) is kind for name, kind in _HELLO_TYPES.items()):
            optional = {name: kind for name, kind in _OPTIONAL_TYPES.items() if name in facts}
            if all(type(facts[name]) is kind for name, kind in optional.items()):
                return {name: facts[name] for name in (*_HELLO_TYPES, *optional)}
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise LinkError("malformed HELLO")


def _problem(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    """Return why there can be no link to the process that has sent *theirs*; empty if there can be."""
    if theirs["oldest"] > frames.VERSION or theirs["version"] < frames.OLDEST_VERSION:
        return (
            f"the peer speaks versions {theirs['oldest']} to {theirs['version']},"
            f" this process {frames.OLDEST_VERSION} to {frames.VERSION}"
        )
    for name in ("queue", "shards", "base"):
        if theirs[name] != ours[name]:
            fact = "number of shards" if name == "shards" else name
            return f"the {fact} of the peer is {_shown(theirs[name])}, that of this process {_shown(ours[name])}"
    if not _is_id(theirs["process"]):
        return f"the peer says that it is process {_shown(theirs['process'])}"
    if not NO_SHARD <= theirs["shard"] < ours["shards"]:
        return f"the peer says that it leads shard {_shown(theirs['shard'])}"
    for name in ("target", "relay"):
        if theirs.get(name) and not _is_id(theirs[name]):
            return f"the {name} of the peer is {_shown(theirs[name])}"
    return ""


def _is_id(text: str) -> bool:
    """Return whether *text* can be the id of a process."""
    return 0 < len(text) <= MAX_ID and text.isalnum()


def _problem_of_order(theirs: str, ours: str, is_connecting: bool, is_ordered: bool) -> str:
    """Return why the wrong one of the two processes has connected; empty if it was the right one.

    *is_ordered*: one of them is the right one.
    """
    if theirs == ours:
        return "the peer says that it is this process"
    if not is_ordered or is_connecting == connects(ours, theirs):
        return ""
    return f"process {theirs if is_connecting else ours} has to connect to the other one"


def _shown(value: object) -> str:
    """Return *value*, which anyone may have sent, for a line of the log."""
    return repr(value)[:MAX_SHOWN]


def _proof(secret: bytes, hello: dict[str, Any], nonce: str) -> bytes:
    """Return what proves that the sender of *hello* knows the secret, to the peer that has chosen *nonce*."""
    message = json.dumps([hello, nonce], sort_keys=True).encode()
    return hmac.digest(secret, message, hashlib.sha256)


class _Stream:
    """A non-blocking socket during the handshake.

    rest    bytes that have arrived after the last frame that was read.
    """

    def __init__(self, sock: socket.socket, unread: bytes) -> None:
        self.rest: bytes = unread
        self._sock: socket.socket = sock

    def send(self, data: bytes) -> None:
        """Send *data*. Switches."""
        while data:
            try:
                data = data[self._sock.send(data) :]
            except BlockingIOError:
                wait_write(self._sock.fileno())

    def read(self, kind: int) -> bytes:
        """Return the payload of the next frame; raise LinkError if it is not of *kind*. Switches."""
        while True:
            found = frames.first(self.rest)
            if found is not None:
                break
            self.rest += self._receive()
        if found[0] != kind:
            raise LinkError(f"a frame of kind {found[0]} during the handshake")
        self.rest = self.rest[frames.HEADER.size + len(found[1]) :]
        return found[1]

    def _receive(self) -> bytes:
        while True:
            try:
                data = self._sock.recv(frames.MAX_PAYLOAD)
            except BlockingIOError:
                wait_read(self._sock.fileno())
                continue
            if not data:
                raise LinkError("the peer has closed the connection during the handshake")
            return data
