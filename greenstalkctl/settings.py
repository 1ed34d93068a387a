"""What holds for every command: the global options, which may stand before the command or after it."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from operator import not_
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from greenstalkctl import tls, units
from greenstalkctl.address import Address, Url, parse, parse_url
from greenstalkctl.api import Api
from greenstalkctl.channel import TOKEN_VARIABLE
from greenstalkctl.exits import Misuse
from greenstalkctl.output import Output
from greenstalkctl.server import Server

T = TypeVar("T")

PROGRAM: Final = "greenstalkctl"
SERVER_VARIABLE: Final = "GREENSTALKCTL_SERVER"
API_VARIABLE: Final = "GREENSTALKCTL_API"
TLS_VARIABLE: Final = "GREENSTALKCTL_TLS"
TLS_FILES: Final = {
    "cafile": "Trust the authorities in this PEM file, rather than those of the system.",
    "cert": "Show the server this certificate, a PEM file.",
    "key": "The key of --cert, unless that file has it too.",
}
"""Options that name a file; the variable of each is GREENSTALKCTL_ and its name in capital letters."""

_HOW: Final = f"set --api or {API_VARIABLE} to the URL of its dashboard, such as http://127.0.0.1:8080"
_TOKEN: Final = re.compile(r"[!-~]+")


@dataclass(slots=True)
class Settings:
    """What the global options have set so far.

    server, api     where the server listens, and where its API is, if that was said.
    typed           options that stand on the command line, rather than in the environment.
    uses_tls        whether addresses without tls: or plain: are reached by TLS.
    """

    server: Address | None = None
    api: Url | None = None
    typed: set[str] = field(default_factory=set)
    token: str = field(default_factory=lambda: os.environ.get(TOKEN_VARIABLE, ""), repr=False)
    uses_tls: bool = False
    cafile: str = ""
    cert: str = ""
    key: str = ""
    timeout: float = 10.0
    is_json: bool = False
    assumes_yes: bool = False
    has_colour: bool = field(default_factory=lambda: not os.environ.get("NO_COLOR"))
    has_header: bool = True
    _context: ssl.SSLContext | None = None

    def reach(self) -> Server | Api:
        """Return a way to the server: by the API if that is known, else by the protocol; raise Unreachable, Refused."""
        api = self._in_force("api", self.api)
        return self.connect() if api is None else self._api(api)

    def reach_api(self, what: str) -> Api:
        """Return a way by the API; raise Misuse, which says that *what* needs it, if that is not known."""
        api = self._in_force("api", self.api)
        if api is None:
            how = f"{API_VARIABLE} does not count beside a --server, so add --api" if self.api else _HOW
            raise Misuse(f"the beanstalk protocol has no {what}; a Greenstalk Server's API has: {how}")
        return self._api(api)

    def connect(self, *, target: Address | None = None) -> Server:
        """Return a new connection by the protocol, to the server of --server.

        *target* is another server that the command connects to. Raise Unreachable; or Misuse if the API alone says
        which server is meant.
        """
        address = self._in_force("server", self.server)
        if address is None and self._in_force("api", self.api) is not None:
            raise Misuse("this goes by the beanstalk protocol, not by the API: add --server HOST:PORT")
        address = self._with_scheme(address or Address())
        self._expect_tls(address, *([self._with_scheme(target)] if target is not None else []))
        return Server(address, self.timeout, self._tls(address))

    def connect_to(self, target: Address) -> Server:
        """Return a connection by the protocol to *target*, rather than to the server of --server."""
        address = self._with_scheme(target)
        return Server(address, self.timeout, self._tls(address))

    def _api(self, url: Url) -> Api:
        if self.token and not _TOKEN.fullmatch(self.token):
            raise Misuse(f"the API's token must be visible ASCII characters; see {TOKEN_VARIABLE}")
        self._expect_tls(url)
        return Api(url, self.token, self.timeout, self._tls(url))

    def _with_scheme(self, address: Address) -> Address:
        """Return *address* with the scheme `tls` or none, as --tls decides for one that has none."""
        is_secure = address.is_secure or (self.uses_tls and not address.scheme and not address.path)
        return replace(address, scheme="tls" if is_secure else "")

    def _tls(self, end: Address | Url) -> ssl.SSLContext | None:
        """Return the context for *end*; None if that is not reached by TLS."""
        if not end.is_secure:
            return None
        if self.key and not self.cert:
            raise Misuse("--key needs --cert, the certificate to which it belongs")
        if self._context is None:
            self._context = tls.context(self.cafile, self.cert, self.key)
        return self._context

    def _expect_tls(self, *ends: Address | Url) -> None:
        """Raise Misuse if an option of TLS is on the command line, and no connection of the command uses it.

        --tls itself is about servers: it says nothing of Unix sockets, but whoever writes it expects no http://.
        """
        names = ("tls", *TLS_FILES) if isinstance(ends[0], Url) else TLS_FILES
        unused = [f"--{name}" for name in names if name in self.typed]
        if unused and not any(end.is_secure for end in (*ends, *([self.api] if self.api else []))):
            how = "write https://" if isinstance(ends[0], Url) else "add --tls"
            raise Misuse(f"{' and '.join(unused)} would not be used, since {ends[0]} is reached without TLS; {how}")

    def _in_force(self, name: str, value: T | None) -> T | None:
        """*value*, of the option *name*; None if it is of the environment and the other is on the command line.

        The two name the same server; one on the command line may name another than the environment does.
        """
        return value if name in self.typed or not self.typed & {"server", "api"} else None

    @property
    def out(self) -> Output:
        """Where the command's words go."""
        return Output(
            is_json=self.is_json,
            assumes_yes=self.assumes_yes,
            has_colour=self.has_colour,
            has_header=self.has_header,
        )


