"""Every message survives the way over the wire, and nothing else gets in."""

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkray.exceptions import ProtocolError
from sparkray.protocol import codec, control, messages
from sparkray.protocol.framing import FrameDecoder, frame
from tests.wire import CHANNEL, CONTROL, instances


@pytest.mark.parametrize("kind", CHANNEL, ids=lambda kind: kind.__name__)
@settings(max_examples=10, suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data())
def test_a_channel_message_arrives_as_it_was_sent(
    kind: Any, data: st.DataObject
) -> None:
    message = data.draw(instances(kind))
    (body,) = FrameDecoder().feed(frame(codec.encode(message)))
    arrived = codec.decode_channel(body)
    assert type(arrived) is kind
    assert arrived == message


@pytest.mark.parametrize("kind", CONTROL, ids=lambda kind: kind.__name__)
@settings(max_examples=10, suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data())
def test_a_control_message_arrives_as_it_was_sent(
    kind: Any, data: st.DataObject
) -> None:
    message = data.draw(instances(kind))
    assert codec.decode_as(kind, codec.encode(message)) == message


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_a_message_or_a_protocol_error(body: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert type(codec.decode_channel(body)) in CHANNEL


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_no_control_message(body: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert type(codec.decode_as(control.NodeInfo, body)) is control.NodeInfo


WRONG = {
    "empty": b"",
    "unknown tag": msgspec.msgpack.encode([999, 1]),
    "no tag": msgspec.msgpack.encode([]),
    "a map": msgspec.msgpack.encode({"type": 4, "call": 1}),
    "wrong type": msgspec.msgpack.encode([4, "one"]),
    "missing field": msgspec.msgpack.encode([4]),
    "cut": codec.encode(messages.Done(call=70_000))[:-1],
    "bytes after the end": codec.encode(messages.Done(call=1)) + b"\x00",
    "bad text": codec.encode(
        messages.LogLines(name="n", pid=1, host="h", lines=[], is_stderr=False)
    ).replace(b"\xa1h", b"\xa1\xff"),
    "a pickle": b"\x80\x05\x8c\x02os\x8c\x06system\x93.",
}


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
def test_what_is_no_message_is_a_protocol_error(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        codec.decode_channel(body)


def test_a_newer_peer_may_append_fields() -> None:
    body = msgspec.msgpack.encode([4, 7, "a field of a later version"])
    assert codec.decode_channel(body) == messages.Done(call=7)


def test_an_older_peer_may_leave_out_fields_that_have_a_default() -> None:
    body = msgspec.msgpack.encode([42, 1, 2, 3, b"args"])
    message = codec.decode_channel(body)
    assert (message.refs, message.stored_args) == (None, None)


def test_the_bytes_of_the_hot_path_are_frozen() -> None:
    push = messages.PushTask(number=1, template=2, attempt=1, args=b"")
    done = messages.TaskDone(number=1, attempt=1, run_s=0.5, value=b"v")
    assert codec.encode(push).hex().startswith("972a010201c400c0c0")
    assert codec.encode(done).hex() == "952b0101cb3fe0000000000000c40176"
