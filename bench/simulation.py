"""Simulate a queue of many servers from measured costs: python -m bench.simulation. See README.md.

The costs are measured first, with servers that may use a part of one CPU only, so that they are saturated: CPU per
command with one connection, where each command has a turn of the event loop for itself, and with many, where commands
share turns. From these follow the costs of a turn, of a command, and of a message between two servers.

The simulation has the turns of each server: a turn serves up to BATCHES batches of BATCH sockets that have input, and
then sends what it has for clients and for other servers. Each client has one command in flight. Assumptions: all
servers are equal and have one CPU each; the network delays, but does not limit; tubes are spread evenly; no journal;
each command costs the same, whatever it does.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Final, NamedTuple

from .processes import CONNECTIONS, Result, Setup, measure, print_rows
from .servers import OURS_COMMAND

BATCH: Final = 16
"""Sockets served together: `BATCH_SIZE` of greenstalk_server.net.poller."""

BATCHES: Final = 4
"""Batches after which a server sends what it has for other servers: those in `MAX_BATCHES` of the same module."""

COMMANDS: Final = 3000
"""Commands that each server's clients send in a simulation, on average."""

BISECTIONS: Final = 12

CLIENT: Final = -1
"""Peer of the sockets of clients; that of a link is the number of the other server."""


class Socket(NamedTuple):
    """A socket of a server: its peer, and the number of the client's command, which no other has."""

    peer: int
    command: int


class Message(NamedTuple):
    """The commands and the replies that have arrived at a socket."""

    commands: int
    replies: int

    def plus(self, commands: int, replies: int) -> "Message":
        """Return the message with more of both."""
        return Message(self.commands + commands, self.replies + replies)


NOTHING: Final = Message(0, 0)

TURN: Final = Socket(-2, 0)
"""In place of a socket: the server takes a turn."""


@dataclass(frozen=True)
class Costs:
    """CPU in microseconds.

    turn        of a batch, and of waiting for it.
    own         of a command on the shard of the process that holds the connection, without the turn.
    forwarded   of a command for another shard, at its front and its owner together, without turns and messages.
    message     of sending and receiving what one turn has for another server.
    """

    turn: float
    own: float
    forwarded: float
    message: float


@dataclass(frozen=True)
class Load:
    """The servers, and what clients do.

    connections     of each server.
    own_share       part of the commands that concern tubes of the server's own shard, 0 to 1.
    delay           of the network between two servers, and between server and client, microseconds.
    """

    servers: int
    connections: int
    own_share: float
    delay: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """CPU of all servers in microseconds a command, and commands a second of all servers, if each has a whole CPU."""

    cpu_us: float
    rate: float


