"""The image of deploy/Dockerfile without a build: lint, copied files, process 1. `make test-image` runs the image."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.packaging.test_wheel import NEEDED_TO_BUILD, SOURCES
from tests.support.daemon import COMMAND, REPOSITORY, TIMEOUT, Daemon, environment
from tools.image import requirements as image_requirements

DOCKERFILE = REPOSITORY / "deploy" / "Dockerfile"
INSTRUCTIONS = [
    line.split(maxsplit=1) for line in re.sub(r"\\\n\s*", "", DOCKERFILE.read_text()).splitlines() if line[:1].isupper()
]
"""The first word and the rest of each instruction, in order."""

REQUIREMENTS = {
    str(file.relative_to(REPOSITORY)): required for file, required in image_requirements.REQUIREMENTS.items()
}
"""For each requirements file of the image: the requirements of pyproject.toml that the file must satisfy."""


def last(word: str) -> str:
    """Return the arguments of the last instruction *word*, which is the effective one."""
    return [rest for found, rest in INSTRUCTIONS if found == word][-1]


def health_check(port: int) -> int:
    """Run the image's health check against a dashboard on *port*; return its exit code."""
    python, *arguments = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
    assert python == "python"
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment(PORT=str(port)),
        timeout=TIMEOUT,
        capture_output=True,
        check=False,
    )
    return done.returncode


def test_dockerfile_passes_the_linter() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_context_contains_only_what_the_build_needs() -> None:
    copied = {
        source
        for word, rest in INSTRUCTIONS
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    }
    assert copied == {*SOURCES, *NEEDED_TO_BUILD, "greenstalk_client", *REQUIREMENTS}
    ignored, *patterns = [
        line for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")
    ]
    assert ignored == "*"
    assert {pattern.removeprefix("!") for pattern in patterns if pattern.startswith("!")} == copied


@pytest.mark.parametrize("file", REQUIREMENTS)
def test_pinned_packages_satisfy_the_project(file: str) -> None:
    """Each package has a hash, so that pip installs nothing else, and the file names no registry."""
    text = (REPOSITORY / file).read_text()
    assert "://" not in text
    pinned = [each for each in re.sub(r"\\\n", "", text).splitlines() if not each.startswith("#")]
    versions = {}
    for line in pinned:
        package, *hashes = line.split(" --hash=")
        assert hashes, line
        name, version = package.partition(";")[0].split("==")
        versions[canonicalize_name(name.partition("[")[0])] = version.strip()
    for requirement in map(Requirement, REQUIREMENTS[file]):
        assert versions[canonicalize_name(requirement.name)] in requirement.specifier, "run: make requirements"


def test_image_runs_as_a_numeric_user_who_owns_the_volume() -> None:
    user, group = last("USER").split(":")
    assert int(user) > 0
    assert f"install -d -o {user} -g {group} -m 0700 {last('VOLUME')}" in last("RUN")
    words = [word for word, _ in INSTRUCTIONS]
    assert words.index("USER") > max(index for index, word in enumerate(words) if word == "RUN")


def test_health_check_detects_a_serving_server() -> None:
    with Daemon("-l", "127.0.0.1", "-p", "0", "--web-port", "0") as daemon:
        port = int(daemon.dashboard.rpartition(":")[2].strip("/"))
        assert health_check(port) == 0
    assert health_check(port) == 1


def test_command_serves_as_process_1_and_stops_on_sigterm(tmp_path: Path) -> None:
    """The server runs in a new PID namespace, in which process 1 ignores signals that it does not handle."""
    assert json.loads(last("ENTRYPOINT")) == ["greenstalk-server"]
    isolated = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child", *COMMAND)
    environ = image_environment(tmp_path) | {"GREENSTALK_WEB_PASSWORD": "secret"}
    with Daemon("-p", "0", "--web-port", "0", command=isolated, environ=environ) as daemon:
        assert ", process 1\n" in daemon.first_lines
        assert daemon.dashboard.startswith("http://0.0.0.0:")
        (server,) = psutil.Process(daemon.process.pid).children()
        server.send_signal(signal.SIGTERM)
        assert daemon.process.wait(TIMEOUT) == 0


def image_environment(volume: Path) -> dict[str, str]:
    """Return the server's environment in the image, with the directory *volume* as its volume."""
    variables = dict(part.split("=", 1) for part in shlex.split(last("ENV")))
    assert variables.pop("PATH").startswith("/opt/greenstalk/bin:")
    assert variables["GREENSTALK_DATA_DIR"] == last("VOLUME")
    return environment(**variables) | {"GREENSTALK_DATA_DIR": str(volume), "PYTHONPATH": str(REPOSITORY)}
