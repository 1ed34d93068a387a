"""The build: decide, before any other module is imported, whether the core runs compiled or as pure Python.

mypyc compiles the modules in COMPILED into one shared library. The library's name contains a digest of the sources. A
library is loaded only if its digest matches the sources beside this file:

- An installation has the library in its package. A library with another digest means that somebody has changed the
  installed files: the server refuses to start.
- A checkout has the library in `build/compiled`. Without a library of its sources, for example after an edit, the core
  runs as pure Python and the server's first log line says so.

GREENSTALK_PURE=1 selects pure Python in both. `setup.py` runs this file too, so it imports only the standard library.

Invariant: a module in COMPILED is loaded from the library or its source, never from an extension module beside it.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

COMPILED: Final = (
    "core/broker",
    "core/client",
    "core/counters",
    "core/gc_untrack",
    "core/job_attributes",
    "core/jobs/body_cache",
    "core/jobs/id_sequence",
    "core/jobs/job",
    "core/jobs/job_history",
    "core/jobs/job_index",
    "core/jobs/job_table",
    "core/journal",
    "core/limits",
    "core/moves",
    "core/operations/connecting",
    "core/operations/draining",
    "core/operations/editing",
    "core/operations/finishing",
    "core/operations/kicking",
    "core/operations/policy_changes",
    "core/operations/putting",
    "core/operations/reserving",
    "core/operations/restoring",
    "core/operations/suspending",
    "core/operations/ticking",
    "core/operations/undoing",
    "core/outcomes",
    "core/policies/policy",
    "core/policies/policy_counts",
    "core/policies/policy_shards",
    "core/policies/policy_store",
    "core/policies/policy_sweep",
    "core/policies/tube_policy_state",
    "core/remote",
    "core/sorted_keys",
    "core/tags/concurrency",
    "core/tags/groups",
    "core/tags/idempotency",
    "core/tags/tags",
    "core/timers",
    "core/transitions/enforcing",
    "core/transitions/reservation",
    "core/transitions/placing",
    "core/transitions/dependents",
    "core/transitions/moving",
    "core/transitions/departing",
    "core/transitions/tagging",
    "core/transitions/waiting",
    "core/travel",
    "core/tube_names",
    "core/tube_shards",
    "core/tubes/durations",
    "core/tubes/head_watch",
    "core/tubes/name_list",
    "core/tubes/ready_queue",
    "core/tubes/tube",
    "core/tubes/tube_set",
    "core/tubes/weighting",
    "journal/batch",
    "journal/compaction",
    "journal/record",
    "journal/recovery",
    "journal/replayed_segment",
    "journal/segment",
    "journal/segment_log",
    "journal/writer",
    "net/connection",
    "net/link",
    "net/poller",
    "protocol/arguments",
    "protocol/codec",
    "protocol/costs",
    "protocol/extended_stats",
    "protocol/front_channel",
    "protocol/front_commands",
    "protocol/front_session",
    "protocol/front_works",
    "protocol/gathering",
    "protocol/job_commands",
    "protocol/link_commands",
    "protocol/link_frames",
    "protocol/permissions",
    "protocol/replies",
    "protocol/reserve_commands",
    "protocol/restricted_session",
    "protocol/session",
    "protocol/session_commands",
    "protocol/session_state",
    "protocol/sliced_commands",
    "protocol/stats",
    "protocol/streams",
    "protocol/tag_syntax",
    "protocol/tube_commands",
    "protocol/verb",
    "protocol/verbs",
    "runtime/clock",
)
"""Modules to compile: those that most commands, or each recovered job, pass through. The last parts of their names are
unique."""

WRITTEN_IN_C: Final = ("core/_untrack", "journal/_seal", "net/_plain_socket", "protocol/_scan")
"""Extension modules that the compiled modules use if available."""

INLINED: Final = (
    "core/listener",
    "core/units",
    "journal/eviction",
    "journal/files",
    "journal/rewrite",
    "journal/space",
    "net/committer",
    "net/link_calls",
    "net/listeners",
    "protocol/access",
    "runtime/scheduling",
    "runtime/supervisor",
    "runtime/system",
)
"""Modules that compiled ones import. mypyc may copy their constants, so the digest covers them too."""

PACKAGE: Final = Path(__file__).resolve().parent
CHECKOUT: Final = PACKAGE.parent if (PACKAGE.parent / "setup.py").exists() else None
"""The checkout, or None in an installation."""

DIRECTORY: Final = CHECKOUT / "build" / "compiled" if CHECKOUT is not None else PACKAGE
"""The directory of the library."""

NO_LIBRARY: Final = "not_compiled.txt"
"""The file in DIRECTORY that says why the core was not compiled, if the build has tried."""

_PREFIX: Final = "greenstalk_core_"
_SUFFIX: Final = f"__mypyc{EXTENSION_SUFFIXES[0]}"
"""The suffix of the library's file name: mypyc's, then the interpreter's version and platform."""

