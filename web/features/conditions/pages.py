"""The panel “Needs attention” of the overview, and the page `/attention` with all rows and the acknowledgements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from flask import Flask, make_response, redirect, render_template, request, url_for
from werkzeug.exceptions import BadRequest
from werkzeug.wrappers import Response

from greenstalk_server.config.tables.receivers import CONDITION_KINDS
from greenstalk_server.config.tables.roles import OPERATOR
from greenstalk_server.core.jobs.job import MAX_ID, SECOND
from greenstalk_server.core.tube_names import is_tube_pattern
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.features.conditions.acknowledgements import MAX_REASON_LENGTH, MAX_SECONDS, Acknowledgement
from greenstalk_server.web.features.conditions.changes import AcknowledgementChanges, may_acknowledge
from greenstalk_server.web.features.conditions.measures import BURIED, KINDS, ActiveCondition
from greenstalk_server.web.features.conditions.rows import AttentionModel, Row, Rows
from greenstalk_server.web.features.conditions.visible import Condition, shown_condition
from greenstalk_server.web.framework import fields, text
from greenstalk_server.web.framework.api.values import instant
from greenstalk_server.web.framework.presets import UNTIL_TOMORROW, Preset, preset_seconds
from greenstalk_server.web.framework.rights import open_to
from greenstalk_server.web.live.hub import LiveHub, State, render_blocks

MAX_PANEL_ROWS: Final = 5
"""Rows in the panel of the overview; it counts the others."""

MAX_PAGE_ROWS: Final = 200
"""Rows on the page, and acknowledged rows in the panel."""

SAME_DAY: Final = 12 * 3600 * SECOND
"""Nanoseconds for which a time is shown without its date."""

PARTS: Final = ("attention", "acknowledgements")
"""Blocks of attention.html, each within an element with its name in `data-part`."""

DURATIONS: Final = (
    Preset("3600", "1 hour"), Preset("28800", "8 hours"), UNTIL_TOMORROW, Preset("86400", "1 day"),
    Preset("259200", "3 days"), Preset("604800", "7 days"),
)  # fmt: skip
"""The lengths of acknowledgements that the form offers."""

KIND_LABELS: Final = {kind.name: kind.label for kind in KINDS}


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A row.

    worst               its worst condition.
    text                the sentence of that condition, without the name of the tube.
    form, lasting       the form in which its start is shown, and its age.
    error               the most common error of the buried jobs of its tube; empty if it is not known.
    chips               label and link of each further condition.
    href                URL of the form that acknowledges the conditions; empty if the principal may not acknowledge
                        them.
    acknowledgement     of the worst condition; None if it is not acknowledged.
    """

    worst: Condition
    text: str
    form: str
    lasting: str
    error: str
    chips: list[tuple[str, str]]
    href: str
    acknowledgement: Acknowledgement | None


@dataclass(frozen=True, slots=True)
class AttentionPanel:
    """The contents of the panel.

    rows            the worst rows.
    summary         the numbers of rows; empty if there are none.
    more            number of rows that `rows` leaves out.
    acknowledged    rows whose conditions are acknowledged, and their number.
    is_evaluated    whether all tubes have been evaluated since the start.
    """

    rows: list[ShownRow]
    summary: str
    more: int
    acknowledged: list[ShownRow]
    acknowledged_count: int
    is_evaluated: bool


WorstErrors = Callable[[bool], Mapping[bytes, tuple[str, int]]]
"""Returns the most common error of each tube, and its number of jobs; starts to find them if its argument is True."""


def attention_panel(
    attention: AttentionModel, errors: WorstErrors, now: int, most: int = MAX_PANEL_ROWS
) -> AttentionPanel:
    """Return the panel with the *most* worst rows that the principal may see, at the time *now*. May switch."""
    found = attention.visible()
    worst = errors(any(row.worst.measure.kind == BURIED for row in found.active.rows[:most]))
    total = found.active.severities.total()
    return AttentionPanel(
        rows=[_shown(row, worst, now) for row in found.active.rows[:most]],
        summary=_summary(found.active),
        more=max(0, total - most),
        acknowledged=[_shown(row, worst, now) for row in found.acknowledged.rows[:MAX_PAGE_ROWS]],
        acknowledged_count=found.acknowledged.severities.total(),
        is_evaluated=bool(attention.monitor.evaluated_at),
    )


