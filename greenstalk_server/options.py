"""What the operator asked for: a command line and an environment in, one frozen `Options` out.

DEFINITIONS is the only place where an option is described: the parser, the environment and `--help` all read
it. A flag beats the environment, and the environment beats the default; among flags the last one wins.

Short flags are beanstalkd's, with its grammar: `-VV`, `-p11300`, `-Vp 11300`; a value may begin with a dash.

Knows nothing of sockets, disks or users: whether an address can be bound, a directory opened or a user
become is found out by who does it.
"""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, Final

from greenstalk_server import __version__
from greenstalk_server.exits import EXIT_BINLOG, EXIT_LISTEN, EXIT_USAGE, StartError

PROGRAM: Final = "greenstalk-server"
JOURNAL: Final = "journal"
"""The first argument that makes the command look at a journal instead of serving."""

LARGEST_JOB_SIZE: Final = 2**30
"""beanstalkd's own limit on -z."""

_URL_PREFIX: Final = re.compile(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._~-]+)*/?")
"""Segments that are not `.` or `..`, which browsers take out of a path."""

MILLISECOND: Final = 1_000_000
LONGEST_VALUE_SHOWN: Final = 60


class UsageError(StartError):
    """A flag or variable that is not understood; the message names it, its value and what is allowed."""

    def __init__(self, message: str, exit_code: int = EXIT_USAGE) -> None:
        super().__init__(message, exit_code)


@dataclass(frozen=True, slots=True)
class Information:
    """What `-h` or `-v` asked for: text to print instead of serving."""

    text: str


@dataclass(frozen=True, slots=True)
class JournalCheck:
    """What `journal check DIR` asks for: a look at *directory* instead of serving."""

    directory: str


@dataclass(frozen=True, slots=True)
class Options:
    """What is in force.

    sync_interval_ns  at most one fsync in so many nanoseconds; 0 is one at every write, None is never.
    binlog_max_size   of one binlog file, bytes.
    listen            a host name, an address, or `unix:PATH`.
    port, web_port    0 is any free one.
    max_job_size      of a body, bytes.
    verbosity         how many -V.
    web_user          name that goes with the admins' password; None is any.
    web_password      of the dashboard's admins; None, also as a file, and no viewers' is open to whoever reaches it.
    web_password_file that has it as its first line.
    viewer_password   of those who may look at the dashboard and change nothing.
    metrics_token     that opens `/metrics` alone.
    url_prefix        path that the dashboard is under, such as `/queue`; empty is none.
    trusted_proxies   whose X-Forwarded- headers count.
    given             the fields that the command line or the environment named.
    warnings          what was understood, but not as the operator may think.
    """

    binlog_dir: str | None
    sync_interval_ns: int | None
    binlog_max_size: int
    listen: str
    port: int
    user: str | None
    max_job_size: int
    verbosity: int
    strict_recovery: bool
    web_host: str
    web_port: int
    web_enabled: bool
    web_user: str | None
    web_password: str | None = field(repr=False)
    web_password_file: str | None
    viewer_password: str | None = field(repr=False)
    metrics_token: str | None = field(repr=False)
    read_only: bool
    hide_bodies: bool
    url_prefix: str
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...]
    allow_insecure: bool
    given: frozenset[str]
    warnings: tuple[str, ...]


class Kind(Enum):
    """What naming an option does."""

    VALUE = auto()
    """Takes a value, and sets its field to it."""
    SWITCH = auto()
    """Takes none, and sets its field to what `read` makes of `implies`."""
    COUNT = auto()
    """Takes none, and adds one to its field."""
    REMOVED = auto()
    """Does nothing but warn: an old beanstalkd had it."""
    VERSION = auto()
    HELP = auto()


@dataclass(frozen=True, slots=True)
class Definition:
    """One option.

    field      of Options, that it sets; "" if none.
    read       makes the field's value of a text, or raises ValueError saying what is allowed.
    implies    the text that a switch stands for.
    default    as text, in the flag's unit; None leaves the field None, or to another definition.
    exit_code  for a value that `read` refuses.
    """

    flags: tuple[str, ...]
    help: str
    field: str = ""
    kind: Kind = Kind.VALUE
    metavar: str = ""
    variable: str | None = None
    read: Callable[[str], object] = str
    implies: str = ""
    default: str | None = None
    exit_code: int = EXIT_USAGE


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Options | Information | JournalCheck:
    """Read a command line, without the program's name, and an environment; raise UsageError for what is wrong.

    Reading is from left to right, as beanstalkd does it: `-v` after a bad flag is never reached.
    """
    if argv and argv[0] == JOURNAL:
        return _parse_journal(argv[1:])
    parser = _Parser(argv)
    if (information := parser.read_arguments()) is not None:
        return information
    parser.read_environment(environ)
    return parser.options()


