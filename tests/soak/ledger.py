"""What the clients know of every job: whether it was put, and whether it was deleted; and the audit at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass
class Ledger:
    """One process's part. Ids and tokens; a token is what a job's body begins with, and no other job's does.

    put             acknowledged, by id.
    perhaps_put     sent, and the connection broke before the answer.
    deleted         acknowledged, by id.
    perhaps_deleted sent, and the connection broke before the answer.
    wrong           what should not be, a line each.
    """

    put: dict[int, str] = field(default_factory=dict)
    perhaps_put: set[str] = field(default_factory=set)
    deleted: dict[int, str] = field(default_factory=dict)
    perhaps_deleted: set[int] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    deeds: dict[str, int] = field(default_factory=dict)

    def count(self, deed: str, times: int = 1) -> None:
        """Note that something was done, for the report."""
        self.deeds[deed] = self.deeds.get(deed, 0) + times

    def merge(self, other: Ledger) -> None:
        """Add what another process knows."""
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
        for deed, times in other.deeds.items():
            self.count(deed, times)


def body_of(token: str, size: int) -> bytes:
    """The body of the job *token*, about *size* bytes, from which token and size can be told."""
    head = b"%b:%d:" % (token.encode(), size)
    return head + (head * (size // len(head) + 1))[:size]


def token_of(body: bytes) -> str | None:
    """Whose body this is; None if it is none that was ever put."""
    token, _, rest = body.partition(b":")
    size, _, _ = rest.partition(b":")
    try:
        return token.decode() if body == body_of(token.decode(), int(size)) else None
    except ValueError:
        return None


def audit(ledger: Ledger, present: Mapping[int, bytes]) -> dict[str, int]:
    """Hold *ledger*, of all processes, against the jobs that there are; add to `wrong`, and return the sums."""
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
    """Jobs put = deleted + present: those whose put or delete nobody can tell of count as what became of them."""
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
