"""Build dist/greenstalk-server_VERSION_ARCHITECTURE.deb for the Python of this Debian, and check it with lintian.

Usage: python -m tools.deb

The package has the wheels of this project and the packages that they require in /usr/lib/greenstalk, because Debian has
older versions of most of them. It uses the wheels in dist that were built from HEAD, and builds them if they are
missing.
"""

from __future__ import annotations

import datetime as dt
import gzip
import hashlib
import os
import shutil
from email.utils import formatdate
from importlib.metadata import PackageMetadata, distributions
from pathlib import Path
from typing import Final

from greenstalk_server import __version__
from tools.distributions.__main__ import DIST, environment, run
from tools.distributions.__main__ import main as build_wheels
from tools.distributions.sources import REPOSITORY, commit_time
from tools.manual.__main__ import write as write_manual

PACKAGE: Final = "greenstalk-server"
PYTHON: Final = "/usr/bin/python3"
FILES: Final = REPOSITORY / "deploy"
WORK: Final = REPOSITORY / "build" / "deb"
SITE: Final = "usr/lib/greenstalk"
"""The directory of the Python packages."""

OPTIONAL: Final = ("psycopg>=3.2", "authlib>=1.7", "requests>=2.32")
"""A journal in PostgreSQL and sign-in with OpenID Connect, which use the libraries of Debian."""

FROM_DEBIAN: Final = ("cryptography", "cffi", "pycparser")
"""Packages that authlib requires and that Debian has: python3-cryptography."""

UNUSED: Final = ("__pycache__", "tests", "testing")
"""Directories that nothing imports. The installation compiles the modules."""

COMMANDS: Final = {PACKAGE: "greenstalk_server.__main__:main", "greenstalkctl": "greenstalkctl.__main__:run"}
COMMAND: Final = """\
#!/usr/bin/python3 -I
import sys

sys.path.insert(0, "/{site}")

from {module} import {function}

sys.exit({function}())
"""

PATHS: Final = {
    "/opt/greenstalk/bin/": "/usr/bin/",
    "EnvironmentFile=-/etc/greenstalk-server.env": "Environment=GREENSTALK_CONFIG=/etc/greenstalk/greenstalk.toml",
}
"""Paths in the units of deploy/, and the same paths in the package."""


def main() -> None:
    """Build the package, and check it."""
    os.environ["SOURCE_DATE_EPOCH"] = str(commit_time())
    os.umask(0o022)
    tag = run(PYTHON, "-c", "import sys; print(sys.implementation.cache_tag)").strip().replace("cpython-", "cp")
    server = f"greenstalk_server-{__version__}-{tag}-*.whl"
    if not list(DIST.glob(server)):
        build_wheels([PYTHON])
    shutil.rmtree(WORK, ignore_errors=True)
    root = WORK / "root"
    install_packages(root / SITE, *DIST.glob(server), *DIST.glob(f"greenstalk_client-{__version__}-*.whl"))
    write_commands(root)
    write_units(root / "lib" / "systemd" / "system")
    write_documents(root / "usr" / "share")
    overrides = root / "usr" / "share" / "lintian" / "overrides"
    overrides.mkdir(parents=True)
    shutil.copy(FILES / "debian" / "lintian-overrides", overrides / PACKAGE)
    configuration = root / "etc" / "greenstalk"
    configuration.mkdir(parents=True)
    shutil.copy(FILES / "debian" / "greenstalk.toml", configuration)
    architecture = run("dpkg", "--print-architecture").strip()
    write_control(root, architecture)
    package = DIST / f"{PACKAGE}_{debian_version()}_{architecture}.deb"
    run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", root, package)
    print(run("lintian", "--fail-on", "error", "--tag-display-limit", "0", package), end="")
    print(package.relative_to(REPOSITORY))


def debian_version() -> str:
    """Return the version in a form that dpkg sorts before the release: 0.2.0~dev0+g1a2b3c4d5."""
    return __version__.replace(".dev", "~dev")


def install_packages(site: Path, *wheels: Path) -> None:
    """Install *wheels* and the packages that they require into *site*, for Debian's Python."""
    programs = environment("deb", python=PYTHON)
    options = ("--quiet", "--no-compile", "--target", site)
    run(programs / "python", "-m", "pip", "install", *options, *wheels, *OPTIONAL)
    shutil.rmtree(site / "bin")
    for each in list(distributions(path=[str(site)])):
        files = each.files or []
        if each.name in FROM_DEBIAN:
            for top in {file.parts[0] for file in files} - {"..", "bin"}:
                path = site / top
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for file in site.rglob("*"):
        if file.name in ("direct_url.json", "RECORD", "REQUESTED"):  # paths of this machine; nothing reads them
            file.unlink()
        elif file.is_file():
            file.chmod(0o644)
            if file.suffix == ".so":
                run("strip", "--strip-unneeded", file)
    for directory in [path for name in UNUSED for path in site.rglob(name)]:
        shutil.rmtree(directory)


