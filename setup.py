"""Compile the core with mypyc, and install it. All other settings are in pyproject.toml.

Every installation is compiled if it can be: without a C compiler, or if the compilation fails, the pure core is
installed, and the server's first log line says why. Two variables change that:

    GREENSTALK_PURE=1       do not compile.
    GREENSTALK_COMPILE=1    fail instead of installing the pure core.

`python setup.py compile_core` compiles for a checkout. The library is kept in build/compiled under a name that contains
a digest of its sources, so that the same sources are not compiled again. `greenstalk_server/build.py` has the list of
modules, and loads the library.
"""

from __future__ import annotations

import io
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, ClassVar

from setuptools import Command, Distribution, setup
from setuptools.command.build_py import build_py

CHECKOUT = Path(__file__).resolve().parent
BUILD = runpy.run_path(str(CHECKOUT / "greenstalk_server" / "build.py"))
VERSION = runpy.run_path(str(CHECKOUT / "greenstalk_server" / "version.py"))["full_version"]()
"""The version, with the commit between two releases."""
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]

IS_PURE = os.environ.get("GREENSTALK_PURE") == "1"
IS_REQUIRED = os.environ.get("GREENSTALK_COMPILE") == "1"
COMPILING = {"bdist_wheel", "build", "compile_core", "editable_wheel", "install"}
"""Commands that need the library. Installers such as pip first run others, to read the requirements and metadata."""

KEPT_LIBRARIES = 8
"""Number of newest libraries that stay in build/compiled: running servers use older ones, and an edit may be undone."""

GROUPS = 16
"""Number of files in which the compiler gets the modules."""

VERSIONED = ("greenstalk_server", "greenstalkctl")
"""Packages with a `version.py`."""

COMPILER = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
INSTALL = "apt-get install gcc libc6-dev python3-dev"
CFLAGS = ["-g0", "-fvisibility=hidden", "-Wno-error"]
"""No debug information, direct calls between modules, and no -Werror, which mypyc sets and which fails with some
compilers."""


def obstacle() -> str:
    """Return why the core cannot be compiled here, and what to do; empty if it can."""
    if sys.implementation.name != "cpython":
        return f"mypyc supports only CPython, and this is {sys.implementation.name}"
    if shutil.which(COMPILER) is None:
        return f"there was no C compiler ({COMPILER}); run `{INSTALL}`"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return f"there were no headers of Python (Python.h); run `{INSTALL}`"
    return ""


def compiled_library() -> Path | None:
    """Return the library of the present sources, compiled now unless it exists; None if the core is to be pure."""
    if IS_PURE:
        return None
    library: Path = BUILD["library_path"]()
    library.parent.mkdir(parents=True, exist_ok=True)
    note = library.with_name(BUILD["NO_LIBRARY"])
    if not library.exists():
        problem = obstacle() or failure(library)
        if problem and IS_REQUIRED:
            sys.exit(f"GREENSTALK_COMPILE=1 is set, but the core cannot be compiled: {problem}")
        if problem:
            is_wheel = bool({"bdist_wheel", "install"} & set(sys.argv))
            again = "install the server again" if is_wheel else "run `make compiled`"
            note.write_text(f"when it was installed, {problem}, then {again}\n")
            print(f"the core is not compiled: {problem}, then {again}", file=sys.stderr)
            return None
        others = sorted(library.parent.glob("*.so"), key=lambda each: each.stat().st_mtime, reverse=True)
        for old in others[KEPT_LIBRARIES:]:
            old.unlink()
    note.unlink(missing_ok=True)
    return library


