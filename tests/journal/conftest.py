"""Fixtures of the tests of durability."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def ignore_warnings(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Suppress warnings: the starts of some tests would log thousands of torn tails."""
    with caplog.at_level(logging.ERROR):
        yield