_COSTS: Final = "a command costs about half more CPU"


@dataclass(frozen=True, slots=True)
class Build:
    """The build that runs.

    advice     why the core is not compiled and what to do; empty if it is compiled, or pure on purpose.
    error      why the server must not start, and what to do; empty if it may.
    """

    is_compiled: bool = False
    advice: str = ""
    error: str = ""

    @property
    def name(self) -> str:
        """The build in words."""
        return "compiled" if self.is_compiled else "pure Python"


def _full_name(module: str) -> str:
    return f"{__package__}.{module.replace('/', '.')}"


_C_MODULES: Final = frozenset(map(_full_name, WRITTEN_IN_C))


class _Finder(MetaPathFinder):
    """Finds a module at its path in *origins*, even if its directory has another file for it.

    Raises ImportError with *error* unless that is empty.
    """

    def __init__(self, origins: Mapping[str, Path], error: str) -> None:
        self._origins = origins
        self._error = error

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        origin = self._origins.get(fullname)
        if origin is None:
            if fullname in _C_MODULES:
                raise ModuleNotFoundError(f"{fullname} is not in the pure Python build", name=fullname)
            return None
        if self._error:
            raise ImportError(self._error)
        return spec_from_file_location(fullname, origin)


def group_name() -> str:
    """Return the name of mypyc's group for the present sources, which contains their digest."""
    digest = hashlib.sha256()
    files = [f"{module}.py" for module in COMPILED + INLINED] + [f"{module}.c" for module in WRITTEN_IN_C]
    for file in files:
        source = (PACKAGE / file).read_bytes()
        digest.update(b"%b %d\n%b" % (file.encode(), len(source), source))
    return f"{_PREFIX}{digest.hexdigest()[:16]}"


def library_path() -> Path:
    """Return the path of the library of the present sources, whether or not it exists."""
    return DIRECTORY / f"{group_name()}{_SUFFIX}"


def select() -> Build:
    """Make later imports use the library or the sources; return the build. Called once, by the package."""
    sources = {_full_name(module): PACKAGE / f"{module}.py" for module in COMPILED}
    if os.environ.get("GREENSTALK_PURE") == "1":
        return _install(sources, Build())
    library = library_path()
    if library.exists():
        name = library.name.partition(".")[0]
        modules = (name, *sources, *_C_MODULES)
        build = _install(dict.fromkeys(modules, library), Build(is_compiled=True))
        try:
            importlib.import_module(name)
        except ImportError as error:
            sys.meta_path.pop(0)
            return _install(sources, Build(error=f"cannot load the compiled core: {error}; {_repair()}"))
        return build
    if CHECKOUT is None and (other := next(PACKAGE.glob(f"{_PREFIX}*{_SUFFIX}"), None)):
        problem = f"{other} was compiled from other sources than those beside it, so it is not loaded"
        return _install(sources, Build(error=f"{problem}; {_repair()}"))
    return _install(sources, Build(advice=_advice()))


def _install(origins: Mapping[str, Path], build: Build) -> Build:
    sys.meta_path.insert(0, _Finder(origins, build.error))
    return build


def _repair() -> str:
    install = "install the server again" if CHECKOUT is None else "run `make clean compiled`"
    return f"{install}, or set GREENSTALK_PURE=1 to run it as pure Python"


def _advice() -> str:
    """Return why there is no library, the consequence, and what to do; empty if the installation is pure on purpose."""
    try:
        reason = (DIRECTORY / NO_LIBRARY).read_text().strip()
    except FileNotFoundError:
        if CHECKOUT is None:
            return ""
        has_other = next(DIRECTORY.glob(f"{_PREFIX}*{_SUFFIX}"), None) is not None
        reason = "its sources have changed since it was compiled" if has_other else "it has not been compiled"
        reason += "; to compile it, run `make compiled`"
    return f"the core runs as pure Python, and {_COSTS}: {reason}"
