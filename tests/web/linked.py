"""The dashboard of a process with links, in the test's process."""

from __future__ import annotations

from typing import Any

from greenstalk_server.web.app import Dashboard, WebOptions, create_dashboard
from tests.net.link_peer import Process


def dashboard_of(process: Process, **options: Any) -> Dashboard:
    """Return the dashboard of *process*, restored and not started."""
    dashboard = create_dashboard(process.broker, process.links.clock, WebOptions(**options), links=process.links)
    dashboard.restore()
    return dashboard
