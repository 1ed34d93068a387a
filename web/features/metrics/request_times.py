"""Durations of HTTP requests by endpoint, method and status.

The number of keys is bounded: all paths without an endpoint share one key, and so do all unknown methods.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from typing import Final

from flask import Flask, Response, g, request

BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of buckets in seconds. One more bucket counts the slower requests."""

METHODS: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST"})

Key = tuple[str, str, str]
"""Endpoint, method, status."""


class Times:
    """The durations of the requests of one key: counts by bucket of BOUNDS, and their sum in seconds."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * (len(BOUNDS) + 1)
        self.sum: float = 0.0

    def note(self, seconds: float) -> None:
        """Count one request."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds


class RequestTimes:
    """The duration of each request until its response starts, since a stream may then run for hours."""

    def __init__(self) -> None:
        self.by_key: dict[Key, Times] = {}

    def init_app(self, app: Flask) -> None:
        """Measure each request of *app*. Install this first, so that refused requests are measured too."""
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
