"""Task-channel framing: bytes <-> frames, with no socket in sight.

    offset  size  field
    0       4     length of the body in bytes, little-endian, unsigned
    4       n     the body: one message (see `protocol.codec`)

The limit is checked on the four bytes of the length, before any room is set aside.
"""

from __future__ import annotations

import struct
from typing import Final

from sparkray.exceptions import ProtocolError

LENGTH: Final = struct.Struct("<I")
MAX_BODY_BYTES: Final = 512 * 1024 * 1024


class FrameDecoder:
    """Rebuilds frames from a byte stream that was cut anywhere.

    Args:
        max_body_bytes: refuse a longer frame as soon as its length is known.
    """

    __slots__ = ("_buffer", "_max_body_bytes")

    def __init__(self, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._buffer = bytearray()
        self._max_body_bytes = max_body_bytes

    def feed(self, data: bytes | memoryview) -> list[bytes]:
        """Add what one ``recv`` returned; return the bodies that are now complete.

        Raises:
            ProtocolError: a frame longer than the limit.
        """
        buffer = self._buffer
        if buffer:
            buffer += data
            frames, used = self._take(buffer)
            if used:
                del buffer[:used]
            return frames
        frames, used = self._take(data)
        if used < len(data):
            buffer += memoryview(data)[used:]
        return frames

    @property
    def partial_bytes(self) -> int:
        """How much of an unfinished frame is held."""
        return len(self._buffer)

    def _take(self, data: bytes | bytearray | memoryview) -> tuple[list[bytes], int]:
        frames: list[bytes] = []
        position, size = 0, len(data)
        unpack = LENGTH.unpack_from
        with memoryview(data) as view:
            while size - position >= 4:
                (length,) = unpack(data, position)
                if length > self._max_body_bytes:
                    raise ProtocolError(
                        f"frame of {length} bytes exceeds {self._max_body_bytes}"
                    )
                end = position + 4 + length
                if end > size:
                    break
                frames.append(bytes(view[position + 4 : end]))
                position = end
        return frames, position


def frame(body: bytes) -> bytes:
    """Return ``body`` with its length before it."""
    return LENGTH.pack(len(body)) + body
