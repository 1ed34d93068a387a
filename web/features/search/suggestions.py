"""Suggestions for a query that someone types: names of terms with a few words of explanation, and values.

Values of fields, classes, errors and tags come from a sample of at most MAX_SAMPLE jobs, of the tube that the query
names or of visible tubes. Bodies that are only on disk are left out. Data that the principal may not see is not
suggested.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice, zip_longest
from typing import Final, NamedTuple, TypeVar

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.job_attributes import REASON_NAMES
from greenstalk_server.core.jobs.job import DELAYED, READY, Job
from greenstalk_server.core.tags.tags import TaggedJob, tags_of
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.web.framework.access import principal
from greenstalk_server.web.framework.cooperative import Pace
from greenstalk_server.web.framework.shards import Shards
from greenstalk_server.web.reads.jobs.body_terms import BODY, CLASS, ERROR, FieldMatch
from greenstalk_server.web.reads.jobs.frameworks import class_of
from greenstalk_server.web.reads.jobs.job_errors import error_of
from greenstalk_server.web.reads.jobs.json_fields import (
    Path,
    PathError,
    field_paths,
    find_values,
    parse_body,
    parse_path,
    scalars,
    value_text,
)
from greenstalk_server.web.reads.jobs.query import (
    REASON,
    STATES,
    TAG_KEYS,
    Term,
    TextMatch,
    number_examples,
    suggested_names,
    tube_in,
)
from greenstalk_server.web.reads.tubes import find_tubes

MAX_OPTIONS: Final = 12
"""Maximum suggestions at once."""

SUGGEST: Final = "suggest"
"""Question to the other shards."""

MAX_SAMPLE: Final = 60
"""Maximum jobs in a sample: about 5 ms of CPU time for usual bodies, in slices."""

MAX_TUBES: Final = 500
"""Maximum tubes scanned for a sample without a tube."""

MAX_VALUE: Final = 100
"""Maximum characters of a suggested value."""

HELP: Final = {
    "id": "number of the job",
    "tube": "tube of the job",
    "state": "ready, reserved, delayed or buried",
    BODY: "text in the body; body.field: for a field of JSON",
    CLASS: "class of a framework's job",
    ERROR: "error of a failed job",
    REASON: "why the job is a dead letter",
    "pri": "priority, 0 is the most urgent",
    "age": "time since the put",
    "delay": "last delay requested",
    "ttr": "time to run",
    "size": "bytes of the body",
    "reserves": "how often it was reserved",
    "timeouts": "how often a reservation timed out",
    "releases": "how often it was released",
    "buries": "how often it was buried",
    "kicks": "how often it was kicked",
    "idp": "idempotency key",
    "grp": "group",
    "aft": "group that it waits for",
    "con": "concurrency key",
}
"""A few words about each term."""


T = TypeVar("T")


class Option(NamedTuple):
    """A term to insert, and a few words about it."""

    text: str
    help: str


class Suggested(NamedTuple):
    """The options for the term that begins at the index *begin* of the text."""

    begin: int
    options: list[Option]


class Suggestions:
    """Suggests terms from the jobs of all shards, or of the shard of a tube."""

    def __init__(self, broker: Broker, shards: Shards) -> None:
        self._broker: Broker = broker
        self._shards: Shards = shards
        shards.answer(SUGGEST, self._options_here)

    def suggest(self, typed: str, tube_name: str) -> Suggested:
        """Return suggestions for the last term of *typed*, the text before the cursor. Switches.

        *tube_name* is the tube whose jobs are filtered; empty for a search in all tubes.
        """
        begin = _last_term(typed)
        named = tube_name or tube_in(typed[:begin])
        shards = (self._shards.of_tube(named.encode(errors="replace")),) if named else self._shards.all
        asked = {"typed": typed[begin:], "named": named, "is_of_tube": bool(tube_name)}
        answers = self._shards.ask_each(SUGGEST, dict.fromkeys(shards, asked))
        by_rank = chain.from_iterable(zip_longest(*[answers[shard] for shard in sorted(answers)]))
        found = dict.fromkeys(Option(*option) for option in by_rank if option is not None)
        return Suggested(begin, list(found)[:MAX_OPTIONS])

    def _options_here(self, typed: str, named: str, is_of_tube: bool) -> list[Option]:
        """Return suggestions for the term *typed* from the tube *named*, or from all tubes. May switch."""
        minus = "-" if typed.startswith("-") else ""
        name, colon, value = typed[len(minus) :].partition(":")
        tube = self._broker.tubes.get(named.encode(errors="replace"))
        sample = _Sample(self._broker, tube if tube is not None and principal().sees(tube.name) else None)
        if colon:
            options = _values(self._broker, sample, name, value.lstrip("~").removeprefix('"').lower())
        else:
            options = _names(sample, name, is_of_tube=is_of_tube)
        return [Option(f"{minus}{option.text}", option.help) for option in islice(options, MAX_OPTIONS)]


def _last_term(typed: str) -> int:
    """Return the index at which the last term of *typed* begins: after the last space outside of quotes."""
    begin, is_quoted, is_escaped = 0, False, False
    for at, mark in enumerate(typed):
        if is_escaped:
            is_escaped = False
        elif is_quoted and mark == "\\":
            is_escaped = True
        elif mark == '"':
            is_quoted = not is_quoted
        elif mark.isspace() and not is_quoted:
            begin = at + 1
    return begin


class _Sample:
    """Some jobs of *tube*, failed ones first; or of visible tubes if it is None."""

    def __init__(self, broker: Broker, tube: Tube | None) -> None:
        who = principal()
        if tube is not None:
            jobs = _some_jobs(tube, MAX_SAMPLE // 3)
        else:
            tubes = [one for one in islice(broker.tubes.values(), MAX_TUBES) if who.sees(one.name)]
            jobs = chain.from_iterable(_some_jobs(one, 1) for one in tubes)
        self._jobs: list[Job] = list(islice(jobs, MAX_SAMPLE))
        self._sees_bodies: bool = who.sees_bodies

    def bodies(self) -> Iterator[bytes]:
        """Yield the bodies that are in memory; none if the principal may not see bodies. May switch."""
        bodies = [job.body for job in self._jobs if job.body is not None] if self._sees_bodies else []
        return Pace().each(bodies)

    def tagged(self) -> list[TaggedJob]:
        """Return the jobs with tags."""
        return [job for job in self._jobs if isinstance(job, TaggedJob)]


def _some_jobs(tube: Tube, count: int) -> Iterator[Job]:
    """Yield up to *count* buried jobs of *tube*, the last ones first, then as many ready and delayed ones."""
    for jobs in (reversed(tube.buried.values()), tube.walk(READY), tube.walk(DELAYED)):
        yield from islice(jobs, count)


def _names(sample: _Sample, typed: str, *, is_of_tube: bool) -> Iterator[Option]:
    """Yield the names of terms that begin with *typed*, then the fields of bodies that contain it."""
    wanted = typed.lower()
    head, dot, field = wanted.partition(".")
    if not dot:
        for name in suggested_names(is_of_tube, principal().sees_bodies):
            if name.startswith(wanted):
                yield Option(f"{name}:", HELP[name])
    if wanted and (not dot or head == BODY):
        part = field if dot else wanted
        paths = _most(path for body in sample.bodies() for path in field_paths(parse_body(body)))
        found = [path for path in paths if part in path.lower()]
        for path in sorted(found, key=lambda path: not path.lower().startswith(part)):
            yield Option(f"{BODY}.{path}:", "field of the body")


def _values(broker: Broker, sample: _Sample, name: str, typed: str) -> Iterator[Option]:
    """Yield terms *name* with values that contain *typed*, in lower case."""
    head, _, field = name.partition(".")
    head = head.lower()
    if head == "tube":
        yield from (
            Option(str(Term(head, TextMatch(tube))), "tube") for tube in find_tubes(broker, typed, MAX_OPTIONS)[0]
        )
        return
    if head in (BODY, CLASS, ERROR):
        written = _written(sample, head, field)
    elif head in TAG_KEYS:
        get = TAG_KEYS[head]
        keys = _most(key for job in sample.tagged() if (key := get(tags_of(job)).decode()))
        written = [str(Term(head, TextMatch(key))) for key in keys]
    else:
        fixed = {"state": tuple(STATES), REASON: (*REASON_NAMES[1:], "*")}
        written = [f"{head}:{value}" for value in fixed.get(head, number_examples(head))]
    help_text = HELP.get(name.lower(), "value in some jobs")
    for term in written:
        if typed in term[len(name) + 1 :].lower():
            yield Option(term, help_text)


def _written(sample: _Sample, head: str, field: str) -> list[str]:
    """Return terms about errors, classes, or the field *field* of bodies, the most common first."""
    name = f"{head}.{field}" if field else head
    try:
        path: Path = parse_path(field) if field else ()
    except PathError:
        return []
    if head == BODY:
        if not path:
            return []
        found = (value for body in sample.bodies() for value in scalars(find_values(parse_body(body), path)).values)
        matches = _most(FieldMatch(value_text(value), is_quoted=isinstance(value, str)) for value in found)
    elif head == CLASS:
        matches = _most(FieldMatch(one, is_quoted=True) for body in sample.bodies() if (one := class_of(body)))
    else:
        matches = _most(FieldMatch(one, is_quoted=True) for body in sample.bodies() if (one := error_of(body, path)))
    return [str(Term(name, match)) for match in matches if len(match.text) <= MAX_VALUE]


def _most(values: Iterable[T]) -> list[T]:
    """Return *values* without duplicates, the most common first."""
    return [value for value, _ in Counter(values).most_common()]
