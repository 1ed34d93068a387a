"""Lines and frames are scanned alike in C and in Python."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenstalk_server.protocol import codec, link_frames
from greenstalk_server.protocol.link_frames import LAST_KIND, MAX_PAYLOAD
from greenstalk_server.protocol.verb import MAX_LINE

PIECES = st.sampled_from([
    b"\r", b"\n", b"\r\n", b" ", b"delete", b"reserve", b"reserve-job", b"peek", b"peek-ready", b"put 0 0 60 1",
    b"0", b"18446744073709551615", b"9999999999999999999", b"99999999999999999999", b"-1", b"\0", b"x" * MAX_LINE,
])  # fmt: skip


@pytest.fixture(scope="module")
def scan() -> ModuleType:
    return pytest.importorskip("greenstalk_server.protocol._scan", reason="run `make compiled`")


@given(pieces=st.lists(PIECES | st.binary(max_size=4), max_size=8), pos=st.integers(0, 300), limit=st.integers(0, 300))
def test_next_command_written_in_c_returns_what_python_does(
    scan: ModuleType, pieces: list[bytes], pos: int, limit: int
) -> None:
    data = b"".join(pieces)
    arguments = codec.known, codec._numbered, data, min(pos, len(data)), limit
    expected = codec.next_command_in_python(*arguments)
    assert scan.next_command(*arguments) == expected
    assert scan.next_command(*arguments) == expected  # a result may be kept


def test_next_command_written_in_c_keeps_results_until_it_is_told_to_forget(scan: ModuleType) -> None:
    scan.forget()
    first = scan.next_command({b"reserve": "a command"}, (), b"reserve\r\n", 0, MAX_LINE)
    assert first == (b"reserve", "a command")
    assert scan.next_command({}, (), b"put; reserve\r\n", 5, MAX_LINE) is first
    scan.forget()
    assert scan.next_command({}, (), b"reserve\r\n", 0, MAX_LINE) == (b"reserve", None)


@given(
    frames=st.lists(st.tuples(st.integers(1, LAST_KIND), st.integers(0, 2**32 - 1), st.binary(max_size=40))),
    rest=st.binary(max_size=20),
)
def test_cut_written_in_c_returns_what_python_does(
    scan: ModuleType, frames: list[link_frames.Frame], rest: bytes
) -> None:
    data = b"".join(link_frames.frame(*each) for each in frames) + rest

    def outcome(cut: Any) -> Any:
        try:
            return cut(data, MAX_PAYLOAD, LAST_KIND)
        except ValueError as error:
            return str(error)

    found = outcome(scan.cut)
    assert found == outcome(link_frames.cut_in_python)
    assert isinstance(found, str) or found[0][: len(frames)] == frames


@pytest.mark.parametrize(
    "arguments",
    [({}, (), b""), ([], (), b"", 0, 1), ({}, {}, b"", 0, 1), ({}, (), "", 0, 1), ({}, (), b"", "0", 1)],
)
def test_next_command_written_in_c_refuses_other_arguments(scan: ModuleType, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        scan.next_command(*arguments)


@pytest.mark.parametrize(("pos", "limit"), [(-1, 1), (2, 1), (0, -1)])
def test_next_command_written_in_c_refuses_a_position_outside_of_the_data(
    scan: ModuleType, pos: int, limit: int
) -> None:
    with pytest.raises(ValueError, match="position"):
        scan.next_command({}, (), b"x", pos, limit)


@pytest.mark.parametrize("arguments", [(b"",), ("", 1, 1), (b"", None, 1)])
def test_cut_written_in_c_refuses_other_arguments(scan: ModuleType, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        scan.cut(*arguments)
