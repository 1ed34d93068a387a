"""Sends the conditions that need attention to the receivers in the configuration.

A greenlet evaluates the conditions every few seconds, in slices. Each receiver has at most one message in transit, in a
greenlet of its own. The request itself runs in a native thread (web.framework.outbound).
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

import gevent
from werkzeug.exceptions import NotFound

from greenstalk_server.cluster.status import ClusterStatus
from greenstalk_server.config.tables.receivers import Receiver
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.runtime.supervisor import Service
from greenstalk_server.web.features.alerts.messages import Message, messages, test_batch
from greenstalk_server.web.features.alerts.receiver_alerts import RESTORED_TIME, Alert, Batch, ReceiverAlerts
from greenstalk_server.web.features.alerts.state import Delivery, State
from greenstalk_server.web.features.conditions.acknowledgements import Acknowledgements
from greenstalk_server.web.features.conditions.measures import Link
from greenstalk_server.web.features.conditions.monitor import ConditionMonitor
from greenstalk_server.web.framework.api.values import instant
from greenstalk_server.web.framework.cooperative import in_batches, repeated
from greenstalk_server.web.framework.outbound import Request, RequestFailed, Response, Secrets, send
from greenstalk_server.web.store.store import Store

INTERVAL: Final = 2.0
"""Seconds between two rounds."""

CONDITION_INTERVAL: Final = 0.001
"""Seconds per active condition between two rounds, if their sum is longer than INTERVAL."""

TAKEOVER_TIME: Final = 60 * SECOND
"""Nanoseconds from a takeover until conditions are sent: clients need this time to connect to the new leader."""

FIRST_RETRY: Final = 5 * SECOND
MAX_RETRY: Final = 300 * SECOND
"""Nanoseconds until the first retry. The time doubles with each retry, and is reduced by a random part of up to a
half."""

REJECTED_RETRY: Final = 900 * SECOND
"""Nanoseconds until a retry after a status of 400 to 499: the request or the configuration is wrong."""

MAX_RETRY_AFTER: Final = 3600 * SECOND
"""Longest Retry-After that is honoured, nanoseconds."""

PASSING: Final = frozenset({408, 425, 429})
"""Statuses from 400 to 499 after which a retry may succeed soon."""

MAX_ERROR: Final = 300
"""Characters of an error in the log."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ReceiverQueue:
    """A receiver, its alerts, and its last attempts.

    failures        failed attempts since the last success.
    next_try        time before which nothing is sent; 0 for no delay.
    error           reason why the last attempt failed; empty if it succeeded, or if there was none.
    is_sending      whether a message is in transit.
    """

    receiver: Receiver
    alerts: ReceiverAlerts
    failures: int = 0
    next_try: int = 0
    error: str = ""
    is_sending: bool = False


