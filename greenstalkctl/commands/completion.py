"""The script that lets a shell complete commands, options and the names of tubes."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from greenstalkctl.settings import PROGRAM, Verb

COMPLETION_VARIABLE = "_GREENSTALKCTL_COMPLETE"
SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command(cls=Verb)
@click.argument("shell", type=click.Choice(tuple(SHELLS)), help="The shell that will run the script.")
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Write the completion script for a shell.

    \b
    bash:  eval "$(greenstalkctl completion bash)"    in ~/.bashrc
    zsh:   eval "$(greenstalkctl completion zsh)"     in ~/.zshrc
    fish:  greenstalkctl completion fish > ~/.config/fish/completions/greenstalkctl.fish
    """  # noqa: D301  \b is click's mark of a paragraph that is not to be wrapped
    source = SHELLS[shell](ctx.find_root().command, {}, PROGRAM, COMPLETION_VARIABLE).source()
    click.echo(source)
