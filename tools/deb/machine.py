"""A machine with nothing but Debian, for tests of the package: systemd as process 1 in namespaces of its own.

It shares the kernel with this machine, and has its own files, processes, users and loopback network. Needs root.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Final, Self

from tools.distributions.sources import REPOSITORY

BASE: Final = REPOSITORY / "build" / "debian"
"""The files of the machine before its first start. Remove the directory to fetch newer ones."""

PACKAGES: Final = (
    "adduser",
    "init-system-helpers",
    "libstdc++6",
    "netbase",
    "procps",
    "python3",
    "systemd",
    "systemd-sysv",
)
TIMEOUT: Final = 300.0
NAMESPACES: Final = ("--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup")
BOOT: Final = """
mount --make-rprivate /
mount --bind "$1" "$1"
cd "$1"
mount -t proc proc proc
for directory in run tmp sys dev; do mount -t tmpfs tmpfs $directory; done
mkdir -p sys/fs/cgroup dev/shm dev/pts
for device in full null ptmx random tty urandom zero; do touch dev/$device; mount --bind /dev/$device dev/$device; done
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mount -t cgroup2 cgroup2 sys/fs/cgroup
else
    mount -t tmpfs tmpfs sys/fs/cgroup
    mkdir sys/fs/cgroup/systemd
    mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
fi
pivot_root . mnt
exec env -i container=chroot PATH=/usr/sbin:/usr/bin:/sbin:/bin sh -c "cd /; umount -l /mnt; exec /lib/systemd/systemd"
"""


class Machine:
    """One machine, which runs until the end of a `with` block. Its files are in *directory*."""

    def __init__(self, directory: Path) -> None:
        self.root: Path = directory
        subprocess.run(("cp", "--archive", base(), directory), check=True)
        command = ("unshare", *NAMESPACES, "--fork", "--kill-child", "bash", "-euc", BOOT, "boot", str(directory))
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def __enter__(self) -> Self:
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait(self) -> None:
        deadline = time.monotonic() + TIMEOUT
        while self.try_run("systemctl is-system-running")[1].strip() not in ("running", "degraded"):
            assert self._process.poll() is None, "systemd has ended"
            assert time.monotonic() < deadline, "systemd has not started"
            time.sleep(0.2)

    def __exit__(self, *_: object) -> None:
        for process in self._systemd():  # it ends with all processes of the machine
            os.kill(process, signal.SIGKILL)
        self._process.kill()
        self._process.wait()

    def copy(self, file: Path) -> str:
        """Copy *file* into the machine's directory /root; return its path there."""
        shutil.copy(file, self.root / "root")
        return f"/root/{file.name}"

    def run(self, command: str) -> str:
        """Run *command* with sh as root; return its output, including stderr."""
        code, output = self.try_run(command)
        assert code == 0, f"{command}: exit code {code}: {output}"
        return output

    def try_run(self, command: str) -> tuple[int, str]:
        """Run *command* with sh as root; return its exit code and output, including stderr."""
        if not (systemd := self._systemd()):
            return 1, "the machine has no process yet"
        enter = ("nsenter", "--target", str(systemd[0]), *NAMESPACES, "--root", "--wd", "sh", "-c", command)
        environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
        done = subprocess.run(
            enter,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        return done.returncode, done.stdout

    def _systemd(self) -> list[int]:
        """Return the process id of systemd as seen from outside; empty before its start."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return [int(child) for child in children.read_text().split()] if children.exists() else []

    def files(self) -> set[str]:
        """Return the paths of all files, except caches, logs, and the records of apt, dpkg and systemd."""
        ignored = (
            "dev",
            "proc",
            "run",
            "sys",
            "tmp",
            "root",
            "var/cache",
            "var/lib/apt",
            "var/log",
            "var/lib/dpkg",
            "var/lib/systemd",
        )
        found = set()
        for directory, names, files in os.walk(self.root):
            path = os.path.relpath(directory, self.root)
            names[:] = [name for name in names if os.path.normpath(f"{path}/{name}") not in ignored]
            found |= {os.path.normpath(f"{path}/{name}") for name in (*files, *names)}
        return found


def base() -> Path:
    """Return the files of a machine with PACKAGES, fetched with the package sources of this machine."""
    if not BASE.exists():
        partial = bootstrap(BASE.with_name("debian.partial"), PACKAGES)
        (partial / "etc" / "machine-id").write_text(f"{1:032x}\n")
        partial.rename(BASE)
    return BASE


def bootstrap(directory: Path, packages: tuple[str, ...]) -> Path:
    """Install the Debian release of this machine with *packages* into *directory*, replacing it; return it."""
    release = platform.freedesktop_os_release()["VERSION_CODENAME"]
    form = ("--format", "$(SITE) $(RELEASE)", "Created-By: Packages")
    sources = subprocess.run(("apt-get", "indextargets", *form), capture_output=True, text=True, check=True).stdout
    site = next(line.split()[0] for line in sources.splitlines() if line.split()[-1] == release)
    shutil.rmtree(directory, ignore_errors=True)
    directory.parent.mkdir(exist_ok=True)
    include = f"--include={','.join(packages)}"
    subprocess.run(("debootstrap", "--variant=minbase", include, release, directory, site), check=True)
    return directory


def fetch(package: str, directory: Path) -> Path:
    """Download Debian's *package* into *directory*; return the file."""
    subprocess.run(("apt-get", "download", package), cwd=directory, check=True)
    (file,) = directory.glob(f"{package}_*.deb")
    return file
