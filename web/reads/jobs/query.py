r"""The query language: predicates over jobs as text that fits in a URL: `tube:mail state:buried age:>2h "no route"`.

    query   = [ term *( SPACE term ) ]              a job must match all terms; an empty query matches every job
    term    = [ "-" ] [ name [ "." path ] ":" ] value   "-" negates; a value without a name is searched in bodies
    value   = [ "~" ] ( bare / quoted )             "~" ignores the case; for bodies, classes and errors only
    bare    = 1*( any character except space and quote )
    quoted  = DQUOTE *( char / "\\" char ) DQUOTE

A name may be followed by the path of a JSON field: `body.customer.id:316430` (see body_terms). The value of a numeric
term, such as `age`, is a comparison: `5`, `>5`, `>=5`, `<5`, `<=5` or `1..5`. Durations are compared in whole seconds,
as pages show them. Parsing is strict, so that a typo is reported, not searched for as text.
There are no regular expressions, because the time to match one is unbounded.

Pure: this module depends on jobs, but on neither HTTP nor the broker.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from greenstalk_server.core.job_attributes import REASON_NAMES, DeadLetter
from greenstalk_server.core.jobs.job import BURIED, DELAYED, READY, RESERVED, SECOND, STATE_NAMES, Job
from greenstalk_server.core.tags.tags import TaggedJob, Tags, tags_of
from greenstalk_server.core.tube_names import is_tube_name
from greenstalk_server.web.reads.jobs import body_terms
from greenstalk_server.web.reads.jobs.body_terms import BODY, CLASS, ERROR, BodyTest, FieldMatch, is_about_json

MAX_LENGTH: Final = 1000
"""Maximum characters of a query."""

MAX_TERMS: Final = 32
"""Maximum terms of a query; each is tested on every job."""

MAX_FIELD_TERMS: Final = 8
"""Maximum terms about JSON fields, classes and errors: each may take 0.5 ms for a body with one large array."""

MAX_ASTERISKS: Final = 32
"""Maximum asterisks in all terms about JSON fields, classes and errors: each may take 0.1 ms for such a body."""

MAX_SEARCHED: Final = 1024 * 1024
"""Maximum bytes searched, from the beginning of a body; takes about 1 ms."""

Test: TypeAlias = Callable[[Job, int], bool]
"""Returns whether a job matches at the given time, in nanoseconds. It does not test the body."""

_Get: TypeAlias = Callable[[Job, int], int]


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of number: its units, and examples of how to write it."""

    units: Mapping[str, int]
    examples: str


