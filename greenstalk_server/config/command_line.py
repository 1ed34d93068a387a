"""The command line: arguments and an environment in, what is to be done out.

A flag beats the environment, which beats the configuration file, which beats the default; among flags the last one
wins. Short flags are beanstalkd's, with its grammar: `-VV`, `-p11300`, `-Vp 11300`; a value may begin with a dash.

The first argument may be a word instead: `config` or `journal`.
"""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from greenstalk_server import __version__
from greenstalk_server.config.config_file import read_config
from greenstalk_server.config.options import (
    DEFINITIONS,
    LARGEST_JOB_SIZE,
    PROGRAM,
    Definition,
    Kind,
    Options,
    UsageError,
    defaults,
    problems,
    shown,
    without_password,
)

CONFIG: Final = "config"
JOURNAL: Final = "journal"
HANDOVER: Final = "handover"

DATABASE_URL: Final = "DATABASE_URL"
"""A variable that is not ours alone."""


@dataclass(frozen=True, slots=True)
class Information:
    """What `-h` or `-v` asked for: text to print instead of serving."""

    text: str


@dataclass(frozen=True, slots=True)
class ShowConfig:
    """What `config` asks for: *options*, and where each is from, instead of serving."""

    options: Options
    is_json: bool


@dataclass(frozen=True, slots=True)
class CheckConfig:
    """The request of `config --check`: test whether a start with *options* would succeed.

    problems    what is wrong with the options themselves, in the order in which a start would find it.
    options     None if they could not be read, so that nothing else can be tested.
    """

    options: Options | None
    problems: tuple[UsageError, ...]


@dataclass(frozen=True, slots=True)
class Handover:
    """What `handover` asks for: that the active server of the journal in *options* gives its lead to a standby."""

    options: Options


@dataclass(frozen=True, slots=True)
class JournalCheck:
    """What `journal check DIR` asks for: a look at *directory* instead of serving."""

    directory: str


@dataclass(frozen=True, slots=True)
class JournalExport:
    """What `journal export` asks for: what *directory*, or a database, holds, into the file *target* or to stdout.

    is_quiet    `-q`: report only damage.
    """

    directory: str
    target: str | None
    is_quiet: bool = False


@dataclass(frozen=True, slots=True)
class JournalImport:
    """What `journal import` asks for: a journal in *directory*, or a database, from the file *source* or stdin."""

    directory: str
    source: str | None


Command: TypeAlias = (
    Options | Information | ShowConfig | CheckConfig | Handover | JournalCheck | JournalExport | JournalImport
)


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Command:
    """Read a command line, without the program's name, and an environment; raise UsageError for what is wrong.

    Reading is from left to right, as beanstalkd does it: `-v` after a bad flag is never reached.
    """
    match argv[:1]:
        case [word] if word == JOURNAL:
            return _parse_journal(argv[1:])
        case [word] if word == CONFIG and argv[1:2] == ["--check"]:
            return _parse_check(argv[2:], environ)
        case [word] if word == CONFIG:
            is_json = argv[1:2] == ["--json"]
            parsed = _parse_options(argv[2:] if is_json else argv[1:], environ)
            return ShowConfig(parsed, is_json) if isinstance(parsed, Options) else parsed
        case [word] if word == HANDOVER:
            parsed = _parse_options(argv[1:], environ)
            if isinstance(parsed, Options) and parsed.journal is None:
                raise UsageError(f"{HANDOVER}: --journal must be set, to say which servers are meant")
            return Handover(parsed) if isinstance(parsed, Options) else parsed
    return _parse_options(argv, environ)


def _parse_check(argv: Sequence[str], environ: Mapping[str, str]) -> CheckConfig | Information:
    """Read what follows `config --check`, and collect what is wrong with it instead of raising the first error."""
    found: list[UsageError] = []
    parser = _Parser(argv, found.append)
    if (information := parser.read_arguments()) is not None:
        return information
    parser.read_environment(environ)
    try:
        parser.read_file()
    except UsageError as error:
        found.append(error)
    if found:
        return CheckConfig(None, tuple(found))
    options = parser.options()
    return CheckConfig(options, tuple(found))


def _raise(error: UsageError) -> None:
    raise error


def _parse_options(argv: Sequence[str], environ: Mapping[str, str]) -> Options | Information:
    parser = _Parser(argv, _raise)
    if (information := parser.read_arguments()) is not None:
        return information
    parser.read_environment(environ)
    parser.read_file()
    return parser.options()


def _parse_journal(argv: Sequence[str]) -> Command:
    """Read what follows `journal`: a verb, a directory, and perhaps a file."""
    arguments = [argument for argument in argv if argument not in ("-h", "--help")]
    if len(arguments) < len(argv):
        return Information(usage())
    if len(arguments) > 1 and arguments[1] and not arguments[1].startswith("-"):
        match arguments:
            case ["check", directory]:
                return JournalCheck(directory)
            case ["export", directory]:
                return JournalExport(directory, None)
            case ["export", directory, "-q"]:
                return JournalExport(directory, None, is_quiet=True)
            case ["export", directory, "-o", target] if target:
                return JournalExport(directory, target)
            case ["export", directory, "-o", target, "-q"] | ["export", directory, "-q", "-o", target] if target:
                return JournalExport(directory, target, is_quiet=True)
            case ["import", directory]:
                return JournalImport(directory, None)
            case ["import", directory, source] if source and not source.startswith("-"):
                return JournalImport(directory, source)
    given = " ".join(map(shown, (JOURNAL, *arguments)))
    allowed = f"`{JOURNAL} check DIR`, `{JOURNAL} export DIR [-o FILE] [-q]` or `{JOURNAL} import DIR [FILE]`"
    raise UsageError(f"{given}: must be {allowed}")


