"""The entry point on a system on which the server cannot run."""

from __future__ import annotations

import sys

import pytest

from greenstalk_server.__main__ import main


def test_other_system_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert main() == 70
    assert capsys.readouterr().err == (
        "greenstalk-server: the server needs Linux, and this system is darwin; run it in a container\n"
    )
