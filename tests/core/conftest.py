"""Fixtures of the core's tests."""

from __future__ import annotations

import pytest

from tests.support.world import World


@pytest.fixture
def world() -> World:
    return World()
