"""What hostile bytes are fed to: each target takes any bytes, and asserts what holds.

Hypothesis (tests/unit/protocol/test_hostile_bytes.py) and atheris (harness.py) share
them.  Nothing but the documented error may come out, and nothing may be held that is
larger than what was sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final, get_args

from sparkray.exceptions import ProtocolError
from sparkray.protocol import codec, messages, zygote
from sparkray.protocol.framing import FrameDecoder, frame
from sparkray.transport import errors
from sparkray.transport.auth import NONCE_BYTES, PROOF_BYTES, Handshake
from tests.wire import CHANNEL, CONTROL

TOKEN: Final = b"t" * 32
LIMIT_BYTES: Final = 4096


def framing(data: bytes) -> None:
    """However bytes are cut, the frames are the same; none is longer than allowed."""
    step = 1 + data[0] % 7 if data else 1
    whole, pieces = FrameDecoder(LIMIT_BYTES), FrameDecoder(LIMIT_BYTES)
    at_once: list[bytes] = []
    with contextlib.suppress(ProtocolError):
        at_once = whole.feed(data)
    bit_by_bit: list[bytes] = []
    with contextlib.suppress(ProtocolError):
        for at in range(0, len(data), step):
            bit_by_bit += pieces.feed(data[at : at + step])
            assert pieces.partial_bytes <= LIMIT_BYTES + 4
    assert bit_by_bit[: len(at_once)] == at_once
    assert all(len(body) <= LIMIT_BYTES for body in bit_by_bit)
    rebuilt = b"".join(map(frame, bit_by_bit))
    assert data.startswith(rebuilt)


def channel_message(data: bytes) -> None:
    """A body of a task or agent channel is a message that goes back, or an error."""
    with contextlib.suppress(ProtocolError):
        message = codec.decode_channel(data)
        assert type(message) in CHANNEL
        codec.encode(message)


def control_message(data: bytes) -> None:
    """A body of a gRPC call is the message that is expected, or an error."""
    for kind in CONTROL:
        with contextlib.suppress(ProtocolError):
            assert type(codec.decode_as(kind, data)) is kind


def zygote_message(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert type(zygote.decode(data)) in get_args(zygote.ZygoteMessage)


def error_trailer(data: bytes) -> None:
    """What comes as an error of a call is an error, whatever it is."""
    assert isinstance(errors.from_status("INTERNAL", "", data, "peer"), Exception)


def server_handshake(data: bytes) -> None:
    """Nobody proves the token by chance, nor has a server hold more than a message."""
    side = Handshake(TOKEN, server=True)
    said = b""
    step = 1 + data[0] % 50 if data else 1
    with contextlib.suppress(ProtocolError):
        for at in range(0, len(data), step):
            reply, rest = side.feed(data[at : at + step])
            said += reply
            assert rest == b""
            assert side.partial_bytes <= NONCE_BYTES + 8
    assert not side.done
    assert len(said) in (0, NONCE_BYTES + PROOF_BYTES)


def client_handshake(data: bytes) -> None:
    """A client proves nothing to a server that has not proven itself."""
    side = Handshake(TOKEN, server=False)
    with contextlib.suppress(ProtocolError):
        assert side.feed(data) == (b"", b"")
        assert side.partial_bytes <= NONCE_BYTES + PROOF_BYTES
    assert not side.done


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    target.__name__: target
    for target in (
        framing,
        channel_message,
        control_message,
        zygote_message,
        error_trailer,
        server_handshake,
        client_handshake,
    )
}

#: Valid messages, for a fuzzer to begin from.
SEEDS: Final = [
    codec.encode(messages.PushTask(1, 2, 1, b"args")),
    codec.encode(messages.TaskDone(1, 1, 0.5, b"value")),
    codec.encode(messages.Done(call=1)),
    frame(codec.encode(messages.Done(call=1))),
    b"SPKRAY\x00\x01" + bytes(NONCE_BYTES),
]
