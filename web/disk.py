"""Disk work in a thread, so that only its caller waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from gevent import get_hub

Params = ParamSpec("Params")
Result = TypeVar("Result")


def in_thread(work: Callable[Params, Result], *args: Params.args, **kwargs: Params.kwargs) -> Result:
    """Run *work* in a thread of the hub's pool; return its result, or raise its OSError. Switches."""

    def attempt() -> Result | OSError:
        # The pool would print the traceback of an exception that leaves the thread.
        try:
            return work(*args, **kwargs)
        except OSError as error:
            return error

    result: Result | OSError = get_hub().threadpool.apply(attempt)
    if isinstance(result, OSError):
        raise result
    return result
