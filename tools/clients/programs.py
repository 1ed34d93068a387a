"""The workers and producers of the pages, and what each needs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.daemon import REPOSITORY, environment

from .pages import save

TIMEOUT: Final = 300.0
"""Maximum time in seconds to prepare a program or to put a job."""

NODE_MODULES: Final = REPOSITORY / "build" / "clients"
"""`make test-clients` installs the packages of Node there."""


@dataclass(frozen=True)
class Program:
    """A worker and a producer of a page. The commands run in a directory with the page's files."""

    page: str
    worker: tuple[str, ...]
    producer: tuple[str, ...]
    prepare: Callable[[Path], None] = lambda directory: None
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment, in which {host} and {port} are replaced."""
    touches: bool = True
    """Whether the worker touches a job between two URLs."""

    def install(self, directory: Path) -> None:
        """Write the page's files into *directory*, and what they need."""
        save(self.page, directory)
        self.prepare(directory)

    def environ(self, address: str) -> dict[str, str]:
        host, port = address.split(":")
        named = {name: text.format(host=host, port=port) for name, text in self.variables.items()}
        return environment(BEANSTALKD=address, **named)

    def put(self, directory: Path, address: str, *urls: str) -> str:
        """Run the producer; return its output."""
        return subprocess.run(
            [*self.producer, *urls],
            cwd=directory,
            env=self.environ(address),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=TIMEOUT,
        ).stdout


def _autoload(*names: str) -> Callable[[Path], None]:
    """Return a function that writes the file that Composer would write, for Debian's packages."""

    def write(directory: Path) -> None:
        (directory / "vendor").mkdir()
        lines = [f"require_once '/usr/share/php/{name}/autoload.php';" for name in names]
        (directory / "vendor" / "autoload.php").write_text("\n".join(["<?php", *lines, ""]))

    return write


def _link_node_modules(directory: Path) -> None:
    (directory / "node_modules").symlink_to(NODE_MODULES / "node_modules")


PROGRAMS: Final[Mapping[str, Program]] = {
    "greenstalk": Program("clients-python.md", (sys.executable, "plain_worker.py"), (sys.executable, "producer.py")),
    "greenstalk_client": Program(
        "clients-python.md", (sys.executable, "worker.py"), (sys.executable, "producer.py"), touches=False
    ),
    "pheanstalk": Program(
        "clients-php.md", ("php", "worker.php"), ("php", "producer.php"), prepare=_autoload("Pheanstalk")
    ),
    "beaneater": Program("clients-ruby.md", ("ruby", "worker.rb"), ("ruby", "producer.rb")),
    "jackd": Program("clients-node.md", ("node", "worker.mjs"), ("node", "producer.mjs"), prepare=_link_node_modules),
}