def usage() -> str:
    """Return the text of `--help`."""
    short = [_flag_entry(row) for row in DEFINITIONS if _is_short(row)]
    long = [_flag_entry(row) for row in DEFINITIONS if row.flags and not _is_short(row)]
    other = [_other_entry(row) for row in DEFINITIONS if row.variable or row.key]
    return "\n".join(
        (
            HEADLINE,
            UNITS,
            "Options, as beanstalkd has them:\n" + "".join(short),
            "Options of our own:\n" + "".join(long),
            "Environment, and keys of the file; a flag beats both, and the environment the file:\n" + "".join(other),
            FOOTER,
        )
    )


HEADLINE: Final = f"""\
Usage: {PROGRAM} [OPTIONS]
       {PROGRAM} config [--json | --check] [OPTIONS]
       {PROGRAM} handover [OPTIONS]
       {PROGRAM} journal check DIR
       {PROGRAM} journal export DIR|URL [-o FILE] [-q]
       {PROGRAM} journal import DIR|URL [FILE]

A job queue that speaks the beanstalk protocol, in beanstalkd's place: same port, same flags, same replies,
and a dashboard from the same process.

`config` prints the value of each option with these flags, this environment and this file, and where each
value was set. `config --check` tests whether a server could start with them, as `nginx -t` does:
addresses, certificates, password file, access rules, user and journal directory. It prints every problem,
exits with the code of the start that would fail, and changes nothing; a server may be running there.

`handover` has the active one of several servers with the same --journal give its lead to a standby, for an
upgrade; clients connect once again.

`journal check` tells what the journal directory DIR holds, and what in it is damaged; `journal export`
writes it out as JSON lines; with -q it reports only damage. Both change nothing, and a server may be
running there. `journal import` makes a journal of such lines in DIR, which must be empty. URL is that of a
--journal; GREENSTALK_JOURNAL_NAME is the name of the journal there.
"""

UNITS: Final = """\
BYTES may have a unit, of which k is 1024: 64k, 10MB, 2GiB. So may MS and SECONDS: 50ms, 90s, 5m, 1h30m.
"""

FOOTER: Final = """\
Signals: SIGTERM and SIGINT stop in order; SIGUSR1 drains: put answers DRAINING, the rest goes on; SIGUSR2
logs from debug on, and as before when it comes again; SIGHUP reads the certificate anew, and stops it if
its terminal closes.
Started by a systemd socket unit, it serves the sockets handed to it, and -l and -p are ignored.
Exit codes: 0 stopped or answered; 1 what journal was to check, export or import is damaged; 5 usage;
10 journal directory or database missing, locked, unreadable or refused, or no standby to hand over to;
33 no such user; 34 not allowed to become the user; 111 cannot listen.

Examples:
  greenstalk-server                            beanstalk on 0.0.0.0:11300, dashboard on 127.0.0.1:8080
  greenstalk-server -b /var/lib/greenstalk     the same, and jobs survive a restart
  greenstalk-server -l 127.0.0.1 -p 11301 --no-web
  greenstalk-server -l unix:/run/greenstalk.sock -u nobody
  greenstalk-server -l 0.0.0.0 -l plain:127.0.0.1:11301 --tls-cert server.pem --tls-key server.key
"""

_BY_FLAG: Final = {flag: row for row in DEFINITIONS for flag in row.flags}


