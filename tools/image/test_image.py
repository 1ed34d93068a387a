"""The image of `make image` in a container without a network: `make test-image` starts, stops and upgrades it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from greenstalk_server import __version__
from tests.support.nodes import wait_until
from tools.distributions.sources import git
from tools.image.__main__ import IMAGE, LIMITS, RUNTIME

pytestmark = pytest.mark.timeout(300)

NAME = "greenstalk-test-image"
CONFINED = (*LIMITS, "--network=none", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges")
ENVIRONMENT = "--env=GREENSTALK_WEB_PASSWORD=secret"


def podman(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(("podman", RUNTIME, *arguments), capture_output=True, text=True, check=False)


def run(*arguments: str) -> str:
    """Run podman; return its output, and fail if it fails."""
    done = podman(*arguments)
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
    return done.stdout


def start(volume: str, image: str = IMAGE) -> None:
    """Start the server in the background, as docs/deploy.md does, and wait for its health check."""
    options = (f"--name={NAME}", f"--volume={volume}:/data", "--health-interval=disable", *CONFINED, ENVIRONMENT)
    run("run", "--detach", *options, image)
    wait_until(lambda: podman("healthcheck", "run", NAME).returncode == 0, lambda: run("logs", NAME))


def stop() -> int:
    """Send SIGTERM to the server; return its exit code."""
    run("stop", "--time=15", NAME)
    code = int(run("inspect", "--format={{.State.ExitCode}}", NAME))
    run("rm", NAME)
    return code


def ctl(*arguments: str) -> str:
    return run("exec", NAME, "greenstalkctl", *arguments)


@pytest.fixture
def volume() -> Iterator[str]:
    """Yield the name of an empty volume, which is removed with the container that uses it."""
    name = run("volume", "create").strip()
    yield name
    podman("rm", "--force", "--time=15", NAME)
    run("volume", "rm", name)


@pytest.fixture
def later_image() -> Iterator[str]:
    """Yield the name of an image with the same files and another version."""
    name = f"{IMAGE}:later"
    file = f"FROM {IMAGE}\nLABEL org.opencontainers.image.version=later\n"
    command = ("podman", RUNTIME, "build", "--quiet", "--format=docker", f"--tag={name}", "-")
    subprocess.run(command, input=file, text=True, check=True, capture_output=True)
    yield name
    run("image", "rm", name)


def test_labels_describe_the_image() -> None:
    labels = json.loads(run("image", "inspect", "--format={{json .Labels}}", IMAGE))
    values = {name.removeprefix("org.opencontainers.image."): value for name, value in labels.items()}
    assert values["version"] == __version__
    assert values["revision"] == git("rev-parse", "HEAD").decode().strip()
    assert values["licenses"] == "MIT"


def test_core_and_templates_are_compiled() -> None:
    assert "(compiled), journal format " in run("run", "--rm", *CONFINED, IMAGE, "--version")
    listing = run("run", "--rm", *CONFINED, "--entrypoint=find", IMAGE, "/opt/greenstalk", "-name", "*.cache")
    assert "/web/__pycache__/templates.cpython-" in listing


def test_environment_has_no_pip_and_no_compiler() -> None:
    absent = "assert not u.find_spec('pip') and not u.find_spec('mypy') and not shutil.which('gcc')"
    program = f"import importlib.util as u, shutil; {absent}"
    run("run", "--rm", *CONFINED, "--entrypoint=/opt/greenstalk/bin/python", IMAGE, "-c", program)


def test_server_runs_without_root(volume: str) -> None:
    start(volume)
    assert run("exec", NAME, "id", "-u") == "10001\n"
    assert run("exec", NAME, "stat", "--format=%u %a", "/data") == "10001 700\n"
    assert stop() == 0


def test_jobs_survive_sigterm_and_an_upgrade(volume: str, later_image: str) -> None:
    start(volume)
    assert ctl("put", "hello", "--tube", "mail") == "1\n"
    assert stop() == 0
    start(volume, later_image)
    assert ctl("peek", "1").endswith("hello\n")
    assert stop() == 0


def test_second_container_cannot_use_the_volume(volume: str) -> None:
    start(volume)
    second = podman("run", "--rm", f"--volume={volume}:/data", *CONFINED, ENVIRONMENT, IMAGE)
    assert second.returncode == 10, second.stderr
    assert stop() == 0
