"""Hostile requests of the beanstalk protocol. A scenario is a generator: see `Scenario.play`."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Final

from bench.client import BATCH, Client

from .scenario import Scenario, Target

MANY: Final = 100_000
"""Number of jobs in scenarios with many jobs."""

CROWD: Final = 10_000
"""Number of connections in scenarios with many connections."""

GANG: Final = 32
"""Connections that pipeline costly commands."""

TUBES: Final = 10_200
"""Tubes that a client watches; the limit is 10,240."""

Play = Generator[None, None, None]


def disconnect_with_jobs(target: Target) -> Play:
    """A client that holds many jobs disconnects."""
    client = target.connect()
    _put(client, MANY)
    _reserve(client, MANY)
    yield
    client.close()


def disconnect(prepare: Callable[[Target], list[Client]]) -> Callable[[Target], Play]:
    """The clients that *prepare* returns disconnect at once."""

    def play(target: Target) -> Play:
        clients = prepare(target)
        yield
        with target.frozen():
            _close(clients)

    return play


def connected(target: Target) -> list[Client]:
    """Return ten thousand clients."""
    return target.connect_many(CROWD)


def watching(target: Target) -> list[Client]:
    """Return clients that watch as many tubes as they may."""
    clients = target.connect_many(8)
    for number, client in enumerate(clients):
        _watch(client, TUBES, b"own%d-" % number)
    return clients


def holding(target: Target) -> list[Client]:
    """Return ten thousand clients, each of which holds a job."""
    clients = target.connect_many(CROWD)
    _put(clients[0], CROWD)
    for client in clients:
        client.ask(b"reserve\r\n", 2)
    return clients


def waiting(target: Target) -> list[Client]:
    """Return ten thousand clients, each of which waits for a job of 16 tubes."""
    clients = target.connect_many(CROWD)
    for client in clients:
        client.ask(b"".join(b"watch t%d\r\n" % number for number in range(15)), 15)
        client.send(b"reserve\r\n")
    return clients


def shaking_hands(target: Target) -> list[Client]:
    """Return two thousand clients that begin a TLS handshake."""
    return [target.connect(target.tls_port) for _ in range(2000)]


def at_once(request: bytes, lines: int) -> Callable[[Target], Play]:
    """Ten thousand clients send *request* at once, and then read a reply of as many *lines*."""

    def play(target: Target) -> Play:
        clients = target.connect_many(CROWD)
        yield
        with target.frozen():
            for client in clients:
                client.send(request)
        for client in clients:
            client.read_lines(lines)

    return play


def reset_crowd(target: Target) -> Play:
    """Ten thousand clients reset their connections at once, with replies unread."""
    clients = target.connect_many(CROWD)
    yield
    with target.frozen():
        for client in clients:
            client.send(b"stats\r\n")
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        _close(clients)


def connect_crowd(target: Target) -> Play:
    """Ten thousand clients connect as fast as they can, and say something."""
    yield
    clients = [target.connect().send(b"list-tube-used\r\n") for _ in range(CROWD)]
    for client in clients:
        client.read_lines(1)


def quit_crowd(target: Target) -> Play:
    """Ten thousand clients quit at once."""
    clients = target.connect_many(CROWD)
    yield
    with target.frozen():
        for client in clients:
            client.send(b"quit\r\n")
    for client in clients:
        client.sock.recv(1)


def kick_for_crowd(target: Target) -> Play:
    """One kick gives a job to each of ten thousand waiting clients."""
    clients = target.connect_many(CROWD)
    for client in clients:
        client.send(b"reserve\r\n")
    producer = target.connect()
    _put(producer, CROWD, delay=3600)
    yield
    producer.ask(b"kick %d\r\n" % CROWD)
    for client in clients:
        client.read_lines(2)


def unpause_for_crowd(target: Target) -> Play:
    """The end of a pause gives a job to each of ten thousand waiting clients."""
    clients = target.connect_many(CROWD)
    producer = target.connect()
    producer.ask(b"pause-tube default 3600\r\n")
    for client in clients:
        client.send(b"reserve\r\n")
    _put(producer, CROWD)
    yield
    producer.ask(b"pause-tube default 0\r\n")
    for client in clients:
        client.read_lines(2)


def wait_crowd(target: Target) -> Play:
    """The end of one job ends the waits of ten thousand clients."""
    clients = target.connect_many(CROWD)
    producer = target.connect()
    _put(producer, 1)
    for client in clients:
        client.send(b"wait 1\r\n")
    target.connect().stats()
    yield
    producer.ask(b"delete 1\r\n")
    for client in clients:
        client.read_lines(1)


def idle_crowd(target: Target) -> Play:
    """The idle timeout closes ten thousand connections."""
    clients = target.connect_many(CROWD)
    yield
    for client in clients:
        client.sock.recv(1)


def half_open_tls(target: Target) -> Play:
    """The handshakes of two thousand TLS connections time out."""
    yield
    for client in shaking_hands(target):
        client.sock.recv(1)


def shake_hands(target: Target) -> Play:
    """A hundred clients shake hands at once, and two thousand send nonsense instead."""
    clients = [target.connect(target.tls_port) for _ in range(2100)]
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    yield
    with target.frozen():
        for client in clients[100:]:
            client.send(b"GET / HTTP/1.1\r\n\r\n")
    threads = [threading.Thread(target=context.wrap_socket, args=(client.sock,)) for client in clients[:100]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def reserve_from_many(mode: bytes, gang: int) -> Callable[[Target], Play]:
    """Clients pipeline reserves in *mode*, from as many tubes as they may watch, each of which has a job."""

    def play(target: Target) -> Play:
        clients = target.connect_many(gang)
        watched = TUBES if mode == b"fifo" else 500
        clients[0].ask_all(b"put-in-tube t%d 0 0 3600 1\r\nx\r\n" % (job % watched) for job in range(TUBES))
        for client in clients:
            client.ask(b"reserve-mode %b\r\n" % mode)
            _watch(client, TUBES, b"t")
        yield
        for _ in range(3):
            _pipeline(clients, [b"reserve-with-timeout 0\r\n"] * (300 // gang), 2)

    return play


def rebuild_tube_sets(target: Target) -> Play:
    """Clients pipeline reserves from many tubes, and watch or ignore a tube before each."""
    clients = target.connect_many(GANG)
    clients[0].ask_all(b"put-in-tube t%d 9 0 3600 1\r\nx\r\n" % number for number in range(TUBES))
    for client in clients:
        _watch(client, TUBES, b"t")
    yield
    for number, client in enumerate(clients):
        client.send(b"watch own-%d\r\nreserve\r\nignore own-%d\r\nreserve\r\n" % (number, number) * 10)
    for client in clients:
        client.read_lines(60)


def too_many_tube_sets(target: Target) -> Play:
    """Clients pipeline reserves, each from many tubes of its own, and need more tube sets than may exist."""
    clients = _with_own_tubes(target)
    yield
    _pipeline(clients, [b"reserve-with-timeout 0\r\n"] * 100, 1)


def wait_without_tube_set(target: Target) -> Play:
    """Clients wait in many tubes without a shared set of tubes, and stop waiting."""
    clients = _with_own_tubes(target)
    yield
    with target.frozen():
        for client in clients:
            client.send(b"reserve-with-timeout 1\r\n")
    for client in clients:
        client.read_lines(1)


def watch_and_ignore(target: Target) -> Play:
    """Clients pipeline the watches of many new tubes, and ignore them."""
    clients = target.connect_many(GANG)
    yield
    for verb in (b"watch", b"ignore"):
        for begin in range(0, TUBES, 400):
            tubes = range(begin, begin + 400)
            for number, client in enumerate(clients):
                client.send(b"".join(b"%b o%d-%d\r\n" % (verb, number, tube) for tube in tubes))
            for client in clients:
                client.read_lines(400)


def list_watched(target: Target) -> Play:
    """Clients pipeline lists of the many tubes that they watch."""
    clients = target.connect_many(GANG)
    for client in clients:
        _watch(client, TUBES, b"t")
    yield
    _pipeline(clients, [b"list-tubes-watched\r\n"] * 10, TUBES + 4)


def list_tubes(target: Target) -> Play:
    """Clients pipeline lists of all tubes, between which a tube is created."""
    clients = target.connect_many(GANG)
    count = 5 * TUBES
    clients[0].ask_all(b"put-in-tube t%d 0 0 60 1\r\nx\r\n" % number for number in range(count))
    yield
    for _ in range(3):
        for number, client in enumerate(clients):
            client.send(b"use new-%d\r\nlist-tubes\r\n" % number)
        for client in clients:
            client.read_lines(count)


def ask_with_jobs(requests: bytes, lines: int) -> Callable[[Target], Play]:
    """One client that holds many jobs sends *requests*."""

    def play(target: Target) -> Play:
        client = target.connect()
        _put(client, MANY)
        _reserve(client, MANY)
        yield
        client.ask(requests, lines)

    return play


def lapse_many(target: Target) -> Play:
    """The reservations of many jobs by one client time out at once."""
    client = target.connect()
    _put(client, MANY, ttr=5)
    _reserve(client, MANY)
    yield
    _await_stat(target, b"current-jobs-reserved: 0")


def peek_reserved(target: Target) -> Play:
    """Clients pipeline searches for the reserved job of a tube, among many."""
    client = target.connect()
    _put(client, MANY)
    _reserve(client, MANY)
    client.ask(b"put-in-tube rare 0 0 600 1\r\nx\r\nwatch rare\r\n", 2)
    _reserve(client, 1)
    clients = target.connect_many(GANG)
    yield
    _pipeline(clients, [b"use rare\r\npeek-reserved\r\n"] * 3, 3)


def delete_batches(target: Target) -> Play:
    """Clients pipeline deletions of jobs from the middle of the queue, in batches."""
    clients = target.connect_many(GANG)
    _put(clients[0], 2 * MANY)
    yield
    ids = list(range(50_001, 50_001 + GANG * 2000, 2))
    for number, client in enumerate(clients):
        mine = ids[number * 1000 : (number + 1) * 1000]
        client.send(b"delete-batch " + b" ".join(b"%d" % id for id in mine) + b"\r\n")
    for client in clients:
        client.read_lines(1)


def flush(state: bytes) -> Callable[[Target], Play]:
    """One client flushes a tube of many jobs in *state*."""

    def play(target: Target) -> Play:
        client = target.connect()
        _put(client, MANY, delay=3600 if state == b"delayed" else 0)
        if state in (b"reserved", b"buried"):
            _reserve(client, MANY)
        if state == b"buried":
            client.ask_all(b"bury %d 0\r\n" % id for id in range(1, MANY + 1))
        yield
        client.ask(b"flush-tube default\r\n")

    return play


def free_memory(target: Target) -> Play:
    """One client flushes 300 MB."""
    client = target.connect()
    client.ask_all([b"put 0 0 60 1000\r\n%b\r\n" % bytes(1000)] * 3 * MANY)
    yield
    client.ask(b"flush-tube default\r\n")
    time.sleep(3)  # until the server has trimmed its heap


def change_weights(target: Target) -> Play:
    """Clients in a weighted mode pipeline reserves, and watch or ignore a tube before each."""
    clients = target.connect_many(GANG)
    clients[0].ask_all(b"put-in-tube t%d 9 0 3600 1\r\nx\r\n" % number for number in range(500))
    clients[0].ask_all(b"put-in-tube t%d 9 0 3600 1\r\nx\r\n" % (number % 500) for number in range(3000))
    for client in clients:
        client.ask(b"reserve-mode weighted-fair\r\n")
        _watch(client, 500, b"t")
    yield
    for number, client in enumerate(clients):
        client.send(b"watch own-%d 7\r\nreserve\r\nignore own-%d\r\nreserve\r\n" % (number, number) * 20)
    for client in clients:
        client.read_lines(120)


def kick_many(target: Target) -> Play:
    """One client kicks many delayed jobs, whose priorities alternate among a thousand."""
    client = target.connect()
    client.ask_all(b"put %d 3600 60 1\r\nx\r\n" % (number % 1000) for number in range(MANY))
    yield
    client.ask(b"kick %d\r\n" % MANY)


def end_delays(target: Target) -> Play:
    """The delays of many jobs end at once."""
    client = target.connect()
    yield
    _put(client, MANY, delay=3)
    _await_stat(target, b"current-jobs-delayed: 0")


def end_delays_of_tubes(target: Target) -> Play:
    """The delays of jobs in many tubes end at once; each put has a shorter delay than the put before."""
    client = target.connect()
    yield
    for delay in (3600, 1800, 900, 4):
        client.ask_all(b"put-in-tube t%d 0 %d 60 1\r\nx\r\n" % (number, delay) for number in range(5 * TUBES))
    _await_stat(target, b"current-jobs-ready: %d" % (5 * TUBES))


def expire_many(target: Target) -> Play:
    """Many jobs of many tubes expire by a policy."""
    client = target.connect()
    client.ask_all(b"put-in-tube t%d 0 0 60 1\r\nx\r\n" % (number % TUBES) for number in range(MANY))
    yield
    _await_stat(target, b"current-jobs-ready: 0")


def empty_group(target: Target) -> Play:
    """Many jobs wait for a group that becomes empty."""
    client = target.connect()
    client.ask(b"put 0 0 60 1 grp:g\r\nx\r\n")
    client.ask_all(b"put 0 0 60 1 aft:g\r\nx\r\n" for _ in range(MANY))
    yield
    client.ask(b"delete 1\r\n")
    _await_stat(target, b"current-jobs-delayed: 0")


def free_key(target: Target) -> Play:
    """Many jobs of many tubes compete for the slot of one concurrency key."""
    client = target.connect()
    client.ask_all(b"put-in-tube t%d 0 0 60 1 con:k\r\nx\r\n" % (number % TUBES) for number in range(MANY))
    _watch(client, TUBES, b"t")
    yield
    for _ in range(200):
        id = client.ask(b"reserve\r\n", 2).split()[1]
        client.ask(b"delete %b\r\n" % id)


def stale_fronts(target: Target) -> Play:
    """Many concurrency keys have a job in each of two tubes, and the jobs in one of the tubes become stale at once."""
    client = target.connect()
    keys = range(MANY // 2)
    client.ask_all(b"put-in-tube one 0 0 3600 1 con:k%d\r\nx\r\n" % key for key in keys)
    client.ask_all(b"put-in-tube two 0 0 3600 1 con:k%d\r\nx\r\n" % key for key in keys)
    client.ask(b"watch one\r\n")
    _reserve(client, len(keys))
    other = target.connect()
    other.ask(b"watch two\r\n")
    yield
    for _ in range(3):
        other.ask(b"reserve-with-timeout 1\r\n")
    client.close()


def expire_keys(target: Target) -> Play:
    """Many idempotency keys expire at once."""
    client = target.connect()
    _leave_keys(client, 5)
    yield
    time.sleep(6)
    client.ask_all(b"put 0 0 60 1 idp:n%d:5\r\nx\r\n" % number for number in range(1000))
    client.ask_all(b"delete %d\r\n" % (MANY + 1 + number) for number in range(1000))


def flush_keys(target: Target) -> Play:
    """One client flushes a tube with many idempotency keys that have outlived their jobs."""
    client = target.connect()
    _leave_keys(client, 3600)
    yield
    client.ask(b"flush-tube default\r\n")


def reload_policies(target: Target) -> Play:
    """The server reads a thousand new policies while there are many tubes."""
    client = target.connect()
    client.ask_all(b"put-in-tube t%d 0 0 60 1\r\nx\r\n" % number for number in range(5 * TUBES))
    yield
    target.reload(_POLICIES)
    time.sleep(5)  # else the server seems idle before it has read the file


def stats_gang(target: Target) -> Play:
    """Clients pipeline stats while there are many tubes, jobs and clients."""
    clients = target.connect_many(1000)
    clients[0].ask_all(b"put-in-tube t%d 0 0 60 1\r\nx\r\n" % number for number in range(5 * TUBES))
    yield
    _pipeline(clients[:GANG], [b"stats\r\n"] * 100, 50)


def segments(pause: bool) -> Callable[[Target], Play]:
    """Puts fill segments of the journal while there are many tubes, which are paused if *pause*."""

    def play(target: Target) -> Play:
        client = target.connect()
        for number in range(0, 5 * TUBES, BATCH):
            names = [b"t%d" % tube for tube in range(number, number + BATCH)]
            client.ask_all(b"put-in-tube %b 0 0 3600 1\r\nx\r\n" % name for name in names)
            if pause:
                client.ask_all(b"pause-tube %b 3600\r\n" % name for name in names)
        yield
        client.ask_all([b"put 0 0 3600 50000\r\n%b\r\n" % bytes(50000)] * 1000)

    return play


def large_bodies(target: Target) -> Play:
    """Clients put and reserve bodies of 30 MB."""
    clients = target.connect_many(4)
    size = 30_000_000
    body = bytes(size)
    yield
    for client in clients:
        client.ask(b"put 0 0 60 %d\r\n%b\r\n" % (size, body))
        client.send(b"reserve\r\n")
        received = 0
        while received < size:
            received += len(client.sock.recv(1 << 20))


def _put(client: Client, count: int, delay: int = 0, ttr: int = 3600) -> None:
    client.ask_all([b"put 0 %d %d 1\r\nx\r\n" % (delay, ttr)] * count)


def _reserve(client: Client, count: int) -> None:
    """Reserve *count* ready jobs."""
    for begin in range(0, count, 1000):
        size = min(1000, count - begin)
        client.ask(b"reserve-batch %d\r\n" % size, 1 + 2 * size)


def _watch(client: Client, count: int, prefix: bytes) -> None:
    client.ask_all(b"watch %b%d\r\n" % (prefix, number) for number in range(count))


def _leave_keys(client: Client, seconds: int) -> None:
    """Put and delete many jobs, whose idempotency keys outlive them by *seconds*."""
    client.ask_all(b"put 0 0 60 1 idp:k%d:%d\r\nx\r\n" % (number, seconds) for number in range(MANY))
    client.ask_all(b"delete %d\r\n" % id for id in range(1, MANY + 1))


def _with_own_tubes(target: Target) -> list[Client]:
    """Return clients that watch as many tubes as they may, one of which no other client watches."""
    clients = target.connect_many(GANG)
    for number, client in enumerate(clients):
        _watch(client, TUBES, b"t")
        client.ask(b"watch own-%d\r\n" % number)
    return clients


def _pipeline(clients: Sequence[Client], requests: Sequence[bytes], lines: int) -> None:
    """Send *requests* on each of *clients* at once; the replies to each request have *lines* lines."""
    for client in clients:
        client.send(b"".join(requests))
    for client in clients:
        client.read_lines(lines * len(requests))


def _close(clients: Iterable[Client]) -> None:
    for client in clients:
        client.close()


def _await_stat(target: Target, line: bytes) -> None:
    """Wait until the reply to stats has *line*."""
    client = target.connect()
    while line + b"\n" not in client.stats():
        time.sleep(0.1)


_POLICIES: Final = "".join(f'[policies.p{number}]\ntubes = ["t{number}*"]\nretry_delay = 1\n' for number in range(1000))

_EXPIRY: Final = '[policies.expiry]\ntubes = ["t*"]\nexpire_after = 30\n'

SCENARIOS: Final = {
    "disconnect with 100,000 reserved jobs": Scenario(disconnect_with_jobs),
    "8 disconnect that watch 10,200 tubes each": Scenario(disconnect(watching)),
    "10,000 disconnect": Scenario(disconnect(connected)),
    "10,000 disconnect, each with a job": Scenario(disconnect(holding)),
    "10,000 disconnect, each in a reserve from 16 tubes": Scenario(disconnect(waiting)),
    "10,000 resets": Scenario(reset_crowd),
    "10,000 quits": Scenario(quit_crowd),
    "10,000 idle timeouts": Scenario(idle_crowd, ("--idle-timeout", "20")),
    "2,000 half-open TLS connections time out": Scenario(half_open_tls, has_tls=True),
    "2,000 half-open TLS connections close": Scenario(disconnect(shaking_hands), has_tls=True),
    "2,100 TLS handshakes": Scenario(shake_hands, has_tls=True),
    "10,000 connect": Scenario(connect_crowd),
    "10,000 reserve": Scenario(at_once(b"reserve\r\n", 0)),
    "10,000 reserves time out": Scenario(at_once(b"reserve-with-timeout 1\r\n", 1)),
    "kick for 10,000 in a reserve": Scenario(kick_for_crowd),
    "end of a pause for 10,000 in a reserve": Scenario(unpause_for_crowd),
    "end of a job for 10,000 in a wait": Scenario(wait_crowd),
    "reserve from 10,200 tubes": Scenario(reserve_from_many(b"fifo", 1)),
    "32 reserve from 10,200 tubes": Scenario(reserve_from_many(b"fifo", GANG)),
    "weighted reserve": Scenario(reserve_from_many(b"weighted", 1)),
    "32 weighted reserves": Scenario(reserve_from_many(b"weighted", GANG)),
    "32 weighted-fair reserves": Scenario(reserve_from_many(b"weighted-fair", GANG)),
    "32 change 500 weighted tubes and reserve": Scenario(change_weights),
    "32 change 10,200 watched tubes and reserve": Scenario(rebuild_tube_sets),
    "32 reserve from 10,200 tubes of their own": Scenario(too_many_tube_sets),
    "32 wait for 10,200 tubes of their own": Scenario(wait_without_tube_set),
    "32 watch and ignore 10,200 tubes": Scenario(watch_and_ignore),
    "32 list 10,200 watched tubes": Scenario(list_watched),
    "32 list 51,000 tubes": Scenario(list_tubes),
    "32 ask for stats": Scenario(stats_gang),
    "touch-all of 100,000 jobs": Scenario(ask_with_jobs(b"touch-all\r\n" * 5, 5)),
    "reserve by a holder of 100,000 jobs": Scenario(
        ask_with_jobs(b"reserve-with-timeout 0\r\n" + b"touch-all\r\nreserve-with-timeout 0\r\n" * 5, 11)
    ),
    "100,000 reservations time out": Scenario(lapse_many),
    "32 peek-reserved among 100,000 jobs": Scenario(peek_reserved),
    "32 delete-batches from the middle": Scenario(delete_batches),
    "flush of 100,000 ready jobs": Scenario(flush(b"ready")),
    "flush of 100,000 delayed jobs": Scenario(flush(b"delayed")),
    "flush of 100,000 buried jobs": Scenario(flush(b"buried")),
    "flush of 100,000 reserved jobs": Scenario(flush(b"reserved")),
    "flush of 300 MB": Scenario(free_memory),
    "kick of 100,000 jobs": Scenario(kick_many),
    "100,000 delays end": Scenario(end_delays),
    "delays of 51,000 tubes end": Scenario(end_delays_of_tubes),
    "100,000 jobs expire by a policy": Scenario(expire_many, config=_EXPIRY),
    "group of 100,000 waiting jobs becomes empty": Scenario(empty_group),
    "10,200 tubes with 100,000 jobs share a key": Scenario(free_key),
    "50,000 jobs of busy keys": Scenario(stale_fronts),
    "100,000 keys expire": Scenario(expire_keys),
    "flush of 100,000 keys": Scenario(flush_keys),
    "reload of 1,000 policies for 51,000 tubes": Scenario(reload_policies, config="\n"),
    "puts into a journal with 51,000 tubes": Scenario(segments(False), ("-b", "{dir}")),
    "puts into a journal with 51,000 paused tubes": Scenario(segments(True), ("-b", "{dir}")),
    "bodies of 30 MB": Scenario(large_bodies, ("-z", "31457280", "-b", "{dir}")),
}
