"""The points of a time series as bytes, in the format of docs/dashboard-data.md. Pure.

A chunk holds the points of one tube in one block of time. A frame holds one point of every tube, with the sketches of
its times. Bytes from a disk are untrusted: `decode_*` raise ValueError, and no other exception, if they are invalid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import nan
from typing import Final, NamedTuple

from greenstalk_server.core.tubes.durations import MAX_BUCKET, Sketch, bucket_seconds, quantile_buckets
from greenstalk_server.web.features.history.rings import DEPTHS, RATES, TIMES

QUANTILES: Final = (0.5, 0.95, 0.99)
"""The quantiles of waits and then of runs, in the order of rings.TIMES."""

MAX_NAME: Final = 200
"""Maximum bytes of a tube's name."""

MAX_VARINT: Final = 9
"""Maximum bytes of a number: 63 bits."""

_VALUES: Final = len(RATES) + len(DEPTHS)
_BEGINS: Final = 1
_WAITS: Final = 1 << (_VALUES + 1)
_RUNS: Final = 1 << (_VALUES + 2)
_FLAGS: Final = (1 << (_VALUES + 3)) - 1

Buckets = tuple[int, ...]
"""The buckets of QUANTILES; empty if there were no durations."""

NO_VALUES: Final = (0,) * _VALUES


class Point(NamedTuple):
    """One point of one tube.

    seconds         seconds of its interval during which the events were counted.
    values          numbers of events in the order of RATES, then the DEPTHS at its end.
    waits, runs     quantiles of the times that ended in it.
    begins          the series of the tube begins here: earlier points of its block are unknown.
    """

    seconds: int
    values: tuple[int, ...]
    waits: Buckets = ()
    runs: Buckets = ()
    begins: bool = False

    @property
    def is_blank(self) -> bool:
        """Whether the point may be omitted: a reader assumes the same values for a missing point."""
        return not self.begins and not self.waits and not self.runs and self.values == NO_VALUES

    def series(self) -> list[float]:
        """Return the values in the order of rings.SERIES: rates in events per second, times in seconds."""
        rates = [count / self.seconds for count in self.values[: len(RATES)]]
        depths = map(float, self.values[len(RATES) :])
        return [*rates, *depths, *times(self.waits), *times(self.runs)]


def times(buckets: Buckets) -> list[float]:
    """Return the quantiles in *buckets* in seconds; NaN if there are none."""
    return [bucket_seconds(bucket) for bucket in buckets] if buckets else _NO_TIMES


