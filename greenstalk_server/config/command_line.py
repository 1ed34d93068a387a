"""The command line: converts arguments and an environment into a Command.

A flag takes precedence over the environment, which takes precedence over the configuration file. If a flag is repeated,
the last one wins, except that the addresses of all -l flags are used. Short flags and their grammar are beanstalkd's:
`-VV`, `-p11300`, `-Vp 11300`. A value may begin with a dash.

Instead of a flag, the first argument may be a command: `cluster`, `config`, `handover`, `hash-password` or `journal`.
"""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from greenstalk_server.config.config_file import read_config
from greenstalk_server.config.definitions import DEFINITIONS, LARGEST_JOB_SIZE, Definition, Kind, defaults
from greenstalk_server.config.options import PROGRAM, Options, UsageError, secret_variables
from greenstalk_server.config.text import is_database_url, quote_value
from greenstalk_server.config.validation import DATABASE_URL, problems, warnings
from greenstalk_server.core.jobs.id_sequence import MAX_SHARDS
from greenstalk_server.core.tube_shards import Pin

CONFIG: Final = "config"
CLUSTER: Final = "cluster"
JOURNAL: Final = "journal"
HANDOVER: Final = "handover"
HASH_PASSWORD: Final = "hash-password"  # noqa: S105  the name of the command


@dataclass(frozen=True, slots=True)
class Information:
    """`-h`: print *text*."""

    text: str


@dataclass(frozen=True, slots=True)
class ShowVersion:
    """`-v`: print the version of the server and of the journal's format."""


@dataclass(frozen=True, slots=True)
class ShowConfig:
    """`config`: print *options* and where each of them was set."""

    options: Options
    is_json: bool


@dataclass(frozen=True, slots=True)
class CheckConfig:
    """`config --check`: test whether a server could start with *options*.

    problems    errors in the options themselves, in the order in which the server would find them at startup.
    options     None if the options could not be read, so that nothing else can be tested.
    """

    options: Options | None
    problems: tuple[UsageError, ...]


@dataclass(frozen=True, slots=True)
class Handover:
    """`handover`: make the active server of the journal in *options* hand over to a standby."""

    options: Options


@dataclass(frozen=True, slots=True)
class ShowCluster:
    """`cluster`: print the shards and processes of the queue in *options*."""

    options: Options


@dataclass(frozen=True, slots=True)
class MoveShard:
    """`cluster move SHARD [PROCESS]`: hand *shard* over to *process*, or to a follower if that is empty."""

    options: Options
    shard: int
    process: str


@dataclass(frozen=True, slots=True)
class HashPassword:
    """`hash-password`: print the hash of a password for `[users.NAME]`."""


@dataclass(frozen=True, slots=True)
class JournalCheck:
    """`journal check DIR`: report the contents of the journal in *directory*, and any damage."""

    directory: str


@dataclass(frozen=True, slots=True)
class JournalExport:
    """`journal export`: write the contents of a journal to a file.

    directory   directory of the journal, or URL of its database.
    target      file to be written, or with *keep* the directory of a dated file; None: stdout.
    is_quiet    `-q`: report damage only.
    keep        number of dated files to keep; None: *target* is a file.
    """

    directory: str
    target: str | None
    is_quiet: bool = False
    keep: int | None = None


@dataclass(frozen=True, slots=True)
class JournalImport:
    """`journal import`: create a journal from an exported file.

    directory   directory of the new journal, or URL of its database.
    source      file to be read; None: stdin.
    """

    directory: str
    source: str | None


@dataclass(frozen=True, slots=True)
class JournalReshard:
    """`journal reshard`: divide the jobs in *directory*, which may be a database URL, among *shards* shards."""

    directory: str
    shards: int
    pins: tuple[Pin, ...] = ()


Answer: TypeAlias = Information | ShowVersion
"""The answer to `-h` or `-v`."""

