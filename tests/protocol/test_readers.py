"""The reader of a link: cut at every byte, with trailing data, and with bits flipped."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from greenstalk_server.protocol import link_frames as frames
from greenstalk_server.protocol.link_frames import FrameReader, LinkError, frame
from tests.support.talk import CUTS

FRAMES: Final = [(frames.OPEN, 1, b"{}"), (frames.DATA, 2**32 - 1, b"x" * 300), (frames.CLOSE, 7, b"")]
STREAM: Final = b"".join([frame(*each) for each in FRAMES])


def test_frames_do_not_depend_on_the_pieces() -> None:
    for cut in CUTS:
        reader = FrameReader()
        assert [found for piece in cut(STREAM) for found in reader.feed(piece)] == FRAMES


def test_each_prefix_gives_the_whole_frames_in_it() -> None:
    ends = [sum([len(frame(*each)) for each in FRAMES[:count]]) for count in range(len(FRAMES) + 1)]
    for start, end in pairwise(ends):
        for at in range(start, end):
            reader = FrameReader()
            assert len(reader.feed(STREAM[:at])) == ends.index(start)
            assert len(reader.feed(STREAM[at:])) == len(FRAMES) - ends.index(start)


@given(st.integers(0, 10**6), st.integers(0, 7))
def test_flipped_bit_raises_nothing_but_link_error(position: int, bit: int) -> None:
    stream = bytearray(STREAM)
    stream[position % len(stream)] ^= 1 << bit
    reader = FrameReader()
    try:
        for at in range(len(stream)):
            reader.feed(bytes(stream[at : at + 1]))
    except LinkError:
        pass
