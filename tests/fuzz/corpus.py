"""The corpus of inputs from earlier runs: one file per target, one input per line, in base64."""

from __future__ import annotations

import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, TypeAlias

import greenstalk_server

DIRECTORY: Final = Path(__file__).parent / "corpus"
PACKAGE: Final = str(Path(greenstalk_server.__file__).parent)

TOO_LONG: Final = 0.3
"""Maximum seconds of an input: the tests run all of them."""

Arc: TypeAlias = tuple[CodeType, int, int]


def read(target: str) -> list[bytes]:
    """Return all inputs of *target*."""
    return [b64decode(line, validate=True) for line in (DIRECTORY / f"{target}.txt").read_text().split()]


def unpack(target: str, directory: Path) -> None:
    """Write the inputs to *directory*, one file each, as libFuzzer requires."""
    directory.mkdir(parents=True, exist_ok=True)
    for data in read(target):
        (directory / sha256(data).hexdigest()[:40]).write_bytes(data)


def keep(target: str, directory: Path) -> int:
    """Keep the files of *directory* that together have the same coverage as all of them; return their number.

    Coverage is the set of pairs of lines of the server that run in succession. Small files are preferred, and slow
    inputs are left out.
    """
    play: Callable[[bytes], None] = import_module(f"tests.fuzz.{target}").one
    kept: list[bytes] = []
    known: set[Arc] = set()
    for data in sorted({path.read_bytes() for path in directory.iterdir()}, key=lambda data: (len(data), data)):
        began = time.monotonic()
        play(data)
        if time.monotonic() - began < TOO_LONG:
            reached = _reached(play, data)
            if not reached <= known:
                known |= reached
                kept.append(data)
    write(target, kept)
    return len(kept)


def write(target: str, inputs: list[bytes]) -> None:
    """Make *inputs* the corpus of *target*."""
    DIRECTORY.mkdir(exist_ok=True)
    (DIRECTORY / f"{target}.txt").write_text("".join([b64encode(data).decode() + "\n" for data in inputs]))


def _reached(play: Callable[[bytes], None], data: bytes) -> set[Arc]:
    reached: set[Arc] = set()

    def trace(frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        code, last = frame.f_code, 0
        if not code.co_filename.startswith(PACKAGE):
            return None

        def trace_line(frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
            nonlocal last
            if event == "line":
                reached.add((code, last, frame.f_lineno))
                last = frame.f_lineno
            return trace_line

        return trace_line

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        play(data)
    finally:
        sys.settrace(before)
    return reached
