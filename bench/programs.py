"""Compile the C programs of this directory when needed."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from .errors import BenchError

BUILD_DIR: Final = Path(__file__).parent / ".build"
_COMPILERS: Final = ("cc", "gcc", "clang")
_FLAGS: Final = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror")


def make_build_dir() -> Path:
    """Create and return the directory for the files of a run, which git ignores."""
    BUILD_DIR.mkdir(exist_ok=True)
    return BUILD_DIR


def build(name: str) -> Path:
    """Return the path of the program compiled from *name*.c; compile it if it is out of date."""
    source = Path(__file__).parent / f"{name}.c"
    program = make_build_dir() / name
    if program.exists() and program.stat().st_mtime > source.stat().st_mtime:
        return program
    partial = program.with_suffix(f".{os.getpid()}")  # other processes may be running or compiling it
    command = [_compiler(), *_FLAGS, "-o", str(partial), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"{' '.join(command)} failed:\n{done.stderr}")
    partial.replace(program)
    return program


def _compiler() -> str:
    wanted = [os.environ["CC"]] if "CC" in os.environ else _COMPILERS
    for name in wanted:
        if path := shutil.which(name):
            return path
    raise BenchError(f"no C compiler ({', '.join(wanted)}); Debian: apt install gcc")
