"""The `help` command, the same as --help."""

from __future__ import annotations

import click

from greenstalkctl.settings import Command


@click.command(cls=Command, short_help="Show the help of a command.")
@click.argument("command", required=False, help="The command to explain.")
@click.pass_context
def help(ctx: click.Context, command: str | None) -> None:
    """Show the help of COMMAND, or of greenstalkctl: the same as --help."""
    root = ctx.find_root()
    group = root.command
    assert isinstance(group, click.Group)
    if command is None:
        click.echo(group.get_help(root))
        return
    explained = group.get_command(root, command)
    if explained is None:
        group.resolve_command(root, [command])  # raises an error that suggests similar names
    else:
        click.echo(explained.get_help(explained.make_context(command, [], root, resilient_parsing=True)))
