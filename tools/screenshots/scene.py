"""The scene: a server with 45 tubes and some 85,000 jobs of up to a week of age, with programs, policies and receivers.

Jobs and their ages come from an import; the rest happens on the running server. Everything is on the loopback.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from base64 import b64encode
from contextlib import ExitStack
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.request import Request, urlopen

from tests.support.daemon import COMMAND, REPOSITORY, TIMEOUT, Daemon, environment
from tools.screenshots.jobs import archive_entries
from tools.screenshots.program import PROGRAMS

SEED: Final = 20

PASSWORD: Final = "a password of the scene"  # noqa: S105  of no other server
"""The password of all users."""

USERS: Final = {"ada": "admin", "bea": "billing", "otto": "operator", "vera": "viewer"}
"""Roles of the users by name."""

CONFIG: Final = """
[roles.billing]
view = ["billing.*", "reports.*"]
operate = ["billing.*"]

[policies.webhooks]
tubes = ["webhooks.deliver"]
max_attempts = 8
dead_letter = "webhooks.failed"
retry_delay = 10
retry_delay_max = 900
expire_after = "14d"

[policies.billing]
tubes = ["billing.capture", "billing.invoices"]
max_attempts = 5
dead_letter = "billing.failed"

[alerts.chat]
template = "slack"
url = "http://127.0.0.1:{port}/chat"
allow_plain = true
allow_private = true
for = 5
interval = 5

[alerts.on-call]
template = "json"
url = "http://127.0.0.1:{port}/broken"
allow_plain = true
allow_private = true
severities = ["critical", "warning"]
for = 5
interval = 5

[attention]
no_consumers = "10s"
oldest_ready = "10m"
"""

POLICIES: Final = {
    "imports": {"tubes": ["imports.*"], "max_reserved": 4, "max_jobs": 5000},
    "bulk-mail": {"tubes": ["mail.bulk", "mail.digest"], "rate": 200},
}
"""Policies that an admin sets on the running server."""


class _Receiver(BaseHTTPRequestHandler):
    """A receiver of alerts: accepts those for /chat, and refuses all others."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200 if self.path == "/chat" else 503)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Scene:
    """A running scene. *directory* has the server's data, and keeps the scene for the next start."""

    def __init__(self, directory: Path) -> None:
        self._directory: Path = directory
        self._stack = ExitStack()
        self._programs: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        jobs = self._directory / "jobs"
        if not jobs.exists():
            jobs.mkdir(parents=True)
            _import(jobs)
        receivers = ThreadingHTTPServer(("127.0.0.1", 0), _Receiver)
        threading.Thread(target=receivers.serve_forever, daemon=True).start()
        config = self._directory / "server.toml"
        config.write_text(CONFIG.replace("{port}", str(receivers.server_port)) + _users())
        socket = self._directory / "queue.sock"
        flags = ("-l", f"unix:{socket}", "-l", "127.0.0.1", "-p", "0", "--web-port", "0", "--config", str(config))
        try:
            self.daemon = self._stack.enter_context(Daemon(*flags, "-b", str(jobs)))
            self._stack.callback(self._end_programs)
            for name in PROGRAMS:
                command = (sys.executable, "-m", "tools.screenshots.program", str(socket), name)
                self._programs.append(subprocess.Popen(command, cwd=REPOSITORY))
            self._administer()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        """The address of the dashboard."""
        return self.daemon.dashboard

    def request(self, method: str, path: str, **values: Any) -> Any:
        """Send a request to the API as the first user, an admin; return the reply's JSON."""
        who = b64encode(f"ada:{PASSWORD}".encode()).decode()
        headers = {"Authorization": f"Basic {who}", "Content-Type": "application/json", "Sec-Fetch-Site": "same-origin"}
        data = json.dumps(values).encode() if values else None
        request = Request(f"{self.url}api/v1/{path}", data, headers, method=method)  # noqa: S310  http
        with urlopen(request, timeout=TIMEOUT) as response:  # noqa: S310
            return json.loads(response.read() or b"null")

    def _administer(self) -> None:
        """Make the changes of an admin that the pages show, and that the audit log has."""
        for name, policy in POLICIES.items():
            self.request("PUT", f"policies/{name}", **policy)
        reason = "The warehouse is being migrated; ask Ada"
        self.request("POST", "tube/pause?tube=reports.daily", seconds=7200, reason=reason)
        self.request("POST", "marks", text="deployed shop 4.2")

    def _end_programs(self) -> None:
        for program in self._programs:
            program.kill()
            program.wait()


def _users() -> str:
    password = subprocess.run(
        (*COMMAND, "hash-password"), cwd=REPOSITORY, input=PASSWORD, capture_output=True, text=True, check=True
    ).stdout.strip()
    return "".join(f'\n[users.{name}]\nrole = "{role}"\npassword_hash = "{password}"\n' for name, role in USERS.items())


def _import(directory: Path) -> None:
    """Import the jobs of the scene into the empty *directory*."""
    now = time.time_ns()
    lines = list(archive_entries(SEED, now))
    head = {
        "type": "head", "format": "greenstalk journal", "version": 2, "server": "scene", "exported_at": now,
        "next_id": len(lines) + 1,
    }  # fmt: skip
    content = "".join(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n" for line in (head, *lines))
    counts = {"pauses": 0, "policies": 0, "keys": 0, "jobs": len(lines)}
    end = {"type": "end"} | counts | {"sha256": sha256(content.encode()).hexdigest()}
    subprocess.run(
        (*COMMAND, "journal", "import", str(directory)), cwd=REPOSITORY, env=environment(), check=True,
        input=content + json.dumps(end, separators=(",", ":")) + "\n", text=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
