"""The jobs of the scene: their tubes, ages, states and bodies. Pure; the same seed returns the same jobs.

Six tubes have failed jobs, with ages of minutes to a week. The bodies are jobs of an online shop.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

SECOND: Final = 10**9
MINUTE: Final = 60.0
HOUR: Final = 3600.0
DAY: Final = 86_400.0

Body = Callable[[random.Random, int], dict[str, Any]]

NAMES: Final = ("ana", "bo", "chen", "dilara", "eero", "fatima", "goran", "hana", "ibrahim", "joana", "kofi", "lucia")
CITIES: Final = ("Aarhus", "Bilbao", "Cork", "Dresden", "Graz", "Leiden", "Lyon", "Porto", "Tartu", "Turku")


@dataclass(frozen=True, slots=True)
class Failure:
    """*count* jobs that were buried, between *newest* and *oldest* seconds ago, with an *error* each."""

    count: int
    error: Callable[[random.Random], str]
    newest: float
    oldest: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """The jobs of a tube at the start: *ready* jobs of up to *age* seconds, *delayed* ones, and failures."""

    tube: str
    ready: int = 0
    age: float = 60.0
    delayed: int = 0
    failures: tuple[Failure, ...] = ()
    dead_letters_from: str = ""


def _http(status: int, reason: str) -> Callable[[random.Random], str]:
    return lambda random: f"HTTP {status} from upstream: {reason} (request {random.randrange(16**8):08x})"


def _text(pattern: str, high: int = 10**6) -> Callable[[random.Random], str]:
    return lambda random: pattern.format(random.randrange(high), name=random.choice(NAMES))


_TRACE: Final = (
    'psycopg.errors.UniqueViolation: duplicate key value violates unique constraint "contacts_email_key"\n'
    "DETAIL:  Key (email)=({name}@example.com) already exists.\n"
    "Traceback (most recent call last):\n"
    '  File "/srv/crm/worker.py", line 88, in run\n'
    "    handler(job)\n"
    '  File "/srv/crm/contacts.py", line 412, in merge\n'
    "    cursor.execute(UPSERT, contact)\n"
    '  File "/srv/crm/.venv/lib/python3.12/site-packages/psycopg/cursor.py", line 97, in execute\n'
    "    raise ex.with_traceback(None)\n"
)

TUBES: Final = (
    Waiting("webhooks.deliver", 1204, 4 * MINUTE, 12, (
        Failure(1262, _http(503, "no healthy backend"), 40.0, 9 * HOUR),
        Failure(402, _http(404, "endpoint was removed"), 600.0, 2 * DAY),
        Failure(190, _http(429, "rate limit exceeded"), 120.0, 5 * HOUR),
        Failure(95, _text("TLS handshake with hook-{}.example.net timed out", 40), 900.0, 30 * HOUR),
    )),
    Waiting("billing.capture", 3, 20.0, 0, (
        Failure(371, _text("CardDeclined: do_not_honor for charge ch_{:06}"), 6 * HOUR, 7 * DAY),
        Failure(48, _text("GatewayTimeout: no answer from the acquirer after {} ms", 30_000), 26 * HOUR, 3 * DAY),
    )),
    Waiting("imports.csv", 41, 25 * MINUTE, 0, (
        Failure(83, _text("ValueError: row {}: the column \"sku\" is empty", 5000), 9 * MINUTE, 7 * DAY),
        Failure(25, _text("UnicodeDecodeError: 'utf-8' codec can't decode byte 0xe9 in position {}"), 3 * DAY, 7 * DAY),
    )),
    Waiting("sms", 0, 0, 5, (Failure(27, _text("InvalidRecipient: +49 151 55{:06}"), 2 * DAY, 6 * DAY),)),
    Waiting("crm.sync", 19, 30.0, 0, (Failure(12, _text(_TRACE), HOUR, 8 * HOUR),)),
    Waiting("media.ocr", 7, 90.0, 0, (
        Failure(61, _text("MemoryError: page {} needs more than 512 MiB", 300), 30 * MINUTE, DAY),
    )),
    Waiting("mail.bulk", 11_994, 50 * MINUTE),
    Waiting("search.reindex", 61_300, 11 * HOUR),
    Waiting("reports.monthly", 40, 2 * DAY),
    Waiting("reports.daily", 318, 100 * MINUTE),
    Waiting("exports.accounting", 22, 5 * HOUR),
    Waiting("events.audit", 4820, 3 * HOUR),
    Waiting("tenants.migrate", 7, 7 * DAY),
    Waiting("mail.digest", 0, 0, 2410),
    Waiting("notifications.reminders", 0, 0, 861),
    Waiting("users.delete", 0, 0, 133),
    Waiting("webhooks.failed", 37, 4 * DAY, dead_letters_from="webhooks.deliver"),
    Waiting("billing.failed", 9, 6 * DAY, dead_letters_from="billing.capture"),
    Waiting("media.transcode", 96, 12 * MINUTE),
    Waiting("orders.fulfil", 6, 2.0), Waiting("orders.new", 2, 1.0), Waiting("orders.archive", 12, 50.0),
    Waiting("mail.transactional", 3, 1.0), Waiting("push.ios", 14, 2.0), Waiting("push.android", 9, 2.0),
    Waiting("billing.invoices", 5, 8.0), Waiting("billing.dunning", 1, 3.0, 44), Waiting("billing.refunds", 2, 4.0),
    Waiting("search.index", 25, 2.0), Waiting("media.thumbnails", 30, 3.0), Waiting("crm.contacts.merge", 1, 4.0),
    Waiting("inventory.sync", 8, 5.0), Waiting("inventory.reserve", 1, 1.0), Waiting("shipping.labels", 4, 3.0),
    Waiting("shipping.tracking", 16, 30.0, 320), Waiting("fraud.score", 2, 1.0), Waiting("users.provision", 1, 2.0),
    Waiting("cache.warm", 20, 6.0), Waiting("events.analytics", 44, 2.0), Waiting("geo.lookup", 6, 1.0),
    Waiting("documents.sign", 1, 4.0), Waiting("imports.suppliers", 2, 60.0), Waiting("exports.csv", 3, 12.0),
    Waiting("backup.nightly", 0, 0, 1), Waiting("sessions.expire", 0, 0, 75),
)  # fmt: skip
"""45 tubes."""


def body_of(tube: str, random: random.Random) -> dict[str, Any]:
    """Return the body of a new job of *tube*."""
    number = random.randrange(100_000, 999_999)
    customer = {"id": 310_000 + number % 7919, "email": f"{random.choice(NAMES)}{number % 97}@example.com"}
    kind = tube.partition(".")[0]
    if kind == "webhooks":
        event = random.choice(("order.paid", "order.shipped", "invoice.created", "customer.updated"))
        return {"event": event, "url": f"https://hook-{number % 40}.example.net/v2/events", "order": number}
    if kind == "billing":
        return {"charge": f"ch_{number}", "amount": number % 20_000, "currency": "EUR", "customer": customer}
    if kind in ("mail", "sms", "push", "notifications"):
        template = random.choice(("welcome", "receipt", "reset-password", "back-in-stock"))
        return {"template": template, "to": customer, "locale": random.choice(("de", "en", "et", "fr", "pt"))}
    if kind in ("imports", "exports", "reports"):
        return {
            "file": f"s3://shop-{kind}/{number % 400}/{tube}-{number}.csv",
            "rows": number % 5000,
            "tenant": number % 40,
        }
    if kind in ("orders", "shipping", "fraud", "inventory"):
        city = random.choice(CITIES)
        return {
            "order": number,
            "customer": customer,
            "to": {"city": city, "zip": f"{number % 99_999:05}"},
            "lines": number % 9 + 1,
        }
    return {"object": f"{kind}/{number}", "tenant": number % 40, "version": number % 30}


def archive_entries(seed: int, now: int) -> Iterator[dict[str, Any]]:
    """Yield the jobs at the start as lines of an archive, for `journal import`. *now* is in nanoseconds."""
    chance = random.Random(seed)  # noqa: S311
    planned: list[tuple[int, dict[str, Any]]] = []
    for waiting in TUBES:
        planned += [(line["created_at"], line) for line in _lines(waiting, chance, now)]
    planned.sort(key=lambda one: one[0])
    burial = 0
    for id, (_, line) in enumerate(planned, 1):
        if line["state"] == "buried":
            burial += 1
            line["deadline"] = burial
        yield {"type": "job", "id": id} | line


def _lines(waiting: Waiting, chance: random.Random, now: int) -> Iterator[dict[str, Any]]:
    for _ in range(waiting.ready):
        at = now - int(chance.uniform(0.02, 1) * waiting.age * SECOND)
        line = _line(waiting.tube, body_of(waiting.tube, chance), "ready", at, chance) | {"deadline": at}
        if source := waiting.dead_letters_from:
            times = {"first_at": at, "last_at": at + 20 * SECOND}
            line["dead_letter"] = {"reason": "attempts", "source": source, "attempts": 5} | times
            line["body"] = json.dumps(body_of(source, chance) | {"error": _http(410, "gone")(chance)})
        yield line
    for _ in range(waiting.delayed):
        left = int(chance.uniform(60, 8 * HOUR) * SECOND)
        at = now - int(chance.uniform(0, HOUR) * SECOND)
        yield _line(waiting.tube, body_of(waiting.tube, chance), "delayed", at, chance) | {
            "delay": now + left - at, "deadline": now + left,
        }  # fmt: skip
    for failure in waiting.failures:
        for _ in range(failure.count):
            failed = now - int((failure.newest + (failure.oldest - failure.newest) * chance.random() ** 2) * SECOND)
            attempts = chance.randrange(1, 5)
            events = [
                [failed - (attempts - turn) * 37 * SECOND + step * 2 * SECOND, kind, 3 + turn]
                for turn in range(1, attempts + 1)
                for step, kind in enumerate(("reserved", "buried" if turn == attempts else "released"))
            ]
            counts = {"reserves": attempts, "releases": attempts - 1, "buries": 1, "events": events}
            body = body_of(waiting.tube, chance) | {"attempt": attempts, "error": failure.error(chance)}
            yield _line(waiting.tube, body, "buried", failed - attempts * 60 * SECOND, chance) | counts


def _line(tube: str, body: dict[str, Any], state: str, at: int, chance: random.Random) -> dict[str, Any]:
    zero = dict.fromkeys(("delay", "reserves", "timeouts", "releases", "buries", "kicks"), 0)
    return zero | {
        "tube": tube, "state": state, "pri": chance.choice((100, 1024, 1024, 1024, 65536)), "ttr": 120 * SECOND,
        "created_at": at, "encoding": "utf-8", "body": json.dumps(body),
    }  # fmt: skip
