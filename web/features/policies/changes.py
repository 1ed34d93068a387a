"""Operations on tube policies: set and remove them at run time, and count what a policy would do.

The caller must wait for the journal (`commit`) before it reports success, as after all operations. Policies of the
configuration file can only be read here.
"""

from __future__ import annotations

import json
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from msgspec import convert
from werkzeug.exceptions import NotFound, ServiceUnavailable

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, Job
from greenstalk_server.core.operations import policy_changes
from greenstalk_server.core.policies.policy import EffectivePolicy, Overflow, Policy, PolicySet, parse_policy
from greenstalk_server.core.policies.tube_policy_state import TubePolicyState, buried_at
from greenstalk_server.core.tube_names import any_of
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.changes.task_model import PolicyEffect
from greenstalk_server.web.changes.task_parts import Results, TaskParts
from greenstalk_server.web.changes.tasks import Fact, Task, TaskFailed, Tasks
from greenstalk_server.web.features.marks.marks import POLICY, Marks
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.access import principal, require_full_view
from greenstalk_server.web.framework.api.values import model_of
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.framework.shards import Shards
from greenstalk_server.web.reads.jobs.matching import MAX_COLLECTED_IDS
from greenstalk_server.web.store.audit import Audit

SET: Final = "policies.set"
REMOVE: Final = "policies.remove"
COUNT: Final = "policies.count"
"""Questions to the other shards."""

DRY_RUN: Final = "policy-dry-run"
"""The kind of the parts of a dry run of all shards."""

COUNTS: Final = (
    "tubes", "changed_tubes", "jobs", "expired", "dead_lettered", "buried", "evicted", "over_cap", "held",
)  # fmt: skip
"""The numbers of an Effect."""

MAX_DRY_RUN_TIME: Final = 60.0
"""Maximum duration of a dry run in seconds; a longer one fails."""

SAMPLE_SIZE: Final = 10
"""Maximum number of tube names in the result of a dry run."""

MAX_SOURCES: Final = 100
"""Maximum number of tubes that `sources_of` returns."""

_BATCH: Final = 256
"""Jobs counted between two checks of the time, or sizes added between two checkpoints."""


@dataclass(frozen=True, slots=True)
class ListedPolicy:
    """A policy and its source.

    document        the policy as a TOML or JSON document; empty if this version cannot read it.
    is_from_file    the policy is in the configuration file, otherwise it was set at run time.
    problem         why the policy has no effect; empty if it has one.
    """

    name: str
    document: dict[str, object]
    is_from_file: bool
    problem: str = ""


@dataclass(slots=True)
class Effect:
    """The changes that *policy* would make at once to existing jobs. The subject of a dry run.

    A job is counted in at most one of *expired*, *dead_lettered*, *buried*, *evicted*. The counts assume that
    dead-letter tubes have room; a job for which there is no room would be buried.

    tubes           existing tubes that the policy matches.
    changed_tubes   existing tubes whose settings would change.
    sample          names of the first tubes counted in *tubes* or *changed_tubes*.
    jobs            jobs of the tubes counted in *tubes* or *changed_tubes*, in all states.
    expired         jobs that would be dropped because they are too old.
    dead_lettered   jobs that would move to a dead-letter tube.
    buried          jobs that would be buried because their tube has no dead-letter tube.
    evicted         jobs that would be dropped because the tube is above a cap.
    over_cap        jobs above a cap that makes the tube refuse puts.
    held            ready jobs that would have to wait because of `max_reserved` or `rate`.
    warnings        loops of dead letters that the policy would cause.
    """

    policy: Policy
    tubes: int = 0
    changed_tubes: int = 0
    sample: list[str] = field(default_factory=list)
    jobs: int = 0
    expired: int = 0
    dead_lettered: int = 0
    buried: int = 0
    evicted: int = 0
    over_cap: int = 0
    held: int = 0
    warnings: list[str] = field(default_factory=list)

    def model(self) -> PolicyEffect:
        """Return the effect as the API shows it."""
        return model_of(PolicyEffect, self, policy=self.policy.name)

    def merge(self, results: Results) -> None:
        """Set the effect to the sum of those of all shards."""
        effects = [convert(result, PolicyEffect) for result in results.values()]
        for name in COUNTS:
            setattr(self, name, sum([getattr(effect, name) for effect in effects]))
        self.sample = [tube for effect in effects for tube in effect.sample][:SAMPLE_SIZE]
        self.warnings = list(dict.fromkeys([warning for effect in effects for warning in effect.warnings]))


