"""What the profilers have seen of a server: Python stacks by bench.sampler, and all of the process by perf."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from .stages import STAGES, Frame, Stage, stage_of, stage_of_native, stage_of_system_call

Calls = tuple[tuple[str, Stage], ...]
"""What a flame graph shows of a stack: names and their stages, the leaf last."""

_SYSTEM_CALL: Final = re.compile(r"__x64_sys_(\w+)|__arm64_sys_(\w+)|__do_sys_(\w+)")
_COMPILED: Final = re.compile(r"CPyDef_(?P<module>[a-z]\w*?)___(?P<function>\w+)")
_OUTERMOST: Final[tuple[Stage, ...]] = ("wait", "recv", "send")
"""Stages that are one call out of the program: a flame graph shows that on top."""


@dataclass
class PythonStacks:
    """What bench.sampler has seen of the main thread."""

    counts: Counter[tuple[Frame, ...]] = field(default_factory=Counter)
    thread_ns: int = 0
    process_ns: int = 0

    def add(self, text: str) -> None:
        """Take in what one run of the sampler has written."""
        told = json.loads(text)
        self.thread_ns += told["thread_ns"]
        self.process_ns += told["process_ns"]
        for count, stack in told["stacks"]:
            self.counts[tuple(Frame(*frame) for frame in stack)] += count

    @property
    def total(self) -> int:
        return self.counts.total()

    @property
    def main_share(self) -> float:
        """The main thread's part of the process's CPU time."""
        return min(1.0, self.thread_ns / self.process_ns)  # the two clocks are not read at the same instant

    def shares(self, *, has_journal: bool) -> dict[Stage, float]:
        """Each stage's part of the process's CPU time; the other threads are the journal's, if there is one."""
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
    """What perf has seen: the kernel's part of each stage, and the rest by library. Of the compiled build, all."""

    kernel: Counter[Stage] = field(default_factory=Counter)
    libraries: Counter[str] = field(default_factory=Counter)
    counts: Counter[Calls] = field(default_factory=Counter)  # of the compiled build

    def add(self, sample: str) -> None:
        """Count one sample as perf script prints it: the thread, then the symbol and library of each call."""
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
        """Each stage's part of the process's CPU time; for the compiled build."""
        shares: dict[Stage, float] = dict.fromkeys(STAGES, 0.0)
        for calls, count in self.counts.items():
            shares[calls[-1][1]] += count / self.total
        return shares


def _native_calls(symbols: list[str], system_call: str) -> Calls:
    """The compiled functions among *symbols*, the leaf first; and where they went from there."""
    found = [(depth, match) for depth, symbol in enumerate(symbols) if (match := _COMPILED.match(symbol))]
    calls: list[tuple[str, Stage]] = [
        (
            f"{match['function'].replace('___', '.').strip('_')} {match['module']}",
            stage_of_native([], match["module"], ""),
        )
        for _, match in reversed(found)
    ]
    depth, module = (found[0][0], found[0][1]["module"]) if found else (len(symbols), "")
    stage = stage_of_native(symbols[:depth], module, system_call)
    if stage in _OUTERMOST or not calls:
        calls.append((f"[{stage}]", stage))
    else:
        calls[-1] = calls[-1][0], stage
    return tuple(calls)


def _system_call(symbol: str) -> str:
    found = _SYSTEM_CALL.search(symbol)
    return next(filter(None, found.groups())) if found else ""


def _library(line: str) -> str:
    """The name of the library that a line of perf script ends with, in brackets."""
    name = Path(line.rsplit("(", 1)[-1].rstrip(")\n")).name
    return "compiled" if "__mypyc" in name else name.split(".", 1)[0].lstrip("_")
