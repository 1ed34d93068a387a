"""Least privilege: where the server writes files, with which permissions, and that it shows no secret."""

from __future__ import annotations

import base64
import contextlib
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.support.daemon import COMMAND, TIMEOUT, Daemon, environment
from tests.support.peer import Peer

LOOPBACK = ("-l", "127.0.0.1", "-p", "0", "--web-port", "0")

SECRETS = {
    "GREENSTALK_WEB_PASSWORD": "open-sesame-1",
    "GREENSTALK_WEB_VIEWER_PASSWORD": "open-sesame-2",
    "GREENSTALK_API_TOKEN": "open-sesame-3",
    "GREENSTALK_API_VIEWER_TOKEN": "open-sesame-4",
    "GREENSTALK_METRICS_TOKEN": "open-sesame-5",
}

READ_ONLY = """\
umask 000
mount --bind "$0" "$0"
for place in $(cut -d ' ' -f 2 /proc/self/mounts | sort -u); do mount -o remount,bind,ro "$place" 2>/dev/null; done
mount -o remount,bind,rw "$0"
if touch /tmp/probe "$HOME/probe" ./probe 2>/dev/null; then echo "the file system is not read-only" >&2; exit 1; fi
exec "$@"
"""
"""Shell script: make the whole file system read-only except the directory $0, and execute the other arguments."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jobs")


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Daemon]:
    """A server with a secret of each kind, which can write only to its directory."""
    start = ("unshare", "--mount", "sh", "-c", READ_ONLY, str(directory), *COMMAND)
    flags = ("-b", str(directory), "-s", "65536", "-f", "0")
    with Daemon(*LOOPBACK, *flags, command=start, environ=environment(**SECRETS)) as daemon:
        daemon.process.send_signal(signal.SIGUSR2)
        yield daemon


def get(url: str, authorization: str = "") -> bytes:
    request = Request(url, headers={"Authorization": authorization} if authorization else {})  # noqa: S310  our own
    try:
        with urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310
            return bytes(answer.read())
    except HTTPError as error:
        with error:
            return bytes(error.read())


@pytest.mark.linux_form
def test_server_writes_only_private_files_in_its_directory_and_logs_no_secret(server: Daemon, directory: Path) -> None:
    with Peer(server) as peer:
        for _ in range(50):
            peer.send(b"put 0 0 60 4000\r\n%b\r\n" % bytes(4000))
            assert peer.read_line().startswith(b"INSERTED")
        for id in range(1, 41):
            assert peer.ask(b"delete %d" % id) == b"DELETED"
    password = base64.b64encode(f"ada:{SECRETS['GREENSTALK_WEB_PASSWORD']}".encode()).decode()
    shown = b""
    for path in ("", "connections", "audit", "search", "api/v1/server", "metrics", "tube?tube=default"):
        page = get(f"{server.dashboard}{path}", f"Basic {password}")
        assert len(page) > 100, path
        shown += page
    get(f"{server.dashboard}api/v1/server", f"Bearer {SECRETS['GREENSTALK_API_TOKEN']}")
    get(server.dashboard, f"Basic {base64.b64encode(b'ada:wrong').decode()}")
    pid = server.process.pid
    shown += Path(f"/proc/{pid}/cmdline").read_bytes()
    environ = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"GREENSTALK_WEB_PASSWORD=*************\0" in environ
    code, stderr = server.stop()
    assert code == 0 and "Traceback" not in stderr and "401" in stderr
    for secret in SECRETS.values():
        for text in (shown, environ, stderr.encode(), server.first_lines.encode()):
            assert secret.encode() not in text
            assert base64.b64encode(secret.encode()).rstrip(b"=") not in text
    files = list(directory.rglob("*"))
    assert len(files) > 3
    for each in files:
        mode = stat.S_IMODE(each.stat().st_mode)
        assert mode == (0o700 if each.is_dir() else 0o600), (each, oct(mode))


def test_public_file_with_a_secret_logs_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("open-sesame\n")
    path.chmod(0o644)
    with Daemon(*LOOPBACK, environ=environment(GREENSTALK_WEB_PASSWORD_FILE=str(path))) as daemon:
        with contextlib.suppress(HTTPError):
            get(daemon.dashboard)
        _, stderr = daemon.stop()
    assert f"every user of this machine can read the password in {path}" in stderr and "open-sesame" not in stderr
