"""The cost model of a session: how much work a slice may do, and the cost of each kind of work.

A slice ends when its cost exceeds OUTPUT_SLICE, or after COMMAND_SLICE commands. The unit of cost is a byte of replies;
other work is converted to it by the CPU time that it takes. The poller adds up the same costs.
"""

from __future__ import annotations

from typing import Final

from greenstalk_server.core.tubes.name_list import CHUNK_SIZE

OUTPUT_SLICE: Final = 65536
"""Maximum cost of a slice, about a millisecond. A reply of more bytes is sent as a stream."""

COMMAND_SLICE: Final = 500
"""Maximum commands of a slice: about a millisecond of puts."""

COMMAND_COST: Final = OUTPUT_SLICE // COMMAND_SLICE
"""Cost of a command without its reply."""

SHORT_LIST: Final = 256
"""Maximum names of a list that is certain to be smaller than OUTPUT_SLICE, however long the names are."""

WATCHED_BATCH: Final = 64
WATCHED_COST: Final = 512
"""Cost of a reserve per WATCHED_BATCH watched tubes. Fewer tubes cost nothing. The cost of a reserve from 8000 tubes is
almost OUTPUT_SLICE; the reserve takes about two milliseconds."""

EXAMINE_COST: Final = 24
"""Further cost of a reserve per watched tube, if there are WATCHED_BATCH or more and the client has no tube set: the
reserve examines each tube, or makes a set."""

UNPAUSE_COST: Final = OUTPUT_SLICE // 2
"""Cost of the end of a pause, which may hand out a slice of jobs."""

WEIGHTED_COST: Final = 128
"""Cost of a weighted reserve per watched tube. The reserve examines all of them, which takes 2 us for each that has a
job."""

NAME_COST: Final = 2
"""Cost of each name of a long list that is copied to be sent as a stream."""

KICK_COST: Final = 128
"""Cost of each job that a kick moves."""

JOB_COST: Final = 128
"""Cost of each job that a delete-batch, a touch-all or a flush examines."""

RESERVE_COST: Final = 64
"""Cost of each job of a reserve-batch, without its body."""

SCAN_COST: Final = 16
"""Cost of each client, and each job that it holds, that a search for reserved jobs examines."""

COPIED_IDS: Final = 2
"""Number of job ids copied for a cost of 1. A search for reserved jobs copies a client's ids, then examines the
jobs."""

NEW_TUBE_COST: Final = 2048
"""Cost of a new or dropped tube. Creating the tube and putting a first job into it takes 13 us."""

CLOSE_COST: Final = 2048
"""Cost of the end of a connection. With the close of its socket it takes 30 us."""

DISCONNECT_COST: Final = 128
"""Cost of each job and each watched tube of a client that disconnects."""

LIST_COST: Final = 64
"""Cost of each tube whose grant a list-tubes examines."""

LIST_BATCH: Final = 3 * CHUNK_SIZE
"""Tubes that a list-tubes examines in one slice."""
