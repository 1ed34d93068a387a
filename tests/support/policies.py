"""Policies of a World, and jobs that fail under them."""

from __future__ import annotations

from typing import Any

from greenstalk_server.core.jobs.job import SECOND, Job
from greenstalk_server.core.operations import connecting, finishing, policy_changes, putting, reserving
from greenstalk_server.core.policies.policy import PolicySet, parse_policy
from tests.support import invariants
from tests.support.world import World


def set_policies(world: World, **policies: dict[str, Any]) -> None:
    """Replace the policies by *policies*, and let the broker apply them to existing jobs."""
    policy_changes.set_policies(
        world.broker, PolicySet([parse_policy(name, document) for name, document in policies.items()]), world.now
    )
    world.advance(0.01)
    assert not world.broker.is_sweeping


def job_of(world: World, id: int) -> Job:
    return world.broker.jobs[id]


def put(world: World, tube: bytes = b"mail", body: bytes = b"hello", pri: int = 0, delay: int = 0) -> int:
    return putting.put_into(world.broker, tube, pri, delay * SECOND, 60 * SECOND, body, world.now)


def fail(world: World, times: int, tube: bytes = b"mail") -> int:
    """Reserve and release a job of *tube* with delay 0, *times* times; return its id."""
    worker = world.client(watch=[tube])
    id = 0
    for _ in range(times):
        job = reserving.reserve(world.broker, worker.client, world.now)
        assert job is not None
        id = job.id
        assert finishing.release(world.broker, worker.client, id, 0, 0, world.now)
        invariants.check(world.broker)
    connecting.disconnect(world.broker, worker.client, world.now)
    return id
