"""The tube and the job that a request names, if the principal may see them."""

from __future__ import annotations

from werkzeug.exceptions import NotFound

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.jobs.job import Job
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.web.framework import fields
from greenstalk_server.web.framework.access import principal


def find_tube(broker: Broker, given: fields.Fields) -> Tube:
    """Return the tube that the field `tube` names; raise NotFound if it does not exist or is not visible."""
    tube = broker.tubes.get(given.get("tube", "").encode(errors="replace"))
    if tube is None or not principal().sees(tube.name):
        name = fields.tube_name(given)
        raise NotFound(
            f"Tube “{name.decode()}” does not exist now. A tube exists while it has jobs or a client uses or watches"
            " it; the next put creates it again."
        )
    return tube


def find_job(broker: Broker, given: fields.Fields) -> Job:
    """Return the job that the field `id` names; raise NotFound if it does not exist or is not visible."""
    id = fields.job_id(given)
    job = broker.jobs.get(id)
    if job is None or not principal().sees(job.tube.name):
        home = broker.ids.home(id)
        if home != broker.ids.shard:
            reason = f"it is not on this shard; its id is from shard {home}"
        elif id < broker.next_id:
            reason = "it was deleted, most likely by a worker that finished it"
        else:
            reason = f"no job has had this id yet; the next put gets {broker.next_id}"
        raise NotFound(f"Job {id} does not exist: {reason}.")
    return job


def tube_of(broker: Broker, name: str) -> Tube:
    """Return the tube *name*; raise NotFound if it does not exist."""
    return find_tube(broker, {"tube": name})
