"""Counters per command, and the exact YAML of stats replies."""

from __future__ import annotations

import re

import pytest
import yaml

from greenstalk_server.core.counters import COUNTERS
from greenstalk_server.core.operations import draining
from greenstalk_server.protocol.arguments import mode
from greenstalk_server.protocol.verb import Verb
from greenstalk_server.protocol.verbs import VERBS
from tests.support.grammar import example
from tests.support.talk import Talk

COUNTED: dict[bytes, str] = {
    b"put 0 0 9 1\r\nxxx": "put",
    b"put 0 0 9 65536\r\n" + b"b" * 65538: "put",
    b"put 0 0 9 0 x\r\n": "put",
    b"watch a 7\r\n": "watch",
    b"pause-tube a 0\r\n": "pause_tube",
    b"pause-tube -a 0\r\n": "pause_tube",
}

COUNTED_VERBS = (
    "put", "peek", "peek-ready", "peek-delayed", "peek-buried", "reserve", "reserve-with-timeout", "delete", "release",
    "use", "watch", "ignore", "bury", "kick", "touch", "stats", "stats-job", "stats-tube", "list-tubes",
    "list-tube-used", "list-tubes-watched", "pause-tube",
)  # fmt: skip
"""Verbs with a counter, in the order of the YAML."""

MALFORMED = [
    b"put a 0 9 0\r\n", b"put 0 0 9\r\n", b"peek x\r\n", b"peek-readyx\r\n", b"reserve 0\r\n",
    b"reserve-with-timeout x\r\n", b"delete x\r\n", b"release 9 0\r\n", b"use -a\r\n", b"watch -a\r\n",
    b"ignore -a\r\n", b"bury 9\r\n", b"kick x\r\n", b"touch x\r\n", b"stats x\r\n", b"stats-job x\r\n",
    b"stats-tube -a\r\n", b"list-tubes \r\n", b"pause-tube a\r\n", b"hello\r\n",
]  # fmt: skip


def counts(talk: Talk) -> dict[str, int]:
    counters = talk.broker.counters
    return {name.removeprefix("cmd_"): getattr(counters, name) for name in COUNTERS if name[:4] == "cmd_"}


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name.decode())
def test_command_is_counted_if_it_has_a_counter(verb: Verb) -> None:
    talk, name = Talk(), verb.name.decode().replace("-", "_")
    before = counts(talk)
    talk.send(example(verb))
    assert counts(talk) == before | ({name: 1} if name in before else {})


@pytest.mark.parametrize(("sent", "counter"), COUNTED.items())
def test_command_is_counted_even_if_its_body_or_name_is_refused(sent: bytes, counter: str) -> None:
    talk = Talk()
    before = counts(talk)
    talk.send(sent)
    assert counts(talk) == before | {counter: 1}


@pytest.mark.parametrize("sent", [*MALFORMED, b"put-in-tube a 0 0 9 0 grp:g\r\n\r\n"])
def test_malformed_or_uncounted_command_changes_no_counter(sent: bytes) -> None:
    talk = Talk()
    before = counts(talk)
    talk.send(sent)
    assert counts(talk) == before


@pytest.mark.parametrize(
    ("sent", "producers", "workers"),
    [
        (b"put 0 0 9 0\r\n\r\n", 1, 0),
        (b"put 0 0 9 5\r\n", 1, 0),
        (b"put 0 0 9 0\r\nxx", 1, 0),
        (b"put 0 0 9 65536\r\n", 0, 0),
        (b"put 0 0 9 0 x\r\n", 0, 0),
        (b"reserve\r\n", 0, 1),
        (b"reserve-with-timeout 0\r\n", 0, 1),
        (b"reserve 0\r\n", 0, 0),
        (b"reserve-job 9\r\n", 0, 0),
        (b"put 0 0 9 0\r\n\r\nreserve-job 1\r\n", 1, 1),
        (b"delete 1\r\nstats\r\n", 0, 0),
    ],
)
def test_put_makes_a_producer_and_reserve_makes_a_worker(sent: bytes, producers: int, workers: int) -> None:
    talk = Talk()
    talk.send(sent)
    assert (talk.broker.producer_count, talk.broker.worker_count) == (producers, workers)
    talk.close()
    assert (talk.broker.producer_count, talk.broker.worker_count) == (0, 0)


