"""Compares snapshots of a tube and of the server with their thresholds. Pure: no clock, no broker.

A function returns a Measure for each condition whose value is at least LEAST_RATIO times its threshold. The tracker
decides which of them are active.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from greenstalk_server.config.tables.thresholds import Thresholds
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.limits import LIMIT_DESCRIPTIONS
from greenstalk_server.web.features.conditions.trends import Growth, time_until
from greenstalk_server.web.framework import text

LEAST_RATIO: Final = 0.8
"""Smallest value, as a share of the threshold, for which there is a measure: an active condition ends when its value
falls below this share."""

Severity = Literal["critical", "failure", "warning"]

CRITICAL: Final = "critical"
FAILURE: Final = "failure"
WARNING: Final = "warning"
SEVERITIES: Final = (CRITICAL, FAILURE, WARNING)
"""The worst first. Critical: puts are refused, or soon will be. Failure: jobs have failed, and nothing happens to them
until somebody acts. Warning: jobs or workers may need an operator."""

WHOLE_WINDOW: Final = "in the last 15 minutes"

FULL_WITHIN: Final = 600 * SECOND
"""A limit that is reached within this time is critical."""

HOUR_TEXT: Final = text.duration(3600)

MAX_MOVE_TIME: Final = 60 * SECOND
"""Nanoseconds after which a move to another shard that has not ended is a condition: usually it takes 1 ms."""

_LEAST_KNOWN: Final = 60 * SECOND
"""Nanoseconds after the start until the number of new burials is shown."""

NO_STANDBY_DELAY: Final = 60 * SECOND
"""Nanoseconds without a standby until a condition begins: after a takeover, the old leader needs time to rejoin."""


class Kind(NamedTuple):
    """A kind of condition.

    label           a few words for a badge.
    rest            continues "3 more tubes ...", for the tubes that a list leaves out; empty for the server.
    ends_at_once    whether the condition ends without hysteresis: its value is a fact, not a number, or a delay
                    precedes its next beginning.
    """

    name: str
    label: str
    rest: str = ""
    ends_at_once: bool = False


JOURNAL: Final = Kind("journal", "journal fails", ends_at_once=True)
SHARD: Final = Kind("shard", "shard down", ends_at_once=True)
MOVING: Final = Kind("moving", "moves wait", ends_at_once=True)
DISK: Final = Kind("disk", "disk space")
MEMORY: Final = Kind("memory", "memory")
LIMIT: Final = Kind("limit", "near limit", "are near a limit")
STANDBY: Final = Kind("standby", "no standby")
REFUSED: Final = Kind("refused", "refused")
NO_CONSUMERS: Final = Kind("no_consumers", "no workers", "have ready jobs and no workers", ends_at_once=True)
OLDEST_READY: Final = Kind("oldest_ready", "jobs wait", "have jobs that have waited too long")
HELD_BACK: Final = Kind("held_back", "held back", "are held back by a policy", ends_at_once=True)
BURIED: Final = Kind("buried", "buried", "have buried jobs", ends_at_once=True)
WAITING_DEAD_LETTERS: Final = Kind("waiting_dead_letters", "dead letters", "have dead letters", ends_at_once=True)
TIMEOUTS: Final = Kind("timeouts", "timeouts", "have many timeouts")
BURIED_GROWTH: Final = Kind("buried_growth", "buried rising", "have more buried jobs")
FAILED_ATTEMPTS: Final = Kind("failed_attempts", "attempts fail", "have jobs whose attempts fail")
DEAD_LETTERS: Final = Kind("dead_letters", "new dead letters", "have new dead letters")
BACKLOG_GROWTH: Final = Kind("backlog_growth", "growing", "have a growing backlog")
HELD_JOB: Final = Kind("held_job", "held too long", "have jobs that a worker has held too long")
PAUSED: Final = Kind("paused", "paused", "have been paused too long", ends_at_once=True)

KINDS: Final = (
    JOURNAL, SHARD, DISK, MEMORY, LIMIT, STANDBY, MOVING, REFUSED, BURIED, WAITING_DEAD_LETTERS, BURIED_GROWTH,
    NO_CONSUMERS, OLDEST_READY, HELD_BACK, TIMEOUTS, FAILED_ATTEMPTS, DEAD_LETTERS, BACKLOG_GROWTH, HELD_JOB, PAUSED,
)  # fmt: skip
"""All kinds, the worst first."""

_RANKS: Final = {kind.name: number for number, kind in enumerate(KINDS)}


class Link(NamedTuple):
    """A page about the jobs or workers concerned: its endpoint and the arguments of its URL."""

    endpoint: str
    args: dict[str, str]


ConditionKey = tuple[str, bytes, str]
"""Kind, tube and detail of a condition."""


class Measure(NamedTuple):
    """A value that is near its threshold or above.

    tube        empty for the server.
    detail      distinguishes several conditions of one kind and tube: the name of a limit.
    ratio       the value divided by the threshold, at least 1 for a fact; the condition holds from 1 on.
    delay       nanoseconds for which the condition must hold before it is active.
    value, threshold    in the unit of the kind: seconds, jobs, bytes or a share.
    sentence    describes the condition, with its number.
    jobs        number of jobs concerned; 0 if the condition is not about jobs.
    age         nanoseconds since the condition began, if the state of the tube shows that time; else 0.
    """

    kind: Kind
    severity: Severity
    tube: bytes
    detail: str
    ratio: float
    delay: int
    value: float
    threshold: float
    sentence: str
    link: Link
    jobs: int = 0
    age: int = 0

    @property
    def key(self) -> ConditionKey:
        return self.kind.name, self.tube, self.detail


class ActiveCondition(NamedTuple):
    """An active condition; *since*: when its value reached the threshold, nanoseconds."""

    measure: Measure
    since: int


Rank = tuple[int, int, int, int, bytes, str]


def rank(condition: ActiveCondition) -> Rank:
    """Return a sort key by which the worst condition comes first.

    Within a severity, conditions of the server are first. Conditions of tubes are ordered by the number of jobs
    concerned, and then by their age.
    """
    measure, since = condition
    severity, kind = rank_in_tube(condition)
    place = len(KINDS) if measure.tube else kind
    return severity, place, -measure.jobs, since, measure.tube, measure.detail


def rank_in_tube(condition: ActiveCondition) -> tuple[int, int]:
    """Return a sort key by which the worst of the conditions of one tube comes first."""
    return SEVERITIES.index(condition.measure.severity), _RANKS[condition.measure.kind.name]


class TubeTrend(NamedTuple):
    """The values of a tube whose growth is measured."""

    ready: int = 0
    jobs: int = 0
    bytes: int = 0
    buried: int = 0
    timeouts: int = 0
    reserves: int = 0
    dead_letters: int = 0
    buries: int = 0
    releases: int = 0
    deletes: int = 0


class LongestReservation(NamedTuple):
    """The job of a tube that a worker has held for longest.

    time        nanoseconds for which the worker has held it.
    worker      number of the worker's connection.
    workers     number of workers that have held a job of the tube for longer than the threshold.
    """

    id: int
    time: int
    worker: int
    workers: int


class TubeSample(NamedTuple):
    """A snapshot of one tube. Times are nanoseconds.

    reserved        number of its jobs that are reserved.
    oldest          for how long the oldest ready job has been ready; 0 without ready jobs.
    paused          time since the start of the pause; 0 if the tube is not paused.
    pause_left      time until the pause ends.
    held_back       why a policy holds back the ready jobs: `max_reserved`, `rate`, or empty.
    limits          its limits that refuse puts: name of the option or setting, amount used, maximum.
    dead_letter     the tube to which its dead letters go; empty if there is none.
    is_dead_letter_tube     whether it is the dead-letter tube of others.
    oldest_buried   time since the first of its buried jobs was buried; 0 without buried jobs.
    buries          growth of the number of burials in the last hour; None if unknown.
    """

    name: bytes
    now: TubeTrend
    growth: Growth
    watching: int
    oldest: int
    paused: int
    pause_left: int
    held_back: str
    limits: tuple[tuple[str, int, int], ...]
    dead_letter: bytes
    held: LongestReservation | None
    reserved: int = 0
    is_dead_letter_tube: bool = False
    oldest_buried: int = 0
    buries: Growth | None = None


class ServerSample(NamedTuple):
    """A snapshot of the server. Times are nanoseconds.

    journal_error   why the journal cannot be written; empty if it can.
    is_disk_full    the disk had no room for another file of the journal.
    disk_free       bytes that are free on the disk of the journal; None if unknown.
    disk_growth     growth of `disk_free` in the last hour, in bytes; negative if the disk fills.
    memory          bytes that jobs use, and the memory limit; None without a limit.
    machine_memory  bytes of the machine's memory in use, and in all; None if unknown.
    is_memory_full  puts are refused because of the memory limit.
    limits          the limits of the server: name of the option, name of the unit, amount used, its growth, maximum.
    refused         requests that were refused within the window, by name of the limit.
    silent_shards   shards of the queue whose processes do not answer.
    moves           jobs that are moving to other shards: the shard, their number, and for how long the first of them.
    standby         lag of the most recent standby, -1 without a standby; None if the journal is not shared.
    """

    journal_error: str = ""
    is_disk_full: bool = False
    disk_free: int | None = None
    disk_growth: Growth = Growth(0, (0,))
    memory: tuple[int, int] | None = None
    memory_growth: Growth = Growth(0, (0,))
    machine_memory: tuple[int, int] | None = None
    is_memory_full: bool = False
    limits: tuple[tuple[str, str, int, Growth, int], ...] = ()
    refused: Mapping[str, int] = MappingProxyType({})
    silent_shards: tuple[int, ...] = ()
    moves: tuple[tuple[int, int, int], ...] = ()
    standby: int | None = None


# Tubes


def tube_measures(sample: TubeSample, thresholds: Thresholds) -> list[Measure]:
    """Return the measures of *sample*."""
    found = list(_tube_limits(sample, thresholds)) if sample.limits else []
    if sample.is_dead_letter_tube:
        found += _waiting_dead_letters(sample, thresholds)
    else:
        if sample.now.buried:
            found += _buried(sample, thresholds)
        if sample.now.ready:
            found += _waiting(sample, thresholds)
    if not any(sample.growth.values) and sample.held is None:
        return found
    growth = TubeTrend(*sample.growth.values)
    tube = _TubeMeasures(sample.name)
    if _is_near(growth.timeouts, thresholds.timeouts):
        found += _timeouts(tube, growth, thresholds)
    failed = growth.releases + growth.timeouts + growth.buries
    if _is_near(failed, thresholds.failed_attempts):
        found += _failed_attempts(tube, failed, growth, thresholds)
    if _is_near(growth.dead_letters, thresholds.dead_letters):
        name = _quoted(sample.name)
        became = "became a dead letter" if growth.dead_letters == 1 else "became dead letters"
        where = f", which {_are(growth.dead_letters)} in {_quoted(sample.dead_letter)}"
        found.append(
            tube.measure(
                DEAD_LETTERS,
                growth.dead_letters,
                thresholds.dead_letters,
                growth.dead_letters,
                f"{text.counted(growth.dead_letters, 'job')} of {name} {became} {WHOLE_WINDOW}"
                f"{where if sample.dead_letter else ''}.",
            )._replace(link=Link("tube_errors", {"tube": (sample.dead_letter or sample.name).decode()}))
        )
    if sample.held is not None and _is_near(sample.held.time, thresholds.held_job):
        found.append(_held_job(tube, sample.held, thresholds))
    return found


def _buried(sample: TubeSample, thresholds: Thresholds) -> Iterator[Measure]:
    """Yield the measures of a tube with buried jobs."""
    tube, buried = _TubeMeasures(sample.name), sample.now.buried
    name, link = _quoted(sample.name), Link("tube_errors", {"tube": sample.name.decode(), "state": "buried"})
    if _is_near(buried, thresholds.buried):
        rest = _since(sample.oldest_buried, buried) + _new_burials(sample.buries)
        verb = "has been" if buried == 1 and sample.oldest_buried >= SECOND else _are(buried)
        sentence = f"{text.counted(buried, 'job')} of {name} {verb} buried{rest}."
        measure = tube.failure(BURIED, buried, thresholds.buried, sentence)
        yield measure._replace(link=link, age=sample.oldest_buried)
    grown = TubeTrend(*sample.growth.values).buried
    if _is_near(grown, thresholds.buried_growth):
        sentence = f"{text.counted(grown, 'more job')} of {name} {_are(grown)} buried than 15 minutes ago:"
        sentence += f" {text.number(buried)} in all."
        yield tube.failure(BURIED_GROWTH, grown, thresholds.buried_growth, sentence)._replace(link=link)


def _waiting_dead_letters(sample: TubeSample, thresholds: Thresholds) -> Iterator[Measure]:
    """Yield the measure of a dead-letter tube. The jobs that wait are all those that no worker has reserved."""
    waiting = sample.now.jobs - sample.reserved
    if _is_near(waiting, thresholds.waiting_dead_letters):
        wait = "waits" if waiting == 1 else "wait"
        age = max(sample.oldest, sample.oldest_buried)
        sentence = f"{text.counted(waiting, 'dead letter')} {wait} in {_quoted(sample.name)}{_since(age, waiting)}."
        tube = _TubeMeasures(sample.name)
        measure = tube.failure(WAITING_DEAD_LETTERS, waiting, thresholds.waiting_dead_letters, sentence)
        yield measure._replace(link=Link("tube_errors", {"tube": sample.name.decode()}), age=age)


def _since(age: int, jobs: int) -> str:
    """Return for how long the oldest of the *jobs* has waited, as a part of a sentence; empty if that is unknown."""
    if age < SECOND:
        return ""
    return f", the oldest for {_time(age)}" if jobs > 1 else f" for {_time(age)}"


def _new_burials(growth: Growth | None) -> str:
    """Return the number of burials in the last hour, as a part of a sentence; empty if that is unknown."""
    if growth is None or growth.time < _LEAST_KNOWN:
        return ""
    (count,) = growth.values
    return f"; {text.number(count)} in the last {_window(growth)}" if count else "; none new"


def _timeouts(tube: _TubeMeasures, growth: TubeTrend, thresholds: Thresholds) -> Iterator[Measure]:
    """Yield the measure of the timeouts, unless their share in the reservations is far below its threshold."""
    share = growth.timeouts / max(growth.timeouts, growth.reserves)
    sentence = (
        f"{text.counted(growth.timeouts, 'reservation')} of {_quoted(tube.name)} timed out {WHOLE_WINDOW}, in which"
        f" {text.counted(growth.reserves, 'job')} {_were(growth.reserves)} reserved."
    )
    measure = tube.measure(TIMEOUTS, growth.timeouts, thresholds.timeouts, growth.timeouts, sentence, state="reserved")
    ratio = min(measure.ratio, share / thresholds.timeout_share) if thresholds.timeout_share else measure.ratio
    if ratio >= LEAST_RATIO:
        yield measure._replace(ratio=ratio)


def _failed_attempts(tube: _TubeMeasures, failed: int, growth: TubeTrend, thresholds: Thresholds) -> Iterator[Measure]:
    """Yield the measure of the attempts that *failed*, unless their share is far below its threshold."""
    attempts = max(failed, growth.reserves)
    finished = growth.deletes + growth.buries + growth.dead_letters
    rest = f"a job takes {text.number(round(attempts / finished))} on average" if finished else "no job was finished"
    sentence = (
        f"{text.number(failed)} of {text.counted(attempts, 'attempt')} of {_quoted(tube.name)} ended by release,"
        f" timeout or burial {WHOLE_WINDOW}: {rest}."
    )
    measure = tube.measure(FAILED_ATTEMPTS, failed, thresholds.failed_attempts, failed, sentence)
    share = thresholds.failed_share
    ratio = min(measure.ratio, failed / attempts / share) if share else measure.ratio
    if ratio >= LEAST_RATIO:
        yield measure._replace(ratio=ratio)


def _waiting(sample: TubeSample, thresholds: Thresholds) -> Iterator[Measure]:
    """Yield the measures of a tube with ready jobs. A measure with the cause of the wait replaces `oldest_ready`."""
    tube = _TubeMeasures(sample.name)
    if sample.paused:
        if sample.paused >= thresholds.paused > 0:
            rest = f"the pause began {_time(sample.paused)} ago and ends in {_time(sample.pause_left)}"
            sentence = f"{_ready(sample)}, but the tube is paused: {rest}."
            yield tube.measure(PAUSED, sample.paused, thresholds.paused, sample.now.ready, sentence)
    elif not sample.watching:
        if thresholds.no_consumers:
            sentence = f"{_ready(sample)}, but no worker watches the tube: {_oldest(sample)}."
            yield tube.fact(NO_CONSUMERS, sample.oldest, thresholds.no_consumers, sample.now.ready, sentence)
    elif sample.held_back:
        if thresholds.held_back:
            setting = f"the policy setting {sample.held_back} holds them back"
            sentence = f"{_ready(sample)}, but {setting}: {_oldest(sample)}."
            yield tube.fact(HELD_BACK, sample.oldest, thresholds.held_back, sample.now.ready, sentence)
    elif _is_near(sample.oldest, thresholds.oldest_ready):
        workers = text.counted(sample.watching, "worker")
        watch = "watches" if sample.watching == 1 else "watch"
        sentence = f"{_ready(sample)}, and {_oldest(sample)}: {workers} {watch} the tube."
        yield tube.measure(OLDEST_READY, sample.oldest, thresholds.oldest_ready, sample.now.ready, sentence)
    grown = TubeTrend(*sample.growth.values).ready
    if _is_near(grown, thresholds.backlog_growth):
        sentence = f"{_ready(sample)}, {text.number(grown)} more than 15 minutes ago{_forecast(sample)}."
        yield tube.measure(BACKLOG_GROWTH, grown, thresholds.backlog_growth, sample.now.ready, sentence)


def _ready(sample: TubeSample) -> str:
    ready = sample.now.ready
    return f"{text.counted(ready, 'job')} of {_quoted(sample.name)} {_are(ready)} ready"


def _oldest(sample: TubeSample) -> str:
    return f"the oldest has waited for {_time(sample.oldest)}"


def _forecast(sample: TubeSample) -> str:
    """Return when the tube reaches the first of its limits at the rate of the window, as the end of a sentence."""
    times = [(left, name) for name, _, _, left in _limits(sample) if left is not None]
    if not times:
        return ""
    left, name = min(times)
    return f"; at this rate it reaches {name} in {_time(left)}"


def _limits(sample: TubeSample) -> Iterator[tuple[str, int, int, int | None]]:
    """Yield the name, the amount used, the maximum and the time left of each limit of *sample*."""
    growth = TubeTrend(*sample.growth.values)
    for name, used, most in sample.limits:
        grown = growth.bytes if name.endswith("bytes") else growth.jobs
        yield name, used, most, time_until(most - used, grown, sample.growth.time)


def _tube_limits(sample: TubeSample, thresholds: Thresholds) -> Iterator[Measure]:
    for name, used, most, left in _limits(sample):
        unit = "byte" if name.endswith("bytes") else "job"
        subject = f"{_quoted(sample.name)} has"
        found = _limit(sample.name, name, unit, subject, used, most, left, thresholds)
        if found is not None:
            yield found._replace(link=Link("tube", {"tube": sample.name.decode()}), jobs=sample.now.jobs)


def _held_job(tube: _TubeMeasures, held: LongestReservation, thresholds: Thresholds) -> Measure:
    name = _quoted(tube.name)
    worker = f"onnection {held.worker} has held job {held.id}"
    sentence = f"C{worker} of {name} for {_time(held.time)}"
    if held.workers > 1:
        workers = text.number(held.workers)
        sentence = f"{workers} workers have held a job of {name} too long: c{worker} for {_time(held.time)}"
        link = Link("connections", {"q": tube.name.decode(), "sort": "held"})
    else:
        link = Link("connection", {"number": str(held.worker)})
    return tube.measure(HELD_JOB, held.time, thresholds.held_job, held.workers, f"{sentence}.")._replace(link=link)


class _TubeMeasures:
    """Makes the measures of the tube *name*."""

    __slots__ = ("name",)

    def __init__(self, name: bytes) -> None:
        self.name: bytes = name

    def measure(self, kind: Kind, value: int, threshold: int, jobs: int, sentence: str, **args: str) -> Measure:
        """Return a measure of *value*, which concerns *jobs*; *args* are the arguments of the tube's page."""
        unit = SECOND if kind in (OLDEST_READY, HELD_JOB, PAUSED) else 1
        link = Link("tube", {"tube": self.name.decode(), **args})
        ratio = value / threshold
        return Measure(kind, WARNING, self.name, "", ratio, 0, value / unit, threshold / unit, sentence, link, jobs)

    def failure(self, kind: Kind, jobs: int, threshold: int, sentence: str) -> Measure:
        """Return a measure of failed *jobs*."""
        return self.measure(kind, jobs, threshold, jobs, sentence)._replace(severity=FAILURE)

    def fact(self, kind: Kind, oldest: int, delay: int, jobs: int, sentence: str) -> Measure:
        """Return a measure of a fact that becomes a condition after *delay* ns. *oldest* is its value."""
        link = Link("tube", {"tube": self.name.decode()})
        ratio = max(1.0, oldest / delay)
        value, threshold = oldest / SECOND, delay / SECOND
        return Measure(kind, WARNING, self.name, "", ratio, delay, value, threshold, sentence, link, jobs)