Command: TypeAlias = (
    Options
    | Answer
    | ShowConfig
    | CheckConfig
    | Handover
    | ShowCluster
    | MoveShard
    | HashPassword
    | JournalCheck
    | JournalExport
    | JournalImport
    | JournalReshard
)


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Command:
    """Parse *argv*, without the program's name, and *environ*; raise UsageError at the first error.

    `config --check` does not raise; its CheckConfig has all errors.

    Arguments are read from left to right, as in beanstalkd: `-v` after a bad flag is not reached.
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
        case [word] if word == HASH_PASSWORD:
            if argv[1:] in (["-h"], ["--help"]):
                return Information(usage())
            if argv[1:]:
                raise UsageError(f"{HASH_PASSWORD}: takes no arguments, and reads the password from stdin")
            return HashPassword()
        case [word] if word == CLUSTER:
            return _parse_cluster(argv[1:], environ)
        case [word] if word == HANDOVER:
            parsed = _parse_options(argv[1:], environ)
            if isinstance(parsed, Options) and parsed.journal is None:
                raise UsageError(f"{HANDOVER}: set --journal to the database that the servers share")
            return Handover(parsed) if isinstance(parsed, Options) else parsed
    return _parse_options(argv, environ)


def usage() -> str:
    """Return the text of `--help`."""
    short = [_flag_entry(row) for row in DEFINITIONS if _is_short(row)]
    long = [_flag_entry(row) for row in DEFINITIONS if row.flags and not _is_short(row)]
    other = [_other_entry(row) for row in DEFINITIONS if row.variable or row.key]
    return "\n".join(
        (
            HEADLINE,
            UNITS,
            "Options of beanstalkd:\n" + "".join(short),
            "Other options:\n" + "".join(long),
            "Environment variables and configuration file keys; flags override variables, which override the file:\n"
            + "".join(other),
            SIGNALS + EXIT_CODES,
            EXAMPLES,
        )
    )


def _parse_check(argv: Sequence[str], environ: Mapping[str, str]) -> CheckConfig | Answer:
    """Parse the arguments of `config --check`, and collect all errors instead of raising the first."""
    errors: list[UsageError] = []
    parser = _Parser(argv, errors.append)
    try:
        if (information := parser.read(environ)) is not None:
            return information
    except UsageError as error:
        errors.append(error)
    options = None if errors else parser.options()
    return CheckConfig(options, tuple(errors))


def _raise(error: UsageError) -> None:
    raise error


def _parse_options(argv: Sequence[str], environ: Mapping[str, str]) -> Options | Answer:
    parser = _Parser(argv, _raise)
    return parser.read(environ) or parser.options()


def _parse_cluster(argv: Sequence[str], environ: Mapping[str, str]) -> Command:
    """Parse the arguments of `cluster`: nothing or `move SHARD [PROCESS]`, and options."""
    count = next((number for number, word in enumerate(argv) if word.startswith("-")), len(argv))
    words, flags = argv[:count], argv[count:]
    parsed = _parse_options(flags, environ)
    if not isinstance(parsed, Options):
        return parsed
    if parsed.journal is None:
        raise UsageError(f"{CLUSTER}: set --journal to the database that the servers share")
    match words:
        case []:
            return ShowCluster(parsed)
        case ["move", shard, *process] if re.fullmatch("0|[1-9][0-9]{0,3}", shard) and len(process) < 2:
            return MoveShard(parsed, int(shard), "".join(process))
    raise UsageError(f"{CLUSTER}: must be `{CLUSTER} [OPTIONS]` or `{CLUSTER} move SHARD [PROCESS] [OPTIONS]`")


def _parse_journal(argv: Sequence[str]) -> Command:
    """Parse the arguments of `journal`: a verb, a directory, and options of the verb."""
    arguments = [argument for argument in argv if argument not in ("-h", "--help")]
    if len(arguments) < len(argv):
        return Information(usage())
    if len(arguments) > 1 and arguments[1] and not arguments[1].startswith("-"):
        match arguments:
            case ["check", directory]:
                return JournalCheck(directory)
            case ["export", directory, *rest] if (export := _parse_export(directory, rest)) is not None:
                return export
            case ["reshard", directory, "--processes" | "--shards" as option, count, *rest] if (
                is_database_url(directory) == (option == "--shards")
                and re.fullmatch("[1-9][0-9]{0,3}", count)
                and int(count) <= MAX_SHARDS
                and set(rest[::2]) <= {"--pin"}
            ):
                return _parse_reshard(directory, int(count), rest)
            case ["import", directory]:
                return JournalImport(directory, None)
            case ["import", directory, source] if source and not source.startswith("-"):
                return JournalImport(directory, source)
    command = " ".join(map(quote_value, (JOURNAL, *arguments)))
    allowed = (
        f"`{JOURNAL} check DIR`, `{JOURNAL} export DIR [-o FILE] [--keep N] [-q]`, `{JOURNAL} import DIR [FILE]`"
        f" or `{JOURNAL} reshard DIR --processes N [--pin PATTERN=SHARD]` (of a database URL: --shards N), with N from"
        f" 1 to {MAX_SHARDS}"
    )
    raise UsageError(f"{command}: must be {allowed}")


def _parse_reshard(directory: str, shards: int, options: Sequence[str]) -> JournalReshard:
    """Parse the pins of `journal reshard`; raise UsageError."""
    parsed = _parse_options(["--processes", str(shards), *options], {})
    assert isinstance(parsed, Options)
    return JournalReshard(directory, shards, parsed.pins)


def _parse_export(directory: str, options: Sequence[str]) -> JournalExport | None:
    """Parse the options of `journal export`; return None if they are invalid."""
    given: dict[str, str] = {}
    words = iter(options)
    for word in words:
        if word not in ("-o", "-q", "--keep") or word in given:
            return None
        given[word] = "" if word == "-q" else next(words, "")
    target, keep = given.get("-o"), given.get("--keep")
    if target == "" or (keep is not None and (target is None or not re.fullmatch("[1-9][0-9]{0,4}", keep))):
        return None
    return JournalExport(directory, target, "-q" in given, None if keep is None else int(keep))


HEADLINE: Final = f"""\
Usage: {PROGRAM} [OPTIONS]
       {PROGRAM} config [--json | --check] [OPTIONS]
       {PROGRAM} handover [OPTIONS]
       {PROGRAM} cluster [OPTIONS]
       {PROGRAM} cluster move SHARD [PROCESS] [OPTIONS]
       {PROGRAM} hash-password
       {PROGRAM} journal check DIR
       {PROGRAM} journal export DIR|URL [-o FILE] [-q]
       {PROGRAM} journal export DIR|URL -o BACKUPS --keep N [-q]
       {PROGRAM} journal import DIR|URL [FILE]
       {PROGRAM} journal reshard DIR --processes N [--pin PATTERN=SHARD]
       {PROGRAM} journal reshard URL --shards N [--pin PATTERN=SHARD]

