import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkray.exceptions import ProtocolError
from sparkray.protocol.framing import MAX_BODY_BYTES, FrameDecoder, frame

BODIES = [b"spec", b"", b"x" * 300, b"\x00"]
STREAM = b"".join(map(frame, BODIES))


def test_wire_bytes_are_frozen() -> None:
    assert frame(b"spec").hex() == "0400000073706563"


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 7, 8, 63, 300, len(STREAM)])
def test_frames_survive_a_stream_cut_into_pieces_of_any_length(step: int) -> None:
    decoder = FrameDecoder()
    pieces = [STREAM[at : at + step] for at in range(0, len(STREAM), step)]
    assert [body for piece in pieces for body in decoder.feed(piece)] == BODIES
    assert decoder.partial_bytes == 0


@pytest.mark.parametrize("cut", range(len(STREAM) + 1))
def test_frames_survive_one_cut_anywhere(cut: int) -> None:
    decoder = FrameDecoder()
    assert decoder.feed(STREAM[:cut]) + decoder.feed(STREAM[cut:]) == BODIES


@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(1, 50)))
def test_frames_survive_cuts_at_any_places(
    bodies: list[bytes], steps: list[int]
) -> None:
    stream = b"".join(map(frame, bodies))
    decoder = FrameDecoder()
    got: list[bytes] = []
    for step in steps:
        got += decoder.feed(stream[:step])
        stream = stream[step:]
    got += decoder.feed(stream)
    assert got == bodies


def test_an_unfinished_frame_is_held_and_counted() -> None:
    decoder = FrameDecoder()
    assert decoder.feed(STREAM[:-1]) == BODIES[:-1]
    assert decoder.partial_bytes == len(frame(BODIES[-1])) - 1
    assert decoder.feed(STREAM[-1:]) == BODIES[-1:]


def test_a_frame_of_the_limit_passes_and_one_byte_more_does_not() -> None:
    assert FrameDecoder(max_body_bytes=64).feed(frame(b"x" * 64)) == [b"x" * 64]
    with pytest.raises(ProtocolError, match="65 bytes exceeds 64"):
        FrameDecoder(max_body_bytes=64).feed(frame(b"x" * 65))


@pytest.mark.parametrize("length", [MAX_BODY_BYTES + 1, 2**32 - 1])
def test_a_long_frame_is_refused_on_its_length_alone(length: int) -> None:
    decoder = FrameDecoder()
    with pytest.raises(ProtocolError, match=str(length)):
        decoder.feed(struct.pack("<I", length))
    assert decoder.partial_bytes <= 4


def test_a_long_frame_is_refused_byte_by_byte_too() -> None:
    decoder = FrameDecoder(max_body_bytes=64)
    header = struct.pack("<I", 65)
    for at in range(3):
        assert decoder.feed(header[at : at + 1]) == []
    with pytest.raises(ProtocolError):
        decoder.feed(header[3:])


def test_bodies_are_bytes_of_their_own_and_not_views_of_the_buffer() -> None:
    data = bytearray(STREAM)
    bodies = FrameDecoder().feed(bytes(data))
    data[:] = b"\xff" * len(data)
    assert bodies == BODIES
    assert all(type(body) is bytes for body in bodies)
