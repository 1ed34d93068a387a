"""The clients' knowledge of every job: whether it was put and whether it was deleted; and the audit at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass
class Ledger:
    """The ledger of one process, by id and token. A token is the start of a job's body, unique to the job.

    put             acknowledged, by id.
    perhaps_put     sent, but the connection broke before the reply.
    deleted         acknowledged, by id.
    perhaps_deleted sent, but the connection broke before the reply.
    wrong           errors, one line each.
    """

    put: dict[int, str] = field(default_factory=dict)
    perhaps_put: set[str] = field(default_factory=set)
    deleted: dict[int, str] = field(default_factory=dict)
    perhaps_deleted: set[int] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    actions: dict[str, int] = field(default_factory=dict)

    def count(self, action: str, times: int = 1) -> None:
        """Count an action, for the report."""
        self.actions[action] = self.actions.get(action, 0) + times

    def merge(self, other: Ledger) -> None:
        """Add the ledger of another process."""
        for id, token in other.put.items():
            if id in self.put:
                self.wrong.append(f"id {id} was given to {token} and to {self.put[id]}")
            self.put[id] = token
        for id, token in other.deleted.items():
            if id in self.deleted:
                self.wrong.append(f"job {id} was deleted twice")
            self.deleted[id] = token
        self.perhaps_put |= other.perhaps_put
        self.perhaps_deleted |= other.perhaps_deleted
        self.wrong += other.wrong
        for action, times in other.actions.items():
            self.count(action, times)


def body_of(token: str, size: int) -> bytes:
    """Return the body of the job *token*: about *size* bytes, with the token and a way to check the size."""
    head = b"%b:%d:" % (token.encode(), size)
    return head + (head * (size // len(head) + 1))[:size]


def token_of(body: bytes) -> str | None:
    """Return the token of *body*; None if no client has put it."""
    token, _, rest = body.partition(b":")
    size, _, _ = rest.partition(b":")
    try:
        return token.decode() if body == body_of(token.decode(), int(size)) else None
    except ValueError:
        return None


def audit(ledger: Ledger, present: Mapping[int, bytes]) -> dict[str, int]:
    """Compare *ledger*, of all processes, with the existing jobs; add errors to `wrong`, and return the sums."""
    tokens = {id: token_of(body) for id, body in present.items()}
    wrong = ledger.wrong
    for id, token in tokens.items():
        if token is None:
            wrong.append(f"job {id} has a body that nobody put: {present[id][:80]!r}")
        elif id in ledger.deleted:
            wrong.append(f"job {id} was deleted, and is there")
        elif ledger.put.get(id, token) != token or (id not in ledger.put and token not in ledger.perhaps_put):
            wrong.append(f"job {id} is {token}, and was put as {ledger.put.get(id)}")
    for id, token in ledger.deleted.items():
        if ledger.put.get(id, token) != token or (id not in ledger.put and token not in ledger.perhaps_put):
            wrong.append(f"job {id} was {token} when it was deleted, and was put as {ledger.put.get(id)}")
    gone = ledger.put.keys() - present.keys() - ledger.deleted.keys() - ledger.perhaps_deleted
    wrong += [f"job {id}, {ledger.put[id]}, is lost" for id in sorted(gone)]
    once = [*tokens.values(), *(token for id, token in ledger.deleted.items() if id not in tokens)]
    if len(set(once)) < len(once):
        wrong.append("a job was there twice")
    return _sums(ledger, present)


def _sums(ledger: Ledger, present: Iterable[int]) -> dict[str, int]:
    """Return the terms of put = deleted + present.

    A put or a delete without a reply counts as carried out if the present jobs show that it was.
    """
    there = set(present)
    unanswered = ledger.perhaps_deleted & ledger.put.keys() - ledger.deleted.keys() - there
    sums = {
        "put": len(ledger.put.keys() | there | ledger.deleted.keys()),
        "deleted": len(ledger.deleted),
        "deleted, unanswered": len(unanswered),
        "present": len(there),
    }
    if sums["put"] != sums["deleted"] + sums["deleted, unanswered"] + sums["present"]:
        ledger.wrong.append(f"the sums do not agree: {sums}")
    return sums
