"""Jobs that move between shards: those that are leaving this one, and the places of those that have left it.

A job that moves to a tube of another shard stays where it is, in the *outbox*, until the other shard has accepted or
refused it. It counts as reserved by `holder`, so no command can change it. A request to accept it may be repeated: the
number of the job's moves (`Travel.hops`) tells the other shard whether it has accepted it already.

Once the request was sent, only the other shard knows whether it has the job. So it is asked first for every command
about the job (`transitions.moving.find`).

The *location* of a job that has left tells where it went. It is kept as long as another shard needs it:

- The home shard of an id (see id_sequence) keeps it until the job is deleted, and forwards commands.
- Any other shard, and one that has deleted a job which came from another one, keeps it until that source and the home
  shard have confirmed that they know. Until then the source may repeat its request, which must not add the job again.

A job with an id from before the queue had several shards has no home: it is looked for on all shards. So that it is
not missed while it moves, each shard remembers the last such jobs that have left, until it is told that they are
deleted or have moved on.

greenstalk_server.core.transitions.moving changes the state. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

from greenstalk_server.core.client import Client, ignore_call
from greenstalk_server.core.jobs.id_sequence import IdSequence
from greenstalk_server.core.jobs.job import Job
from greenstalk_server.core.travel import NOWHERE, Location
from greenstalk_server.core.tubes.tube import Tube

MAX_DEPARTED: Final = 10_000
"""Jobs without a home that a shard remembers after they have left: more than leave during a command."""


class Moves:
    """The moves of one shard.

    holder      a client that is not connected; it holds the jobs of the outbox.
    outbox      jobs that are moving to another shard, by id, in the order in which they began.
    leaving     the jobs of the outbox by the shard to which they are moving.
    sent        ids of the jobs of the outbox that the other shard may have already.
    locations   places of jobs that were here, by id.
    departed    shards to which jobs without a home have moved, and the number of the move, by id.
    untold      for each other shard, the ids whose locations it has to confirm.
    on_change   called when there is a new job in the outbox, or something to tell; does not switch greenlets.
    """

    def __init__(self, ids: IdSequence, no_tube: Tube) -> None:
        self.holder: Client = Client(no_tube, ignore_call)
        self.outbox: dict[int, Job] = {}
        self.leaving: dict[int, dict[int, Job]] = {}
        self.sent: set[int] = set()
        self.locations: dict[int, Location] = {}
        self.departed: dict[int, tuple[int, int]] = {}
        self.untold: dict[int, dict[int, None]] = {}
        self.on_change: Callable[[], None] = ignore_call
        self._ids: IdSequence = ids

    def add(self, job: Job, shard: int) -> None:
        """Add *job*, which is moving to *shard*, to the outbox."""
        self.holder.reserved[job.id] = self.outbox[job.id] = job
        self.leaving.setdefault(shard, {})[job.id] = job
        self.on_change()

    def remove(self, job: Job, shard: int) -> None:
        """Remove *job* from the outbox."""
        del self.outbox[job.id], self.holder.reserved[job.id], self.leaving[shard][job.id]
        self.sent.discard(job.id)

    def note_departed(self, id: int, location: Location) -> None:
        """Remember *location* of the job *id* if it has no home, or forget it if the job is deleted."""
        if id < self._ids.base:
            self.departed.pop(id, None)
            if location.shard != NOWHERE:
                self.departed[id] = location.shard, location.hops
            if len(self.departed) > MAX_DEPARTED:
                del self.departed[next(iter(self.departed))]

    def is_home_of(self, id: int) -> bool:
        """Whether this shard keeps the place of the job *id*. Ids from before the queue had several have no home."""
        return id >= self._ids.base and self._ids.home(id) == self._ids.shard

    def place_of(self, id: int) -> int:
        """Return the shard to which the job *id* has moved; NOWHERE if it has not, or is deleted.

        Jobs with ids from before the queue had several shards are searched on all shards.
        """
        location = self.locations.get(id) if id >= self._ids.base else None
        return NOWHERE if location is None else location.shard

    def note_untold(self, id: int, location: Location) -> bool:
        """Note which shards have to confirm *location* of the job *id*; return whether it must be kept at all."""
        peers = {location.source}
        if id >= self._ids.base:
            peers.add(self._ids.home(id))
        peers -= {NOWHERE, self._ids.shard}
        for peer in peers:
            self.untold.setdefault(peer, {})[id] = None
        if peers:
            self.on_change()
        return bool(peers) or (location.shard != NOWHERE and self.is_home_of(id))

    def news_for(self, peer: int, limit: int) -> list[tuple[int, Location]]:
        """Return up to *limit* locations that *peer* has to confirm."""
        return [(id, self.locations[id]) for id in islice(self.untold.get(peer, ()), limit)]

    def is_untold(self, id: int) -> bool:
        """Whether any shard has to confirm the location of the job *id*."""
        return any(id in ids for ids in self.untold.values())

    def forget_untold(self, id: int) -> None:
        """Forget that shards have to confirm the location of the job *id*."""
        for ids in self.untold.values():
            ids.pop(id, None)
