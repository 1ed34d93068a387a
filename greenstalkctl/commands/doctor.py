"""The `doctor` command: what is wrong with a server and its environment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypeVar

import click

from greenstalkctl.api import Api
from greenstalkctl.errors import CommandError, NoResult
from greenstalkctl.queue import Stats
from greenstalkctl.server import Server
from greenstalkctl.settings import Settings
from greenstalkctl.text import plural, printable
from greenstalkctl.version import VERSION
from greenstalkctl.watching import ReadCommand

MIN_CERTIFICATE_DAYS: Final = 14
MAX_CLOCK_DIFFERENCE: Final = 60.0
"""Seconds. The time in the response of the API is up to a few seconds old."""

MAX_FILES_SHARE: Final = 0.8
MAX_NAMES: Final = 5
"""Maximum number of tubes that a line names."""

Q = TypeVar("Q", Server, Api)
State: TypeAlias = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check; a problem says what is wrong, the consequence, and what to do."""

    check: str
    state: State
    text: str


@click.command(cls=ReadCommand, short_help="Find out what is wrong with a server.")
@click.pass_obj
def doctor(settings: Settings) -> None:
    """Check a server and its environment, one line for each result. The exit code is 1 if there is a problem.

    Without --api: the connection and its certificate, the version, whether the server drains, tubes without workers,
    and on the server's own machine its limit of open files. With --api also the dashboard, the journal, the disk, the
    clock, and all conditions that need attention, which include tubes without workers.
    """
    found = list(_findings(settings))
    width = max(len(each.check) for each in found)
    lines = [printable(f"{each.state:8}{each.check:{width}}  {each.text}") for each in found]
    settings.out.show([{"check": each.check, "state": each.state, "text": each.text} for each in found], *lines)
    if problems := sum(each.state == "problem" for each in found):
        raise NoResult(plural(problems, "problem"))


def _findings(settings: Settings) -> Iterator[Finding]:
    yield from _examined("protocol", settings.connect_if_named, lambda server: _examine_server(server, settings))
    yield from _examined("dashboard", settings.open_api_if_named, _examine_api)


def _examined(
    check: str, connect: Callable[[], Q | None], examine: Callable[[Q], Iterator[Finding]]
) -> Iterator[Finding]:
    """Yield the findings about a connection; an error becomes a problem with its message."""
    try:
        queue = connect()
        if queue is None:
            yield Finding(check, "note", f"not checked: {_HOW[check]}")
            return
        with queue:
            yield from examine(queue)
    except CommandError as error:
        yield Finding(check, "problem", str(error))


_HOW: Final = {
    "protocol": "only --api names the server; add --server to check the beanstalk port",
    "dashboard": "add --api to check the dashboard, the journal, the disk and the conditions that need attention",
}


def _examine_server(server: Server, settings: Settings) -> Iterator[Finding]:
    start = time.perf_counter()
    stats = server.stats()
    milliseconds = (time.perf_counter() - start) * 1000
    yield Finding("protocol", "ok", f"{server.address} answers in {milliseconds:.1f} ms")
    if (expires := server.certificate_expires) is not None:
        yield _certificate(expires)
    has_extensions = server.has_extensions()
    yield _version(stats, has_extensions=has_extensions)
    if stats.get("draining") in (True, "true"):
        yield Finding(
            "puts",
            "problem",
            "the server is draining; puts fail with DRAINING; run `greenstalkctl undrain` or restart it",
        )
    if not settings.names_api():  # else the conditions cover this: they know dead-letter tubes and workers over HTTP
        yield _workers(server, has_extensions=has_extensions)
    if (files := _files(stats)) is not None:
        yield files


def _certificate(expires: float) -> Finding:
    days = (expires - time.time()) / 86400
    if days >= MIN_CERTIFICATE_DAYS:
        return Finding("certificate", "ok", f"valid for {days:.0f} days")
    text = f"the certificate expires in {days:.0f} days; clients cannot connect then; renew it and send SIGHUP"
    return Finding("certificate", "problem", text)


