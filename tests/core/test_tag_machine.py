"""Random commands on jobs with tags: the broker and a plain model of it agree after each step."""

from __future__ import annotations

from typing import TypeAlias

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.operations import ticking
from greenstalk_server.protocol.extended_stats import group_stats
from tests.core.tag_model import TagJob, TagModel, is_held
from tests.core.test_machine import DELAYS, PICKS, PRIS, TUBES, BrokerMachine, WithTubeSets
from tests.support.examples import examples
from tests.support.world import START

Drawn: TypeAlias = tuple[str, int, int, tuple[str, int, str, int, str, str]]
"""The tube, priority, delay and tags of a job: key, its ttl, concurrency key, limit, group, group to wait for."""

SOME = st.sampled_from(["", "", "", "k", "l"])
OFTEN = st.sampled_from(["", "k", "k", "l"])
TAGS = st.tuples(SOME, st.sampled_from([0, 0, 2, 1000]), OFTEN, st.sampled_from([1, 1, 1, 2, 5]), SOME, SOME)
JOBS = st.lists(st.tuples(TUBES, PRIS, DELAYS, TAGS), min_size=2, max_size=6)


class TagMachine(BrokerMachine):
    """The commands of BrokerMachine, and puts with tags."""

    def __init__(self) -> None:
        super().__init__()
        self.model: TagModel = TagModel(START)

    @initialize(jobs=JOBS, watched=st.lists(st.sets(TUBES), min_size=2, max_size=2))
    def put_first(self, jobs: list[Drawn], watched: list[set[str]]) -> None:
        for tubes in watched:
            self.connect()
            for tube in sorted(tubes):
                self.watch(self.connected - 1, tube)
        self.put_tagged(0, jobs)

    @rule(pick=PICKS, jobs=JOBS)
    def put_tagged(self, pick: int, jobs: list[Drawn]) -> None:
        for job in jobs:
            self.put_one(pick, *job)

    @rule(pick=PICKS, jobs=JOBS)
    def put_more(self, pick: int, jobs: list[Drawn]) -> None:
        self.put_tagged(pick, jobs)

    def put_one(self, pick: int, tube: str, pri: int, delay: int, tags: tuple[str, int, str, int, str, str]) -> None:
        self.begin_command()
        number, actor = self.pick_idle(pick)
        key, key_ttl, slot, limit, group, after = tags
        after = "" if after == group else after
        ttr = 5 + self.world.broker.next_id / SECOND
        words = [f"idp:{key}:{key_ttl}"] if key else []
        words += [f"grp:{group}"] if group else []
        words += [f"aft:{after}"] if after else []
        words += [f"con:{slot}:{limit}"] if slot else []
        job = TagJob(self.world.broker.next_id, tube, pri, delay * SECOND, round(ttr * SECOND))
        job.key, job.key_ttl, job.group, job.after = key, key_ttl * SECOND, group, after
        job.slot, job.limit = slot, limit
        expected = self.model.put_tagged(number, job)
        assert actor.put_tagged(" ".join(words), pri, delay, ttr, tube.encode()) == expected

    @invariant()
    def groups_agree(self) -> None:
        model, real = self.model, self.world.broker.groups
        assert {name.decode() for name in real} == model.groups()
        for name in model.groups():
            stats = group_stats(name.encode(), real[name.encode()].counts)
            states = [job.state for job in model.members(name)]
            found = (stats.ready, stats.reserved, stats.delayed, stats.buried)
            assert found == tuple(states.count(state) for state in ("ready", "reserved", "delayed", "buried"))
            assert stats.waiting_jobs == len(model.awaiting(name))

    @invariant()
    def no_slot_is_left_unused(self) -> None:
        """A client that asks now gets a job whose key has a free slot, if its tube has one."""
        for job in self.model.jobs.values():
            if job.state == "ready" and self.model.has_slot(job):
                assert self.world.broker.tubes[job.tube.encode()].ready.first() is not None

    def teardown(self) -> None:
        """Disconnect all clients and end all delays: only jobs that wait for a group are still delayed."""
        if self.model.is_abandoned:
            return
        for number, actor in list(self.actors.items()):
            self.model.cancel_wait(number)
            actor.cancel_wait()
        for number, actor in self.actors.items():
            self.model.disconnect(number)
            actor.disconnect()
        self.world.advance(2000)
        self.model.advance_to(self.world.now)
        for job in self.model.jobs.values():
            assert self.world.state(job.id) == ("delayed" if is_held(job) else job.state)
        assert ticking.tick(self.world.broker, self.world.now) is None


pytestmark = pytest.mark.timeout(600)  # CI runs the pure build beside all other tests, with little CPU

SETTINGS = settings(
    max_examples=examples(30),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much],
)


class TestTags(TagMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = SETTINGS


@pytest.mark.pure
class TestTagsWithTubeSets(WithTubeSets, TagMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(SETTINGS, max_examples=examples(10))
