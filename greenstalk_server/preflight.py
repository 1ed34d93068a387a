"""The checks made at startup, and `config --check`, which makes all of them without starting a server.

`check_start` changes nothing, takes no lock, and leaves no socket open: it may run while a server uses the same
directory, and in ExecStartPre= of a systemd unit.
"""

from __future__ import annotations

import errno
import importlib.util
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

from greenstalk_server.cluster.placement import address_of
from greenstalk_server.config.options import PROGRAM, Options, UsageError
from greenstalk_server.config.text import quote_value
from greenstalk_server.config.validation import refuse_equal_passwords
from greenstalk_server.journal import beanstalkd
from greenstalk_server.journal.files import Directory
from greenstalk_server.journal.layout import directory_of, has_unfinished_change, require_layout
from greenstalk_server.journal.lock import LOCK_NAME, directory_error, holder_of
from greenstalk_server.journal.record import SEGMENT_HEADER_SIZE, BadSegment, OtherVersion, decode_segment_header
from greenstalk_server.journal.segment import name_of, numbers
from greenstalk_server.net.listeners import PLAIN_PREFIX, of_dashboard, of_links, try_listening
from greenstalk_server.net.tls import OF_LINKS, load_authority, load_certificate
from greenstalk_server.runtime.exit_codes import EXIT_JOURNAL, EXIT_OK, EXIT_USAGE, StartError
from greenstalk_server.runtime.process import acting_as, require_readable_code

MAX_PASSWORD: Final = 1000
"""Maximum bytes of a password in a file."""

P = ParamSpec("P")

log = logging.getLogger(__name__)


def check_start(options: Options | None, problems: Sequence[StartError], environ: Mapping[str, str]) -> int:
    """Print *problems* and the problems that a start with *options* would find; return the first one's exit code."""
    errors: list[StartError] = list(problems)
    if options is not None:
        logging.getLogger(__package__).addHandler(_Warnings())
        for warning in options.warnings:
            log.warning("%s", warning)
        for finding in _findings(options, environ):
            if isinstance(finding, StartError):
                errors.append(finding)
            else:
                print(f"{PROGRAM}: note: {finding}", file=sys.stderr)
    for error in errors:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
    if errors:
        return errors[0].exit_code
    print(f"{PROGRAM}: the configuration is valid")
    return EXIT_OK


def with_password(options: Options) -> Options:
    """Return *options* with the password of web_password_file, if any; raise StartError if it cannot be read."""
    if options.web_password_file is None or not options.web_enabled:
        return options
    password = _first_line(options, "web_password_file", options.web_password_file, "password")
    refuse_equal_passwords(options, password)
    return replace(options, web_password=password)


def with_provider(options: Options) -> Options:
    """Return *options* with the secret of oidc_client_secret_file, if any.

    Raise StartError if the file cannot be read, or if the packages for OpenID Connect are not installed.
    """
    if options.oidc_issuer is None or not options.web_enabled:
        return options
    if importlib.util.find_spec("authlib") is None or importlib.util.find_spec("requests") is None:
        advice = "install the packages for OpenID Connect: pip install 'greenstalk-server[oidc]'"
        raise StartError(f"{options.label_of('oidc_issuer')}: {advice}", EXIT_USAGE)
    if options.oidc_client_secret_file is None:
        return options
    secret = _first_line(options, "oidc_client_secret_file", options.oidc_client_secret_file, "secret")
    return replace(options, oidc_client_secret=secret)


def _first_line(options: Options, field: str, path: str, what: str) -> str:
    """Return the first line of the file *path*, the value of *field*; raise StartError if it is not a *what*."""
    where = f"{options.label_of(field)} {path}"
    try:
        with Path(path).open("rb") as file:
            line = file.readline(MAX_PASSWORD + 2).rstrip(b"\r\n").decode()
            is_readable = os.fstat(file.fileno()).st_mode & stat.S_IROTH
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        message = f"{where}: {reason}; it must be a file with the {what} as its first line"
        raise StartError(message, EXIT_USAGE) from error
    if not 0 < len(line) <= MAX_PASSWORD:
        raise StartError(f"{where}: its first line must be the {what}, of 1 to {MAX_PASSWORD} bytes", EXIT_USAGE)
    if is_readable:
        log.warning("every user of this machine can read the %s in %s; run: chmod o-r %s", what, path, path)
    return line


