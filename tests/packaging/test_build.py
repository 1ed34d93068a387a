"""The selected build: either the compiled core of exactly these sources, or pure Python."""

from __future__ import annotations

import ast
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from greenstalk_server.build import COMPILED, INLINED
from tests.support.daemon import REPOSITORY, TIMEOUT, Daemon, environment

PACKAGE = REPOSITORY / "greenstalk_server"


class Tree:
    """A copy of the package in *directory*, as in an installation or, with setup.py, in a checkout.

    It has the bytecode of the sources, so that interpreters do not compile them again.
    """

    def __init__(self, directory: Path, *, is_checkout: bool) -> None:
        self.directory = directory
        self.package = directory / "greenstalk_server"
        shutil.copytree(PACKAGE, self.package, ignore=shutil.ignore_patterns("*.so", "not_compiled.txt"))
        if is_checkout:
            shutil.copy(REPOSITORY / "setup.py", directory)

    def build(self) -> Any:
        """The tree's build.py, run apart from the package."""
        return runpy.run_path(str(self.package / "build.py"))

    def add_library(self) -> Path:
        """Copy the library of this repository, which was compiled from the same sources; return its path."""
        library: Path = self.build()["library_path"]()
        library.parent.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(compiled_library(), library))

    def edit(self, module: str = "core/broker") -> None:
        with (self.package / f"{module}.py").open("a") as file:
            file.write("\n# edited\n")

    def run(self, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self._run("-c", code, **variables)

    def version(self, **variables: str) -> subprocess.CompletedProcess[str]:
        return self._run("-m", "greenstalk_server", "--version", **variables)

    def serve(self, **variables: str) -> Daemon:
        environ = self._environment(**variables)
        return Daemon("-l", "127.0.0.1", "-p", "0", "--no-web", environ=environ, cwd=self.directory)

    def _run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            env=self._environment(**variables),
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )

    def _environment(self, **variables: str) -> dict[str, str]:
        environ = environment(PYTHONPATH=str(self.directory), PYTHONDONTWRITEBYTECODE="1")
        environ.pop("GREENSTALK_PURE", None)
        return environ | variables


def compiled_library() -> Path:
    """Return the path of this repository's library; compile it unless that has been done for these sources."""
    library: Path = runpy.run_path(str(PACKAGE / "build.py"))["library_path"]()
    if not library.exists():
        environ = {name: text for name, text in os.environ.items() if name != "GREENSTALK_PURE"}
        command = (sys.executable, "setup.py", "--quiet", "compile_core")
        subprocess.run(command, cwd=REPOSITORY, env=environ | {"GREENSTALK_COMPILE": "1"}, check=True)
    return library


@pytest.fixture
def installed(tmp_path: Path) -> Tree:
    return Tree(tmp_path, is_checkout=False)


@pytest.fixture
def checkout(tmp_path: Path) -> Tree:
    return Tree(tmp_path, is_checkout=True)


