"""Tube policies: settings for all tubes whose names match the patterns of a policy.

A policy is the same document in the configuration file, the API and the journal: the keys of SETTINGS, `tubes` (a list
of patterns) and `priority`. Several policies may match a tube. Their settings are merged: for each key, the policy with
the highest `priority` wins, then the one with the most specific matching pattern (an exact name before a pattern, then
the number of literal characters), then the one whose name sorts first. A value of 0, "" or [] turns a setting off, so a
policy can exempt some tubes from a setting of another policy. Pure.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.tube_names import PatternIndex, is_tube_name, is_tube_pattern
from greenstalk_server.core.units import MILLISECOND, parse_size, parse_time

MAX_POLICIES: Final = 10_000
"""Maximum number of policies in the configuration file, and in total when a policy is added at run time."""

MAX_PATTERNS: Final = 100
"""Maximum patterns of one policy."""

MAX_COPIES: Final = 16
"""Maximum tubes in `copy_to`."""

MAX_PRIORITY: Final = 1_000_000
MAX_TIME: Final = (2**32 - 1) * SECOND
"""Maximum of every setting that is a time, nanoseconds: the longest delay of the protocol."""

MAX_CACHED: Final = 10_000
"""Maximum number of effective policies that a PolicySet caches, so that further tubes can share them."""

DEFAULT_RETRY_FACTOR: Final = 2.0
DEFAULT_RETRY_DELAY_MAX: Final = 3600 * SECOND
"""Default of `retry_delay_max`, unless `retry_delay` is longer."""

BURSTS_PER_SECOND: Final = 10
"""Without `rate_burst`, a burst is a tenth of the starts per second, at least 1."""

_MAX_COUNT: Final = 2**63 - 1
_MAX_ATTEMPTS: Final = 2**32 - 1
_MAX_RATE: Final = 1_000_000
_MIN_RATE: Final = 0.00001
_MAX_FACTOR: Final = 100.0
_MAX_SHOWN: Final = 60
_NAME: Final = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,99}")
_TUBES: Final = "tubes"
_PRIORITY: Final = "priority"
_PATTERNS: Final = f'an array of 1 to {MAX_PATTERNS} tube names, in which * matches any characters, as in ["mail.*"]'
_MISSING: Final = object()


class Overflow:
    """The effect of a put into a tube that is at a cap. All values except REFUSE make room for the new job."""

    REFUSE: Final = 0
    DROP_OLDEST: Final = 1
    DEAD_LETTER_OLDEST: Final = 2


class UniqueFor:
    """The period in which a unique job excludes other jobs with an equal body from its tube.

    NOTHING     jobs of the tube need not be unique.
    WAITING     while the job is ready or delayed.
    UNFINISHED  while the job exists.
    TIME        for `unique_time` since its put.
    """

    NOTHING: Final = 0
    WAITING: Final = 1
    UNFINISHED: Final = 2
    TIME: Final = 3


_OVERFLOWS: Final = {
    "refuse": Overflow.REFUSE,
    "drop-oldest": Overflow.DROP_OLDEST,
    "dead-letter-oldest": Overflow.DEAD_LETTER_OLDEST,
}
_UNIQUE_FOR: Final = {"waiting": UniqueFor.WAITING, "unfinished": UniqueFor.UNFINISHED}
_EXPIRED_TO: Final = {"drop": 0, "dead-letter": 1}
_UNIQUE: Final = {"nothing": 0, "body": 1}


class PolicyError(ValueError):
    """A policy is invalid. The message names the policy, the key, the value and what is allowed.

    name    the policy's name.
    problem the message without the policy's name.
    key     the key with the error; empty if the error is in no key.
    """

    def __init__(self, name: str, problem: str, key: str = "") -> None:
        super().__init__(f"policy {_shown(name)}: {problem}")
        self.name: str = name
        self.problem: str = problem
        self.key: str = key


class Setting:
    """A key of a policy.

    read        converts a value of a document to the engine's value; raises ValueError if the value is not allowed.
    allowed     describes the allowed values, for "must be ...".
    needs       the policy must also have at least one of these keys, because the setting has no effect without them.
    """

    def __init__(self, read: Callable[[object], object], allowed: str, needs: tuple[str, ...] = ()) -> None:
        self.read: Callable[[object], object] = read
        self.allowed: str = allowed
        self.needs: tuple[str, ...] = needs


def _whole(value: object, most: int, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError
    return value


def _fraction(value: object, least: float, most: float) -> float:
    """Return the number *value*; 0 is allowed even if *least* is above 0."""
    if type(value) is int:
        if not 0 <= value <= int(most):  # the largest integers cannot be converted to a float
            raise ValueError
        number = float(value)
    elif type(value) is float:
        number = value
    else:
        raise ValueError
    if not math.isfinite(number) or not (number == 0 or least <= number <= most):
        raise ValueError
    return number


def _rate(value: object) -> int:
    """Return the time between two starts in nanoseconds."""
    rate = _fraction(value, _MIN_RATE, _MAX_RATE)
    return round(SECOND / rate) if rate else 0


def _factor(value: object) -> float:
    factor = _fraction(value, 1.0, _MAX_FACTOR)
    if not factor:
        raise ValueError
    return factor


def _time(value: object, least: int) -> int:
    """Return *value*, seconds or text with units, in nanoseconds; 0 is allowed even if *least* is above 0."""
    if isinstance(value, str):
        time = parse_time(value, SECOND)
    elif type(value) is int:
        time = value * SECOND
    else:
        time = round(_fraction(value, least / SECOND, MAX_TIME / SECOND) * SECOND)
    if not (time == 0 or least <= time <= MAX_TIME):
        raise ValueError
    return time


def _size(value: object) -> int:
    return parse_size(value, _MAX_COUNT) if isinstance(value, str) else _whole(value, _MAX_COUNT)


def _one_of(value: object, words: Mapping[str, int]) -> int:
    if not isinstance(value, str) or value not in words:
        raise ValueError
    return words[value]


def _tube(value: object) -> bytes:
    """Return the tube name *value*, which may be empty."""
    if not isinstance(value, str):
        raise ValueError  # noqa: TRY004  as for all wrong values
    name = value.encode()
    if name and not is_tube_name(name):
        raise ValueError
    return name


def _copies(value: object) -> tuple[bytes, ...]:
    if not isinstance(value, list) or len(value) > MAX_COPIES:
        raise ValueError
    names = tuple([_tube(name) for name in value])
    if b"" in names or len(set(names)) < len(names):
        raise ValueError
    return names


def _unique_for(value: object) -> tuple[int, int]:
    """Return the value of UniqueFor, and nanoseconds for UniqueFor.TIME."""
    if isinstance(value, str) and value in _UNIQUE_FOR:
        return _UNIQUE_FOR[value], 0
    time = _time(value, MILLISECOND)
    if not time:
        raise ValueError
    return UniqueFor.TIME, time


def _words(words: Iterable[str]) -> str:
    return " or ".join([f'"{word}"' for word in words])


_UNITS: Final = 'or text with units ("90s", "1h30m", "7d")'
_MAX_SECONDS: Final = MAX_TIME // SECOND
_TIME_SETTING: Final = f"a number of seconds, 0 (off) or from 0.001 to {_MAX_SECONDS}, {_UNITS}"
_TTR_SETTING: Final = f"a number of seconds, 0 (off) or from 1 to {_MAX_SECONDS}, {_UNITS}"
_COUNT_SETTING: Final = "a whole number, 0 (no limit) or more"
_SIZE_SETTING: Final = 'a whole number of bytes, 0 (no limit) or more, or text with a unit ("64k", "10MB", "2GiB")'
_TUBE_NAME: Final = "the name of a tube: 1 to 200 letters, digits and -+/;.$_(), not beginning with a hyphen"

_read_time: Final = partial(_time, least=MILLISECOND)
_read_ttr: Final = partial(_time, least=SECOND)
_read_count: Final = partial(_whole, most=_MAX_COUNT)

SETTINGS: Final[Mapping[str, Setting]] = {
    "max_attempts": Setting(
        partial(_whole, most=_MAX_ATTEMPTS), f"a whole number of attempts from 0 (no limit) to {_MAX_ATTEMPTS}"
    ),
    "dead_letter": Setting(_tube, f'{_TUBE_NAME}; or "" for none'),
    "retry_delay": Setting(_read_time, _TIME_SETTING),
    "retry_delay_max": Setting(_read_time, _TIME_SETTING, needs=("retry_delay",)),
    "retry_factor": Setting(_factor, f"a number from 1 to {_MAX_FACTOR:.0f}", needs=("retry_delay",)),
    "retry_jitter": Setting(
        partial(_fraction, least=0.0, most=1.0), "a number from 0 (no jitter) to 1", needs=("retry_delay",)
    ),
    "expire_after": Setting(_read_time, _TIME_SETTING),
    "buried_expire_after": Setting(_read_time, _TIME_SETTING),
    "expired_to": Setting(
        partial(_one_of, words=_EXPIRED_TO), _words(_EXPIRED_TO), needs=("expire_after", "buried_expire_after")
    ),
    "max_jobs": Setting(_read_count, _COUNT_SETTING),
    "max_bytes": Setting(_size, _SIZE_SETTING),
    "overflow": Setting(partial(_one_of, words=_OVERFLOWS), _words(_OVERFLOWS), needs=("max_jobs", "max_bytes")),
    "max_reserved": Setting(_read_count, _COUNT_SETTING),
    "rate": Setting(_rate, f"a number of starts per second, 0 (no limit) or from {_MIN_RATE:.5f} to {_MAX_RATE}"),
    "rate_burst": Setting(
        partial(_whole, least=1, most=_MAX_RATE), f"a whole number from 1 to {_MAX_RATE}", needs=("rate",)
    ),
    "unique": Setting(partial(_one_of, words=_UNIQUE), _words(_UNIQUE)),
    "unique_for": Setting(
        _unique_for,
        f"{_words(_UNIQUE_FOR)}, or a number of seconds from 0.001 to {_MAX_SECONDS}, {_UNITS}",
        ("unique",),
    ),
    "copy_to": Setting(_copies, f"an array of at most {MAX_COPIES} different tube names"),
    "ttr_min": Setting(_read_ttr, _TTR_SETTING),
    "ttr_max": Setting(_read_ttr, _TTR_SETTING),
    "max_job_size": Setting(_size, _SIZE_SETTING),
}
"""Every setting by its key, in the order in which documents and pages show them."""

_KEYS: Final = (_TUBES, _PRIORITY, *SETTINGS)
_ORDERED: Final = (("retry_delay", "retry_delay_max"), ("ttr_min", "ttr_max"))
"""Pairs of settings. If both are on, the first must not exceed the second."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A valid policy, made by `parse_policy`. Callers must not change its settings.

    name        1 to 100 letters, digits and -_. of which the first is a letter or a digit.
    tubes       patterns of tube names, in which `*` matches any characters.
    priority    from -MAX_PRIORITY to MAX_PRIORITY; the higher one wins.
    settings    values by the keys of SETTINGS, as the document gives them.
    """

    name: str
    tubes: tuple[str, ...]
    priority: int
    settings: dict[str, object]

    def document(self) -> dict[str, object]:
        """Return the policy as a TOML or JSON document; `parse_policy` turns it back into an equal policy."""
        return {_TUBES: list(self.tubes), _PRIORITY: self.priority, **self.settings}


def parse_policy(name: str, document: object) -> Policy:
    """Parse *document*, the policy *name*; raise PolicyError with the first error."""
    errors = find_errors(name, document)
    if errors:
        raise errors[0]
    assert isinstance(document, dict)
    settings = {key: document[key] for key in SETTINGS if key in document}
    if "copy_to" in settings:
        settings["copy_to"] = list(document["copy_to"])
    return Policy(name, tuple(document[_TUBES]), document.get(_PRIORITY, 0), settings)


def find_errors(name: str, document: object) -> list[PolicyError]:
    """Return each error in *document*, the table of keys of the policy *name*."""
    if not _NAME.fullmatch(name):
        allowed = "have 1 to 100 letters, digits and -_. and begin with a letter or a digit"
        return [PolicyError(name, f"the name of a policy must {allowed}")]
    if not isinstance(document, dict):
        return [PolicyError(name, f"must be a table of keys, not {_shown(document)}")]
    problems = {str(key): _unknown(key) for key in document if key not in _KEYS}
    problems[_TUBES] = _tubes_problem(document.get(_TUBES, _MISSING))
    priority = document.get(_PRIORITY, 0)
    if type(priority) is not int or abs(priority) > MAX_PRIORITY:
        allowed = f"a whole number from {-MAX_PRIORITY} to {MAX_PRIORITY}"
        problems[_PRIORITY] = f"{_PRIORITY} {_shown(priority)}: must be {allowed}"
    found: dict[str, object] = {}
    for key, setting in SETTINGS.items():
        if key not in document:
            continue
        try:
            found[key] = setting.read(document[key])
        except ValueError:
            problems[key] = f"{key} {_shown(document[key])}: must be {setting.allowed}"
            continue
        if setting.needs and not any(need in document for need in setting.needs):
            problems[key] = f"{key}: must not be set without {' or '.join(setting.needs)}"
    for low, high in _ORDERED:
        least, most = found.get(low), found.get(high)
        if isinstance(least, int) and isinstance(most, int) and 0 < most < least:
            problem = f"must not be below {low}, which is {_shown(document[low])}"
            problems[high] = f"{high} {_shown(document[high])}: {problem}"
    return [PolicyError(name, problem, key) for key, problem in problems.items() if problem]


def _unknown(key: object) -> str:
    """Return the error for *key*, which is not a key of a policy."""
    nearest = difflib.get_close_matches(str(key)[:_MAX_SHOWN], _KEYS, n=1, cutoff=0.0)[0]
    return f"unknown key {_shown(key)}: did you mean {nearest}?"


def _tubes_problem(patterns: object) -> str:
    """Return the error in *patterns*, the value of the key `tubes`, or an empty string."""
    if patterns is _MISSING:
        return f"{_TUBES} is missing: it must be {_PATTERNS}"
    if not isinstance(patterns, list) or not 1 <= len(patterns) <= MAX_PATTERNS:
        return f"{_TUBES}: must be {_PATTERNS}"
    for pattern in patterns:
        if not (isinstance(pattern, str) and is_tube_pattern(pattern)):
            return f"{_TUBES}: {_shown(pattern)} cannot match any tube; * stands for any characters"
    return ""


def _shown(value: object) -> str:
    """Return *value* as short, printable text for a message."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = value if len(value) <= _MAX_SHOWN else value[:_MAX_SHOWN] + "…"
        return text if text.isprintable() and text and " " not in text else repr(text)
    if isinstance(value, int):
        return str(value) if abs(value) < 10**_MAX_SHOWN else "a number of too many digits"
    if isinstance(value, float):
        return str(value)
    if isinstance(value, list):
        return "an array"
    return "a table" if isinstance(value, dict) else f"a value of the type {type(value).__name__}"


