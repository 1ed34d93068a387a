"""Write deploy/kubernetes/monitoring/prometheusrule.yaml from docs/prometheus-alerts.yml.

Usage: python -m tools.kubernetes
"""

from __future__ import annotations

import textwrap
from typing import Final

from tools.distributions.sources import REPOSITORY

ALERTS: Final = REPOSITORY / "docs" / "prometheus-alerts.yml"
RULE: Final = REPOSITORY / "deploy" / "kubernetes" / "monitoring" / "prometheusrule.yaml"
HEAD: Final = """\
# Written from docs/prometheus-alerts.yml: .venv/bin/python -m tools.kubernetes
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: greenstalk
  labels:
    app.kubernetes.io/name: greenstalk
spec:
"""


def prometheus_rule() -> str:
    """Return the rules of the file for Prometheus as an object of the Prometheus operator."""
    return HEAD + textwrap.indent(ALERTS.read_text(), "  ")


if __name__ == "__main__":
    RULE.write_text(prometheus_rule())
