"""Run one target in this process with libFuzzer, whose arguments follow the target's name."""

from __future__ import annotations

import logging
import sys
from importlib import import_module

import atheris


def main() -> None:
    name, *arguments = sys.argv[1:]
    logging.getLogger("greenstalk_server").setLevel(logging.CRITICAL + 1)
    with atheris.instrument_imports(include=["greenstalk_server"]):
        target = import_module(f"tests.fuzz.{name}")
    atheris.Setup([sys.argv[0], *arguments], target.one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
