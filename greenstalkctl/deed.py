"""One thing done to many jobs: to those with given ids, or to a number of a tube, one job at a time.

An interrupt stops it between two jobs; what was done until then is said in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from greenstalkctl.exits import Nothing
from greenstalkctl.interrupt import Interrupt
from greenstalkctl.output import Output
from greenstalkctl.server import Server
from greenstalkctl.text import plural


@dataclass(frozen=True, slots=True)
class Deed:
    """What is done to a job; its words are for the report."""

    done: str
    """As in "buried 3 jobs"; the key in JSON too."""

    doing: str
    why_not: str
    act: Callable[[Server, int], bool]
    """Do it to the job with that id, which leaves its state; False if that cannot be done."""


@dataclass(frozen=True, slots=True)
class Share:
    """So many jobs at most of a tube that are in a state."""

    tube: str
    state: str
    limit: int


def do_ids(out: Output, server: Server, deed: Deed, ids: Sequence[int]) -> None:
    """Do it to the jobs with *ids*; raise Nothing, naming them, if some could not be had."""
    done, missed = list[int](), list[int]()
    for job_id in dict.fromkeys(ids):
        (done if deed.act(server, job_id) else missed).append(job_id)
    out.show({deed.done: len(done), "missed": missed}, *([f"{deed.done} {plural(len(done))}"] if done else []))
    if missed:
        raise Nothing(f"not {deed.done}, since {deed.why_not}: {', '.join(map(str, missed))}")


def do_shares(out: Output, server: Server, deed: Deed, shares: Sequence[Share]) -> None:
    """Do it to each share; raise Nothing if there was no job at all."""
    done = 0
    with Interrupt() as interrupt:
        with out.progress(deed.doing, sum(share.limit for share in shares)) as advance:
            for _ in _each(server, deed, shares):
                done += 1
                advance()
                if interrupt:
                    break
        report(out, deed.done, done)
        interrupt.check("interrupted; the rest of the jobs stay as they are")


def report(out: Output, word: str, done: int) -> None:
    """Say how many jobs; raise Nothing after that if there was none."""
    out.show({word: done}, *([f"{word} {plural(done)}"] if done else []))
    if not done:
        raise Nothing(f"nothing {word}: there is no such job")


def _each(server: Server, deed: Deed, shares: Iterable[Share]) -> Iterable[int]:
    """Do it, and yield the id of each job to which it was done. Bodies travel with each look at what is next."""
    for share in shares:
        left = share.limit
        while left and (job := server.first(share.tube, share.state)) is not None:
            if deed.act(server, job.id):  # else somebody else had it first
                left -= 1
                yield job.id
