"""The sources of a distribution: what git has at HEAD, with the version and its commit written into `version.py`."""

from __future__ import annotations

import gzip
import io
import re
import subprocess
import tarfile
from pathlib import Path
from typing import Final

from greenstalk_server import __version__

REPOSITORY: Final = Path(__file__).resolve().parents[2]
CLIENT: Final = "greenstalk_client"
"""The directory of the distribution greenstalk-client, whose files are at the top of its archive."""

_LINKED: Final = {"version.py": "greenstalk_server/version.py", "LICENSE": "LICENSE"}
"""Files that other packages link to; an archive has a copy in the place of each link."""


def git(*arguments: str) -> bytes:
    """Return the output of git in the repository."""
    return subprocess.run(("git", *arguments), cwd=REPOSITORY, capture_output=True, check=True).stdout


def commit_time() -> int:
    """Return the time of HEAD in seconds: the time of every file in the distributions."""
    return int(git("log", "-1", "--format=%ct"))


def export(directory: Path) -> None:
    """Write every file of HEAD into *directory*."""
    with tarfile.open(fileobj=io.BytesIO(git("archive", "HEAD"))) as archive:
        archive.extractall(directory, filter="data")
    line = f'VERSION: Final = "{__version__}"'.encode()
    stamped = re.sub(rb'(?m)^VERSION: Final = ".*"$', line, _read(directory, "version.py"))
    for link in directory.rglob("*"):
        if link.is_symlink() and link.name in _LINKED:
            content = _read(directory, link.name)
            link.unlink()
            link.write_bytes(content)
    for file in directory.rglob("version.py"):
        if file.parent.name.startswith("greenstalk"):
            file.write_bytes(stamped)


def pack(directory: Path, archive: Path, metadata: bytes) -> None:
    """Write the files of *directory* and the PKG-INFO *metadata* into *archive*; the same files give the same bytes."""
    top = archive.name.removesuffix(".tar.gz")
    with (
        archive.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=commit_time()) as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in sorted(directory.rglob("*")):
            if path.is_symlink() or path.is_file():
                tar.add(path, f"{top}/{path.relative_to(directory)}", recursive=False, filter=_normalise)
        member = tarfile.TarInfo(f"{top}/PKG-INFO")
        member.size = len(metadata)
        tar.addfile(_normalise(member), io.BytesIO(metadata))


def _normalise(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = commit_time()
    member.mode = 0o755 if member.mode & 0o100 else 0o644
    return member


def _read(directory: Path, name: str) -> bytes:
    return (directory / _LINKED[name]).read_bytes()
