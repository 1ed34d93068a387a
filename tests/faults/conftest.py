"""The disks, mounted for one test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.disks import FailingDisk, tmpfs

SMALL: int = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk with room for a megabyte."""
    with tmpfs(tmp_path / "disk", SMALL) as disk:
        yield disk


@pytest.fixture
def failing_disk(tmp_path: Path) -> Iterator[FailingDisk]:
    """A disk that can be made to fail."""
    with FailingDisk(tmp_path).in_use() as disk:
        yield disk