class PolicyChanges:
    """The policies of one broker, and of those of the other shards."""

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        commit: Callable[[], bool],
        audit: Audit,
        tasks: Tasks,
        marks: Marks,
        shards: Shards,
        parts: TaskParts,
    ) -> None:
        """*commit* waits until all changes so far are as durable as an acknowledged command; False on a timeout."""
        self._broker: Broker = broker
        self._clock: Clock = clock
        self._audit: Audit = audit
        self._tasks: Tasks = tasks
        self._marks: Marks = marks
        self._commit: Callable[[], bool] = commit
        self._shards: Shards = shards
        self._parts: TaskParts = parts
        parts.register(DRY_RUN, self._start_part, lambda task: task.subject_as(Effect).model())
        shards.answer(SET, self._set_here)
        shards.answer(REMOVE, self._remove_here)
        shards.answer(COUNT, self._count_tubes_here)

    def all(self) -> list[ListedPolicy]:
        """Return all policies by name; the configuration file's come first if a name is used twice.

        This method, `get`, `dry_run` and `warnings` raise Forbidden unless the principal may see all tubes: policies
        name tubes.
        """
        require_full_view("The policies")
        store = self._broker.policy_store
        found = [ListedPolicy(policy.name, policy.document(), True) for policy in store.file_policies.values()]
        found += [self._runtime_policy(name) for name in store.documents]
        return sorted(found, key=lambda policy: (policy.name, not policy.is_from_file))

    def get(self, name: str) -> ListedPolicy:
        """Return the policy *name*, of the configuration file if both sources have it; raise NotFound."""
        require_full_view("The policies")
        store = self._broker.policy_store
        if name in store.file_policies:
            return ListedPolicy(name, store.file_policies[name].document(), True)
        if name not in store.documents:
            raise NotFound(f"There is no policy “{name[:100]}”.")
        return self._runtime_policy(name)

    def count_tubes(self) -> Mapping[str, int]:
        """Return the number of existing tubes by policy, for each policy that applies to any. May switch."""
        counts = self._count_tubes_here()
        for answer in self._shards.ask_others(COUNT).values():
            counts.update(answer)
        return counts

    def _count_tubes_here(self) -> Counter[str]:
        policies, pace, counts = self._broker.policies, Pace(), Counter[str]()
        for name in [name for name in self._broker.tubes if self._shards.owns(name)]:
            counts.update(policies.matching(name))
            pace.yield_if_due()
        return counts

    def set(self, policy: Policy) -> None:
        """Add or replace *policy* on all shards; raise PolicyError if that is not allowed.

        Switches if there are others. If one of them does not answer, raise ServiceUnavailable; the same request can be
        repeated.
        """
        self._broker.policy_store.check(policy)
        for shard in self._shards.others:
            self._shards.ask(shard, SET, name=policy.name, document=policy.document())
        policy_changes.set_policy(self._broker, policy, self._clock())
        shown = json.dumps(policy.document(), separators=(",", ":"))
        self._audit.note("policy/set", policy=policy.name, document=shown)
        self._marks.add(f"Policy {policy.name} set", kind=POLICY, who=principal().name)

    def remove(self, name: str) -> None:
        """Remove the policy *name* from all shards; raise NotFound, or PolicyError if the configuration file has it.

        Switches if there are others. If one of them does not answer, raise ServiceUnavailable; the same request can be
        repeated.
        """
        if name in self._broker.policy_store.documents and name not in self._broker.policy_store.file_policies:
            for shard in self._shards.others:
                self._shards.ask(shard, REMOVE, name=name)
        if not policy_changes.remove_policy(self._broker, name, self._clock()):
            raise NotFound(f"There is no policy “{name[:100]}”. Nothing was removed.")
        self._audit.note("policy/remove", policy=name)
        self._marks.add(f"Policy {name} removed", kind=POLICY, who=principal().name)

    def _set_here(self, name: str, document: dict[str, Any]) -> None:
        """Set a policy that the home process has checked. Switches."""
        policy_changes.set_policy(self._broker, parse_policy(name, document), self._clock())
        self._require_commit()

    def _remove_here(self, name: str) -> None:
        """Remove a policy, if this shard has it. Switches."""
        policy_changes.remove_policy(self._broker, name, self._clock())
        self._require_commit()

    def _require_commit(self) -> None:
        if not self._commit():
            raise ServiceUnavailable(f"Shard {self._shards.own} cannot write its journal. Repeat the change later.")

    def dry_run(self, policy: Policy) -> Task:
        """Start a task that counts what *policy* would do if it were set; its subject is an Effect.

        Raise PolicyError as `set` does. The task changes nothing, and fails after MAX_DRY_RUN_TIME. Does not switch.
        """
        require_full_view("The effect of a policy")
        self._broker.policy_store.check(policy)
        effect = Effect(policy)
        return self._tasks.start(
            f"Dry run: set the policy {policy.name}",
            effect,
            self._work_of(effect),
            kind="policy-dry-run",
            details=lambda: {"effect": effect.model()},
            endpoint="policy",
            facts=(Fact("Policy", policy.name), Fact("Tubes", ", ".join(policy.tubes)[:200])),
        )

    def _work_of(self, effect: Effect) -> Callable[[Task], None]:
        if not self._parts.spans(""):
            return lambda task: self._count(task, effect)
        policy = effect.policy
        asked = self._parts.everywhere(name=policy.name, document=policy.document())
        return self._parts.work(DRY_RUN, asked, effect.merge)

    def _start_part(self, name: str, document: dict[str, Any]) -> Task:
        """Start the part of this shard of a dry run that the home process has checked."""
        require_full_view("The effect of a policy")
        effect = Effect(parse_policy(name, document))
        return self._tasks.start("", effect, lambda task: self._count(task, effect), is_part=True)

    def _count(self, task: Task, effect: Effect) -> None:
        _DryRun(self._broker, effect, task, self._clock(), self._shards.owns).work()

    def warnings(self) -> list[str]:
        """Return a message for each loop of dead letters."""
        require_full_view("The policies")
        return self._broker.policies.warnings()

    def _runtime_policy(self, name: str) -> ListedPolicy:
        store = self._broker.policy_store
        if name in store.unreadable:
            problem = f"This version of the server cannot read the policy: {store.unreadable[name]}."
            return ListedPolicy(name, {}, False, problem)
        is_overridden = name in store.file_policies
        problem = "A policy of the same name in the configuration file overrides it." if is_overridden else ""
        return ListedPolicy(name, store.runtime_policies[name].document(), False, problem)


