"""Arbitrary bytes, and valid ones that were damaged, do no harm to what reads them."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkray.exceptions import ProtocolError
from sparkray.protocol import codec
from sparkray.protocol.framing import frame
from sparkray.transport.auth import MAGIC, NONCE_BYTES
from sparkray.transport.channel import Channel, IOLoop
from tests.fuzz.targets import SEEDS, TARGETS, TOKEN
from tests.wire import CHANNEL, CONTROL, instances

#: What MessagePack and frames begin a huge or deep value with.
NASTY = [
    *(b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"),
    *(b"\xdb\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01", b"\xff\xff\xff\xff"),
    *(b"\xcf" + b"\xff" * 8, b"\xcb\x7f\xf8" + bytes(6), b"\xc1", b"\xa1\xff"),
    *(b"\x91" * 2000, b"\x81\x01" * 2000, b"\x80\x05\x8c\x02os\x93."),
]
DEPTHS = [b"\x91", b"\x81\x01", b"\x81\xa1a"]
QUICK = settings(max_examples=60, suppress_health_check=list(HealthCheck))


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Return ``data`` with a few bytes changed, lost, doubled or made nasty."""
    for _ in range(chance.randint(1, 3)):
        at, end = sorted(chance.choices(range(len(data) + 1), k=2))
        data = chance.choice(
            [
                data[:at],
                data[:at] + data[end:],
                data[:end] + data[at:],
                data[:at] + chance.randbytes(1) + data[at + 1 :],
                data[:at] + chance.choice(NASTY) + data[at:],
                data[:at] + chance.choice(NASTY) + data[end:],
            ]
        )
    return data


@pytest.mark.parametrize("target", TARGETS)
@QUICK
@given(data=st.binary(max_size=300))
def test_arbitrary_bytes(target: str, data: bytes) -> None:
    TARGETS[target](data)


@pytest.mark.parametrize("target", TARGETS)
@QUICK
@given(seed=st.sampled_from(SEEDS), chance=st.randoms(use_true_random=False))
def test_damaged_seeds(target: str, seed: bytes, chance: random.Random) -> None:
    TARGETS[target](damaged(seed, chance))


@pytest.mark.parametrize("kind", CHANNEL, ids=lambda kind: kind.__name__)
@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damaged_channel_messages(kind: type, data: st.DataObject) -> None:
    body = codec.encode(data.draw(instances(kind)))
    chance = data.draw(st.randoms(use_true_random=False))
    TARGETS["channel_message"](damaged(body, chance))
    TARGETS["framing"](damaged(frame(body), chance))


@pytest.mark.parametrize("kind", CONTROL, ids=lambda kind: kind.__name__)
@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damaged_control_messages(kind: type, data: st.DataObject) -> None:
    body = codec.encode(data.draw(instances(kind)))
    TARGETS["control_message"](damaged(body, data.draw(st.randoms())))


@pytest.mark.parametrize("kind", CHANNEL, ids=lambda kind: kind.__name__)
@settings(max_examples=3, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_truncation_of_a_message_is_refused(
    kind: type, data: st.DataObject
) -> None:
    body = codec.encode(data.draw(instances(kind)))
    for end in range(min(len(body), 200)):
        with pytest.raises(ProtocolError):
            codec.decode_channel(body[:end])


@pytest.mark.parametrize("nested", DEPTHS)
def test_values_that_are_nested_without_end_are_a_protocol_error(nested: bytes) -> None:
    body = b"\x93\x04\x07" + nested * 100_000  # a field of a later version
    for data in (body, body + b"\xc0"):
        with pytest.raises(ProtocolError):
            codec.decode_channel(data)
        for target in TARGETS.values():
            target(data)


@pytest.fixture(scope="module")
def loop() -> Iterator[IOLoop]:
    made = IOLoop("fuzz-io")
    made.start()
    yield made
    made.stop()


def frames_let_in(loop: IOLoop, data: bytes) -> list[bytes]:
    """Send ``data`` to a channel and hang up; return what came through."""
    ours, theirs = socket.socketpair()
    frames: list[bytes] = []
    closed = threading.Event()
    channel = Channel(
        loop,
        theirs,
        TOKEN,
        server=True,
        on_open=lambda channel: None,
        on_frames=lambda channel, bodies: frames.extend(bodies),
        on_close=lambda channel, reason: closed.set(),
    )
    loop.post(channel.start)
    with ours:
        ours.settimeout(10)
        try:
            ours.sendall(data)
            ours.shutdown(socket.SHUT_WR)
            while ours.recv(4096):
                pass
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before all of it was sent
        assert closed.wait(10)
    return frames


@QUICK
@given(
    st.one_of(
        st.binary(max_size=300),
        st.binary(min_size=NONCE_BYTES, max_size=300).map(lambda rest: MAGIC + rest),
        st.sampled_from(SEEDS).map(lambda seed: MAGIC + bytes(64) + frame(seed)),
    )
)
def test_no_byte_of_an_unproven_peer_reaches_what_reads_messages(
    loop: IOLoop, data: bytes
) -> None:
    assert frames_let_in(loop, data) == []
