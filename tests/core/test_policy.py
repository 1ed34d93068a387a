"""Policies: valid and invalid documents, the merging of several policies, and the routes of dead letters."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.policies.policy import (
    MAX_COPIES,
    MAX_PATTERNS,
    SETTINGS,
    EffectivePolicy,
    Overflow,
    Policy,
    PolicyError,
    PolicySet,
    UniqueFor,
    find_errors,
    parse_policy,
)

NAN, INFINITY = float("nan"), float("inf")

ALL: dict[str, Any] = {
    "tubes": ["mail.*", "sms"],
    "priority": 7,
    "max_attempts": 5,
    "dead_letter": "failed",
    "retry_delay": 0.5,
    "retry_delay_max": 300,
    "retry_factor": 3,
    "retry_jitter": 0.25,
    "expire_after": "1d",
    "buried_expire_after": "1h30m",
    "expired_to": "dead-letter",
    "max_jobs": 1000,
    "max_bytes": "10MB",
    "overflow": "dead-letter-oldest",
    "max_reserved": 20,
    "rate": 100,
    "rate_burst": 200,
    "unique": "body",
    "unique_for": 60,
    "copy_to": ["audit", "search"],
    "ttr_min": 10,
    "ttr_max": 600,
    "max_job_size": "64k",
}
"""A document with every key."""

ENGINE_VALUES = {
    "max_attempts": 5,
    "dead_letter": b"failed",
    "retry_delay": SECOND // 2,
    "retry_delay_max": 300 * SECOND,
    "retry_factor": 3.0,
    "retry_jitter": 0.25,
    "expire_after": 86400 * SECOND,
    "buried_expire_after": 5400 * SECOND,
    "expires_to_dead_letter": True,
    "max_jobs": 1000,
    "max_bytes": 10 * 2**20,
    "overflow": Overflow.DEAD_LETTER_OLDEST,
    "max_reserved": 20,
    "rate_interval": SECOND // 100,
    "rate_burst": 200,
    "unique_for": UniqueFor.TIME,
    "unique_time": 60 * SECOND,
    "copy_to": (b"audit", b"search"),
    "ttr_min": 10 * SECOND,
    "ttr_max": 600 * SECOND,
    "max_job_size": 65536,
}
"""The values of ALL in an EffectivePolicy."""


WRONG_TIMES: list[object] = [-1, -0.001, 0.0001, "500us", NAN, INFINITY, 2**32, "2d1", "", " 1", "-1s", True, 10**400]


def policy(name: str, *tubes: str, **keys: Any) -> Policy:
    return parse_policy(name, {"tubes": list(tubes), **keys})


def effective(**keys: Any) -> EffectivePolicy:
    found = PolicySet([policy("p", "*", **keys)]).effective(b"tube")
    assert found is not None
    return found


def test_document_with_every_key_is_converted_to_engine_values() -> None:
    assert set(ALL) == {"tubes", "priority", *SETTINGS}
    found = PolicySet([parse_policy("p", ALL)]).effective(b"mail.out")
    assert {name: getattr(found, name) for name in ENGINE_VALUES} == ENGINE_VALUES


def test_settings_that_no_policy_has_are_zero_or_empty() -> None:
    found = effective()
    assert not any(getattr(found, name) for name in ENGINE_VALUES)


def test_settings_that_depend_on_another_have_defaults() -> None:
    retries = effective(retry_delay=10)
    assert (retries.retry_factor, retries.retry_delay_max, retries.retry_jitter) == (2.0, 3600 * SECOND, 0.0)
    assert effective(retry_delay=7200).retry_delay_max == 7200 * SECOND
    assert effective(retry_delay=10, retry_delay_max=0).retry_delay_max == 3600 * SECOND
    assert effective(rate=100).rate_burst == 10
    assert effective(rate=0.5).rate_burst == 1
    assert effective(rate=0.5).rate_interval == 2 * SECOND
    assert effective(unique="body").unique_for == UniqueFor.UNFINISHED
    assert not effective(expire_after=1).expires_to_dead_letter
    assert effective(max_jobs=1).overflow == Overflow.REFUSE


def test_zero_or_empty_turns_a_setting_of_another_policy_off() -> None:
    off: dict[str, Any] = {
        key: 0
        for key, value in ALL.items()
        if key in SETTINGS and isinstance(value, int | float) and key != "rate_burst"
    }
    off |= {"dead_letter": "", "copy_to": [], "unique": "nothing", "retry_factor": 1, "max_bytes": 0, "unique_for": 60}
    off |= {"expire_after": 0, "buried_expire_after": "0s", "max_job_size": "0", "overflow": "refuse"}
    off["expired_to"] = "drop"
    found = PolicySet([parse_policy("general", ALL), policy("special", "mail.bulk", priority=8, **off)])
    bulk = found.effective(b"mail.bulk")
    assert bulk is not None
    assert not any(getattr(bulk, name) for name in ENGINE_VALUES)
    assert found.effective(b"mail.x").max_attempts == 5


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("max_attempts", value) for value in (-1, 2**32, 1.0, "5", True, None, [5])],
        *[("dead_letter", value) for value in ("-a", "a b", "ü", "a" * 201, "mail.*", "\ud800", 5, None)],
        *[(key, time) for key in ("retry_delay", "expire_after", "buried_expire_after") for time in WRONG_TIMES],
        *[("retry_factor", value) for value in (0, 0.99, -2, 101, NAN, INFINITY, "2", False, 10**400)],
        *[("retry_jitter", value) for value in (-0.1, 1.1, 2, NAN, "0.5", True)],
        *[("expired_to", value) for value in ("", "bury", 1, None, ["drop"])],
        *[("max_jobs", value) for value in (-1, 2**63, 1.5, "10", True)],
        *[("max_bytes", value) for value in (-1, 2**63, 1.5, "10X", "-1k", "9999999T", True)],
        *[("overflow", value) for value in ("drop", "", 0, None)],
        *[("max_reserved", value) for value in (-1, 2**63, 0.5, "1")],
        *[("rate", value) for value in (-1, 0.000001, 1_000_001, NAN, INFINITY, "100", True)],
        *[("rate_burst", value) for value in (0, -1, 1_000_001, 1.5, True)],
        *[("unique", value) for value in ("id", "", True, None)],
        *[("unique_for", value) for value in ("ready", "", 0, -1, NAN, True, None, 0.0001)],
        *[
            ("copy_to", value)
            for value in ("audit", [""], ["a", "a"], ["a*"], [1], None, [f"t{n}" for n in range(MAX_COPIES + 1)])
        ],
        *[(key, ttr) for key in ("ttr_min", "ttr_max") for ttr in (0.5, -1, 2**32, NAN, "100ms")],
        *[("max_job_size", value) for value in (-1, 0.5, "big", True)],
        *[("priority", value) for value in (1_000_001, -1_000_001, 0.5, "1", None, True)],
        ("tubes", []),
        ("tubes", "mail"),
        ("tubes", None),
        ("tubes", ["a"] * (MAX_PATTERNS + 1)),
    ],
)
def test_wrong_value_is_named_with_its_policy_and_key(key: str, value: object) -> None:
    (error,) = find_errors("mail", ALL | {key: value})
    assert (error.name, error.key) == ("mail", key)
    assert str(error).startswith(f"policy mail: {key}")
    assert "must be" in str(error)


@pytest.mark.parametrize("pattern", ["", "a b", "ü*", "a" * 201, 5, None, ["a"], "\ud800"])
def test_pattern_that_cannot_match_a_tube_is_refused(pattern: object) -> None:
    with pytest.raises(PolicyError, match=r"^policy mail: tubes: .* cannot match any tube"):
        parse_policy("mail", {"tubes": ["mail.*", pattern]})


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"max_jobs": 1}, "policy p: tubes is missing: it must be an array of 1 to 100 tube names, in which * matches"),
        ({"tubes": ["a"], "max_atempts": 5}, "policy p: unknown key max_atempts: did you mean max_attempts?"),
        ({"tubes": ["a"], 5: 5}, "policy p: unknown key 5: did you mean"),
        ({"tubes": ["a"], "x" * 5000: 5}, f"policy p: unknown key {'x' * 60}…: did you mean"),
        (
            {"tubes": ["a"], "max_attempts": -5},
            "policy p: max_attempts -5: must be a whole number of attempts from 0 (no limit) to 4294967295",
        ),
        ({"tubes": ["a"], "max_attempts": 10**5000}, "policy p: max_attempts a number of too many digits: must be"),
        (
            {"tubes": ["a"], "retry_delay_max": 5},
            "policy p: retry_delay_max: must not be set without retry_delay",
        ),
        ({"tubes": ["a"], "rate_burst": 5}, "policy p: rate_burst: must not be set without rate"),
        ({"tubes": ["a"], "overflow": "refuse"}, "policy p: overflow: must not be set without max_jobs or max_bytes"),
        ({"tubes": ["a"], "unique_for": 5}, "policy p: unique_for: must not be set without unique"),
        (
            {"tubes": ["a"], "expired_to": "drop"},
            "policy p: expired_to: must not be set without expire_after or buried_expire_after",
        ),
        (
            {"tubes": ["a"], "retry_delay": "1m", "retry_delay_max": 59.5},
            "policy p: retry_delay_max 59.5: must not be below retry_delay, which is 1m",
        ),
        ({"tubes": ["a"], "ttr_min": 2, "ttr_max": 1}, "policy p: ttr_max 1: must not be below ttr_min, which is 2"),
        ([], "policy p: must be a table of keys, not an array"),
        (None, "policy p: must be a table of keys, not a value of the type NoneType"),
    ],
)
def test_message_says_what_is_wrong_and_allowed(document: object, message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy("p", document)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("name", ["", "-a", ".", "..", "a/b", "a b", "ü", "a" * 101, "a\n"])
def test_name_that_does_not_fit_an_address_is_refused(name: str) -> None:
    with pytest.raises(PolicyError, match="the name of a policy must have 1 to 100 letters, digits"):
        parse_policy(name, {"tubes": ["a"]})


def test_every_mistake_is_found() -> None:
    document = {"tubes": ["a b"], "priority": "high", "max_jobs": -1, "rate_burst": 5, "cap": 5}
    assert [error.key for error in find_errors("p", document)] == [
        "cap",
        "tubes",
        "priority",
        "max_jobs",
        "rate_burst",
    ]


def test_policy_gives_back_its_document_as_given() -> None:
    parsed = parse_policy("p", ALL)
    assert parsed.document() == ALL
    assert parse_policy("p", json.loads(json.dumps(parsed.document()))) == parsed
    assert policy("p", "a").document() == {"tubes": ["a"], "priority": 0}


def test_policy_does_not_change_with_the_document_that_it_was_parsed_from() -> None:
    document: dict[str, Any] = {"tubes": ["a"], "copy_to": ["b"]}
    parsed = parse_policy("p", document)
    document["tubes"].append("c")
    document["copy_to"].append("c")
    assert parsed.document() == {"tubes": ["a"], "priority": 0, "copy_to": ["b"]}


VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-5, max_value=5000)
    | st.floats()
    | st.text()
    | st.sampled_from(["a", "drop", "dead-letter", "refuse", "body", "waiting", "1h", "64k", "5", "mail.*"])
)
DOCUMENTS = st.dictionaries(
    st.sampled_from([*ALL]) | st.text(), VALUES | st.lists(VALUES) | st.dictionaries(st.text(), VALUES)
)


@given(st.text() | st.just("p"), DOCUMENTS | VALUES)
def test_any_document_is_a_policy_or_a_policy_error(name: str, document: object) -> None:
    try:
        parsed = parse_policy(name, document)
    except PolicyError as error:
        message = str(error)
    else:
        message = "policy"
        assert parse_policy(name, parsed.document()) == parsed
        PolicySet([parsed]).effective(b"a")
    assert message.startswith("policy")
    assert message.isprintable()


@given(st.fixed_dictionaries({}, optional={key: st.just(value) for key, value in ALL.items()}), DOCUMENTS)
def test_any_change_of_a_valid_document_is_a_policy_or_a_policy_error(
    document: dict[str, object], changes: dict[str, object]
) -> None:
    try:
        parsed = parse_policy("p", document | changes)
    except PolicyError:
        return
    PolicySet([parsed]).effective(b"mail.x")


def test_no_policy_matches() -> None:
    assert PolicySet().effective(b"mail") is None
    assert PolicySet([policy("p", "mail.*", max_jobs=1)]).effective(b"mail") is None
    assert PolicySet().dead_letter(b"mail") == b""


def test_settings_are_merged_key_by_key() -> None:
    policies = PolicySet(
        [
            policy("all", "*", max_attempts=3, max_jobs=100, dead_letter="failed"),
            policy("mail", "mail.*", max_attempts=5, expire_after=60),
            policy("bulk", "mail.bulk", max_attempts=1),
            policy("urgent", "*", priority=1, max_jobs=10),
        ]
    )
    assert policies.effective(b"mail.bulk").describe() == {
        "max_attempts": {"value": 1, "policy": "bulk"},
        "dead_letter": {"value": "failed", "policy": "all"},
        "expire_after": {"value": 60, "policy": "mail"},
        "max_jobs": {"value": 10, "policy": "urgent"},
    }
    assert policies.effective(b"mail.x").max_attempts == 5
    assert policies.effective(b"x").max_attempts == 3


def test_policies_that_are_equal_otherwise_win_by_their_names() -> None:
    policies = PolicySet([policy("b", "a*", max_jobs=1), policy("a", "*a", max_jobs=2), policy("c", "a*", max_jobs=3)])
    assert policies.effective(b"a").max_jobs == 2


def test_tubes_with_the_same_winners_share_one_effective_policy() -> None:
    policies = PolicySet([policy("mail", "mail.*", max_jobs=1), policy("all", "*", max_jobs=5)])
    assert policies.effective(b"mail.a") is policies.effective(b"mail.b")
    assert policies.effective(b"a") is policies.effective(b"b")
    assert policies.effective(b"a") is not policies.effective(b"mail.a")


PATTERNS = st.text("ab*", min_size=1, max_size=4)
SETTING = st.sampled_from(
    [{"max_jobs": 1}, {"max_jobs": 2}, {"max_reserved": 3}, {"max_attempts": 4}, {"copy_to": ["a", "b"]}]
)
POLICIES = st.lists(
    st.tuples(
        st.sampled_from("pqrst"),
        st.lists(PATTERNS, min_size=1, max_size=3),
        st.integers(0, 1),
        SETTING | st.just({}),
        st.none() | st.text("ab", min_size=1, max_size=2),
    ),
    max_size=5,
    unique_by=lambda each: each[0],
)


def is_match(pattern: str, name: str) -> bool:
    """Whether *pattern* matches *name*, by trying every length for each star."""
    if not pattern:
        return not name
    if pattern[0] == "*":
        return any(is_match(pattern[1:], name[begin:]) for begin in range(len(name) + 1))
    return name[:1] == pattern[0] and is_match(pattern[1:], name[1:])


def merged(policies: list[Policy], tube: str) -> dict[str, dict[str, object]] | None:
    """Return the settings of *tube* and their policies, by a search of every policy for every setting."""
    ranks = {}
    for each in policies:
        matching = [pattern for pattern in each.tubes if is_match(pattern, tube)]
        if matching and each.settings.get("dead_letter") != tube:
            best = max(("*" not in pattern, len(pattern.replace("*", ""))) for pattern in matching)
            ranks[each.name] = (-each.priority, not best[0], -best[1], each.name)
    if not ranks:
        return None
    found = {}
    for key in SETTINGS:
        having = [each for each in policies if each.name in ranks and key in each.settings]
        if having:
            winner = min(having, key=lambda each: ranks[each.name])
            found[key] = {"value": winner.settings[key], "policy": winner.name}
    return found


@given(POLICIES, st.lists(st.text("ab", min_size=1, max_size=4), min_size=1))
def test_merging_equals_a_search_of_all_policies(documents: list[Any], tubes: list[str]) -> None:
    policies = [
        policy(name, *patterns, priority=priority, **keys, **({"dead_letter": target} if target else {}))
        for name, patterns, priority, keys, target in documents
    ]
    found = PolicySet(policies)
    for tube in tubes:
        result, reference = found.effective(tube.encode()), merged(policies, tube)
        assert (result.describe() if result is not None else None) == reference
        if reference is not None and "copy_to" in reference:
            assert result.copy_to == tuple(name for name in (b"a", b"b") if name != tube.encode())


@given(POLICIES)
def test_dead_letters_never_loop(documents: list[Any]) -> None:
    policies = PolicySet(
        [
            policy(name, *patterns, priority=priority, **({"dead_letter": target} if target else {}))
            for name, patterns, priority, _, target in documents
        ]
    )
    is_cut = False
    for tube in (b"a", b"b", b"aa", b"ab", b"ba", b"bb", b"c"):
        seen = [tube]
        while target := policies.dead_letter(seen[-1]):
            assert target not in seen
            seen.append(target)
        found = policies.effective(seen[-1])
        is_cut = is_cut or bool(found and found.dead_letter)
    assert bool(policies.warnings()) is is_cut


def test_loop_of_dead_letters_is_cut_in_each_of_its_tubes_only() -> None:
    policies = PolicySet(
        [
            policy("a", "a*", dead_letter="b"),
            policy("b", "b", dead_letter="c"),
            policy("c", "c", dead_letter="a1"),
        ]
    )
    targets = {tube: policies.dead_letter(tube) for tube in (b"a1", b"b", b"c", b"a2", b"d")}
    assert targets == {b"a1": b"", b"b": b"", b"c": b"", b"a2": b"b", b"d": b""}
    (warning,) = policies.warnings()
    assert warning.startswith("the dead letters of a1 go to b go to c go to a1: ")
    assert warning.endswith("a job that ran out of attempts, or expired, is buried in a1 and b and c instead")


def test_matching_names_all_policies_that_apply() -> None:
    one = parse_policy("one", {"tubes": ["mail.*", "mail.a*"], "priority": 5, "max_jobs": 1})
    two = parse_policy("two", {"tubes": ["*"], "max_jobs": 2, "dead_letter": "mail.failed"})
    found = PolicySet([one, two])
    assert found.matching(b"mail.a") == {"one", "two"}
    assert found.matching(b"mail.failed") == {"one"}
    assert found.matching(b"other") == {"two"}


def test_policy_does_not_apply_to_its_own_dead_letter_tube() -> None:
    policies = PolicySet(
        [
            policy("mail", "mail.*", max_attempts=5, expire_after=60, dead_letter="mail.failed"),
            policy("all", "*", max_jobs=9),
        ]
    )
    assert policies.effective(b"mail.failed").describe() == {"max_jobs": {"value": 9, "policy": "all"}}
    assert policies.dead_letter(b"mail.failed") == b""
    assert policies.dead_letter(b"mail.x") == b"mail.failed"
    assert PolicySet([policy("mail", "mail.*", dead_letter="mail.failed")]).effective(b"mail.failed") is None
    assert policies.warnings() == []


def test_tube_is_never_copied_to_itself() -> None:
    policies = PolicySet([policy("p", "*", copy_to=["audit", "search"])])
    assert policies.effective(b"mail").copy_to == (b"audit", b"search")
    assert policies.effective(b"audit").copy_to == (b"search",)
    assert policies.effective(b"search").copy_to == (b"audit",)


def test_bounds_that_contradict_each_other_after_merging_favour_the_minimum() -> None:
    policies = PolicySet([policy("a", "*", ttr_min=60), policy("b", "*", ttr_max=10)])
    assert (policies.effective(b"t").ttr_min, policies.effective(b"t").ttr_max) == (60 * SECOND, 60 * SECOND)