@dataclass(frozen=True, slots=True, eq=False)
class EffectivePolicy:
    """The merged settings of a tube. Shared by the tubes that have the same settings from the same policies.

    Times are integer nanoseconds; 0 or empty means that nothing is set.

    max_attempts        attempts after which a job is not delivered again.
    dead_letter         the setting. Dead letters go to the tube that PolicySet.dead_letter returns, which breaks loops.
    retry_delay, retry_delay_max, retry_factor, retry_jitter    the delay after attempt n is
        retry_delay * retry_factor ** (n - 1), times a random number from 1 - retry_jitter to 1 + retry_jitter, and at
        most retry_delay_max. Invariant: if retry_delay is set, retry_delay_max and retry_factor, which is at least 1,
        are set too.
    expire_after, buried_expire_after   maximum age of a job since its put, and of a buried job since its burial.
    expires_to_dead_letter  whether expired jobs go to the dead-letter tube, and are buried if there is none; otherwise
        they are dropped.
    max_jobs, max_bytes, overflow   caps of the tube, and the value of Overflow.
    max_reserved        maximum of jobs that are reserved at the same time.
    rate_interval, rate_burst   time between two starts, and maximum number of starts in a burst. Invariant: both are
                                set, or neither is.
    unique_for, unique_time     the value of UniqueFor, and the time for UniqueFor.TIME.
    copy_to             tubes that get a copy of each new job. Never contains the tube itself.
    ttr_min, ttr_max    bounds of each job's ttr. Invariant: ttr_max is 0, or at least ttr_min.
    max_job_size        maximum size of a body, bytes.
    origins             setting -> name of the policy that it came from.
    values              setting -> value as the policy gives it. Must not be changed.
    """

    values: dict[str, object]
    origins: dict[str, str]
    max_attempts: int = 0
    dead_letter: bytes = b""
    retry_delay: int = 0
    retry_delay_max: int = 0
    retry_factor: float = 0.0
    retry_jitter: float = 0.0
    expire_after: int = 0
    buried_expire_after: int = 0
    expires_to_dead_letter: bool = False
    max_jobs: int = 0
    max_bytes: int = 0
    overflow: int = Overflow.REFUSE
    max_reserved: int = 0
    rate_interval: int = 0
    rate_burst: int = 0
    unique_for: int = UniqueFor.NOTHING
    unique_time: int = 0
    copy_to: tuple[bytes, ...] = ()
    ttr_min: int = 0
    ttr_max: int = 0
    max_job_size: int = 0

    def describe(self) -> dict[str, dict[str, object]]:
        """Return each setting with its value and the name of its policy, as JSON."""
        return {key: {"value": self.values[key], "policy": self.origins[key]} for key in SETTINGS if key in self.values}