# The server


def server_measures(sample: ServerSample, thresholds: Thresholds) -> list[Measure]:
    """Return the measures of *sample*."""
    found = list(_disk(sample, thresholds))
    if sample.journal_error:
        sentence = (
            f"The journal cannot be written: {sample.journal_error}. Puts are refused, and no change is acknowledged"
            " until writes succeed."
        )
        found.append(_of_server(JOURNAL, CRITICAL, 1, 1, sentence, "journal"))
    for shard in sample.silent_shards:
        sentence = f"The process of shard {shard} does not answer: commands for its tubes and jobs wait."
        found.append(_of_server(SHARD, CRITICAL, 1, 1, sentence, "process")._replace(detail=f"shard {shard}"))
    for shard, jobs, age in sample.moves:
        if age >= MAX_MOVE_TIME:
            sentence = f"{text.counted(jobs, 'job')} {_are(jobs)} moving to shard {shard}, the first for {_time(age)}."
            measure = _of_server(MOVING, WARNING, age / SECOND, MAX_MOVE_TIME / SECOND, sentence, "process")
            found.append(measure._replace(detail=f"to shard {shard}", jobs=jobs))
    found += _memory(sample, thresholds)
    for name, unit, used, growth, most in sample.limits:
        left = time_until(most - used, growth.values[0], growth.time)
        near = _limit(b"", name, unit, "The server has", used, most, left, thresholds)
        if near is not None:
            link = Link("connections", {}) if unit == "connection" else Link("overview", {"sort": "ready", "desc": "1"})
            found.append(near._replace(link=link))
    for name, count in sample.refused.items():
        if _is_near(count, thresholds.refused):
            sentence = f"{LIMIT_DESCRIPTIONS[name][0].upper()}{LIMIT_DESCRIPTIONS[name][1:]}:"
            sentence += f" {text.counted(count, 'time')} {WHOLE_WINDOW}."
            measure = _of_server(REFUSED, WARNING, count, thresholds.refused, sentence, "limits")
            found.append(measure._replace(detail=name))
    if sample.standby is not None and thresholds.standby_lag:
        if sample.standby < 0:
            sentence = "No standby follows this server: if it fails, no other server can take over."
            found.append(_of_server(STANDBY, WARNING, 1, 1, sentence, "journal")._replace(delay=NO_STANDBY_DELAY))
        elif _is_near(sample.standby, thresholds.standby_lag):
            value, threshold = sample.standby / SECOND, thresholds.standby_lag / SECOND
            sentence = f"The most recent standby is {value:,.0f} s behind: a takeover would take that much longer."
            found.append(_of_server(STANDBY, WARNING, value, threshold, sentence, "journal"))
    return found


