"""Run blocking calls in the hub's thread pool, so that only the calling greenlet waits for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from gevent import get_hub

P = ParamSpec("P")
T = TypeVar("T")


def run_in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call *function* in a native thread; return its result, or raise its exception. Switches."""
    results: list[T] = []
    error = get_hub().threadpool.apply(_call, (results, function, args, kwargs))
    if error is None:
        return results[0]
    try:
        raise error
    finally:
        del error  # its traceback holds this frame: a cycle, which the collector would have to find


def _call(
    results: list[T], function: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> BaseException | None:
    """Append the result of *function* to *results*, or return its exception: the pool would print a traceback."""
    try:
        results.append(function(*args, **kwargs))
    except BaseException as error:  # noqa: BLE001  the caller's greenlet raises it
        return error
    return None
