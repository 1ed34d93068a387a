"""The reservations of remote clients, which outlive a link and a restart of the owner. Pure.

The process that holds the connection of a remote client is its front. The session is known by the id of the front and a
number that the front never uses again. Each reservation of a session has a number too, 1 for the first. The front
counts the jobs that it receives, so after the loss of a link it can say which reservations it knows of.
"""

from __future__ import annotations

from typing import Final, NamedTuple

ALL: Final = 2**63
"""A number above that of every reservation."""


class Reservation(NamedTuple):
    """The reservation of a job by a remote client, as the journal records it.

    front       id of the process that holds the connection.
    session     number of the session at that process.
    number      number of the reservation in the session.
    """

    front: str
    session: int
    number: int


class RemoteReservations:
    """The reservations of a remote client.

    front       id of the process that holds the connection.
    session     number of the session at that process.
    reserved    number of the last reservation; 0 if there was none.
    received    reservations with higher numbers are unknown to the front: they end uncounted when the client ends.
    numbers     numbers of the reservations that have not ended, by the job's id.
    unresumed   ids of the jobs of a suspended client that this one is still to get, the last one first.
    """

    def __init__(self, front: str, session: int) -> None:
        self.front: str = front
        self.session: int = session
        self.reserved: int = 0
        self.received: int = ALL
        self.numbers: dict[int, int] = {}
        self.unresumed: list[int] = []

    def note_reserved(self, id: int) -> None:
        """Number the reservation of the job *id*."""
        self.reserved += 1
        self.numbers[id] = self.reserved

    def reservation_of(self, id: int) -> Reservation:
        """Return the reservation of the job *id*."""
        return Reservation(self.front, self.session, self.numbers[id])
