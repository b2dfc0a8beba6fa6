"""A cluster with TLS: every port that is open to other hosts speaks it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

import sparkray
from sparkray.testing import Cluster
from sparkray.transport.tls import TLSFiles
from tests.certificates import certificates


@pytest.fixture
def files(tmp_path: Path) -> TLSFiles:
    return certificates(tmp_path, "ours")


@pytest.fixture
def cluster(files: TLSFiles, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    for name in ("ca", "cert", "key"):
        monkeypatch.setenv(f"SPARKRAY_TLS_{name.upper()}", getattr(files, name))
    with Cluster(head_node_args={"num_cpus": 1, "resources": {"a": 1}}) as cluster:
        cluster.add_node(num_cpus=1, resources={"b": 1})
        cluster.wait_for_nodes()
        sparkray.init(address=cluster.address)
        yield cluster
        sparkray.shutdown()


def test_tasks_objects_and_actors_cross_between_nodes(
    cluster: Cluster, files: TLSFiles
) -> None:
    @sparkray.remote(resources={"a": 0.1}, num_cpus=0.1)
    def here(x: int) -> int:
        return 2 * x

    @sparkray.remote(resources={"b": 0.1}, num_cpus=0.1)
    def there(x: int) -> int:
        return int(sparkray.get(here.remote(x)))

    @sparkray.remote(resources={"b": 0.1}, num_cpus=0.1)
    class Block:
        def make(self) -> np.ndarray:
            return np.ones(1 << 20)

    block = Block.remote()
    assert sparkray.get([there.remote(i) for i in range(3)], timeout=50) == [0, 2, 4]
    assert sparkray.get(block.make.remote(), timeout=50).sum() == 1 << 20
    ports = {port for node in cluster.nodes for port in _listening(node.pid)}
    ports |= _listening(psutil.Process().pid)
    assert len(ports) >= 6  # gRPC and Flight of two nodes, workers, and this driver
    assert {port: _version(port, files) for port in ports} == dict.fromkeys(
        ports, "TLSv1.3"
    )


def _listening(pid: int) -> set[int]:
    """Return the TCP ports on which a process and its children listen."""
    process = psutil.Process(pid)
    return {
        connection.laddr.port
        for member in (process, *process.children(recursive=True))
        for connection in member.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }


def _version(port: int, files: TLSFiles) -> str | None:
    context = files.client_context()
    context.check_hostname = False
    with (
        socket.create_connection(("127.0.0.1", port), 5) as plain,
        context.wrap_socket(plain) as wrapped,
    ):
        return wrapped.version()
