"""Work on a disk, done in a thread so that nobody waits for it but who asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from gevent import get_hub

Given = ParamSpec("Given")
Result = TypeVar("Result")


def in_thread(work: Callable[Given, Result], *given: Given.args, **named: Given.kwargs) -> Result:
    """Return what *work* does in a thread of the hub's pool, or raise the OSError that it raises. Switches."""

    def attempt() -> Result | OSError:
        # What leaves a thread as an exception, the pool prints with its traceback.
        try:
            return work(*given, **named)
        except OSError as error:
            return error

    result: Result | OSError = get_hub().threadpool.apply(attempt)
    if isinstance(result, OSError):
        raise result
    return result
