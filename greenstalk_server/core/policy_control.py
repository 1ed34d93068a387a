"""Changes of the policies, and the sweep that applies them to existing tubes and jobs.

`Broker` inherits from `PolicyControl`. New policies apply to new jobs and tubes at once. The sweep applies them to
existing ones, one slice per tick of the broker. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from greenstalk_server.core.counters import ServerFacts
from greenstalk_server.core.jobs.body_cache import Bodies
from greenstalk_server.core.jobs.job import DELAYED, READY
from greenstalk_server.core.jobs.job_attributes import DeadLetterReason
from greenstalk_server.core.journal import Journal
from greenstalk_server.core.limits import Limits
from greenstalk_server.core.policies.policy import Policy, PolicySet
from greenstalk_server.core.policies.policy_store import PolicyStore
from greenstalk_server.core.policies.tube_rules import TubeRules
from greenstalk_server.core.policy_transitions import PolicyTransitions
from greenstalk_server.core.transitions import SLICE
from greenstalk_server.core.tubes.tube import Tube

SWEEP_TUBES: Final = 16
"""Tubes whose effective policies one slice of a sweep computes: up to a millisecond with 1,000 policies."""


class PolicySweep:
    """A sweep: applies new policies to existing tubes and jobs, one slice per tick.

    timer_at    time for which the broker's timers are armed, 0 for none (see Timers).
    names       tubes to which the new policies have not been applied.
    ids         jobs that the sweep has not yet visited; None until all tubes have the new policies.
    tubes       tubes whose jobs the sweep has to visit.
    """

    __slots__ = ("ids", "names", "timer_at", "tubes")

    def __init__(self) -> None:
        self.timer_at: int = 0
        self.names: list[bytes] = []
        self.ids: Iterator[int] | None = None
        self.tubes: dict[Tube, None] = {}


class PolicyControl(PolicyTransitions):
    """See the module's docstring; the base classes describe the other attributes.

    policy_store    the policies by their source.
    """

    def __init__(
        self, facts: ServerFacts, journal: Journal, max_job_size: int, limits: Limits, bodies: Bodies | None
    ) -> None:
        self.policy_store: PolicyStore = PolicyStore()
        self._sweep: PolicySweep = PolicySweep()
        super().__init__(facts, journal, max_job_size, limits, bodies)

    def check(self) -> None:
        """Assert the invariants in the docstring of `Broker`'s module, but the first. Slow: for tests."""
        from greenstalk_server.core import invariants  # noqa: PLC0415  only tests need it

        invariants.check(self)

    def load_policies(
        self, documents: Mapping[str, bytes], keys: Mapping[tuple[bytes, bytes], tuple[int, int]]
    ) -> None:
        """Take over the policies and the keys that a journal has recovered, before `restore`."""
        self.policy_store.load(documents)
        self.policies = self.policy_store.combined()
        self.kept_keys.load(keys)

    def set_file_policies(self, policies: Iterable[Policy], now: int) -> list[str]:
        """Replace the policies of the configuration file; see PolicyStore.replace_file_policies."""
        overridden = self.policy_store.replace_file_policies(policies)
        self.set_policies(self.policy_store.combined(), now)
        return overridden

    def set_policy(self, policy: Policy, now: int) -> None:
        """Add or replace *policy* at run time, and record it; raise PolicyError if it is not allowed."""
        document = self.policy_store.set(policy)
        self.journal.policy(policy.name, document)
        self.set_policies(self.policy_store.combined(), now)

    def remove_policy(self, name: str, now: int) -> bool:
        """Remove a policy set at run time; return False if there is none. Raise PolicyError for one in the file."""
        if not self.policy_store.remove(name):
            return False
        self.journal.policy(name, b"")
        self.set_policies(self.policy_store.combined(), now)
        return True

    def set_policies(self, policies: PolicySet, now: int) -> None:
        """Replace the policies in force by *policies*.

        New jobs and tubes follow them at once. The next ticks apply them to existing tubes and jobs.
        """
        self.policies = policies
        self._sweep.names = list(self.tubes)
        self._sweep.ids = None
        self._arm(self._sweep, now)

    @property
    def is_sweeping(self) -> bool:
        """Whether ticks are still applying new policies to existing tubes and jobs."""
        return self._sweep.timer_at > 0

    def _sweep_due(self, now: int) -> None:
        sweep = self._sweep
        if sweep.ids is None:
            for _ in range(min(SWEEP_TUBES, len(sweep.names))):
                tube = self.tubes.get(sweep.names.pop())
                if tube is not None:
                    self._attach_rules(tube, now)
            if not sweep.names:
                sweep.ids = self.jobs.ids_above(0) if sweep.tubes else iter(())
        else:
            ids = list(islice(sweep.ids, SLICE))
            for id in ids:
                self._apply_policy(id, now)
            if not ids and self._arm_swept(now):
                sweep.ids = None
                return
        self._arm(sweep, now + 1)  # not due again in this tick

    def _arm_swept(self, now: int) -> bool:
        """Arm timers for what the new policies require of up to SLICE of the tubes; return whether none is left."""
        tubes = self._sweep.tubes
        for _ in range(min(SLICE, len(tubes))):
            tube, _ = tubes.popitem()
            if self.tubes.get(tube.name) is tube:
                self._arm(tube, now)
        return not tubes

    def _attach_rules(self, tube: Tube, now: int) -> None:
        """Give *tube* the rules of the policies in force, and record whether the sweep must visit its jobs."""
        before, rules = tube.rules, self._new_rules(tube)
        if rules is None or before is None or before.policy.values != rules.policy.values:
            tube.rules = rules
            if rules is not None and before is not None:
                rules.inherit(before, now)
        else:
            before.policy, before.dead_letter = rules.policy, rules.dead_letter
        if tube.rules is not before and tube.job_count:
            self._sweep.tubes[tube] = None
        self._update_hold(tube, now)
        if tube.rules is not None or before is not None:
            self._arm(tube, now)

    def _apply_policy(self, id: int, now: int) -> None:
        """Apply the rules of its tube to the job *id*, which may be older than the rules."""
        job = self.jobs.get(id)
        rules = job.tube.rules if job is not None else None
        if job is None or rules is None:
            return
        rules.rescan(job)
        if job.state in (READY, DELAYED):
            self._arm_waiting(job, rules, now)
        if job.state in (READY, DELAYED) and rules.has_failed(job):
            job.tube.remove(job)
            self._dead_letter(job, DeadLetterReason.ATTEMPTS, now)

    def _apply_rules(self, tube: Tube, rules: TubeRules, now: int) -> None:
        """Apply *rules* to the restored jobs of *tube*: those that have used up their attempts become dead letters."""
        if rules.policy.max_attempts:
            for job in [job for job in (*tube.ready.walk(), *tube.delayed.walk()) if rules.has_failed(job)]:
                tube.remove(job)
                self._dead_letter(job, DeadLetterReason.ATTEMPTS, now)
        self._arm(tube, now)
