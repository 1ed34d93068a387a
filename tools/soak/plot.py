"""The samples of a soak test as one self-contained page: one SVG chart per figure."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Final

WIDTH: Final = 900
HEIGHT: Final = 160
LEFT: Final = 70
COLOURS: Final = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e")

CHARTS: Final = (
    ("Jobs a second", ("puts", "reserves", "deletes")),
    ("Jobs there", ("ready", "reserved", "delayed", "buried")),
    ("Milliseconds of a put, a reserve and a delete, beside the load", ("p50_ms", "p99_ms")),
    ("Resident memory, and the memory of jobs, MiB", ("rss_mib", "jobs_mib")),
    ("File descriptors, and connections", ("fds", "connections")),
    ("Journal on disk, MiB", ("journal_mib",)),
    ("CPU of the server, percent of one", ("cpu_percent",)),
)


def page(
    title: str, facts: Sequence[str], samples: Sequence[dict[str, float]], marks: Sequence[tuple[float, str]]
) -> str:
    """Return HTML with all charts of *samples*, whose `at` is in seconds; *marks* are times to mark with a line."""
    listed = "".join([f"<li>{html.escape(fact)}</li>" for fact in facts])
    charts = "".join([_chart(name, keys, samples, marks) for name, keys in CHARTS])
    style = "body{font:14px sans-serif;margin:2em;max-width:960px}text{font:11px sans-serif}h2{font-size:15px}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{style}</style><h1>{html.escape(title)}</h1><ul>{listed}</ul>{charts}</html>\n"
    )


def _chart(
    name: str, keys: Sequence[str], samples: Sequence[dict[str, float]], marks: Sequence[tuple[float, str]]
) -> str:
    end = max([sample["at"] for sample in samples], default=1.0) or 1.0
    most = max([sample[key] for sample in samples for key in keys if key in sample], default=1.0) or 1.0

    def x(at: float) -> float:
        return LEFT + at / end * (WIDTH - LEFT)

    def y(value: float) -> float:
        return HEIGHT - value / most * (HEIGHT - 10)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 22}" role="img">']
    for share in (0.0, 0.5, 1.0):
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y(most * share):.1f}" y2="{y(most * share):.1f}" stroke="#ddd"/>'
        )
        parts.append(f'<text x="{LEFT - 6}" y="{y(most * share) + 4:.1f}" text-anchor="end">{most * share:,.4g}</text>')
    for at, what in marks:
        parts.append(
            f'<line x1="{x(at):.1f}" x2="{x(at):.1f}" y1="0" y2="{HEIGHT}" stroke="#999" stroke-dasharray="3"/>'
        )
        parts.append(f'<text x="{x(at) + 3:.1f}" y="10" fill="#666">{html.escape(what)}</text>')
    for key, colour in zip(keys, COLOURS, strict=False):
        points = " ".join([f"{x(s['at']):.1f},{y(s[key]):.1f}" for s in samples if key in s])
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.2"/>')
    for number, (key, colour) in enumerate(zip(keys, COLOURS, strict=False)):
        parts.append(f'<text x="{LEFT + 110 * number}" y="{HEIGHT + 18}" fill="{colour}">{html.escape(key)}</text>')
    parts.append(f'<text x="{WIDTH}" y="{HEIGHT + 18}" text-anchor="end">{end:,.0f} s</text></svg>')
    return f"<h2>{html.escape(name)}</h2>{''.join(parts)}"
