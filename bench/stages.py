"""The stages of a command: which of them a Python stack, or a system call, belongs to."""

import linecache
import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, Literal

Stage = Literal["wait", "recv", "parse", "core", "journal", "send", "connection", "dashboard", "other"]

STAGES: Final[dict[Stage, str]] = {
    "wait": "epoll_wait, gevent's loop and the switch to a greenlet",
    "recv": "the call of recv",
    "parse": "bytes to commands, commands to replies: protocol, session",
    "core": "the broker and what it keeps jobs in",
    "journal": "records, and the threads that write and sync them",
    "send": "the call of send",
    "connection": "the rest: the loop of a connection around all this",
    "dashboard": "the rest: pages, streams of events, history",
    "other": "the rest: ticker, housekeeping, accepting; in the kernel: interrupts, entry and exit",
}

_SERVER: Final = "greenstalk_server"
_DASHBOARD: Final = "web"
_MODULES: Final[dict[str, Stage]] = {
    "protocol": "parse",
    "session": "parse",
    "journal": "journal",
    "committer": "journal",
    "connection": "connection",
    "clock": "connection",
    "server": "other",
    "cli": "other",
    "memory": "other",
    "logs": "other",
    "listeners": "other",
}
"""Modules and packages of the server; what is not here is of the core."""

_LINES: Final[tuple[tuple[re.Pattern[str], Stage], ...]] = (
    (re.compile(r"\brecv(_into)?\("), "recv"),
    (re.compile(r"\bsend(all|msg)?\("), "send"),
    (re.compile(r"\b(sleep|switch)\(\)"), "wait"),
)
"""What a line of the server that spends the time itself calls."""

_SYSTEM_CALLS: Final[tuple[tuple[re.Pattern[str], Stage], ...]] = (
    (re.compile(r"recv"), "recv"),
    (re.compile(r"send"), "send"),
    (re.compile(r"epoll|poll|select"), "wait"),
    (re.compile(r"write|sync|fallocate|open|close|rename|unlink"), "journal"),
)

_NATIVE_CALLS: Final[tuple[tuple[re.Pattern[str], Stage], ...]] = (
    (re.compile(r"sock_recv"), "recv"),
    (re.compile(r"sock_send"), "send"),
    (re.compile(r"green_switch|g_switch|ev_run|gevent_"), "wait"),
)
"""Functions in C, of the socket module, greenlet and gevent."""

_NATIVE_MODULES: Final[dict[str, Stage]] = {"record": "journal", "segment": "journal"}
"""Compiled modules bear their last name alone."""

_INTERPRETER: Final = re.compile(r"_PyEval_EvalFrame")


@dataclass(frozen=True)
class Frame:
    """One call of a Python stack."""

    function: str
    path: str
    line: int

    @property
    def package(self) -> str:
        """The top-level package, if it is one of ours; else empty."""
        return next((part for part in reversed(PurePath(self.path).parts[:-1]) if part in (_SERVER, _DASHBOARD)), "")

    @property
    def module(self) -> str:
        """The module or subpackage within that package."""
        parts = PurePath(self.path).with_suffix("").parts
        return parts[len(parts) - parts[::-1].index(self.package)]


def stage_of(stack: tuple[Frame, ...]) -> Stage:
    """The stage of *stack*, the leaf last: by the line that the leaf is at, or else the nearest frame that tells."""
    leaf = stack[-1]
    if leaf.package == _SERVER:
        text = linecache.getline(leaf.path, leaf.line)
        for pattern, stage in _LINES:
            if pattern.search(text):
                return stage
    for frame in reversed(stack):
        if frame.package == _DASHBOARD:
            return "dashboard"
        if frame.package == _SERVER:
            return _MODULES.get(frame.module, "core")
    return "wait" if any(frame.function == "Hub.run" for frame in stack) else "other"


def stage_of_system_call(name: str) -> Stage:
    """The stage that the kernel's function *name* is for."""
    return next((stage for pattern, stage in _SYSTEM_CALLS if pattern.search(name)), "other")


def stage_of_native(symbols: list[str], module: str, system_call: str) -> Stage:
    """The stage of functions in C, the leaf first, that the compiled *module* called; empty if none did.

    What is not compiled has no names here: it is the journal's if compiled code has called it, and else "other", of
    which most is the dashboard's.
    """
    if system_call and (stage := stage_of_system_call(system_call)) != "other":
        return stage
    for symbol in symbols:
        if _INTERPRETER.search(symbol):
            return "journal" if module else "other"
        for pattern, stage in _NATIVE_CALLS:
            if pattern.search(symbol):
                return stage
    if not module:
        return "other"
    return _NATIVE_MODULES.get(module) or _MODULES.get(module, "core")
