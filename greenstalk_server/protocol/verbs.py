"""The table of commands: a row for each verb.

Parsing, strict mode, access rules, the replies that wait for the journal, the tests of the documentation and the
fuzzer's grammar follow from it.
"""

from __future__ import annotations

from typing import Final

from greenstalk_server.protocol import job_commands as jobs
from greenstalk_server.protocol import reserve_commands as reserves
from greenstalk_server.protocol import session_commands as sessions
from greenstalk_server.protocol import tube_commands as tubes
from greenstalk_server.protocol.arguments import (
    MAX_BATCH_LINE,
    MAX_PUT_LINE,
    parse_bare,
    parse_bury,
    parse_delete_batch,
    parse_id,
    parse_kick,
    parse_meta,
    parse_name,
    parse_pause,
    parse_put,
    parse_put_in_tube,
    parse_quit,
    parse_release,
    parse_reprioritize,
    parse_reserve_batch,
    parse_reserve_mode,
    parse_stats_mode,
    parse_timeout,
    parse_wait,
    parse_watch,
)
from greenstalk_server.protocol.permissions import (
    ADMINISTER,
    ANY,
    CONSUME,
    CONSUME_EACH,
    CONSUME_JOB,
    CONSUME_USED,
    CONSUME_WATCHED,
    INSPECT,
    INSPECT_GROUP,
    INSPECT_JOB,
    INSPECT_SOME,
    INSPECT_USED,
    NOTHING,
    PRODUCE,
)
from greenstalk_server.protocol.verb import Verb

_PUT_ARGUMENTS: Final = "<pri> <delay> <ttr> <bytes> [<tag> ...]"

VERBS: Final = (
    Verb(b"put", _PUT_ARGUMENTS, parse_put, None, PRODUCE, is_repeated=True, max_line=MAX_PUT_LINE),
    Verb(b"peek", "<id>", parse_id, jobs.peek, INSPECT_JOB),
    Verb(b"peek-ready", "", parse_bare, jobs.peek_ready, INSPECT_USED),
    Verb(b"peek-delayed", "", parse_bare, jobs.peek_delayed, INSPECT_USED),
    Verb(b"peek-buried", "", parse_bare, jobs.peek_buried, INSPECT_USED),
    Verb(b"reserve", "", parse_bare, reserves.reserve, CONSUME_WATCHED, awaits_journal=False),
    Verb(
        b"reserve-with-timeout", "<timeout>", parse_timeout, reserves.reserve_with_timeout, CONSUME_WATCHED,
        awaits_journal=False, is_repeated=True,
    ),
    Verb(b"reserve-job", "<id>", parse_id, reserves.reserve_job, CONSUME_JOB),
    Verb(b"delete", "<id>", parse_id, jobs.delete, CONSUME_JOB),
    Verb(b"release", "<id> <pri> <delay>", parse_release, jobs.release, NOTHING),
    Verb(b"bury", "<id> <pri>", parse_bury, jobs.bury, NOTHING),
    Verb(b"kick", "<bound>", parse_kick, jobs.kick, CONSUME_USED),
    Verb(b"kick-job", "<id>", parse_id, jobs.kick_job, CONSUME_JOB),
    Verb(b"touch", "<id>", parse_id, jobs.touch, NOTHING),
    Verb(b"stats", "", parse_bare, sessions.stats, INSPECT_SOME, awaits_journal=False),
    Verb(b"stats-job", "<id>", parse_id, jobs.stats_job, INSPECT_JOB),
    Verb(b"stats-tube", "<tube>", parse_name, tubes.stats_tube, INSPECT, awaits_journal=False),
    Verb(b"use", "<tube>", parse_name, tubes.use, ANY, awaits_journal=False, is_repeated=True),
    Verb(b"watch", "<tube> [<weight>]", parse_watch, tubes.watch, CONSUME, awaits_journal=False, is_repeated=True),
    Verb(b"ignore", "<tube>", parse_name, tubes.ignore, NOTHING, awaits_journal=False, is_repeated=True),
    Verb(b"list-tubes", "", parse_bare, tubes.list_tubes, NOTHING, awaits_journal=False),
    Verb(b"list-tube-used", "", parse_bare, tubes.list_tube_used, NOTHING, awaits_journal=False),
    Verb(b"list-tubes-watched", "", parse_bare, tubes.list_tubes_watched, NOTHING, awaits_journal=False),
    Verb(b"quit", "", parse_quit, sessions.quit, NOTHING, awaits_journal=False),
    Verb(b"pause-tube", "<tube> <delay>", parse_pause, tubes.pause_tube, CONSUME, needs_space=False),
    # Extensions
    Verb(
        b"put-in-tube", "<tube> " + _PUT_ARGUMENTS, parse_put_in_tube, None, PRODUCE,
        is_extension=True, is_repeated=True, max_line=MAX_PUT_LINE,
    ),
    Verb(
        b"reserve-batch", "<n> [<timeout>]", parse_reserve_batch, reserves.reserve_batch, CONSUME_WATCHED,
        is_extension=True, awaits_journal=False,
    ),
    Verb(
        b"delete-batch", "<id> ...", parse_delete_batch, jobs.delete_batch, CONSUME_EACH,
        is_extension=True, max_line=MAX_BATCH_LINE,
    ),
    Verb(b"reprioritize", "<id> <pri>", parse_reprioritize, jobs.reprioritize, CONSUME_JOB, is_extension=True),
    Verb(b"wait", "<id> [<timeout>]", parse_wait, reserves.wait, INSPECT_JOB, is_extension=True),
    Verb(b"touch-all", "", parse_bare, jobs.touch_all, NOTHING, is_extension=True),
    Verb(b"peek-reserved", "", parse_bare, jobs.peek_reserved, INSPECT_USED, is_extension=True),
    Verb(b"flush-tube", "<tube>", parse_name, tubes.flush_tube, CONSUME, is_extension=True),
    Verb(b"flush-buried", "<tube>", parse_name, tubes.flush_buried, CONSUME, is_extension=True),
    Verb(b"truncate", "<tube>", parse_name, tubes.truncate, CONSUME, is_extension=True),
    Verb(
        b"stats-group", "<key>", parse_name, sessions.stats_group, INSPECT_GROUP,
        is_extension=True, awaits_journal=False,
    ),
    Verb(
        b"reserve-mode", "fifo|weighted|weighted-fair", parse_reserve_mode, tubes.reserve_mode, NOTHING,
        is_extension=True, awaits_journal=False,
    ),
    Verb(
        b"stats-mode", "standard|extended", parse_stats_mode, sessions.stats_mode, NOTHING,
        is_extension=True, awaits_journal=False,
    ),
    Verb(b"meta", "[<field> ...]", parse_meta, sessions.meta, NOTHING, is_extension=True, awaits_journal=False),
    Verb(b"drain", "", parse_bare, sessions.drain, ADMINISTER, is_extension=True, awaits_journal=False),
    Verb(b"undrain", "", parse_bare, sessions.undrain, ADMINISTER, is_extension=True, awaits_journal=False),
)  # fmt: skip
"""All commands, those of protocol.txt first."""
