"""A wall clock of a real server that a test sets. The monotonic clock is not changed."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from tests.support.daemon import environment


class WallClock:
    """The wall clock of a server. The file *path* contains its offset from the real time in seconds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set(0)

    def set(self, seconds: int) -> None:
        """Set the offset in seconds; the clock jumps."""
        new = self.path.with_suffix(".new")
        new.write_text(f"{seconds}\n")
        new.replace(self.path)

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that give a process this clock."""
        return {"LD_PRELOAD": str(_library()), "WALL_CLOCK_OFFSET": str(self.path)}

    def environment(self) -> dict[str, str]:
        """Return the environment of a server with this clock."""
        return environment(**self.variables)


@cache
def _library() -> Path:
    """Compile wall_clock.c; return the library."""
    directory = Path(tempfile.mkdtemp(prefix="greenstalk-clock-"))
    atexit.register(shutil.rmtree, directory)
    library = directory / "wall_clock.so"
    source = Path(__file__).with_name("wall_clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O", "-Wall", str(source), "-o", str(library)], check=True)
    return library