class Seconds(click.ParamType[float]):
    """A duration such as 0.5, 50ms or 1m, from *least* to *most* seconds; and more than none."""

    name = "duration"

    def __init__(self, least: float, most: float) -> None:
        self._least = least
        self._most = most

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = units.seconds(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)
        if not self._least <= seconds <= self._most or not seconds:
            above = f"at least {self._least:g} s" if self._least else "more than 0 s"
            self.fail(f"{value!r} is not {above} and at most {self._most:g} s.", param, ctx)
        return seconds


class Verb(click.Command):
    """A command that takes the global options as well, and lists them apart from its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._shared = _global_options(reads_environment=False)
        self.params = [*self.params, *self._shared]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options; of the global ones, that they are allowed here too."""
        own = [param for param in self.get_params(ctx) if param not in self._shared and isinstance(param, click.Option)]
        with formatter.section("Options"):
            formatter.write_dl([record for param in own if (record := param.get_help_record(ctx)) is not None])
        with formatter.section("Global options"):
            names = ", ".join(option.opts[-1] for option in self._shared)
            formatter.write_text(f"{names}: see {PROGRAM} --help")


class Verbs(click.Group):
    """The group: it lists its commands in the order in which they were added, and reads the environment."""

    command_class = Verb

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params = [*self.params, *_global_options(reads_environment=True)]

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def _global_options(*, reads_environment: bool) -> list[click.Option]:
    """The options; at a command without the environment, else that would beat what stands before the command."""

    def option(
        *names: str,
        sets: str,
        help: str,
        to: Callable[[Any], Any] = str,
        variable: str = "",
        **more: Any,
    ) -> click.Option:
        return click.Option(
            [*names],
            envvar=variable if variable and reads_environment else None,
            expose_value=False,
            callback=_setter(sets, to),
            help=f"{help}  [env: {variable}]" if variable else help,
            **more,
        )

    return [
        option(
            "-s",
            "--server",
            metavar="ADDRESS",
            sets="server",
            to=_checked(parse),
            variable=SERVER_VARIABLE,
            help="The server: HOST:PORT, tls:HOST:PORT or unix:PATH; 127.0.0.1:11300 without it.",
        ),
        option(
            "--tls",
            is_flag=True,
            sets="uses_tls",
            to=bool,
            variable=TLS_VARIABLE,
            help="Reach servers by TLS, save those with plain: or unix: in their address.",
        ),
        *(
            option(f"--{name}", metavar="FILE", sets=name, variable=f"GREENSTALKCTL_{name.upper()}", help=what)
            for name, what in TLS_FILES.items()
        ),
        option(
            "--api",
            metavar="URL",
            sets="api",
            to=_checked(parse_url),
            variable=API_VARIABLE,
            help="Its dashboard, such as http://127.0.0.1:8080, by which more can be done.",
        ),
        option(
            "--api-token-file",
            metavar="FILE",
            sets="token",
            to=_checked(_first_line),
            help=f"Read the API's token from the first line of FILE, rather than from the variable {TOKEN_VARIABLE}.",
        ),
        option(
            "--json",
            is_flag=True,
            sets="is_json",
            to=bool,
            help="Write JSON: one document, or one a line where there are many.",
        ),
        option(
            "--no-header",
            is_flag=True,
            sets="has_header",
            to=not_,
            help="Write tables without their head, for awk and the like.",
        ),
        option("--yes", is_flag=True, sets="assumes_yes", to=bool, help="Do what destroys jobs without asking first."),
        option(
            "--timeout",
            type=Seconds(0, 86400),
            metavar="DURATION",
            sets="timeout",
            to=float,
            help="How long a request may take, with its whole answer, such as 500ms or 2m; 10s without it.",
        ),
        option(
            "--no-color", is_flag=True, sets="has_colour", to=not_, help="No colours; so does the variable NO_COLOR."
        ),
    ]


def _setter(attribute: str, made: Callable[[Any], Any]) -> Callable[[click.Context, click.Parameter, Any], None]:
    """Return a callback that sets *attribute* if the option is given: one that is not given overrides nothing."""

    def set_it(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value == "" and ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE:
            raise click.BadParameter("it is empty.")
        if value:
            settings = ctx.ensure_object(Settings)
            setattr(settings, attribute, made(value))
            if ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE:
                settings.typed.add(param.name or "")

    return set_it


def _checked(read: Callable[[str], T]) -> Callable[[str], T]:
    """Return *read* with its errors as click has them."""

    def checked(text: str) -> T:
        try:
            return read(text)
        except (ValueError, OSError) as error:
            raise click.BadParameter(f"{error}.") from error

    return checked


def _first_line(path: str) -> str:
    """Return the token that the file at *path* has; raise ValueError if that is empty."""
    token = Path(path).read_text().partition("\n")[0].strip()
    if not token:
        raise ValueError(f"the first line of {path} is empty")
    return token
