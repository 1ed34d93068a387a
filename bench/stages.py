"""Map Python stacks, native symbols and system calls to the stages of a command."""

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
    "core": "the broker and its data structures",
    "journal": "records, and the threads that write and sync them",
    "send": "the call of send",
    "connection": "the loop of a connection around these stages",
    "dashboard": "pages, event streams, history",
    "other": "ticker, housekeeping, accepting; in the kernel: interrupts, entry and exit",
}

_SERVER: Final = "greenstalk_server"
_DASHBOARD: Final = "web"
_MODULES: Final[dict[str, Stage]] = {
    "cli": "other",
    "cluster": "other",
    "config": "other",
    "journal": "journal",
    "net": "other",
    "protocol": "parse",
    "runtime": "other",
    # Modules that differ from their package, or that the compiled build shows without their package:
    "batch": "journal",
    "body_loader": "journal",
    "clock": "connection",
    "codec": "parse",
    "committer": "journal",
    "compaction": "journal",
    "connection": "connection",
    "extended_session": "parse",
    "poller": "connection",
    "record": "journal",
    "restricted_session": "parse",
    "segment": "journal",
    "segment_log": "journal",
    "session": "parse",
    "writer": "journal",
}
"""Stages of packages and modules of the server; the name closest to the function counts. All others are the core's."""

_LINES: Final[tuple[tuple[re.Pattern[str], Stage], ...]] = (
    (re.compile(r"\brecv(_into)?\("), "recv"),
    (re.compile(r"\bsend(all|msg)?\("), "send"),
    (re.compile(r"\b(sleep|switch)\(\)"), "wait"),
)
"""Calls in the source line at which a stack's leaf is, if that leaf is in the server."""

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
"""C functions of the socket module, greenlet and gevent."""

_INTERPRETER: Final = re.compile(r"_PyEval_EvalFrame")


@dataclass(frozen=True)
class Frame:
    """One call of a Python stack."""

    function: str
    path: str
    line: int

    @property
    def package(self) -> str:
        """The top-level package if it is the server's or the dashboard's; else empty."""
        return next((part for part in reversed(PurePath(self.path).parts[:-1]) if part in (_SERVER, _DASHBOARD)), "")

    @property
    def modules(self) -> tuple[str, ...]:
        """The subpackages and the module within that package."""
        parts = PurePath(self.path).with_suffix("").parts
        return parts[len(parts) - parts[::-1].index(self.package) :]


def stage_of(stack: tuple[Frame, ...]) -> Stage:
    """Return the stage of *stack* (the leaf last): by its leaf's source line, else by the innermost known module."""
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
            return next((_MODULES[name] for name in reversed(frame.modules) if name in _MODULES), "core")
    return "wait" if any(frame.function == "Hub.run" for frame in stack) else "other"


def stage_of_system_call(name: str) -> Stage:
    """Return the stage of the kernel function *name*."""
    return next((stage for pattern, stage in _SYSTEM_CALLS if pattern.search(name)), "other")


def stage_of_native(symbols: list[str], module: str, system_call: str) -> Stage:
    """Return the stage of the C functions *symbols* (the leaf first) called by the compiled *module*.

    *module* is empty if no compiled module is in the stack. Interpreted code has no names here: it counts as the
    journal's if compiled code called it, else as "other", most of which is the dashboard's.
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
    return _MODULES.get(module, "core")
