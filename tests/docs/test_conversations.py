"""The conversations of docs/commands.md and docs/protocol-extensions.md, played to a session in fake time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pytest

from greenstalk_server.protocol import codec
from tests.net.test_access import Guarded
from tests.support.pages import block, blocks
from tests.support.talk import Talk

PROBE = block("protocol-extensions.md", "text", "> meta\n")


def conversations(page: str) -> list[str]:
    """Return the conversations of docs/*page* that the first test plays."""
    found = [one.text for one in blocks(page) if one.language == "text" and one.text.startswith("> ")]
    return [text for text in found if text != PROBE]


class Scene(NamedTuple):
    """The state before a conversation, and the events in it.

    next_id     the next job's id.
    others      what another client sends before.
    own         what the client itself has sent before.
    events      for a line without > or <: what another client sends then, what it receives, and the seconds that pass.
    """

    next_id: int = 1
    others: bytes = b""
    own: bytes = b""
    events: Mapping[str, tuple[bytes, bytes, float]] = {}


def put(tube: str = "default", body: str = "hello", *, tag: str = "", count: int = 1) -> bytes:
    return f"put-in-tube {tube} 0 0 60 {len(body)}{tag}\r\n{body}\r\n".encode() * count


SCENES: Mapping[str, Scene] = {
    "put 0 0 60 1 grp:import-7": Scene(
        events={
            "workers delete jobs 1 and 2, and job 3 becomes ready": (
                b"delete 1\r\ndelete 2\r\nuse reports\r\npeek-ready\r\n",
                b"DELETED\r\nDELETED\r\nUSING reports\r\nFOUND 3 4\r\ndone\r\n",
                0,
            )
        }
    ),
    "stats-group import-7": Scene(
        others=put(tag=" grp:import-7", count=2) + put(tag=" aft:import-7") + b"reserve\r\n",
    ),
    "reserve-batch 100 5": Scene(others=put() + put(body="world")),
    "flush-tube mail": Scene(others=put("mail", count=31)),
    "truncate mail": Scene(8, put("mail", count=32), b"reserve-job 8\r\n"),
    "put 0 0 60 7": Scene(
        8,
        events={
            "a worker reserves and deletes job 8": (
                b"reserve\r\ndelete 8\r\n",
                b"RESERVED 8 7\r\nconvert\r\nDELETED\r\n",
                0,
            )
        },
    ),
    "watch mail 3": Scene(8, put("mail")),
    "meta tube attempts": Scene(9, put("mail"), b"watch mail\r\n"),
    "put 0 0.25 2.5 5": Scene(10, events={"after a quarter of a second": (b"", b"", 0.25)}),
    "put 0 0 60 5": Scene(11),
}
"""Scenes by the first line of the conversation; others need none."""


@pytest.mark.parametrize("text", [*conversations("commands.md"), *conversations("protocol-extensions.md")])
def test_conversation_is_as_shown(text: str) -> None:
    lines = text.replace("31415", "31").splitlines()
    scene = SCENES.get(lines[0].removeprefix("> "), Scene())
    other = Talk()
    talk = Guarded(other.broker, produce="*", consume="*", inspect="*", administer="yes", keys="*")
    talk.broker.next_id = scene.next_id
    other.send(scene.others)
    talk.send(scene.own)
    shown = received = b""
    for line in lines:
        if line.startswith("> "):
            assert received == shown
            received += talk.send(line[2:].encode() + b"\r\n")
        elif line.startswith("< "):
            shown += line[2:].encode() + b"\r\n"
        else:
            sent, reply, seconds = scene.events[line.strip()]
            assert other.send(sent) == reply
            talk.advance(seconds)
            received += talk.resume() if talk.woken else b""
    if shown.startswith(received) and len(received) < len(shown):  # the last reply ends a wait
        talk.advance(1)
        received += talk.resume()
    assert received.split() == shown.split()


@pytest.mark.parametrize("is_strict", [False, True])
def test_probe_for_the_extensions_is_answered_as_shown(is_strict: bool) -> None:
    line, *replies = PROBE.splitlines()
    codec.set_strict(is_strict)
    try:
        received = Talk().send(line[2:].encode() + b"\r\n")
    finally:
        codec.set_strict(False)
    assert replies[is_strict].startswith(f"< {received.decode().rstrip()}  ")
