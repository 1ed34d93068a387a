"""Commands that take several slices, because the number of their jobs or tubes has no limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.tube import Tube
from greenstalk_server.protocol import codec
from greenstalk_server.protocol.costs import KICK_COST

if TYPE_CHECKING:
    from greenstalk_server.protocol.session import Session


class Work:
    """Unfinished work: a command that takes several slices."""

    __slots__ = ()

    def do_slice(self, session: Session, broker: Broker, now: int) -> bytes | None:
        """Do the next slice, and add its cost to the session's; return the reply when the work is done, else None."""
        raise NotImplementedError


class Kick(Work):
    """A kick of up to *bound* jobs of *tube* in *state*."""

    __slots__ = ("_bound", "_done", "_state", "_tube")

    def __init__(self, tube: Tube, state: int, bound: int) -> None:
        self._tube: Tube = tube
        self._state: int = state
        self._bound: int = bound
        self._done: int = 0

    def do_slice(self, session: Session, broker: Broker, now: int) -> bytes | None:
        """Kick one slice of jobs."""
        done = broker.kick(self._tube, self._state, self._bound - self._done, now)
        session.cost += KICK_COST * done
        self._done += done
        return None if done and self._done < self._bound else codec.kicked(self._done)
