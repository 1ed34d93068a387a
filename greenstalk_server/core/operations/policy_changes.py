"""Changes of the policies, and the sweep that applies them to existing tubes and jobs. Pure.

New policies apply to new jobs and tubes at once. The sweep applies them to existing ones, one slice per tick.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from greenstalk_server.core.broker import SLICE, Broker
from greenstalk_server.core.job_attributes import DeadLetterReason
from greenstalk_server.core.jobs.job import DELAYED, READY
from greenstalk_server.core.policies.policy import Policy, PolicySet
from greenstalk_server.core.policies.tube_policy_state import TubePolicyState
from greenstalk_server.core.transitions.enforcing import dead_letter
from greenstalk_server.core.transitions.placing import arm_waiting
from greenstalk_server.core.transitions.reservation import update_throttle
from greenstalk_server.core.tubes.tube import Tube

SWEEP_TUBES: Final = 16
"""Tubes whose effective policies one slice of a sweep computes: up to a millisecond with 1,000 policies."""


def load_policies(
    broker: Broker, documents: Mapping[str, bytes], keys: Mapping[tuple[bytes, bytes], tuple[int, int]]
) -> None:
    """Take over the policies and the keys that a journal has recovered, before `restore`."""
    broker.policy_store.load(documents)
    broker.policies = broker.policy_store.combined()
    broker.retained_keys.load(keys)


def set_file_policies(broker: Broker, policies: Iterable[Policy], now: int) -> list[str]:
    """Replace the policies of the configuration file; see PolicyStore.replace_file_policies."""
    overridden = broker.policy_store.replace_file_policies(policies)
    set_policies(broker, broker.policy_store.combined(), now)
    return overridden


def set_policy(broker: Broker, policy: Policy, now: int) -> None:
    """Add or replace *policy* at run time, and record it; raise PolicyError if it is not allowed."""
    document = broker.policy_store.set(policy)
    broker.journal.policy(policy.name, document)
    set_policies(broker, broker.policy_store.combined(), now)


def remove_policy(broker: Broker, name: str, now: int) -> bool:
    """Remove a policy set at run time; return False if there is none. Raise PolicyError if the file has it."""
    if not broker.policy_store.remove(name):
        return False
    broker.journal.policy(name, b"")
    set_policies(broker, broker.policy_store.combined(), now)
    return True


def set_policies(broker: Broker, policies: PolicySet, now: int) -> None:
    """Replace the policies in force by *policies*.

    New jobs and tubes follow them at once. The next ticks apply them to existing tubes and jobs.
    """
    broker.policies = policies
    broker.sweep.names = list(broker.tubes)
    broker.sweep.ids = None
    broker.arm(broker.sweep, now)


def sweep_due(broker: Broker, now: int) -> None:
    """Do the next slice of the sweep."""
    sweep = broker.sweep
    if sweep.ids is None:
        for _ in range(min(SWEEP_TUBES, len(sweep.names))):
            tube = broker.tubes.get(sweep.names.pop())
            if tube is not None:
                _attach_policy(broker, tube, now)
        if not sweep.names:
            sweep.ids = broker.jobs.ids_above(0) if sweep.tubes else iter(())
    else:
        ids = list(islice(sweep.ids, SLICE))
        for id in ids:
            _apply_to_job(broker, id, now)
        if not ids and _arm_swept(broker, now):
            sweep.ids = None
            return
    broker.arm(sweep, now + 1)  # not due again in this tick


def _arm_swept(broker: Broker, now: int) -> bool:
    """Arm the timers that the new policies require for up to SLICE of the tubes; return whether no tube is left."""
    tubes = broker.sweep.tubes
    for _ in range(min(SLICE, len(tubes))):
        tube, _ = tubes.popitem()
        if broker.tubes.get(tube.name) is tube:
            broker.arm(tube, now)
    return not tubes


def _attach_policy(broker: Broker, tube: Tube, now: int) -> None:
    """Apply the policies in force to *tube*, and record whether the sweep must visit its jobs."""
    before, policy_state = tube.policy_state, broker.new_policy_state(tube)
    if policy_state is None or before is None or before.policy.values != policy_state.policy.values:
        tube.policy_state = policy_state
        if policy_state is not None and before is not None:
            policy_state.inherit(before, now)
    else:
        before.policy, before.dead_letter = policy_state.policy, policy_state.dead_letter
    if tube.policy_state is not before and tube.job_count:
        broker.sweep.tubes[tube] = None
    update_throttle(tube, now)
    if tube.policy_state is not None or before is not None:
        broker.arm(tube, now)


def _apply_to_job(broker: Broker, id: int, now: int) -> None:
    """Apply to the job *id* the policy of its tube; the job may be older than the policy."""
    job = broker.jobs.get(id)
    policy_state = job.tube.policy_state if job is not None else None
    if job is None or policy_state is None:
        return
    policy_state.rescan(job)
    if job.state in (READY, DELAYED):
        arm_waiting(broker, job, policy_state)
    if job.state in (READY, DELAYED) and policy_state.has_failed(job):
        job.tube.remove(job)
        dead_letter(broker, job, DeadLetterReason.ATTEMPTS, now)


def apply_to_restored(broker: Broker, tube: Tube, policy_state: TubePolicyState, now: int) -> None:
    """Apply the policy to the restored jobs of *tube*: those that have used up their attempts become dead letters."""
    if policy_state.policy.max_attempts:
        for job in [job for job in (*tube.ready.walk(), *tube.delayed.walk()) if policy_state.has_failed(job)]:
            tube.remove(job)
            dead_letter(broker, job, DeadLetterReason.ATTEMPTS, now)
    broker.arm(tube, now)
