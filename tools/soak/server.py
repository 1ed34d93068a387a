"""Run the real command of the server, and check the broker's invariants when it stops."""

from __future__ import annotations

import sys
from typing import Final

from greenstalk_server import cli
from greenstalk_server.net.server import Server
from tests.support import invariants

CHECKED: Final = "the broker's invariants hold"
"""Printed after the server has stopped, if the invariants hold."""

_stop = Server.stop


def _stop_and_check(server: Server) -> None:
    invariants.check(server.broker)
    _stop(server)
    invariants.check(server.broker)
    print(f"{CHECKED}, with {len(server.broker.jobs)} jobs", flush=True)


if __name__ == "__main__":
    Server.stop = _stop_and_check  # type: ignore[assignment, method-assign]
    sys.exit(cli.main())
