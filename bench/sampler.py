"""Run a program and sample where its main thread spends CPU time: python -m bench.sampler FILE MODULE [ARGUMENT...].

From START on, a timer on the main thread's CPU clock records the Python stack every few milliseconds; at STOP the
stacks are written to FILE. CPython handles signals after each call, so time in C, such as a system call, counts for the
line that called it, and other time for a line a few steps later. An external sampler is no better in a virtual machine:
it mostly stops a process as it enters the kernel, and attributes nearly all of its time to that place.

This module works with any program.
"""

import ctypes
import json
import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

START: Final = signal.SIGRTMIN + 1
STOP: Final = signal.SIGRTMIN + 2

_INTERVAL_NS: Final = (
    1_000_000  # the kernel checks CPU timers once per tick, which limits the rate to 250/s on most systems
)
_CLOCK_THREAD_CPUTIME_ID: Final = 3
_SIGEV_THREAD_ID: Final = 4

_Stack = tuple[tuple[CodeType, int], ...]


class _SignalEvent(ctypes.Structure):
    """struct sigevent of sigevent(3type), for notification of a thread."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread", ctypes.c_int),
        ("unused", ctypes.c_char * 44),
    )


class Sampler:
    """Counts the main thread's stacks, leaf first, between START and STOP."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stacks: dict[_Stack, int] = {}
        self._began = 0, 0
        self._timer = ctypes.c_void_p()
        signal.signal(signal.SIGPROF, self._sample)
        signal.signal(START, self._start)
        signal.signal(STOP, self._stop)

    def _start(self, number: int, frame: FrameType | None) -> None:
        self._began = _cpu_ns()
        event = _SignalEvent(None, signal.SIGPROF, _SIGEV_THREAD_ID, threading.get_native_id(), b"")
        _checked(_libc.timer_create(_CLOCK_THREAD_CPUTIME_ID, ctypes.byref(event), ctypes.byref(self._timer)))
        every = (ctypes.c_long * 4)(0, _INTERVAL_NS, 0, _INTERVAL_NS)  # struct itimerspec
        _checked(_libc.timer_settime(self._timer, 0, ctypes.byref(every), None))

    def _sample(self, number: int, frame: FrameType | None) -> None:
        stack = []
        while frame is not None:
            stack.append((frame.f_code, frame.f_lineno or 0))
            frame = frame.f_back
        key = tuple(stack)
        self._stacks[key] = self._stacks.get(key, 0) + 1

    def _stop(self, number: int, frame: FrameType | None) -> None:
        _checked(_libc.timer_delete(self._timer))
        thread_ns, process_ns = (now - then for now, then in zip(_cpu_ns(), self._began, strict=True))
        stacks = [
            [count, [[code.co_qualname, code.co_filename, line] for code, line in reversed(stack)]]
            for stack, count in self._stacks.items()
        ]
        partial = self._path.with_suffix(".part")
        partial.write_text(json.dumps({"thread_ns": thread_ns, "process_ns": process_ns, "stacks": stacks}))
        partial.rename(self._path)


_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _cpu_ns() -> tuple[int, int]:
    """Return the CPU time of this thread, and of the process."""
    return time.thread_time_ns(), time.process_time_ns()


if __name__ == "__main__":
    Sampler(Path(sys.argv[1]))
    module = sys.argv[2]
    sys.argv = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
