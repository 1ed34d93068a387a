"""Intended differences from Debian's beanstalkd 1.12, each with its reason.

Two kinds:

- `as_ours` rewrites the peer's YAML, in every conversation: it quotes the names that YAML would not read as such, and
  adds this server's own version.
- DIFFERENCES names a conversation, and gives all the replies that ours must give in it, in order. If the peer
  gives the same, the entry is stale, and a test fails. Only where the peer itself does not always do the same
  (`peer_varies`) is it not asked.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

NAMES = ("name", "tube", "hostname", "os", "platform")
"""YAML keys whose values are names, which 1.12 writes bare whatever they are."""

_NAME = re.compile(rf"^({'|'.join(NAMES)}): (.*)$", re.MULTILINE)


def as_ours(reply: str) -> str:
    """A normalised reply of the peer as ours has to be."""
    if not reply.startswith("OK *\n"):
        return reply
    if reply.startswith("OK *\ncurrent-jobs-urgent: "):
        reply += "\ngreenstalk-version: <greenstalk-version>"
    return _NAME.sub(lambda match: f"{match[1]}: {_readable(match[2])}", reply)


def _readable(name: str) -> str:
    """*name*, which may be masked, in quotes if a reader of YAML would take the bare name for something else."""
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
    """Every reply of ours in the conversation, normalised, the ends of the streams included."""
    peer_varies: bool = False


_CR_AT_224 = "beanstalkd loses the command after a too long line whose `\\r` is byte 224 or a multiple"
_STRAY_CR = "beanstalkd stalls the connection at a `\\r` without `\\n`; to ours it is data"
_HALF_UPLOADED = "beanstalkd shows a job before its body has arrived: state `invalid`, memory contents as body"
_TIMEOUT = "1.12 takes any text for 0, and wraps at 2^32; ours refuses that as 1.13 does"
_FIRST_COME = "beanstalkd serves waiting connections by rotation; ours in the order in which they came"
_CREATION_ORDER = "beanstalkd fills the gap in a list with its last entry; ours keeps the order of creation"
_LOST_EXPIRY = "beanstalkd forgets an expiry come to in its very microsecond, until the holder stirs"

_BAD_LINE = ["BAD_FORMAT", "USING default", "<end>"]
_TUBES = "OK *\n- "

DIFFERENCES: dict[str, Difference] = {
    "line-of-225-bytes": Difference(_CR_AT_224, _BAD_LINE),
    "line-of-449-bytes": Difference(_CR_AT_224, _BAD_LINE),
    "line-of-673-bytes": Difference(_CR_AT_224, _BAD_LINE),
    "carriage-return-as-byte-224": Difference(_CR_AT_224, ["BAD_FORMAT", "USING one", "USING one", "<end>"]),
    "carriage-return-as-byte-448": Difference(_CR_AT_224, ["BAD_FORMAT", "USING one", "USING one", "<end>"]),
    "newline-then-carriage-return": Difference(_STRAY_CR, _BAD_LINE),
    "stray-carriage-return-in-a-short-line": Difference(_STRAY_CR, _BAD_LINE),
    "stray-carriage-return-in-front": Difference(_STRAY_CR, ["UNKNOWN_COMMAND", "USING default", "<end>"]),
    "stray-carriage-return-doubled-at-the-end": Difference(_STRAY_CR, _BAD_LINE),
    "stray-carriage-returns-many": Difference(_STRAY_CR, ["UNKNOWN_COMMAND", "USING default", "<end>"]),
    "stray-carriage-return-in-a-tube-name": Difference(_STRAY_CR, _BAD_LINE),
    "stray-carriage-return-in-a-long-line": Difference(_STRAY_CR, _BAD_LINE),
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
    "list-tubes-after-a-tube-went": Difference(
        _CREATION_ORDER,
        ["WATCHING 2", "WATCHING 3", "WATCHING 4", "WATCHING 3", _TUBES + "default\n- two\n- three", "<end>"],
    ),
    "waiters-first-come-first-served": Difference(
        _FIRST_COME,
        [
            *["USING t", *["WATCHING 2"] * 4, "INSERTED {1}", "INSERTED {2}", "INSERTED {3}"],
            *[r"RESERVED {1} 1\r\nx", r"RESERVED {2} 1\r\ny", r"RESERVED {3} 1\r\nz", "<quiet>"],
            # b's job goes to e, the last one waiting, once b's connection has ended.
            *["<end>", "<end>", "<end>", "<end>", r"RESERVED {1} 1\r\nx", "<end>"],
        ],
    ),
    "waiters-first-come-first-served-after-one-left": Difference(
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
    "ttr-runs-out-to-the-moment": Difference(
        _LOST_EXPIRY,
        ["INSERTED {1}", r"RESERVED {1} 1\r\nx", "<quiet>", r"RESERVED {1} 1\r\nx", "<end>", "<end>"],
        peer_varies=True,
    ),
}