def _parse_journal(argv: Sequence[str]) -> JournalCheck | Information:
    """Read what follows `journal`: `check` and a directory."""
    match [argument for argument in argv if argument not in ("-h", "--help")]:
        case arguments if len(arguments) < len(argv):
            return Information(usage())
        case ["check", directory] if directory and not directory.startswith("-"):
            return JournalCheck(directory)
        case arguments:
            given = " ".join(map(_shown, (JOURNAL, *arguments)))
            raise UsageError(f"{given}: must be `{JOURNAL} check DIR`")


def usage() -> str:
    """Return the text of `--help`."""
    short = [_flag_entry(row) for row in DEFINITIONS if _is_short(row)]
    long = [_flag_entry(row) for row in DEFINITIONS if row.flags and not _is_short(row)]
    variables = [_variable_entry(row) for row in DEFINITIONS if row.variable]
    return "\n".join(
        (
            HEADLINE,
            "Options, as beanstalkd has them:\n" + "".join(short),
            "Options of our own:\n" + "".join(long),
            "Environment (a flag beats it):\n" + "".join(variables),
            FOOTER,
        )
    )


def _number(text: str, least: int, most: int | None, allowed: str) -> int:
    """Return the decimal number *text*, which may have a plus sign, as beanstalkd lets it."""
    digits = text.removeprefix("+")
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(allowed)
    try:
        number = int(digits)
    except ValueError:  # more digits than Python cares to read
        raise ValueError(allowed) from None
    if number < least or (most is not None and number > most):
        raise ValueError(allowed)
    return number


def _directory(text: str) -> str:
    if not text:
        raise ValueError("the path of a directory")
    return text


def _bytes(text: str) -> int:
    return _number(text, 0, None, "a whole number of bytes, 0 or more")


def _sync_interval(text: str) -> int:
    return MILLISECOND * _number(text, 0, None, "a whole number of milliseconds, 0 (at every write) or more")


def _port(text: str) -> int:
    return _number(text, 0, 65535, "a port number from 0 (any free one) to 65535")


def _count(text: str) -> int:
    return _number(text, 0, None, "a whole number, 0 or more")


def _boolean(text: str) -> bool:
    match text.lower():
        case "1" | "true" | "yes" | "on":
            return True
        case "0" | "false" | "no" | "off":
            return False
    raise ValueError("1, true, yes or on; or 0, false, no or off")


def _path_prefix(text: str) -> str:
    """Return the path *text* without the slash at its end: `/` is no prefix at all."""
    if not _URL_PREFIX.fullmatch(text):
        raise ValueError("a path such as /queue, of letters, digits and -._~")
    return text.rstrip("/")


