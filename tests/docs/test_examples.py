"""The examples of the pages: each runs as written, and prints the output that the page shows.

To add a page, add a row to PAGES; examples.py says which comments a page may use.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.daemon import REPOSITORY, Daemon
from tests.support.ports import free_ports

from .examples import Example, examples, is_like, matches, run

LOOPBACK = ("-l", "127.0.0.1", "-p", "0", "--web-port", "0")

PAGES: Mapping[str, bool] = {
    "api.md": True,
    "metrics.md": False,
    "security.md": False,
    "start.md": True,
    "priorities-and-ttr.md": True,
    "retries.md": True,
    "unique-jobs.md": True,
    "recurring-jobs.md": True,
    "outbox.md": True,
    "autoscaling.md": True,
    "ci.md": True,
    "troubleshooting.md": True,
    "from-other-queues.md": True,
}
"""Pages, and whether their commands expect the server of `make run`."""


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_print_the_shown_output(page: str, tmp_path: Path) -> None:
    for command in ("curl", "jq", "openssl", "socat"):
        assert shutil.which(command), f"{command} is missing: apt-get install {command}"
    found = examples((REPOSITORY / "docs" / page).read_text())
    assert found
    if not PAGES[page]:
        ports = _ports()
        replacements = ports | {"/run/greenstalk.sock": str(tmp_path / "socket")}
        printed = run(found, tmp_path, replacements, GREENSTALK_LISTEN_PORT=ports["11300"], PORT=ports["8080"])
    else:
        with Daemon("-b", str(tmp_path), *LOOPBACK) as server:  # like `make run`, on free ports
            web, queue = urlsplit(server.dashboard).port, f"127.0.0.1:{server.port}"
            replacements = {
                "127.0.0.1:11300": queue,
                '"127.0.0.1", 11300': f'"127.0.0.1", {server.port}',
                ":8080": f":{web}",
                ".venv/bin/": "",
            }
            printed = run(found, tmp_path, replacements, GREENSTALKCTL_SERVER=queue)
    for example, text in zip(found, printed, strict=True):
        assert matches(example, text), f"line {example.line} printed {text}, and the page shows {example.shown}"


def _ports() -> dict[str, str]:
    """Return a free port for each port in the pages."""
    ports = ("11300", "11301", "8080")
    return {port: str(free) for port, free in zip(ports, free_ports(len(ports)), strict=True)}


def test_different_output_is_detected() -> None:
    assert not matches(Example(1, "", "text", "one\n", ""), "two\n")
    assert matches(Example(1, "", "text", "one … three\n", ""), "one two three\n")
    assert not matches(Example(1, "", "json", '{"a": 1}\n', ""), '{"a": 2}')
    assert not matches(Example(1, "", "json", '{"a": 1}\n', ""), '{"a": 1}{"a": 1}')
    assert matches(Example(1, "", "json", '{"a": "…"}\n', ""), '{"a": 2, "b": 3}')
    assert not is_like([1], 1)
