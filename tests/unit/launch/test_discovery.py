import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkray.launch import discovery


@pytest.fixture
def daemon() -> Iterator[subprocess.Popen[bytes]]:
    """A process that looks like a node daemon, until its input ends."""
    code = "import sys; print(flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "sparkray.cli.daemon"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


def announce(directory: Path, pid: int, **changed: Any) -> Path:
    directory.mkdir(parents=True)
    fields = {
        "cluster_id": "c1",
        "node_id": "ab" * 28,
        "host": "127.0.0.1",
        "head": "127.0.0.1:7001",
        "agent_socket": str(directory / "agent.sock"),
        "pid": pid,
        "host_name": socket.gethostname(),
        "version": "0.1.0",
        "is_head": True,
        "token_file": str(directory / "token"),
        "session_dir": str(directory),
        **changed,
    }
    file = directory / discovery.FILE_NAME
    file.write_text(json.dumps(fields))
    return file


def test_a_node_counts_while_its_process_lives(
    tmp_path: Path, daemon: subprocess.Popen[bytes]
) -> None:
    announce(tmp_path / "a", daemon.pid)
    (found,) = discovery.nodes_on_this_host(tmp_path)
    assert (found.pid, found.head, found.local) == (daemon.pid, "127.0.0.1:7001", False)
    daemon.communicate()
    assert discovery.nodes_on_this_host(tmp_path) == []


def test_a_process_that_is_no_node_or_came_later_does_not_count(
    tmp_path: Path, daemon: subprocess.Popen[bytes]
) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as stranger:
        announce(tmp_path / "a", stranger.pid)
        os.utime(announce(tmp_path / "b", daemon.pid), (0, 0))
        announce(tmp_path / "c", daemon.pid, host_name="elsewhere")
        assert discovery.nodes_on_this_host(tmp_path) == []


def test_a_file_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    for name, text in {"a": "", "b": "[]", "c": '{"pid": 1}', "d": "{"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / discovery.FILE_NAME).write_text(text)
    assert discovery.nodes_on_this_host(tmp_path) == []


def test_a_cluster_is_offered_through_its_head_and_private_ones_are_not(
    tmp_path: Path, daemon: subprocess.Popen[bytes]
) -> None:
    announce(tmp_path / "a", daemon.pid, is_head=False)
    announce(tmp_path / "b", daemon.pid)
    announce(tmp_path / "c", daemon.pid, cluster_id="c2", local=True)
    nodes = discovery.nodes_on_this_host(tmp_path)
    (shared,) = discovery.shared_clusters(nodes)
    assert len(nodes) == 3 and shared.is_head and shared.cluster_id == "c1"


def test_clusters_one_level_down_are_found_only_when_asked_for(
    tmp_path: Path, daemon: subprocess.Popen[bytes]
) -> None:
    announce(tmp_path / "test-x" / "a", daemon.pid)
    assert discovery.nodes_on_this_host(tmp_path) == []
    nodes = discovery.nodes_on_this_host(tmp_path, deep=True)
    assert len(discovery.with_head(nodes, "localhost:7001")) == 1
    assert discovery.with_head(nodes, "127.0.0.1:7002") == []


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":1", "host:x", "host:70000", "ray://host:1"]
)
def test_an_address_is_host_and_port(address: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        discovery.parse_address(address)
    assert discovery.parse_address("[::1]:80") == ("::1", 80)