class _Tally:
    """The remaining jobs of one tube, from which a dry run subtracts jobs.

    jobs, bytes     jobs in all states, and bytes of their bodies.
    ready           ready jobs.
    waiting         ready and delayed jobs.
    sizes           bytes of each waiting job by age, if jobs would be evicted because of `max_bytes`; otherwise empty.
    """

    __slots__ = ("bytes", "jobs", "policy_state", "ready", "sizes", "tube", "waiting")

    def __init__(self, tube: Tube, policy_state: TubePolicyState) -> None:
        self.tube: Tube = tube
        self.policy_state: TubePolicyState = policy_state
        self.jobs: int = tube.job_count
        self.bytes: int = tube.body_bytes
        self.ready: int = tube.ready.count
        self.waiting: int = tube.ready.count + tube.delayed.count
        self.sizes: array[int] = array("Q")

    @property
    def is_above_bytes(self) -> bool:
        """Whether the bodies exceed `max_bytes`."""
        return 0 < self.policy_state.policy.max_bytes < self.bytes

    @property
    def needs_jobs(self) -> bool:
        """Whether the effect of the policy depends on each job, not only on the tube's counts."""
        policy = self.policy_state.policy
        return bool(policy.max_attempts or policy.expire_after or policy.buried_expire_after or self.is_above_bytes)

    def remove(self, job: Job) -> None:
        """Subtract *job*, which would leave the tube."""
        self.jobs -= 1
        self.bytes -= job.size
        self.stop_waiting(job)

    def stop_waiting(self, job: Job) -> None:
        """Subtract *job* from the waiting jobs: it would no longer be ready or delayed."""
        self.ready -= job.state == READY
        self.waiting -= job.state in (READY, DELAYED)

    def count_excess(self, checkpoint: Callable[[], None]) -> int:
        """Return the number of waiting jobs, oldest first, that the tube would evict to be within its caps.

        Call *checkpoint* every _BATCH jobs.
        """
        policy = self.policy_state.policy
        excess = max(0, self.jobs - policy.max_jobs) if policy.max_jobs else 0
        if self.is_above_bytes:
            over, count = self.bytes - policy.max_bytes, 0
            for size in self.sizes:
                if over <= 0:
                    break
                over -= size
                count += 1
                if count % _BATCH == 0:
                    checkpoint()
            excess = max(excess, count)
        return min(excess, self.waiting)

    def count_held(self) -> int:
        """Return the number of ready jobs that could not be reserved at once."""
        policy, free = self.policy_state.policy, self.ready
        if policy.max_reserved:
            free = min(free, max(0, policy.max_reserved - self.tube.reserved_count))
        if policy.rate_interval:
            free = min(free, policy.rate_burst)
        return self.ready - free


