"""Who has sent a request, while it waits for its answer: whether they are still there to take it.

A client that goes away closes its socket, and so does a proxy whose client went. One that has only closed its own
side counts as gone too: few do, and a job must not be given to somebody who does not read.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from gevent import get_hub

PARTED: Final = getattr(select, "POLLRDHUP", 0)
"""Reported when the other side has closed, besides errors and hang-ups, which are unasked."""

READ: Final = 1
"""Event of a gevent io watcher."""


class Peer:
    """The other side of the socket with this *descriptor*, which stays open meanwhile; None for one that never goes."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor: int | None = descriptor

    @property
    def is_gone(self) -> bool:
        """Whether it has closed. One system call."""
        if self._descriptor is None:
            return False
        poll = select.poll()
        poll.register(self._descriptor, PARTED)
        return bool(poll.poll(0))

    @contextmanager
    def watched(self, on_end: Callable[[], None]) -> Iterator[None]:
        """Within the block, have *on_end*, which must not switch, called once when it closes. Does not switch.

        If it sends something meanwhile, it is watched no longer: the descriptor would be readable all the time.
        """
        if self._descriptor is None:
            yield
            return
        watcher: Any = get_hub().loop.io(self._descriptor, READ)

        def on_readable() -> None:
            watcher.stop()
            if self.is_gone:
                on_end()

        watcher.start(on_readable)
        try:
            yield
        finally:
            watcher.stop()  # which lets go of on_readable, and so of the cycle with it
            watcher.close()


def peer_of(environ: Mapping[str, Any]) -> Peer:
    """Who has sent the request with this *environ*."""
    return Peer(descriptor_of(environ))


def descriptor_of(environ: Mapping[str, Any]) -> int | None:
    """The descriptor of the request's socket, which gevent.pywsgi tells by the way; None if another serves it."""
    rfile = getattr(environ.get("wsgi.input"), "rfile", None)
    return rfile.fileno() if rfile is not None else None
