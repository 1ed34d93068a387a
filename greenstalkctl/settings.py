"""The global options, accepted before and after the name of a command, and the connections that they configure."""

from __future__ import annotations

import os
import re
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from greenstalkctl import named_servers, tls, units
from greenstalkctl.address import Address, Url, parse, parse_url
from greenstalkctl.api import Api
from greenstalkctl.errors import InvalidUsage
from greenstalkctl.http_client import TOKEN_VARIABLE
from greenstalkctl.named_servers import NamedServer
from greenstalkctl.output import Output
from greenstalkctl.server import Server

T = TypeVar("T")
Queue: TypeAlias = Server | Api
"""A server, reached over the protocol or the API."""

PROGRAM: Final = "greenstalkctl"
SERVER_VARIABLE: Final = "GREENSTALKCTL_SERVER"
API_VARIABLE: Final = "GREENSTALKCTL_API"
TLS_VARIABLE: Final = "GREENSTALKCTL_TLS"
TLS_FILES: Final = {
    "cafile": "Trust the certificate authorities in this PEM file instead of the system's.",
    "cert": "Present this client certificate, a PEM file.",
    "key": "Private key of --cert, if that file does not contain it.",
}
"""Options that name a file; the variable of each is GREENSTALKCTL_ and its name in capital letters."""

DEFAULT_TIMEOUT: Final = 10.0
"""Seconds that a request may take."""

_SET_API: Final = f"set --api or {API_VARIABLE} to the URL of its dashboard, such as http://127.0.0.1:8080"
_TOKEN: Final = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class Connector:
    """A function that connects a new socket, for a worker of `greenstalk_client`."""

    address: Address
    timeout: float
    context: ssl.SSLContext | None

    def __call__(self) -> socket.socket:
        """Return a connected socket; raise OSError."""
        sock = self.address.connect(self.timeout)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self.context is None:
            return sock
        self.context.sslsocket_class = ssl.SSLSocket
        try:
            return self.context.wrap_socket(sock, server_hostname=self.address.host)
        except OSError:
            sock.close()
            raise

    def __str__(self) -> str:
        return str(self.address)