def _version(stats: Stats, *, has_extensions: bool) -> Finding:
    version = str(stats["version"])
    if not has_extensions:
        text = f"{version} has no protocol extensions; flush, truncate, wait, tags and fractions are refused"
        return Finding("version", "note", f"{text}; use Greenstalk Server without --strict-protocol for them")
    if version.partition("+")[0] != VERSION:
        text = f"the server has version {version}, greenstalkctl {VERSION}; some commands may be refused"
        return Finding("version", "note", f"{text}; install the same version")
    return Finding("version", "ok", version)


def _workers(server: Server, *, has_extensions: bool) -> Finding:
    """Find tubes without workers: a problem only if the server has no dead-letter tubes and no workers over HTTP."""
    names = [
        str(stats["name"])
        for stats in server.all_tube_stats()
        if stats["current-jobs-ready"] and not stats["current-watching"]
    ]
    if not names:
        return Finding("workers", "ok", "each tube with ready jobs has a worker")
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    text = f"no worker watches {', '.join(names[:MAX_NAMES])}{more}; the ready jobs there wait"
    if has_extensions:
        why = "unless it is a dead-letter tube, or its workers use HTTP"
        return Finding("workers", "note", f"{text}; start workers {why}; add --api to tell them apart")
    return Finding("workers", "problem", f"{text}; start workers, or check the names of the tubes")


def _files(stats: Stats) -> Finding | None:
    """Compare the connections with the limit of open files, if the server is a process of this machine."""
    with suppress(OSError, ValueError, KeyError):
        directory = Path(f"/proc/{stats['pid']}")
        if Path("/proc/sys/kernel/hostname").read_text().strip() != stats["hostname"]:
            return None
        (line,) = (
            line for line in (directory / "limits").read_text().splitlines() if line.startswith("Max open files")
        )
        limit, used = int(line.split()[3]), int(stats["current-connections"])
        if used > MAX_FILES_SHARE * limit:
            text = f"{plural(used, 'connection')} of at most {limit} open files; new clients are refused at the limit"
            return Finding("open files", "problem", f"{text}; raise LimitNOFILE of the service, or ulimit -n")
        return Finding("open files", "ok", f"{plural(used, 'connection')}, at most {limit} open files")
    return None


def _examine_api(api: Api) -> Iterator[Finding]:
    stats = api.stats()
    yield Finding("dashboard", "ok", f"{api.address} answers")
    yield _journal(stats)
    evaluated_at, conditions = api.attention()
    if evaluated_at is not None:
        yield _clock(evaluated_at - time.time())
    for each in conditions:
        where = f"{each['tube']}: " if each["tube"] else ""
        how = f"see {str(api.address).rstrip('/')}{each['link']}"
        sentence = str(each["sentence"]).removesuffix(".").replace("\xa0", " ")
        yield Finding(str(each["condition"]), "problem", f"{where}{sentence}; {how}")
    if not conditions:
        yield Finding("attention", "ok", "no condition needs attention")


def _journal(stats: Stats) -> Finding:
    if not stats["journal-is-on-disk"]:
        return Finding("journal", "note", "jobs are in memory only; a restart loses them; start the server with -b DIR")
    if trouble := stats["journal-trouble"]:
        return Finding("journal", "problem", f"{trouble}; puts are refused; see the log of the server")
    if stats["journal-is-full"]:
        text = "the disk has no room for another file; puts are refused soon; free space, or delete jobs"
        return Finding("journal", "problem", text)
    return Finding("journal", "ok", f"{stats['journal-files']} files, {stats['journal-bytes-on-disk']} bytes")


def _clock(difference: float) -> Finding:
    if abs(difference) <= MAX_CLOCK_DIFFERENCE:
        return Finding("clock", "ok", "the clocks of the server and of this machine agree")
    text = f"the clocks of the server and of this machine differ by {abs(difference):.0f} s; times and ages mislead"
    return Finding("clock", "problem", f"{text}; synchronise both, for example with chrony")
