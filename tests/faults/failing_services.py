"""Run the server, and make its services fail.

Usage: python -m tests.faults.failing_services FD [server's arguments]

The pipe FD has a command per line: `fail NAME` raises an exception in a service, and `resume` ends all pauses before
restarts, which otherwise do not end.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import gevent
from gevent import get_hub
from gevent.event import Event

from greenstalk_server.cli import main
from greenstalk_server.journal.postgresql.lease import LeaderLease
from greenstalk_server.net.committer import Committer
from greenstalk_server.runtime.supervisor import Service

CALLED = {
    "lease": (LeaderLease, "renew"),
    "poller": (Committer, "commit_before_send"),
    "standbys": (LeaderLease, "standbys"),
}
"""A method that each service calls often, for the services that are not greenlets."""

armed: set[str] = set()
services: dict[str, Service] = {}
pauses: list[Event | threading.Event] = []


class InjectedError(Exception):
    """The error that the services raise."""


def raising(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return *function*, which raises an InjectedError while *name* is armed."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if name in armed:
            armed.remove(name)
            raise InjectedError(name)
        return function(*args, **kwargs)

    return call


def install() -> None:
    """Change the classes of the server."""
    make, supervise = Service.__init__, Service.supervise

    def make_failing(self: Service, name: str, run: Callable[[], None]) -> None:
        make(self, name, raising(name, run))
        services[name] = self

    def supervise_with_endless_pauses(self: Service, pause: Callable[[float], None] = gevent.sleep) -> None:
        supervise(self, lambda _: wait(threading.Event() if pause is time.sleep else Event()))

    Service.__init__ = make_failing  # type: ignore[method-assign]
    Service.supervise = supervise_with_endless_pauses  # type: ignore[method-assign]
    for name, (kind, method) in CALLED.items():
        setattr(kind, method, raising(name, getattr(kind, method)))


def wait(pause: Event | threading.Event) -> None:
    pauses.append(pause)
    pause.wait()


def fail(name: str) -> None:
    """Raise an exception where the service *name* waits, or at its next start or call."""
    service = services.get(name)
    if name not in CALLED and service is not None and service.is_running:
        assert service._greenlet is not None
        service._greenlet.kill(InjectedError(name), block=False)
        return
    armed.add(name)
    if name not in CALLED:
        services[name].start()


def resume() -> None:
    """End all pauses."""
    while pauses:
        pauses.pop().set()


def read_commands(commands: int, run_in_loop: Callable[..., object]) -> None:
    """Read and run commands until the pipe ends. Runs in a native thread."""
    for line in os.fdopen(commands):
        verb, *names = line.split()
        run_in_loop({"fail": fail, "resume": resume}[verb], *names)


if __name__ == "__main__":
    install()
    run_in_loop = get_hub().loop.run_callback_threadsafe
    threading.Thread(target=read_commands, args=(int(sys.argv[1]), run_in_loop), daemon=True).start()
    sys.exit(main(sys.argv[2:]))
