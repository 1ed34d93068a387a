"""docs/prometheus-alerts.yml is valid for promtool, and each alert fires only when it should."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.daemon import REPOSITORY, TIMEOUT
from tests.support.pages import block

RULES = REPOSITORY / "docs" / "prometheus-alerts.yml"
SERIES = Path(__file__).with_name("alerts.yml")

FIRES: dict[str, tuple[str, dict[str, str]]] = {
    "GreenstalkDown": ("15m", {"job": "greenstalk"}),
    "GreenstalkRestarted": ("105m", {"job": "greenstalk"}),
    "GreenstalkInternalError": ("20m", {"job": "greenstalk", "service": "history"}),
    "GreenstalkCritical": ("5m", {"job": "greenstalk", "condition": "journal"}),
    "GreenstalkFailure": ("20m", {"job": "greenstalk", "condition": "buried", "tube": "mail"}),
    "GreenstalkWarning": ("20m", {"job": "greenstalk", "condition": "no_consumers", "tube": "mail"}),
    "GreenstalkJournalSyncsSlow": ("30m", {"job": "greenstalk"}),
    "GreenstalkPolicyRefusesPuts": ("30m", {"job": "greenstalk", "tube": "mail", "action": "refused"}),
    "GreenstalkApiErrors": ("30m", {"job": "greenstalk", "endpoint": "overview", "method": "GET", "code": "500"}),
    "GreenstalkAlertsNotAccepted": ("30m", {"job": "greenstalk", "receiver": "chat"}),
}
"""By alert: the time at which it fires for `a` of alerts.yml, and its labels except instance and severity."""


def promtool(*arguments: str) -> str:
    """Run promtool; return its output, and fail if it fails."""
    assert shutil.which("promtool"), "promtool is missing: apt-get install prometheus"
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def rules() -> dict[str, dict[str, Any]]:
    """Return the rules of the first group by name; the other groups are about high availability."""
    return {rule["alert"]: rule for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]}


def test_every_rule_is_valid() -> None:
    assert "SUCCESS" in promtool("check", "rules", str(RULES))


def test_configurations_and_query_of_the_page_are_valid(tmp_path: Path) -> None:
    for text in (
        block("metrics.md", "yaml", "# on the same machine"),
        block("metrics.md", "yaml", "# on another machine"),
    ):
        (tmp_path / "prometheus.yml").write_text(text)
        assert "SUCCESS" in promtool("check", "config", str(tmp_path / "prometheus.yml"))
    query = block("metrics.md", "promql", "sum(").rstrip()
    rules = {"groups": [{"name": "page", "rules": [{"record": "page:puts", "expr": query}]}]}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules))
    assert "SUCCESS" in promtool("check", "rules", str(tmp_path / "rules.yml"))


def test_alerts_fire_for_a_failing_server_only(rules: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """Annotations are removed, because promtool would compare them literally."""
    assert list(FIRES) == list(rules)
    bare = [{name: value for name, value in rule.items() if name != "annotations"} for rule in rules.values()]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "greenstalk", "rules": bare}]}))
    cases = yaml.safe_load(SERIES.read_text())
    for alert, (at, labels) in FIRES.items():
        fired = {"exp_labels": {"instance": "a", "severity": rules[alert]["labels"]["severity"]} | labels}
        cases["tests"][0]["alert_rule_test"] += [
            {"alertname": alert, "eval_time": "0m", "exp_alerts": []},
            {"alertname": alert, "eval_time": at, "exp_alerts": [fired]},
        ]
    file = tmp_path / "tests.yml"
    file.write_text(yaml.safe_dump(cases | {"rule_files": ["rules.yml"]}))
    assert "SUCCESS" in promtool("test", "rules", str(file))
