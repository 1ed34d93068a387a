"""The memory in use, from files like those of Linux."""

from __future__ import annotations

from pathlib import Path

import pytest

from greenstalk_server.runtime.memory import MemoryUse, free_memory, memory_use

MEMINFO = "MemTotal:  1000 kB\nMemFree:  100 kB\nMemAvailable:  400 kB\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Return the paths of meminfo, of the process's control group, and of the root of the groups, all missing."""
    return tmp_path / "meminfo", tmp_path / "cgroup", tmp_path / "groups"


def write_group(group: Path, *, limit: str, current: int, inactive_file: int) -> None:
    group.mkdir(parents=True)
    (group / "memory.max").write_text(f"{limit}\n")
    (group / "memory.current").write_text(f"{current}\n")
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {inactive_file}\n")


def test_machine_without_control_groups(files: tuple[Path, Path, Path]) -> None:
    files[0].write_text(MEMINFO)
    assert memory_use(*files) == MemoryUse(600 * 1024, 1000 * 1024)


def test_limit_of_a_containing_group_counts_if_its_share_is_larger(files: tuple[Path, Path, Path]) -> None:
    files[0].write_text(MEMINFO)
    files[1].write_text("0::/outer/inner\n")
    write_group(files[2] / "outer", limit="1000", current=950, inactive_file=50)
    write_group(files[2] / "outer" / "inner", limit="max", current=900, inactive_file=0)
    assert memory_use(*files) == MemoryUse(900, 1000)


def test_larger_share_of_the_machine_counts(files: tuple[Path, Path, Path]) -> None:
    files[0].write_text(MEMINFO)
    files[1].write_text("0::/\n")
    write_group(files[2], limit="1000", current=500, inactive_file=50)
    assert memory_use(*files) == MemoryUse(600 * 1024, 1000 * 1024)
    assert free_memory(*files) == 550


@pytest.mark.parametrize("text", ["", "MemTotal: 5 kB\n", "MemTotal: x\nMemAvailable: 1 kB\n", "MemTotal:\n", "junk"])
def test_unreadable_files_report_nothing(files: tuple[Path, Path, Path], text: str) -> None:
    assert memory_use(*files) is None and free_memory(*files) is None
    files[0].write_text(text)
    files[1].write_text("0::/../../etc\n")
    assert memory_use(*files) is None


@pytest.mark.linux_form
def test_this_machine_reports_its_memory() -> None:
    use = memory_use()
    assert use is not None and 0 < use.used < use.total
