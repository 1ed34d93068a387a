"""Start the server or greenstalkctl as a fork of a process that has imported both.

A new interpreter takes 0.2 to 0.5 s of CPU to import the program; a fork takes a few milliseconds. The fork has its own
arguments, environment, directory, streams and signals, and is a child of the process that starts it, as after an exec;
only /proc/PID/environ and /proc/PID/cmdline show the parent's values. It ends without destroying the objects of the
interpreter, which would copy the pages of all modules: 50 ms of CPU, as much as the rest of a short life.

The parent of several processes forks, and executes the program in its children. Those of a fork continue as forks. A
server that executes the program again in its own process does so.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import io
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, NoReturn

PROGRAMS: Final = ("greenstalk_server", "greenstalkctl")
IMPORTED: Final = (
    "greenstalk_server.cli",
    "greenstalk_server.commands",
    "greenstalk_server.daemon",
    "greenstalk_server.cluster.leadership",
    "greenstalk_server.journal.postgresql.writer",
    "greenstalk_server.web.server",
    "greenstalkctl.cli",
)
MINDING_SIGNALS: Final = ("env", "--default-signal=HUP,INT")
"""Prefix of a command that a test signals: under nohup or in a background shell, children inherit ignored signals."""

Done = subprocess.CompletedProcess

PR_SET_CHILD_SUBREAPER: Final = 36
MAX_REQUEST: Final = 1 << 17
"""Maximum bytes of a request."""


class Process(subprocess.Popen[Any]):
    """A process: a fork if *args* run one of PROGRAMS in an interpreter like this one, and an exec otherwise."""

    def _execute_child(self, args: Sequence[str], executable: Any, preexec_fn: Any, *rest: Any) -> None:
        pass_fds, cwd, env, pipes, is_session = rest[1], rest[2], rest[3], rest[7:13], rest[18]
        environ = dict(os.environ if env is None else env)
        words = list(map(os.fspath, args))
        minds = tuple(words[:2]) == MINDING_SIGNALS
        command = words[2:] if minds else words
        if not _can_fork(command, environ) or pass_fds or preexec_fn is not None:
            super()._execute_child(args, executable, preexec_fn, *rest)  # type: ignore[misc]
            return
        request = {"command": command, "environ": environ, "minds": minds, "is_session": is_session}
        request["directory"] = str(Path.cwd() if cwd is None else cwd)
        child_ends = (pipes[0], pipes[3], pipes[5])
        self.pid = _zygote().fork(request, [number if end == -1 else end for number, end in enumerate(child_ends)])
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def run(command: Sequence[str], *, data: bytes | str | None = None, timeout: float, **options: Any) -> Done:
    """Run *command* to its end with *data* as its input; return the completed process, as `subprocess.run` does."""
    if data is not None:
        options["stdin"] = subprocess.PIPE
    with Process(command, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options) as process:
        try:
            out, err = process.communicate(data, timeout)
        except BaseException:
            process.kill()
            raise
    return Done(command, process.returncode, out, err)


def _can_fork(command: list[str], environ: Mapping[str, str]) -> bool:
    return (
        command[:2] == [sys.executable, "-m"]
        and command[2] in PROGRAMS
        and _of_the_interpreter(environ) == _zygote().variables
    )


def _of_the_interpreter(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that take effect when an interpreter starts or imports the program."""
    names = ("PYTHON", "GREENSTALK_PURE", "GREENSTALK_PORTABLE", "TZ", "LC_", "LANG", "LD_")
    kept = {name: text for name, text in environ.items() if name.startswith(names) and text}
    return {name: text for name, text in kept.items() if name != "PYTHONUNBUFFERED"}


class _Zygote:
    """The process that has imported the programs. It ends when the socket is closed."""

    def __init__(self) -> None:
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", __name__, str(theirs.fileno())]
        repository = Path(__file__).resolve().parents[2]
        self._process = subprocess.Popen(command, cwd=repository, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        self.variables = _of_the_interpreter(os.environ)
        self._lock = threading.Lock()

    def close(self) -> None:
        """End the process."""
        self._sock.close()
        self._process.wait()

    def fork(self, request: Mapping[str, object], streams: list[int]) -> int:
        """Start a fork with *streams* as its first three file descriptors; return its process id.

        The parent of the fork ends at once, and this process, as the next subreaper, adopts the fork. It must not
        adopt other orphans: it would not wait for them, but Patroni does until its PostgreSQL server is no process.
        """
        with self._lock:
            _set_subreaper(1)
            try:
                socket.send_fds(self._sock, [json.dumps(request).encode()], streams)
                return int(self._sock.recv(MAX_REQUEST))
            finally:
                _set_subreaper(0)


def _set_subreaper(flag: int) -> None:
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, flag, 0, 0, 0) == 0


