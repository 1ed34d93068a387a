"""Services: the greenlets, threads and callbacks of the event loop that live as long as the process.

A service that ended unnoticed would leave a server that answers and no longer does all of its work. So each exception
that a service does not handle is logged with its traceback, and has one of two consequences:

- A service in RESTARTED has no state that an exception can damage for long. It is run again after a pause, which
  doubles with each failure up to MAX_PAUSE. In between, `failed` names the service, so `/readyz` is 503.
- An exception of a service in CRITICAL may leave a job or the journal's counters half changed, and every further
  command could record the damage. The process exits at once with EXIT_INTERNAL, and its manager starts it again. No
  acknowledged change is lost: the journal has it, and nothing more is acknowledged or written.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Final, NoReturn

import gevent

from greenstalk_server.runtime.exit_codes import EXIT_INTERNAL

CRITICAL: Final = (
    "body-loader",
    "commit",
    "journal-files",
    "leadership",
    "lease",
    "poller",
    "sync",
    "ticker",
)

RESTARTED: Final = (
    "alerts",
    "attention",
    "dashboard-store",
    "history",
    "housekeeping",
    "link-outages",
    "links",
    "live-pages",
    "membership",
    "moves",
    "shard-conditions",
    "standbys",
    "worker-rates",
)

FIRST_PAUSE: Final = 1.0
MAX_PAUSE: Final = 60.0
"""Seconds from a failure to the restart. The pause is FIRST_PAUSE again once a service has run for MAX_PAUSE."""

RELEASE_TIMEOUT: Final = 1.0
"""Seconds that `abort` waits for the functions given to `before_abort`."""

log = logging.getLogger(__name__)

restarts: Final = dict.fromkeys(RESTARTED, 0)
"""Restarts of each service since the process began."""

_failed: Final[list[str]] = []
_releases: Final[list[Callable[[], None]]] = []


def failed() -> list[str]:
    """Return the names of the services that have failed and do not run yet."""
    return sorted(set(_failed))


class Service:
    """One service. It ends when *run* returns, and can then be started again."""

    def __init__(self, name: str, run: Callable[[], None]) -> None:
        """*name* is in CRITICAL or RESTARTED."""
        if name not in CRITICAL and name not in RESTARTED:
            raise ValueError(f"{name} is not a known service")
        self.name: str = name
        self._run: Callable[[], None] = run
        self._greenlet: gevent.Greenlet | None = None

    @property
    def is_running(self) -> bool:
        """Whether the greenlet has not ended. It may be in the pause before a restart."""
        return bool(self._greenlet)

    def start(self) -> None:
        """Run the service in a greenlet, unless it runs already. Does not switch."""
        if not self._greenlet:
            self._greenlet = gevent.spawn(self.supervise)

    def start_thread(self) -> None:
        """Run the service in a native thread."""
        threading.Thread(target=self.supervise, args=(time.sleep,), name=self.name, daemon=True).start()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the service ends, at most *timeout* seconds. Switches."""
        gevent.joinall(_greenlets(self), timeout)

    def stop(self) -> None:
        """End the greenlet, if there is one. Switches."""
        stop_all(self)

    def supervise(self, pause: Callable[[float], None] = gevent.sleep) -> None:
        """Run until the service returns or the greenlet is killed. *pause* waits for seconds. Switches."""
        seconds = FIRST_PAUSE
        while True:
            began = time.monotonic()
            try:
                self._run()
            except Exception as error:
                if self.name in CRITICAL:
                    abort(self.name, error)
                if time.monotonic() - began > MAX_PAUSE:
                    seconds = FIRST_PAUSE
                log.exception("internal error in the service %s, which restarts in %.0f s", self.name, seconds)
            else:
                return
            _failed.append(self.name)
            try:
                pause(seconds)
            finally:
                _failed.remove(self.name)
            restarts[self.name] += 1
            seconds = min(2 * seconds, MAX_PAUSE)


def stop_all(*services: Service) -> None:
    """End the greenlets of *services* together. Switches."""
    gevent.killall(_greenlets(*services))


def before_abort(release: Callable[[], None]) -> None:
    """Have `abort` call *release*, which may block, in a native thread."""
    _releases.append(release)


def abort(name: str, error: BaseException) -> NoReturn:
    """Log the *error* of the service *name*, and end the process. May be called in any thread; does not switch."""
    log.critical("internal error in the service %s: the server exits", name, exc_info=error)
    for release in _releases:
        thread = threading.Thread(target=release, daemon=True)
        thread.start()
        thread.join(RELEASE_TIMEOUT)
    os._exit(EXIT_INTERNAL)


def _greenlets(*services: Service) -> list[gevent.Greenlet]:
    return [service._greenlet for service in services if service._greenlet is not None]