class _Parser:
    """One command line on its way to Options."""

    __slots__ = ("_origins", "_refuse", "_rest", "_values", "_warnings")

    def __init__(self, argv: Sequence[str], refuse: Callable[[UsageError], None]) -> None:
        """*refuse* is called with each error: it raises the error, or keeps it, and reading continues."""
        self._refuse: Callable[[UsageError], None] = refuse
        self._rest: Iterator[str] = iter(argv)
        self._values: dict[str, Any] = defaults()
        self._origins: dict[str, str] = {}
        self._warnings: list[str] = []

    def read_arguments(self) -> Information | None:
        """Apply every flag; return what the first -h or -v asks for, leaving the rest unread."""
        for argument in self._rest:
            try:
                information = self._read_argument(argument)
            except UsageError as error:
                self._refuse(error)
                continue
            if information is not None:
                return information
        return None

    def _read_argument(self, argument: str) -> Information | None:
        if argument.startswith("--"):
            return self._read_long(argument)
        if argument.startswith("-") and argument != "-":
            return self._read_bundle(argument)
        raise UsageError(f"unknown argument {shown(argument)}: only flags are allowed")

    def read_environment(self, environ: Mapping[str, str]) -> None:
        """Apply every variable whose field no flag has set; an empty one counts as absent."""
        for row in DEFINITIONS:
            if row.variable and row.field not in self._origins and (text := environ.get(row.variable)):
                try:
                    self._set(row, row.variable, text)
                except UsageError as error:
                    self._refuse(error)

    def read_file(self) -> None:
        """Apply every key of the configuration file, if there is one, whose field nobody else has set."""
        if (path := self._values["config_file"]) is None:
            return
        settings, warnings = read_config(path, self._origins["config_file"], self._refuse)
        self._warnings += warnings
        for setting in settings:
            if self._origins.setdefault(setting.row.field, setting.where) is setting.where:
                self._values[setting.row.field] = setting.value

    def options(self) -> Options:
        """Return what was read, after the checks that concern several fields."""
        if self._origins.get("journal") == DATABASE_URL and self._values["binlog_dir"] is not None:
            self._values["journal"] = None  # it may be there for another program
            del self._origins["journal"]
            self._warnings.append(f"{DATABASE_URL} is not used: the journal is in {self._values['binlog_dir']}")
        options = Options(**self._values, origins=self._origins, warnings=())
        for problem in problems(options):
            self._refuse(problem)
        warnings = (*self._warnings, *_warnings(options))
        largest = min(options.max_job_size, LARGEST_JOB_SIZE)
        return replace(options, max_job_size=largest, warnings=warnings)

    def _read_long(self, argument: str) -> Information | None:
        flag, equals, text = argument.partition("=")
        row = _find(flag)
        if row.kind is Kind.VALUE:
            return self._apply(row, flag, text if equals else self._next(row, flag))
        if equals:
            raise UsageError(f"{flag} takes no value, not {shown(text)}")
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
            case Kind.REMOVED:
                self._warnings.append(f"the {flag} flag was removed: the journal is always compacted")
            case Kind.VERSION:
                return Information(f"{PROGRAM} {__version__}\n")
            case Kind.HELP:
                return Information(usage())
        return None

    def _set(self, row: Definition, name: str, text: str) -> None:
        try:
            value = row.type.read(text)
        except ValueError as allowed:
            raise UsageError(f"{name} {shown(text)}: must be {allowed}", row.exit_code) from None
        is_more = row.adds_up and row.field in self._origins
        self._values[row.field] = self._values[row.field] + value if is_more else value
        self._origins[row.field] = name


def _warnings(options: Options) -> Iterator[str]:
    """What of *options* was understood, but not as the operator may think."""
    if options.max_job_size > LARGEST_JOB_SIZE:
        name = options.named("max_job_size")
        yield f"the maximum job size ({name}) was cut to {LARGEST_JOB_SIZE}, the largest allowed"
    if options.journal is not None and "sync_interval_ns" in options.origins and options.sync_interval_ns != 0:
        name = options.named("sync_interval_ns")
        yield f"{name} is ignored: a journal in PostgreSQL is committed before anything is acknowledged"
    url, where = options.journal or "", options.origins.get("journal", "")
    if where.startswith("-") and without_password(url) != url:
        advice = f"set {DATABASE_URL}, or journal in the configuration file, instead"
        yield f"{where}: everybody on this machine can read the password in it; {advice}"
    if options.viewer_password and not (options.web_password or options.web_password_file):
        name, other = options.named("viewer_password"), options.named("web_password")
        yield f"{name} is set without {other}: nobody can change anything on the dashboard"


def _find(flag: str, argument: str = "") -> Definition:
    """Return the definition of *flag*, found in the bundle *argument* if any; raise UsageError if there is none."""
    if (row := _BY_FLAG.get(flag)) is not None:
        return row
    where = f" in {shown(argument)}" if len(argument) > 2 else ""
    nearest = difflib.get_close_matches(flag, _BY_FLAG, n=1) if flag.startswith("--") else []
    hint = f"did you mean {nearest[0]}?" if nearest else f"{PROGRAM} -h lists those allowed"
    raise UsageError(f"unknown flag {shown(flag)}{where}: {hint}")


def _is_short(row: Definition) -> bool:
    return any(not flag.startswith("--") for flag in row.flags)


def _flag_entry(row: Definition) -> str:
    name = " ".join(filter(None, (", ".join(row.flags), row.metavar)))
    default = f" (default: {row.default})" if row.metavar and row.default else ""
    return _entry(name, row.help + default, 22)


def _other_entry(row: Definition) -> str:
    text = f"as {row.flags[0]}" if row.flags else row.help
    text += f" if it is {row.implies}" if row.kind is Kind.SWITCH else ""
    return _entry(f"{row.variable:30} {row.key}", text, 51)


def _entry(name: str, text: str, width: int) -> str:
    """Return one entry of the help: *name* in a column *width* wide, *text* folded beside it, or below a longer one."""
    indent = " " * (width + 3)
    lead = f"  {name:<{width}} " if len(name) <= width else indent
    above = "" if len(name) <= width else f"  {name}\n"
    return above + textwrap.fill(text, 107, initial_indent=lead, subsequent_indent=indent) + "\n"
