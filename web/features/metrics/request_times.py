"""Durations of HTTP requests by endpoint, method and status.

The number of label values is bounded: all paths without an endpoint share one, and so do all unknown methods.
"""

from __future__ import annotations

import time
from typing import Final

from flask import Flask, Response, g, request
from prometheus_client import Histogram, disable_created_metrics

METHODS: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST"})

BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of buckets in seconds. One more bucket counts the slower requests."""

disable_created_metrics()  # type: ignore[no-untyped-call]  # no gauges with the times when buckets were created


def measure_requests(app: Flask) -> Histogram:
    """Return a histogram of the time from each request of *app* to the start of its response.

    The end of a response is not measured, since a stream runs for hours.

    Call this first, so that refused requests are measured too.
    """
    durations = Histogram(
        "greenstalk_http_request_duration_seconds",
        "Duration of requests to the dashboard until the start of the response.",
        ("endpoint", "method", "code"),
        buckets=BOUNDS,
        registry=None,
    )

    def begin() -> None:
        g.began = time.perf_counter()

    def end(response: Response) -> Response:
        method = request.method if request.method in METHODS else "other"
        labels = request.endpoint or "none", method, str(response.status_code)
        durations.labels(*labels).observe(time.perf_counter() - g.began)
        return response

    app.before_request(begin)
    app.after_request(end)
    return durations
