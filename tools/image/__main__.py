"""Build the image of deploy/Dockerfile with podman, as localhost/greenstalk-server: `make image`.

Usage: python -m tools.image [debian]

The image is built on the one that the Dockerfile names, which podman pulls. With `debian` it is built on a file system
that debootstrap makes, with the Python of this Debian. That needs root, and no registry of images.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from greenstalk_server import __version__
from tools.deb.machine import bootstrap
from tools.distributions.sources import REPOSITORY, git

IMAGE: Final = "localhost/greenstalk-server"
BASE: Final = "localhost/greenstalk-base"
PACKAGES: Final = ("ca-certificates", "python3", "python3-dev", "python3-venv")
RUNTIME: Final = "--runtime=runc"
"""Debian's crun refuses a machine with both versions of cgroups."""

LIMITS: Final = ("--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096")
"""podman's defaults are above the hard limits of some machines."""

CERTIFICATES: Final = Path("etc/ssl/certs/ca-certificates.crt")


def main(base: str) -> None:
    """Build the image on *base*: `debian`, or empty for the Dockerfile's default."""
    labels = {"VERSION": __version__, "REVISION": git("rev-parse", "HEAD").decode().strip()}
    arguments = [f"--build-arg={name}={value}" for name, value in labels.items()]
    if base:
        import_base()
        arguments.append(f"--from={BASE}")
    # Only the format of Docker has health checks. The build uses this machine's network to install packages.
    options = ("--format=docker", "--network=host", f"--tag={IMAGE}", f"--file={REPOSITORY}/deploy/Dockerfile")
    subprocess.run(("podman", RUNTIME, "build", *LIMITS, *options, *arguments, REPOSITORY), check=True)


def import_base() -> None:
    """Import Debian with Python as the image BASE, unless it exists."""
    if subprocess.run(("podman", "image", "exists", BASE), check=False).returncode == 0:
        return
    root = bootstrap(REPOSITORY / "build" / "image-base", PACKAGES)
    (root / "usr" / "bin" / "python").symlink_to("python3")
    shutil.copy(Path("/") / CERTIFICATES, root / CERTIFICATES)  # this machine may trust more than Debian does
    archive = root.with_suffix(".tar")
    subprocess.run(("tar", "--create", "--file", archive, "--directory", root, "."), check=True)
    change = "--change=ENV PIP_CERT=/" + str(CERTIFICATES)  # pip has certificates of its own
    subprocess.run(("podman", "import", change, archive, BASE), check=True)
    archive.unlink()
    shutil.rmtree(root)


if __name__ == "__main__":
    main(*sys.argv[1:] or [""])
