"""The policies of a server by their source: the configuration file, or requests at run time.

The journal keeps those that were set at run time. A name belongs to one source. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from greenstalk_server.core.policies.policy import MAX_POLICIES, Policy, PolicyError, PolicySet, parse_policy
from greenstalk_server.core.policies.policy_shards import find_split
from greenstalk_server.core.tube_shards import TubeShards


class PolicyStore:
    """All policies.

    file_policies       policies of the configuration file by name.
    runtime_policies    policies set at run time by name. A policy of the same name in the file overrides it.
    documents           JSON documents of the policies set at run time, as the journal keeps them.
    unreadable          names of documents that this version cannot parse, with the reason. They have no effect and are
                        kept until they are replaced or removed.
    """

    def __init__(self, tube_shards: TubeShards) -> None:
        self._tube_shards: TubeShards = tube_shards
        self.file_policies: dict[str, Policy] = {}
        self.runtime_policies: dict[str, Policy] = {}
        self.documents: dict[str, bytes] = {}
        self.unreadable: dict[str, str] = {}

    def load(self, documents: Mapping[str, bytes]) -> None:
        """Take over the *documents* that a journal has recovered."""
        for name, document in documents.items():
            self.documents[name] = document
            try:
                self.runtime_policies[name] = parse_policy(name, json.loads(document))
            except (ValueError, RecursionError) as error:  # PolicyError, or no JSON
                self.unreadable[name] = str(error)

    def replace_file_policies(self, policies: Iterable[Policy]) -> list[str]:
        """Replace the policies of the file; return the names of the run-time policies that have no effect now."""
        self.file_policies = {policy.name: policy for policy in policies}
        return self.overridden()

    def overridden(self) -> list[str]:
        """Return the names of the run-time policies that have no effect, because the file has one of the same name."""
        return [name for name in self.documents if name in self.file_policies]

    def check(self, policy: Policy) -> None:
        """Raise PolicyError if *policy* cannot be set at run time."""
        if policy.name in self.file_policies:
            raise PolicyError(policy.name, "is set in the configuration file; change it there, then send SIGHUP")
        if policy.name not in self.documents and len(self.file_policies) + len(self.documents) >= MAX_POLICIES:
            raise PolicyError(policy.name, f"there are {MAX_POLICIES} policies already; remove one first")
        if (split := find_split(policy, self._tube_shards)) is not None:
            raise split

    def set(self, policy: Policy) -> bytes:
        """Add or replace a policy at run time; return its document. Raise PolicyError as `check` does."""
        self.check(policy)
        document = json.dumps(policy.document(), separators=(",", ":")).encode()
        self.documents[policy.name] = document
        self.runtime_policies[policy.name] = policy
        self.unreadable.pop(policy.name, None)
        return document

    def remove(self, name: str) -> bool:
        """Remove a policy set at run time; return False if there is none. Raise PolicyError if the file has it."""
        if name in self.file_policies and name not in self.documents:
            raise PolicyError(name, "is set in the configuration file; remove it there, then send SIGHUP")
        self.runtime_policies.pop(name, None)
        self.unreadable.pop(name, None)
        return self.documents.pop(name, None) is not None

    def combined(self) -> PolicySet:
        """Return all policies that have an effect."""
        return PolicySet({**self.runtime_policies, **self.file_policies}.values())
