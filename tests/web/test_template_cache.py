"""The cache of compiled templates: a start with the cache compiles nothing, and no damage to it prevents a start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jinja2 import DictLoader, Environment

from greenstalk_server.cluster.status import ClusterStatus
from greenstalk_server.web.app import WebOptions, create_standby_app
from greenstalk_server.web.framework import template_cache
from greenstalk_server.web.framework.assets import PACKAGE
from greenstalk_server.web.framework.template_cache import TemplateCache, load_templates
from tests.support.daemon import REPOSITORY, TIMEOUT, Daemon, environment

from .conftest import Queue

SOURCES = {"one.html": "{{ 1 }} and {{ other }}", "two.html": "{% for it in [1, 2] %}{{ it }}{% endfor %}"}


class Counting(Environment):
    """Counts the templates that it compiles."""

    compiled = 0

    def _generate(self, *args: Any, **options: Any) -> str:
        self.compiled += 1
        return super()._generate(*args, **options)


@pytest.fixture(autouse=True)
def _writes_bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "templates.cache"


def compiled_by_a_start(path: Path, sources: dict[str, str] = SOURCES) -> int:
    """Load *sources* as a server does at its start; return how many of them it compiled."""
    cache = TemplateCache(path)
    environment = Counting(loader=DictLoader(sources), bytecode_cache=cache)
    assert [environment.get_template(name).render(other=2) for name in SOURCES] == ["1 and 2", "12"]
    cache.save()
    return environment.compiled


def test_second_start_compiles_nothing(path: Path) -> None:
    assert [compiled_by_a_start(path) for _ in range(2)] == [2, 0]


def test_changed_template_is_compiled_again(path: Path) -> None:
    compiled_by_a_start(path)
    changed = SOURCES | {"one.html": "{{ 1 }}{{ ' and' }} {{ other }}"}
    assert [compiled_by_a_start(path, changed) for _ in range(2)] == [1, 0]


def test_every_template_is_compiled_again_after_a_change_of_the_package(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled_by_a_start(path)
    tmp_path.joinpath("text.py").touch()
    monkeypatch.setattr(template_cache, "PACKAGE", tmp_path)
    assert [compiled_by_a_start(path) for _ in range(2)] == [2, 0]


def test_truncated_file_is_replaced(path: Path) -> None:
    compiled_by_a_start(path)
    whole = path.read_bytes()
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        assert compiled_by_a_start(path) == 2
        assert path.read_bytes() == whole


@pytest.mark.parametrize("place", ["missing/templates.cache", "file/templates.cache", "directory"])
def test_start_continues_if_the_file_cannot_be_written(tmp_path: Path, place: str) -> None:
    tmp_path.joinpath("file").touch()
    tmp_path.joinpath("directory").mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert [compiled_by_a_start(tmp_path / place) for _ in range(2)] == [2, 2]
    assert sorted(tmp_path.rglob("*")) == before


def test_dashboard_renders_from_the_cache(path: Path, queue: Queue) -> None:
    def overview() -> tuple[bytes, int]:
        app = queue.app()
        app.jinja_env.bytecode_cache = cache = TemplateCache(path)
        shown = app.test_client().get("/").data
        before = path.stat().st_mtime_ns if path.exists() else 0
        cache.save()
        return shown, path.stat().st_mtime_ns - before

    first, written = overview()
    assert written
    again, written = overview()
    assert not written
    assert again == first


def test_takeover_renders_what_the_standby_has_compiled(
    tmp_path: Path, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file cannot be written. Compiling takes 0.6 s, in which the new leader would have no dashboard."""
    unwritten = TemplateCache(tmp_path / "missing" / "templates.cache")
    monkeypatch.setattr(template_cache, "_cache_of_process", lambda: unwritten)
    status = ClusterStatus(False, "queue", "here", "there", 1, 0.0, "")
    load_templates(create_standby_app(lambda: status, "here", queue.clock, WebOptions()).jinja_env)
    monkeypatch.setattr(Environment, "_generate", None)
    app = queue.app()
    load_templates(app.jinja_env)
    assert app.test_client().get("/").status_code == 200


def test_cache_that_an_installation_has_written_serves_the_first_start(tmp_path: Path) -> None:
    environ = environment(PYTHONPYCACHEPREFIX=str(tmp_path), PYTHONDONTWRITEBYTECODE="")
    Path(f"{tmp_path}{PACKAGE}").mkdir(parents=True)  # in a checkout, Python makes the directory of the link instead
    command = [sys.executable, "-m", "greenstalk_server.web.compile_templates"]
    subprocess.run(command, cwd=REPOSITORY, env=environ, check=True, timeout=TIMEOUT)
    (written,) = tmp_path.rglob("templates.*.cache")
    before = written.stat().st_ino
    with Daemon("-l", "127.0.0.1", "-p", "0", "--web-port", "0", environ=environ):
        assert written.stat().st_ino == before, "the server has compiled a template"
