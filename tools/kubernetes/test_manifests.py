"""The manifests of deploy/kubernetes, rendered by kubectl and validated against the schemas of Kubernetes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.pages import block
from tools.distributions.sources import REPOSITORY
from tools.kubernetes.__main__ import RULE

MANIFESTS = REPOSITORY / "deploy" / "kubernetes"
PROGRAMS = REPOSITORY / "build" / "kubernetes" / "bin"
"""The environment of `make test-kubernetes`."""

VERSIONS = ("1.27", "1.37")
"""The versions of Kubernetes that docs/kubernetes.md names."""

KINDS = {
    "base": {"StatefulSet", "Service", "PodDisruptionBudget", "NetworkPolicy"},
    "postgresql": {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"},
    "keda": {"ScaledObject", "NetworkPolicy"},
    "keda-prometheus": {"ScaledObject"},
}
CUSTOM = {"PrometheusRule", "ScaledObject", "ServiceMonitor"}
"""Kinds of other projects, for which Kubernetes has no schema."""


def render(directory: Path) -> list[dict[str, Any]]:
    """Return the objects of a kustomization."""
    command = (PROGRAMS / "kubectl", "kustomize", directory)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return list(yaml.safe_load_all(done.stdout))


def validate(objects: list[dict[str, Any]], directory: Path) -> None:
    """Fail if one of *objects* has an unknown field or an invalid value."""
    file = directory / "objects.yaml"
    file.write_text(yaml.safe_dump_all(each for each in objects if each["kind"] not in CUSTOM))
    for version in VERSIONS:
        command = (PROGRAMS / "kubernetes-validate", "--strict", "--kubernetes-version", version, file)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", KINDS)
def test_kustomization_is_valid(name: str, tmp_path: Path) -> None:
    objects = render(MANIFESTS / name)
    assert {each["kind"] for each in objects} == KINDS[name]
    validate(objects, tmp_path)


@pytest.mark.parametrize("name", ["base", "postgresql"])
def test_example_of_the_page_is_valid(name: str, tmp_path: Path) -> None:
    """A kustomization in a directory beside the checkout adds the monitoring, the image and a patch."""
    example = block("kubernetes.md", "yaml", "# kustomization.yaml")
    checkout = tmp_path / "greenstalk-server"
    (checkout / "deploy").mkdir(parents=True)
    subprocess.run(("cp", "-r", MANIFESTS, checkout / "deploy"), check=True)
    (tmp_path / "kustomization.yaml").write_text(example.replace("kubernetes/base", f"kubernetes/{name}"))
    objects = render(tmp_path)
    assert {each["kind"] for each in objects} == KINDS[name] | {"ServiceMonitor", "PrometheusRule"}
    (pods,) = [each["spec"]["template"]["spec"] for each in objects if each["kind"] in ("Deployment", "StatefulSet")]
    assert pods["containers"][0]["image"] == "registry.example.com/greenstalk-server:0.2.0"
    validate(objects, tmp_path)


def test_invalid_object_is_detected(tmp_path: Path) -> None:
    objects = render(MANIFESTS / "base")
    objects[0]["spec"]["unknown"] = 1
    with pytest.raises(AssertionError, match="unknown"):
        validate(objects, tmp_path)


def test_rule_keeps_the_expressions() -> None:
    groups = yaml.safe_load((REPOSITORY / "docs" / "prometheus-alerts.yml").read_text())
    assert json.dumps(yaml.safe_load(RULE.read_text())["spec"]) == json.dumps(groups)