def warn_if_world_writable(directory: str) -> None:
    """Log a warning if every user of this machine may write to *directory*, which exists."""
    if Path(directory).stat().st_mode & stat.S_IWOTH:
        message = "every user of this machine can add and replace files in -b %s; run: chmod o-w %s"
        log.warning(message, directory, directory)


def refuse_unusable_rules(options: Options, names: Sequence[str] | None) -> None:
    """Raise UsageError if a rule is for a listener not in *names*, or for a client name without client certificates.

    *names* are the listeners' names; None if they are unknown.
    """
    for rule in options.access:
        if rule.client is not None and options.tls_client_ca is None:
            name, ca = options.label_of("access"), options.label_of("tls_client_ca")
            raise UsageError(f"{name}: client {quote_value(rule.client)}: without {ca}, clients have no names")
        if names is not None and rule.listener is not None and rule.listener not in names:
            listener, known = quote_value(rule.listener), ", ".join(map(quote_value, names))
            raise UsageError(f"{options.label_of('access')}: listener {listener}: must be one of {known}")


@contextmanager
def importing_psycopg() -> Iterator[None]:
    """Run a block that imports psycopg, the PostgreSQL driver; raise StartError if an import fails."""
    try:
        yield
    except ImportError as error:
        message = f"{error}; install the PostgreSQL driver: pip install 'psycopg[binary]'"
        raise StartError(message, EXIT_USAGE) from error


