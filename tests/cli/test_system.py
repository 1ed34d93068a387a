"""The entry point on a system on which the server cannot run."""

from __future__ import annotations

import sys

import pytest

from greenstalk_server.__main__ import main


def test_other_system_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "platform", "freebsd14")
    assert main() == 70
    assert capsys.readouterr().err == (
        "greenstalk-server: the server needs Linux or macOS, and this system is freebsd14; run it in a container\n"
    )
