"""One thing done to many jobs: to those with given ids, or to a number of a tube.

By the protocol they go one at a time, and an interrupt stops it between two jobs; by the API the server does it by
itself, and an interrupt cancels that. What was done until then is said in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from greenstalkctl.api import Api, Change
from greenstalkctl.exits import Failure, Nothing
from greenstalkctl.interrupt import Interrupt
from greenstalkctl.output import Output
from greenstalkctl.queue import Queue
from greenstalkctl.server import Server
from greenstalkctl.task import carry_out, run_counted
from greenstalkctl.text import plural


@dataclass(frozen=True, slots=True)
class Deed:
    """What is done to a job; its words are for the report."""

    action: str
    """As the API has it."""

    done: str
    """As in "buried 3 jobs"; the key in JSON too."""

    doing: str
    why_not: str
    act: Callable[[Queue, int], bool]
    """Do it to the job with that id, which leaves its state; False if that cannot be done."""


@dataclass(frozen=True, slots=True)
class Share:
    """Jobs of a tube that are in a state: as many as `there_are`, or `count` at most.

    counted         id of the dry run at the API that has counted them, if one has: then it is those and no newer ones.
    """

    tube: str
    state: str
    there_are: int
    count: int | None = None
    counted: str | None = None

    @property
    def limit(self) -> int:
        return self.there_are if self.count is None else min(self.count, self.there_are)


def do_ids(out: Output, queue: Queue, deed: Deed, ids: Sequence[int]) -> None:
    """Do it to the jobs with *ids*; raise Nothing, naming them, if some could not be had."""
    done, missed = list[int](), list[int]()
    for job_id in dict.fromkeys(ids):
        (done if deed.act(queue, job_id) else missed).append(job_id)
    out.show({deed.done: len(done), "missed": missed}, *([f"{deed.done} {plural(len(done))}"] if done else []))
    if missed:
        raise Nothing(f"not {deed.done}, since {deed.why_not}: {', '.join(map(str, missed))}")


def do_shares(out: Output, queue: Server | Api, deed: Deed, shares: Sequence[Share]) -> None:
    """Do it to each share; raise Nothing if there was no job at all."""
    done = 0
    with Interrupt() as interrupt:
        try:
            with out.progress(deed.doing, sum(share.limit for share in shares)) as advance:
                for share in filter(lambda share: share.limit, shares):
                    for count in _steps(queue, deed, share, interrupt):
                        done += count
                        advance(count)
        except Failure:
            if done:
                report(out, deed.done, done)
            raise
        report(out, deed.done, done)
        interrupt.check("interrupted; the rest of the jobs stay as they are")


def report(out: Output, word: str, done: int) -> None:
    """Say how many jobs; raise Nothing after that if there was none."""
    out.show({word: done}, *([f"{word} {plural(done)}"] if done else []))
    if not done:
        raise Nothing(f"nothing {word}: there is no such job")


def _steps(queue: Server | Api, deed: Deed, share: Share, interrupt: Interrupt) -> Iterator[int]:
    """Do it until it is done or interrupted; yield how many jobs more it was done to, now and then."""
    if isinstance(queue, Api):
        if share.counted is not None:
            return run_counted(queue, share.counted, interrupt)
        count = share.limit if share.count is not None else None
        return carry_out(queue, Change(deed.action, share.tube, share.state), count, interrupt)
    return _one_by_one(queue, deed, share, interrupt)


def _one_by_one(server: Server, deed: Deed, share: Share, interrupt: Interrupt) -> Iterator[int]:
    """By the protocol. Bodies travel with each look at what is next."""
    left = share.limit
    while left and not interrupt and (job := server.first(share.tube, share.state)) is not None:
        if deed.act(server, job.id):  # else somebody else had it first
            left -= 1
            yield 1
