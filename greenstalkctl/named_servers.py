"""Named servers: the entries of greenstalkctl.toml, which `--server NAME` selects."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from greenstalkctl.address import Address, Url, parse, parse_url

CONFIG_VARIABLE: Final = "GREENSTALKCTL_CONFIG"
SYSTEM_FILE: Final = Path("/etc/greenstalkctl.toml")
USER_FILE: Final = Path("greenstalk/greenstalkctl.toml")
"""Path below the directory of the user's configuration files."""

_PATHS: Final = ("cafile", "cert", "key", "token_file")


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """An entry as it is written."""

    address: str
    cafile: str = ""
    cert: str = ""
    key: str = ""
    api: str = ""
    token: str = ""
    token_file: str = ""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    default: str = ""
    servers: dict[str, _Entry] = {}


@dataclass(frozen=True, slots=True)
class NamedServer:
    """A server with a name: its address, its TLS files, and the URL and the token of its API."""

    name: str
    address: Address
    api: Url | None = None
    cafile: str = ""
    cert: str = ""
    key: str = ""
    token: str = field(default="", repr=False)
    token_file: str = ""
    warning: str = ""
    """Says that other users can read a secret; empty if not."""


@dataclass(frozen=True, slots=True)
class NamedServers:
    """The entries of all files by name, and the name of the default."""

    servers: Mapping[str, NamedServer]
    default: str = ""

    @property
    def default_server(self) -> NamedServer | None:
        return self.servers.get(self.default)


def load() -> NamedServers:
    """Read the files; an entry of a later file replaces the entry of that name as a whole. Raise ValueError."""
    servers, default = dict[str, NamedServer](), ""
    for path in files():
        try:
            read = _read(path)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ValueError(f"cannot use {path}: {reason}") from error
        servers |= read.servers
        default = read.default or default
    if default and default not in servers:
        raise ValueError(f"the default server {default!r} is not in {' or '.join(map(str, files()))}")
    return NamedServers(servers, default)


def files() -> list[Path]:
    """Return the configuration files that exist: the system's and the user's, or the file that the variable names."""
    if only := os.environ.get(CONFIG_VARIABLE):
        return [Path(only)]
    directory = Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"))  # noqa: PTH111  never raises
    paths = [SYSTEM_FILE, *([directory / USER_FILE] if directory.is_absolute() else [])]  # else there is no home
    return [path for path in paths if os.path.exists(path)]  # noqa: PTH110  False without access to the directory


def _read(path: Path) -> NamedServers:
    parsed = msgspec.convert(tomllib.loads(path.read_text()), _File)
    return NamedServers({name: _server(path, name, entry) for name, entry in parsed.servers.items()}, parsed.default)


def _server(path: Path, name: str, entry: _Entry) -> NamedServer:
    given = {key: os.path.expanduser(getattr(entry, key)) for key in _PATHS if getattr(entry, key)}  # noqa: PTH111
    paths = {key: str(path.parent / name) for key, name in given.items()}
    secrets = [*([str(path)] if entry.token else []), *(paths[key] for key in ("key", "token_file") if key in paths)]
    api = parse_url(entry.api) if entry.api else None
    return NamedServer(
        name, parse(entry.address), api, token=entry.token, warning="; ".join(_warnings(secrets)), **paths
    )


def _warnings(secrets: list[str]) -> Iterator[str]:
    for path in secrets:
        try:
            is_open = Path(path).stat().st_mode & stat.S_IROTH
        except OSError:  # reading it reports the error
            continue
        if is_open:
            yield f"{path} has a secret that all users of this machine can read; run: chmod o-r {path}"
