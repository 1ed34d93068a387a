"""The `help` command, the same as --help."""

from __future__ import annotations

import click

from greenstalkctl.settings import Command


@click.command(cls=Command, short_help="Show the help of a command.")
@click.argument("words", nargs=-1, metavar="[COMMAND]...", help="The command to explain.")
@click.pass_context
def help(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of COMMAND, or of greenstalkctl: the same as --help."""
    context = ctx.find_root()
    for word in words:
        group = context.command
        if not isinstance(group, click.Group):
            raise click.UsageError(f"No such command '{context.command_path} {word}'", context)
        explained = group.get_command(context, word)
        if explained is None:
            context.resilient_parsing = False
            group.resolve_command(context, [word])  # raises an error that suggests similar names
            return
        context = explained.make_context(word, [], context, resilient_parsing=True)
    click.echo(context.command.get_help(context))