def _memory(sample: ServerSample, thresholds: Thresholds) -> Iterator[Measure]:
    if sample.memory is not None:
        taken, most = sample.memory
        left = time_until(most - taken, sample.memory_growth.values[0], sample.memory_growth.time)
        near = _limit(b"", "--memory-limit", "byte", "Jobs use", taken, most, left, thresholds)
        if near is not None or sample.is_memory_full:
            sentence = f"Jobs use {text.rough_size(taken)} of the {text.rough_size(most)} that --memory-limit allows"
            if sample.is_memory_full:
                sentence += ": puts are refused."
            else:
                sentence += f"; at this rate puts are refused in {_time(left)}." if left is not None else "."
            ratio = 1.0 if sample.is_memory_full or near is None else near.ratio
            severity: Severity = CRITICAL if sample.is_memory_full or near is None else near.severity
            measure = _of_server(MEMORY, severity, taken / most, thresholds.limit_used, sentence, "process")
            yield measure._replace(ratio=ratio)
    if sample.machine_memory is not None and thresholds.memory_used:
        used, total = sample.machine_memory
        if used / total >= LEAST_RATIO * thresholds.memory_used:
            sentence = (
                f"{text.rough_size(used)} of the machine's {text.rough_size(total)} of memory are in use. When no"
                " memory is left, the kernel kills processes."
            )
            measure = _of_server(MEMORY, WARNING, used / total, thresholds.memory_used, sentence, "process")
            yield measure._replace(detail="machine")