def write_commands(root: Path) -> None:
    """Write the commands, and the programs that the maintainer scripts use."""
    programs = {root / "usr" / "sbin" / "greenstalk-take-over", root / SITE / "port-users"}
    for program in programs:
        program.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(FILES / "debian" / program.name, program)
    for name, entry in COMMANDS.items():
        module, _, function = entry.partition(":")
        program = root / "usr" / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(COMMAND.format(site=SITE, module=module, function=function))
        programs.add(program)
    for program in programs:
        program.chmod(0o755)


def write_units(directory: Path) -> None:
    """Copy the units of deploy/, with the paths of the package."""
    directory.mkdir(parents=True)
    for unit in sorted(FILES.glob("greenstalk-*.*")):
        if unit.suffix in (".service", ".socket", ".timer"):
            text = unit.read_text()
            for written, here in PATHS.items():
                text = text.replace(written, here)
            (directory / unit.name).write_text(text)


def write_documents(share: Path) -> None:
    """Write the manual, completion, changelog and copyright."""
    write_manual(share, dt.datetime.fromtimestamp(commit_time(), dt.UTC).date())
    section = share / "man" / "man8"
    section.mkdir()
    shutil.copy(FILES / "debian" / "greenstalk-take-over.8", section)
    for page in share.glob("man/*/*"):
        compress(page)
    directory = share / "doc" / PACKAGE
    directory.mkdir(parents=True)
    shutil.copy(REPOSITORY / "CHANGELOG.md", directory / "NEWS")
    compress(directory / "NEWS")
    changelog = directory / "changelog"
    changelog.write_text(
        f"{PACKAGE} ({debian_version()}) unstable; urgency=medium\n\n  * NEWS.gz lists the changes.\n\n"
        f" -- {maintainer()}  {formatdate(commit_time())}\n"
    )
    compress(changelog)
    bundled = distributions(path=[str(share.parents[0].parent / SITE)])
    rows = sorted(f"{each.name} {each.version}: {licence(each.metadata)}" for each in bundled)
    text = (REPOSITORY / "LICENSE").read_text() + f"\n/{SITE} has these packages, each with its licence:\n\n"
    common = "\nThe text of the LGPL is in /usr/share/common-licenses/LGPL-3.\n"
    (directory / "copyright").write_text(text + "\n".join(rows) + "\n" + common)


def licence(metadata: PackageMetadata) -> str:
    """Return the name of a package's licence."""
    facts = metadata.json
    named = str(facts.get("license_expression") or facts.get("license") or "").partition("\n")[0]
    classes = [each.rpartition(" :: ")[2] for each in metadata.get_all("Classifier", []) if "License ::" in each]
    return named or ", ".join(classes) or "see its dist-info"


def maintainer() -> str:
    """Return the maintainer that the control file names."""
    (line,) = [line for line in control().splitlines() if line.startswith("Maintainer: ")]
    return line.partition(": ")[2]


def control() -> str:
    """Return the template of the control file."""
    return (FILES / "debian" / "control").read_text()


def write_control(root: Path, architecture: str) -> None:
    """Write DEBIAN: the control file, the configuration files, the checksums and the maintainer scripts."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    directory = root / "DEBIAN"
    directory.mkdir()
    size = sum(path.stat().st_size for path in files) // 1024
    values = {"VERSION": debian_version(), "ARCHITECTURE": architecture, "SIZE": str(size)}
    text = control()
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    (directory / "control").write_text(text)
    names = [str(path.relative_to(root)) for path in files]
    (directory / "conffiles").write_text("".join(f"/{name}\n" for name in names if name.startswith("etc/")))
    sums = [f"{hashlib.md5(path.read_bytes()).hexdigest()}  {name}\n" for path, name in zip(files, names, strict=True)]  # noqa: S324
    (directory / "md5sums").write_text("".join(sums))
    for script in ("postinst", "prerm", "postrm"):
        shutil.copy(FILES / "debian" / script, directory)
        (directory / script).chmod(0o755)


def compress(file: Path) -> None:
    """Replace *file* by its gzip, without name and time."""
    with (
        file.with_name(f"{file.name}.gz").open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as compressed,
    ):
        compressed.write(file.read_bytes())
    file.unlink()


if __name__ == "__main__":
    main()
