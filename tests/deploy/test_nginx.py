"""The nginx configuration of docs/deploy.md in front of a real dashboard: at the root, and under a path."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.daemon import TIMEOUT, Daemon, environment
from tests.support.nodes import wait_until
from tests.support.pages import block
from tests.support.ports import free_ports
from tests.support.processes import ending

PASSWORD = "secret"  # noqa: S105
PATHS = {"at the root": "", "under a path": "/queue"}


def server_block(prefix: str) -> str:
    """Return the page's server block; with *prefix*, the location under a path replaces its two locations."""
    server, location = block("deploy.md", "nginx", "server {"), block("deploy.md", "nginx", "    location /queue/ {")
    if not prefix:
        return server
    assert f"location {prefix}/ {{" in location
    head, found, _ = server.partition("    location / {")
    assert found
    return f"{head}{location}}}\n"


class Proxy:
    """nginx on `port` in front of a dashboard."""

    def __init__(self, port: int, prefix: str) -> None:
        self.port: int = port
        self.prefix: str = prefix

    def ask(
        self, method: str, path: str, password: str = PASSWORD, body: object = None, **headers: str
    ) -> tuple[int, str]:
        """Return the status and the text of a response."""
        with self.response(method, path, password, body, **headers) as response:
            return response.status, response.read().decode()

    @contextmanager
    def response(
        self, method: str, path: str, password: str = PASSWORD, body: object = None, **headers: str
    ) -> Iterator[http.client.HTTPResponse]:
        """Yield a response whose head alone has been read."""
        headers["Authorization"] = "Basic " + base64.b64encode(f"admin:{password}".encode()).decode()
        if body is not None:
            headers["Content-Type"] = "application/json"
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)) as connection:
            connection.request(method, self.prefix + path, json.dumps(body) if body is not None else None, headers)
            with connection.getresponse() as response:
                yield response


@pytest.fixture(params=PATHS)
def proxy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Proxy]:
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program is not None, "nginx is missing: apt-get install nginx-light"
    prefix = PATHS[request.param]
    environ = environment(GREENSTALK_WEB_PASSWORD=PASSWORD, GREENSTALK_TRUSTED_PROXIES="127.0.0.1,::1")
    with ExitStack() as stack:
        server = stack.enter_context(Daemon("-l", "127.0.0.1", "-p", "0", "--web-port", "0", environ=environ))
        (port,) = free_ports(1)
        block = server_block(prefix).replace("listen 80;", f"listen 127.0.0.1:{port};")
        block = block.replace("127.0.0.1:8080", f"127.0.0.1:{urlsplit(server.dashboard).port}")
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        directories = "".join(f"{kind}_temp_path {tmp_path}/{kind};\n" for kind in kinds)
        configuration = tmp_path / "nginx.conf"
        configuration.write_text(
            f"daemon off;\nmaster_process off;\npid {tmp_path}/pid;\nerror_log stderr;\nevents {{}}\n"
            f"http {{\naccess_log off;\n{directories}{block}}}\n"
        )
        command = [program, "-e", "stderr", "-p", str(tmp_path), "-c", str(configuration)]
        with ending(subprocess.Popen(command, stdin=subprocess.DEVNULL)) as process:
            proxy = Proxy(port, prefix)
            wait_until(lambda: serves(proxy), lambda: f"nginx ended with {process.poll()}, or does not serve")
            yield proxy


def serves(proxy: Proxy) -> bool:
    try:
        return proxy.ask("GET", "/healthz")[0] == 200
    except OSError:
        return False


def test_pages_changes_and_event_streams_pass(proxy: Proxy) -> None:
    status, page = proxy.ask("GET", "/")
    assert status == 200
    links = re.findall(r'(?:href|src|action)="(/[^"]*)"', page)
    assert links and all(link.startswith(f"{proxy.prefix}/") for link in links)
    origin = f"http://127.0.0.1:{proxy.port}"
    status, text = proxy.ask("POST", "/api/v1/jobs", body={"tube": "mail", "body": "hello"}, Origin=origin)
    assert (status, json.loads(text)["id"]) == (201, 1)
    for stream in ("/events?page=overview", "/api/v1/events"):
        with proxy.response("GET", stream) as response:  # readline would time out if nginx buffered it
            assert (response.status, response.getheader("Content-Type", "").split(";")[0]) == (200, "text/event-stream")
            assert response.readline()


def test_forged_headers_do_not_escape_the_limit_on_failed_logins(proxy: Proxy) -> None:
    forged = [{"X-Forwarded-For": f"192.0.2.{number}"} for number in range(11)]
    statuses = [proxy.ask("GET", "/", "wrong", None, **headers)[0] for headers in forged]
    assert statuses == [401] * 10 + [429]
