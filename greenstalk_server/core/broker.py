"""The state of the queue: all jobs, tubes and clients of one server, and the timers.

The operations on this state are modules of functions: `operations` has one module for each topic, such as puts and
reserves, and `transitions` has the steps that operations share. Both take the `Broker` as their first argument, and
only they change it.

Pure: no socket, clock or disk. Every function that needs the time takes `now`, integer nanoseconds since the Unix
epoch, which never decreases. A change that must survive a crash is passed to the journal before the operation returns,
and thus before the reply is sent.

Invariants; `tests/support/invariants.py` verifies all but the first:

- No operation switches greenlets, calls anything that does, or blocks; so the broker needs no lock.
- Each job is in exactly one place: its tube's ready, delayed or buried jobs, or its holder's reserved ones.
- Every counter equals the number of objects that it counts.
- While a client waits, no tube that it watches has a ready job, with three exceptions: the tube is paused; the job's
  concurrency key has no free slot; or one slice could not hand out all ready jobs, and a tick is due to hand out the
  rest.
- A tube exists while it is used, watched, paused or holds a job. `default` always exists. At most MAX_EMPTY_PAUSED
  tubes exist only because they are paused.
- Every future deadline has an armed timer at or before it.

The caller provides `Client.wake`, which ends a wait. All other notifications go to the subscribed listeners
(see greenstalk_server.core.listener).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

from greenstalk_server.core.client import Client
from greenstalk_server.core.counters import Counters, ServerFacts
from greenstalk_server.core.jobs.body_cache import Bodies
from greenstalk_server.core.jobs.id_sequence import ONE_SHARD, IdSequence
from greenstalk_server.core.jobs.job_table import JobTable
from greenstalk_server.core.journal import Journal, NullJournal
from greenstalk_server.core.limits import LIMIT_NAMES, JobQuotas, LimitCounters, Limits, job_quotas
from greenstalk_server.core.listener import BrokerListener
from greenstalk_server.core.moves import Moves
from greenstalk_server.core.outcomes import Refusal
from greenstalk_server.core.policies.policy import PolicySet
from greenstalk_server.core.policies.policy_store import PolicyStore
from greenstalk_server.core.policies.policy_sweep import PolicySweep
from greenstalk_server.core.policies.tube_policy_state import TubePolicyState
from greenstalk_server.core.tags.concurrency import ConcurrencyKey
from greenstalk_server.core.tags.groups import Group, GroupCounts
from greenstalk_server.core.tags.idempotency import RetainedKeys
from greenstalk_server.core.timers import Dependents, Target, Timers
from greenstalk_server.core.tube_shards import TubeShards
from greenstalk_server.core.tubes.head_watch import HeadWatch
from greenstalk_server.core.tubes.name_list import NameBudget, NameList, TubeNames
from greenstalk_server.core.tubes.tube import Totals, Tube
from greenstalk_server.core.tubes.tube_set import TubeSet

DEFAULT_TUBE: Final = b"default"

DEFAULT_MAX_JOB_SIZE: Final = 65535
"""Bytes."""

SLICE: Final = 256
"""Maximum number of jobs that one tick, kick, clear or disconnect moves: about a millisecond of work."""

MAX_EMPTY_PAUSED: Final = 1000
"""Maximum number of paused tubes that exist although no client uses or watches them and they hold no job. The number is
limited because each segment of the journal begins with the pauses."""


def _no_jitter() -> float:
    """Stand in for `random` until the server sets it."""
    return 0.5


class Broker:
    """The state of one shard, which is the whole queue unless the queue has several.

    ids             the ids that this shard assigns. A job that came from another shard has a foreign id.
    next_id         the next id that this shard assigns, above all that it has assigned. Foreign ids may be higher, so
                    `ids.is_older` tells which jobs were here at an earlier `next_id`.
    jobs            every job by id.
    tubes           every tube by name, in the order of creation.
    default_tube    the tube "default", which always exists.
    no_tube         a tube without a name that is not among `tubes`: clients that use no tube use this one.
    remote_count    number of the clients that are remote (see Client).
    moves           jobs that move between shards; None in a queue of one shard.
    heads           subscriptions of their processes to the heads of tubes.
    suspended       suspended clients by the id of their process and the number of their session (see suspending).
    totals          number of jobs by state.
    tube_sets       sets of many tubes, each made when a client that watches exactly these tubes reserves.
    clients         every connected client.
    closing_clients disconnected clients that still have jobs or watches, each with iterators over the ids of these jobs
                    and over the names of the watched tubes. Later ticks requeue the jobs and end the watches. While the
                    server stops, both stay, and the next start requeues the jobs. A new iteration after each slice
                    would pass all deleted entries of the dict before the first remaining one. The iterator over tubes
                    yields names, because a list of tubes would free all of them at once.
    recent_workers  addresses of the workers that disconnected last, by client number.
    job_waiters     clients that wait for the end of a job, by the job's id.
    bodies          the account of the bodies in memory; None if all bodies are in memory.
    is_draining     puts are refused.
    is_drain_final  no client can end the drain, because `drain` has started it.
    is_stopping     jobs of clients that disconnect stay reserved; the next start requeues them.
    limit_counters  counters of limit hits, in the broker, the server and the sessions.
    listed_names    budget of the names in lists that are being sent.
    max_watched     maximum number of tubes that a client may watch; 0 means no limit. In a weighted mode, the maximum
                    is MAX_WEIGHTED_TUBES if that is less.
    policies        the policies in force.
    quotas          limits of jobs and tubes; None without any.
    groups          groups that have members or waiting jobs, by scope and name.
    concurrency_keys    concurrency keys of existing jobs, by scope and name.
    tube_shards     the shard and the scope of each tube.
    keeps_pauses    a paused tube exists until its pause ends, even if it is empty; False in strict mode.
    retained_keys   idempotency keys, and unique keys of policies, that outlive their jobs.
    policy_store    the policies by their source.
    sweep           the application of new policies to existing tubes and jobs.
    random          returns a number in [0, 1), for the jitter of retries and for weighted reserves. The default returns
                    0.5, which gives no jitter.
    timers          times at which ticks next have to look at clients, tubes and other targets.
    dependents      groups, concurrency keys and tubes whose jobs the last operations may have made ready or runnable.
    burials, waits, last_client     number of the last burial, wait and client.
    """

    def __init__(
        self,
        facts: ServerFacts,
        journal: Journal | None = None,
        max_job_size: int = DEFAULT_MAX_JOB_SIZE,
        limits: Limits | None = None,
        bodies: Bodies | None = None,
        ids: IdSequence = ONE_SHARD,
        tube_shards: TubeShards | None = None,
    ) -> None:
        """*max_job_size* is the maximum size of a body in bytes. *bodies* is given if there is a memory limit."""
        limits = limits if limits is not None else Limits()
        self.listeners: list[BrokerListener] = []
        self.facts: ServerFacts = facts
        self.journal: Journal = journal if journal is not None else NullJournal()
        self.max_job_size: int = max_job_size
        self.ids: IdSequence = ids
        self.tube_shards: TubeShards = tube_shards if tube_shards is not None else TubeShards(ids.shards)
        self.jobs: JobTable = JobTable(ids)
        self.tubes: dict[bytes, Tube] = {}
        self.totals: Totals = Totals()
        self.tube_sets: dict[frozenset[Tube], TubeSet] = {}
        self.clients: dict[Client, None] = {}
        self.closing_clients: dict[Client, tuple[Iterator[int], Iterator[bytes]]] = {}
        self.recent_workers: OrderedDict[int, str] = OrderedDict()
        self.job_waiters: dict[int, dict[Client, None]] = {}
        self.counters: Counters = Counters()
        self.bodies: Bodies | None = bodies
        self.is_draining: bool = False
        self.is_drain_final: bool = False
        self.is_stopping: bool = False
        self.limit_counters: LimitCounters = LimitCounters(self.listeners)
        self.quotas: JobQuotas | None = job_quotas(limits)
        self.listed_names: NameBudget = NameBudget()
        self.max_watched: int = limits.watched
        self.policies: PolicySet = PolicySet([])
        self.groups: dict[bytes, Group] = {}
        self._group_counts: dict[bytes, GroupCounts] = {}  # by name, in a queue of several shards
        self.concurrency_keys: dict[bytes, ConcurrencyKey] = {}
        self.keeps_pauses: bool = True
        self.retained_keys: RetainedKeys = RetainedKeys()
        self.next_id: int = ids.next_after(0)
        self._id_step: int = ids.shards
        self.producer_count: int = 0
        self.worker_count: int = 0
        self.waiting_count: int = 0
        self._empty_paused: dict[Tube, None] = {}  # see `_keep_paused`
        self._names: TubeNames = TubeNames(self.listed_names)
        self.burials: int = 0
        self.waits: int = 0
        self.last_client: int = 0
        self.timers: Timers = Timers()
        self.dependents: Dependents = Dependents(self.arm)
        self.policy_store: PolicyStore = PolicyStore(self.tube_shards)
        self.sweep: PolicySweep = PolicySweep()
        self.random: Callable[[], float] = _no_jitter
        self.default_tube: Tube = self.tube(DEFAULT_TUBE)
        self.no_tube: Tube = Tube(b"", self.jobs, self.totals)
        self.remote_count: int = 0
        self.heads: HeadWatch = HeadWatch()
        self.moves: Moves | None = Moves(ids, self.no_tube) if ids.shards > 1 else None
        self.suspended: dict[str, dict[int, Client]] = {}

    def subscribe(self, listener: BrokerListener) -> None:
        """Notify *listener* from now on."""
        self.listeners.append(listener)

    def tube(self, name: bytes) -> Tube:
        """Return the tube *name*, created if it does not exist.

        The caller must then give it a job, a pause, or a client that uses or watches it, or call `drop_if_unneeded`.
        """
        tube = self.tubes.get(name)
        if tube is None:
            tube = self.tubes[name] = Tube(name, self.jobs, self.totals)
            tube.name_chunk = self._names.add(name)
            if self.tube_shards.shards > 1:
                tube.scope = self.tube_shards.scope_of(name)
            tube.policy_state = self.new_policy_state(tube)
        return tube

    def new_policy_state(self, tube: Tube) -> TubePolicyState | None:
        """Return a new policy state of *tube* from the policies in force; None if no policy matches."""
        policy = self.policies.effective(tube.name)
        return None if policy is None else TubePolicyState(policy, self.policies.dead_letter(tube.name), self.jobs)

    def name_list(self) -> NameList:
        """Return all names of tubes in the order of creation. The list is reused until a tube is created or dropped."""
        return self._names.list()

    def allocate_id(self) -> int:
        """Return the next job id. An id is never returned twice, whether or not a job is created with it."""
        id = self.next_id
        self.next_id = id + self._id_step
        return id

    def drop_if_unneeded(self, tube: Tube) -> None:
        if tube.is_unneeded() and tube is not self.default_tube and self.tubes.get(tube.name) is tube:
            if (
                tube.policy_state is not None and tube.policy_state.full_at
            ):  # a new tube of this name could start too many jobs
                self.arm(tube, tube.policy_state.full_at)
            elif tube.paused_until and self.keeps_pauses:
                self._keep_paused(tube)
            else:
                self._drop(tube)

    def _keep_paused(self, tube: Tube) -> None:
        """Keep the empty *tube* until its pause ends, or until MAX_EMPTY_PAUSED further tubes are kept."""
        kept = self._empty_paused
        kept.pop(tube, None)
        kept[tube] = None
        if len(kept) > MAX_EMPTY_PAUSED:
            first = next(iter(kept))
            del kept[first]
            if first.is_unneeded():
                self._drop(first)

    def _drop(self, tube: Tube) -> None:
        del self.tubes[tube.name]
        self._empty_paused.pop(tube, None)
        assert tube.name_chunk is not None
        self._names.remove(tube.name, tube.name_chunk)
        for listener in self.listeners:
            listener.on_tube_dropped(tube)
        self.timers.disarm(tube)
        if tube.paused_until:
            tube.pause = tube.paused_until = 0
            self.journal.pause(tube)

    def is_elsewhere(self, tube: bytes) -> bool:
        """Whether *tube* lives on another shard."""
        return self.tube_shards.shards > 1 and self.tube_shards.shard_of(tube) != self.ids.shard

    def refuse_elsewhere(self, tube: bytes) -> int:
        """Return 0 unless *tube* lives on another shard; else count and return the Refusal."""
        if not self.is_elsewhere(tube):
            return 0
        self.limit_counters.note(LIMIT_NAMES[Refusal.OTHER_SHARD], "", tube.decode())
        return Refusal.OTHER_SHARD

    def group(self, scope: bytes, name: bytes) -> Group:
        """Return the group *name* of *scope*, created if it does not exist."""
        group = self.groups.get(scope + name)
        if group is None:
            shared = GroupCounts()
            if scope:
                shared = self._group_counts.setdefault(name, shared)
                shared.groups += 1
            group = self.groups[scope + name] = Group(name, scope, shared.counts, self.jobs, self.dependents)
        return group

    def drop_group(self, group: Group) -> None:
        """Drop *group*, which has no members, and for which no job waits."""
        if self.groups.get(group.scope + group.name) is not group:
            return
        del self.groups[group.scope + group.name]
        self.timers.disarm(group)
        if group.scope:
            shared = self._group_counts[group.name]
            shared.groups -= 1
            if not shared.groups:
                del self._group_counts[group.name]

    def group_counts(self, name: bytes) -> list[int] | None:
        """Return `Group.counts` of the groups *name* of all scopes; None if there are none."""
        if self.tube_shards.shards > 1:
            shared = self._group_counts.get(name)
            return None if shared is None else shared.counts
        group = self.groups.get(name)
        return None if group is None else group.counts

    def refuse_tube(self, name: bytes, client: Client) -> int:
        """Return 0 if the tube *name* exists or may be created for *client*; else count and return the Refusal."""
        if name in self.tubes or self.quotas is None:
            return 0
        refusal = self.quotas.refuse_tube(len(self.tubes))
        return self.refuse(refusal, client, name) if refusal else 0

    def refuse(self, refusal: int, client: Client, tube: bytes) -> int:
        """Count that *client*'s request for *tube* hit a limit; return *refusal*."""
        self.limit_counters.note(LIMIT_NAMES[refusal], client.address, tube.decode(errors="replace"))
        return refusal

    def arm(self, target: Target, when: int) -> None:
        if self.timers.arm(target, when):
            for listener in self.listeners:
                listener.on_earlier_deadline(when)

    @property
    def is_sweeping(self) -> bool:
        """Whether ticks are still applying new policies to existing tubes and jobs."""
        return self.sweep.timer_at > 0