A job queue that speaks the beanstalk protocol, as a replacement for beanstalkd: same port, same flags, same
replies, and a dashboard in the same process.

`config` prints each option's value, as a server with the same OPTIONS, environment and configuration file
would use it, and where the value was set. `config --check` tests whether that server could start, as
`nginx -t` does: addresses, certificates, password file, access rules, user and journal directory. It
prints every problem, and exits with the code with which the server would exit. It changes nothing; a server
may be running.

`handover` makes the active server of the cluster hand over to a standby, for example before an upgrade;
--journal names the database that the servers share. Clients have to reconnect.

`cluster` prints which server leads each shard of a queue (--shards), and which servers follow. `cluster
move` hands the shard SHARD over to the server PROCESS, or to one that follows it.

`hash-password` reads a password from stdin, and prints its hash for a user in the configuration file.

`journal check` reports the contents of the journal directory DIR, and any damage. `journal export` writes
the contents as JSON lines; -q reports damage only. Both change nothing; a server may be running. With
--keep, an export is a dated file in the directory BACKUPS, and of such files only the newest N are kept.
`journal import` reads such lines, and creates a journal from them in DIR, which must be empty. URL is a
database URL, as for --journal; GREENSTALK_JOURNAL_NAME names the journal in that database.

`journal reshard` divides the jobs in the directory DIR among N processes (--processes), or brings them
together for one; or the queue in the database URL among N shards (--shards). --pin is as for the server.
No server may run on DIR or the queue. An interrupted run leaves it as it was or complete.
"""

UNITS: Final = """\
BYTES may have a unit, as in 64k, 10MB or 2GiB (k is 1024). So may MS and SECONDS: 50ms, 90s, 5m, 1h30m.
"""

SIGNALS: Final = """\
Signals: SIGTERM and SIGINT stop the server gracefully. SIGUSR1 drains it: put returns DRAINING, other
commands work. SIGUSR2 switches the log to debug, and back. SIGHUP reloads the certificate, and policies,
thresholds, alerts and servers of the configuration file, or stops the server if stdin is a terminal.
A server that is started by a systemd socket unit uses the sockets of the unit, and ignores -l and -p.
"""

EXIT_CODES: Final = """\
Exit codes: 0 stopped, or command succeeded; 1 the journal to check, export or import is damaged; 5 usage;
10 journal directory or database unusable (for example missing, locked, unreadable, written by another
version, or damaged with --strict-recovery), or no standby to hand over to; 33 no such user; 34 no
permission to become the user; 75 internal error in the running server; 111 cannot listen.
"""

EXAMPLES: Final = """\
Examples:
  greenstalk-server                            beanstalk on 0.0.0.0:11300, dashboard on 127.0.0.1:8080
  greenstalk-server -b /var/lib/greenstalk     the same, and jobs survive a restart
  greenstalk-server -l 127.0.0.1 -p 11301 --no-web
  greenstalk-server -l unix:/run/greenstalk.sock -u nobody
  greenstalk-server -l 0.0.0.0 -l plain:127.0.0.1:11301 --tls-cert server.pem --tls-key server.key
