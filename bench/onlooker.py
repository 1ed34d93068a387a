"""A tab of the dashboard that is open while a server is measured: a real stream of events, read as it comes."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final
from urllib.parse import urlencode

from .errors import BenchError

_START_SECONDS: Final = 10.0
_STATUS_OK: Final = b"HTTP/1.1 200 "


def open_tab(port: int, **tab: str) -> socket.socket:
    """A stream of events from the dashboard on *port*, as one visible tab has it."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=30)
    sock.sendall(f"GET /events?{urlencode(tab)} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    return sock


@contextmanager
def looked_at(port: int | None) -> Iterator[None]:
    """The overview of the dashboard on *port* is open inside; None: nobody looks."""
    if port is None:
        yield
        return
    tab = _open_overview(port)
    has_ended = threading.Event()
    reader = threading.Thread(target=_read, args=(tab, has_ended))
    reader.start()
    try:
        yield
        if has_ended.is_set():
            raise BenchError("the dashboard's stream of events has ended")
    finally:
        with suppress(OSError):
            tab.shutdown(socket.SHUT_RDWR)  # which ends the reader
        reader.join()
        tab.close()


def _open_overview(port: int) -> socket.socket:
    """The stream, once it has begun: the dashboard may listen a moment later than the queue does."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            tab = open_tab(port, page="overview")
            break
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise BenchError(f"no dashboard on port {port} after {_START_SECONDS:g} s") from None
            time.sleep(0.02)
    answer = tab.recv(65536)
    if not answer.startswith(_STATUS_OK):
        tab.close()
        raise BenchError(f"the dashboard answered {answer[:80]!r}")
    tab.settimeout(None)
    return tab


def _read(tab: socket.socket, has_ended: threading.Event) -> None:
    with suppress(OSError):
        while tab.recv(65536):
            pass
    has_ended.set()
