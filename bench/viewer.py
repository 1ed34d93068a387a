"""Keep a dashboard tab open during a measurement: read a real event stream."""

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
    """Open an event stream from the dashboard on *port*, as a visible tab does."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=30)
    sock.sendall(f"GET /events?{urlencode(tab)} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    return sock


@contextmanager
def dashboard_viewer(port: int | None) -> Iterator[None]:
    """Keep the overview of the dashboard on *port* open inside the block; do nothing if *port* is None."""
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
            raise BenchError("the dashboard's event stream ended")
    finally:
        with suppress(OSError):
            tab.shutdown(socket.SHUT_RDWR)  # ends the reader thread
        reader.join()
        tab.close()


def _open_overview(port: int) -> socket.socket:
    """Open the stream and wait for its start; retry, because the dashboard may listen later than the queue."""
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