"""

VARIABLE_PREFIX: Final = "GREENSTALK_"

OTHER_VARIABLES: Final = ("GREENSTALK_COMPILE", "GREENSTALK_PORTABLE", "GREENSTALK_PURE")
"""Variables of this project that are not options: see build.py and runtime/system.py."""

_VARIABLES: Final = [row.variable for row in DEFINITIONS if row.variable.startswith(VARIABLE_PREFIX)]

_KUBERNETES: Final = re.compile(
    r"GREENSTALK_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?)"
)
_KUBERNETES_PORT: Final = re.compile(r"GREENSTALK_(\w+_)?PORT")

_BY_FLAG: Final = {flag: row for row in DEFINITIONS for flag in row.flags}


class _Parser:
    """Collects the values of one command line, its environment and its file."""

    __slots__ = ("_origins", "_report", "_rest", "_values", "_warnings")

    def __init__(self, argv: Sequence[str], report: Callable[[UsageError], None]) -> None:
        """*report* is called with each error. It may raise the error; if it returns, parsing continues."""
        self._report: Callable[[UsageError], None] = report
        self._rest: Iterator[str] = iter(argv)
        self._values: dict[str, Any] = defaults()
        self._origins: dict[str, str] = {}
        self._warnings: list[str] = []

    def read(self, environ: Mapping[str, str]) -> Answer | None:
        """Read the arguments, *environ* and the configuration file; return the answer to -h or -v, or None."""
        if (information := self._read_arguments()) is not None:
            return information
        self._read_environment(environ)
        self._read_file()
        self._refuse_unknown_variables(environ)
        return None

    def _read_arguments(self) -> Answer | None:
        """Apply every flag up to the first -h or -v; return the answer to it, or None without them."""
        for argument in self._rest:
            try:
                information = self._read_argument(argument)
            except UsageError as error:
                self._report(error)
                continue
            if information is not None:
                return information
        return None

    def _read_argument(self, argument: str) -> Answer | None:
        if argument.startswith("--"):
            return self._read_long(argument)
        if argument.startswith("-") and argument != "-":
            return self._read_bundle(argument)
        raise UsageError(f"unknown argument {quote_value(argument)}: only flags are allowed")

    def _read_environment(self, environ: Mapping[str, str]) -> None:
        """Apply every variable that is not empty and whose field no flag has set."""
        for row in DEFINITIONS:
            if row.variable and row.field not in self._origins and (text := environ.get(row.variable)):
                try:
                    self._set(row, row.variable, text)
                except UsageError as error:
                    self._report(error)

    def _read_file(self) -> None:
        """Apply every key of the configuration file, if any, whose field no flag or variable has set."""
        if (path := self._values["config_file"]) is None:
            return
        settings, file_warnings = read_config(path, self._origins["config_file"], self._report)
        self._warnings += file_warnings
        for setting in settings:
            if self._origins.setdefault(setting.row.field, setting.where) is setting.where:
                self._values[setting.row.field] = setting.value

    def _refuse_unknown_variables(self, environ: Mapping[str, str]) -> None:
        """Report each variable whose name has our prefix and that nothing reads. Call this after `_read_file`.

        The file may name variables with secrets. An empty variable counts as absent.
        """
        known = {*_VARIABLES, *OTHER_VARIABLES, *secret_variables(self._values["alerts"], self._values["servers"])}
        for name, text in environ.items():
            if name.startswith(VARIABLE_PREFIX) and text and name not in known and not _is_of_kubernetes(name, text):
                self._report(UsageError(f"unknown variable {quote_value(name)}: {_hint(name)}"))

    def options(self) -> Options:
        """Return the options; report contradictions between them, and add warnings."""
        if self._origins.get("journal") == DATABASE_URL and self._values["data_dir"] is not None:
            self._values["journal"] = None  # the variable may be meant for another program
            del self._origins["journal"]
            self._warnings.append(f"{DATABASE_URL} is not used: the journal is in {self._values['data_dir']}")
        options = Options.from_fields(self._values, self._origins)
        for problem in problems(options):
            self._report(problem)
        max_job_size = min(options.max_job_size, LARGEST_JOB_SIZE)
        return replace(options, max_job_size=max_job_size, warnings=(*self._warnings, *warnings(options)))

    def _read_long(self, argument: str) -> Answer | None:
        flag, equals, text = argument.partition("=")
        row = _find(flag)
        if row.kind is Kind.VALUE:
            return self._apply(row, flag, text if equals else self._next(row, flag))
        if equals:
            raise UsageError(f"{flag} takes no value, not {quote_value(text)}")
        return self._apply(row, flag, row.implies)

    def _read_bundle(self, argument: str) -> Answer | None:
        """Apply the letters of `-VVp11300`; the first letter that takes a value takes the rest of the argument."""
        for end, letter in enumerate(argument[1:], start=2):
            flag = f"-{letter}"
            row = _find(flag, argument)
            if row.kind is Kind.VALUE:
                return self._apply(row, flag, argument[end:] or self._next(row, flag))
            if (information := self._apply(row, flag, row.implies)) is not None:
                return information
        return None

    def _next(self, row: Definition, flag: str) -> str:
        try:
            return next(self._rest)
        except StopIteration:
            raise UsageError(f"{flag} needs a value: {flag} {row.metavar} ({row.help})") from None

    def _apply(self, row: Definition, flag: str, text: str) -> Answer | None:
        match row.kind:
            case Kind.VALUE | Kind.SWITCH:
                self._set(row, flag, text)
            case Kind.REMOVED:
                self._warnings.append(f"{flag} has no effect: the journal is always compacted")
            case Kind.VERSION:
                return ShowVersion()
            case Kind.HELP:
                return Information(usage())
        return None

    def _set(self, row: Definition, name: str, text: str) -> None:
        try:
            value = row.type.read(text)
        except ValueError as allowed:
            raise UsageError(f"{name} {quote_value(text)}: must be {allowed}", row.exit_code) from None
        is_added = row.is_cumulative and row.field in self._origins
        self._values[row.field] = self._values[row.field] + value if is_added else value
        self._origins[row.field] = name


def _find(flag: str, argument: str = "") -> Definition:
    """Return the definition of *flag*; raise UsageError if it is unknown.

    *argument* is the bundle that contains *flag*, if any; the message names both.
    """
    if (row := _BY_FLAG.get(flag)) is not None:
        return row
    where = f" in {quote_value(argument)}" if len(argument) > 2 else ""
    nearest = difflib.get_close_matches(flag, _BY_FLAG, n=1) if flag.startswith("--") else []
    hint = f"did you mean {nearest[0]}?" if nearest else f"{PROGRAM} -h lists the flags"
    raise UsageError(f"unknown flag {quote_value(flag)}{where}: {hint}")


def _hint(variable: str) -> str:
    """Return a hint for the unknown *variable*: the most similar known name, if there is one."""
    rest = variable.removeprefix(VARIABLE_PREFIX)
    names = [name.removeprefix(VARIABLE_PREFIX) for name in _VARIABLES]
    nearest = difflib.get_close_matches(rest, names, n=1, cutoff=0.5)
    return f"did you mean {VARIABLE_PREFIX}{nearest[0]}?" if nearest else f"{PROGRAM} -h lists the variables"


def _is_of_kubernetes(name: str, text: str) -> bool:
    """Return whether Kubernetes may set the variable *name* to *text* for a service with a name like `greenstalk`."""
    pattern = _KUBERNETES_PORT if name.endswith("_PORT") and "://" in text else _KUBERNETES
    return pattern.fullmatch(name) is not None


def _is_short(row: Definition) -> bool:
    return any(not flag.startswith("--") for flag in row.flags)


def _flag_entry(row: Definition) -> str:
    name = " ".join(filter(None, (", ".join(row.flags), row.metavar)))
    default = f" (default: {row.default})" if row.metavar and row.default else ""
    return _entry(name, row.help + default, 22)


def _other_entry(row: Definition) -> str:
    text = f"as {row.flags[0]}" if row.flags else row.help
    text = f"{row.implies}: {text}" if row.kind is Kind.SWITCH else text
    return _entry(f"{row.variable:30} {row.key}", text, 51)


def _entry(name: str, text: str, width: int) -> str:
    """Return one entry of the help: *text* wrapped to the right of *name*, or below a name longer than *width*."""
    indent = " " * (width + 3)
    lead = f"  {name:<{width}} " if len(name) <= width else indent
    above = "" if len(name) <= width else f"  {name}\n"
    return above + textwrap.fill(text, 107, initial_indent=lead, subsequent_indent=indent) + "\n"
