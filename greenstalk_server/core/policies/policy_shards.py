"""Policies in a queue of several shards: the tubes that a policy names must be on the shard of its own tubes.

A policy with exact names is refused when it is set. The tubes of a pattern are not known then: a put whose copy would
belong to another shard is refused, and a dead letter for another shard is buried. Pure.
"""

from __future__ import annotations

from greenstalk_server.core.policies.policy import Policy, PolicyError
from greenstalk_server.core.tube_shards import TubeShards


def find_split(policy: Policy, tube_shards: TubeShards) -> PolicyError | None:
    """Return the error if *policy* copies or moves jobs of a tube that it names to a tube of another shard."""
    if tube_shards.shards == 1:
        return None
    for key in ("copy_to", "dead_letter"):
        value = policy.settings.get(key, "")
        targets: list[str] = value if isinstance(value, list) else [str(value)]
        for target in filter(None, targets):
            for tube in policy.tubes:
                if target == tube or "*" in tube:
                    continue
                if problem := tube_shards.describe_split(tube.encode(), target.encode()):
                    return PolicyError(policy.name, f"{key} {target}: {problem}", key)
    return None
