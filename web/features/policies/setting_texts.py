"""The settings of policies as text: their labels, groups and explanations, and their values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.units import parse_size, parse_time
from greenstalk_server.web.framework import text

COUNT: Final = "count"
NUMBER: Final = "number"
RATE: Final = "rate"
TIME: Final = "time"
SIZE: Final = "size"
TUBE: Final = "tube"
TUBES: Final = "tubes"
UNIQUE_FOR: Final = "unique_for"

OFF: Final = "off"


@dataclass(frozen=True, slots=True)
class SettingText:
    """A setting of a policy as pages show it.

    kind            COUNT, NUMBER, RATE, TIME, SIZE, TUBE, TUBES or UNIQUE_FOR; empty for one of *words*.
    words           allowed values, the default first; empty if the value is not one of a few words.
    """

    label: str
    kind: str
    help: str
    words: tuple[str, ...] = ()


SETTING_TEXTS: Final[Mapping[str, SettingText]] = {
    "max_attempts": SettingText(
        "Maximum attempts", COUNT, "After this many failed attempts, a job becomes a dead letter, or is buried."
    ),
    "dead_letter": SettingText(
        "Dead-letter tube",
        TUBE,
        "The tube for jobs that ran out of attempts, and for jobs that other settings send there.",
    ),
    "retry_delay": SettingText("Retry delay", TIME, "Delay after the first failed attempt."),
    "retry_delay_max": SettingText("Maximum retry delay", TIME, "Default: 1 hour."),
    "retry_factor": SettingText("Retry factor", NUMBER, "Each further delay is longer by this factor. Default: 2."),
    "retry_jitter": SettingText("Retry jitter", NUMBER, "0.1 varies each delay by up to 10 %. Default: 0."),
    "expire_after": SettingText("Expire after", TIME, "Ready and delayed jobs expire this long after their put."),
    "buried_expire_after": SettingText(
        "Buried jobs expire after", TIME, "Buried jobs expire this long after their burial."
    ),
    "expired_to": SettingText("Expired jobs", "", "The destination of expired jobs.", ("drop", "dead-letter")),
    "max_jobs": SettingText("Maximum jobs", COUNT, "Maximum number of jobs of one tube, in all states."),
    "max_bytes": SettingText("Maximum bytes", SIZE, "Maximum total size of the bodies of one tube."),
    "overflow": SettingText(
        "When full", "", "The effect of a put into a full tube.", ("refuse", "drop-oldest", "dead-letter-oldest")
    ),
    "max_reserved": SettingText(
        "Maximum reserved jobs", COUNT, "Maximum number of jobs of one tube that are reserved at the same time."
    ),
    "rate": SettingText("Maximum rate", RATE, "Maximum number of reservations per second from one tube."),
    "rate_burst": SettingText("Rate burst", COUNT, "Maximum number of reservations in a burst. Default: rate / 10."),
    "unique": SettingText("Unique", "", "With “body”, a put adds nothing if an equal job exists.", ("nothing", "body")),
    "unique_for": SettingText(
        "Unique for", UNIQUE_FOR, "“waiting”, “unfinished” (the default), or a time since the put."
    ),
    "copy_to": SettingText("Copies to", TUBES, "Tubes that get a copy of each new job, separated by spaces."),
    "ttr_min": SettingText("Minimum TTR", TIME, "A shorter time to run is raised to this."),
    "ttr_max": SettingText("Maximum TTR", TIME, "A longer time to run is reduced to this."),
    "max_job_size": SettingText("Maximum body", SIZE, "A put with a larger body is refused."),
}
"""Each setting, in the order in which pages show them."""

GROUPS: Final = (
    ("Attempts and dead letters", ("max_attempts", "dead_letter")),
    ("Retries", ("retry_delay", "retry_delay_max", "retry_factor", "retry_jitter")),
    ("Expiry", ("expire_after", "buried_expire_after", "expired_to")),
    ("Size of a tube", ("max_jobs", "max_bytes", "overflow")),
    ("Pace", ("max_reserved", "rate", "rate_burst")),
    ("Duplicates and copies", ("unique", "unique_for", "copy_to")),
    ("Limits of a job", ("ttr_min", "ttr_max", "max_job_size")),
)
"""The settings by group, for the form."""

COUNT_TEXTS: Final = (
    ("Became dead letters", "dead_lettered"),
    ("Received as dead letters", "received"),
    ("Buried by a policy", "buried"),
    ("Expired", "expired"),
    ("Dropped, tube full", "dropped"),
    ("Puts refused", "refused"),
    ("Retries delayed", "retried"),
    ("Duplicate puts", "duplicates"),
    ("Copies put elsewhere", "copied"),
    ("Held by rate", "rate_holds"),
    ("Held by maximum reserved", "reserved_holds"),
)
"""Label and attribute of each counter of PolicyCounts."""


def value_text(key: str, value: object) -> str:
    """Return *value* of the setting *key* for people: `90 min`, `65,536 bytes`, `100 per second`, `off`."""
    if isinstance(value, list):
        return ", ".join(map(str, value)) or OFF
    kind = SETTING_TEXTS[key].kind
    if isinstance(value, str):
        value = _parsed(kind, value)
    if value in (0, "", "nothing"):
        return OFF
    if isinstance(value, str):
        return value
    assert isinstance(value, int | float)
    if kind in (TIME, UNIQUE_FOR):
        return _time_text(value)
    if kind == SIZE:
        return text.size(int(value))
    return f"{value:,} per second" if kind == RATE else f"{value:,}"


def setting_pairs(document: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return the label and the value of each setting of the policy *document*, for people."""
    return [(one.label, value_text(key, document[key])) for key, one in SETTING_TEXTS.items() if key in document]


def document_text(document: str) -> str:
    """Return the JSON *document* of a policy for people: `tubes: mail.*; maximum jobs: 1,000; when full: refuse`.

    The audit log may have cut the document: `…` stands for the settings after the cut.
    """
    read, end = _read_cut(document)
    pairs = [("tubes", value_text("tubes", read["tubes"]))] if "tubes" in read else []
    pairs += [("priority", str(read["priority"]))] if read.get("priority") else []
    pairs += [(label[0].lower() + label[1:], value) for label, value in setting_pairs(read)]
    return "; ".join([*(f"{label}: {value}" for label, value in pairs), *([] if end == len(document) else ["…"])])


def _read_cut(document: str) -> tuple[dict[str, object], int]:
    """Return the members of a JSON object that may be cut, and the position after the last one that is whole."""
    end = len(document)
    while end > 0:
        with suppress(ValueError):
            whole = document if end == len(document) else document[:end] + "}"
            return dict(json.loads(whole)), end
        end = document.rfind(',"', 0, end)
    return {}, 0


def _parsed(kind: str, value: str) -> str | float:
    """Return *value*, such as `14d` or `64k`, in seconds or bytes; or as it is, if it is not a time or a size."""
    with suppress(ValueError):
        if kind in (TIME, UNIQUE_FOR):
            time = parse_time(value, SECOND)
            return time / SECOND if time % SECOND else time // SECOND
        if kind == SIZE:
            return parse_size(value)
    return value


def _time_text(seconds: float) -> str:
    """Return *seconds* exactly, in the largest unit that divides them."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds % size == 0:
            return f"{int(seconds) // size:,}{text.NBSP}{unit}"
    return f"{seconds:,}{text.NBSP}s"
