"""The plain model of the broker, with remote clients. It follows docs/link-protocol.md."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tests.core.model import SECOND, Event, Model, ModelClient, ModelJob

OFFER_TIME = SECOND // 20


class OfferModel(Model):
    """The state of a queue, some of whose clients are remote.

    remote  numbers of the remote clients.
    takers  numbers of those whose last wait was for an offer.
    offers  the job that is offered to each of them, and the time at which the offer lapses, by their number.
    """

    def __init__(self, now: int) -> None:
        super().__init__(now)
        self.remote: set[int] = set()
        self.takers: set[int] = set()
        self.offers: dict[int, tuple[ModelJob, int]] = {}

    def tubes(self) -> set[str]:
        return super().tubes() - {""}

    def runnable(self, tube: str) -> list[ModelJob]:
        offered = [job for job, _ in self.offers.values()]
        return [job for job in self.ready(tube) if job not in offered]

    def connect_remote(self, number: int) -> None:
        self.connect(number)
        self.remote.add(number)
        self.leave(number)
        self.unwatch(number, "default")

    def disconnect(self, number: int) -> None:
        self.cancel_wait(number)
        self.decline(number)
        super().disconnect(number)
        self.remote.discard(number)

    def leave(self, number: int) -> None:
        self.use(number, "")

    def unwatch(self, number: int, tube: str) -> None:
        client = self.clients[number]
        if tube in client.watched:
            client.watched.remove(tube)
            client.weights.pop(tube, None)
        self._drop_unused_tubes()

    def await_offer(self, number: int) -> int | str:
        self.decline(number)
        job = self.next_for(self.clients[number])
        if job is None:
            outcome = self.reserve(number, None)
            self.takers.add(number)
            return outcome
        self.offers[number] = job, self.now + OFFER_TIME
        return "OFFERED"

    def reserve(self, number: int, timeout: int | None) -> int | str:
        self.takers.discard(number)
        return super().reserve(number, timeout)

    def claim(self, number: int) -> int | str:
        self.offers.pop(number, None)
        outcome = self.reserve(number, 0)
        self._serve_waiting_clients()
        return outcome

    def decline(self, number: int) -> None:
        if self.offers.pop(number, None) is not None:
            self._serve_waiting_clients()

    def events(self) -> Iterator[Event]:
        yield from super().events()
        for number, (_, until) in self.offers.items():
            yield Event(until, ("client", str(number)), partial(self.decline, number))

    def _end_offer(self, job: ModelJob) -> None:
        """End the offer of *job*, if there is one, since the job leaves its place."""
        self.offers = {number: offer for number, offer in self.offers.items() if offer[0] is not job}

    def _give(self, client: ModelClient, job: ModelJob) -> None:
        self._end_offer(job)
        super()._give(client, job)

    def _delete(self, job: ModelJob) -> None:
        self._end_offer(job)
        super()._delete(job)

    def _bury(self, job: ModelJob, by: int) -> None:
        self._end_offer(job)
        super()._bury(job, by)

    def _make_ready(self, job: ModelJob) -> None:
        self._end_offer(job)
        super()._make_ready(job)

    def _make_ready_or_delayed(self, job: ModelJob) -> None:
        self._end_offer(job)
        super()._make_ready_or_delayed(job)

    def revert(self, before: ModelJob, after: ModelJob) -> bool:
        is_done = super().revert(before, after)
        if is_done and self.jobs[after.id].state != "ready":
            self._end_offer(self.jobs[after.id])
        return is_done

    def _serve_waiting_clients(self) -> None:
        for number in list(self.waiting):
            client = self.clients[number]
            job = self.next_for(client)
            if job is not None:
                self.waiting.remove(number)
                if number in self.takers:
                    self.offers[number] = job, self.now + OFFER_TIME
                    client.ended.append("OFFERED")
                else:
                    self._give(client, job)
                    client.ended.append(job.id)
