"""Queries about policies: the reason why a tube hands out no job, and the dead-letter tubes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, SECOND, Job
from greenstalk_server.core.policies.policy import Policy, PolicySet
from greenstalk_server.core.policies.tube_policy_state import buried_at
from greenstalk_server.core.timers import NEVER
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.core.units import MILLISECOND
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.access import principal

TUBE_SETTINGS: Final = ("dead_letter", "copy_to")
"""Settings whose values name tubes."""


class DeadLetterTubes:
    """The tubes of *broker* that policies name as dead-letter tubes."""

    def __init__(self, broker: Broker) -> None:
        self._broker: Broker = broker
        self._policies: PolicySet | None = None
        self._targets: dict[bytes, list[Policy]] = {}

    def policies_of(self, name: bytes) -> list[Policy]:
        """Return the policies that name the tube *name* as their dead-letter tube."""
        return self._current().get(name, [])

    def has(self, tube: Tube) -> bool:
        """Whether a policy names *tube*, or the tube has dead letters of an earlier policy among its first jobs."""
        if tube.name in self._current() or (tube.policy_counts is not None and tube.policy_counts.received):
            return True
        for state in (READY, DELAYED, BURIED):
            for job in tube.walk(state):
                if job.dead_letter:
                    return True
                break
        return False

    def count_jobs(self, is_counted: Callable[[bytes], bool]) -> int:
        """Return the number of jobs in the dead-letter tubes that policies name and *is_counted* selects."""
        tubes = self._broker.tubes
        names = [name for name in self._current() if is_counted(name)]
        return sum([tube.job_count for name in names if (tube := tubes.get(name)) is not None])

    def _current(self) -> Mapping[bytes, list[Policy]]:
        """Return the policies, grouped by the dead-letter tube that they name."""
        if self._policies is not self._broker.policies:
            self._policies, self._targets = self._broker.policies, {}
            for policy in self._policies.policies.values():
                target = policy.settings.get("dead_letter")
                if isinstance(target, str) and target:
                    self._targets.setdefault(target.encode(), []).append(policy)
        return self._targets


def visible_setting(key: str, value: object) -> object:
    """Return *value* of the policy setting *key*, with HIDDEN_TUBE for the tubes that the principal may not see."""
    who = principal()
    if key not in TUBE_SETTINGS or who.sees_all:
        return value
    if isinstance(value, list):
        return [who.name_of(str(name).encode()) for name in value]
    return who.name_of(str(value).encode())


def hold_label(tube: Tube, now: int) -> str:
    """Return the setting that holds back the ready jobs of *tube*; empty if there is none, or no ready job."""
    reason = tube.throttle_reason(now) if tube.ready.count else ""
    return "" if reason == "pause" else reason


def hold_text(tube: Tube, now: int) -> str:
    """Return why a policy holds back the ready jobs of *tube*; empty if it does not.

    For example `at most 20 jobs reserved: 20 are`, or `rate 100/s: next start in 8 ms`.
    """
    setting, policy_state = hold_label(tube, now), tube.policy_state
    if not setting or policy_state is None:
        return ""
    if setting == "max_reserved":
        jobs = text.counted(policy_state.policy.max_reserved, "job")
        are = f"{text.number(tube.reserved_count)} {'is' if tube.reserved_count == 1 else 'are'}"
        return f"at most {jobs} reserved: {are}"
    rate = policy_state.policy.values.get("rate", text.NONE)
    return f"rate {rate}/s: next start in {_short_time(tube.throttled_until - now)}"


def expires_at(job: Job) -> int:
    """Return when *job* expires, nanoseconds; NEVER if it does not. A reserved job expires when it is released."""
    policy_state = job.tube.policy_state
    if policy_state is None:
        return NEVER
    if job.state != BURIED:
        return policy_state.expiry_of(job)
    after = policy_state.policy.buried_expire_after
    return buried_at(job) + after if after else NEVER


def _short_time(nanoseconds: int) -> str:
    """Return a time as text: to the millisecond below 10 seconds, to the second above."""
    if nanoseconds >= 10 * SECOND:
        return text.duration(nanoseconds // SECOND)
    milliseconds = -(-nanoseconds // MILLISECOND)
    return f"{milliseconds} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"
