"""A running cluster of two nodes under fire: at every socket of every process.

Without the token nothing is unpickled, nothing ends and memory stays flat; with it, who
sends nonsense loses his own connection and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import sparkray
from sparkray.exceptions import ProtocolError
from sparkray.protocol.codec import encode
from sparkray.protocol.framing import frame
from sparkray.protocol.messages import Blocked, FreeObjects
from sparkray.transport.auth import MAGIC, Handshake, read_token
from tests import leaks

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#: How much one process may grow under all of it: less than any announced length, more
#: than a worker loads for its first task.
SLACK_BYTES = 160 << 20
PATIENCE_S = 0.2


class Bomb:
    """Unpickling it makes a directory."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


@dataclass(frozen=True)
class Endpoint:
    """One listening socket of one process."""

    pid: int
    family: int
    address: Any

    def connect(self) -> socket.socket:
        peer = socket.socket(self.family)
        peer.settimeout(5)
        try:
            peer.connect(self.address)
        except OSError:
            peer.close()
            raise
        return peer


def processes() -> list[psutil.Process]:
    """Return the cluster's processes, this one, its driver, among them."""
    root = os.environ[leaks.VARIABLE]
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(leaks.VARIABLE) == root:
                found.append(process)
    return [*found, *([] if psutil.Process() in found else [psutil.Process()])]


def endpoints() -> list[Endpoint]:
    found = set()
    for process in processes():
        for one in process.net_connections("inet"):
            if one.status == psutil.CONN_LISTEN:
                address = (one.laddr.ip, one.laddr.port)
                found.add(Endpoint(process.pid, one.family, address))
        for one in process.net_connections("unix"):
            if one.laddr and os.path.exists(one.laddr):
                found.add(Endpoint(process.pid, socket.AF_UNIX, one.laddr))
    by_address = {endpoint.address: endpoint for endpoint in found}
    return sorted(by_address.values(), key=lambda e: (e.pid, str(e.address)))


def http2(kind: int, flags: int, stream: int, payload: bytes, size: int = -1) -> bytes:
    size = len(payload) if size < 0 else size
    head = struct.pack(">I", size)[1:] + struct.pack(">BBI", kind, flags, stream)
    return head + payload


def grpc_call(path: str, body: bytes, announced: int) -> bytes:
    fields = {
        ":method": "POST", ":scheme": "http", ":path": path, ":authority": "x",
        "content-type": "application/grpc", "te": "trailers",
    }  # fmt: skip
    block = b"".join(
        b"\0" + bytes([len(k)]) + k.encode() + bytes([len(v)]) + v.encode()
        for k, v in fields.items()
    )
    data = b"\0" + struct.pack(">I", announced) + body
    return (
        PREFACE
        + http2(4, 0, 0, b"")
        + http2(1, 4, 1, block)
        + http2(0, 1, 1, data[:16_000])
    )


def salvos(bomb: bytes) -> list[bytes]:
    """Return what is sent to each endpoint, a connection each."""
    noise = random.Random(7)
    hello = MAGIC + noise.randbytes(32)
    calls = [
        grpc_call(path, bomb, announced)
        for path in (
            "/Head/KVPut",
            "/Agent/Lease",
            "/arrow.flight.protocol.FlightService/DoGet",
        )
        for announced in (len(bomb), 0xFFFFFFF0)
    ]
    return [
        *(noise.randbytes(noise.randrange(1, 30_000)) for _ in range(4)),
        bomb,
        frame(bomb),
        b"\x80" * 50_000,
        struct.pack("<I", 0xFFFFFFFF) + b"x" * 5000,
        struct.pack(">I", 0x7FFFFFFF) + bomb,
        hello + noise.randbytes(32) + frame(bomb),
        hello + b"\0" * 32 + struct.pack("<I", 500 << 20) + b"x" * 200_000,
        hello,
        MAGIC,
        hello * 500,
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + noise.randbytes(509),
        PREFACE + noise.randbytes(3000),
        PREFACE + http2(0, 0, 1, b"x" * 999, 0xFFFFFF),
        PREFACE + http2(4, 0, 0, b"\x00\x03\xff\xff\xff\xff") * 2000,
        *calls,
    ]


def fire(endpoint: Endpoint, data: bytes) -> None:
    with contextlib.suppress(OSError), endpoint.connect() as peer:
        peer.settimeout(PATIENCE_S)
        peer.sendall(data)
        while peer.recv(65536):
            pass


@pytest.fixture(scope="module")
def cluster(cluster_root: Path) -> Iterator[Any]:
    from sparkray.testing import Cluster

    with (
        leaks.no_leaks(cluster_root),
        Cluster(head_node_args={"num_cpus": 2}) as made,
    ):
        made.second = made.add_node(num_cpus=2, resources={"second": 2})
        made.wait_for_nodes()
        sparkray.init(address=made.address)
        try:
            assert_answers()
            yield made
        finally:
            sparkray.shutdown()


@sparkray.remote
def total(array: Any) -> int:
    return int(array.sum())


