"""This process: its user, its limit on open files, its environment, and what it reports to systemd and in stats."""

from __future__ import annotations

import importlib.util
import logging
import os
import pwd
import resource
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from greenstalk_server import BUILD, __version__
from greenstalk_server.core.counters import ServerFacts
from greenstalk_server.runtime.exit_codes import EXIT_NO_SUCH_USER, EXIT_PRIVILEGES, StartError
from greenstalk_server.runtime.memory import process_memory
from greenstalk_server.runtime.system import largest_file_limit

log = logging.getLogger(__name__)

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
"""States of a service (sd_notify(3))."""

FIRST_INHERITED_FD: Final = 3
"""First file descriptor of the sockets that systemd passes: SD_LISTEN_FDS_START of sd_listen_fds(3)."""


def drop_privileges(user: str) -> None:
    """Become *user*, with the user's groups, permanently; raise StartError if there is no such user or no permission.

    A process that is not root can only become its own user, which changes nothing.
    """
    account = _account(user)
    try:
        os.setgid(account.pw_gid)
        if os.geteuid() == 0:
            os.initgroups(account.pw_name, account.pw_gid)
        os.setuid(account.pw_uid)
    except PermissionError as error:
        raise _not_allowed(user, error) from error


@contextmanager
def acting_as(user: str) -> Iterator[None]:
    """Run the block with the permissions of *user*; raise StartError where `drop_privileges` would."""
    account = _account(user)
    groups, group, owner = os.getgroups(), os.getegid(), os.geteuid()
    try:
        os.setegid(account.pw_gid)
        if owner == 0:
            os.initgroups(account.pw_name, account.pw_gid)
        os.seteuid(account.pw_uid)
    except PermissionError as error:
        os.setegid(group)
        raise _not_allowed(user, error) from error
    try:
        yield
    finally:
        os.seteuid(owner)
        os.setegid(group)
        if owner == 0:
            os.setgroups(groups)


def _account(user: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(user)
    except KeyError:
        raise StartError(f"-u {user or repr(user)}: no such user", EXIT_NO_SUCH_USER) from None


def _not_allowed(user: str, error: OSError) -> StartError:
    return StartError(f"-u {user}: only root can become another user ({error.strerror})", EXIT_PRIVILEGES)


def require_readable_code(user: str) -> None:
    """Raise StartError if this process, which now has the permissions of *user*, cannot read code to be imported later.

    Call this only if there is a dashboard: its templates are read and compiled after privileges are dropped.
    """
    gevent = importlib.util.find_spec("gevent")  # not imported: the parent of several processes has none
    assert gevent is not None and gevent.origin is not None
    for path in (os.__file__, gevent.origin, __file__):
        if not os.access(path, os.R_OK, effective_ids=True):
            reason = f"that user cannot read {path}, which the dashboard needs"
            raise StartError(f"-u {user}: {reason}; install the server where every user can read it", EXIT_PRIVILEGES)


def raise_file_limit() -> int:
    """Raise the soft limit on open files to the hard limit; return the limit in force. Each connection is a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = largest_file_limit(hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    except (OSError, ValueError) as error:
        log.warning("the limit on open files stays at %d: %s", soft, error)
        return soft
    return limit


def notify_manager(state: str, environ: Mapping[str, str]) -> None:
    """Report *state* to the service manager, if it has set NOTIFY_SOCKET, as systemd does for Type=notify."""
    if not (address := environ.get("NOTIFY_SOCKET")):
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.connect(f"\0{address[1:]}" if address.startswith("@") else address)
            sock.send(state.encode())
    except OSError as error:
        log.warning("NOTIFY_SOCKET %s: %s; the service manager does not receive %s", address, error.strerror, state)


def new_process_id() -> str:
    """Return a random id for one start of a process."""
    return secrets.token_hex(8)


def server_facts(started_at: int, extensions: tuple[str, ...] = ()) -> ServerFacts:
    """Return the facts of this process for `stats`, with a new random id; *started_at* in nanoseconds."""
    system = os.uname()
    return ServerFacts(
        id=new_process_id(),
        pid=os.getpid(),
        version=__version__,
        build=BUILD.name,
        hostname=system.nodename,
        os=system.version,
        platform=system.machine,
        started_at=started_at,
        rusage=_rusage,
        memory=process_memory,
        extensions=extensions,
    )


def _rusage() -> tuple[float, float]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime
