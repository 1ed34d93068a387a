"""What can go wrong in a measurement, as one exception."""


class BenchError(Exception):
    """A measurement that cannot be had; the message says what failed and why."""
