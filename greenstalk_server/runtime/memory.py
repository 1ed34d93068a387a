"""The memory of a process, and of the machine or the control group (cgroup v2) that limits this one."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from greenstalk_server.runtime.system import PROC, peak_memory

MEMINFO: Final = PROC / "meminfo"
CGROUP: Final = PROC / "self" / "cgroup"
CGROUPS: Final = Path("/sys/fs/cgroup")


class MemoryUse(NamedTuple):
    """Bytes in use and the maximum. Memory that the kernel can reclaim, such as the page cache, is not in use."""

    used: int
    total: int


def process_memory(pid: int | None = None) -> tuple[int, int] | None:
    """Return the resident bytes of a process, and the resident bytes that it does not share (proc(5), statm).

    *pid* None is this process. Return None if the system does not say.
    """
    try:
        fields = (PROC / ("self" if pid is None else str(pid)) / "statm").read_text().split()
    except OSError:
        return None
    page = resource.getpagesize()
    resident, shared = int(fields[1]) * page, int(fields[2]) * page
    return resident, resident - shared


def resident_bytes() -> int:
    """Return the bytes of this process that are in memory; if the system does not say, the most that ever were."""
    found = process_memory()
    return found[0] if found is not None else peak_memory()


def memory_use(meminfo: Path = MEMINFO, cgroup: Path = CGROUP, cgroups: Path = CGROUPS) -> MemoryUse | None:
    """Return the use of the machine's memory or of a control group's limit, whichever has the larger share.

    None if the system does not report it. The files are in memory, so reading them does not block.
    """
    found = [*_machine(meminfo), *_control_groups(cgroup, cgroups)]
    return max(found, key=lambda use: use.used / use.total, default=None)


def free_memory(meminfo: Path = MEMINFO, cgroup: Path = CGROUP, cgroups: Path = CGROUPS) -> int | None:
    """Return the free bytes, the least of the machine and the limits of control groups; None if they are unknown."""
    return min([use.total - use.used for use in (*_machine(meminfo), *_control_groups(cgroup, cgroups))], default=None)


def _machine(meminfo: Path) -> Iterator[MemoryUse]:
    try:
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        total, available = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except (OSError, ValueError, KeyError, IndexError):
        return
    if total > 0:
        yield MemoryUse(max(0, total - available), total)


def _control_groups(cgroup: Path, cgroups: Path) -> Iterator[MemoryUse]:
    """Yield the use of each control group with a limit: this process's group, and the groups that contain it."""
    try:
        lines = cgroup.read_text().splitlines()
    except OSError:
        return
    name = next((line[3:] for line in lines if line.startswith("0::")), "")
    group = cgroups / name.strip("/")
    while group.is_relative_to(cgroups):
        try:
            total = int((group / "memory.max").read_text())  # `max` without a limit
            used = int((group / "memory.current").read_text())
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            reclaimable = int(stat.get("inactive_file", 0))
        except (OSError, ValueError):
            total = 0
        if total > 0:
            yield MemoryUse(max(0, used - reclaimable), total)
        group = group.parent
