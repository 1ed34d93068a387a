"""The commands `reserve`, `release` and `lease`: jobs reserved over HTTP, whose reservations outlive a connection."""

from __future__ import annotations

from typing import Any, Final

import click

from greenstalkctl import text
from greenstalkctl.api import Api
from greenstalkctl.errors import NoResult
from greenstalkctl.job_action import JobAction, act_on_ids
from greenstalkctl.output import key_value_lines
from greenstalkctl.params import DURATION, JOB_ID, PRI
from greenstalkctl.selection import tube_argument
from greenstalkctl.settings import Command, Settings, SubGroup, seconds_between

MAX_WAIT: Final = 50
VERBS: Final = {
    "delete": "Delete the job: it is done.",
    "release": "Make the job ready again, or delayed.",
    "bury": "Bury the job until it is kicked.",
    "touch": "Restart the TTR of the job.",
    "show": "Show the job and the time that is left.",
}


@click.command(cls=Command, short_help="Reserve a job until its TTR ends (needs --api).")
@tube_argument("The tubes to reserve from.", is_list=True)
@click.option("--wait", type=seconds_between(0, MAX_WAIT), default=0, help="Time to wait for a job, at most 50s.")
@click.option("--worker", default="greenstalkctl", show_default=True, help="Name that the dashboard shows.")
@click.pass_obj
def reserve(settings: Settings, tubes: tuple[str, ...], wait: float, worker: str) -> None:
    """Reserve one job, and print its id, the token of its lease and its body, each on a line.

    The job is reserved until its TTR ends: use `lease` with the token before that. Over the protocol, a reservation
    ends with the connection, so a lone command cannot keep a job: use `work` there.
    """
    with settings.open_api("reservation that outlives a connection (`work` runs a command for each job)") as api:
        job = api.reserve(tubes, wait, worker)
        if job is None:
            raise NoResult(f"no job of {', '.join(tubes)} is ready")
    view, token = job
    shown = view.stats | {"token": token} | text.fields(view.body)
    settings.out.show(shown, str(view.id), text.printable(token), text.line(view.body))


@click.command(cls=Command, short_help="Take jobs from the clients that hold them (needs --api).")
@click.argument("ids", nargs=-1, required=True, type=JOB_ID, metavar="ID...", help="The ids of the jobs.")
@click.pass_obj
def release(settings: Settings, ids: tuple[int, ...]) -> None:
    """Make reserved jobs ready again, for example those of a worker that hangs. Its next command fails.

    Over the protocol only the client that holds a job can release it. `lease release` ends the lease of `reserve`.
    """
    with settings.open_api("way to release the jobs of another client") as api:
        act_on_ids(settings.out, api, RELEASE, ids)


RELEASE: Final = JobAction(
    "release",
    "released",
    "releasing",
    "no such job, or not reserved",
    lambda api, job_id: isinstance(api, Api) and api.release_job(job_id),
)


@click.group(cls=SubGroup, short_help="Finish a job that `reserve` returned (needs --api).")
def lease() -> None:
    """Finish, prolong or show a job that `reserve` returned, by the token of its lease."""


def _lease_command(verb: str, help: str) -> click.Command:
    """Return the command of `lease` with this name."""

    @click.pass_obj
    def run(settings: Settings, /, lease_token: str, **values: Any) -> None:
        given = {name: value for name, value in values.items() if value is not None}
        with settings.open_api("leases") as api:
            shown = api.lease(verb, lease_token, given)
            if shown is None:
                raise NoResult(
                    "the lease has ended or is unknown: the TTR has passed, or the job was finished or taken"
                )
        settings.out.show(shown or {verb: True}, *([key_value_lines(shown)] if shown else []))

    run = click.argument("lease_token", metavar="TOKEN", help="The token that `reserve` printed.")(run)
    if verb in ("release", "bury"):
        run = click.option("--pri", type=PRI, help="The new priority; by default it stays.")(run)
    if verb == "release":
        run = click.option("--delay", type=DURATION, help="Time until the job is ready again.")(run)
    return click.command(verb, cls=Command, help=help)(run)


for _verb, _help in VERBS.items():
    lease.add_command(_lease_command(_verb, _help))
