"""A network between the hosts of a test, which can be cut and slowed, each direction by itself.

All hosts are on this machine. A listener stands for a port of one host, and forwards connections of other hosts there.
The data of a direction waits while the direction is cut, and for the delay of a slow network.
"""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from tests.support.processes import join

CHUNK: Final = 65536

MAX_QUEUED: Final = 64
"""Chunks of a direction that wait; then the sender has to wait too."""

Way = tuple[str, str]
"""A direction: the host that sends, and the host that receives."""


class Network:
    """Forwards connections in a thread of its own. Its methods are for other threads."""

    def __init__(self, seed: int) -> None:
        self._random: random.Random = random.Random(seed)  # noqa: S311  a seed, no secret
        self._delay: tuple[float, float] = (0.0, 0.0)
        self._is_open: defaultdict[Way, asyncio.Event] = defaultdict(_set_event)
        self._writers: dict[asyncio.StreamWriter, Way] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self._thread: threading.Thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def listen(self, port: int, host: str, name_of: Callable[[int], str]) -> int:
        """Forward connections to *port* of *host*; return the port to which the other hosts connect.

        *name_of* returns the name of the host that has connected from a port of this machine.
        """
        listener = socket.create_server(("127.0.0.1", 0))
        found: int = listener.getsockname()[1]

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            name = name_of(writer.get_extra_info("peername")[1])
            with suppress(OSError, asyncio.CancelledError):  # `close` cancels
                await self._connect(reader, writer, port, (name, host))
            writer.close()
            self._tasks.discard(task)

        async def start() -> None:
            self._servers.append(await asyncio.start_server(accept, sock=listener))

        self._run(start())
        return found

    def cut(self, *ways: Way) -> None:
        """Forward nothing in the directions *ways*. Connections stay open, as in a network that drops packets."""

        async def cut() -> None:
            for way in ways:
                self._is_open[way].clear()

        self._run(cut())

    def part(self, one: str, other: str) -> None:
        """Cut both directions between two hosts, and reset the connections between them."""
        self.cut((one, other), (other, one))

        async def reset() -> None:
            for writer, way in self._writers.items():
                if set(way) == {one, other}:
                    writer.transport.abort()

        self._run(reset())

    def slow(self, low: float, high: float) -> None:
        """Delay the data of all directions by *low* to *high* seconds from now on."""
        self._delay = (low, high)

    def mend(self, is_late: bool) -> None:
        """Forward all without delay. If *is_late*, what has waited arrives now; otherwise its connections are reset."""
        self._delay = (0.0, 0.0)

        async def mend() -> None:
            for writer, way in self._writers.items():
                if not (is_late or self._is_open[way].is_set()):
                    writer.transport.abort()
            for event in self._is_open.values():
                event.set()

        self._run(mend())

    def close(self) -> None:
        """Close all connections."""

        async def cancel() -> None:
            for server in self._servers:
                server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        self._run(cancel())
        self._loop.call_soon_threadsafe(self._loop.stop)
        join(self._thread)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, there: Way) -> None:
        """Forward an accepted connection in both directions until both ends are closed, or one is reset."""
        back = there[::-1]
        await self._is_open[there].wait()
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        ends = {far_writer: there, writer: back}
        self._writers |= ends
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forward(reader, far_writer, there))
                group.create_task(self._forward(far_reader, writer, back))
        except* OSError:
            pass
        finally:
            for end in ends:
                del self._writers[end]
                end.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way) -> None:
        """Forward the data of one direction, and the end of the stream."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MAX_QUEUED)
        receiving = asyncio.create_task(self._receive(reader, queue))
        try:
            while True:
                due, data = await queue.get()
                if due > self._loop.time():
                    await asyncio.sleep(due - self._loop.time())
                await self._is_open[way].wait()
                if not data:
                    break
                writer.write(data)
                await writer.drain()
            writer.write_eof()
        finally:
            receiving.cancel()

    async def _receive(self, reader: asyncio.StreamReader, queue: asyncio.Queue[tuple[float, bytes]]) -> None:
        """Put into *queue* what arrives, with the time when it is due; no bytes at the end."""
        data = b"-"
        while data:
            try:
                data = await reader.read(CHUNK)
            except OSError:
                data = b""
            await queue.put((self._loop.time() + self._random.uniform(*self._delay), data))


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event
