"""Intended differences from Debian's beanstalkd 1.12, each with its reason.

Two kinds:

- `as_ours` rewrites the peer's YAML in all conversations: it quotes the names that YAML would misread.
- DIFFERENCES has all replies of our server in a conversation, in order. If the peer's replies are the same, the entry
  is stale, and a test fails, unless the peer's replies vary (`peer_varies`).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

NAMES = ("name", "tube", "hostname", "os", "platform")
"""YAML keys whose values are names. beanstalkd 1.12 never quotes them."""

_NAME = re.compile(rf"^({'|'.join(NAMES)}): (.*)$", re.MULTILINE)


def as_ours(reply: str) -> str:
    """Convert a normalised reply of the peer to the expected reply of our server."""
    if not reply.startswith("OK *\n"):
        return reply
    return _NAME.sub(lambda match: f"{match[1]}: {_quoted_if_needed(match[2])}", reply)


def _quoted_if_needed(name: str) -> str:
    """Return *name*, which may be masked, in quotes if a YAML parser would misread the bare name."""
    host = os.uname()
    bare = {"<hostname>": host.nodename, "<os>": host.version, "<platform>": host.machine}.get(name, name)
    try:
        found = [yaml.safe_load(f"name: {bare}"), YAML(typ="safe", pure=True).load(f"name: {bare}")]
    except (yaml.YAMLError, YAMLError):
        found = []
    return name if found == [{"name": bare}] * 2 else f'"{name}"'


@dataclass(frozen=True, slots=True)
class Difference:
    reason: str
    ours: list[str]
    """All replies of our server in the conversation, normalised, with the ends of the streams."""
    peer_varies: bool = False


_CR_AT_224 = "beanstalkd loses the command after a line that is too long if its `\\r` is at a multiple of 224 bytes"
_STRAY_CR = "beanstalkd stalls the connection at a `\\r` without `\\n`; in our server it is data"
_HALF_UPLOADED = "beanstalkd shows a job whose body has not arrived: state `invalid`, uninitialised memory as body"
_TIMEOUT = "1.12 parses any text as 0, and wraps at 2^32; our server refuses both, like 1.13"
_FIRST_COME = "beanstalkd serves waiting connections by rotation; our server in the order of their reserves"
_CREATION_ORDER = "beanstalkd fills the gap in a list with its last entry; our server keeps the order of creation"
_LOST_EXPIRY = "beanstalkd misses an expiry checked in the microsecond of the deadline, until the holder's next command"
CLOSES = "after EXPECTED_CRLF beanstalkd serves the rest of the body as commands; our server closes the connection"
KEEPS_PAUSE = (
    "beanstalkd drops a paused tube that becomes empty, with its pause; our server keeps both until the pause ends"
)
_EXTENSION = "beanstalkd does not have the command, or reads whole seconds only; so does our server in strict mode"

_BAD_LINE = ["BAD_FORMAT", "USING default", "<end>"]
_EXPECTED_CRLF = ["EXPECTED_CRLF", "<end>", "<end>"]
_TUBES = "OK *\n- "
_JOB_STATS = (
    "OK *\nid: {1}\ntube: default\nstate: ready\npri: 0\nage: 0\ndelay: 0\nttr: 60\ntime-left: 0\nfile: 0\n"
    "reserves: 0\ntimeouts: 0\nreleases: 0\nburies: 0\nkicks: 0"
)
_RESERVED = r"RESERVED {1} 1\r\nx"

DIFFERENCES: dict[str, Difference] = {
    "line-of-225-bytes": Difference(_CR_AT_224, _BAD_LINE),
    "line-of-449-bytes": Difference(_CR_AT_224, _BAD_LINE),
    "line-of-673-bytes": Difference(_CR_AT_224, _BAD_LINE),
    "carriage-return-as-byte-224": Difference(_CR_AT_224, ["BAD_FORMAT", "USING one", "USING one", "<end>"]),
    "carriage-return-as-byte-448": Difference(_CR_AT_224, ["BAD_FORMAT", "USING one", "USING one", "<end>"]),
    "newline-then-carriage-return": Difference(_STRAY_CR, _BAD_LINE),
    "stray-carriage-return-in-a-short-line": Difference(_STRAY_CR, _BAD_LINE),
    "stray-carriage-return-at-the-start": Difference(_STRAY_CR, ["UNKNOWN_COMMAND", "USING default", "<end>"]),
    "stray-carriage-return-doubled-at-the-end": Difference(_STRAY_CR, _BAD_LINE),
    "stray-carriage-returns-many": Difference(_STRAY_CR, ["UNKNOWN_COMMAND", "USING default", "<end>"]),
    "stray-carriage-return-in-a-tube-name": Difference(_STRAY_CR, _BAD_LINE),
    "stray-carriage-return-in-a-long-line": Difference(_STRAY_CR, _BAD_LINE),
    "body-too-long-by-one": Difference(CLOSES, _EXPECTED_CRLF),
    "body-too-long-by-two": Difference(CLOSES, [*_EXPECTED_CRLF, "<end>"]),
    "body-too-long-then-a-command": Difference(CLOSES, [*_EXPECTED_CRLF, "<end>"]),
    "body-too-short-by-one-includes-the-carriage-return": Difference(CLOSES, ["<quiet>", *_EXPECTED_CRLF, "<end>"]),
    "pipelined-body-missing-crlf-in-the-order-of-commands": Difference(CLOSES, ["NOT_FOUND", *_EXPECTED_CRLF[:2]]),
    "body-ends-with-lf-only": Difference(CLOSES, _EXPECTED_CRLF),
    "body-ends-with-crcr": Difference(CLOSES, _EXPECTED_CRLF),
    "body-ends-with-lfcr": Difference(CLOSES, _EXPECTED_CRLF),
    "paused-tube-that-becomes-empty": Difference(
        KEEPS_PAUSE,
        ["USING t", "INSERTED {1}", "PAUSED", "DELETED", "USING default", "PAUSED", "NOT_FOUND", "<end>"],
    ),
    "pause-of-an-empty-tube": Difference(
        KEEPS_PAUSE,
        ["USING t", "PAUSED", "USING default", "WATCHING 2", "USING t", "INSERTED {1}", "TIMED_OUT", "<end>"],
    ),
    "half-uploaded-job-cannot-be-peeked": Difference(
        _HALF_UPLOADED, ["NOT_FOUND", "INSERTED {1}", r"FOUND {1} 4\r\nhalf", "<end>", "<end>"]
    ),
    "half-uploaded-job-has-no-stats": Difference(
        _HALF_UPLOADED, ["NOT_FOUND", "INSERTED {1}", r"FOUND {1} 4\r\nhalf", "<end>", "<end>"]
    ),
    "reserve-with-timeout-without-a-number": Difference(_TIMEOUT, [*["BAD_FORMAT"] * 3, "<end>"]),
    "reserve-with-timeout-plus-and-space": Difference(_TIMEOUT, [*["BAD_FORMAT"] * 3, "<end>"]),
    "reserve-with-timeout-tab": Difference(_TIMEOUT, ["BAD_FORMAT", "<end>"]),
    "reserve-with-timeout-newline": Difference(_TIMEOUT, ["BAD_FORMAT", "<end>"]),
    "reserve-with-timeout-below-i32": Difference(_TIMEOUT, [*["BAD_FORMAT"] * 2, "<end>"]),
    "reserve-with-timeout-beyond-i32": Difference(_TIMEOUT, _BAD_LINE),
    "reserve-with-timeout-beyond-u32": Difference(_TIMEOUT, ["BAD_FORMAT", "<end>"]),
    "ignore-then-watch-again": Difference(
        _CREATION_ORDER,
        ["WATCHING 2", "WATCHING 3", "WATCHING 2", "WATCHING 3", _TUBES + "one\n- two\n- default", "<end>"],
    ),
    "ignore-the-first-of-several": Difference(
        _CREATION_ORDER,
        ["WATCHING 2", "WATCHING 3", "WATCHING 4", "WATCHING 3", _TUBES + "one\n- two\n- three", "<end>"],
    ),
    "ignore-from-the-middle": Difference(
        _CREATION_ORDER,
        ["WATCHING 2", "WATCHING 3", "WATCHING 4", "WATCHING 3", _TUBES + "default\n- two\n- three", "<end>"],
    ),
    "list-tubes-after-a-tube-was-dropped": Difference(
        _CREATION_ORDER,
        ["WATCHING 2", "WATCHING 3", "WATCHING 4", "WATCHING 3", _TUBES + "default\n- two\n- three", "<end>"],
    ),
    "waiters-first-come-first-served": Difference(
        _FIRST_COME,
        [
            *["USING t", *["WATCHING 2"] * 4, "INSERTED {1}", "INSERTED {2}", "INSERTED {3}"],
            *[r"RESERVED {1} 1\r\nx", r"RESERVED {2} 1\r\ny", r"RESERVED {3} 1\r\nz", "<quiet>"],
            # After b has disconnected, its job goes to e, the last waiting connection.
            *["<end>", "<end>", "<end>", "<end>", r"RESERVED {1} 1\r\nx", "<end>"],
        ],
    ),
    "waiters-first-come-first-served-after-a-disconnect": Difference(
        _FIRST_COME,
        [
            *["USING t", *["WATCHING 2"] * 4, "INSERTED {1}", "INSERTED {2}"],
            *[r"RESERVED {1} 1\r\nx", r"RESERVED {2} 1\r\ny", "<quiet>"],
            *["<end>", "<end>", "<end>", r"RESERVED {1} 1\r\nx", "<end>"],
        ],
    ),
    "waiters-queue-again-behind-the-others": Difference(
        _FIRST_COME,
        [
            *["USING t", "WATCHING 2", "WATCHING 2", "INSERTED {1}", r"RESERVED {1} 1\r\nx"],
            *["INSERTED {2}", r"RESERVED {2} 1\r\ny", "<quiet>", "<end>", "TIMED_OUT", "<end>", "<end>"],
        ],
    ),
    "ttr-expires-while-another-client-waits": Difference(
        _LOST_EXPIRY,
        ["INSERTED {1}", r"RESERVED {1} 1\r\nx", "<quiet>", r"RESERVED {1} 1\r\nx", "<end>", "<end>"],
        peer_varies=True,
    ),
    "extension-put-in-tube": Difference(
        _EXTENSION, ["INSERTED {1}", "USING default", "USING t", r"FOUND {1} 4\r\nstat", "<end>"]
    ),
    "extension-put-with-a-bad-tag": Difference(
        _EXTENSION, [*["BAD_FORMAT"] * 4, "INSERTED {1}", r"FOUND {1} 1\r\nx", "BAD_FORMAT", "<end>", "<end>"]
    ),
    "extension-reserve-batch": Difference(
        _EXTENSION,
        [
            *["INSERTED {1}", "INSERTED {2}", "RESERVED_BATCH 2", r"RESERVED {1} 1\r\nx", r"RESERVED {2} 1\r\ny"],
            *["RESERVED_BATCH 0", "BAD_FORMAT", "BAD_FORMAT", "<end>"],
        ],
    ),
    "extension-delete-batch": Difference(
        _EXTENSION, ["INSERTED {1}", "DELETED_BATCH 1 1", "BAD_FORMAT", "BAD_FORMAT", "USING default", "<end>"]
    ),
    "extension-delete-batch-line-of-more-than-224-bytes": Difference(
        _EXTENSION, ["DELETED_BATCH 0 20", "USING default", "<end>"]
    ),
    "extension-touch-all": Difference(
        _EXTENSION, ["INSERTED {1}", "TOUCHED_ALL 0", _RESERVED, "TOUCHED_ALL 1", "BAD_FORMAT", "<end>"]
    ),
    "extension-flush-tube": Difference(
        _EXTENSION, ["INSERTED {1}", _RESERVED, "FLUSHED 1", "NOT_FOUND", "NOT_FOUND", "<end>"]
    ),
    "extension-flush-buried": Difference(
        _EXTENSION, ["INSERTED {1}", "FLUSHED 0", _RESERVED, "BURIED", "FLUSHED 1", "NOT_FOUND", "<end>"]
    ),
    "extension-truncate": Difference(
        _EXTENSION,
        [
            *["INSERTED {1}", "INSERTED {2}", _RESERVED, "TRUNCATED 1", "NOT_FOUND", "NOT_FOUND", "RELEASED"],
            *["NOT_FOUND", "<end>"],
        ],
    ),
    "extension-peek-reserved": Difference(
        _EXTENSION, ["INSERTED {1}", "NOT_FOUND", _RESERVED, r"FOUND {1} 1\r\nx", "<end>"]
    ),
    "extension-reprioritize": Difference(
        _EXTENSION,
        [
            *["INSERTED {1}", "INSERTED {2}", "REPRIORITIZED", r"RESERVED {2} 1\r\ny", "ALREADY_RESERVED", "NOT_FOUND"],
            "<end>",
        ],
    ),
    "extension-wait": Difference(
        _EXTENSION, ["INSERTED {1}", "TIMED_OUT", "NOT_FOUND", "DELETED", "DELETED {1}", "<end>", "<end>"]
    ),
    "extension-weights": Difference(
        _EXTENSION,
        [
            *["WATCHING 2", "BAD_FORMAT", "BAD_FORMAT", "USING weighted", "USING weighted-fair", "USING fifo"],
            *["BAD_FORMAT", "OK *\n- default\n- t", "<end>"],
        ],
    ),
    "extension-stats-mode": Difference(
        _EXTENSION,
        [
            *["INSERTED {1}", "USING extended", f"{_JOB_STATS}\ntime-reserved: 0", "BAD_FORMAT", "BAD_FORMAT"],
            *["USING standard", _JOB_STATS, "<end>"],
        ],
    ),
    "extension-drain": Difference(
        _EXTENSION, ["UNKNOWN_COMMAND", "BAD_FORMAT", "UNKNOWN_COMMAND", "INSERTED {1}", "<end>"]
    ),
    "extension-meta": Difference(
        _EXTENSION,
        # The player takes the body after the longer first line for a separate reply.
        [
            *["INSERTED {1}", "META 2", "FOUND {1} 1 7 default", "x", "META 0", r"FOUND {1} 1\r\nx", "BAD_FORMAT"],
            "<end>",
        ],
    ),
    "extension-fractions-of-seconds": Difference(
        _EXTENSION, ["INSERTED {1}", "INSERTED {2}", "NOT_FOUND", "PAUSED", "<end>"]
    ),
}