def assert_answers() -> None:
    """Both nodes work, and objects go from one to the other."""
    array = np.ones(1 << 18)
    there = total.options(resources={"second": 1}).remote(array)
    assert sparkray.get([there, total.remote(array)], timeout=20) == [1 << 18] * 2
    assert [row["Alive"] for row in sparkray.nodes()] == [True, True]


@contextlib.contextmanager
def unharmed(marker: Path) -> Iterator[None]:
    """See that all processes outlive the block, do not grow, and unpickle nothing."""
    before = {process: process.memory_info().rss for process in processes()}
    yield
    assert_answers()
    assert not marker.exists(), "something was unpickled"
    for process, rss in before.items():
        assert process.is_running(), f"{process.pid} has ended"
        assert process.memory_info().rss - rss < SLACK_BYTES, process.cmdline()


def test_the_attack_meets_every_kind_of_process(cluster: Any) -> None:
    found = endpoints()
    pids = {endpoint.pid for endpoint in found}
    daemons = {node.pid for node in cluster.nodes}
    workers = pids - daemons - {os.getpid()}
    assert daemons < pids and len(workers) >= 2 and os.getpid() in pids
    unix = [e for e in found if e.family == socket.AF_UNIX]
    assert len(unix) >= 5 and len(found) - len(unix) >= 5
    for endpoint in unix:
        mode = os.stat(endpoint.address).st_mode & 0o777
        assert mode == 0o600, endpoint
        assert os.stat(os.path.dirname(endpoint.address)).st_mode & 0o077 == 0


@pytest.mark.timeout(120)
def test_nothing_that_comes_without_the_token_does_anything(
    cluster: Any, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    shots = salvos(pickle.dumps(Bomb(marker)))
    targets = endpoints()
    with unharmed(marker):
        threads = [
            threading.Thread(target=lambda t=t: [fire(t, shot) for shot in shots])
            for t in targets
        ]
        for thread in threads:
            thread.start()
        assert_answers()  # in the midst of it
        for thread in threads:
            thread.join()


def test_slow_drips_hold_up_nobody(cluster: Any, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    bomb = pickle.dumps(Bomb(marker))
    sources = [MAGIC + os.urandom(32) + frame(bomb), PREFACE + bomb, bomb]
    with unharmed(marker), contextlib.ExitStack() as open_ones:
        drips = [
            (open_ones.enter_context(endpoint.connect()), source)
            for endpoint in endpoints()
            for source in sources
        ]
        for position in range(25):
            for peer, source in drips:
                with contextlib.suppress(OSError):
                    peer.sendall(source[position : position + 1])
            if position % 8 == 0:
                began = time.monotonic()
                assert_answers()
                assert time.monotonic() - began < 10


# --- with the token ---


def proven(endpoint: Endpoint, token: bytes) -> socket.socket | None:
    """Return a connection after the handshake; None where none is spoken."""
    peer = endpoint.connect()
    peer.settimeout(1)
    handshake = Handshake(token, server=False)
    try:
        peer.sendall(handshake.first_bytes())
        while not handshake.done:
            data = peer.recv(65536)
            if not data:
                raise ConnectionError("closed")
            reply, _ = handshake.feed(data)
            peer.sendall(reply)
    except (OSError, ProtocolError):
        peer.close()
        return None
    return peer


def is_closed_by_peer(peer: socket.socket) -> bool:
    peer.settimeout(5)
    try:
        while peer.recv(65536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


NONSENSE: dict[str, Callable[[bytes], bytes]] = {
    "a pickle": lambda bomb: frame(bomb),
    "noise": lambda bomb: frame(random.Random(3).randbytes(500)),
    "a length of 4 GiB": lambda bomb: struct.pack("<I", 0xFFFFFFFF) + bomb,
    "an empty frame": lambda bomb: frame(b""),
    "a deep nest": lambda bomb: frame(b"\x91" * 100_000),
    "a message before its hello": lambda bomb: frame(encode(Blocked())),
    "a wish before its hello": lambda bomb: frame(encode(FreeObjects([b"x"], []))),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_who_knows_the_token_and_sends_nonsense_loses_his_connection_only(
    cluster: Any, tmp_path: Path, what: str
) -> None:
    marker = tmp_path / "marker"
    data = NONSENSE[what](pickle.dumps(Bomb(marker)))
    token = read_token(cluster.token_file)
    spoken = 0
    with unharmed(marker):
        for endpoint in endpoints():
            peer = proven(endpoint, token)
            if peer is None:
                continue  # gRPC or Flight
            spoken += 1
            with peer:
                with contextlib.suppress(OSError):
                    peer.sendall(data)
                assert is_closed_by_peer(peer), endpoint
    assert spoken >= 7, "agents, workers and the driver speak it"


def test_the_token_is_in_no_command_line_environment_or_log(cluster: Any) -> None:
    token = read_token(cluster.token_file).hex()
    for process in processes():
        if process.pid == os.getpid():
            continue
        assert token not in " ".join(process.cmdline())
        assert token not in str(process.environ())
    for directory in {Path(node.session_dir) for node in cluster.nodes}:
        assert directory.stat().st_mode & 0o077 == 0
        for path in directory.rglob("*"):
            if path.is_file() and path.name != "token":
                assert token.encode() not in path.read_bytes(), path