def _disk(sample: ServerSample, thresholds: Thresholds) -> Iterator[Measure]:
    free = sample.disk_free
    if free is None:
        if sample.is_disk_full:
            yield _of_server(DISK, CRITICAL, 1, 1, "The journal's disk is full: puts are refused.", "journal")
        return
    shown = f"{text.rough_size(free)} are free on the journal's disk"
    left = time_until(free, -sample.disk_growth.values[0], sample.disk_growth.time)
    low = thresholds.disk_free / max(1, free)
    soon = thresholds.disk_within / max(1, left) if left is not None else 0.0
    if sample.is_disk_full:
        yield _of_server(DISK, CRITICAL, free, thresholds.disk_free, f"{shown}: puts are refused.", "journal")._replace(
            ratio=max(1.0, low)
        )
    elif max(low, soon) >= LEAST_RATIO:
        when = (
            f"at the rate of the last {_window(sample.disk_growth)} it is full in {_time(left)}"
            if left is not None
            else ""
        )
        rest = f"; {when}, and puts are refused then." if when else ". Puts are refused when it is full."
        severity: Severity = CRITICAL if low >= 1 else WARNING
        measure = _of_server(DISK, severity, free, thresholds.disk_free, shown + rest, "journal")
        yield measure._replace(ratio=max(low, soon))