class Simulation:
    """The servers with their clients. A server is busy until the end of its turn."""

    def __init__(self, costs: Costs, load: Load) -> None:
        servers = range(load.servers)
        self._costs: Costs = costs
        self._load: Load = load
        self._random: Random = Random(1)  # noqa: S311  not for secrets
        self._arrivals: list[tuple[float, int, int, Socket, Message]] = []  # time, number, server
        self._number: int = 0
        self._inputs: list[dict[Socket, Message]] = [{} for _ in servers]  # what has arrived, in this order
        self._free_at: list[float] = [0.0 for _ in servers]
        self._is_due: list[bool] = [False for _ in servers]
        self._cpu: float = 0.0
        self._replies: int = 0

    def run(self) -> Outcome:
        """Serve COMMANDS for each server."""
        load, time = self._load, 0.0
        for server in range(load.servers):
            for _ in range(load.connections):
                self._post(self._random.random(), server, Socket(CLIENT, self._number), Message(1, 0))
        while self._replies < COMMANDS * load.servers:
            time, _, server, socket, message = heappop(self._arrivals)
            if socket == TURN:
                self._take_turn(time, server)
                continue
            inputs = self._inputs[server]
            inputs[socket] = inputs.get(socket, NOTHING).plus(*message)
            self._schedule(server, time)
        return Outcome(self._cpu / self._replies, self._replies / time * 1e6)

    def _post(self, time: float, server: int, socket: Socket, message: Message) -> None:
        self._number += 1
        heappush(self._arrivals, (time, self._number, server, socket, message))

    def _schedule(self, server: int, time: float) -> None:
        """Have *server* take a turn as soon as it is free, if it has input."""
        if self._inputs[server] and not self._is_due[server]:
            self._is_due[server] = True
            self._post(max(time, self._free_at[server]), server, TURN, NOTHING)

    def _take_turn(self, time: float, server: int) -> None:
        """Serve what has arrived; send replies and messages at the end of the turn."""
        costs, load, inputs = self._costs, self._load, self._inputs[server]
        served = list(inputs)[: BATCHES * BATCH]
        cost, answered = costs.turn * -(-len(served) // BATCH), 0
        links: dict[int, Message] = {}
        for socket in served:
            message = inputs.pop(socket)
            if socket.peer != CLIENT:
                cost += costs.message / 2 + (message.commands + message.replies) * costs.forwarded / 3
                answered += message.replies
                if message.commands:
                    links[socket.peer] = links.get(socket.peer, NOTHING).plus(0, message.commands)
            elif load.servers == 1 or self._random.random() < load.own_share:
                cost += costs.own
                answered += 1
            else:
                cost += costs.forwarded / 3
                owner = (server + self._random.randrange(1, load.servers)) % load.servers
                links[owner] = links.get(owner, NOTHING).plus(1, 0)
        end = time + cost + len(links) * costs.message / 2
        self._cpu += end - time
        self._replies += answered
        for peer, message in links.items():
            self._post(end + load.delay, peer, Socket(server, 0), message)
        for _ in range(answered):
            self._post(end + 2 * load.delay, server, Socket(CLIENT, self._number), Message(1, 0))
        self._free_at[server], self._is_due[server] = end, False
        self._schedule(server, end)


def fitted(one: Result, many: Result, one_there: Result, many_there: Result) -> Costs:
    """Return the costs with which the simulation takes as much CPU as was measured.

    *one* and *many*: one process, with one connection and with CONNECTIONS. *one_there* and *many_there*: two
    processes, with as many connections to each, whose commands concern the other's shard.
    """

    def own_costs(turn: float) -> Costs:
        return Costs(turn, one.cpu_us - turn, 0, 0)

    turn = _solve(lambda turn: _cpu(own_costs(turn), 1, CONNECTIONS), many.cpu_us, one.cpu_us)
    costs = own_costs(turn)

    def with_message(message: float) -> Costs:
        def forwarding(forwarded: float) -> Costs:
            return Costs(costs.turn, costs.own, forwarded, message)

        return forwarding(_solve(lambda found: -_cpu(forwarding(found), 2, 1), -one_there.cpu_us, one_there.cpu_us))

    most = one_there.cpu_us / 2
    return with_message(_solve(lambda message: _cpu(with_message(message), 2, CONNECTIONS), many_there.cpu_us, most))


def _cpu(costs: Costs, servers: int, connections: int) -> float:
    return Simulation(costs, Load(servers, connections, own_share=0.0)).run().cpu_us


def _solve(falling: Callable[[float], float], wanted: float, most: float) -> float:
    """Return the argument from 0 to *most* at which *falling*, which does not rise, is *wanted*, or the nearest one."""
    low, high = 0.0, most
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if falling(middle) > wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def main() -> int:
    """Measure the costs, and simulate; return the exit status."""
    return print_rows(_rows(_parser().parse_args()))


def _rows(options: argparse.Namespace) -> Iterator[str]:
    both = f"{OURS_COMMAND} --processes 2"
    measured = []
    for command, count, load in ((OURS_COMMAND, 1, "own"), (both, 2, "other")):
        for connections in (1, CONNECTIONS):
            setup = Setup(processes=count, load=load, connections=connections, ahead=0)
            result = measure(command, setup, options.rounds, options.seconds, options.quota)
            yield f"measured: {count} processes, {load} shard, {connections} connections each: {result.cpu_us:.2f} us"
            measured.append(result)
    costs = fitted(*measured)
    again = _cpu(costs, 2, CONNECTIONS)
    yield (
        f"costs in us: turn {costs.turn:.2f}, own command {costs.own:.2f}, forwarded command {costs.forwarded:.2f},"
        f" message {costs.message:.2f}; simulated with two processes: {again:.2f}"
    )
    yield "| servers | own share | connections each | CPU us/command | commands/s | of linear |"
    yield "|---|---|---|---|---|---|"
    for connections in options.connections:
        base = Simulation(costs, Load(1, connections, 1.0, options.delay)).run()
        for servers in options.servers:
            for share in sorted({1.0, 1 / servers}, reverse=True):
                found = Simulation(costs, Load(servers, connections, share, options.delay)).run()
                cells = (f"{share:.2f}", str(connections), f"{found.cpu_us:.2f}", f"{found.rate:,.0f}")
                yield f"| {servers} | {' | '.join(cells)} | {found.rate / base.rate / servers:.2f} |"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.simulation", description="Simulate a queue of many servers from measured costs."
    )
    parser.add_argument("--servers", type=int, nargs="+", default=[1, 2, 3, 4, 10, 30, 100], help="numbers of servers")
    parser.add_argument("--connections", type=int, nargs="+", default=[16, 200], help="connections of each (16 200)")
    parser.add_argument("--delay", type=float, default=50.0, help="microseconds of the network in one direction (50)")
    parser.add_argument("--rounds", type=int, default=3, help="samples of each measurement (3)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a sample (2)")
    parser.add_argument("--quota", type=float, default=0.1, help="part of one CPU for each measured process (0.1)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
