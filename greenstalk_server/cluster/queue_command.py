"""The command `cluster`: show the shards and processes of a queue in a database, and move a shard to another process.

Everything here blocks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from greenstalk_server.cluster.leadership import HANDOVER_TIMEOUT, make_lease
from greenstalk_server.cluster.shard_move import SHOWN_ID, MoveRefused, ShardMove, request_move, role_of
from greenstalk_server.config.options import Options
from greenstalk_server.journal.postgresql.connection import DATABASE_RETRY_INTERVAL
from greenstalk_server.journal.postgresql.members import Members, Process, Queue, Snapshot
from greenstalk_server.runtime.exit_codes import EXIT_JOURNAL, EXIT_OK, EXIT_USAGE, StartError

_NONE: Final = "none"


def show_cluster(options: Options) -> int:
    """Print the shards and processes of the queue in *options*; return the exit code; raise StartError."""
    with _open_queue(options) as (members, queue):
        snapshot = members.read()
    print(f"queue {queue.name}, shards: {queue.shards}\n")
    print(_table(("shard", "owner", "epoch", "followers"), _shard_rows(snapshot)))
    print(_table(("process", "server", "machine", "links", "version", "state"), _process_rows(snapshot)), end="")
    if relayed := snapshot.relayed_links():
        print(f"\n{_table(('relayed link of', 'and', 'over'), iter(relayed))}", end="")
    return EXIT_OK


def move_shard(options: Options, shard: int, process: str) -> int:
    """Have the owner of *shard* hand it over to *process*, or to a follower if that is empty; return the exit code.

    *process* is the name of a server, or the beginning of the id of a process. Raise StartError.
    """
    with _open_queue(options) as (members, _):
        try:
            move = request_move(members, shard, process)
        except MoveRefused as error:
            raise StartError(f"cluster move: {error}", EXIT_USAGE if error.is_unknown else EXIT_JOURNAL) from error
        now = _await_owner(members, move)
    print(f"shard {shard}: {move.before.holder_name or 'nobody'} has handed over to {now}")
    return EXIT_OK


def _await_owner(members: Members, move: ShardMove) -> str:
    """Wait until *move* is done; return the name of the new owner."""
    until = time.monotonic() + HANDOVER_TIMEOUT
    while True:
        state = members.read().shards[move.shard]
        if move.is_done(state):
            return state.holder_name
        if time.monotonic() > until:
            message = f"cluster move: shard {move.shard} was not moved within {HANDOVER_TIMEOUT} s"
            raise StartError(message, EXIT_JOURNAL)
        time.sleep(DATABASE_RETRY_INTERVAL)


@contextmanager
def _open_queue(options: Options) -> Iterator[tuple[Members, Queue]]:
    """Provide the queue in *options*; turn an OSError into a StartError."""
    lease = make_lease(options, "cluster")
    members = Members(lease, options.journal_name, options.shards)
    try:
        queue = members.find()
        if queue is None:
            message = f"there is no queue {options.journal_name}: its servers are started with --link"
            raise StartError(f"cluster: {message}", EXIT_JOURNAL)
        yield members, queue
    except OSError as error:
        raise StartError(f"cluster: {error}", EXIT_JOURNAL) from error
    finally:
        members.connection.close()
        lease.close()


def _shard_rows(snapshot: Snapshot) -> Iterator[tuple[str, ...]]:
    for number, state in enumerate(snapshot.shards):
        followers = [f"{each.name} ({_lag(each)})" for each in snapshot.followers(number)]
        owner = _NONE if state.is_free else state.holder_name
        yield str(number), owner, str(state.epoch), ", ".join(followers) or _NONE


def _process_rows(snapshot: Snapshot) -> Iterator[tuple[str, ...]]:
    for each in snapshot.processes:
        yield each.id[:SHOWN_ID], each.name, each.machine, each.address, each.version, _state(snapshot, each)


def _state(snapshot: Snapshot, process: Process) -> str:
    role, shard = role_of(snapshot, process)
    if shard is None:
        return role
    return f"{role} shard {shard}" if role == "leads" else f"{role} shard {shard}, {_lag(process)}"


def _lag(process: Process) -> str:
    return "reading" if process.behind is None else f"{process.behind:.1f} s behind"


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    shown = ["  ".join([text.ljust(width) for text, width in zip(line, widths, strict=True)]) for line in lines]
    return "".join([f"{line.rstrip()}\n" for line in shown])
