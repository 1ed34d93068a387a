"""The samples of the profilers: Python stacks of the main thread by bench.sampler, the whole process by perf."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from .stages import STAGES, Frame, Stage, stage_of, stage_of_native, stage_of_system_call

Calls = tuple[tuple[str, Stage], ...]
"""A stack in a flame graph: names and their stages, the leaf last."""

_SYSTEM_CALL: Final = re.compile(r"__x64_sys_(\w+)|__arm64_sys_(\w+)|__do_sys_(\w+)")
_COMPILED: Final = re.compile(r"CPyDef_(?P<module>[a-z]\w*?)___(?P<function>\w+)")
_OUTERMOST: Final[tuple[Stage, ...]] = ("wait", "recv", "send")
"""Stages that consist of one call out of the program; a flame graph shows that call as the leaf."""


@dataclass
class PythonStacks:
    """The stacks of the main thread that bench.sampler has recorded."""

    counts: Counter[tuple[Frame, ...]] = field(default_factory=Counter)
    thread_ns: int = 0
    process_ns: int = 0

    def add(self, text: str) -> None:
        """Add the output of one run of the sampler."""
        data = json.loads(text)
        self.thread_ns += data["thread_ns"]
        self.process_ns += data["process_ns"]
        for count, stack in data["stacks"]:
            self.counts[tuple(Frame(*frame) for frame in stack)] += count

    @property
    def total(self) -> int:
        return self.counts.total()

    @property
    def main_share(self) -> float:
        """The main thread's share of the process's CPU time."""
        return min(1.0, self.thread_ns / self.process_ns)  # the two clocks are not read at the same instant

    def shares(self, *, has_journal: bool) -> dict[Stage, float]:
        """Return each stage's share of the process's CPU time; other threads count as the journal's if there is one."""
        shares: dict[Stage, float] = dict.fromkeys(STAGES, 0.0)
        for stack, count in self.counts.items():
            shares[stage_of(stack)] += self.main_share * count / self.total
        shares["journal" if has_journal else "other"] += 1 - self.main_share
        return shares

    def calls(self) -> Iterator[tuple[Calls, int]]:
        for stack, count in self.counts.items():
            yield _python_calls(stack), count


def _python_calls(stack: tuple[Frame, ...]) -> Calls:
    calls: list[tuple[str, Stage]] = []
    for size, frame in enumerate(stack, 1):
        if frame.package or size == len(stack):
            stage = stage_of((*stack[: size - 1], Frame(frame.function, frame.path, 0)))
            calls.append((f"{frame.function} {Path(frame.path).stem}", stage))
    leaf = stage_of(stack)
    if leaf in _OUTERMOST and stack[-1].package:
        calls.append((f"[{leaf}]", leaf))
    return tuple(calls)


@dataclass
class Samples:
    """The samples of perf: the kernel's part of each stage, and the rest by library."""

    kernel: Counter[Stage] = field(default_factory=Counter)
    libraries: Counter[str] = field(default_factory=Counter)
    counts: Counter[Calls] = field(default_factory=Counter)  # meaningful for the compiled build only

    def add(self, sample: str) -> None:
        """Add one sample in the format of perf script: the thread, then the symbol and library of each call."""
        lines = sample.strip().splitlines()[1:]
        if not lines:
            return
        symbols = [line.split(None, 2)[1] for line in lines]
        system_call = next((_system_call(symbol) for symbol in symbols if _SYSTEM_CALL.search(symbol)), "")
        if "[kernel" in lines[0]:
            self.kernel[stage_of_system_call(system_call)] += 1
        else:
            self.libraries[_library(lines[0])] += 1
        self.counts[_native_calls(symbols, system_call)] += 1

    @property
    def total(self) -> int:
        return self.counts.total()

    def shares(self) -> dict[Stage, float]:
        """Return each stage's share of the process's CPU time; for the compiled build only."""
        shares: dict[Stage, float] = dict.fromkeys(STAGES, 0.0)
        for calls, count in self.counts.items():
            shares[calls[-1][1]] += count / self.total
        return shares


def _native_calls(symbols: list[str], system_call: str) -> Calls:
    """Return the compiled functions among *symbols* (the leaf first), and the stage of the calls they made."""
    compiled = [(depth, match) for depth, symbol in enumerate(symbols) if (match := _COMPILED.match(symbol))]
    calls: list[tuple[str, Stage]] = [
        (
            f"{match['function'].replace('___', '.').strip('_')} {match['module']}",
            stage_of_native([], match["module"], ""),
        )
        for _, match in reversed(compiled)
    ]
    depth, module = (compiled[0][0], compiled[0][1]["module"]) if compiled else (len(symbols), "")
    stage = stage_of_native(symbols[:depth], module, system_call)
    if stage in _OUTERMOST or not calls:
        calls.append((f"[{stage}]", stage))
    else:
        calls[-1] = calls[-1][0], stage
    return tuple(calls)


def _system_call(symbol: str) -> str:
    match = _SYSTEM_CALL.search(symbol)
    return next(filter(None, match.groups())) if match else ""


def _library(line: str) -> str:
    """Return the library's name, which is in parentheses at the end of a line of perf script."""
    name = Path(line.rsplit("(", 1)[-1].rstrip(")\n")).name
    return "compiled" if "__mypyc" in name else name.split(".", 1)[0].lstrip("_")