_NO_TIMES: Final = [nan] * (len(TIMES) // 2)


def quantiles(sketch: Sketch) -> Buckets:
    """Return the buckets of QUANTILES in *sketch*."""
    return tuple(quantile_buckets(sketch, QUANTILES)) if sketch else ()


# Points


def encode_point(point: Point) -> bytes:
    """Return *point* as bytes."""
    flags, out = int(point.begins), bytearray()
    for place, value in enumerate(point.values, 1):
        if value:
            flags |= 1 << place
            _put(out, value)
    for bit, buckets in ((_WAITS, point.waits), (_RUNS, point.runs)):
        if buckets:
            flags |= bit
            before = 0
            for bucket in buckets:
                _put(out, bucket - before)
                before = bucket
    head = bytearray()
    _put(head, flags)
    _put(head, point.seconds)
    return bytes(head + out)


def decode_point(data: bytes) -> Point:
    """Return the point in *data*; raise ValueError."""
    flags, at = _get(data, 0)
    seconds, at = _get(data, at)
    if flags > _FLAGS or not seconds:
        raise ValueError("not a point")
    values = [0] * _VALUES
    for place in range(_VALUES):
        if flags >> (place + 1) & 1:
            values[place], at = _get(data, at)
    waits, at = _get_buckets(data, at) if flags & _WAITS else ((), at)
    runs, at = _get_buckets(data, at) if flags & _RUNS else ((), at)
    if at != len(data):
        raise ValueError("bytes after a point")
    return Point(seconds, tuple(values), waits, runs, bool(flags & _BEGINS))


def _get_buckets(data: bytes, at: int) -> tuple[Buckets, int]:
    found, bucket = [], 0
    for _ in QUANTILES:
        step, at = _get(data, at)
        bucket += step
        found.append(bucket)
    if bucket > MAX_BUCKET:
        raise ValueError("no such bucket")
    return tuple(found), at


# Chunks


def add_to_chunk(chunk: bytearray, offset: int, point: bytes) -> None:
    """Append *point*, number *offset* of its block, to *chunk*."""
    _put(chunk, offset)
    _put(chunk, len(point))
    chunk += point


def decode_chunk(chunk: bytes | bytearray, length: int) -> Iterator[tuple[int, Point]]:
    """Yield the offset and the point of each point in *chunk*, of a block of *length* points; raise ValueError."""
    chunk, at, last = bytes(chunk), 0, -1
    while at < len(chunk):
        offset, at = _get(chunk, at)
        size, at = _get(chunk, at)
        if not last < offset < length or at + size > len(chunk):
            raise ValueError("not a chunk")
        yield offset, decode_point(chunk[at : at + size])
        last = offset
        at += size


def offsets(chunk: bytes | bytearray) -> list[int]:
    """Return the offsets of the points in *chunk*, which are not decoded; raise ValueError."""
    found, at = [], 0
    while at < len(chunk):
        offset, at = _get(chunk, at)
        size, at = _get(chunk, at)
        found.append(offset)
        at += size
    if at > len(chunk):
        raise ValueError("not a chunk")
    return found


# Frames


class Entry(NamedTuple):
    """The part of a frame for one tube, or for the server if the name is empty. The sketches may be missing."""

    name: bytes
    point: bytes
    waits: Sketch
    runs: Sketch


def encode_entry(entry: Entry) -> bytes:
    """Return *entry* as bytes."""
    sketches = bytearray()
    if entry.waits or entry.runs:
        _put_sketch(sketches, entry.waits)
        _put_sketch(sketches, entry.runs)
    out = bytearray()
    for part in (entry.name, entry.point, sketches):
        _put(out, len(part))
        out += part
    return bytes(out)


def encode_frame(number: int, entries: Iterable[bytes]) -> bytes:
    """Return the frame of the points *number* in *entries*."""
    head = bytearray()
    _put(head, number)
    return b"".join((head, *entries))


def frame_number(frame: bytes) -> int:
    """Return the number of the points in *frame*; raise ValueError."""
    return _get(frame, 0)[0]


def decode_frame(frame: bytes) -> Iterator[Entry]:
    """Yield the entries of *frame*; raise ValueError."""
    _, at = _get(frame, 0)
    while at < len(frame):
        parts = []
        for _ in range(3):
            size, at = _get(frame, at)
            if at + size > len(frame):
                raise ValueError("not a frame")
            parts.append(frame[at : at + size])
            at += size
        name, point, sketches = parts
        if len(name) > MAX_NAME:
            raise ValueError("not a name")
        waits, runs = Sketch(), Sketch()
        if sketches:
            waits, rest = _get_sketch(sketches, 0)
            runs, rest = _get_sketch(sketches, rest)
            if rest != len(sketches):
                raise ValueError("bytes after a sketch")
        yield Entry(name, point, waits, runs)


def _put_sketch(out: bytearray, sketch: Sketch) -> None:
    """Append *sketch*. A bucket takes one byte if it has at most 15 durations and is close to the previous bucket."""
    _put(out, len(sketch))
    before = 0
    for bucket in sorted(sketch):
        step, count = bucket - before, sketch[bucket] - 1
        out.append(min(step, 15) << 4 | min(count, 15))
        if step >= 15:
            _put(out, step - 15)
        if count >= 15:
            _put(out, count - 15)
        before = bucket


def _get_sketch(data: bytes, at: int) -> tuple[Sketch, int]:
    size, at = _get(data, at)
    if size > len(data):
        raise ValueError("not a sketch")
    sketch, bucket = Sketch(), 0
    for _ in range(size):
        if at >= len(data):
            raise ValueError("a truncated sketch")
        step, count = data[at] >> 4, data[at] & 15
        at += 1
        if step == 15:
            more, at = _get(data, at)
            step += more
        if count == 15:
            more, at = _get(data, at)
            count += more
        bucket += step
        if bucket > MAX_BUCKET:
            raise ValueError("no such bucket")
        sketch[bucket] = count + 1
    return sketch, at


# Numbers: seven bits a byte, the least significant first; the highest bit of a byte says that another byte follows


def _put(out: bytearray, number: int) -> None:
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)


def _get(data: bytes | bytearray, at: int) -> tuple[int, int]:
    """Return the number at *at*, and the offset after it; raise ValueError."""
    if at < len(data) and data[at] < 128:
        return data[at], at + 1
    number = shift = 0
    for byte in data[at : at + MAX_VARINT]:
        number |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return number, at
        shift += 7
    raise ValueError("a truncated number")