@dataclass(slots=True)
class Settings:
    """The values of the global options parsed so far.

    server, api             address or entry of the server, and URL of its API, if given.
    on_command_line         long names of the options given on the command line, not in the environment.
    uses_tls                whether addresses without tls: or plain: use TLS.
    """

    server: Address | NamedServer | None = None
    api: Url | None = None
    on_command_line: set[str] = field(default_factory=set)
    token: str = field(default_factory=lambda: os.environ.get(TOKEN_VARIABLE, ""), repr=False)
    uses_tls: bool = False
    cafile: str = ""
    cert: str = ""
    key: str = ""
    timeout: float = DEFAULT_TIMEOUT
    is_json: bool = False
    is_quiet: bool = False
    assumes_yes: bool = False
    has_colour: bool = field(default_factory=lambda: not os.environ.get("NO_COLOR"))
    has_header: bool = True
    _context: ssl.SSLContext | None = None
    _files_before_entry: dict[str, str] = field(default_factory=dict)

    def open_queue(self) -> Queue:
        """Connect to the API if its URL is known, else over the protocol; raise Unreachable or Refused."""
        self._apply_entry()
        api = self._effective("api", self.api)
        return self.connect() if api is None else self._api(api)

    def open_api(self, what: str) -> Api:
        """Connect to the API; raise InvalidUsage, which says that *what* needs the API, if its URL is unknown."""
        self._apply_entry()
        api = self._effective("api", self.api)
        if api is None:
            how = f"{API_VARIABLE} is ignored because of --server, so add --api" if self.api else _SET_API
            raise InvalidUsage(f"the beanstalk protocol has no {what}, but the API of Greenstalk Server has: {how}")
        return self._api(api)

    def connect(self, *, target: Address | NamedServer | None = None) -> Server:
        """Connect over the protocol to the server of --server.

        *target* is the other server that the command connects to. Raise Unreachable, or InvalidUsage if only --api
        names a server.
        """
        address = self._address()
        other = target.address if isinstance(target, NamedServer) else target
        self._expect_tls(address, *([self._with_scheme(other)] if other is not None else []))
        return Server(address, self.timeout, self._tls(address))

    def connector(self) -> Connector:
        """Return a function that connects a new socket to the server of --server."""
        address = self._address()
        return Connector(address, self.timeout, self._tls(address))

    def take_timeout(self) -> float | None:
        """Return --timeout if it is on the command line, and give requests the default limit instead.

        For the commands that call this method, --timeout limits something other than a request.
        """
        if "timeout" not in self.on_command_line:
            return None
        taken, self.timeout = self.timeout, DEFAULT_TIMEOUT
        return taken

    def _apply_entry(self) -> None:
        """Apply the entry of the server, if it has one: it overrides the environment, but not the command line."""
        entry = self.server
        if entry is None and self.api is None:
            entry = load_servers().default_server
        if not isinstance(entry, NamedServer):
            return
        if self._effective("server", entry) is None:  # --api names another server than the variable
            self.server = None
            return
        if entry.warning:
            self.out.note(f"warning: {entry.warning}")
        self.server, self._context = entry.address, None
        self._files_before_entry = {name: getattr(self, name) for name in TLS_FILES}
        if entry.cafile and "cafile" not in self.on_command_line:
            self.cafile = entry.cafile
        if (entry.cert or entry.key) and not self.on_command_line & {"cert", "key"}:
            self.cert, self.key = entry.cert, entry.key
        if "api" not in self.on_command_line:
            self.api = entry.api
            if "api-token-file" not in self.on_command_line:
                self.token = _token(entry)
            self.on_command_line |= {"server"} | ({"api"} if entry.api is not None else set())

    def _address(self) -> Address:
        self._apply_entry()
        assert not isinstance(self.server, NamedServer)
        address = self._effective("server", self.server)
        if address is None and self._effective("api", self.api) is not None:
            raise InvalidUsage("this command uses the beanstalk protocol, not the API: add --server HOST:PORT")
        return self._with_scheme(address or Address())

    def connect_if_named(self) -> Server | None:
        """Connect over the protocol; return None if only --api names a server."""
        self._apply_entry()
        is_named = self._effective("server", self.server) or self._effective("api", self.api) is None
        return self.connect() if is_named else None

    def open_api_if_named(self) -> Api | None:
        """Connect to the API; return None if its URL is unknown."""
        return self.open_api("dashboard") if self.names_api() else None

    def names_api(self) -> bool:
        """Return whether the URL of the API is known."""
        self._apply_entry()
        return self._effective("api", self.api) is not None

    def connect_to(self, target: Address | NamedServer) -> Server:
        """Connect over the protocol to *target*, instead of the server of --server.

        The files of the entry of --server are not used for a *target* with an entry.
        """
        if isinstance(target, NamedServer):
            own = replace(self, server=target, on_command_line=self.on_command_line | {"server"})
            for name, file in self._files_before_entry.items():
                setattr(own, name, file)
            return own.connect()
        address = self._with_scheme(target)
        return Server(address, self.timeout, self._tls(address))

    def _api(self, url: Url) -> Api:
        if self.token and not _TOKEN.fullmatch(self.token):
            raise InvalidUsage(f"the API's token must consist of visible ASCII characters; see {TOKEN_VARIABLE}")
        self._expect_tls(url)
        return Api(url, self.token, self.timeout, self._tls(url))

    def _with_scheme(self, address: Address) -> Address:
        """Return *address* with the scheme `tls` or none; --tls decides for an address without a scheme."""
        is_secure = address.is_secure or (self.uses_tls and not address.scheme and not address.path)
        return replace(address, scheme="tls" if is_secure else "")

    def _tls(self, end: Address | Url) -> ssl.SSLContext | None:
        """Return the TLS context for *end*; None if it does not use TLS."""
        if not end.is_secure:
            return None
        if self.key and not self.cert:
            raise InvalidUsage("--key needs --cert, the certificate of that key")
        if self._context is None:
            has_own_key = "cert" in self.on_command_line and "key" not in self.on_command_line
            self._context = tls.context(self.cafile, self.cert, "" if has_own_key else self.key)
        return self._context

    def _expect_tls(self, *ends: Address | Url) -> None:
        """Raise InvalidUsage if the command line has a TLS option that no connection of the command uses.

        --tls affects no Unix socket, but it conflicts with an http:// URL.
        """
        names = ("tls", *TLS_FILES) if isinstance(ends[0], Url) else TLS_FILES
        unused = [f"--{name}" for name in names if name in self.on_command_line]
        if unused and not any(end.is_secure for end in (*ends, *([self.api] if self.api else []))):
            how = "write https://" if isinstance(ends[0], Url) else "add --tls"
            raise InvalidUsage(
                f"{' and '.join(unused)} would not be used, since {ends[0]} is reached without TLS; {how}"
            )

    def _effective(self, name: str, value: T | None) -> T | None:
        """Return *value* of the option *name* (server or api), or None if the other option overrides it.

        Both options are for the same server. If one option is on the command line and the other is in the
        environment, they may name two servers, so the command line overrides the environment.
        """
        return value if name in self.on_command_line or not self.on_command_line & {"server", "api"} else None

    @property
    def out(self) -> Output:
        """The output of the command."""
        return Output(
            is_json=self.is_json,
            is_quiet=self.is_quiet,
            assumes_yes=self.assumes_yes,
            has_colour=self.has_colour,
            has_header=self.has_header,
        )