def test_stats_reply_is_exact() -> None:
    talk = Talk()
    talk.send(b"put 1023 0 9 0\r\n\r\n")
    talk.advance(61.5)
    commands = "".join(f"cmd-{verb}: {int(verb in ('put', 'stats'))}\n" for verb in COUNTED_VERBS)
    body = (
        "---\ncurrent-jobs-urgent: 1\ncurrent-jobs-ready: 1\ncurrent-jobs-reserved: 0\ncurrent-jobs-delayed: 0\n"
        f"current-jobs-buried: 0\n{commands}job-timeouts: 0\ntotal-jobs: 1\nmax-job-size: 65535\ncurrent-tubes: 1\n"
        "current-connections: 1\ncurrent-producers: 1\ncurrent-workers: 0\ncurrent-waiting: 0\ntotal-connections: 1\n"
        'pid: 1\nversion: "1.99"\nrusage-utime: 0.250000\nrusage-stime: 1.500000\nuptime: 61\nbinlog-oldest-index: 0\n'
        "binlog-current-index: 0\nbinlog-records-migrated: 0\nbinlog-records-written: 0\nbinlog-max-size: 10485760\n"
        "draining: false\nid: 0123456789abcdef\nhostname: host\nos: os\nplatform: platform\n"
    ).encode()
    assert talk.send(b"stats\r\n") == b"OK %d\r\n%b\r\n" % (len(body), body)
    draining.drain(talk.broker)
    assert b"\ndraining: true\n" in talk.send(b"stats\r\n")


@pytest.mark.parametrize("oldest", ["1.4.4", "1.4", "1.8", "1.10", "1.12"])
def test_version_is_two_numbers_above_those_of_beanstalkd(oldest: str) -> None:
    """Perl's version objects, RubyGems and float() accept only two numbers."""
    reply = Talk().send(b"stats\r\n").decode()
    match = re.search(r'^version: "([0-9]+)\.([0-9]+)"$', reply, re.MULTILINE)
    assert match is not None
    assert [int(match[1]), int(match[2])] > [int(part) for part in oldest.split(".")]
    if oldest.count(".") == 1:
        assert float(f"{match[1]}.{match[2]}") > float(oldest)


@pytest.mark.parametrize(("name", "written"), [(b"mail", b"mail"), (b"123", b'"123"')])
def test_stats_tube_reply_is_exact(name: bytes, written: bytes) -> None:
    talk = Talk()
    talk.send(b"use %b\r\nput 0 0 9 0\r\n\r\npause-tube %b 9\r\n" % (name, name))
    talk.advance(0.5)
    body = (
        b"---\nname: " + written + b"\ncurrent-jobs-urgent: 1\ncurrent-jobs-ready: 1\ncurrent-jobs-reserved: 0\n"
        b"current-jobs-delayed: 0\ncurrent-jobs-buried: 0\ntotal-jobs: 1\ncurrent-using: 1\ncurrent-watching: 0\n"
        b"current-waiting: 0\ncmd-delete: 0\ncmd-pause-tube: 1\npause: 9\npause-time-left: 8\n"
    )
    assert talk.send(b"stats-tube %b\r\n" % name) == b"OK %d\r\n%b\r\n" % (len(body), body)


def test_stats_job_reply_is_exact() -> None:
    talk = Talk()
    talk.send(b"put 7 3 0 0\r\n\r\n")
    talk.advance(0.5)
    body = (
        b"---\nid: 1\ntube: default\nstate: delayed\npri: 7\nage: 0\ndelay: 3\nttr: 1\ntime-left: 2\nfile: 0\n"
        b"reserves: 0\ntimeouts: 0\nreleases: 0\nburies: 0\nkicks: 0\n"
    )
    assert talk.send(b"stats-job 1\r\n") == b"OK %d\r\n%b\r\n" % (len(body), body)


EXTENDED = {
    b"stats\r\n": b'greenstalk-version: "0"\nbinlog-enabled: false\nbinlog-file-count: 0\nbinlog-total-bytes: 0\n',
    b"stats-tube default\r\n": (
        b"total-reserves: 0\ntotal-timeouts: 0\ntotal-buries: 0\nbury-rate: 0.000000\n"
        b"processing-time-ewma: 0.000000\nprocessing-time-min: 0.000000\nprocessing-time-max: 0.000000\n"
        b"processing-time-samples: 0\nprocessing-time-p50: 0.000000\nprocessing-time-p95: 0.000000\n"
        b"processing-time-p99: 0.000000\nqueue-time-ewma: 0.000000\nqueue-time-min: 0.000000\n"
        b"queue-time-max: 0.000000\nqueue-time-samples: 0\noldest-ready-id: 1\noldest-ready-age: 0\n"
        b"oldest-delayed-age: 0\noldest-buried-age: 0\n"
    ),
    b"stats-job 1\r\n": b"time-reserved: 0\n",
    b"stats-job 2\r\n": b'time-reserved: 0\nidempotency-key: "1"\nidempotency-ttl: 9\ngroup: g\n',
}
"""The extended keys at the end of a reply, by its command."""


