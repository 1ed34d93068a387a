"""Preset durations that forms offer for pauses and acknowledgements, and the duration that a form sends. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from werkzeug.exceptions import BadRequest

from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.web.framework import fields
from greenstalk_server.web.framework.fields import MAX_NUMBER

DAY: Final = 24 * 3600
"""Seconds."""

TOMORROW: Final = "tomorrow"

MAX_UTC_OFFSET: Final = 14 * 60
"""Maximum minutes by which the clocks of a zone are ahead of UTC, and behind UTC."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A length of time. *key* is the number of seconds, or TOMORROW."""

    key: str
    label: str
    help: str = ""


UNTIL_TOMORROW: Final = Preset(TOMORROW, "Until tomorrow", "Until the next midnight in the time zone of your settings")


PAUSE_PRESETS: Final = (Preset("300", "5 min"), Preset("3600", "1 h"), Preset("28800", "8 h"), UNTIL_TOMORROW)


def pause_seconds(form: fields.Fields, now: int) -> int:
    """Return the length of the pause in the fields `preset`, which may be empty, and `seconds`, at the time *now*."""
    if form.get("preset"):
        return preset_seconds(form, PAUSE_PRESETS, now)
    return fields.number(form, "seconds", 1, MAX_NUMBER)


def preset_seconds(form: fields.Fields, presets: Sequence[Preset], now: int) -> int:
    """Return the seconds of the preset in the field `preset`, one of *presets*, at the time *now*.

    The field `utc-offset` has the minutes by which the zone of the principal is ahead of UTC, for TOMORROW.
    """
    preset, keys = form.get("preset", ""), [one.key for one in presets]
    if preset not in keys:
        raise BadRequest(f"“preset” must be one of {', '.join(keys)}, not “{preset[:40]}”.")
    if preset != TOMORROW:
        return int(preset)
    given = form.get("utc-offset", "0")
    behind = given.startswith("-")
    offset = fields.number({"utc-offset": given.removeprefix("-")}, "utc-offset", 0, MAX_UTC_OFFSET)
    local = now // SECOND + (-offset if behind else offset) * 60
    return DAY - local % DAY