class Alerts:
    """The alerts of one server.

    queues          one for each receiver, by name.
    sent, failed    numbers of messages that a receiver has accepted, and of attempts that failed, by receiver.
    """

    def __init__(
        self,
        attention: ConditionMonitor,
        acknowledgements: Acknowledgements,
        clock: Clock,
        receivers: Callable[[], tuple[Receiver, ...]],
        *,
        source: str,
        path_of: Callable[[Link], str],
        role: Callable[[], ClusterStatus] | None = None,
        store: Store,
    ) -> None:
        """Send the conditions of *attention* that *acknowledgements* do not cover.

        receivers   returns the configured receivers.
        source      name of this server, or of the journal that it shares.
        path_of     returns the path of a page.
        role        returns the status of a server that shares its journal: only the leader sends.
        store       keeps the state.
        """
        self.queues: dict[str, ReceiverQueue] = {}
        self.sent: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self._attention: ConditionMonitor = attention
        self._acknowledgements: Acknowledgements = acknowledgements
        self._clock: Clock = clock
        self._receivers: Callable[[], tuple[Receiver, ...]] = receivers
        self._known: tuple[Receiver, ...] = ()
        self._source: str = source
        self._path_of: Callable[[Link], str] = path_of
        self._role: Callable[[], ClusterStatus] | None = role
        self.store: Store = store
        self._state: State = State(store, self._restart)
        self._observer: Service = Service("alerts", repeated(self.tick))
        self._sending: set[gevent.Greenlet] = set()
        self._started_at: int = clock()
        self._led_since: int = 0
        self._is_stopped: bool = False

    def start(self) -> None:
        """Start a greenlet that observes for as long as this object is referenced. Does not switch."""
        self._observer.start()

    def stop(self) -> None:
        """Stop sending, and abort messages in transit. Does not switch."""
        self._is_stopped = True
        gevent.killall(list(self._sending), block=False)

    @property
    def log(self) -> list[Delivery]:
        """The last attempts, the newest first."""
        return list(reversed(self._state.log))

    def is_acknowledged(self, kind: str, tube: bytes) -> bool:
        """Whether conditions of this *kind* and *tube* are acknowledged now."""
        return self._acknowledgements.has(kind, tube, self._clock())

    def waiting(self, name: str) -> int:
        """Return the number of conditions that are due, and that the receiver *name* has not accepted."""
        return self.queues[name].alerts.waiting(self._clock(), self.is_acknowledged)

    def test(self, name: str) -> Delivery:
        """Send a test to the receiver *name*, without retries; raise NotFound. Switches.

        If it succeeds, conditions that wait for a retry are sent at once.
        """
        self.follow_configuration()
        queue = self.queues.get(name)
        if queue is None:
            raise NotFound(f"There is no receiver “{name[:40]}” in the configuration.")
        now = self._clock()
        (message,) = messages(queue.receiver, test_batch(now), 0, self._source, self._path_of, now)
        delivery, _ = self._send(queue, message, "test", 1)
        if not delivery.error:
            queue.next_try, queue.failures = 0, 0
        self._save()
        return delivery

    def follow_configuration(self) -> None:
        """Apply the current configuration of the receivers. Does not switch."""
        receivers = self._receivers()
        if receivers is self._known:
            return
        queues = {}
        for receiver in receivers:
            queue = self.queues.get(receiver.name)
            if queue is None or queue.receiver != receiver:
                queue = ReceiverQueue(receiver, ReceiverAlerts(receiver, self._restored(receiver, queue)))
            queues[receiver.name] = queue
        self.queues, self._known = queues, receivers

    def tick(self) -> float:
        """Evaluate the conditions, and start to send what is due; return the seconds until the next round. May switch.

        Only one greenlet may call this.
        """
        self.follow_configuration()
        if self._is_stopped or not self._leads() or not self.queues or not self._attention.evaluated_at:
            return INTERVAL
        of_receivers = [queue.alerts for queue in self.queues.values()]
        for alerts in of_receivers:
            alerts.begin_round()
        for condition in self._attention.each_active():
            for alerts in of_receivers:
                alerts.take(condition, self.is_acknowledged)
        now = self._clock()
        for queue in in_batches(list(self.queues.values()), 1):
            queue.alerts.end_round(now)
            if not queue.is_sending and now >= queue.next_try:
                batch = queue.alerts.due(now, self.is_acknowledged)
                if batch.items:
                    self._begin(queue, batch)
        return max(INTERVAL, CONDITION_INTERVAL * self._attention.counts.total())

    def _leads(self) -> bool:
        """Return whether this server is the leader, and its clients had time to connect."""
        if self._role is None:
            return True
        now = self._clock()
        if not self._role().is_active:
            self._led_since = 0
            return False
        self._led_since = self._led_since or now
        return now - self._led_since >= TAKEOVER_TIME

    def _begin(self, queue: ReceiverQueue, batch: Batch) -> None:
        """Start to send *batch*. Does not switch."""
        queue.is_sending = True
        sending = gevent.spawn(self._deliver, queue, batch)
        self._sending.add(sending)
        sending.rawlink(self._sending.discard)

    def _deliver(self, queue: ReceiverQueue, batch: Batch) -> None:
        """Send *batch*, and record the conditions that the receiver accepted. Switches."""
        now, attempt = self._clock(), queue.failures + 1
        try:
            for message in messages(queue.receiver, batch, queue.alerts.more, self._source, self._path_of, now):
                delivery, wait = self._send(queue, message, Batch(message.items).summary(), attempt)
                if delivery.error:
                    queue.failures += 1
                    queue.next_try = self._clock() + _retry_time(queue.failures, wait)
                    break
                queue.failures, attempt = 0, 1
                queue.alerts.accept(message.items, self._clock())
        except Exception:
            log.exception("alerts: a message to %s failed", queue.receiver.name)
            queue.failures += 1
            queue.next_try = self._clock() + REJECTED_RETRY
        finally:
            queue.is_sending = False
        self._save()

    def _send(self, queue: ReceiverQueue, message: Message, summary: str, attempt: int) -> tuple[Delivery, int]:
        """Send *message*; return its log entry, and the nanoseconds until a retry, 0 for the default. Switches."""
        receiver, at = queue.receiver, self._clock()
        status, seconds, wait = 0, 0.0, 0

        def build(secrets: Secrets) -> Request:
            headers, body = message.build(secrets.get("secret", ""))
            return Request(body=body, headers=headers)

        try:
            response = send(receiver.target, build, {"secret": receiver.secret})
        except RequestFailed as failure:
            error, seconds = str(failure), (self._clock() - at) / SECOND
        else:
            status, seconds = response.status, response.seconds
            error, wait = _error(response), _wait(response)
        delivery = Delivery(
            at=instant(at),
            receiver=receiver.name,
            summary=summary,
            attempt=attempt,
            status=status or None,
            seconds=round(seconds, 3),
            error=error[:MAX_ERROR],
        )
        self._state.log.append(delivery)
        (self.failed if error else self.sent)[receiver.name] += 1
        if error and error != queue.error:
            log.warning("alerts: %s has not accepted a message: %s", receiver.name, error[:MAX_ERROR])
        elif not error and queue.error:
            log.info("alerts: %s accepts messages again", receiver.name)
        queue.error = error
        return delivery, wait

    def _restart(self) -> None:
        """Continue with the alerts of the previous run, after its state has been read. Does not switch."""
        self._started_at = self._clock()
        self.queues, self._known = {}, ()

    def _restored(self, receiver: Receiver, before: ReceiverQueue | None) -> list[Alert]:
        """Return the alerts of *receiver*: from *before*, its earlier configuration, or from the last run."""
        if before is not None:
            return list(before.alerts.alerts.values())
        restored = self._state.alerts.pop(receiver.name, [])
        for alert in restored:
            alert.kept_until, alert.is_present = self._started_at + RESTORED_TIME, False
        return restored

    def _save(self) -> None:
        """Write the state. Switches."""
        self._state.save({name: queue.alerts.alerts.values() for name, queue in self.queues.items()})


