"""The package on a machine with nothing but Debian: `make test-deb` installs, upgrades and purges it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.deb.__main__ import PACKAGE, debian_version
from tools.deb.machine import Machine, fetch
from tools.distributions.__main__ import DIST

pytestmark = pytest.mark.timeout(900)

UNITS = "greenstalk-server.socket greenstalk-server.service"


@pytest.fixture(scope="module")
def package() -> Path:
    (built,) = DIST.glob(f"{PACKAGE}_{debian_version()}_*.deb")
    return built


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with Machine(tmp_path / "machine") as started:
        yield started


def later(package: Path, directory: Path) -> Path:
    """Return a copy of *package* in *directory* with a later version."""
    subprocess.run(("dpkg-deb", "--raw-extract", package, directory / "raw"), check=True)
    control = directory / "raw" / "DEBIAN" / "control"
    control.write_text(re.sub(r"(?m)^(Version: .*)$", r"\1+later", control.read_text()))
    file = directory / "later.deb"
    subprocess.run(("dpkg-deb", "--root-owner-group", "--build", directory / "raw", file), check=True)
    return file


def install(machine: Machine, package: Path) -> str:
    return machine.run(f"apt-get install --yes --no-install-recommends {machine.copy(package)}")


def test_two_commands_lead_to_a_running_server_with_a_job(machine: Machine, package: Path) -> None:
    install(machine, package)
    assert machine.run("greenstalkctl put hello --tube mail") == "1\n"
    assert machine.run(f"systemctl is-active {UNITS}") == "active\nactive\n"
    assert machine.run(f"systemctl is-enabled {UNITS}") == "enabled\nenabled\n"
    assert machine.run(f"systemd-analyze verify {UNITS}") == ""
    assert "(compiled), journal format " in machine.run("greenstalk-server --version")
    assert "<html" in machine.run(
        "python3 -c 'import urllib.request as r; print(r.urlopen(\"http://127.0.0.1:8080/\").read().decode().lower())'"
    )
    assert (
        machine.run("stat -c '%U %a' /var/lib/greenstalk /etc/greenstalk/greenstalk.toml")
        == "greenstalk 700\nroot 640\n"
    )


def test_optional_packages_use_the_libraries_of_debian(machine: Machine, package: Path, tmp_path: Path) -> None:
    """The driver loads libpq5, which is not installed here."""
    install(machine, package)
    code, output = machine.try_run("greenstalk-server --journal postgresql://127.0.0.1:1/none -p 0 --no-web")
    assert (code, "libpq library not found" in output) == (5, True), output


def test_upgrade_keeps_jobs_and_configuration(machine: Machine, package: Path, tmp_path: Path) -> None:
    install(machine, package)
    machine.run("echo '# mine' >> /etc/greenstalk/greenstalk.toml")
    machine.run("greenstalkctl put hello --tube mail")
    before = machine.run("systemctl show --property=MainPID greenstalk-server")
    install(machine, later(package, tmp_path))
    assert machine.run("greenstalkctl peek 1").endswith("hello\n")
    assert machine.run("tail -n 1 /etc/greenstalk/greenstalk.toml") == "# mine\n"
    assert machine.run("systemctl show --property=MainPID greenstalk-server") != before
    assert machine.run("systemctl is-active greenstalk-server") == "active\n"


def test_purge_leaves_nothing(machine: Machine, package: Path) -> None:
    files = machine.files()
    users = machine.run("cat /etc/passwd /etc/group")
    install(machine, package)
    machine.run("greenstalkctl put hello")
    machine.run(f"apt-get purge --yes {PACKAGE}")
    assert machine.files() == files
    assert machine.run("cat /etc/passwd /etc/group") == users
    assert machine.try_run("systemctl is-active greenstalk-server.socket")[1] == "inactive\n"


def test_removal_keeps_jobs(machine: Machine, package: Path) -> None:
    install(machine, package)
    machine.run("greenstalkctl put hello")
    machine.run(f"apt-get remove --yes {PACKAGE}")
    install(machine, package)
    assert machine.run("greenstalkctl peek 1").endswith("hello\n")


def test_conflict_is_named_and_beanstalkd_taken_over(machine: Machine, package: Path, tmp_path: Path) -> None:
    beanstalkd = fetch("beanstalkd", tmp_path)
    machine.run(f"dpkg --install {machine.copy(beanstalkd)}")
    machine.run("echo 'BEANSTALKD_EXTRA=\"-b /var/lib/beanstalkd\"' >> /etc/default/beanstalkd")
    machine.run("systemctl restart beanstalkd")
    output = install(machine, package)
    assert re.search(r"port 11300 is used by beanstalkd \(process \d+\)", output)
    assert "run: greenstalk-take-over\n" in output
    assert machine.try_run("systemctl is-enabled greenstalk-server.socket")[1] == "disabled\n"
    machine.run("greenstalkctl put hello --tube mail")  # to beanstalkd
    machine.run("greenstalk-take-over")
    assert machine.run("greenstalkctl peek 1").endswith("hello\n")
    assert machine.run("systemctl is-active greenstalk-server") == "active\n"
    assert machine.try_run("systemctl is-active beanstalkd")[1] == "inactive\n"
    assert machine.run("ls /var/lib/beanstalkd").startswith("binlog.1")
    code, output = machine.try_run("greenstalk-take-over")
    assert (code, "has a journal already. Nothing was changed." in output) == (1, True)


def test_jobs_in_memory_alone_are_not_dropped(machine: Machine, package: Path, tmp_path: Path) -> None:
    machine.run(f"dpkg --install {machine.copy(fetch('beanstalkd', tmp_path))}")
    install(machine, package)
    code, output = machine.try_run("greenstalk-take-over")
    assert (code, "the jobs of beanstalkd are in its memory only" in output) == (1, True)
    assert machine.run("systemctl is-active beanstalkd") == "active\n"
