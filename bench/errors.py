"""The exception of a failed measurement."""


class BenchError(Exception):
    """A measurement failed; the message says what failed and why."""
