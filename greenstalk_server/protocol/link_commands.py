"""Commands that only other processes of the same queue send, over a link, for clients that are connected to them.

To a client, these are unknown commands. The session of a remote client serves them beside the commands of the protocol,
and replies only to some of them. Input that arrives while a remote client waits ends the wait: a reserve and a wait are
replied TIMED_OUT, an await is not replied.
"""

from __future__ import annotations

from typing import Final

from greenstalk_server.core.operations import connecting, reserving
from greenstalk_server.core.outcomes import WaitOutcome
from greenstalk_server.core.transitions.waiting import decline_offer
from greenstalk_server.protocol import arguments as args
from greenstalk_server.protocol import permissions as grant
from greenstalk_server.protocol import replies
from greenstalk_server.protocol.arguments import UnknownCommand
from greenstalk_server.protocol.reserve_commands import ended_wait_reply, fill_batch
from greenstalk_server.protocol.session_state import Command, SessionState
from greenstalk_server.protocol.verb import Verb

NO_REPLY: Final = b""


CONTINUE: Final = b"continue"
DECLINE: Final = b"decline"


def _require_remote(session: SessionState) -> None:
    if not session.client.is_remote:
        raise UnknownCommand


def claim(session: SessionState, command: Command, now: int) -> bytes | None:
    """Reserve a job, the offered one among others, without a wait."""
    _require_remote(session)
    job = reserving.claim(session.broker, session.client, now)
    if job is not None:
        return session.job_reply(job, False, now)
    return ended_wait_reply(session, reserving.wait(session.broker, session.client, now, now))


def claim_batch(session: SessionState, command: Command, now: int) -> bytes | None:
    """Reserve up to a number of jobs, without a wait."""
    _require_remote(session)
    job = reserving.claim(session.broker, session.client, now)
    session.batch_size = command[1]
    if job is not None:
        return fill_batch(session, job, now)
    return ended_wait_reply(session, reserving.wait(session.broker, session.client, now, now))


def await_offer(session: SessionState, command: Command, now: int) -> bytes | None:
    """Wait for the offer of a job, or until a reservation is about to end; the reply names the number of this await."""
    _require_remote(session)
    outcome = reserving.await_offer(session.broker, session.client, now)
    session.await_number = command[1]
    if outcome == WaitOutcome.WAITING:
        session.is_waiting = True
        return None
    return ended_wait_reply(session, outcome)


def decline(session: SessionState, command: Command, now: int) -> bytes:
    """Decline the offer, if there is one."""
    _require_remote(session)
    decline_offer(session.broker, session.client, now)
    return NO_REPLY


def received(session: SessionState, command: Command, now: int) -> bytes:
    """Note the number of jobs that the session has received: later reservations end uncounted with the client."""
    _require_remote(session)
    if session.client.remote is not None:
        session.client.remote.received = command[1]
    return NO_REPLY


def expect(session: SessionState, command: Command, now: int) -> bytes:
    """Serve the next command, about a job, only if this shard knows of a move of the job, or has not ended it."""
    _require_remote(session)
    session.known_move = command[1]
    return NO_REPLY


def continue_(session: SessionState, command: Command, now: int) -> bytes:
    """Serve commands again, after the reply MOVED or SKIPPED."""
    _require_remote(session)
    session.skips = False
    return NO_REPLY


def leave(session: SessionState, command: Command, now: int) -> bytes:
    """Use no tube."""
    _require_remote(session)
    connecting.leave(session.broker, session.client)
    return NO_REPLY


def unwatch(session: SessionState, command: Command, now: int) -> bytes:
    """Stop watching a tube, also if it is the only one."""
    _require_remote(session)
    session.add_tube_cost(command[1])
    connecting.unwatch(session.broker, session.client, command[1])
    session.note_watched()
    return NO_REPLY


def subscribe(session: SessionState, command: Command, now: int) -> bytes:
    """Publish the heads of the tubes that the client watches."""
    _require_remote(session)
    connecting.subscribe(session.broker, session.client, is_on=True)
    return replies.SUBSCRIBED


def unsubscribe(session: SessionState, command: Command, now: int) -> bytes:
    """Publish the heads of these tubes no longer."""
    _require_remote(session)
    connecting.subscribe(session.broker, session.client, is_on=False)
    return NO_REPLY


LINK_VERBS: Final = (
    Verb(b"claim", "", args.parse_bare, claim, grant.NOTHING, is_extension=True, awaits_journal=False),
    Verb(
        b"claim-batch",
        "<n>",
        args.parse_reserve_batch,
        claim_batch,
        grant.NOTHING,
        is_extension=True,
        awaits_journal=False,
    ),
    Verb(b"await", "<number>", args.parse_id, await_offer, grant.NOTHING, is_extension=True, awaits_journal=False),
    Verb(b"expect", "<number>", args.parse_id, expect, grant.NOTHING, is_extension=True, awaits_journal=False),
    Verb(CONTINUE, "", args.parse_bare, continue_, grant.NOTHING, is_extension=True, awaits_journal=False),
    Verb(DECLINE, "", args.parse_bare, decline, grant.NOTHING, is_extension=True, awaits_journal=False),
    Verb(b"leave", "", args.parse_bare, leave, grant.NOTHING, is_extension=True, awaits_journal=False),
    Verb(b"received", "<number>", args.parse_id, received, grant.NOTHING, is_extension=True, awaits_journal=False),
    Verb(b"subscribe", "", args.parse_bare, subscribe, grant.NOTHING, is_extension=True, awaits_journal=False),
    Verb(b"unsubscribe", "", args.parse_bare, unsubscribe, grant.NOTHING, is_extension=True, awaits_journal=False),
    Verb(b"unwatch", "<tube>", args.parse_name, unwatch, grant.NOTHING, is_extension=True, awaits_journal=False),
)
"""The commands of links. No client may use them."""
