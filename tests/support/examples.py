"""The number of random examples of a test of Hypothesis."""

from __future__ import annotations

from hypothesis import settings


def examples(count: int) -> int:
    """Return *count*; for `make fuzz`, five times as many: its profile has 500 examples by default instead of 100."""
    assert settings.default is not None
    return count * settings.default.max_examples // 100
