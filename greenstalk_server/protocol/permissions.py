"""Permissions: the grants of an access rule that each command needs. docs/security.md has the table of commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from greenstalk_server.core.jobs.job import Job
from greenstalk_server.core.tags.tags import Tags
from greenstalk_server.protocol import replies
from greenstalk_server.protocol.access import Grants
from greenstalk_server.protocol.session_state import Command, SessionState

Check: TypeAlias = Callable[[Grants, SessionState, Command], bytes | None]


class Permission:
    """The grant that a command needs.

    text     the grant, as docs/security.md calls it.
    missing  returns the tube, key or job id that a command names without a grant, for the log; None if the command is
             allowed.
    reply    the reply to a command that is not allowed. Every client library can read UNKNOWN_COMMAND, since any
             command may get it. A command that names a job gets NOT_FOUND, so that a client cannot find out which ids
             exist.
    """

    def __init__(
        self,
        text: str,
        missing: Check,
        reply: bytes = replies.UNKNOWN_COMMAND,
    ) -> None:
        self.text: str = text
        self.missing: Check = missing
        self.reply: bytes = reply


def _nothing(grants: Grants, session: SessionState, command: Command) -> bytes | None:
    return None


def _produce(grants: Grants, session: SessionState, command: Command) -> bytes | None:
    """Check the tube and the keys of a put.

    A put has six members; put-in-tube adds the tube, and a put with tags adds the tube, maybe empty, and the tags.
    Idempotency keys need no grant: each tube has its own.
    """
    tube: bytes = command[6] if len(command) > 6 else b""
    tube = tube or session.client.used.name
    if not grants.may_produce(tube):
        return tube
    tags: Tags = command[7] if len(command) > 7 else Tags()
    for tag, key in ((b"grp", tags.group), (b"aft", tags.after), (b"con", tags.concurrency_key)):
        if key and not grants.may_use_key(key):
            return b"%b:%b" % (tag, key)
    return None


def _of_tube(may: Callable[[Grants, bytes], bool]) -> Check:
    """Return a check of the tube, or the key, that the command names."""
    return lambda grants, session, command: None if may(grants, command[1]) else command[1]


def _of_used(may: Callable[[Grants, bytes], bool]) -> Check:
    def missing(grants: Grants, session: SessionState, command: Command) -> bytes | None:
        used = session.client.used.name
        return None if may(grants, used) else used

    return missing


def _of_job(may: Callable[[Grants, bytes], bool]) -> Check:
    """Return a check of the tube of a job. A job that the client holds, or that does not exist, needs no grant."""

    def missing(grants: Grants, session: SessionState, command: Command) -> bytes | None:
        job: Job | None = session.broker.jobs.get(command[1])
        is_allowed = job is None or job.holder is session.client or may(grants, job.tube.name)
        return None if is_allowed else b"%d" % command[1]

    return missing


def _consume_watched(grants: Grants, session: SessionState, command: Command) -> bytes | None:
    return None if session.may_reserve else b""


def _inspect_some(grants: Grants, session: SessionState, command: Command) -> bytes | None:
    return None if grants.inspects else b""


def _administer(grants: Grants, session: SessionState, command: Command) -> bytes | None:
    return None if grants.administers else b""


NOTHING: Final = Permission("nothing", _nothing)
PRODUCE: Final = Permission("**produce** into the tube, and **keys** for the keys of `grp`, `aft` and `con`", _produce)
ANY: Final = Permission("any grant for the tube", _of_tube(Grants.may_any))
CONSUME: Final = Permission("**consume** of the tube", _of_tube(Grants.may_consume))
CONSUME_USED: Final = Permission("**consume** of the used tube", _of_used(Grants.may_consume))
CONSUME_WATCHED: Final = Permission("nothing, because `watch` has checked the tubes", _consume_watched)
CONSUME_JOB: Final = Permission("**consume** of the job's tube", _of_job(Grants.may_consume), replies.NOT_FOUND)
CONSUME_EACH: Final = Permission("for each job that the client does not hold, **consume** of its tube", _nothing)
"""The command asks `SessionState.may_delete` for each job."""

INSPECT: Final = Permission("**inspect** of the tube", _of_tube(Grants.may_inspect))
INSPECT_USED: Final = Permission("**inspect** of the used tube", _of_used(Grants.may_inspect))
INSPECT_JOB: Final = Permission("**inspect** of the job's tube", _of_job(Grants.may_inspect), replies.NOT_FOUND)
INSPECT_SOME: Final = Permission("**inspect** of at least one tube", _inspect_some)
INSPECT_GROUP: Final = Permission(
    "**inspect** of at least one tube and **keys** for the group, or **inspect** of `*`",
    _of_tube(Grants.may_inspect_group),
)
ADMINISTER: Final = Permission("`administer = true`", _administer)
