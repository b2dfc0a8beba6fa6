"""Messages <-> bytes: MessagePack arrays with an integer tag, by msgspec.

Both ends decode at the edge; no loose dict travels further in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from sparkray.exceptions import ProtocolError
from sparkray.protocol import messages

_MessageT = TypeVar("_MessageT")

#: What bytes that are no message raise; nested too deeply, a `RecursionError`.
UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_encode: Final[Callable[[Any], bytes]] = msgspec.msgpack.Encoder().encode
_decode_channel = msgspec.msgpack.Decoder(messages.ChannelMessage).decode

#: The hot path's own: no check, the peer is proven and the type is known.
encode: Final = _encode


def decode_channel(body: bytes) -> Any:
    """Return the message of one frame of a task channel or agent channel.

    Raises:
        ProtocolError: the bytes are no known message.
    """
    try:
        return _decode_channel(body)
    except UNDECODABLE as error:
        raise ProtocolError(
            f"undecodable message of {len(body)} bytes: {error}"
        ) from error


def decode_as(kind: type[_MessageT], body: bytes) -> _MessageT:
    """Return ``body`` as one message of a known class (gRPC bodies).

    Raises:
        ProtocolError: the bytes are not that message.
    """
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except UNDECODABLE as error:
        raise ProtocolError(f"not a {kind.__name__}: {error}") from error