@pytest.mark.parametrize(("command", "keys"), EXTENDED.items())
def test_extended_keys_follow_the_others_until_the_connection_asks_for_standard_keys(
    command: bytes, keys: bytes
) -> None:
    talk = Talk()
    talk.send(b"put 0 0 60 0\r\n\r\nput 0 0 60 0 idp:1:9 grp:g\r\n\r\n")
    standard = document(talk, command)
    assert talk.send(b"stats-mode extended\r\n") == b"USING extended\r\n"
    assert without_counts(document(talk, command)) == without_counts(standard + keys)
    assert talk.send(b"stats-mode standard\r\n") == b"USING standard\r\n"
    assert without_counts(document(talk, command)) == without_counts(standard)


def document(talk: Talk, command: bytes) -> bytes:
    """Return the YAML in the reply to *command*."""
    head, _, rest = talk.send(command).partition(b"\r\n")
    assert head == b"OK %d" % (len(rest) - 2)
    return rest.removesuffix(b"\r\n")


def without_counts(document: bytes) -> bytes:
    """Return *document* without the counter that each `stats` increases."""
    return re.sub(rb"(?m)^cmd-stats: .*$", b"", document)


def extended_talk() -> Talk:
    talk = Talk()
    talk.send(b"stats-mode extended\r\n")
    return talk


def shown(talk: Talk, command: bytes) -> dict[str, object]:
    """Return the mapping in the reply to *command*."""
    found: dict[str, object] = yaml.safe_load(talk.send(command).split(b"\r\n", 1)[1])
    return found


def test_stats_tube_describes_queue_and_processing_times() -> None:
    talk = extended_talk()
    for id, (wait, run) in enumerate([(2.0, 1.0), (0.5, 0.25), (0.0, 8.0)], 1):
        talk.send(b"put 0 0 60 0\r\n\r\n")
        talk.advance(wait)
        talk.send(b"reserve\r\n")
        talk.advance(run)
        talk.send(b"delete %d\r\n" % id if id != 3 else b"bury 3 0\r\n")
    stats = shown(talk, b"stats-tube default\r\n")
    assert (stats["total-reserves"], stats["total-buries"], stats["bury-rate"]) == (3, 1, 0.333333)
    assert stats["processing-time-ewma"] == pytest.approx((1 * 0.9 + 0.025) * 0.9 + 0.8, abs=1e-6)
    assert stats["queue-time-ewma"] == pytest.approx((2 * 0.9 + 0.05) * 0.9, abs=1e-6)
    assert (stats["processing-time-min"], stats["processing-time-max"]) == (0.25, 8)
    assert (stats["queue-time-min"], stats["queue-time-max"]) == (0, 2)
    assert (stats["processing-time-samples"], stats["queue-time-samples"]) == (3, 3)
    for key, exact in {"p50": 1, "p95": 8, "p99": 8}.items():
        assert exact / 2 <= float(str(stats[f"processing-time-{key}"])) <= exact * 2
    talk.send(b"put 0 99 60 0\r\n\r\nput 9 0 60 0\r\n\r\n")
    talk.advance(1)
    talk.send(b"put 0 0 60 0\r\n\r\n")
    talk.advance(2.5)
    stats = shown(talk, b"stats-tube default\r\n")
    assert (stats["oldest-ready-id"], stats["oldest-ready-age"]) == (5, 3)
    assert (stats["oldest-delayed-age"], stats["oldest-buried-age"]) == (3, 11)


def test_stats_job_shows_how_long_a_job_has_been_reserved() -> None:
    talk = extended_talk()
    talk.send(b"put 0 0 60 0\r\n\r\nreserve\r\n")
    talk.advance(2.5)
    assert shown(talk, b"stats-job 1\r\n")["time-reserved"] == 2
    talk.send(b"release 1 0 0\r\n")
    assert shown(talk, b"stats-job 1\r\n")["time-reserved"] == 0


@pytest.mark.parametrize("command", EXTENDED)
def test_server_option_extends_the_stats_of_each_connection(monkeypatch: pytest.MonkeyPatch, command: bytes) -> None:
    monkeypatch.setattr(mode, "extends_stats", True)
    talk = Talk()
    talk.send(b"put 0 0 60 0\r\n\r\nput 0 0 60 0 idp:1:9 grp:g\r\n\r\n")
    assert document(talk, command).endswith(EXTENDED[command])
    talk.send(b"stats-mode standard\r\n")
    assert not document(talk, command).endswith(EXTENDED[command])