def _effective(values: dict[str, object], origins: dict[str, str], tube: bytes) -> EffectivePolicy:
    """Return the policy with the merged *values* of documents. *tube* gets no copies of its own jobs."""
    read: dict[str, Any] = {key: SETTINGS[key].read(value) for key, value in values.items()}
    retries = {key: read.pop(key, 0) for key in ("retry_delay_max", "retry_factor", "retry_jitter")}
    if read.get("retry_delay"):
        read["retry_delay_max"] = retries["retry_delay_max"] or max(DEFAULT_RETRY_DELAY_MAX, read["retry_delay"])
        read["retry_factor"] = retries["retry_factor"] or DEFAULT_RETRY_FACTOR
        read["retry_jitter"] = float(retries["retry_jitter"])
    read["expires_to_dead_letter"] = bool(read.pop("expired_to", 0))
    read["rate_interval"] = interval = read.pop("rate", 0)
    burst = read.pop("rate_burst", 0)
    if interval:
        read["rate_burst"] = burst or max(1, SECOND // (BURSTS_PER_SECOND * interval))
    unique_for = read.pop("unique_for", (UniqueFor.UNFINISHED, 0))
    if read.pop("unique", 0):
        read["unique_for"], read["unique_time"] = unique_for
    read["copy_to"] = tuple([name for name in read.get("copy_to", ()) if name != tube])
    if read.get("ttr_max"):
        read["ttr_max"] = max(read["ttr_max"], read.get("ttr_min", 0))
    return EffectivePolicy(values, origins, **read)


class _Entry:
    """One pattern of one policy.

    dead_letter     the policy's dead-letter tube, or b"".
    """

    __slots__ = ("dead_letter", "pattern", "policy")

    def __init__(self, policy: Policy, pattern: str, dead_letter: bytes) -> None:
        self.policy: Policy = policy
        self.pattern: str = pattern
        self.dead_letter: bytes = dead_letter


def _order(entry: _Entry) -> tuple[int, bool, int, str]:
    """Return a sort key by which the entries that win come first."""
    stars = entry.pattern.count("*")
    return (-entry.policy.priority, stars > 0, stars - len(entry.pattern), entry.policy.name)


class PolicySet:
    """All policies in force. Immutable, apart from caches.

    policies            policies by name.
    dead_letter_tubes   tubes that are the `dead_letter` of any policy.
    """

    def __init__(self, policies: Iterable[Policy] = ()) -> None:
        """Invariant: no two *policies* have the same name."""
        self.policies: dict[str, Policy] = {}
        self._index: PatternIndex = PatternIndex()
        self._entries: list[_Entry] = []
        self._cache: dict[object, EffectivePolicy] = {}
        self._following: dict[bytes, bytes] = {}
        for policy in policies:
            assert policy.name not in self.policies
            self.policies[policy.name] = policy
            dead_letter = _tube(policy.settings.get("dead_letter", ""))
            self._entries += [_Entry(policy, pattern, dead_letter) for pattern in policy.tubes]
        self.dead_letter_tubes: frozenset[bytes] = frozenset([e.dead_letter for e in self._entries if e.dead_letter])
        self._entries.sort(key=_order)
        for number, entry in enumerate(self._entries):
            self._index.add(entry.pattern, number)

    def effective(self, tube: bytes) -> EffectivePolicy | None:
        """Return the merged settings of the tube named *tube*, or None if no policy applies.

        A policy does not apply to its own dead-letter tube, even if one of its patterns matches.
        """
        found = self._index.find(tube)
        if not found:
            return None
        found.sort()
        values: dict[str, object] = {}
        origins: dict[str, str] = {}
        applies = False
        for number in found:
            entry = self._entries[number]
            if entry.dead_letter == tube:
                continue
            applies = True
            for key, value in entry.policy.settings.items():
                if key not in values:
                    values[key] = value
                    origins[key] = entry.policy.name
        if not applies:
            return None
        is_copied = "copy_to" in values and tube in _copies(values["copy_to"])
        winners = (frozenset(origins.items()), tube if is_copied else b"")
        effective = self._cache.get(winners)
        if effective is None:
            if len(self._cache) >= MAX_CACHED:
                self._cache.clear()
            effective = self._cache[winners] = _effective(values, origins, tube)
        return effective

    def matching(self, tube: bytes) -> set[str]:
        """Return the names of the policies that apply to the tube named *tube*, whether or not they win a key."""
        entries = [self._entries[number] for number in self._index.find(tube)]
        return {entry.policy.name for entry in entries if entry.dead_letter != tube}

    def dead_letter(self, tube: bytes) -> bytes:
        """Return the tube that dead letters of *tube* go to, or b"" if they are to be buried.

        They are buried if *tube* has no dead-letter tube, or if its dead letters would come back to it in a loop.
        """
        effective = self.effective(tube)
        target = effective.dead_letter if effective is not None else b""
        return b"" if target and tube in self._chain(target) else target

    def warnings(self) -> list[str]:
        """Return a message for each loop of dead letters."""
        messages: list[str] = []
        seen: set[bytes] = set()
        for target in sorted(self.dead_letter_tubes):
            tube, chain = target, dict[bytes, None]()
            while tube and tube not in seen:
                seen.add(tube)
                chain[tube] = None
                tube = self._follow(tube)
            if tube in chain:
                messages.append(_loop_warning([name.decode() for name in self._chain(tube)]))
        return messages

    def _chain(self, tube: bytes) -> list[bytes]:
        """Return *tube*, its dead-letter tube, and so on, until there is none or a tube is repeated."""
        chain: dict[bytes, None] = {}
        while tube and tube not in chain:
            chain[tube] = None
            tube = self._follow(tube)
        return list(chain)

    def _follow(self, tube: bytes) -> bytes:
        """Return the dead-letter tube of *tube*, which itself receives dead letters; b"" if it has none."""
        following = self._following.get(tube)
        if following is None:
            effective = self.effective(tube)
            following = self._following[tube] = effective.dead_letter if effective is not None else b""
        return following


def _loop_warning(names: list[str]) -> str:
    loop = " go to ".join([*names, names[0]])
    consequence = f"a job that ran out of attempts, or expired, is buried in {' and '.join(names)} instead"
    return f"the dead letters of {loop}: {consequence}"
