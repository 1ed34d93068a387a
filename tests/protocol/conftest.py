"""Fixtures of the tests of the protocol."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from greenstalk_server.protocol import codec


@pytest.fixture
def strict() -> Iterator[None]:
    """Turn the extensions off."""
    codec.set_strict(True)
    yield
    codec.set_strict(False)