_PLAIN: Final = _Kind({"": 1}, "5, >5, >=5, <5, <=5 or 1..5")
_DURATION: Final = _Kind(
    {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}, "30, 30s, >5min, >=2h, <1d or 1h..2h"
)
_SIZE: Final = _Kind({"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}, "100, >1k, <=64k, >1m or 1k..2k")

_NUMBERS: Final[Mapping[str, tuple[_Kind, _Get]]] = {
    "id": (_PLAIN, lambda job, _: job.id),
    "pri": (_PLAIN, lambda job, _: job.pri),
    "age": (_DURATION, lambda job, now: (now - job.created_at) // SECOND),
    "delay": (_DURATION, lambda job, _: job.delay // SECOND),
    "ttr": (_DURATION, lambda job, _: job.ttr // SECOND),
    "size": (_SIZE, lambda job, _: job.size),
    "reserves": (_PLAIN, lambda job, _: job.reserves),
    "timeouts": (_PLAIN, lambda job, _: job.timeouts),
    "releases": (_PLAIN, lambda job, _: job.releases),
    "buries": (_PLAIN, lambda job, _: job.buries),
    "kicks": (_PLAIN, lambda job, _: job.kicks),
}
STATES: Final = {STATE_NAMES[state]: state for state in (READY, RESERVED, DELAYED, BURIED)}

TAG_KEYS: Final[Mapping[str, Callable[[Tags], bytes]]] = {
    "idp": lambda tags: tags.idempotency_key,
    "grp": lambda tags: tags.group,
    "aft": lambda tags: tags.after,
    "con": lambda tags: tags.concurrency_key,
}
"""The tags of a put, which the protocol names as queries do."""

REASON: Final = "reason"
ANY: Final = "*"
"""The reason why a job became a dead letter: one of REASON_NAMES, or ANY."""

NAMES: Final = ("id", "tube", "state", BODY, CLASS, ERROR, REASON, *list(_NUMBERS)[1:], *TAG_KEYS)
"""Names of terms. A path may follow `body` and `error`."""

_TERM: Final = re.compile(
    r'\s*+(?P<minus>-?)(?:(?P<name>[A-Za-z]++|(?i:body|error)\.[^\s":]++):)?(?P<tilde>~?)(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^\s"]*))(?=\s|$)',
    re.DOTALL,
)
_BARE: Final = re.compile(r'[^\s"~][^\s"]*')
_COMPARED: Final = re.compile(r"(>=|<=|>|<|)([0-9]{1,20})([a-z]*)")
_BETWEEN: Final = re.compile(r"([0-9]{1,20})([a-z]*)\.\.([0-9]{1,20})([a-z]*)")


class QueryError(ValueError):
    """A malformed query; the message quotes the word and says what is allowed."""


@dataclass(frozen=True, slots=True)
class NumberMatch:
    """A comparison with a number.

    If *sign* is `=`, `<`, `<=`, `>` or `>=`, the number is compared with *low*. If *sign* is `..`, the number must be
    between *low* and *high*, both included.
    """

    sign: str
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class TextMatch:
    """A comparison with text: the name of a state or tube, a key, or a substring of a body.

    is_loose        for a tube or a key, *text* is a prefix; for a body, the case of A-Z and a-z is ignored.
    """

    text: str
    is_loose: bool = False


@dataclass(frozen=True, slots=True)
class Term:
    """One condition."""

    name: str
    value: NumberMatch | TextMatch | FieldMatch
    is_negated: bool = False

    @property
    def is_about_bodies(self) -> bool:
        return self.name == BODY or isinstance(self.value, FieldMatch)

    def __str__(self) -> str:
        return f"{'-' if self.is_negated else ''}{self.name}:{_written(self.name, self.value)}"

    def test(self) -> Test:
        """Return a function that tests a job against this term. The term must not be about bodies."""
        test = _number_test(self.name, self.value) if isinstance(self.value, NumberMatch) else _text_test(self)
        return (lambda job, now: not test(job, now)) if self.is_negated else test

    def body_test(self) -> BodyTest:
        """Return a function that tests a body against this term. The term must be about bodies."""
        test = _body_test(self)
        return _negated(test) if self.is_negated else test


@dataclass(frozen=True, slots=True)
class Query:
    """A conjunction of terms. `str(query)` is its canonical text. Invariant: that text parses to an equal query."""

    terms: tuple[Term, ...] = ()

    def __str__(self) -> str:
        return " ".join(map(str, self.terms))

    @property
    def needs_bodies(self) -> bool:
        """Whether the matches depend on bodies, so that a search reveals parts of them."""
        return any(term.is_about_bodies for term in self.terms)

    @property
    def is_about_errors(self) -> bool:
        """Whether the query selects jobs by their errors or by the reasons of dead letters."""
        return any(term.name.partition(".")[0] in (ERROR, REASON) for term in self.terms)

    @property
    def tube(self) -> str:
        """Name of the only tube whose jobs can match; empty if there is no such restriction."""
        return next((text for name, text in self._exactly() if name == "tube"), "")

    @property
    def state(self) -> str:
        """Name of the only state in which jobs can match; empty if there is no such restriction."""
        return next((text for name, text in self._exactly() if name == "state"), "")

    @property
    def id(self) -> int | None:
        """Id of the only job that can match, or None."""
        for term in self.terms:
            if (
                term.name == "id"
                and isinstance(term.value, NumberMatch)
                and term.value.sign == "="
                and not term.is_negated
            ):
                return term.value.low
        return None

    @property
    def min_id(self) -> int:
        """A lower bound on the ids that can match."""
        ids = [term.value for term in self.terms if term.name == "id" and not term.is_negated]
        return max([_min(value) for value in ids if isinstance(value, NumberMatch)], default=0)

    def within(self, tube: str, state: str = "") -> Query:
        """Return this query restricted to *tube* and *state*; an empty name adds no restriction."""
        added = [Term(name, TextMatch(text)) for name, text in (("tube", tube), ("state", state)) if text]
        return Query((*[term for term in added if term not in self.terms], *self.terms))

    def test(self) -> Test:
        """Return a function that tests a job against all terms but those about bodies.

        The function takes less than a microsecond per term.
        """
        terms = [term for term in self.terms if not term.is_about_bodies]
        tests = [term.test() for term in sorted(terms, key=lambda term: isinstance(term.value, NumberMatch))]
        if len(tests) == 1:
            return tests[0]

        def all_hold(job: Job, now: int) -> bool:
            for test in tests:  # noqa: SIM110  all() with a generator takes twice as long
                if not test(job, now):
                    return False
            return True

        return all_hold

    def body_test(self) -> BodyTest | None:
        """Return a function that tests a body against all terms about bodies; None if there are no such terms."""
        tests = [term.body_test() for term in self.terms if term.is_about_bodies]
        if len(tests) < 2:
            return tests[0] if tests else None

        def all_hold(body: bytes) -> bool | None:
            result: bool | None = True
            for test in tests:
                holds = test(body)
                if holds is None:
                    result = None
                elif not holds:
                    return False
            return result

        return all_hold

    def _exactly(self) -> list[tuple[str, str]]:
        return [
            (term.name, term.value.text)
            for term in self.terms
            if isinstance(term.value, TextMatch) and not term.value.is_loose and not term.is_negated
        ]


def suggested_terms(is_of_tube: bool, sees_bodies: bool) -> list[str]:
    """Return suggestions for a search field: beginnings of terms, and states.

    is_of_tube      the search is among the jobs of one tube in one state.
    sees_bodies     the principal may search bodies.
    """
    states = [] if is_of_tube else [f"state:{state}" for state in STATES]
    names = suggested_names(is_of_tube, sees_bodies)
    return [*states, *[f"{name}:" for name in names if name != "state"]]


def suggested_names(is_of_tube: bool, sees_bodies: bool) -> list[str]:
    """Return the names of terms that are useful in a search, as for `suggested_terms`."""
    hidden = ({"state", "tube"} if is_of_tube else set()) | (set() if sees_bodies else {BODY, CLASS, ERROR})
    return [name for name in NAMES if name not in hidden]


def number_examples(name: str) -> list[str]:
    """Return examples of values of the numeric term *name*; none if it is not numeric."""
    found = _NUMBERS.get(name)
    return re.split(", | or ", found[0].examples) if found is not None else []


def tube_in(given: str) -> str:
    """Return the tube that the terms of the query *given* name; empty if there is none, or the query is malformed."""
    try:
        return parse(given).tube
    except QueryError:
        return ""


def parse(given: str) -> Query:
    """Parse a query; raise QueryError if it is malformed."""
    if len(given) > MAX_LENGTH:
        raise QueryError(f"The query has {len(given)} characters, but the limit is {MAX_LENGTH}.")
    terms: list[Term] = []
    at, end = 0, len(given.rstrip())
    while at < end:
        match = _TERM.match(given, at)
        if match is None:
            word = given[at:].strip()[:60]
            raise QueryError(f"“{word}”: a quote is not closed, or is inside a word.")
        terms.append(_term(match))
        at = match.end()
    if len(terms) > MAX_TERMS:
        raise QueryError(f"The query has {len(terms)} terms, but the limit is {MAX_TERMS}.")
    if (count := sum(isinstance(term.value, FieldMatch) for term in terms)) > MAX_FIELD_TERMS:
        raise QueryError(
            f"The query has {count} terms about fields, classes and errors, but the limit is {MAX_FIELD_TERMS}."
        )
    if (count := sum(term.value.asterisks for term in terms if isinstance(term.value, FieldMatch))) > MAX_ASTERISKS:
        raise QueryError(
            f"The terms about fields, classes and errors have {count} asterisks, but the limit is {MAX_ASTERISKS}."
            " To search for asterisks, put the value in quotes."
        )
    return Query(tuple(terms))


def _term(match: re.Match[str]) -> Term:
    word = match[0].strip()[:60]
    head, dot, path = (match["name"] or BODY).partition(".")
    name = head.lower() + dot + path
    is_quoted = match["quoted"] is not None
    given = re.sub(r"\\(.)", r"\1", match["quoted"], flags=re.DOTALL) if is_quoted else match["bare"]
    if head.lower() not in NAMES:
        raise QueryError(
            f"“{word}”: “{name}:” is unknown; use {', '.join(f'{known}:' for known in NAMES)}. To search bodies for"
            f" these characters, put them in quotes."
        )
    if not given:
        raise QueryError(f"“{word}” lacks a value.")
    if match["tilde"] and name != BODY and not is_about_json(name):
        raise QueryError(f"“{word}”: “~” (ignore case) works only with body:, class: and error:.")
    if is_about_json(name):
        try:
            found = body_terms.read_match(word, name, given, is_quoted, bool(match["tilde"]))
        except ValueError as error:
            raise QueryError(str(error)) from error
        return Term(name, found, bool(match["minus"]))
    return Term(name, _value(word, name, given, bool(match["tilde"])), bool(match["minus"]))


def _value(word: str, name: str, given: str, is_loose: bool) -> NumberMatch | TextMatch:
    if name == BODY:
        return TextMatch(given, is_loose)
    if name == REASON:
        if given not in (*REASON_NAMES[1:], ANY):
            raise QueryError(f"“{word}”: the reason must be one of {', '.join(REASON_NAMES[1:])}, or {ANY} for any.")
        return TextMatch(given)
    if name == "state":
        if given not in STATES:
            raise QueryError(f"“{word}”: the state must be one of {', '.join(STATES)}.")
        return TextMatch(given)
    if name == "tube" or name in TAG_KEYS:
        beginning = given.removesuffix("*")
        if not is_tube_name(beginning.encode(errors="replace")):
            allowed = "1 to 200 characters of A–Z, a–z, 0–9 and -+/;.$_()"
            what = "tube name" if name == "tube" else "key"
            raise QueryError(f"“{word}”: a {what} has {allowed}; a prefix ends with *.")
        return TextMatch(beginning, is_loose=beginning != given)
    return _numbers(word, given.lower(), _NUMBERS[name][0])


def _numbers(word: str, given: str, kind: _Kind) -> NumberMatch:
    units = kind.units
    if (match := _BETWEEN.fullmatch(given)) and match[2] in units and match[4] in units:
        low, high = int(match[1]) * units[match[2]], int(match[3]) * units[match[4]]
        if low <= high:
            return NumberMatch("..", low, high)
        raise QueryError(f"“{word}”: the smaller number must come first.")
    if (match := _COMPARED.fullmatch(given)) and match[3] in units:
        number = int(match[2]) * units[match[3]]
        return NumberMatch(match[1] or "=", number, number)
    raise QueryError(f"“{word}” must be a comparison with a number, such as {kind.examples}.")


def _written(name: str, value: NumberMatch | TextMatch | FieldMatch) -> str:
    if isinstance(value, FieldMatch):
        is_bare = not value.is_quoted and _BARE.fullmatch(value.text)
        return ("~" if value.is_loose else "") + (value.text if is_bare else quoted(value.text))
    if isinstance(value, TextMatch):
        if name != BODY:
            return value.text + ("*" if value.is_loose else "")
        return ("~" if value.is_loose else "") + (value.text if _BARE.fullmatch(value.text) else quoted(value.text))
    units = _NUMBERS[name][0].units
    if value.sign == "..":
        return f"{_amount(value.low, units)}..{_amount(value.high, units)}"
    return f"{value.sign.removeprefix('=')}{_amount(value.low, units)}"


def quoted(value: str) -> str:
    """Return *value* in quotes, escaped for a term."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _amount(number: int, units: Mapping[str, int]) -> str:
    whole = [unit for unit, size in units.items() if number and number % size == 0]
    unit = max(whole, key=lambda unit: (units[unit], unit), default="")
    return f"{number // units[unit] if unit else number}{unit}"


def _min(value: NumberMatch) -> int:
    """Return a lower bound on the numbers that match *value*."""
    return {"<": 0, "<=": 0, ">": value.low + 1}.get(value.sign, value.low)


def _number_test(name: str, value: NumberMatch) -> Test:
    get, low, high = _NUMBERS[name][1], value.low, value.high
    if value.sign == "..":
        return lambda job, now: low <= get(job, now) <= high
    compare = {"=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}[value.sign]
    return lambda job, now: compare(get(job, now), low)


def _text_test(term: Term) -> Test:
    assert isinstance(term.value, TextMatch)
    given, is_loose = term.value.text.encode(errors="replace"), term.value.is_loose
    if term.name == "state":
        state = STATES[term.value.text]
        return lambda job, _: job.state == state
    if term.name == REASON:
        number = REASON_NAMES.index(term.value.text) if term.value.text != ANY else 0
        return lambda job, _: bool(job.dead_letter) and number in (0, DeadLetter.unpack(job.dead_letter).reason)
    if term.name in TAG_KEYS:
        get = TAG_KEYS[term.name]
        if is_loose:
            return lambda job, _: isinstance(job, TaggedJob) and get(tags_of(job)).startswith(given)
        return lambda job, _: isinstance(job, TaggedJob) and get(tags_of(job)) == given
    if is_loose:
        return lambda job, _: job.tube.name.startswith(given)
    return lambda job, _: job.tube.name == given


def _body_test(term: Term) -> BodyTest:
    if isinstance(term.value, FieldMatch):
        return body_terms.body_test(term.name, term.value)
    assert isinstance(term.value, TextMatch)
    given = term.value.text.encode(errors="replace")
    if term.value.is_loose:
        lowered = given.lower()
        return lambda body: lowered in body[:MAX_SEARCHED].lower() or _unless_cut(body)
    return lambda body: body.find(given, 0, MAX_SEARCHED) >= 0 or _unless_cut(body)


def _unless_cut(body: bytes) -> bool | None:
    """Return False, or None if only a part of *body* is searched."""
    return None if len(body) > MAX_SEARCHED else False


def _negated(test: BodyTest) -> BodyTest:
    """Return a function that returns the negation of *test*, and None if *test* returns None."""

    def negated(body: bytes) -> bool | None:
        holds = test(body)
        return None if holds is None else not holds

    return negated
