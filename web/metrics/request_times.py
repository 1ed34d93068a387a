"""How long requests took, by endpoint, method and status: each of a few, whatever clients send."""

from __future__ import annotations

import time
from bisect import bisect_left
from typing import Final

from flask import Flask, Response, g, request

BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds; what took longer is in one more bucket."""

METHODS: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST"})

Key = tuple[str, str, str]
"""Endpoint, method, status."""


class Times:
    """What the requests of one key took: how many by bucket of BOUNDS, and the sum in seconds."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * (len(BOUNDS) + 1)
        self.sum: float = 0.0

    def note(self, seconds: float) -> None:
        """Add one request."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds


class RequestTimes:
    """The times of all requests so far, until the answer begins: a stream goes on for as long as it likes."""

    def __init__(self) -> None:
        self.by_key: dict[Key, Times] = {}

    def init_app(self, app: Flask) -> None:
        """Have *app* tell of each request. Before all else is installed, since what is refused counts too."""
        app.before_request(self._begin)
        app.after_request(self._end)

    def _begin(self) -> None:
        g.began = time.perf_counter()

    def _end(self, response: Response) -> Response:
        method = request.method if request.method in METHODS else "other"
        key = (request.endpoint or "none", method, str(response.status_code))
        times = self.by_key.get(key)
        if times is None:
            times = self.by_key[key] = Times()
        times.note(time.perf_counter() - g.began)
        return response