@cache
def _zygote() -> _Zygote:
    zygote = _Zygote()
    atexit.register(zygote.close)
    return zygote


def _serve(sock: socket.socket) -> None:
    """Fork for each request until the other end is closed; return in the forks, which are the requested processes."""
    while True:
        data, streams, _, _ = socket.recv_fds(sock, MAX_REQUEST, 3)
        if not data:
            sys.exit()
        reader, writer = os.pipe()
        if (between := os.fork()) == 0:
            if (pid := os.fork()) == 0:
                for fd in (reader, writer, sock.detach()):
                    os.close(fd)
                _become(json.loads(data), streams)
                return
            os.write(writer, b"%d" % pid)
            os._exit(0)
        os.waitpid(between, 0)  # from now on the fork is a child of the requesting process
        sock.send(os.read(reader, 20))
        for fd in (reader, writer, *streams):
            os.close(fd)


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """Take the place of the process that *request* describes."""
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    is_raw = bool(request["environ"].get("PYTHONUNBUFFERED"))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _stream(number, is_raw=is_raw and number > 0)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)  # keeps the stream open
    if request["is_session"]:
        os.setsid()
    if request["minds"]:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["directory"])
    sys.orig_argv = request["command"]
    sys.argv = request["command"][2:]


def _fork_children() -> None:
    """Make `os.execve` in the forks of this process run the program instead, if that is what it would execute."""
    execve, own = os.execve, os.getpid()

    def run_or_execute(path: str, command: list[str], environ: Mapping[str, str]) -> None:
        if os.getpid() == own or command != sys.orig_argv:
            execve(path, command, environ)
        _run_instead(environ)

    os.execve = run_or_execute  # type: ignore[assignment]


def _run_instead(environ: Mapping[str, str]) -> NoReturn:
    """Run the program with *environ* and the arguments of this process, and exit, as after an exec.

    Objects that own closed file descriptors live on in the frames of the caller, so nothing closes them again.
    """
    for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208  the names are numbers
        with suppress(OSError):  # it was that of the list
            if not os.get_inheritable(fd):
                os.close(fd)
    os.environ.clear()
    os.environ.update(environ)
    logging.getLogger().handlers.clear()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _fork_children()
    try:
        sys.exit(_run_program())
    except SystemExit as stop:
        _end(stop.code if isinstance(stop.code, int) else 1)
    except BaseException:  # noqa: BLE001  nothing of the caller may run
        sys.excepthook(*sys.exc_info())
    os._exit(1)


def _stream(fd: int, *, is_raw: bool) -> io.TextIOWrapper:
    """Return the text stream that the interpreter makes of its standard stream *fd*."""
    return io.TextIOWrapper(
        open(fd, "wb" if fd else "rb", 0 if is_raw else -1),
        encoding="utf-8",
        errors="backslashreplace" if fd == 2 else "strict",
        line_buffering=fd == 2 or os.isatty(fd),
        write_through=is_raw,
    )


def main() -> int:
    for name in IMPORTED:
        importlib.import_module(name)
    _warm_up()
    gc.freeze()  # otherwise each fork copies the pages of all objects when it collects garbage
    _serve(socket.socket(fileno=int(sys.argv[1])))
    _fork_children()
    return _run_program()


def _warm_up() -> None:
    """Create a dashboard, so that the forks find its templates and endpoints in caches: 25 ms of CPU of each."""
    from gevent import get_hub  # noqa: PLC0415  only this process needs them

    from greenstalk_server.web.app import create_dashboard  # noqa: PLC0415
    from greenstalk_server.web.framework.template_cache import load_templates  # noqa: PLC0415
    from tests.support.world import make_broker  # noqa: PLC0415

    for _ in range(2):  # the first one reads the file of templates, or compiles them
        load_templates(create_dashboard(make_broker(), time.monotonic_ns).app.jinja_env)
    get_hub().destroy(destroy_loop=True)  # its threads do not exist in a fork


def _run_program() -> int:
    program = importlib.import_module(f"{sys.argv[0]}.__main__")
    code: int = program.main() if sys.argv[0] == "greenstalk_server" else program.run()
    return code


def _end(code: int) -> None:
    """Exit after what the interpreter does before it destroys objects; return if output cannot be written."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):  # the interpreter tries again, reports it, and chooses the exit code
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            _end(stop.code or 0)
        raise