def _of_server(kind: Kind, severity: Severity, value: float, threshold: float, sentence: str, group: str) -> Measure:
    """Return a measure of the server, with a link to the *group* of figures on the overview."""
    ratio = value / threshold if threshold else 0.0
    return Measure(
        kind, severity, b"", "", ratio, 0, value, threshold, sentence, Link("overview", {"_anchor": f"group-{group}"})
    )


def _limit(
    tube: bytes, name: str, unit: str, subject: str, used: int, most: int, left: int | None, thresholds: Thresholds
) -> Measure | None:
    """Return the measure of a limit, without its link; None if the limit is not nearly reached."""
    share = used / most
    near = share / thresholds.limit_used if thresholds.limit_used else 0.0
    soon = thresholds.limit_within / max(1, left) if left is not None else 0.0
    if max(near, soon) < LEAST_RATIO:
        return None
    amount = text.rough_size(used) if unit == "byte" else text.number(used)
    bound = text.rough_size(most) if unit == "byte" else text.counted(most, unit)
    sentence = f"{subject} {amount} of at most {bound} ({name})"
    if used >= most:
        sentence += ": more are refused."
    else:
        sentence += f"; at the rate of the last 15 minutes it is reached in {_time(left)}." if left is not None else "."
    is_soon = left is not None and left <= FULL_WITHIN
    severity: Severity = CRITICAL if used >= most or (is_soon and soon >= 1) else WARNING
    link = Link("overview", {})
    return Measure(LIMIT, severity, tube, name, max(near, soon), 0, share, thresholds.limit_used, sentence, link)


def _quoted(name: bytes) -> str:
    return f"“{name.decode()}”"


def _is_near(value: int, threshold: int) -> bool:
    """Whether *value* is near *threshold* or above; a threshold of 0 is off."""
    return threshold > 0 and value >= LEAST_RATIO * threshold


def _window(growth: Growth) -> str:
    """Return the time that *growth* covers, at most an hour."""
    shown = _time(growth.time)
    return "hour" if shown == HOUR_TEXT else shown


def _time(nanoseconds: int | None) -> str:
    return text.duration((nanoseconds or 0) // SECOND)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"
