"""What holds for every command: the global options, which may stand before the command or after it."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

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
_HOW: Final = f"set --api or {API_VARIABLE} to the URL of its dashboard, such as http://127.0.0.1:8080"
_TOKEN: Final = re.compile(r"[!-~]+")


@dataclass(slots=True)
class Settings:
    """What the global options have set so far.

    server, api     where the server listens, and where its API is, if that was said.
    typed           those of the two that stand on the command line, rather than in the environment.
    """

    server: Address | None = None
    api: Url | None = None
    typed: set[str] = field(default_factory=set)
    token: str = field(default_factory=lambda: os.environ.get(TOKEN_VARIABLE, ""), repr=False)
    timeout: float = 10.0
    is_json: bool = False
    assumes_yes: bool = False
    has_colour: bool = field(default_factory=lambda: not os.environ.get("NO_COLOR"))

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

    def connect(self, address: Address | None = None) -> Server:
        """Return a new connection by the protocol, to the server of --server unless *address* is given.

        Raise Unreachable; or Misuse if the API alone says which server is meant.
        """
        address = address or self._in_force("server", self.server)
        if address is None and self._in_force("api", self.api) is not None:
            raise Misuse("this goes by the beanstalk protocol, not by the API: add --server HOST:PORT")
        return Server(address or Address(), self.timeout)

    def _api(self, url: Url) -> Api:
        if self.token and not _TOKEN.fullmatch(self.token):
            raise Misuse(f"the API's token must be visible ASCII characters; see {TOKEN_VARIABLE}")
        return Api(url, self.token, self.timeout)

    def _in_force(self, name: str, value: T | None) -> T | None:
        """*value*, of the option *name*; None if it is of the environment and the other is on the command line.

        The two name the same server; one on the command line may name another than the environment does.
        """
        return value if name in self.typed or not self.typed else None

    @property
    def out(self) -> Output:
        """Where the command's words go."""
        return Output(is_json=self.is_json, assumes_yes=self.assumes_yes, has_colour=self.has_colour)


class Seconds(click.FloatRange):
    """A number in a range, which nan is not: click compares it with the ends alone."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number


class Verb(click.Command):
    """A command that takes the global options as well, and lists them apart from its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._shared = _global_options(reads_environment=False)
        self.params = [*self.params, *self._shared]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options; of the global ones, that they are allowed here too."""
        own = [param for param in self.get_params(ctx) if param not in self._shared]
        records = [record for param in own if (record := param.get_help_record(ctx)) is not None]
        with formatter.section("Options"):
            formatter.write_dl(records)
        with formatter.section("Global options"):
            names = ", ".join(option.opts[0] for option in self._shared)
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
    return [
        click.Option(
            ["--server"],
            metavar="HOST:PORT|unix:PATH",
            envvar=SERVER_VARIABLE if reads_environment else None,
            expose_value=False,
            callback=_setter("server", _checked(parse)),
            help=f"The server; 127.0.0.1:11300 without it.  [env: {SERVER_VARIABLE}]",
        ),
        click.Option(
            ["--api"],
            metavar="URL",
            envvar=API_VARIABLE if reads_environment else None,
            expose_value=False,
            callback=_setter("api", _checked(parse_url)),
            help=f"Its dashboard, such as http://127.0.0.1:8080, by which more can be done.  [env: {API_VARIABLE}]",
        ),
        click.Option(
            ["--api-token-file"],
            metavar="FILE",
            expose_value=False,
            callback=_setter("token", _checked(_first_line)),
            help=f"What the API asks for is the first line of FILE, rather than in the variable {TOKEN_VARIABLE}.",
        ),
        _flag("--json", "is_json", True, "Write JSON: one document, or one a line where there are many."),
        _flag("--yes", "assumes_yes", True, "Destroy without asking first."),
        click.Option(
            ["--timeout"],
            type=Seconds(0, 86400, min_open=True),
            metavar="SECONDS",
            expose_value=False,
            callback=_setter("timeout", lambda value: value),
            help="How long the server may take for one answer; 10 without it.",
        ),
        _flag("--no-color", "has_colour", False, "No colours; so does the variable NO_COLOR."),
    ]


def _flag(name: str, attribute: str, value: bool, text: str) -> click.Option:
    callback = _setter(attribute, lambda _: value)
    return click.Option([name], is_flag=True, expose_value=False, callback=callback, help=text)


def _setter(attribute: str, made: Callable[[Any], Any]) -> Callable[[click.Context, click.Parameter, Any], None]:
    """Return a callback that sets *attribute* if the option is given: one that is not given overrides nothing."""

    def set_it(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value == "" and ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE:
            raise click.BadParameter("it is empty.")
        if value:
            settings = ctx.ensure_object(Settings)
            setattr(settings, attribute, made(value))
            if param.name in {"server", "api"} and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE:
                settings.typed.add(param.name)

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
