"""Random commands of local and remote clients: the broker and a plain model of it agree after each step."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from greenstalk_server.core.tubes.head_watch import Head, head_of
from tests.core.offer_model import OFFER_TIME, OfferModel
from tests.core.test_machine import CLIENTS, PICKS, TUBES, BrokerMachine, WithTubeSets
from tests.support.examples import examples
from tests.support.world import START, Actor

SETTINGS = settings(max_examples=examples(15), stateful_step_count=50, deadline=None)


class OfferMachine(BrokerMachine):
    """The commands of BrokerMachine, and those of remote clients."""

    model: OfferModel

    def __init__(self) -> None:
        super().__init__()
        self.model = OfferModel(START)
        self.published: dict[bytes, Head] = {}

    def pick_remote(self, pick: int) -> tuple[int, Actor]:
        numbers = [number for number in self.idle() if number in self.model.remote]
        number = numbers[pick % len(numbers)]
        return number, self.actors[number]

    def has_idle_remote(self) -> bool:
        """Whether a remote client does not wait, and another client neither."""
        idle = self.idle()
        return len(idle) > 1 and any(number in self.model.remote for number in idle)

    @initialize(watched=st.lists(st.sets(TUBES, min_size=1), min_size=3, max_size=3))
    def connect_first_remotes(self, watched: list[set[str]]) -> None:
        for number, tubes in enumerate(watched):
            self.connect_remote(tubes, number % 2)

    @precondition(lambda self: len(self.actors) < CLIENTS + 3)
    @rule(watched=st.sets(TUBES, min_size=1), front=st.integers(1, 2))
    def connect_remote(self, watched: set[str], front: int) -> None:
        self.connected += 1
        self.model.connect_remote(self.connected)
        self.actors[self.connected] = self.world.remote([], front)
        for tube in sorted(watched):
            self.model.watch(self.connected, tube)
            self.actors[self.connected].watch(tube.encode())

    def reserve_as(self, number: int, timeout: int | None) -> None:
        """Reserve. A front has declined the offer to its client before."""
        if number in self.model.remote:  # the offered job may be deleted
            self.model.decline(number)
            self.actors[number].decline()
        super().reserve_as(number, timeout)

    @precondition(has_idle_remote)
    @rule(pick=PICKS)
    def await_offer(self, pick: int) -> None:
        self.begin_command()
        number, actor = self.pick_remote(pick)
        assert actor.await_offer() == self.model.await_offer(number)

    @precondition(has_idle_remote)
    @rule(tube=TUBES)
    def await_with_all(self, tube: str) -> None:
        """Have each remote client wait, then put a job."""
        while self.has_idle_remote():
            if self.actors[self.pick_remote(0)[0]].offered:
                break
            self.await_offer(0)
        self.put(0, tube, [(5, 0, 5)])

    @rule(pick=PICKS, tube=TUBES)
    def put_and_reserve_elsewhere(self, pick: int, tube: str) -> None:
        """Put jobs around the offered ones."""
        self.put(pick, tube, [(5, 0, 5), (1, 0, 5), (5, 0, 5)])

    @precondition(has_idle_remote)
    @rule(pick=PICKS)
    def claim(self, pick: int) -> None:
        self.begin_command()
        number, actor = self.pick_remote(pick)
        assert actor.claim() == self.model.claim(number)

    @precondition(lambda self: bool(set(self.model.offers) & set(self.idle())))
    @rule(pick=PICKS)
    def claim_offered(self, pick: int) -> None:
        self.begin_command()
        numbers = [number for number in self.model.offers if number in self.idle()]
        number = numbers[pick % len(numbers)]
        assert self.actors[number].claim() == self.model.claim(number)

    @precondition(has_idle_remote)
    @rule(pick=PICKS)
    def decline(self, pick: int) -> None:
        self.begin_command()
        number, actor = self.pick_remote(pick)
        self.model.decline(number)
        actor.decline()

    @precondition(has_idle_remote)
    @rule(pick=PICKS)
    def leave(self, pick: int) -> None:
        number, actor = self.pick_remote(pick)
        self.model.leave(number)
        actor.leave()

    @precondition(has_idle_remote)
    @rule(pick=PICKS, tube=TUBES)
    def unwatch(self, pick: int, tube: str) -> None:
        number, actor = self.pick_remote(pick)
        self.model.unwatch(number, tube)
        actor.unwatch(tube.encode())

    @rule(part=st.sampled_from([3, 1]))
    def advance_to_the_end_of_offers(self, part: int) -> None:
        self.advance_by(OFFER_TIME // part)

    @invariant()
    def offers_agree(self) -> None:
        offers = {number: actor.offered for number, actor in self.actors.items() if actor.offered}
        assert offers == {number: job.id for number, (job, _) in self.model.offers.items()}

    @invariant()
    def published_heads_are_the_heads(self) -> None:
        """Each change of a head that has subscribers is noted."""
        self.published |= self.world.heads()
        for tube in self.world.broker.tubes.values():
            if tube.head_watch is not None:
                assert self.published[tube.name] == head_of(tube, self.world.now)


class TestOffers(OfferMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = SETTINGS


@pytest.mark.pure
class TestOffersWithTubeSets(WithTubeSets, OfferMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(SETTINGS, max_examples=examples(10))