def _networks(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    try:
        return tuple(ip_network(part.strip()) for part in text.split(",")) if text else ()
    except ValueError:
        raise ValueError("addresses and networks by comma, such as 10.0.0.0/8,::1") from None


def _never(_text: str) -> None:
    return None


DEFINITIONS: Final = (
    Definition(
        ("-b",),
        "keep the binlog, from which jobs are restored at a start, in DIR, which must exist",
        field="binlog_dir",
        metavar="DIR",
        variable="GREENSTALK_DATA_DIR",
        read=_directory,
        exit_code=EXIT_BINLOG,
    ),
    Definition(
        ("-f",),
        "sync the binlog to disk at most once in MS milliseconds; 0 is at every write",
        field="sync_interval_ns",
        metavar="MS",
        read=_sync_interval,
        default="50",
    ),
    Definition(
        ("-F",),
        "never sync the binlog; the last of -f and -F wins",
        field="sync_interval_ns",
        kind=Kind.SWITCH,
        read=_never,
    ),
    Definition(
        ("-s",),
        "size of one binlog file",
        field="binlog_max_size",
        metavar="BYTES",
        read=_bytes,
        default="10485760",
    ),
    Definition(
        ("-l",),
        "listen on ADDR: an address, a host name, or unix:PATH for a Unix socket (one left at PATH is replaced)",
        field="listen",
        metavar="ADDR",
        variable="GREENSTALK_LISTEN",
        default="0.0.0.0",  # noqa: S104  beanstalkd's default, and what a replacement must do
    ),
    Definition(
        ("-p",),
        "listen on PORT; 0 is any free one",
        field="port",
        metavar="PORT",
        read=_port,
        default="11300",
        exit_code=EXIT_LISTEN,  # beanstalkd finds a bad port only when it binds
    ),
    Definition(
        ("-u",),
        "become USER and its groups, once the sockets are bound",
        field="user",
        metavar="USER",
    ),
    Definition(
        ("-z",),
        f"largest job body that put accepts; at most {LARGEST_JOB_SIZE}",
        field="max_job_size",
        metavar="BYTES",
        variable="GREENSTALK_MAX_JOB_SIZE",
        read=_bytes,
        default="65535",
    ),
    Definition(("-c",), "accepted, and without effect: the binlog is always compacted", kind=Kind.REMOVED),
    Definition(("-n",), "accepted, and without effect: the binlog is always compacted", kind=Kind.REMOVED),
    Definition(
        ("-V",),
        "say more in the log; may be repeated",
        field="verbosity",
        kind=Kind.COUNT,
        read=_count,
        default="0",
    ),
    Definition(("-v", "--version"), "print the version and exit", kind=Kind.VERSION),
    Definition(("-h", "--help"), "print this help and exit", kind=Kind.HELP),
    Definition(
        ("--strict-recovery",),
        "refuse to start on a damaged binlog; without it the server starts with all that is sound",
        field="strict_recovery",
        kind=Kind.SWITCH,
        read=_boolean,
        implies="yes",
        default="no",
    ),
    Definition(
        ("--web-host",),
        "serve the dashboard on ADDR; other than loopback it needs a password, by the environment",
        field="web_host",
        metavar="ADDR",
        variable="GREENSTALK_WEB_HOST",
        default="127.0.0.1",
    ),
    Definition(
        ("--web-port",),
        "serve the dashboard on PORT; 0 is any free one",
        field="web_port",
        metavar="PORT",
        variable="PORT",
        read=_port,
        default="8080",
    ),
    Definition(
        ("--no-web",),
        "serve no dashboard",
        field="web_enabled",
        kind=Kind.SWITCH,
        read=_boolean,
        implies="no",
        default="yes",
    ),
    Definition(
        ("--url-prefix",),
        "serve the dashboard under PATH, such as /queue, for a proxy that passes paths on as they are",
        field="url_prefix",
        metavar="PATH",
        variable="GREENSTALK_URL_PREFIX",
        read=_path_prefix,
        default="",
    ),
    Definition(
        ("--trusted-proxies",),
        "believe the X-Forwarded- headers (-For, -Proto, -Host, -Prefix) of these addresses and networks",
        field="trusted_proxies",
        metavar="LIST",
        variable="GREENSTALK_TRUSTED_PROXIES",
        read=_networks,
        default="",
    ),
    Definition(
        ("--read-only",),
        "let nobody change anything on the dashboard",
        field="read_only",
        kind=Kind.SWITCH,
        variable="GREENSTALK_READ_ONLY",
        read=_boolean,
        implies="yes",
        default="no",
    ),
    Definition(
        ("--hide-bodies",),
        "show nobody on the dashboard what is in jobs",
        field="hide_bodies",
        kind=Kind.SWITCH,
        variable="GREENSTALK_HIDE_BODIES",
        read=_boolean,
        implies="yes",
        default="no",
    ),
    Definition(
        (),
        "name that the dashboard asks for besides the admins' password; without it any will do",
        field="web_user",
        variable="GREENSTALK_WEB_USER",
    ),
    Definition(
        (),
        "password that the dashboard asks for; who gives it is an admin, and may change things",
        field="web_password",
        variable="GREENSTALK_WEB_PASSWORD",
    ),
    Definition(
        (),
        "file that has that password as its first line, instead",
        field="web_password_file",
        variable="GREENSTALK_WEB_PASSWORD_FILE",
    ),
    Definition(
        (),
        "password of viewers, who may look and change nothing; with this one alone, nobody can",
        field="viewer_password",
        variable="GREENSTALK_WEB_VIEWER_PASSWORD",
    ),
    Definition(
        (),
        "bearer token that /metrics asks for, and that opens nothing else",
        field="metrics_token",
        variable="GREENSTALK_METRICS_TOKEN",
    ),
    Definition(
        (),
        "1 to serve the dashboard without a password on any address",
        field="allow_insecure",
        variable="GREENSTALK_ALLOW_INSECURE",
        read=_boolean,
        default="0",
    ),
)

HEADLINE: Final = f"""\
Use: {PROGRAM} [OPTIONS]
     {PROGRAM} journal check DIR

A job queue that speaks the beanstalk protocol, in beanstalkd's place: same port, same flags, same replies,
and a dashboard from the same process.

`journal check` tells what the binlog directory DIR holds, and what in it is damaged. It writes nothing,
and a server may be running there.
"""

FOOTER: Final = """\
Signals: SIGTERM and SIGINT stop in order; SIGUSR1 drains: put answers DRAINING, the rest goes on.
Started by a systemd socket unit, it serves the socket handed to it, and -l and -p are ignored.
Exit codes: 0 stopped or answered; 1 journal check found damage; 5 usage; 10 binlog directory missing,
locked, unreadable or refused; 33 no such user; 34 not allowed to become the user; 111 cannot listen.

Examples:
  greenstalk-server                            beanstalk on 0.0.0.0:11300, dashboard on 127.0.0.1:8080
  greenstalk-server -b /var/lib/greenstalk     the same, and jobs survive a restart
  greenstalk-server -l 127.0.0.1 -p 11301 --no-web
  greenstalk-server -l unix:/run/greenstalk.sock -u nobody
"""

_BY_FLAG: Final = {flag: row for row in DEFINITIONS for flag in row.flags}


class _Parser:
    """One command line on its way to Options."""

    __slots__ = ("_given", "_rest", "_values", "_warnings")

    def __init__(self, argv: Sequence[str]) -> None:
        self._rest: Iterator[str] = iter(argv)
        self._values: dict[str, Any] = _defaults()
        self._given: set[str] = set()
        self._warnings: list[str] = []

    def read_arguments(self) -> Information | None:
        """Apply every flag; return what the first -h or -v asks for, leaving the rest unread."""
        for argument in self._rest:
            if argument.startswith("--"):
                information = self._read_long(argument)
            elif argument.startswith("-") and argument != "-":
                information = self._read_bundle(argument)
            else:
                raise UsageError(f"unknown argument {_shown(argument)}: only flags are allowed")
            if information is not None:
                return information
        return None

    def read_environment(self, environ: Mapping[str, str]) -> None:
        """Apply every variable whose field no flag has set; an empty one counts as absent."""
        for row in DEFINITIONS:
            if row.variable and row.field not in self._given and (text := environ.get(row.variable)):
                self._set(row, row.variable, text)

    def options(self) -> Options:
        """Return what was read, after the checks that concern several fields."""
        self._clamp_job_size()
        self._warn_of_viewers_alone()
        options = Options(**self._values, given=frozenset(self._given), warnings=tuple(self._warnings))
        _refuse_open_dashboard(options)
        _refuse_contradictions(options)
        return options

    def _read_long(self, argument: str) -> Information | None:
        flag, equals, text = argument.partition("=")
        row = _find(flag)
        if row.kind is Kind.VALUE:
            return self._apply(row, flag, text if equals else self._next(row, flag))
        if equals:
            raise UsageError(f"{flag} takes no value, not {_shown(text)}")
        return self._apply(row, flag, row.implies)

    def _read_bundle(self, argument: str) -> Information | None:
        """Apply the letters of `-VVp11300`, of which the first that takes a value takes all that follows."""
        for at, letter in enumerate(argument[1:], start=2):
            flag = f"-{letter}"
            row = _find(flag, argument)
            if row.kind is Kind.VALUE:
                return self._apply(row, flag, argument[at:] or self._next(row, flag))
            if (information := self._apply(row, flag, row.implies)) is not None:
                return information
        return None

    def _next(self, row: Definition, flag: str) -> str:
        try:
            return next(self._rest)
        except StopIteration:
            raise UsageError(f"{flag} needs a value: {flag} {row.metavar} ({row.help})") from None

    def _apply(self, row: Definition, flag: str, text: str) -> Information | None:
        match row.kind:
            case Kind.VALUE | Kind.SWITCH:
                self._set(row, flag, text)
            case Kind.COUNT:
                self._values[row.field] += 1
                self._given.add(row.field)
            case Kind.REMOVED:
                self._warnings.append(f"the {flag} flag was removed: the binlog is always compacted")
            case Kind.VERSION:
                return Information(f"{PROGRAM} {__version__}\n")
            case Kind.HELP:
                return Information(usage())
        return None

    def _set(self, row: Definition, name: str, text: str) -> None:
        try:
            self._values[row.field] = row.read(text)
        except ValueError as allowed:
            raise UsageError(f"{name} {_shown(text)}: must be {allowed}", row.exit_code) from None
        self._given.add(row.field)

    def _clamp_job_size(self) -> None:
        if self._values["max_job_size"] > LARGEST_JOB_SIZE:
            self._values["max_job_size"] = LARGEST_JOB_SIZE
            self._warnings.append(f"the maximum job size (-z) was cut to {LARGEST_JOB_SIZE}, the largest allowed")

    def _warn_of_viewers_alone(self) -> None:
        values = self._values
        if values["viewer_password"] and not (values["web_password"] or values["web_password_file"]):
            self._warnings.append(
                "GREENSTALK_WEB_VIEWER_PASSWORD is set without GREENSTALK_WEB_PASSWORD:"
                " nobody can change anything on the dashboard"
            )


def _defaults() -> dict[str, Any]:
    values: dict[str, Any] = {row.field: None for row in DEFINITIONS if row.field}
    values.update({row.field: row.read(row.default) for row in DEFINITIONS if row.default is not None})
    return values


def _find(flag: str, argument: str = "") -> Definition:
    """Return the definition of *flag*, found in the bundle *argument* if any; raise UsageError if there is none."""
    if (row := _BY_FLAG.get(flag)) is not None:
        return row
    where = f" in {_shown(argument)}" if len(argument) > 2 else ""
    nearest = difflib.get_close_matches(flag, _BY_FLAG, n=1) if flag.startswith("--") else []
    hint = f"did you mean {nearest[0]}?" if nearest else f"{PROGRAM} -h lists those allowed"
    raise UsageError(f"unknown flag {_shown(flag)}{where}: {hint}")


def _refuse_open_dashboard(options: Options) -> None:
    """Raise UsageError if anyone on the network could use the dashboard, and nobody has said so."""
    has_password = options.web_password or options.web_password_file or options.viewer_password
    if not options.web_enabled or has_password or options.allow_insecure:
        return
    if not _is_loopback(options.web_host):
        raise UsageError(
            f"--web-host {_shown(options.web_host)}: must be a loopback address while the dashboard has no"
            " password; set GREENSTALK_WEB_PASSWORD, or GREENSTALK_ALLOW_INSECURE=1 to open it to everyone"
        )


def _refuse_contradictions(options: Options) -> None:
    """Raise UsageError if what is said of passwords cannot all be meant."""
    if options.web_password and options.web_password_file:
        raise UsageError("GREENSTALK_WEB_PASSWORD_FILE: must not be set beside GREENSTALK_WEB_PASSWORD")
    if options.web_user and not (options.web_password or options.web_password_file):
        raise UsageError("GREENSTALK_WEB_USER: must not be set without GREENSTALK_WEB_PASSWORD, which goes with it")
    if options.web_user and ":" in options.web_user:
        raise UsageError("GREENSTALK_WEB_USER: must not contain a colon, since no browser can send that")
    if options.metrics_token and not re.fullmatch(r"[!-~]+", options.metrics_token):
        raise UsageError("GREENSTALK_METRICS_TOKEN: must be visible ASCII characters, since no header can carry others")
    refuse_equal_passwords(options.web_password, options.viewer_password)


def refuse_equal_passwords(password: str | None, viewer_password: str | None) -> None:
    """Raise UsageError if nobody could tell an admin from a viewer."""
    if password and password == viewer_password:
        raise UsageError("GREENSTALK_WEB_VIEWER_PASSWORD: must differ from the admins' password")


def _is_loopback(host: str) -> bool:
    """Tell whether *host* is sure to be this machine alone; a name other than localhost is not."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _shown(text: str) -> str:
    """Quote *text* for a message where that is needed to see its ends, and cut it if it is long."""
    if len(text) > LONGEST_VALUE_SHOWN:
        text = text[:LONGEST_VALUE_SHOWN] + "…"
    return text if text.isprintable() and text and " " not in text else repr(text)


def _is_short(row: Definition) -> bool:
    return any(not flag.startswith("--") for flag in row.flags)


def _flag_entry(row: Definition) -> str:
    name = " ".join(filter(None, (", ".join(row.flags), row.metavar)))
    default = f" (default {row.default})" if row.metavar and row.default else ""
    return _entry(name, row.help + default, 22)


def _variable_entry(row: Definition) -> str:
    return _entry(row.variable or "", f"as {row.flags[0]}" if row.flags else row.help, 30)


def _entry(name: str, text: str, width: int) -> str:
    """Return one entry of the help: *name* in a column *width* wide, *text* folded beside it."""
    lead = f"  {name:<{width}} "
    return textwrap.fill(text, 100, initial_indent=lead, subsequent_indent=" " * len(lead)) + "\n"
