"""A server on a directory, and the requests that the tests of faults make of it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

from tests.support.daemon import TIMEOUT, Daemon
from tests.support.peer import Peer

OUT_OF_MEMORY: Final = b"OUT_OF_MEMORY"
SEGMENT: Final = 65_536

BATCH: Final = 20
"""Puts that are sent together, since each batch waits for a sync."""


def serving(directory: Path, *flags: str) -> Daemon:
    """A server that keeps its journal in *directory*, and has a dashboard."""
    return Daemon("-l", "127.0.0.1", "-p", "0", "--web-port", "0", "-b", str(directory), "-s", str(SEGMENT), *flags)


def put(peer: Peer, body: bytes) -> bytes:
    """Put *body*; return the reply."""
    return peer.ask(b"put 0 0 600 %d\r\n%b" % (len(body), body))


def put_until_full(peer: Peer, size: int) -> list[int]:
    """Put jobs of *size* bytes, a batch at a time, until one is refused; return the ids of the others."""
    request = b"put 0 0 600 %d\r\n%b\r\n" % (size, bytes(size))
    ids: list[int] = []
    while True:
        peer.send(request * BATCH)
        replies = [peer.read_line() for _ in range(BATCH)]
        ids += [id_of(reply) for reply in replies if reply != OUT_OF_MEMORY]
        if OUT_OF_MEMORY in replies:
            return ids


def id_of(reply: bytes) -> int:
    """The id in a reply of INSERTED."""
    word, id = reply.split()
    assert word == b"INSERTED", reply
    return int(id)


def jobs(peer: Peer, ids: list[int]) -> dict[int, bytes]:
    """Return the bodies of the jobs *ids* that exist."""
    found = {}
    for id in ids:
        word, *rest = peer.ask(b"peek %d" % id).split()
        if word == b"FOUND":
            found[id] = peer.read(int(rest[1]) + 2)[:-2]
    return found


def states(peer: Peer, ids: list[int]) -> list[str]:
    """The states of the jobs *ids*."""
    return [peer.stats(b"stats-job %d" % id)["state"] for id in ids]


def readiness(server: Daemon) -> tuple[int, str]:
    """The status and text of /readyz."""
    try:
        with urllib.request.urlopen(server.dashboard + "readyz", timeout=TIMEOUT) as page:  # noqa: S310  on loopback
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def call(server: Daemon, path: str, body: dict[str, str]) -> Any:
    """Send a POST request to the API; return the response."""
    url, headers = f"{server.dashboard}api/v1/{path}", {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310  on loopback
    with urllib.request.urlopen(request, timeout=TIMEOUT) as page:  # noqa: S310  on loopback
        return json.load(page)


def critical(server: Daemon) -> dict[str, str]:
    """Return the sentence of each critical condition that needs attention, by its kind."""
    with urllib.request.urlopen(server.dashboard + "api/v1/attention", timeout=TIMEOUT) as page:  # noqa: S310  on loopback
        found = json.load(page)["conditions"]
    return {one["condition"]: one["sentence"] for one in found if one["severity"] == "critical"}
