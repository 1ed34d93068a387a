"""Runs one target in this process until libFuzzer, whose arguments follow the target's name, has had enough.

Each input makes tables of jobs and drops them, so here the collector looks at jobs, too (see untracked): what grows
then has been kept by somebody.
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
