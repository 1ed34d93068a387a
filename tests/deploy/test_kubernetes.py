"""Manifests of deploy/kubernetes name files, options and metrics that exist. `make test-kubernetes` renders them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from greenstalk_server.config.definitions import DEFINITIONS
from tests.support.daemon import REPOSITORY
from tests.support.pages import block
from tools.kubernetes.__main__ import RULE, prometheus_rule

MANIFESTS = REPOSITORY / "deploy" / "kubernetes"
DIRECTORIES = sorted(path.parent for path in MANIFESTS.glob("*/kustomization.yaml"))


def load(path: str) -> Any:
    return yaml.safe_load((MANIFESTS / path).read_text())


def pod(path: str) -> dict[str, Any]:
    """Return the pod of the workload in the file *path*."""
    return dict(load(path)["spec"]["template"]["spec"])


SINGLE, PAIR = pod("base/statefulset.yaml"), pod("postgresql/deployment.yaml")


@pytest.mark.parametrize("directory", DIRECTORIES, ids=lambda path: str(path.name))
def test_kustomization_names_every_file(directory: Path) -> None:
    kustomization = yaml.safe_load((directory / "kustomization.yaml").read_text())
    patches = [patch["path"] for patch in kustomization.get("patches", []) if "path" in patch]
    named = [*kustomization["resources"], *patches]
    assert all((directory / name).exists() for name in named)
    files = {path.name for path in directory.iterdir()} - {"kustomization.yaml"}
    assert files == {name for name in named if not name.startswith("..")}


def test_variables_are_options() -> None:
    options = {definition.variable for definition in DEFINITIONS}
    for container in (SINGLE["containers"][0], PAIR["containers"][0]):
        assert {each["name"] for each in container["env"]} <= options
    page = (REPOSITORY / "docs" / "kubernetes.md").read_text()
    assert set(re.findall(r"GREENSTALK_[A-Z_]+|DATABASE_URL", page)) <= options


def test_pods_of_both_variants_are_confined_alike() -> None:
    for key in ("automountServiceAccountToken", "enableServiceLinks", "terminationGracePeriodSeconds"):
        assert SINGLE[key] == PAIR[key]
    volume = {"fsGroup", "fsGroupChangePolicy"}
    assert {k: v for k, v in SINGLE["securityContext"].items() if k not in volume} == PAIR["securityContext"]
    one, other = SINGLE["containers"][0], PAIR["containers"][0]
    for key in ("image", "ports", "startupProbe", "livenessProbe", "resources", "securityContext"):
        assert one[key] == other[key]


def test_user_matches_the_image() -> None:
    (user,) = re.findall(r"^USER (.*)$", (REPOSITORY / "deploy" / "Dockerfile").read_text(), re.MULTILINE)
    context = SINGLE["securityContext"]
    assert f"{context['runAsUser']}:{context['runAsGroup']}" == user


def test_only_the_active_server_of_a_pair_is_ready() -> None:
    assert PAIR["containers"][0]["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert SINGLE["containers"][0]["readinessProbe"]["httpGet"]["path"] == "/healthz"


def test_rules_match_the_page() -> None:
    assert RULE.read_text() == prometheus_rule(), "run: .venv/bin/python -m tools.kubernetes"


def test_scalers_of_the_page_are_like_those_of_the_manifests() -> None:
    """The triggers have the same type, and no other keys; the query uses a metric of the server."""
    scaler, trigger = load("keda/scaledobject.yaml"), load("keda-prometheus/trigger.yaml")[0]["value"][0]
    shown = yaml.safe_load(block("autoscaling.md", "yaml", "apiVersion: keda.sh"))
    assert [shown[key] for key in ("apiVersion", "kind")] == [scaler[key] for key in ("apiVersion", "kind")]
    assert shown["spec"].keys() <= scaler["spec"].keys()
    (other,) = yaml.safe_load(block("autoscaling.md", "yaml", "  triggers:"))["triggers"]
    for one, real in ((shown["spec"]["triggers"][0], scaler["spec"]["triggers"][0]), (other, trigger)):
        assert one["type"] == real["type"]
        assert one["metadata"].keys() <= real["metadata"].keys()
    (metric,) = re.findall(r"greenstalk_\w+", other["metadata"]["query"])
    assert f"| `{metric}` |" in (REPOSITORY / "docs" / "metrics.md").read_text()


def test_query_of_the_scaler_uses_a_metric_of_the_server() -> None:
    (trigger,) = load("keda-prometheus/trigger.yaml")[0]["value"]
    (metric,) = re.findall(r"greenstalk_\w+", trigger["metadata"]["query"])
    assert f"| `{metric}` |" in (REPOSITORY / "docs" / "metrics.md").read_text()
