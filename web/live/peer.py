"""Detect that the client of a request closes its connection before it gets the response.

A client that disconnects closes its socket, and a proxy does so when its own client disconnects. A client that has only
shut down its sending side counts as gone too: few clients do that, and a job must not go to a client that might not
read the response.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gevent import get_hub

from greenstalk_server.runtime.system import READ, has_peer_closed


class Peer:
    """The other side of a socket. *descriptor* must stay open while this is used. With None, the peer is never gone."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor: int | None = descriptor

    @property
    def is_gone(self) -> bool:
        """Whether the peer has closed. Costs one system call."""
        return self._descriptor is not None and has_peer_closed(self._descriptor)

    @contextmanager
    def watched(self, on_end: Callable[[], None]) -> Iterator[None]:
        """Within the block, call *on_end* at most once, when the peer closes. *on_end* must not switch.

        This method does not switch either. If the peer sends data first, watching stops, since the descriptor would
        stay readable all the time.
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
            watcher.stop()  # releases on_readable, and so breaks the reference cycle
            watcher.close()


def peer_of(environ: Mapping[str, Any]) -> Peer:
    """Return the client of the request with this WSGI *environ*."""
    return Peer(descriptor_of(environ))


def descriptor_of(environ: Mapping[str, Any]) -> int | None:
    """Return the descriptor of the request's socket, found through gevent.pywsgi; None under another WSGI server."""
    rfile = getattr(environ.get("wsgi.input"), "rfile", None)
    return rfile.fileno() if rfile is not None else None
