"""Convert a raw reply to text that is equal on both sides unless the servers behave differently.

- A job id becomes its number in the conversation: `INSERTED {1}`; see ids.py.
- Counters are relative to the baseline of the conversation, which also excludes the control connection.
- A value that identifies the process, the machine or the time (pid, version, CPU time, uptime, id, uname) becomes a
  placeholder, but only if it has the right form or value. A wrong value is kept, so that the comparison fails.
- `OK n` becomes `OK *` if n is the size of the body, because n depends on the masked values.
- A long body is reduced to its ends, its size and its checksum.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable

from tests.support.servers import Baseline

from .ids import Ids

_LONG_BODY = 200

_ID_REPLY = re.compile(rb"(INSERTED|RESERVED|FOUND|BURIED|DELETED) (\d+)(.*)", re.DOTALL)
_COUNTED = re.compile(r"cmd-.*|job-timeouts|total-(jobs|connections)|current-(connections|producers|workers)")
_COUNTED_OF_DEFAULT = ("total-jobs", "current-using", "current-watching", "cmd-delete", "cmd-pause-tube")
_MASKED_FORMS = {
    "version": re.compile(r'"[^"]+"'),
    "rusage-utime": re.compile(r"\d+\.\d{6}"),
    "rusage-stime": re.compile(r"\d+\.\d{6}"),
    "uptime": re.compile(r"\d+"),
    "id": re.compile(r"[0-9a-f]{16}"),
}


def normalise(reply: bytes, baseline: Baseline, ids: Ids) -> str:
    """Return *reply*, as read from the wire, as text for the comparison."""
    if reply.startswith(b"OK "):
        return _yaml(reply, baseline, ids)
    if found := _ID_REPLY.fullmatch(reply):
        word, job_id, rest = found.groups()
        return f"{word.decode()} {ids.name(int(job_id))}{_abbreviated(rest)}"
    return _abbreviated(reply)


def _abbreviated(data: bytes) -> str:
    """Return *data* as printable text with backslash escapes, without its middle if it is long."""
    if len(data) <= _LONG_BODY:
        return repr(data)[2:-1]
    ends = repr(data[:40])[2:-1], repr(data[-40:])[2:-1]
    return f"{ends[0]} ... {ends[1]} ({len(data)} bytes, crc {zlib.crc32(data):08x})"


def _yaml(reply: bytes, baseline: Baseline, ids: Ids) -> str:
    head, _, body = reply.partition(b"\r\n")
    if head != b"OK %d" % len(body) or not (body.startswith(b"---\n") and body.endswith(b"\n")):
        return _abbreviated(reply)
    lines = body.decode("latin-1").splitlines()[1:]
    first_key = lines[0].partition(": ")[0] if lines else ""
    if first_key == "id":
        return "\n".join(["OK *", *(_job_line(line, ids) for line in lines)])
    value_of = _tube_value if first_key == "name" else _server_value
    if lines and lines[0] in ("name: default", 'name: "default"'):
        value_of = _default_tube_value
    return "\n".join(["OK *", *(_line(line, value_of, baseline) for line in lines)])


def _line(line: str, value_of: Callable[[str, str, Baseline], str], baseline: Baseline) -> str:
    key, colon, value = line.partition(": ")
    return f"{key}: {value_of(key, value, baseline)}" if colon else line


def _job_line(line: str, ids: Ids) -> str:
    key, _, value = line.partition(": ")
    return f"id: {ids.name(int(value))}" if key == "id" and value.isdecimal() else line


def _tube_value(key: str, value: str, baseline: Baseline) -> str:
    return value


def _default_tube_value(key: str, value: str, baseline: Baseline) -> str:
    return _since(value, baseline.default_tube.get(key)) if key in _COUNTED_OF_DEFAULT else value


def _server_value(key: str, value: str, baseline: Baseline) -> str:
    if _COUNTED.fullmatch(key):
        return _since(value, baseline.stats.get(key))
    if key == "pid" and value in map(str, baseline.pids):
        return "<pid>"
    if (form := _MASKED_FORMS.get(key)) and form.fullmatch(value):
        return f"<{key}>"
    host = os.uname()
    known = {"hostname": host.nodename, "os": host.version, "platform": host.machine}
    # Only the value is masked; the quotes around it are compared.
    return value.replace(known[key], f"<{key}>") if key in known else value


def _since(value: str, before: str | None) -> str:
    if before is None or not (value.isdecimal() and before.isdecimal()):
        return value
    return str(int(value) - int(before))
