"""The workers and producers of the pages, and what each needs."""

from __future__ import annotations

import shutil
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


SUPERVISOR: Final = """\
trap 'kill -TERM $worker; stopping=1' TERM
until [ "${stopping-}" ]; do "$@" & worker=$!; wait $worker; done
wait $worker
"""
"""A bash script that starts the worker again when it ends; after SIGTERM, it ends with the worker's exit code."""


@dataclass(frozen=True)
class Program:
    """A worker and a producer of a page. The commands run in a directory with the page's files."""

    page: str
    worker: tuple[str, ...]
    producer: tuple[str, ...]
    prepare: Callable[[Path], None] = lambda directory: None
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment, in which {port} is replaced."""
    is_supervised: bool = False
    """Whether the worker ends after a lost connection, and a supervisor starts it again."""
    touches: bool = True
    """Whether the worker touches a job between two URLs."""
    releases: bool = True
    """Whether the worker releases a job after a temporary error; otherwise it puts a new one, with a delay."""
    failed: tuple[str, str] = ("pages", "buried")
    """Tube and state of a failed job."""
    keeps_invalid_bodies: bool = True
    """Whether a job whose body is not JSON is buried; otherwise it is deleted."""

    def install(self, directory: Path) -> None:
        """Write the page's files, and the files that they need, into *directory*."""
        save(self.page, directory)
        self.prepare(directory)

    def environ(self, address: str) -> dict[str, str]:
        variables = {name: text.format(port=address.split(":")[1]) for name, text in self.variables.items()}
        return environment(BEANSTALKD=address, **variables)

    def command(self) -> tuple[str, ...]:
        """Return the command of the worker, and of its supervisor if it needs one."""
        return ("bash", "-c", SUPERVISOR, "supervisor", *self.worker) if self.is_supervised else self.worker

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


def _copy_application(name: str) -> Callable[[Path], None]:
    """Return a function that adds the files of an application of a framework, which are not on the page."""

    def copy(directory: Path) -> None:
        shutil.copytree(Path(__file__).parent / name, directory, dirs_exist_ok=True)

    return copy


def _build_go(directory: Path) -> None:
    for program in ("producer", "worker"):
        command = ("go", "build", "-o", program, f"{program}.go", "queue.go")
        environ = environment(CGO_ENABLED="0")  # otherwise it may need a C compiler
        subprocess.run(command, cwd=directory, env=environ, check=True, timeout=TIMEOUT)


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
    "laravel": Program(
        "clients-laravel.md",
        ("php", "artisan", "queue:work", "--queue=pages", "--sleep=0"),
        ("php", "artisan", "pages:fetch"),
        prepare=_copy_application("laravel"),
        variables={"BEANSTALKD_QUEUE_PORT": "{port}"},
        is_supervised=True,
        touches=False,
        keeps_invalid_bodies=False,
    ),
    "symfony": Program(
        "clients-symfony.md",
        ("php", "bin/console", "messenger:consume", "pages", "--sleep=0"),
        ("php", "bin/console", "app:fetch-pages"),
        prepare=_copy_application("symfony"),
        variables={"MESSENGER_TRANSPORT_DSN": "beanstalkd://127.0.0.1:{port}"},
        is_supervised=True,
        touches=False,
        releases=False,
        failed=("pages-failed", "ready"),
        keeps_invalid_bodies=False,
    ),
    "beaneater": Program("clients-ruby.md", ("ruby", "worker.rb"), ("ruby", "producer.rb")),
    "jackd": Program("clients-node.md", ("node", "worker.mjs"), ("node", "producer.mjs"), prepare=_link_node_modules),
    "go": Program("clients-go.md", ("./worker",), ("./producer",), prepare=_build_go),
}
