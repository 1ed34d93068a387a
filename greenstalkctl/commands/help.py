"""Help by a command, for those who look for it there."""

from __future__ import annotations

import click

from greenstalkctl.settings import Verb


@click.command(cls=Verb, short_help="Show the help, or that of a command.")
@click.argument("command", required=False, help="The command to explain.")
@click.pass_context
def help(ctx: click.Context, command: str | None) -> None:
    """Show what greenstalkctl can do, or what COMMAND does: the same as with --help."""
    root = ctx.find_root()
    group = root.command
    assert isinstance(group, click.Group)
    if command is None:
        click.echo(group.get_help(root))
        return
    found = group.get_command(root, command)
    if found is None:
        group.resolve_command(root, [command])  # raises, and names commands like it
    else:
        click.echo(found.get_help(found.make_context(command, [], root, resilient_parsing=True)))
