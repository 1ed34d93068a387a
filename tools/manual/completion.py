"""Scripts that complete the command line of greenstalk-server and greenstalkctl in bash, zsh and fish."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from greenstalk_server.config.command_line import HEADLINE
from greenstalk_server.config.definitions import DEFINITIONS, Definition, Kind
from greenstalk_server.config.types import LOG_FORMATS, LOG_LEVELS
from greenstalkctl.cli import cli
from greenstalkctl.commands.completion import COMPLETION_VARIABLE, SHELLS
from greenstalkctl.settings import PROGRAM as CTL

WORDS = {"LEVEL": LOG_LEVELS, "FORMAT": LOG_FORMATS}
"""Values of an option, by its metavar."""


def ctl_script(shell: str) -> str:
    """Return the script of greenstalkctl for *shell*, as `greenstalkctl completion` prints it."""
    return SHELLS[shell](cli, {}, CTL, COMPLETION_VARIABLE).source()


def server_bash() -> str:
    """Return the script of greenstalk-server for bash."""
    by_action: dict[str, list[str]] = {}
    for row in _taking_values():
        by_action.setdefault(_bash_action(row), []).extend(row.flags)
    cases = "".join(f"        {'|'.join(flags)}) {action} return ;;\n" for action, flags in by_action.items())
    flags = " ".join(flag for row in DEFINITIONS for flag in row.flags)
    return f"""\
# bash completion of greenstalk-server
_greenstalk_server() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}}
    COMPREPLY=()
    case $previous in
{cases}    esac
    if [[ ${{COMP_WORDS[1]}} == journal ]]; then
        ((COMP_CWORD > 2)) && COMPREPLY=($(compgen -f -- "$current")) ||
            COMPREPLY=($(compgen -W "check export import" -- "$current"))
    elif ((COMP_CWORD == 1)) && [[ $current != -* ]]; then
        COMPREPLY=($(compgen -W "{" ".join(_commands())}" -- "$current"))
    else
        COMPREPLY=($(compgen -W "{flags}" -- "$current"))
    fi
}}
complete -o filenames -F _greenstalk_server greenstalk-server
"""


def server_zsh() -> str:
    """Return the script of greenstalk-server for zsh."""
    options = "".join(f"    {_zsh_option(row, flag)} \\\n" for row in DEFINITIONS for flag in row.flags)
    return f"""\
#compdef greenstalk-server
_arguments \\
{options}    '1::command:({" ".join(_commands())})' \\
    '*::argument:_files'
"""


def server_fish() -> str:
    """Return the script of greenstalk-server for fish."""
    lines = [f"complete -c greenstalk-server -f -n __fish_use_subcommand -a {shlex.quote(' '.join(_commands()))}"]
    lines.append("complete -c greenstalk-server -f -n '__fish_seen_subcommand_from journal' -a 'check export import'")
    for row in DEFINITIONS:
        for flag in row.flags:
            style = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
            value = ""
            if row.kind is Kind.VALUE:
                value = f" -x -a {shlex.quote(' '.join(WORDS[row.metavar]))}" if row.metavar in WORDS else " -r"
                value += " -F" if row.metavar in ("DIR", "FILE") else ""
            lines.append(f"complete -c greenstalk-server {style}{value} -d {shlex.quote(row.help)}")
    return "\n".join(lines) + "\n"


def _commands() -> list[str]:
    """Return the commands in the order of the help's synopsis."""
    return list(dict.fromkeys(re.findall(r"(?m)^ +greenstalk-server ([a-z][a-z-]*)", HEADLINE)))


def _taking_values() -> Iterator[Definition]:
    return (row for row in DEFINITIONS if row.flags and row.kind is Kind.VALUE)


def _bash_action(row: Definition) -> str:
    """Return the completions of the value of *row*: words, names of files, directories or users, or nothing."""
    if row.metavar in WORDS:
        return f'COMPREPLY=($(compgen -W "{" ".join(WORDS[row.metavar])}" -- "$current"));'
    kind = {"DIR": "d", "FILE": "f", "USER": "u"}.get(row.metavar)
    return f'COMPREPLY=($(compgen -{kind} -- "$current"));' if kind else ""


def _zsh_option(row: Definition, flag: str) -> str:
    text = re.sub(r"([\[\]:])", r"\\\1", row.help)
    if row.kind is not Kind.VALUE:
        return shlex.quote(f"{flag}[{text}]")
    action = {"DIR": "_directories", "FILE": "_files", "USER": "_users"}.get(row.metavar, "")
    action = f"({' '.join(WORDS[row.metavar])})" if row.metavar in WORDS else action
    return shlex.quote(f"{flag}{'=' if flag.startswith('--') else ''}[{text}]:{row.metavar}:{action}")
