"""Keep dashboard tabs open during a measurement: read real event streams."""

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


@contextmanager
def dashboard_viewer(port: int | None, **tab: str) -> Iterator[None]:
    """Keep the page *tab* of the dashboard on *port* open inside the block; do nothing if *port* is None.

    Without *tab* the page is the overview.
    """
    if port is None:
        yield
        return
    stream = _open(port, tab or {"page": "overview"})
    has_ended = threading.Event()
    reader = threading.Thread(target=_read, args=(stream, has_ended))
    reader.start()
    try:
        yield
        if has_ended.is_set():
            raise BenchError("the dashboard's event stream ended")
    finally:
        with suppress(OSError):
            stream.shutdown(socket.SHUT_RDWR)  # ends the reader thread
        reader.join()
        stream.close()


def _open(port: int, tab: dict[str, str]) -> socket.socket:
    """Open the stream and wait for its start; retry, because the dashboard may listen later than the queue."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            stream = socket.create_connection(("127.0.0.1", port), timeout=30)
            break
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise BenchError(f"no dashboard on port {port} after {_START_SECONDS:g} s") from None
            time.sleep(0.02)
    stream.sendall(f"GET /events?{urlencode(tab)} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    answer = stream.recv(65536)
    if not answer.startswith(_STATUS_OK):
        stream.close()
        raise BenchError(f"the dashboard answered {answer[:80]!r}")
    stream.settimeout(None)
    return stream


def _read(stream: socket.socket, has_ended: threading.Event) -> None:
    with suppress(OSError):
        while stream.recv(65536):
            pass
    has_ended.set()