class Parsed(click.ParamType[T]):
    """An argument that *read* parses; a default stays as it is.

    *read* raises ValueError or OSError, whose str() is the message to the user.
    """

    def __init__(self, name: str, read: Callable[[str], T]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        if not isinstance(value, str):
            parsed: T = value
            return parsed
        try:
            return self._read(value)
        except (ValueError, OSError) as error:
            self.fail(f"{error}.", param, ctx)


class ServerAddress(Parsed[Address | NamedServer]):
    """An address, or the name of an entry in a configuration file; shell completion offers the names."""

    def __init__(self) -> None:
        super().__init__("address", lambda text: load_servers().servers.get(text) or parse(text))

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            names = load_servers().servers
        except InvalidUsage:
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def load_servers() -> named_servers.NamedServers:
    """Return the entries of the configuration files; raise InvalidUsage if one of them is invalid."""
    try:
        return named_servers.load()
    except ValueError as error:
        raise InvalidUsage(str(error)) from error


def _token(entry: NamedServer) -> str:
    """Return the token of the API of *entry*, empty if it has none; raise InvalidUsage if its file cannot be read."""
    try:
        return _first_line(entry.token_file) if entry.token_file else entry.token
    except (OSError, ValueError) as error:
        raise InvalidUsage(f"cannot use the token_file of the server {entry.name}: {error}") from error


ADDRESS: Final = ServerAddress()


def seconds_between(least: float, most: float) -> Parsed[float]:
    """Return the type of a duration such as 0.5, 50ms or 1m, from *least* to *most* seconds; never 0."""

    def read(text: str) -> float:
        seconds = units.seconds(text)
        if not least <= seconds <= most or not seconds:
            lower = f"at least {least:g} s" if least else "more than 0 s"
            raise ValueError(f"{text!r} is not {lower} and at most {most:g} s")
        return seconds

    return Parsed("duration", read)


class Command(click.Command):
    """A command that also accepts the global options, and lists them separately from its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._global_options = _global_options(reads_environment=False)
        self.params = [*self.params, *self._global_options]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options, and only the names of the global ones."""
        own = [
            param
            for param in self.get_params(ctx)
            if param not in self._global_options and isinstance(param, click.Option)
        ]
        with formatter.section("Options"):
            formatter.write_dl([record for param in own if (record := param.get_help_record(ctx)) is not None])
        with formatter.section("Global options"):
            names = ", ".join(option.opts[-1] for option in self._global_options)
            formatter.write_text(f"{names}: see {PROGRAM} --help")


class SubGroup(Command, click.Group):
    """A command with commands of its own, which it lists in the order they were added."""

    command_class = Command

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, then the options."""
        self.format_commands(ctx, formatter)
        super().format_options(ctx, formatter)


class CommandGroup(click.Group):
    """The group, which lists its commands in the order they were added, and reads the environment variables."""

    command_class = Command

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params = [*self.params, *_global_options(reads_environment=True)]

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def _global_options(*, reads_environment: bool) -> list[click.Option]:
    """Return the global options. Each sets the attribute of Settings that its declaration names.

    The commands' copies do not read the environment, which would override an option given before the command.
    """

    def option(*names: str, help: str, variable: str = "", **more: Any) -> click.Option:
        return click.Option(
            [*names],
            envvar=variable if variable and reads_environment else None,
            expose_value=False,
            callback=_set,
            help=f"{help}  [env: {variable}]" if variable else help,
            **more,
        )

    return [
        option(
            "-s",
            "--server",
            metavar="ADDRESS",
            type=ADDRESS,
            variable=SERVER_VARIABLE,
            help="Server: [tls:]HOST:PORT, unix:PATH, or a name in greenstalkctl.toml. Default: 127.0.0.1:11300.",
        ),
        option(
            "--tls",
            "uses_tls",
            is_flag=True,
            variable=TLS_VARIABLE,
            help="Connect over TLS, except to addresses with plain: or unix:.",
        ),
        *(
            option(f"--{name}", metavar="FILE", variable=f"GREENSTALKCTL_{name.upper()}", help=what)
            for name, what in TLS_FILES.items()
        ),
        option(
            "--api",
            metavar="URL",
            type=Parsed("url", parse_url),
            variable=API_VARIABLE,
            help="URL of the server's dashboard, such as http://127.0.0.1:8080; use its API.",
        ),
        option(
            "--api-token-file",
            "token",
            metavar="FILE",
            type=Parsed("file", _first_line),
            help=f"Read the API's token from the first line of FILE instead of the variable {TOKEN_VARIABLE}.",
        ),
        option("--json", "is_json", is_flag=True, help="Write JSON: one document, or one per line."),
        option(
            "-q",
            "--quiet",
            "is_quiet",
            is_flag=True,
            help="Write no results and no notes, only errors: the exit code is the result.",
        ),
        option(
            "--no-header",
            "has_header",
            is_flag=True,
            flag_value=False,
            help="Write tables without a header line, for scripts.",
        ),
        option("--yes", "assumes_yes", is_flag=True, help="Delete or move jobs without confirmation."),
        option(
            "--timeout",
            type=seconds_between(0, 86400),
            metavar="DURATION",
            help="Time limit of a request with its reply, such as 500ms or 2m. Default: 10s.",
        ),
        option(
            "--no-color",
            "has_colour",
            is_flag=True,
            flag_value=False,
            help="Disable colours. The variable NO_COLOR does too.",
        ),
    ]


def _set(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Set the attribute of the option *param* if it is given; an option not given overrides nothing."""
    assert param.name is not None
    source = ctx.get_parameter_source(param.name)
    if source not in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
        return
    if value == "":
        raise click.BadParameter("it is empty.")
    settings = ctx.ensure_object(Settings)
    setattr(settings, param.name, value)
    if source is ParameterSource.COMMANDLINE:
        settings.on_command_line.add(param.opts[-1].removeprefix("--"))


def _first_line(path: str) -> str:
    """Return the first line of the file at *path*; raise OSError, or ValueError if it is empty."""
    token = Path(path).read_text().partition("\n")[0].strip()
    if not token:
        raise ValueError(f"the first line of {path} is empty")
    return token
