"""Policies of the configuration file and of run time in one broker: names, precedence, the journal's documents."""

from __future__ import annotations

import json
from typing import Any

import pytest

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.journal import NullJournal
from greenstalk_server.core.operations import policy_changes
from greenstalk_server.core.policies.policy import MAX_POLICIES, Policy, PolicyError, parse_policy
from greenstalk_server.core.policies.policy_store import PolicyStore
from greenstalk_server.core.tube_shards import TubeShards
from tests.support.world import World

NOW = 1_800_000_000_000_000_000


class Documents(NullJournal):
    """A journal that keeps the documents of policies, in the order in which they are recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[tuple[str, bytes]] = []

    def policy(self, name: str, document: bytes) -> None:
        self.recorded.append((name, document))


@pytest.fixture
def journal() -> Documents:
    return Documents()


@pytest.fixture
def broker(journal: Documents) -> Broker:
    broker = World().broker
    broker.journal = journal
    return broker


def policy(name: str, *tubes: str, **keys: Any) -> Policy:
    return parse_policy(name, {"tubes": list(tubes), **keys})


def max_jobs(broker: Broker, tube: bytes) -> int:
    """The cap of *tube* by the policies in force; 0 if there is none."""
    found = broker.policies.effective(tube)
    return found.max_jobs if found is not None else 0


def test_policies_of_both_sources_are_in_force(broker: Broker) -> None:
    assert policy_changes.set_file_policies(broker, [policy("mail", "mail", max_jobs=1)], NOW) == []
    policy_changes.set_policy(broker, policy("sms", "sms", max_jobs=2), NOW)
    assert (max_jobs(broker, b"mail"), max_jobs(broker, b"sms"), max_jobs(broker, b"fax")) == (1, 2, 0)
    store = broker.policy_store
    assert (list(store.file_policies), list(store.runtime_policies)) == (["mail"], ["sms"])


def test_change_at_run_time_is_recorded_and_applied(broker: Broker, journal: Documents) -> None:
    first, second = policy("sms", "sms", max_jobs=2), policy("sms", "sms", "fax", max_jobs=3)
    policy_changes.set_policy(broker, first, NOW)
    policy_changes.set_policy(broker, second, NOW)
    assert (max_jobs(broker, b"sms"), max_jobs(broker, b"fax")) == (3, 3)
    assert policy_changes.remove_policy(broker, "sms", NOW)
    assert not policy_changes.remove_policy(broker, "sms", NOW)
    assert max_jobs(broker, b"sms") == 0
    assert [(name, json.loads(text) if text else None) for name, text in journal.recorded] == [
        ("sms", first.document()),
        ("sms", second.document()),
        ("sms", None),
    ]
    assert broker.policy_store.documents == {}


def test_policy_of_the_file_cannot_be_changed_at_run_time(broker: Broker, journal: Documents) -> None:
    policy_changes.set_file_policies(broker, [policy("mail", "mail", max_jobs=1)], NOW)
    with pytest.raises(PolicyError, match=r"^policy mail: is set in the configuration file; change it there, then"):
        policy_changes.set_policy(broker, policy("mail", "mail", max_jobs=2), NOW)
    with pytest.raises(PolicyError, match=r"^policy mail: is set in the configuration file; remove it there, then"):
        policy_changes.remove_policy(broker, "mail", NOW)
    assert max_jobs(broker, b"mail") == 1
    assert journal.recorded == []


def test_new_file_replaces_the_policies_of_the_old_one(broker: Broker) -> None:
    policy_changes.set_file_policies(
        broker, [policy("mail", "mail", max_jobs=1), policy("sms", "sms", max_jobs=1)], NOW
    )
    policy_changes.set_file_policies(broker, [policy("sms", "sms", max_jobs=2)], NOW)
    assert (max_jobs(broker, b"mail"), max_jobs(broker, b"sms")) == (0, 2)


def test_file_overrides_a_policy_of_the_same_name_that_was_set_at_run_time(broker: Broker, journal: Documents) -> None:
    policy_changes.set_policy(broker, policy("mail", "mail", max_jobs=2), NOW)
    assert policy_changes.set_file_policies(broker, [policy("mail", "mail", max_jobs=1)], NOW) == ["mail"]
    assert max_jobs(broker, b"mail") == 1
    assert len(journal.recorded) == 1
    assert policy_changes.set_file_policies(broker, [], NOW) == []
    assert max_jobs(broker, b"mail") == 2


def test_documents_of_the_journal_are_taken_over(broker: Broker) -> None:
    policy_changes.set_file_policies(broker, [policy("mail", "mail", max_jobs=1)], NOW)
    documents = {
        "mail": b'{"tubes":["mail"],"max_jobs":9}',
        "sms": b'{"tubes":["sms"],"max_jobs":2}',
        "later": b'{"tubes":["x"],"max_colour":3}',
        "broken": b"{",
        "deep": b"[" * 100_000,
    }
    policy_changes.load_policies(broker, documents, {})
    store = broker.policy_store
    assert (max_jobs(broker, b"mail"), max_jobs(broker, b"sms"), max_jobs(broker, b"x")) == (1, 2, 0)
    assert store.unreadable["later"].startswith("policy later: unknown key max_colour: did you mean ")
    assert list(store.unreadable) == ["later", "broken", "deep"]
    assert store.overridden() == ["mail"]
    assert store.documents == documents
    policy_changes.set_policy(broker, policy("later", "x", max_jobs=3), NOW)
    assert policy_changes.remove_policy(broker, "broken", NOW)
    assert list(store.unreadable) == ["deep"]
    assert max_jobs(broker, b"x") == 3


def test_no_policy_is_added_at_run_time_to_ten_thousand() -> None:
    store = PolicyStore(TubeShards())
    store.replace_file_policies([policy("file", "a")])
    for number in range(MAX_POLICIES - 1):
        store.set(policy(f"p{number}", "a"))
    with pytest.raises(PolicyError, match=r"^policy more: there are 10000 policies already; remove one first$"):
        store.set(policy("more", "a"))
    store.set(policy("p0", "b"))
