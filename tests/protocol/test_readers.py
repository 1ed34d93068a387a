"""The readers of a link: cut at every byte, with trailing data, and with bits flipped."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from greenstalk_server.protocol import link_frames as frames
from greenstalk_server.protocol.link_frames import FrameReader, LinkError, frame
from greenstalk_server.protocol.reply_reader import ReplyReader
from tests.support.talk import CUTS

REPLIES: Final = [
    b"INSERTED 5\r\n",
    b"RESERVED 5 3\r\nabc\r\n",
    b"RESERVED 5 3 1024 mail\r\n\r\n\r\r\n",
    b"FOUND 7 0\r\n\r\n",
    b"OK 4\r\n---\n\r\n",
    b"RESERVED_BATCH 0\r\n",
    b"RESERVED_BATCH 2\r\nRESERVED 1 1\r\na\r\nRESERVED 2 2\r\n\r\n\r\n",
    b"TIMED_OUT\r\n",
]
FRAMES: Final = [(frames.OPEN, 1, b"{}"), (frames.DATA, 2**32 - 1, b"x" * 300), (frames.CLOSE, 7, b"")]
REPLY_STREAM: Final = b"".join(REPLIES)
FRAME_STREAM: Final = b"".join([frame(*each) for each in FRAMES])


def test_replies_do_not_depend_on_the_pieces() -> None:
    for cut in CUTS:
        reader = ReplyReader()
        assert [reply for piece in cut(REPLY_STREAM) for reply in reader.feed(piece)] == REPLIES


def test_frames_do_not_depend_on_the_pieces() -> None:
    for cut in CUTS:
        reader = FrameReader()
        assert [found for piece in cut(FRAME_STREAM) for found in reader.feed(piece)] == FRAMES


def test_each_prefix_gives_the_whole_replies_and_frames_in_it() -> None:
    for stream, parts, reader in (
        (REPLY_STREAM, REPLIES, ReplyReader),
        (FRAME_STREAM, [frame(*each) for each in FRAMES], FrameReader),
    ):
        ends = [sum(map(len, parts[:count])) for count in range(len(parts) + 1)]
        for start, end in pairwise(ends):
            for at in range(start, end):
                one = reader()
                assert len(one.feed(stream[:at])) == ends.index(start)
                assert len(one.feed(stream[at:])) == len(parts) - ends.index(start)


@given(st.sampled_from([ReplyReader, FrameReader]), st.integers(0, 10**6), st.integers(0, 7))
def test_flipped_bit_raises_nothing_but_link_error(
    kind: type[ReplyReader | FrameReader], position: int, bit: int
) -> None:
    stream = bytearray(REPLY_STREAM if kind is ReplyReader else FRAME_STREAM)
    stream[position % len(stream)] ^= 1 << bit
    reader = kind()
    try:
        for at in range(len(stream)):
            reader.feed(bytes(stream[at : at + 1]))
    except LinkError:
        pass
