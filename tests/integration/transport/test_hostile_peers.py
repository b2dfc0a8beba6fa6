"""What a peer without the token, or with bad manners, can do to a head: nothing."""

import os
import pickle
import random
import socket
import struct
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from sparkray.protocol import control
from sparkray.transport import client

METHODS = [*control.HEAD_CALLS, *control.HEAD_AGENT_CALLS, "Connect", "NoSuchMethod"]
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#: How much a head may grow under all of an attack.
SLACK_BYTES = 48 * 1024 * 1024


class MarkerWriter:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def call(address: str, method: str, body: bytes, *metadata: tuple[str, Any]) -> str:
    """Return the name of the status that a raw call ends with."""
    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary(f"/Head/{method}")(body, timeout=10, metadata=metadata)
        except grpc.RpcError as error:
            return str(error.code().name)
    return "OK"


def http2(kind: int, flags: int, stream: int, payload: bytes, size: int = -1) -> bytes:
    size = len(payload) if size < 0 else size
    head = struct.pack(">I", size)[1:] + struct.pack(">BBI", kind, flags, stream)
    return head + payload


def headers(path: str, **more: str) -> bytes:
    fields = {
        ":method": "POST", ":scheme": "http", ":path": path, ":authority": "x",
        "content-type": "application/grpc", "te": "trailers", **more,
    }  # fmt: skip
    return b"".join(
        b"\x00"
        + bytes([len(name)])
        + name.encode()
        + bytes([len(value)])
        + value.encode()
        for name, value in fields.items()
    )


def request_of_size(path: str, size: int, **more: str) -> bytes:
    """Return a call that announces ``size`` bytes and sends a few of them."""
    data = b"\x00" + struct.pack(">I", size) + b"x" * 1000
    return (
        PREFACE
        + http2(4, 0, 0, b"")
        + http2(1, 4, 1, headers(path, **more))
        + http2(0, 0, 1, data)
    )


def garbage(seed: int) -> bytes:
    chooser = random.Random(seed)
    noise = chooser.randbytes(chooser.randrange(1, 20_000))
    return chooser.choice(
        [noise, PREFACE + noise, PREFACE + http2(4, 0, 0, b"") + noise]
    )


MALFORMED = {
    "a plain web request": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a frame of 16 MiB announced": PREFACE + http2(0, 0, 1, b"x" * 999, 0xFFFFFF),
    "a header block that never ends": PREFACE
    + http2(4, 0, 0, b"")
    + http2(1, 0, 1, headers("/Head/Status"))
    + http2(9, 0, 1, b"\x00\x01a\x7fx" * 3000) * 300,
    "4 GiB announced without the token": request_of_size("/Head/KVPut", 0xFFFFFFFF),
    "4 GiB announced with the token": request_of_size(
        "/Head/KVPut", 0xFFFFFFFF, authorization="Bearer " + "07" * 32
    ),
    "a flood of settings": PREFACE + http2(4, 0, 0, b"\x00\x03\xff\xff\xff\xff") * 5000,
    "a flood of pings": PREFACE + http2(4, 0, 0, b"") + http2(6, 0, 0, b"8" * 8) * 5000,
    **{f"garbage {seed}": garbage(seed) for seed in range(20)},
}


def send(port: int, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as peer:
        peer.settimeout(0.2)
        try:
            peer.sendall(data)
            while peer.recv(65536):
                pass
        except (TimeoutError, OSError):
            pass  # it closed the connection, or waits for more


def assert_serves(head: Any) -> None:
    status = client.call_head(
        head.address, head.token, "Status", control.ClusterStatus(), 5.0
    )
    assert status.cluster_id == b"c" * 8


@pytest.mark.parametrize(
    "given",
    [
        (),
        (("authorization", "Bearer " + "08" * 32),),
        (("authorization", "07" * 32),),
        (("authorization", "Bearer "),),
        (("authorization", "Bearer " + "07" * 31),),
        (("authorization", "Bearer " + "07" * 32),) * 2,
    ],
    ids=["none", "wrong", "no scheme", "empty", "part of it", "twice"],
)
def test_no_method_answers_without_the_token(head: Any, given: Any) -> None:
    answers = {
        method: call(head.address, method, b"\x80", *given) for method in METHODS
    }
    assert set(answers.values()) == {"UNAUTHENTICATED"}, answers
    assert_serves(head)


@pytest.mark.parametrize("token", ["none", "right"])
def test_a_pickle_is_never_unpickled(head: Any, tmp_path: Path, token: str) -> None:
    marker = tmp_path / "marker"
    body = pickle.dumps(MarkerWriter(str(marker)))
    proof = (
        [("authorization", f"Bearer {head.token.hex()}")] if token == "right" else []
    )
    expected = "INVALID_ARGUMENT" if proof else "UNAUTHENTICATED"
    for method in METHODS[:-1]:
        assert call(head.address, method, body, *proof) == expected, method
    for key in ("authorization-bin", "sparkray-error-bin"):
        call(head.address, "Status", body, (key, body))
    send(head.port, body)
    assert not marker.exists()
    assert_serves(head)


def test_malformed_traffic_neither_stops_a_head_nor_fills_its_memory(head: Any) -> None:
    assert_serves(head)
    before = head.rss_bytes()
    for data in MALFORMED.values():
        send(head.port, data)
        assert head.process.poll() is None
    assert_serves(head)
    assert head.rss_bytes() - before < SLACK_BYTES


def test_large_bodies_without_the_token_are_not_read(head: Any) -> None:
    assert_serves(head)
    before = head.rss_bytes()
    for _ in range(5):
        assert call(head.address, "KVPut", b"x" * (32 << 20)) == "UNAUTHENTICATED"
    assert head.rss_bytes() - before < SLACK_BYTES


def test_a_body_over_the_limit_is_refused_even_with_the_token(head: Any) -> None:
    peer_body = control.KVPut("", b"k", b"x" * (65 << 20), True)
    with pytest.raises(Exception, match="refused the call"):
        client.call_head(head.address, head.token, "KVPut", peer_body, 20.0)
    assert_serves(head)


def test_the_requests_made_by_hand_here_would_be_served(head: Any) -> None:
    proof = {"authorization": f"Bearer {head.token.hex()}"}
    data = (
        PREFACE
        + http2(4, 0, 0, b"")
        + http2(1, 4, 1, headers("/Head/Status", **proof))
        + http2(0, 1, 1, b"\x00\x00\x00\x00\x01\x80")
    )
    answer = b""
    with socket.create_connection(("127.0.0.1", head.port), timeout=5) as peer:
        peer.sendall(data)
        while b"c" * 8 not in answer:
            part = peer.recv(65536)
            assert part, f"closed after {answer!r}"
            answer += part


def test_slow_drips_do_not_hold_up_others(head: Any) -> None:
    data = request_of_size("/Head/KVPut", 1000)
    drips = [socket.create_connection(("127.0.0.1", head.port)) for _ in range(50)]
    before = head.rss_bytes()
    try:
        for position in range(40):
            for drip in drips:
                drip.sendall(data[position : position + 1])
        start = time.monotonic()
        for _ in range(20):
            assert_serves(head)
        assert time.monotonic() - start < 10
        assert head.rss_bytes() - before < SLACK_BYTES
    finally:
        for drip in drips:
            drip.close()
