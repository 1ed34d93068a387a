"""Differences of a server with three processes from one process, each with its reason.

docs/processes.md lists the reasons ("Differences from one process"). A difference depends on the process that accepts a
connection, so the replies of one process are right too.
"""

from __future__ import annotations

from dataclasses import dataclass

_ID_OF_THE_OWNER = "the shard of the tube assigns the id when the whole put has arrived"
_CLAIM = "a client that waits in another process gets an offer, and then takes the most urgent ready job"
_END = "the end of a connection takes effect later on the shards of other processes"
_NO_ORDER = "commands on connections to different processes have no order unless one waits for the other's reply"
_ID_IS_NOT_KNOWN = "the conversation uses the id of a job in `x` in the same packet as its put, and so cannot be played"

_A, _B, _C = (rf"RESERVED {{{id}}} 1\r\n{body}" for id, body in enumerate("abc", 1))


@dataclass(frozen=True, slots=True)
class ProcessDifference:
    reason: str
    ours: list[list[str]]
    """All replies in the conversation, normalised, that there may be beside those of one process."""


DIFFERENCES_OF_PROCESSES: dict[str, ProcessDifference] = {
    "ids-follow-headers-over-three-connections": ProcessDifference(
        _ID_OF_THE_OWNER,
        [
            [
                *["INSERTED {3}", "INSERTED {2}", "INSERTED {1}", "INSERTED {4}"],
                *[*order, r"RESERVED {4} 1\r\nd"],
                *["<end>", "<end>", "<end>"],
            ]
            for order in ([_C, _B, _A], [_A, _C, _B], [_B, _C, _A])
        ],
    ),
    "disconnect-offers-jobs-in-the-order-they-were-reserved": ProcessDifference(
        _CLAIM,
        [
            [
                *["INSERTED {1}", r"RESERVED {1} 1\r\nx", "INSERTED {2}", r"RESERVED {2} 1\r\ny"],
                *[r"RESERVED {2} 1\r\ny", r"RESERVED {1} 1\r\nx", "<end>", "<end>"],
            ]
        ],
    ),
    "a-new-connection-is-served-after-existing-ones": ProcessDifference(
        _NO_ORDER, [["INSERTED {1}", r"RESERVED {1} 1\r\nx", "<end>", "<end>"]]
    ),
    "waiters-first-come-first-served-after-a-disconnect": ProcessDifference(
        _END,
        [
            [
                *["USING t", "WATCHING 2", "WATCHING 2", "WATCHING 2", "WATCHING 2", "INSERTED {1}", "INSERTED {2}"],
                *[r"RESERVED {1} 1\r\nx", r"RESERVED {2} 1\r\ny", "<quiet>", "<end>", "<end>", "<end>"],
                *[r"RESERVED {2} 1\r\ny", "<end>"],
            ]
        ],
    ),
}

NOT_PLAYED: dict[str, str] = {"replies-in-the-order-of-commands": _ID_IS_NOT_KNOWN}
"""Conversations that cannot be played to several processes, each with its reason."""


def without_order(line: str, reply: str) -> str:
    """Return *reply* to *line* of a conversation; the tubes of a `list-tubes` are sorted.

    A server with several processes lists the tubes of one shard after the other.
    """
    if "list-tubes" not in line or "list-tubes-watched" in line:
        return reply
    head, *names = reply.split("\n")
    return "\n".join([head, *sorted(names)])
