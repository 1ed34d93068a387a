"""The `completion` command: shell completion of commands, options and tube names."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from greenstalkctl.settings import PROGRAM, Command

COMPLETION_VARIABLE = "_GREENSTALKCTL_COMPLETE"
SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(tuple(SHELLS)), help="The shell that runs the script.")
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    \b
    bash:  eval "$(greenstalkctl completion bash)"    in ~/.bashrc
    zsh:   eval "$(greenstalkctl completion zsh)"     in ~/.zshrc
    fish:  greenstalkctl completion fish > ~/.config/fish/completions/greenstalkctl.fish
    """  # noqa: D301  \b tells click not to wrap a paragraph
    source = SHELLS[shell](ctx.find_root().command, {}, PROGRAM, COMPLETION_VARIABLE).source()
    click.echo(source)
