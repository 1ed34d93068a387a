"""Run the commands of a page with a real shell, in page order.

A block of commands (```` ```sh ````) may be followed by a block of output (```` ```json ```` or ```` ```text ````).
A comment in the line above a block of commands changes how it is run:

    <!-- not run: REASON -->   leave the block out
    <!-- run last -->          run the block after all others
    <!-- serves -->            the block's last command is a server in the foreground: run it in the background

Commands that only prepare the example are in a comment themselves, which no reader sees.

A comment above a block of any other language makes it a file, which the commands below it use:

    <!-- file: NAME -->
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.pages import path_with_commands, run_in_shell

TIMEOUT = 100.0
"""Maximum run time of all commands of a page, in seconds."""

_BLOCK = re.compile(
    r"(?:^<!-- (?P<note>[^>]*?) -->\n+)?^```sh\n(?P<commands>.*?)^```\n"
    r"(?:\n```(?P<kind>json|text)\n(?P<shown>.*?)^```)?"
    r"|^<!-- file: (?P<name>\S+) -->\n+^```\w+\n(?P<content>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_NOTE = re.compile(r"not run: .+|run last|serves|run last, serves")

_PREAMBLE = """\
set -eu
curl() {  # -N is used for a stream that never ends: read it for two seconds
    case " $* " in
        *" -N "*) command curl --max-time 2 "$@" || test $? = 28 ;;
        *) command curl "$@" ;;
    esac
}
until_it_listens() {
    until-it-listens $! || { cat server.log >&2; exit 1; }
}
"""

_CURLRC = "silent\nshow-error\nfail-with-body\nmax-time = 20\n"
"""Configuration of curl, with which a status of 400 or above makes curl fail."""


class Example(NamedTuple):
    """One block of commands, and their output as shown on the page; `kind` is json, text or None."""

    line: int
    commands: str
    kind: str | None
    shown: str
    note: str


def examples(text: str) -> list[Example]:
    """Return the blocks of commands in the page *text* in the order in which they run."""
    found = list(_parse(text))
    return [one for one in found if "run last" not in one.note] + [one for one in found if "run last" in one.note]


def run_blocks(text: str) -> set[str]:
    """Return the text of each block in the page *text* that `examples` runs, saves, or compares with an output."""
    found = [match for match in _BLOCK.finditer(text) if not _note(match).startswith("not run")]
    return {match[name] for match in found for name in ("commands", "shown", "content") if match[name]}


def _note(match: re.Match[str]) -> str:
    return match["note"] if match["note"] and _NOTE.fullmatch(match["note"]) else ""


def _parse(text: str) -> Iterator[Example]:
    for match in _BLOCK.finditer(text):
        if match["name"]:
            line = text.count("\n", 0, match.start("content")) + 1
            yield Example(line, f"cat > {match['name']} <<'END'\n{match['content']}END\n", None, "", "")
            continue
        note = _note(match)
        if not note.startswith("not run"):
            line = text.count("\n", 0, match.start("commands")) + 1
            yield Example(line, match["commands"], match["kind"], match["shown"] or "", note)


def run(page: list[Example], directory: Path, replacements: Mapping[str, str], **variables: str) -> list[str]:
    """Run *page* in *directory*, with *replacements* made and *variables* in the environment.

    Return the output of each block. Raise AssertionError, with the line and stderr, if a command of a block fails.
    """
    work = directory / "work"
    work.mkdir()
    (work / ".curlrc").write_text(_CURLRC)
    end = "--- end of block ---"
    script = _PREAMBLE + "".join(f"{_runnable(one)}echo; echo {end!r}\n" for one in page)
    for written, real in replacements.items():
        script = script.replace(written, real)
    path = path_with_commands(directory / "bin")
    out, err = run_in_shell(script, work, path, TIMEOUT, HOME=str(work), **variables)
    *printed, rest = out.split(f"\n{end}\n")
    failed = f"line {page[len(printed)].line}:\n{page[len(printed)].commands}" if len(printed) < len(page) else ""
    assert not failed, f"{failed}\nprinted {rest!r}\n{err}"
    return printed


def _runnable(example: Example) -> str:
    if "serves" not in example.note:
        return example.commands
    assert "greenstalk-server" in example.commands
    return f"{example.commands.rstrip()} > server.log 2>&1 &\nuntil_it_listens\n"


def matches(example: Example, printed: str) -> bool:
    """Return whether *printed* is the output that *example* shows; `…` matches anything."""
    match example.kind:
        case "json":
            shown, found = list(_values(example.shown)), list(_values(printed))
            return len(shown) == len(found) and all(map(is_like, shown, found))
        case "text":
            pattern = ".*".join(map(re.escape, example.shown.rstrip("\n").split("…")))
            return re.fullmatch(pattern, printed.rstrip("\n")) is not None
    return True


def _values(text: str) -> Iterator[Any]:
    """Yield the consecutive JSON values in *text*."""
    decoder, text = json.JSONDecoder(), text.strip()
    while text:
        value, end = decoder.raw_decode(text)
        yield value
        text = text[end:].strip()


def is_like(shown: Any, found: Any) -> bool:
    """Return whether *found* contains everything in *shown*, in which `…` matches anything."""
    if shown == "…":
        return True
    if isinstance(shown, dict):
        return isinstance(found, dict) and all(key in found and is_like(one, found[key]) for key, one in shown.items())
    if isinstance(shown, list):
        return isinstance(found, list) and len(shown) == len(found) and all(map(is_like, shown, found))
    return bool(shown == found)
