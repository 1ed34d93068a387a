"""Another client of the server, which measures how long it is delayed."""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from bench.client import Client
from bench.servers import Server


@contextmanager
def probing(server: Server) -> Iterator[list[int]]:
    """Run another client during the block, in its own process; afterwards the list has its longest delay."""
    delays: list[int] = []
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_probe, args=(server, theirs))
    process.start()
    theirs.close()
    try:
        ours.recv()
        yield delays
        ours.send(None)
        delays.append(ours.recv())
    finally:
        process.kill()
        process.join()


def _probe(server: Server, pipe: Connection) -> None:
    """Send a command every millisecond until *pipe* has a message; send the longest delay of a reply.

    A delay is the CPU time of the server, in nanoseconds, between the command and its reply.
    """
    client = Client(server.port)
    longest = 0
    pipe.send(None)
    while not pipe.poll(0.001):
        before = server.cpu_ns()
        client.ask(b"list-tube-used\r\n")
        longest = max(longest, server.cpu_ns() - before)
    pipe.send(longest)