def failure(library: Path) -> str:
    """Compile *library*; return why the compilation failed and what to do, empty if it succeeded."""
    print("compiling the core with mypyc, which takes about half a minute", file=sys.stderr)
    output = io.StringIO()
    try:
        with tempfile.TemporaryDirectory(dir=library.parent) as directory, redirect_stdout(output):
            made = compile_core(library.name, directory)
            made.replace(library)
    except ImportError as error:
        return f"mypyc was missing ({error}); run `pip install 'mypy[mypyc]'`"
    except (Exception, SystemExit) as error:  # noqa: BLE001  whatever fails, pure Python works; mypyc exits on errors
        print(f"{output.getvalue()}{type(error).__name__}: {error}", file=sys.stderr)
        return "mypyc or the C compiler failed; its messages are in the output of `pip install --verbose`; repair that"
    return ""


def compile_core(name: str, directory: str) -> Path:
    """Compile the modules into *directory*/*name*, and return its path."""
    from distutils.ccompiler import new_compiler  # noqa: PLC0415  setuptools provides it
    from distutils.sysconfig import customize_compiler  # noqa: PLC0415

    from mypyc.build import mypycify  # noqa: PLC0415  required only here

    os.chdir(CHECKOUT)  # mypy derives the names of modules from relative paths
    library, *shims = mypycify(
        [f"greenstalk_server/{module}.py" for module in BUILD["COMPILED"]],
        target_dir=directory,
        group_name=BUILD["group_name"](),
        multi_file=True,
        opt_level="1",  # levels 2 and 3 save no CPU per command, and take a quarter more time to compile
        debug_level="0",
    )
    written_in_c = [str(BUILD["PACKAGE"] / f"{module}.c") for module in BUILD["WRITTEN_IN_C"]]
    shim = one_shim([shim.sources[0] for shim in shims], directory)
    sources = [*in_groups(library.sources, directory), shim, *written_in_c]
    include_dirs = [*library.include_dirs, sysconfig.get_path("include"), sysconfig.get_path("platinclude")]
    flags = [*library.extra_compile_args, *CFLAGS]
    compiler = new_compiler()
    customize_compiler(compiler)

    def compile_one(source: str) -> str:
        (made,) = compiler.compile([source], output_dir=directory, include_dirs=include_dirs, extra_postargs=flags)
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, sources))
    compiler.link_shared_object(objects, name, output_dir=directory)
    return Path(directory, name)


def in_groups(sources: list[str], directory: str) -> list[str]:
    """Write files of similar size that include the *sources*, and return their paths.

    The headers declare everything in all modules. To read them for each module takes a tenth of the compiler's time.
    """
    groups: list[list[str]] = [[] for _ in range(GROUPS)]
    for source in sorted(sources, key=os.path.getsize, reverse=True):
        min(groups, key=lambda group: sum(map(os.path.getsize, group))).append(source)
    paths = [Path(directory, f"group{number}.c") for number in range(GROUPS)]
    for path, group in zip(paths, groups, strict=True):
        path.write_text("".join([f'#include "{Path(source).resolve()}"\n' for source in group]))
    return list(map(str, paths))


def one_shim(shims: list[str], directory: str) -> str:
    """Write a file that includes the *shims*, each with a function PyInit_MODULE, and return its path.

    Python looks for the function by the module's name, so one file can have many modules (PEP 489). Each shim also
    defines PyInit___init__, which the macro renames, since a file cannot define a function twice.
    """
    path = Path(directory, "shims.c")
    path.write_text(
        "".join(
            f'#define PyInit___init__ PyInit_{n}\n#include "{Path(shim).resolve()}"\n#undef PyInit___init__\n'
            for n, shim in enumerate(shims)
        )
    )
    return str(path)


def build_requirements() -> list[str]:
    """Return what the build requires besides setuptools; empty if it compiles nothing.

    mypy follows the imports of the compiled modules, and compiling the templates imports the dashboard. So both need
    the packages that are imported.
    """
    if IS_PURE or (obstacle() and not IS_REQUIRED):
        return []
    compiler = [] if BUILD["library_path"]().exists() else PROJECT["optional-dependencies"]["compile"]
    return [*compiler, *(each for each in PROJECT["dependencies"] if not each.startswith("greenstalk"))]


