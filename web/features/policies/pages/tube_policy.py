"""The policy panel of a tube's page: the settings in force, the counts of their effects, and the dead letters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.policies.policy import SETTINGS
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.web.features.policies.changes import sources_of
from greenstalk_server.web.features.policies.setting_texts import COUNT_TEXTS, SETTING_TEXTS, value_text
from greenstalk_server.web.framework import text
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.reads.policies import DeadLetterTubes, visible_setting

MAX_SHOWN_SOURCES: Final = 20
"""Maximum number of source tubes on the page of a dead-letter tube."""


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting in force: its key, label and value, and the policy that sets it."""

    key: str
    label: str
    value: str
    policy: str


@dataclass(frozen=True, slots=True)
class TubePolicy:
    """The policy of a tube, for its page.

    settings        its settings; empty if no policy matches.
    counts          label and value of each counter that is not 0.
    dead_letter     the tube to which its dead letters go, or empty.
    dead_letters    number of jobs of the tube *dead_letter*; empty if it does not exist.
    is_target_hidden    the principal may not see the tube *dead_letter*.
    is_loop         it has a dead-letter tube that leads back to it, so its dead letters are buried.
    is_dead_letter  it is a dead-letter tube.
    sources         the first tubes whose dead letters it receives; *has_more_sources* if there are others.
    policies        names of the policies that name it as their dead-letter tube.
    is_changing     new policies are being applied to existing jobs.
    """

    settings: list[SettingRow]
    counts: list[tuple[str, str]]
    dead_letter: str
    dead_letters: str
    is_target_hidden: bool
    is_loop: bool
    is_dead_letter: bool
    sources: list[str]
    has_more_sources: bool
    policies: list[str]
    is_changing: bool


def tube_policy(broker: Broker, tube: Tube, dead_letter_tubes: DeadLetterTubes) -> TubePolicy:
    """Return the policy of *tube*. May switch."""
    policies = dead_letter_tubes.policies_of(tube.name)
    sources = sources_of(broker, tube.name) if policies else []
    policy_state = tube.policy_state
    target = policy_state.dead_letter if policy_state is not None else b""
    target_tube = broker.tubes.get(target) if target and principal().sees(target) else None
    return TubePolicy(
        settings=_settings(tube),
        counts=_counts(tube),
        dead_letter=principal().name_of(target),
        dead_letters=text.counted(target_tube.job_count, "job") if target_tube is not None else "",
        is_target_hidden=bool(target) and not principal().sees(target),
        is_loop=policy_state is not None and bool(policy_state.policy.dead_letter) and not target,
        is_dead_letter=dead_letter_tubes.has(tube),
        sources=sources[:MAX_SHOWN_SOURCES],
        has_more_sources=len(sources) > MAX_SHOWN_SOURCES,
        policies=sorted([policy.name for policy in policies]),
        is_changing=broker.is_sweeping,
    )


def _settings(tube: Tube) -> list[SettingRow]:
    policy = tube.policy_state.policy if tube.policy_state is not None else None
    if policy is None:
        return []
    return [
        SettingRow(
            key,
            SETTING_TEXTS[key].label,
            value_text(key, visible_setting(key, policy.values[key])),
            policy.origins[key],
        )
        for key in SETTINGS
        if key in policy.values
    ]


def _counts(tube: Tube) -> list[tuple[str, str]]:
    counts = tube.policy_counts
    if counts is None:
        return []
    values = [(label, getattr(counts, name)) for label, name in COUNT_TEXTS]
    return [(label, text.number(value)) for label, value in values if value]
