"""The command `cluster`: show the shards and processes of a queue in a database, and move a shard to another process.

Everything here blocks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from greenstalk_server.cluster.leadership import HANDOVER_TIMEOUT, make_lease
from greenstalk_server.config.options import Options
from greenstalk_server.journal.postgresql.connection import DATABASE_RETRY_INTERVAL
from greenstalk_server.journal.postgresql.members import Members, Process, Queue, Snapshot
from greenstalk_server.runtime.exit_codes import EXIT_JOURNAL, EXIT_OK, EXIT_USAGE, StartError

SHOWN_ID: Final = 8
"""Digits of the id of a process that are shown, and that name it."""

_NONE: Final = "none"


def show_cluster(options: Options) -> int:
    """Print the shards and processes of the queue in *options*; return the exit code; raise StartError."""
    with _open_queue(options) as (members, queue):
        snapshot = members.read()
    print(f"queue {queue.name}, shards: {queue.shards}\n")
    print(_table(("shard", "owner", "epoch", "followers"), _shard_rows(snapshot)))
    print(_table(("process", "server", "machine", "links", "version", "state"), _process_rows(snapshot)), end="")
    return EXIT_OK


def move_shard(options: Options, shard: int, process: str) -> int:
    """Have the owner of *shard* hand it over to *process*, or to a follower if that is empty; return the exit code.

    *process* is the name of a server, or the beginning of the id of a process. Raise StartError.
    """
    with _open_queue(options) as (members, queue):
        if not 0 <= shard < queue.shards:
            raise StartError(f"cluster move {shard}: the queue has the shards 0 to {queue.shards - 1}", EXIT_USAGE)
        snapshot = members.read()
        before = snapshot.shards[shard]
        target = _find(snapshot, process) if process else None
        if target is not None:
            if target.id == before.holder and not before.is_free:
                raise StartError(f"cluster move: {target.name} leads shard {shard} already", EXIT_JOURNAL)
            led = _led_by(snapshot, target)
            if led is not None:
                raise StartError(f"cluster move: {target.name} leads shard {led}, and leads one at most", EXIT_JOURNAL)
            members.request_move(shard, target.id)
        elif before.is_free:
            raise StartError(f"cluster move: no process leads shard {shard}", EXIT_JOURNAL)
        elif not snapshot.followers(shard):
            raise StartError(f"cluster move: no process follows shard {shard}; name one that leads none", EXIT_JOURNAL)
        else:
            members.request_handover(shard)
        now = _await_owner(members, shard, before.holder, target)
    print(f"shard {shard}: {before.holder_name or 'nobody'} has handed over to {now}")
    return EXIT_OK


def _await_owner(members: Members, shard: int, before: str, target: Process | None) -> str:
    """Wait until another process than *before* leads *shard*, *target* if it is given; return its name."""
    until = time.monotonic() + HANDOVER_TIMEOUT
    while True:
        state = members.read().shards[shard]
        is_moved = state.holder == target.id if target is not None else state.holder != before
        if is_moved and not state.is_free:
            return state.holder_name
        if time.monotonic() > until:
            raise StartError(f"cluster move: shard {shard} was not moved within {HANDOVER_TIMEOUT} s", EXIT_JOURNAL)
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


def _find(snapshot: Snapshot, name: str) -> Process:
    """Return the living process that *name* means; raise StartError."""
    living = [each for each in snapshot.processes if each.is_alive]
    found = [each for each in living if each.name == name] or [each for each in living if each.id.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise StartError(f"cluster move: {name} may be {_names(found)}; use more of the id", EXIT_USAGE)
    raise StartError(f"cluster move: there is no process {name}; there are {_names(living) or _NONE}", EXIT_USAGE)


def _names(processes: Sequence[Process]) -> str:
    return ", ".join([f"{each.id[:SHOWN_ID]} ({each.name})" for each in processes])


def _led_by(snapshot: Snapshot, process: Process) -> int | None:
    """Return the shard that *process* leads; None if it leads none."""
    led = [number for number, each in enumerate(snapshot.shards) if each.holder == process.id and not each.is_free]
    return led[0] if led else None


def _shard_rows(snapshot: Snapshot) -> Iterator[tuple[str, ...]]:
    for number, state in enumerate(snapshot.shards):
        followers = [f"{each.name} ({_lag(each)})" for each in snapshot.followers(number)]
        owner = _NONE if state.is_free else state.holder_name
        yield str(number), owner, str(state.epoch), ", ".join(followers) or _NONE


def _process_rows(snapshot: Snapshot) -> Iterator[tuple[str, ...]]:
    for each in snapshot.processes:
        yield each.id[:SHOWN_ID], each.name, each.machine, each.address, each.version, _state(snapshot, each)


def _state(snapshot: Snapshot, process: Process) -> str:
    if not process.is_alive:
        return "silent"
    led = _led_by(snapshot, process)
    if led is not None:
        return f"leads shard {led}"
    return "starting" if process.shard is None else f"follows shard {process.shard}, {_lag(process)}"


def _lag(process: Process) -> str:
    return "reading" if process.behind is None else f"{process.behind:.1f} s behind"


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    shown = ["  ".join([text.ljust(width) for text, width in zip(line, widths, strict=True)]) for line in lines]
    return "".join([f"{line.rstrip()}\n" for line in shown])
