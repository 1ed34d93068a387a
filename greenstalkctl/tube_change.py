"""Pause, resume or kick all tubes that match a pattern, by a task of the server. It needs the API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from greenstalkctl.bulk import watch
from greenstalkctl.errors import NoResult, Unreachable
from greenstalkctl.interrupt import Interrupt
from greenstalkctl.settings import Settings
from greenstalkctl.text import plural, printable

DONE: Final = {"pause": "paused", "resume": "resumed", "kick": "kicked"}


def change_tubes(settings: Settings, verb: str, pattern: str, body: Mapping[str, object], jobs_noun: str) -> None:
    """Count the tubes that match *pattern*, ask for confirmation, and change exactly these; report their number.

    *verb* is a key of DONE, *body* has the values of the change, and *jobs_noun* names the jobs that are counted.
    """
    noun = "job" if verb == "kick" else "tube"
    with settings.open_api("patterns of tubes") as api, Interrupt() as interrupt:
        *_, counted = watch(api, api.start_tube_change(verb, pattern, body), interrupt)
        interrupt.check("interrupted; nothing was changed")
        if counted.tubes is None:
            raise Unreachable(f"the server at {api.address} sent no counts; check --api")
        if not counted.tubes.tubes:
            raise NoResult(f"nothing {DONE[verb]}: no tube on {api.address} matches {pattern} and would change")
        jobs = plural(counted.tubes.jobs, jobs_noun)
        settings.out.confirm(f"{verb} {plural(counted.tubes.tubes, 'tube')} with {jobs} on {api.address}")
        done, message = 0, ""
        try:
            with settings.out.progress(
                f"{verb} {pattern}", counted.tubes.jobs if verb == "kick" else counted.tubes.tubes
            ) as advance:
                for task in watch(api, api.run(counted.id), interrupt):
                    advance(task.changed - done)
                    done, message = task.changed, task.message
        finally:
            settings.out.show({DONE[verb]: done, "pattern": pattern}, f"{DONE[verb]} {plural(done, noun)}")
        interrupt.check("interrupted; the other tubes are unchanged")
    if message:
        settings.out.note(printable(message))
