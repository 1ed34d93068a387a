"""The tests that a start makes before it serves, and `config --check`, which makes all of them without a start.

`check_start` changes nothing, takes no lock, and keeps no socket open: it may run beside a server in the same
directory, and in ExecStartPre= of a systemd unit.
"""

from __future__ import annotations

import errno
import logging
import os
import ssl
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Final, ParamSpec

from greenstalk_server.config.options import PROGRAM, Options, UsageError, refuse_equal_passwords, shown
from greenstalk_server.journal.files import Directory
from greenstalk_server.journal.lock import LOCK_NAME, holder_of, refused
from greenstalk_server.journal.record import SEGMENT_HEADER_SIZE, BadSegment, NewerVersion, decode_segment_header
from greenstalk_server.journal.segment import name_of, numbers
from greenstalk_server.journal.startup import LATER_VERSION
from greenstalk_server.net.listeners import PLAIN_PREFIX, of_dashboard, try_listening
from greenstalk_server.net.tls import load_certificate, load_client_ca
from greenstalk_server.runtime.exit_codes import EXIT_BINLOG, EXIT_OK, EXIT_USAGE, StartError
from greenstalk_server.runtime.process import acting_as, require_readable_code

LONGEST_PASSWORD: Final = 1000
"""Bytes of a password in a file."""

P = ParamSpec("P")

log = logging.getLogger(__name__)


def check_start(options: Options | None, problems: Sequence[StartError], environ: Mapping[str, str]) -> int:
    """Print what a start with *options* would find wrong, after *problems*; return the exit code of that start."""
    found: list[StartError] = list(problems)
    if options is not None:
        logging.getLogger(__package__).addHandler(_Warnings())
        for warning in options.warnings:
            log.warning("%s", warning)
        for finding in _findings(options, environ):
            if isinstance(finding, StartError):
                found.append(finding)
            else:
                print(f"{PROGRAM}: note: {finding}", file=sys.stderr)
    for problem in found:
        print(f"{PROGRAM}: {problem}", file=sys.stderr)
    if found:
        return found[0].exit_code
    print(f"{PROGRAM}: the configuration is valid")
    return EXIT_OK


def with_password(options: Options) -> Options:
    """Return *options* with the password that is in a file, if one is; raise StartError if it cannot be had."""
    if options.web_password_file is None or not options.web_enabled:
        return options
    where = f"{options.named('web_password_file')} {options.web_password_file}"
    try:
        with Path(options.web_password_file).open("rb") as file:
            password = file.readline(LONGEST_PASSWORD + 2).rstrip(b"\r\n").decode()
            is_open = os.fstat(file.fileno()).st_mode & stat.S_IROTH
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        message = f"{where}: {reason}; it must be a file with the password as its first line"
        raise StartError(message, EXIT_USAGE) from error
    if not 0 < len(password) <= LONGEST_PASSWORD:
        raise StartError(f"{where}: its first line must be the password, of 1 to {LONGEST_PASSWORD} bytes", EXIT_USAGE)
    if is_open:
        path = options.web_password_file
        log.warning("everybody on this machine can read the password in %s; take the right from them: chmod o-r", path)
    refuse_equal_passwords(options, password)
    return replace(options, web_password=password)


def warn_of_writers(directory: str) -> None:
    """Warn if every user of this machine may put files into *directory*, which is there."""
    if Path(directory).stat().st_mode & stat.S_IWOTH:
        message = "every user of this machine can add and replace files in -b %s; run: chmod o-w %s"
        log.warning(message, directory, directory)


def refuse_rules_for_nobody(options: Options, names: Sequence[str] | None) -> None:
    """Raise UsageError if a rule is for a listener that is not in *names*, or for names that no client can prove.

    *names* is None if the listeners are not known.
    """
    for rule in options.access:
        if rule.client is not None and options.tls_client_ca is None:
            name, ca = options.named("access"), options.named("tls_client_ca")
            raise UsageError(f"{name}: client {shown(rule.client)}: no client has a name without {ca}")
        if names is not None and rule.listener is not None and rule.listener not in names:
            known = ", ".join(map(shown, names))
            raise UsageError(f"{options.named('access')}: listener {shown(rule.listener)}: must be one of {known}")


@contextmanager
def importing_psycopg() -> Iterator[None]:
    """Import modules that need psycopg, PostgreSQL's driver, in the block; raise StartError if it is not installed."""
    try:
        yield
    except ImportError as error:
        message = f"{error}; install the driver of PostgreSQL: pip install 'psycopg[binary]'"
        raise StartError(message, EXIT_USAGE) from error


