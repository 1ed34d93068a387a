"""The table of commands: a row for each verb.

Parsing, strict mode, access rules, the replies that wait for the journal, the tests of the documentation and the
fuzzer's grammar follow from this table.
"""

from __future__ import annotations

from typing import Final

from greenstalk_server.protocol import arguments as args
from greenstalk_server.protocol import job_commands as jobs
from greenstalk_server.protocol import permissions as grant
from greenstalk_server.protocol import reserve_commands as reserves
from greenstalk_server.protocol import session_commands as sessions
from greenstalk_server.protocol import tube_commands as tubes
from greenstalk_server.protocol.verb import JOB, MANY, RESERVE, TUBE, USED, Verb

_PUT_ARGUMENTS: Final = "<pri> <delay> <ttr> <bytes> [<tag> ...]"

VERBS: Final = (
    Verb(b"put", _PUT_ARGUMENTS, args.parse_put, None, grant.PRODUCE, is_repeated=True, max_line=args.MAX_PUT_LINE),
    Verb(b"peek", "<id>", args.parse_id, jobs.peek, grant.INSPECT_JOB, route=JOB),
    Verb(b"peek-ready", "", args.parse_bare, jobs.peek_ready, grant.INSPECT_USED, route=USED),
    Verb(b"peek-delayed", "", args.parse_bare, jobs.peek_delayed, grant.INSPECT_USED, route=USED),
    Verb(b"peek-buried", "", args.parse_bare, jobs.peek_buried, grant.INSPECT_USED, route=USED),
    Verb(b"reserve", "", args.parse_bare, reserves.reserve, grant.CONSUME_WATCHED, awaits_journal=False, route=RESERVE),
    Verb(
        b"reserve-with-timeout", "<timeout>", args.parse_timeout, reserves.reserve_with_timeout, grant.CONSUME_WATCHED,
        awaits_journal=False, is_repeated=True, route=RESERVE,
    ),
    Verb(b"reserve-job", "<id>", args.parse_id, reserves.reserve_job, grant.CONSUME_JOB, route=JOB),
    Verb(b"delete", "<id>", args.parse_id, jobs.delete, grant.CONSUME_JOB, route=JOB),
    Verb(b"release", "<id> <pri> <delay>", args.parse_release, jobs.release, grant.NOTHING, route=JOB),
    Verb(b"bury", "<id> <pri>", args.parse_bury, jobs.bury, grant.NOTHING, route=JOB),
    Verb(b"kick", "<bound>", args.parse_kick, jobs.kick, grant.CONSUME_USED, route=USED),
    Verb(b"kick-job", "<id>", args.parse_id, jobs.kick_job, grant.CONSUME_JOB, route=JOB),
    Verb(b"touch", "<id>", args.parse_id, jobs.touch, grant.NOTHING, route=JOB),
    Verb(b"stats", "", args.parse_bare, sessions.stats, grant.INSPECT_SOME, awaits_journal=False, route=MANY),
    Verb(b"stats-job", "<id>", args.parse_id, jobs.stats_job, grant.INSPECT_JOB, route=JOB),
    Verb(b"stats-tube", "<tube>", args.parse_name, tubes.stats_tube, grant.INSPECT, awaits_journal=False, route=TUBE),
    Verb(b"use", "<tube>", args.parse_name, tubes.use, grant.ANY, awaits_journal=False, is_repeated=True, route=MANY),
    Verb(
        b"watch", "<tube> [<weight>]", args.parse_watch, tubes.watch, grant.CONSUME,
        awaits_journal=False, is_repeated=True, route=MANY,
    ),
    Verb(
        b"ignore", "<tube>", args.parse_name, tubes.ignore, grant.NOTHING,
        awaits_journal=False, is_repeated=True, route=MANY,
    ),
    Verb(b"list-tubes", "", args.parse_bare, tubes.list_tubes, grant.NOTHING, awaits_journal=False, route=MANY),
    Verb(b"list-tube-used", "", args.parse_bare, tubes.list_tube_used, grant.NOTHING, awaits_journal=False, route=MANY),
    Verb(
        b"list-tubes-watched", "", args.parse_bare, tubes.list_tubes_watched, grant.NOTHING,
        awaits_journal=False, route=MANY,
    ),
    Verb(b"quit", "", args.parse_quit, sessions.quit, grant.NOTHING, awaits_journal=False),
    Verb(
        b"pause-tube", "<tube> <delay>", args.parse_pause, tubes.pause_tube, grant.CONSUME,
        needs_space=False, route=TUBE,
    ),
    # Extensions
    Verb(
        b"put-in-tube", "<tube> " + _PUT_ARGUMENTS, args.parse_put_in_tube, None, grant.PRODUCE,
        is_extension=True, is_repeated=True, max_line=args.MAX_PUT_LINE,
    ),
    Verb(
        b"reserve-batch", "<n> [<timeout>]", args.parse_reserve_batch, reserves.reserve_batch, grant.CONSUME_WATCHED,
        is_extension=True, awaits_journal=False, route=RESERVE,
    ),
    Verb(
        b"delete-batch", "<id> ...", args.parse_delete_batch, jobs.delete_batch, grant.CONSUME_EACH,
        is_extension=True, max_line=args.MAX_BATCH_LINE, route=MANY,
    ),
    Verb(
        b"reprioritize", "<id> <pri>", args.parse_reprioritize, jobs.reprioritize, grant.CONSUME_JOB,
        is_extension=True, route=JOB,
    ),
    Verb(b"wait", "<id> [<timeout>]", args.parse_wait, reserves.wait, grant.INSPECT_JOB, is_extension=True, route=JOB),
    Verb(b"touch-all", "", args.parse_bare, jobs.touch_all, grant.NOTHING, is_extension=True, route=MANY),
    Verb(b"peek-reserved", "", args.parse_bare, jobs.peek_reserved, grant.INSPECT_USED, is_extension=True, route=USED),
    Verb(b"flush-tube", "<tube>", args.parse_name, tubes.flush_tube, grant.CONSUME, is_extension=True, route=TUBE),
    Verb(b"flush-buried", "<tube>", args.parse_name, tubes.flush_buried, grant.CONSUME, is_extension=True, route=TUBE),
    Verb(b"truncate", "<tube>", args.parse_name, tubes.truncate, grant.CONSUME, is_extension=True, route=TUBE),
    Verb(
        b"stats-group", "<key>", args.parse_name, sessions.stats_group, grant.INSPECT_GROUP,
        is_extension=True, awaits_journal=False, route=MANY,
    ),
    Verb(
        b"reserve-mode", "fifo|weighted|weighted-fair", args.parse_reserve_mode, tubes.reserve_mode, grant.NOTHING,
        is_extension=True, awaits_journal=False, route=MANY,
    ),
    Verb(
        b"stats-mode", "standard|extended", args.parse_stats_mode, sessions.stats_mode, grant.NOTHING,
        is_extension=True, awaits_journal=False, route=MANY,
    ),
    Verb(
        b"meta", "[<field> ...]", args.parse_meta, sessions.meta, grant.NOTHING,
        is_extension=True, awaits_journal=False, route=MANY,
    ),
    Verb(
        b"drain", "", args.parse_bare, sessions.drain, grant.ADMINISTER,
        is_extension=True, awaits_journal=False, route=MANY,
    ),
    Verb(
        b"undrain", "", args.parse_bare, sessions.undrain, grant.ADMINISTER,
        is_extension=True, awaits_journal=False, route=MANY,
    ),
)  # fmt: skip
"""All commands, those of protocol.txt first."""