def readme() -> str:
    """Return README.md as the description of the distributions.

    Paths in its links become addresses in the repository that `[project.urls]` names. Without that setting, the texts
    of these links stay, and images are left out.
    """
    repository = PROJECT.get("urls", {}).get("Repository", "")
    commit = "HEAD" if "dev" in VERSION else f"v{VERSION}"

    def absolute(match: re.Match[str]) -> str:
        link, image, text, path = match.group(0, 1, 2, 3)
        if re.match("[a-z]+:", path):
            return link
        if repository:
            return f"{image}[{text}]({repository}/{'raw' if image else 'blob'}/{commit}/{path})"
        return "" if image else text

    return re.sub(r"(!?)\[([^]]*)\]\(([^)\s]+)\)", absolute, (CHECKOUT / "README.md").read_text())


def write_version(file: Path) -> None:
    """Write VERSION, which may have a commit, into a copy of `version.py`."""
    text, count = re.subn(r'(?m)^(VERSION: Final = )".*"$', rf'\1"{VERSION}"', file.read_text())
    assert count == 1, file
    file.unlink()  # the copy may be a link to the original
    file.write_text(text)


def add_templates(library: Path) -> None:
    """Compile the templates of the dashboard in the directory *library*, for this version of Python and of Jinja."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.pathsep.join(filter(None, (str(library.resolve()), os.environ.get("PYTHONPATH"))))
        variables = {
            "PYTHONPATH": path,
            "PYTHONPYCACHEPREFIX": directory,
            "PYTHONHASHSEED": "0",
            "GREENSTALK_PURE": "1",
        }
        environ = os.environ | variables
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        command = (sys.executable, "-P", "-m", "greenstalk_server.web.compile_templates")
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode and IS_REQUIRED:
            sys.exit(f"GREENSTALK_COMPILE=1 is set, but the templates cannot be compiled: {done.stderr}")
        for cache in Path(directory).rglob("templates.*.cache"):
            target = library / "greenstalk_server" / "web" / "__pycache__" / cache.name
            target.parent.mkdir(exist_ok=True)
            shutil.copy(cache, target)


class CompiledDistribution(Distribution):
    """A distribution whose wheel is specific to one platform if it contains the library."""

    def has_ext_modules(self) -> bool:
        return LIBRARY is not None


class BuildFromScratch(build_py):
    """Copies the modules into an empty directory, so that no file of an earlier build is installed."""

    def run(self) -> None:
        library = Path(self.build_lib)
        if not self.editable_mode and library.parent == Path(self.get_finalized_command("build").build_base):
            shutil.rmtree(library, ignore_errors=True)
        super().run()
        if not self.editable_mode:
            self._add_library(library / "greenstalk_server")
            for package in VERSIONED:
                write_version(library / package / "version.py")
            if LIBRARY is not None:
                add_templates(library)

    def _add_library(self, package: Path) -> None:
        """Copy the library, or the file that says why there is none."""
        note: Path = BUILD["DIRECTORY"] / BUILD["NO_LIBRARY"]
        if LIBRARY is not None:
            self.copy_file(str(LIBRARY), str(package))
        elif not IS_PURE and note.exists():
            self.copy_file(str(note), str(package))


class CompileCore(Command):
    """Compiles the core for this checkout."""

    description = "compile the core for this checkout"
    user_options: ClassVar[list[Any]] = []

    def initialize_options(self) -> None: ...

    def finalize_options(self) -> None: ...

    def run(self) -> None: ...


LIBRARY = compiled_library() if COMPILING & set(sys.argv) else None

setup(
    version=VERSION,
    long_description=readme(),
    long_description_content_type="text/markdown",
    distclass=CompiledDistribution,
    cmdclass={"build_py": BuildFromScratch, "compile_core": CompileCore},
    # Only when pip asks for them: with another command, setuptools would install them itself.
    setup_requires=build_requirements() if "egg_info" in sys.argv else [],
)
