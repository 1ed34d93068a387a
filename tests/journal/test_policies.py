"""Policies set at run time: a restart keeps them, and logs those that have no effect."""

from __future__ import annotations

import os

import pytest

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.operations import policy_changes
from greenstalk_server.core.policies.policy import parse_policy
from greenstalk_server.journal import startup
from greenstalk_server.journal.writer import JournalWriter
from tests.journal.disk import Disk
from tests.journal.workload import SMALL_SEGMENT, recovered
from tests.support.world import START, make_broker


def write(broker: Broker) -> None:
    """Write what *broker* has recorded."""
    assert isinstance(broker.journal, JournalWriter)
    startup.write_out(broker.journal)


def test_restart_keeps_the_policies_that_were_set_at_run_time() -> None:
    disk = Disk({})
    broker = recovered(disk, START)
    for name in ("mail", "sms", "fax"):
        policy_changes.set_policy(broker, parse_policy(name, {"tubes": [name], "max_jobs": 1}), START)
    policy_changes.set_policy(
        broker, parse_policy("sms", {"tubes": ["sms", "sms.*"], "max_jobs": 2, "expire_after": "1d"}), START
    )
    assert policy_changes.remove_policy(broker, "fax", START)
    write(broker)
    again = recovered(disk, START)
    assert again.policies.policies == broker.policies.policies
    assert list(again.policies.policies) == ["mail", "sms"]


def test_restart_logs_the_policies_that_have_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk({})
    broker = recovered(disk, START)
    policy_changes.set_policy(broker, parse_policy("mail", {"tubes": ["mail"], "max_jobs": 2}), START)
    broker.journal.policy("later", b'{"tubes":["x"],"max_colour":3}')
    write(broker)
    broker = make_broker()
    policy_changes.set_file_policies(broker, [parse_policy("mail", {"tubes": ["mail"], "max_jobs": 1})], START)
    journal = broker.journal = JournalWriter(disk, SMALL_SEGMENT, 0, os.urandom)
    startup.recover(disk, broker, journal, START, is_strict=True)
    assert "the policy mail, set at run time, has no effect: the configuration file defines it too" in caplog.text
    assert "journal: the policy later has no effect: policy later: unknown key max_colour" in caplog.text
    effective = broker.policies.effective(b"mail")
    assert effective is not None and effective.max_jobs == 1
    assert list(broker.policy_store.documents) == ["mail", "later"]