class _Warnings(logging.Handler):
    """Prints each warning as a line of the check."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"{PROGRAM}: warning: {record.getMessage()}", file=sys.stderr)


def _findings(options: Options, environ: Mapping[str, str]) -> Iterator[StartError | str]:
    """Yield the problems that are not in the options, in the order in which startup finds them; and notes, as str."""
    yield from _attempt(with_password, options)
    if options.oidc_issuer is not None and options.web_enabled:
        yield from _attempt(with_provider, options)
    if options.tls_cert is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        yield from _attempt(load_certificate, context, options)
        yield from _attempt(load_authority, context, options)
    if options.link_cert is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        yield from _attempt(load_certificate, context, options, OF_LINKS)
        yield from _attempt(load_authority, context, options, OF_LINKS)
    yield from _socket_findings(options, environ)
    yield from _journal_findings(options)


def _attempt(check: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> Iterator[StartError]:
    """Call *check*; yield the StartError that it raises, if any."""
    try:
        check(*args, **kwargs)
    except StartError as error:
        yield error


def _socket_findings(options: Options, environ: Mapping[str, str]) -> Iterator[StartError | str]:
    """Check the addresses to listen on, and the listeners in access rules.

    In ExecStartPre= of a systemd unit the sockets of the socket unit are not known yet, and -l may be ignored.
    """
    is_before_start = environ.get("SYSTEMD_EXEC_PID") == str(os.getpid())
    if not is_before_start:
        for where in options.listen:
            yield from _address_findings(where, options.port, lambda error: error)
    for number in range(options.processes) if options.link is not None else ():
        yield from _address_findings(address_of(options.link_listen or options.link or "", number), 0, of_links)
    names = None if is_before_start else [where.removeprefix(PLAIN_PREFIX) for where in options.listen]
    yield from _attempt(refuse_unusable_rules, options, names)
    if options.web_enabled:
        yield from _address_findings(options.web_host, options.web_port, of_dashboard)


def _address_findings(where: str, port: int, reword: Callable[[StartError], StartError]) -> Iterator[StartError | str]:
    try:
        try_listening(where, port)
    except StartError as error:
        reason = error.__cause__
        if isinstance(reason, OSError) and reason.errno == errno.EADDRINUSE:
            yield f"{where}, port {port}, is in use; expected if a server or its socket unit runs there now"
        else:
            yield reword(error)


def _journal_findings(options: Options) -> Iterator[StartError | str]:
    """Check the user, the directory with the permissions of that user, and the database URL, without connecting."""
    try:
        with acting_as(options.user) if options.user is not None else nullcontext():
            if options.user is not None and options.web_enabled:
                yield from _attempt(require_readable_code, options.user)
            if options.data_dir is not None:
                yield from _data_findings(options.data_dir, options.processes)
    except StartError as error:
        yield error
    if options.journal is not None:
        yield from _attempt(_check_database_url, options.journal, options.label_of("journal"))


def _check_database_url(url: str, name: str) -> None:
    with importing_psycopg():
        from greenstalk_server.journal.postgresql.connection import conninfo_of  # noqa: PLC0415  optional dependency
    conninfo_of(url, name)


def _data_findings(directory: str, processes: int) -> Iterator[StartError | str]:
    """Check the directory, and with several processes those of the shards that exist."""
    errors = list(_directory_findings(directory))
    yield from errors
    if errors and not isinstance(errors[0], str):
        return
    try:
        if has_unfinished_change(directory):
            return
        yield from _attempt(require_layout, directory, processes)
    except OSError as error:
        yield directory_error(directory, f"{error.filename or directory}: {error.strerror}")
    for shard in range(processes) if processes > 1 else ():
        if Path(own := directory_of(directory, shard)).exists():
            yield from _directory_findings(own)


def _directory_findings(directory: str) -> Iterator[StartError | str]:
    path = Path(directory)
    if not path.is_dir() or not _is_allowed(path, os.R_OK | os.W_OK | os.X_OK):
        yield directory_error(directory, f"{_reason(path)}; it must be a writable directory")
        return
    try:
        warn_if_world_writable(directory)
        names = Directory(directory).list()
        if LOCK_NAME in names and not _is_allowed(Path(directory, LOCK_NAME), os.R_OK | os.W_OK):
            yield directory_error(directory, f"{LOCK_NAME}: {os.strerror(errno.EACCES)}")
        elif holder := holder_of(directory):
            yield f"-b {directory} is in use by {holder}; expected if that is the server to be restarted"
        yield from _segment_findings(directory, names)
    except OSError as error:
        yield directory_error(directory, f"{error.filename or directory}: {error.strerror}")


def _segment_findings(directory: str, names: list[str]) -> Iterator[StartError]:
    """Check the permissions and headers of the files in the directory; `journal check` reads all of them."""
    files = Directory(directory)
    for name in beanstalkd.find(names):
        if beanstalkd.is_unknown_version(files.read(name, SEGMENT_HEADER_SIZE)):
            reason = "beanstalkd's file has an unknown version, and cannot be imported"
            yield directory_error(directory, f"{name}: {reason}; move it to another directory to start without it")
    for name in map(name_of, numbers(names)):
        if not _is_allowed(Path(directory, name), os.R_OK | os.W_OK):
            yield directory_error(directory, f"{name}: {_reason(Path(directory, name))}")
            continue
        try:
            decode_segment_header(files.read(name, SEGMENT_HEADER_SIZE))
        except OtherVersion as error:
            yield StartError(error.advice, EXIT_JOURNAL)
            return
        except BadSegment:  # damaged or without a header: recovery handles both
            pass
        except FileNotFoundError:  # a running server has just removed it
            pass


def _is_allowed(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=True)


def _reason(path: Path) -> str | None:
    """Return the reason why *path* cannot be read and written as the file or directory that it should be."""
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
    except OSError as error:
        return error.strerror
    if is_file and _is_allowed(path, os.R_OK | os.W_OK):
        return os.strerror(errno.ENOTDIR)
    is_read_only = os.statvfs(path).f_flag & os.ST_RDONLY
    return os.strerror(errno.EROFS if is_read_only else errno.EACCES)