class _Warnings(logging.Handler):
    """Prints each warning as a line of the check."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"{PROGRAM}: warning: {record.getMessage()}", file=sys.stderr)


def _findings(options: Options, environ: Mapping[str, str]) -> Iterator[StartError | str]:
    """Each problem that a start would find outside of the options, in that order; and, as texts, notes."""
    yield from _attempt(with_password, options)
    if options.tls_cert is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        yield from _attempt(load_certificate, context, options)
        yield from _attempt(load_client_ca, context, options)
    yield from _about_sockets(options, environ)
    yield from _about_journal(options)


def _attempt(test: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> Iterator[StartError]:
    """Call *test*; give the StartError that it raises, if it raises one."""
    try:
        test(*args, **kwargs)
    except StartError as error:
        yield error


def _about_sockets(options: Options, environ: Mapping[str, str]) -> Iterator[StartError | str]:
    """Find the addresses that cannot be listened on, and the rules for listeners that do not exist.

    In ExecStartPre= of a systemd unit it is not known which sockets the socket unit will hand over: -l may not count.
    """
    is_before_start = environ.get("SYSTEMD_EXEC_PID") == str(os.getpid())
    if not is_before_start:
        for where in options.listen:
            yield from _about_address(where, options.port, lambda error: error)
    names = None if is_before_start else [where.removeprefix(PLAIN_PREFIX) for where in options.listen]
    yield from _attempt(refuse_rules_for_nobody, options, names)
    if options.web_enabled:
        yield from _about_address(options.web_host, options.web_port, of_dashboard)


def _about_address(where: str, port: int, worded: Callable[[StartError], StartError]) -> Iterator[StartError | str]:
    try:
        try_listening(where, port)
    except StartError as error:
        reason = error.__cause__
        if isinstance(reason, OSError) and reason.errno == errno.EADDRINUSE:
            yield f"{where}, port {port}, is in use; right if a server or its socket unit runs there now"
        else:
            yield worded(error)


def _about_journal(options: Options) -> Iterator[StartError | str]:
    """Test the user, and with its permissions the directory; test the address of the database, without connecting."""
    try:
        with acting_as(options.user) if options.user is not None else nullcontext():
            if options.user is not None and options.web_enabled:
                yield from _attempt(require_readable_code, options.user)
            if options.binlog_dir is not None:
                yield from _about_directory(options.binlog_dir)
    except StartError as error:
        yield error
    if options.journal is not None:
        yield from _attempt(_read_address, options.journal, options.named("journal"))


def _read_address(url: str, name: str) -> None:
    with importing_psycopg():
        from greenstalk_server.journal.postgresql.link import conninfo_of  # noqa: PLC0415  optional dependency
    conninfo_of(url, name)


def _about_directory(directory: str) -> Iterator[StartError | str]:
    path = Path(directory)
    if not path.is_dir() or not _is_allowed(path, os.R_OK | os.W_OK | os.X_OK):
        yield refused(directory, f"{_reason(path)}; it must be a writable directory")
        return
    try:
        warn_of_writers(directory)
        names = Directory(directory).list()
        if LOCK_NAME in names and not _is_allowed(Path(directory, LOCK_NAME), os.R_OK | os.W_OK):
            yield refused(directory, f"{LOCK_NAME}: {os.strerror(errno.EACCES)}")
        elif holder := holder_of(directory):
            yield f"-b {directory} is in use by {holder}; right if that is the server to be restarted"
        yield from _about_segments(directory, names)
    except OSError as error:
        yield refused(directory, f"{error.filename or directory}: {error.strerror}")


def _about_segments(directory: str, names: list[str]) -> Iterator[StartError]:
    """Test the permissions and headers of the journal's files; `journal check` reads them whole."""
    files = Directory(directory)
    for name in map(name_of, numbers(names)):
        if not _is_allowed(Path(directory, name), os.R_OK | os.W_OK):
            yield refused(directory, f"{name}: {_reason(Path(directory, name))}")
            continue
        try:
            decode_segment_header(files.read(name, SEGMENT_HEADER_SIZE))
        except NewerVersion:
            yield StartError(LATER_VERSION, EXIT_BINLOG)
            return
        except BadSegment:  # damage, or not begun: a start copes with both
            pass
        except FileNotFoundError:  # a server that runs has just removed it
            pass


def _is_allowed(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=True)


def _reason(path: Path) -> str | None:
    """Why *path* is not a directory or file that can be read and written."""
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
    except OSError as error:
        return error.strerror
    if is_file and _is_allowed(path, os.R_OK | os.W_OK):
        return os.strerror(errno.ENOTDIR)
    is_read_only = os.statvfs(path).f_flag & os.ST_RDONLY
    return os.strerror(errno.EROFS if is_read_only else errno.EACCES)
