"""Policies in a queue of several shards: the tubes that a policy names must be on the shard of its own tubes.

A job and its copies are put together, and a full tube is asked whether it has room for the jobs that another one pushes
out. Neither is possible across shards. So such a policy with exact names is refused when it is set. The tubes of a
pattern are not known then: a put whose copy would belong to another shard is refused, and so is one into a full tube
that would push a job out to another shard. Other dead letters move to other shards. Pure.
"""

from __future__ import annotations

from typing import Final

from greenstalk_server.core.policies.policy import Policy, PolicyError
from greenstalk_server.core.tube_shards import TubeShards

DEAD_LETTER_OLDEST: Final = "dead-letter-oldest"


def find_split(policy: Policy, tube_shards: TubeShards) -> PolicyError | None:
    """Return the error if *policy* copies jobs of a tube that it names, or pushes them out, to another shard."""
    if tube_shards.shards == 1:
        return None
    overflows = policy.settings.get("overflow") == DEAD_LETTER_OLDEST
    for key in ("copy_to", "dead_letter") if overflows else ("copy_to",):
        value = policy.settings.get(key, "")
        targets: list[str] = value if isinstance(value, list) else [str(value)]
        for target in filter(None, targets):
            for tube in policy.tubes:
                if target == tube or "*" in tube:
                    continue
                if problem := tube_shards.describe_split(tube.encode(), target.encode()):
                    return PolicyError(policy.name, f"{key} {target}: {problem}", key)
    return None
