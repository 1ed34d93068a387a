"""What an access rule must grant for each kind of command. docs/security.md has the table of commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from greenstalk_server.core.jobs.job import Job
from greenstalk_server.core.tags.tags import Tags
from greenstalk_server.protocol import replies
from greenstalk_server.protocol.access import Grants
from greenstalk_server.protocol.session_state import SessionState


class Permission:
    """What an access rule must grant for a command.

    text     the grant, as docs/security.md calls it.
    missing  returns what a command names without a grant for it, for the log, or None if the command is allowed.
    reply    the reply to a command that is not allowed. Every client library can read UNKNOWN_COMMAND, since any
             command may get it. A command that names a job gets NOT_FOUND, so that a client cannot find out which ids
             exist.
    """

    __slots__ = ("missing", "reply", "text")

    def __init__(
        self,
        text: str,
        missing: Callable[[Grants, SessionState, tuple[Any, ...]], bytes | None],
        reply: bytes = replies.UNKNOWN_COMMAND,
    ) -> None:
        self.text: str = text
        self.missing: Callable[[Grants, SessionState, tuple[Any, ...]], bytes | None] = missing
        self.reply: bytes = reply


def _nothing(grants: Grants, session: SessionState, command: tuple[Any, ...]) -> bytes | None:
    return None


def _produce(grants: Grants, session: SessionState, command: tuple[Any, ...]) -> bytes | None:
    """A put has six members; put-in-tube adds the tube, and a put with tags adds the tube, maybe empty, and the tags.

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


def _any(grants: Grants, session: SessionState, command: tuple[Any, ...]) -> bytes | None:
    tube: bytes = command[1]
    return None if grants.may_any(tube) else tube


def _consume(grants: Grants, session: SessionState, command: tuple[Any, ...]) -> bytes | None:
    tube: bytes = command[1]
    return None if grants.may_consume(tube) else tube


def _consume_used(grants: Grants, session: SessionState, command: tuple[Any, ...]) -> bytes | None:
    used = session.client.used.name
    return None if grants.may_consume(used) else used


def _consume_watched(grants: Grants, session: SessionState, command: tuple[Any, ...]) -> bytes | None:
    return None if session.may_reserve else b""


def _consume_job(grants: Grants, session: SessionState, command: tuple[Any, ...]) -> bytes | None:
    tube = _tube_of_other(session, command[1])
    return b"%d" % command[1] if tube and not grants.may_consume(tube) else None


def _inspect(grants: Grants, session: SessionState, command: tuple[Any, ...]) -> bytes | None:
    tube: bytes = command[1]
    return None if grants.may_inspect(tube) else tube


def _inspect_used(grants: Grants, session: SessionState, command: tuple[Any, ...]) -> bytes | None:
    used = session.client.used.name
    return None if grants.may_inspect(used) else used


def _inspect_job(grants: Grants, session: SessionState, command: tuple[Any, ...]) -> bytes | None:
    tube = _tube_of_other(session, command[1])
    return b"%d" % command[1] if tube and not grants.may_inspect(tube) else None


def _inspect_some(grants: Grants, session: SessionState, command: tuple[Any, ...]) -> bytes | None:
    return None if grants.inspects else b""


def _inspect_group(grants: Grants, session: SessionState, command: tuple[Any, ...]) -> bytes | None:
    key: bytes = command[1]
    return None if grants.may_inspect_group(key) else key


def _administer(grants: Grants, session: SessionState, command: tuple[Any, ...]) -> bytes | None:
    return None if grants.administers else b""


def _tube_of_other(session: SessionState, id: int) -> bytes:
    """Return the tube of the job *id*; empty if the client holds the job, or if there is no such job."""
    job: Job | None = session.broker.jobs.get(id)
    return b"" if job is None or job.holder is session.client else job.tube.name


NOTHING: Final = Permission("nothing", _nothing)
PRODUCE: Final = Permission("**produce** into the tube, and **keys** for the keys of `grp`, `aft` and `con`", _produce)
ANY: Final = Permission("any grant for the tube", _any)
CONSUME: Final = Permission("**consume** of the tube", _consume)
CONSUME_USED: Final = Permission("**consume** of the used tube", _consume_used)
CONSUME_WATCHED: Final = Permission("nothing, because `watch` has checked the tubes", _consume_watched)
CONSUME_JOB: Final = Permission("**consume** of the job's tube", _consume_job, replies.NOT_FOUND)
CONSUME_EACH: Final = Permission("for each job that the client does not hold, **consume** of its tube", _nothing)
"""The command asks `SessionState.may_delete` for each job."""

INSPECT: Final = Permission("**inspect** of the tube", _inspect)
INSPECT_USED: Final = Permission("**inspect** of the used tube", _inspect_used)
INSPECT_JOB: Final = Permission("**inspect** of the job's tube", _inspect_job, replies.NOT_FOUND)
INSPECT_SOME: Final = Permission("**inspect** of at least one tube", _inspect_some)
INSPECT_GROUP: Final = Permission(
    "**inspect** of at least one tube and **keys** for the group, or **inspect** of `*`", _inspect_group
)
ADMINISTER: Final = Permission("`administer = true`", _administer)
