"""The `policy` commands: list, show, set and delete tube policies, and count the effects of one. They need the API."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, BinaryIO, Final, TypeVar

import click
import msgspec

from greenstalkctl import policy_document
from greenstalkctl.api import Api
from greenstalkctl.bulk import watch
from greenstalkctl.errors import InvalidUsage, NoResult, Unreachable
from greenstalkctl.interrupt import Interrupt
from greenstalkctl.output import Output, key_value_lines
from greenstalkctl.params import POLICY
from greenstalkctl.policy_document import MAX_SIZE, Policy
from greenstalkctl.settings import Settings, SubGroup
from greenstalkctl.table import Column
from greenstalkctl.text import printable

F = TypeVar("F", bound=Callable[..., Any])

COLUMNS: Final = (
    Column("name", 0, "name"),
    Column("source", 3, "text"),
    Column("priority", 4),
    Column("tubes", 1, "name"),
    Column("settings", 2, "text"),
)
EFFECTS: Final = {
    "expired": "dropped because they are too old",
    "dead_lettered": "moved to a dead-letter tube",
    "buried": "buried, because their tube has no dead-letter tube",
    "evicted": "dropped, because their tube is above a cap",
    "over_cap": "above a cap, so that their tube refuses puts",
    "held": "ready, but held by max_reserved or rate",
}
"""The counts of a dry run in the API, and what they mean."""


@click.group(cls=SubGroup, short_help="Show and set tube policies (needs --api).")
def policy() -> None:
    """Show and set tube policies: retries, dead letters, expiry, caps, rates and more, for tubes that match a pattern.

    Policies of the server's configuration file can be shown, but not changed here.
    """


def _document(function: F) -> F:
    """Add the arguments that describe a policy; `_read` turns their values into one."""
    words = "Settings, such as max_attempts=5; commas separate the elements of a list: tubes=mail.*,post."
    for option in (
        click.option(
            "--file",
            type=click.File("rb"),
            help="Read the policy from this file, JSON or TOML; - means standard input.",
        ),
        click.argument("words", nargs=-1, metavar="[KEY=VALUE]...", help=words),
        click.argument("name", type=POLICY, help="The name of the policy."),
    ):
        function = option(function)
    return function


@policy.command("list", short_help="List all policies.")
@click.pass_obj
def list_policies(settings: Settings) -> None:
    """List all policies, of the configuration file and set at run time."""
    out = settings.out
    with settings.open_api("policies") as api:
        found = api.policies()
    rows = [
        [
            one.name,
            one.source,
            one.document.get("priority"),
            ",".join(map(str, one.document.get("tubes", []))),
            one.problem or _settings(one.document),
        ]
        for one in found.policies
    ]
    if rows or out.is_json:
        out.show(msgspec.to_builtins(found), out.table(COLUMNS, rows))
    _warn(out, found.warnings)
    if not rows:
        raise NoResult(f"there is no policy on {api.address}")


@policy.command(short_help="Show one policy.")
@click.argument("name", type=POLICY, help="The name of the policy.")
@click.pass_obj
def show(settings: Settings, name: str) -> None:
    """Show one policy as TOML, which `policy set` and the configuration file accept."""
    with settings.open_api("policies") as api:
        found = api.policy(name)
    if found is None:
        raise _not_found(api, name)
    source = "set in the configuration file" if found.source == "file" else "set at run time"
    comments = [f"# {printable(line)}" for line in (source, found.problem) if line]
    shown = printable(policy_document.to_toml(name, found.document), "\n")
    settings.out.show(msgspec.to_builtins(found), "\n".join([*comments, shown]))


@policy.command("set", short_help="Set or replace a policy.")
@_document
@click.pass_obj
def set_policy(settings: Settings, name: str, words: tuple[str, ...], file: BinaryIO | None) -> None:
    """Set the policy NAME, or replace it as a whole.

    The policy is given as KEY=VALUE words, or in --file, or as standard input. It applies at once, to existing jobs
    too: `policy dry-run` counts its effects without setting it.
    """
    document = _read(settings.out, name, words, file)
    with settings.open_api("policies") as api:
        saved = api.set_policy(name, document)
    settings.out.show(msgspec.to_builtins(saved), f"set the policy {name}")
    _warn(settings.out, saved.warnings)


@policy.command(short_help="Delete a policy.")
@click.argument("name", type=POLICY, help="The name of the policy.")
@click.pass_obj
def delete(settings: Settings, name: str) -> None:
    """Delete a policy that was set at run time. Its past effects on jobs remain."""
    with settings.open_api("policies") as api:
        if not api.delete_policy(name):
            raise _not_found(api, name)
    settings.out.show({"deleted": name}, f"deleted the policy {name}")


@policy.command("dry-run", short_help="Count what a policy would do.")
@_document
@click.pass_obj
def dry_run(settings: Settings, name: str, words: tuple[str, ...], file: BinaryIO | None) -> None:
    """Count what the policy NAME would do at once to existing jobs. Nothing is changed.

    The policy is given as for `policy set`.
    """
    document, out = _read(settings.out, name, words, file), settings.out
    with settings.open_api("policies") as api, Interrupt() as interrupt:
        *_, task = watch(api, api.start_policy_dry_run(name, document), interrupt)
        interrupt.check("interrupted; nothing was changed")
    effect = task.effect
    if effect is None:
        raise Unreachable(f"the server at {api.address} sent no counts; check --api")
    lines = {
        "tubes that match": effect.tubes,
        "tubes that would change": effect.changed_tubes,
        "jobs of these tubes": effect.jobs,
    }
    lines |= {f"jobs {what}": getattr(effect, key) for key, what in EFFECTS.items()}
    out.show(msgspec.to_builtins(effect), key_value_lines(lines))
    _warn(out, effect.warnings)


def _read(out: Output, name: str, words: tuple[str, ...], file: BinaryIO | None) -> Policy:
    """Return the policy of *words*, of *file*, or of standard input; raise InvalidUsage."""
    if words and file is not None:
        raise InvalidUsage("give the policy either as KEY=VALUE or with --file, not both")
    if words:
        return policy_document.from_words(words)
    source = file or sys.stdin.buffer
    if source.isatty():
        out.note("Type the policy as TOML or JSON, then press Ctrl-D at the start of a line. Ctrl-C cancels.")
    try:
        return policy_document.from_file(source.read(MAX_SIZE + 1), name)
    except OSError as error:
        raise InvalidUsage(f"cannot read the policy: {error.strerror}") from error


def _settings(document: Policy) -> str:
    """Return the settings of a policy on one line, as words."""
    shown = {key: value for key, value in document.items() if key not in ("tubes", "priority")}
    return " ".join([f"{key}={','.join(value) if isinstance(value, list) else value}" for key, value in shown.items()])


def _warn(out: Output, warnings: list[str]) -> None:
    for warning in warnings:
        out.note(f"warning: {printable(warning)}")


def _not_found(api: Api, name: str) -> NoResult:
    return NoResult(f"there is no policy {name} on {api.address}; `greenstalkctl policy list` lists the policies")