class _DryRun:
    """Counts an Effect as of *now*, on the tubes that *owns* selects."""

    def __init__(self, broker: Broker, effect: Effect, task: Task, now: int, owns: Callable[[bytes], bool]) -> None:
        self._owns: Callable[[bytes], bool] = owns
        self._broker: Broker = broker
        self._effect: Effect = effect
        self._task: Task = task
        self._now: int = now
        self._until: float = time.monotonic() + MAX_DRY_RUN_TIME
        self._tallies: dict[bytes, _Tally] = {}

    def work(self) -> None:
        """Count; raise TaskFailed after MAX_DRY_RUN_TIME, and TaskCancelled. Switches."""
        self._find_tubes()
        for index, id in enumerate(self._ids()):
            if index % _BATCH == 0:
                self._stop_if_late()
            job = self._broker.jobs.get(id)
            tally = self._tallies.get(job.tube.name) if job is not None else None
            if job is not None and tally is not None:
                self._task.matched += 1
                self._count_job(job, tally)
            self._task.scanned += 1
            self._task.checkpoint()
        self._task.total = self._task.scanned  # jobs may have been deleted before the task reached them
        for tally in self._tallies.values():
            self._count_tube(tally)
            self._task.checkpoint()

    def _find_tubes(self) -> None:
        """Fill `_tallies`, and count the tubes. Switches."""
        effect, before = self._effect, self._broker.policies
        policy = effect.policy
        after = PolicySet([*[one for one in before.policies.values() if one.name != policy.name], policy])
        known = set(before.warnings())
        effect.warnings += [warning for warning in after.warnings() if warning not in known]
        matching, target = any_of(policy.tubes), str(policy.settings.get("dead_letter", "")).encode()
        assert matching is not None
        for name in list(self._broker.tubes):
            is_match = name != target and matching.fullmatch(name) is not None
            old, new = before.effective(name), after.effective(name)
            is_changed = _values(old) != _values(new)
            tube = self._broker.tubes.get(name)
            if tube is not None and self._owns(name) and (is_match or is_changed):
                effect.tubes += is_match
                effect.changed_tubes += is_changed
                effect.jobs += tube.job_count
                if len(effect.sample) < SAMPLE_SIZE:
                    effect.sample.append(name.decode())
                if new is not None:
                    policy_state = TubePolicyState(new, after.dead_letter(name), self._broker.jobs)
                    self._tallies[name] = _Tally(tube, policy_state)
            self._task.checkpoint()
            self._stop_if_late()

    def _ids(self) -> Iterator[int]:
        """Return the ids to examine, oldest first, and set the task's total."""
        tubes = [tally.tube for tally in self._tallies.values() if tally.needs_jobs]
        count = sum([tube.job_count - tube.reserved_count for tube in tubes])
        if count <= MAX_COLLECTED_IDS:
            self._task.total = count
            return iter(
                sorted([id for tube in tubes for id in chain(tube.ready.ids(), tube.delayed.ids(), tube.buried)])
            )
        self._task.total, below = len(self._broker.jobs), self._broker.next_id
        return (id for id in self._broker.jobs.ids_above(0) if self._broker.ids.is_older(id, below))

    def _count_job(self, job: Job, tally: _Tally) -> None:
        """Count the effect on *job* itself, in the order in which the broker applies the policy."""
        policy_state, is_waiting = tally.policy_state, job.state in (READY, DELAYED)
        if is_waiting and policy_state.has_failed(job):
            self._end(job, tally, is_dropped=False)
        elif (is_waiting and policy_state.expiry_of(job) <= self._now) or self._is_burial_over(
            job, policy_state.policy
        ):
            self._end(job, tally, is_dropped=not policy_state.policy.expires_to_dead_letter)
        elif is_waiting and policy_state.policy.max_bytes:
            tally.sizes.append(job.size)

    def _is_burial_over(self, job: Job, policy: EffectivePolicy) -> bool:
        longest = policy.buried_expire_after if job.state == BURIED else 0
        return longest > 0 and buried_at(job) + longest <= self._now

    def _end(self, job: Job, tally: _Tally, *, is_dropped: bool) -> None:
        """Count *job* as dropped, or as a dead letter."""
        if is_dropped:
            self._effect.expired += 1
            tally.remove(job)
        elif tally.policy_state.dead_letter:
            self._effect.dead_lettered += 1
            tally.remove(job)
        else:
            self._effect.buried += 1
            tally.stop_waiting(job)

    def _count_tube(self, tally: _Tally) -> None:
        """Count the effects of the tube's caps and limits."""
        excess, overflow = tally.count_excess(self._task.checkpoint), tally.policy_state.policy.overflow
        if overflow == Overflow.REFUSE:
            self._effect.over_cap += excess
        else:
            tally.ready -= min(excess, tally.ready)
            if overflow == Overflow.DROP_OLDEST:
                self._effect.evicted += excess
            elif tally.policy_state.dead_letter:
                self._effect.dead_lettered += excess
            else:
                self._effect.buried += excess
        self._effect.held += tally.count_held()

    def _stop_if_late(self) -> None:
        if time.monotonic() > self._until:
            raise TaskFailed(
                f"The dry run was stopped after {MAX_DRY_RUN_TIME:.0f} s. It had scanned"
                f" {text.number(self._task.scanned)} of {text.counted(self._task.total, 'job')}."
            )


def sources_of(broker: Broker, name: bytes) -> list[str]:
    """Return the first MAX_SOURCES existing tubes, by name, whose dead letters go to the tube *name*. May switch.

    Tubes that the principal may not see are left out.
    """
    pace, found, sees = Pace(), list[str](), principal().sees
    for tube in list(broker.tubes.values()):
        if tube.policy_state is not None and tube.policy_state.dead_letter == name and sees(tube.name):
            found.append(tube.name.decode())
        pace.yield_if_due()
    return sorted(found)[:MAX_SOURCES]


def _values(policy: EffectivePolicy | None) -> dict[str, object]:
    return policy.values if policy is not None else {}
