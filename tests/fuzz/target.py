"""Run one target in this process with libFuzzer, whose arguments follow the target's name.

Each input makes job tables and drops them, so the collector tracks jobs here (see core.gc_untrack): memory that grows
is a leak.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module

import atheris

from greenstalk_server.core import gc_untrack


def main() -> None:
    name, *arguments = sys.argv[1:]
    gc_untrack.untrack = lambda each: None  # type: ignore[misc]
    logging.getLogger("greenstalk_server").setLevel(logging.CRITICAL + 1)
    with atheris.instrument_imports(include=["greenstalk_server"]):
        target = import_module(f"tests.fuzz.{name}")
    atheris.Setup([sys.argv[0], *arguments], target.one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