class AttentionPages:
    """The page `/attention`, and its forms."""

    def __init__(
        self, attention: AttentionModel, changes: AcknowledgementChanges, errors: WorstErrors, clock: Clock
    ) -> None:
        self._errors: WorstErrors = errors
        self._attention: AttentionModel = attention
        self._changes: AcknowledgementChanges = changes
        self._clock: Clock = clock

    def init_app(self, app: Flask, live: LiveHub) -> None:
        """Add the page to *app*, and register it with *live* for live updates."""
        app.add_url_rule("/attention", "attention", self.page)
        app.add_url_rule("/attention/acknowledge", "acknowledge", self.acknowledge, methods=["POST"])
        app.add_url_rule("/attention/acknowledge/end", "acknowledge_end", self.end, methods=["POST"])
        live.register("attention", self.state)

    def page(self) -> str:
        """Serve `/attention?tubes=&kind=`; the arguments fill the form that acknowledges conditions. May switch."""
        return self._render({name: request.args.get(name, "")[:200] for name in ("tubes", "kind")}, "")

    def state(self, _: Mapping[str, str], now: int) -> State:
        """Return the live state of `/attention`. May switch."""
        return {"parts": render_blocks("attention.html", PARTS, self._values(now))}

    @open_to(OPERATOR)
    def acknowledge(self) -> Response:
        """Serve `/attention/acknowledge`: acknowledge `kind` of `tubes` for `preset` or `hours`. Switches."""
        form = request.form
        try:
            tubes, kind, seconds, reason = read_acknowledgement(form, self._clock())
        except BadRequest as error:
            return make_response(self._render(form, error.description or ""), 400)
        one = self._changes.acknowledge(tubes, kind, seconds, reason, covers_new=form.get("covers_new") == "1")
        return redirect(url_for("attention", notice="acknowledged", n=one.id), 303)

    @open_to(OPERATOR)
    def end(self) -> Response:
        """Serve `/attention/acknowledge/end`: end the acknowledgement `id`. Switches."""
        self._changes.end(fields.number(request.form, "id", 1, MAX_ID))
        return redirect(url_for("attention", notice="ended-acknowledgement", n=0), 303)

    def _render(self, form: Mapping[str, str], refused: str) -> str:
        return render_template(
            "attention.html",
            **self._values(self._clock()),
            form=form,
            refused=refused,
            kinds=[(name, f"{KIND_LABELS[name]} ({name})") for name in CONDITION_KINDS],
            durations=DURATIONS,
            longest_reason=MAX_REASON_LENGTH,
            most_hours=MAX_SECONDS // 3600,
        )

    def _values(self, now: int) -> dict[str, Any]:
        return {
            "attention": attention_panel(self._attention, self._errors, now, MAX_PAGE_ROWS),
            "acknowledgements": self._changes.visible(),
            "kind_labels": KIND_LABELS,
            "may_acknowledge": may_acknowledge,
            "now": instant(now),
        }


def read_acknowledgement(form: Mapping[str, str], now: int) -> tuple[str, str, int, str]:
    """Return the fields `tubes`, `kind`, `hours` or `preset` in seconds, and `reason` of *form*; raise BadRequest."""
    tubes, kind = form.get("tubes", "").strip(), form.get("kind", "")
    if tubes and not is_tube_pattern(tubes):
        raise BadRequest(
            f"“tubes” must be a pattern of tube names, not “{tubes[:60]}”: 1 to 200 characters of tube names and *, or"
            " empty for all."
        )
    if kind and kind not in CONDITION_KINDS:
        raise BadRequest(f"“kind” must be one of {', '.join(CONDITION_KINDS)}, or empty for all.")
    if form.get("hours", "").strip():
        seconds = 3600 * fields.number(form, "hours", 1, MAX_SECONDS // 3600)
    else:
        seconds = preset_seconds(form, DURATIONS, now)
    reason = fields.line(form, "reason", MAX_REASON_LENGTH)
    if not reason:
        raise BadRequest("“reason” is required: others read why the conditions may last.")
    return tubes, kind, seconds, reason


def acknowledge_href(tube: str, kind: str) -> str:
    """Return the URL of the form that acknowledges conditions; empty if the principal may not acknowledge them."""
    if not may_acknowledge(tube):
        return ""
    return url_for("attention", tubes=tube or None, kind=kind or None, _anchor="acknowledge")


def _summary(rows: Rows) -> str:
    counts = (rows.failures, "failure"), (rows.warnings, "warning")
    return ", ".join([text.counted(count, word) for count, word in counts if count])


def _shown(row: Row, errors: Mapping[bytes, tuple[str, int]], now: int) -> ShownRow:
    measure, others = row.worst.measure, row.conditions[1:]
    age, worst = max(0, now - row.worst.since), shown_condition(row.worst, row.acknowledgement)
    return ShownRow(
        worst=worst,
        text=worst.sentence.replace(f" of “{worst.tube}”", "", 1),
        form="day" if age > SAME_DAY else "clock",
        lasting=f"for {text.duration(age // SECOND // 60 * 60)}" if age >= 60 * SECOND else "just now",
        error=errors[measure.tube][0] if measure.kind == BURIED and measure.tube in errors else "",
        chips=[_chip(other) for other in others],
        href=acknowledge_href(measure.tube.decode(), "" if others else measure.kind.name),
        acknowledgement=row.acknowledgement,
    )


def _chip(condition: ActiveCondition) -> tuple[str, str]:
    return condition.measure.kind.label, shown_condition(condition).link
