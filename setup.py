"""Compile the hot modules with mypyc if GREENSTALK_COMPILE=1 is set. All other settings are in pyproject.toml.

Source and behaviour are the same: `make test-compiled` runs the core's tests against the compiled build.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_py import build_py

COMPILED = (
    "core/body_cache",
    "core/broker",
    "core/client",
    "core/counters",
    "core/gc_untrack",
    "core/job",
    "core/job_heap",
    "core/job_history",
    "core/job_table",
    "core/limits",
    "core/name_list",
    "core/outcomes",
    "core/ready_ages",
    "core/ready_queue",
    "core/timers",
    "core/transitions",
    "core/tube",
    "core/tube_set",
    "journal/record",
    "journal/segment",
    "net/connection",
    "net/poller",
    "protocol/codec",
    "protocol/restricted_session",
    "protocol/session",
    "protocol/stats",
    "protocol/streams",
    "runtime/clock",
)
"""Modules of greenstalk_server to compile: the core, the protocol, and the loop of a connection."""

IS_ENABLED = os.environ.get("GREENSTALK_COMPILE") == "1"


class BuildFromScratch(build_py):
    """Copies the modules into an empty directory, so that no file of an earlier build is installed."""

    def run(self) -> None:
        library = Path(self.build_lib)
        if not self.editable_mode and library.parent == Path(self.get_finalized_command("build").build_base):
            shutil.rmtree(library, ignore_errors=True)
        super().run()


def refuse_without_compiler() -> None:
    """Exit with one line that says what to install, instead of a long traceback of mypyc and setuptools."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        sys.exit(f"GREENSTALK_COMPILE=1 needs a C compiler, and {compiler} is missing: apt-get install gcc libc6-dev")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        sys.exit("GREENSTALK_COMPILE=1 needs Python's headers, and Python.h is missing: apt-get install python3-dev")


def extensions() -> list[Any]:
    """Return the extension modules to build."""
    if not IS_ENABLED:
        return []
    refuse_without_compiler()
    try:
        from mypyc.build import mypycify  # noqa: PLC0415  an optional dependency
    except ImportError:
        if "egg_info" in sys.argv:  # the first pass of pip, which determines the build requirements
            return []
        raise
    return mypycify([f"greenstalk_server/{module}.py" for module in COMPILED], opt_level="3")


setup(
    ext_modules=extensions(),
    cmdclass={"build_py": BuildFromScratch},
    setup_requires=["mypy[mypyc]>=1.13"] if IS_ENABLED else [],
)