@pytest.fixture(params=[False, True], ids=["installed", "checkout"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Tree:
    return Tree(tmp_path, is_checkout=request.param)


LOADED = "from greenstalk_server.core import broker; print(broker.__file__)"


def test_library_of_these_sources_is_loaded(tree: Tree) -> None:
    library = tree.add_library()
    assert tree.run(LOADED).stdout == f"{library}\n"
    assert tree.version().stdout.endswith(" (compiled), journal format 4\n")


def test_every_module_comes_from_the_library(tree: Tree) -> None:
    """A compiled module imports another one without the finder, and with the file that mypyc expects it to have."""
    tree.add_library()
    names = [f"greenstalk_server.{module.replace('/', '.')}" for module in COMPILED]
    code = f"import importlib\nfor name in {names}: print(importlib.import_module(name).__file__)"
    assert [Path(name).suffix for name in tree.run(code).stdout.splitlines()] == [".so"] * len(COMPILED)


def test_variable_selects_the_sources_of_a_compiled_build(tree: Tree) -> None:
    tree.add_library()
    assert tree.run(LOADED, GREENSTALK_PURE="1").stdout == f"{tree.package}/core/broker.py\n"
    with tree.serve(GREENSTALK_PURE="1") as daemon:
        assert daemon.first_lines.splitlines()[0].partition(",")[0].endswith(" (pure Python)")
        code, said = daemon.stop()
    assert code == 0
    assert "pure Python" not in said  # no warning, since the user selected it


@pytest.mark.parametrize("module", ["core/broker", "protocol/access"], ids=["compiled", "inlined"])
def test_installation_with_an_edited_source_refuses_to_start(installed: Tree, module: str) -> None:
    library = installed.add_library()
    installed.edit(module)
    done = installed.version()
    assert (done.returncode, done.stdout) == (70, "")
    assert done.stderr == (
        f"greenstalk-server: {library} was compiled from other sources than those beside it, so it is not loaded;"
        " install the server again, or set GREENSTALK_PURE=1 to run it as pure Python\n"
    )
    assert "was compiled from other sources" in installed.run(LOADED).stderr.splitlines()[-1]
    assert installed.version(GREENSTALK_PURE="1").stdout.endswith(" (pure Python), journal format 4\n")


def test_checkout_with_an_edited_source_runs_it_and_says_so_first(checkout: Tree) -> None:
    checkout.add_library()
    checkout.edit()
    assert checkout.run(LOADED).stdout == f"{checkout.package}/core/broker.py\n"
    with checkout.serve() as daemon:
        assert " (pure Python), process " in daemon.first_lines
        code, said = daemon.stop()
    assert code == 0
    assert "WARNING" in said.splitlines()[0]
    assert "its sources have changed since it was compiled; to compile it, run `make compiled`" in said.splitlines()[0]


def test_checkout_that_was_not_compiled_says_so_first(checkout: Tree) -> None:
    with checkout.serve() as daemon:
        code, said = daemon.stop()
    assert code == 0
    assert "it has not been compiled; to compile it, run `make compiled`" in said.splitlines()[0]


def test_library_that_cannot_be_loaded_is_one_line(tree: Tree) -> None:
    library = tree.add_library()
    library.write_bytes(library.read_bytes()[:100])
    done = tree.version()
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (70, "", 1)
    assert done.stderr.startswith("greenstalk-server: cannot load the compiled core: ")
    assert tree.version(GREENSTALK_PURE="1").returncode == 0


def test_extension_module_beside_a_source_is_never_loaded(tree: Tree) -> None:
    suffix = compiled_library().name.partition("__mypyc")[2]
    (tree.package / "core" / f"broker{suffix}").write_bytes(b"not a library")
    (tree.package / "net" / f"_plain_socket{suffix}").write_bytes(b"not a library")
    plain = "from greenstalk_server.net import connection; print(connection.PlainSocket)"
    assert tree.run(LOADED).stdout == f"{tree.package}/core/broker.py\n"
    assert tree.run(plain).stdout == "None\n"
    library = tree.add_library()
    assert tree.run(LOADED).stdout == f"{library}\n"
    assert tree.run(plain).stdout == "<class 'greenstalk_server.net._plain_socket.PlainSocket'>\n"


def test_digest_covers_every_module_that_a_compiled_one_imports() -> None:
    imported = {name for module in COMPILED for name in _imports(PACKAGE / f"{module}.py")}
    modules = {name for name in imported if (PACKAGE / f"{name}.py").exists()}
    assert modules - set(COMPILED) == set(INLINED)


def test_last_names_of_compiled_modules_are_unique() -> None:
    """One library has a function PyInit_NAME for each of them."""
    assert len({module.rpartition("/")[2] for module in COMPILED}) == len(COMPILED)


def _imports(path: Path) -> Iterator[str]:
    """Yield the modules that *path* imports at run time, as in COMPILED, and names that may be modules."""
    tree = ast.parse(path.read_text())
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node not in for_types and node.module is not None:
            for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                yield name.removeprefix("greenstalk_server.").replace(".", "/")
