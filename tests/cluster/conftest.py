"""The server of the tests of the web port of several processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from tests.cluster.test_web import ADMIN, OPERATOR, SHARDS, VIEWER, Site
from tests.support.daemon import Daemon, environment
from tests.support.ports import free_ports

CONFIG: Final = """
[roles.viewer]
view = ["seen.*"]
[roles.operator]
view = ["*"]
operate = ["own.*"]
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    [port] = free_ports(1)
    config = tmp_path_factory.mktemp("web") / "server.toml"
    config.write_text(CONFIG)
    flags = ["--processes", str(SHARDS), "-l", "127.0.0.1", "-p", "0", "--web-port", str(port), "--config", str(config)]
    passwords = {"": ADMIN, "OPERATOR_": OPERATOR, "VIEWER_": VIEWER}
    environ = environment(**{f"GREENSTALK_WEB_{role}PASSWORD": password for role, password in passwords.items()})
    with Daemon(*flags, environ=environ) as daemon:
        assert daemon.dashboard == f"http://127.0.0.1:{port}/"
        yield Site(daemon, port)