def _error(response: Response) -> str:
    """Return the reason why *response* does not accept the message; empty if it does."""
    if 200 <= response.status < 300:
        return ""
    if 300 <= response.status < 400:
        return f"status {response.status}: redirects are not followed"
    text = " ".join(response.body[:MAX_ERROR].decode(errors="replace").split())
    shown = "".join([character for character in text if character.isprintable()])
    return f"status {response.status}" + (f", response: “{shown}”" if shown else "")


def _wait(response: Response) -> int:
    """Return the nanoseconds until a retry that *response* or its status requires; 0 for the default."""
    given = response.headers.get("retry-after", "").strip()
    wait = 0
    if given.isascii() and given.isdigit() and len(given) < 10:
        wait = int(given) * SECOND
    elif given:
        try:
            at = parsedate_to_datetime(given[:100])
            wait = int((at - datetime.now(at.tzinfo and UTC)).total_seconds() * SECOND)
        except (TypeError, ValueError, OverflowError):
            wait = 0
    if not wait and 300 <= response.status < 500 and response.status not in PASSING:
        return REJECTED_RETRY
    return min(max(0, wait), MAX_RETRY_AFTER)


def _retry_time(failures: int, least: int) -> int:
    """Return the nanoseconds until the next attempt after *failures*, at least *least*."""
    longest = min(MAX_RETRY, FIRST_RETRY * 2 ** min(failures - 1, 20))
    return max(least, int(longest * random.uniform(0.5, 1)))  # noqa: S311  to spread retries
