"""The compiled templates, kept in `__pycache__` between starts: compiling all of them takes 0.6 s of CPU.

The cache is one file beside the compiled modules of the package `web`. A missing, damaged, or outdated file is ignored.
If the file cannot be written, the next start compiles the templates again. A compiled wheel has the file. In another
installation, if the server's user may not write the file, create it with:

    python -P -m greenstalk_server.web.compile_templates
"""

from __future__ import annotations

import hashlib
import marshal
import os
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from importlib.util import cache_from_source
from pathlib import Path
from types import CodeType
from typing import Final

from jinja2 import BytecodeCache, Environment
from jinja2.bccache import Bucket

from greenstalk_server import __version__
from greenstalk_server.build import CHECKOUT
from greenstalk_server.web.framework.assets import PACKAGE

PATH: Final = Path(cache_from_source(str(PACKAGE / "templates.py"))).with_suffix(".cache")

DIGEST_SIZE: Final = hashlib.sha256().digest_size


def load_templates(environment: Environment) -> None:
    """Load all templates of *environment*; compile those that are not in the cache, and add them to it.

    All environments of a process have the same settings, and share the cache.
    """
    shared = environment.bytecode_cache = _cache_of_process()
    for name in environment.list_templates(extensions=["html"]):
        environment.get_template(name)
    shared.save()


@cache
def _cache_of_process() -> TemplateCache:
    return TemplateCache()


class TemplateCache(BytecodeCache):
    """The templates' code by Jinja's key, read from *path* once and written back by `save`.

    Jinja compares the checksum of a template's source. The code depends on more: on the version of Jinja, and on
    the settings and filters of the environment, which are in the package `web`. The file is valid for one
    version of Jinja and one state of the package: in an installation, for one version of the server.

    The file names no directory, because a wheel is installed elsewhere than it was built.
    """

    def __init__(self, path: Path = PATH) -> None:
        self._path: Path = path
        self._state: str = f"{version('jinja2')} {_state_of_package()}"
        self._code: dict[str, bytes] = self._read()
        self._loaded: dict[str, tuple[str, CodeType]] = {}  # by name, with the checksum of the template's source
        self._is_changed: bool = False

    def get_cache_key(self, name: str, filename: str | None = None) -> str:
        return name

    def load_bytecode(self, bucket: Bucket) -> None:
        checksum, loaded = self._loaded.get(bucket.key, ("", None))
        if checksum == bucket.checksum:
            bucket.code = loaded
            return
        code = self._code.get(bucket.key)
        if code is not None:
            bucket.bytecode_from_string(code)
        if bucket.code is not None:
            bucket.code = _renamed(bucket.code, str(PACKAGE / "templates" / bucket.key))
            self._loaded[bucket.key] = bucket.checksum, bucket.code

    def dump_bytecode(self, bucket: Bucket) -> None:
        assert bucket.code is not None
        bucket.code = _renamed(bucket.code, bucket.key)
        self._code[bucket.key] = bucket.bytecode_to_string()
        self._is_changed = True

    def save(self) -> None:
        """Write the file if a template was compiled, unless Python is to write no bytecode."""
        if not self._is_changed or sys.dont_write_bytecode:
            return
        self._is_changed = False
        content = marshal.dumps((self._state, self._code))
        written = self._path.with_suffix(f".{os.getpid()}")  # several servers may start at once
        try:
            written.write_bytes(hashlib.sha256(content).digest() + content)
            written.replace(self._path)
        except OSError:
            with suppress(OSError):
                written.unlink()

    def _read(self) -> dict[str, bytes]:
        """Return the code in the file; nothing if the file is missing, damaged, or written for another state."""
        try:
            content = self._path.read_bytes()
        except OSError:
            return {}
        digest, content = content[:DIGEST_SIZE], content[DIGEST_SIZE:]
        if hashlib.sha256(content).digest() != digest:
            return {}
        state, code = marshal.loads(content)  # noqa: S302  as Python's own files there
        return code if state == self._state else {}


def _state_of_package() -> str:
    """Return a text that differs after each change of the package `web`."""
    if CHECKOUT is None:
        return __version__
    return str(max(module.stat().st_mtime_ns for module in PACKAGE.rglob("*.py")))


def _renamed(code: CodeType, filename: str) -> CodeType:
    """Return *code*, with the functions in it, as if it had been compiled from *filename*."""
    constants = tuple(_renamed(each, filename) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_filename=filename, co_consts=constants)
