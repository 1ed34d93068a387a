"""Write the cache of compiled templates, for an installation that the server's user cannot change.

Usage: python -P -m greenstalk_server.web.compile_templates
"""

from __future__ import annotations

from greenstalk_server.core.broker import Broker
from greenstalk_server.runtime.clock import steady_clock
from greenstalk_server.runtime.process import server_facts
from greenstalk_server.web.app import create_dashboard
from greenstalk_server.web.framework.template_cache import load_templates

if __name__ == "__main__":
    load_templates(create_dashboard(Broker(server_facts(0)), steady_clock()).app.jinja_env)
