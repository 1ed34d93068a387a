"""A wall clock of a real server that a test sets, by libfaketime. The monotonic clock is not changed."""

from __future__ import annotations

from pathlib import Path

from tests.support.daemon import environment

LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))


class WallClock:
    """The wall clock of a server. The file *path* contains its offset from the real time in seconds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set(0)

    def set(self, seconds: int) -> None:
        """Set the offset in seconds; the clock jumps."""
        new = self.path.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.replace(self.path)

    def environment(self) -> dict[str, str]:
        assert LIBRARIES, "libfaketime is missing: apt-get install faketime"
        return environment(
            LD_PRELOAD=str(LIBRARIES[0]),
            FAKETIME_TIMESTAMP_FILE=str(self.path),
            FAKETIME_NO_CACHE="1",
            FAKETIME_DONT_FAKE_MONOTONIC="1",
        )
