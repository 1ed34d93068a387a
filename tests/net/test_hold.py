"""A server whose lease is over serves no client, but its links, until the lease is renewed. Real sockets."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from greenstalk_server.net.link_calls import Message
from tests.net.in_process import is_readable, wait_until
from tests.net.link_peer import linked_pair
from tests.net.test_link_routes import receive
from tests.support.daemon import TIMEOUT
from tests.support.shards import tube_on

PUT = b"put-in-tube %b 0 0 60 1\r\nx\r\n" % tube_on(1)


def test_clients_wait_while_the_lease_is_over_and_calls_are_answered(tmp_path: Path) -> None:
    with linked_pair(tmp_path) as (front, owner):
        owner.links.handlers["echo"] = lambda _, arguments: arguments
        addresses = [("127.0.0.1", process.port) for process in (front, owner, owner, owner)]
        sockets = [socket.create_connection(address, TIMEOUT) for address in addresses]
        remote, own, waiting, closing = sockets
        waiting.sendall(b"watch %b\r\n" % tube_on(1))
        receive(waiting, b"\r\n")
        waiting.sendall(b"reserve\r\n")
        wait_until(lambda: owner.broker.waiting_count == 1)
        owner.server.serve_for(0)
        closing.sendall(PUT)
        closing.close()
        remote.sendall(PUT)
        own.sendall(b"put-in-tube %b" % tube_on(1))
        for _ in range(3):
            assert front.links.call(1, "echo", Message("here")).value == "here"
        own.sendall(b" 0 0 60 1\r\ny\r\nlist-tube-used\r\n")
        for _ in range(3):
            assert front.links.call(1, "echo", Message("here")).value == "here"
        assert not owner.broker.jobs and not any(map(is_readable, (remote, own, waiting)))
        owner.server.serve_for(TIMEOUT)
        assert receive(remote, b"\r\n").startswith(b"INSERTED ")
        assert receive(own, b"USING default\r\n").startswith(b"INSERTED ")
        assert receive(waiting, b"\r\n").startswith(b"RESERVED ")
        wait_until(lambda: len(owner.broker.jobs) == 3 and len(owner.server.connections) == 2)
        for sock in (remote, own, waiting):
            sock.close()


def test_clients_wait_from_the_end_of_the_lease_on_though_nothing_else_has_noticed_it(tmp_path: Path) -> None:
    with linked_pair(tmp_path) as (front, owner):
        owner.links.handlers["echo"] = lambda _, arguments: arguments
        client = socket.create_connection(("127.0.0.1", owner.port), TIMEOUT)
        client.sendall(b"list-tube-used\r\n")
        receive(client, b"USING default\r\n")
        owner.server.serve_for(0.01)
        time.sleep(0.02)  # the event loop does not run, as in a suspended process
        client.sendall(b"list-tube-used\r\n")
        for _ in range(3):
            assert front.links.call(1, "echo", Message("here")).value == "here"
        assert not is_readable(client)
        owner.server.serve_for(TIMEOUT)
        receive(client, b"USING default\r\n")
        client.close()
