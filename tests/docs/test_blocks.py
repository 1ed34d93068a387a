"""Each block of code on a page is run or checked by a test, or a comment above it says why not.

The comment is `<!-- not run: REASON -->`. It also holds for the output below a block of commands.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from greenstalk_server.protocol.verbs import VERBS
from tests.ctl.test_docs import COMMANDS as PARSED
from tests.deploy.test_rehearsals import REHEARSALS, rehearsal
from tests.support import pages
from tests.support.daemon import REPOSITORY
from tests.support.pages import Block, blocks
from tools.clients.pages import files
from tools.clients.programs import PROGRAMS

from .examples import run_blocks
from .test_conversations import conversations
from .test_examples import PAGES as EXAMPLES
from .test_policies import COMMANDS, TABLES

DOCS = REPOSITORY / "docs"
PAGES = [
    *(f"docs/{path.name}" for path in sorted(DOCS.glob("*.md"))),
    *(path.name for path in sorted(REPOSITORY.glob("*.md"))),
    "greenstalk_client/README.md",
]
USAGES = {f"{verb.name.decode()} {verb.arguments}".rstrip() for verb in VERBS}
"""The lines that tests/protocol/test_verbs.py looks for, and parses."""


def taken() -> Iterator[tuple[str, str, str]]:
    """Yield the arguments of each call of `block` in a test: page, language and opening."""
    for path in [*REPOSITORY.glob("tests/**/*.py"), *REPOSITORY.glob("tools/**/*.py")]:
        text = path.read_text()
        if not re.search("tests.support.pages import .*\\bblock\\b", text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "block":
                page, language, opening = (ast.literal_eval(argument) for argument in node.args)
                yield page, language, opening


@cache
def blocks_of_tests() -> dict[str, set[str]]:
    """Return the texts of the blocks that tests take, by page as in PAGES."""
    found = {page: set[str]() for page in PAGES}

    def add(page: str, *texts: str) -> None:
        path = (DOCS / page).resolve().relative_to(REPOSITORY)
        found[str(path)].update(texts)

    for page, language, opening in taken():
        add(page, pages.block(page, language, opening))
    for page in EXAMPLES:
        add(page, *run_blocks((DOCS / page).read_text()))
    for page in REHEARSALS:
        add(page, *run_blocks(rehearsal(page)))
    for program in PROGRAMS.values():
        add(program.page, *files(program.page).values(), " ".join(program.worker) + "\n")
    for page in ("commands.md", "protocol-extensions.md"):
        add(page, *conversations(page))
    add("policies.md", *TABLES, *COMMANDS)
    add("greenstalkctl.md", *PARSED)
    return found


def is_usage(one: Block) -> bool:
    """Return whether *one* shows only lines of commands, and their bodies, in the grammar of the protocol."""
    lines = [line for line in one.text.splitlines() if line != "<body>"]
    return one.language == "text" and all(line in USAGES for line in lines)


@pytest.mark.parametrize("page", PAGES)
def test_each_block_is_run_or_marked(page: str) -> None:
    marked, unknown = False, []
    for one in blocks(f"../{page}"):
        marked = bool(re.fullmatch("not run: .+", one.note)) or (marked and one.is_output)
        if not (marked or one.text in blocks_of_tests()[page] or is_usage(one)):
            unknown.append(f"{page}:{one.line}: {one.text.splitlines()[0]}")
    assert unknown == []
