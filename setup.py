"""Compiles the core's hot modules with mypyc if GREENSTALK_COMPILE=1 asks for it. All else is in pyproject.toml.

The source is the same, and so is what it does: `make test-compiled` runs the core's tests against that build.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from setuptools import setup

COMPILED = (
    "arrivals",
    "bodies",
    "broker",
    "client",
    "clock",
    "connection",
    "job",
    "jobs",
    "journal/record",
    "journal/segment",
    "life",
    "limits",
    "protocol",
    "poller",
    "ready",
    "restricted",
    "session",
    "stats",
    "streams",
    "timers",
    "tube",
    "untracked",
    "watches",
)
"""Modules of greenstalk_server: the core, and the loop of a connection around it."""

IS_ASKED = os.environ.get("GREENSTALK_COMPILE") == "1"


def extensions() -> list[Any]:
    """The extension modules to build."""
    if not IS_ASKED:
        return []
    try:
        from mypyc.build import mypycify  # noqa: PLC0415  only where it is asked for
    except ImportError:
        if "egg_info" in sys.argv:  # pip's first pass, which asks what the build needs
            return []
        raise
    return mypycify([f"greenstalk_server/{module}.py" for module in COMPILED], opt_level="3")


setup(ext_modules=extensions(), setup_requires=["mypy[mypyc]>=1.13"] if IS_ASKED else [])
