"""The corpus of earlier runs finds no error, and neither does a short run of the fuzzers."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.fuzz import corpus
from tests.fuzz.__main__ import TARGETS
from tests.support.daemon import REPOSITORY


@pytest.mark.parametrize("target", TARGETS)
def test_corpus_finds_no_error(target: str) -> None:
    """Runs without the fuzzer, which is much faster, on the build that is tested, compiled or not."""
    play = import_module(f"tests.fuzz.{target}").one
    for data in corpus.read(target):
        play(data)


@pytest.mark.timeout(300)
def test_short_run_finds_no_error(tmp_path: Path) -> None:
    """A short `make fuzz` of one target, with the same seed each time. It runs last.

    To instrument a target takes five seconds, and the corpus of every target is tested above.
    """
    done = subprocess.run(
        [
            "nice",
            sys.executable,
            "-m",
            "tests.fuzz",
            "--seconds",
            "1",
            "--seed",
            "1",
            "--directory",
            tmp_path,
            "archive",
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"archive: [1-9]\d+ inputs, [1-9]\d* places reached", done.stdout), done.stdout
