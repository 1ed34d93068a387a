"""The `mark` command: add a text to the charts of the dashboard."""

from __future__ import annotations

import click

from greenstalkctl.params import TUBE
from greenstalkctl.settings import Command, Settings


@click.command(cls=Command, short_help="Mark a deploy on the charts (needs --api).")
@click.option("--tube", type=TUBE, help="Mark the charts of this tube only.")
@click.argument("text", help="What happened, at most 200 characters.")
@click.pass_obj
def mark(settings: Settings, tube: str | None, text: str) -> None:
    """Add TEXT, such as "deployed 4.2", to the charts of the server and of its tubes, at the current time."""
    with settings.open_api("marks") as api:
        added = api.add_mark(text, tube)
    settings.out.show(added, f"marked: {added['text']}")
