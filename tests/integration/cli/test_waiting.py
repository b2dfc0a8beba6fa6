"""Nodes that are started before their head, or twice, or outlive it."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import sparkray
from sparkray.launch import discovery
from tests.support import ROOT, until

TOKEN = "5ec12e7" * 9 + "0"


@pytest.fixture(autouse=True)
def temp_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temp dir of the test's own; every node in it is ended with the test."""
    monkeypatch.delenv("SPARKRAY_ADDRESS", raising=False)
    monkeypatch.setenv("SPARKRAY_TOKEN", TOKEN)
    with tempfile.TemporaryDirectory(prefix="sr-", dir="/tmp") as name:
        monkeypatch.setenv("SPARKRAY_TEMP_DIR", name)
        yield Path(name)
        sparkray.shutdown()
        for node in nodes() + discovery.waiting_on_this_host():
            os.kill(node.pid, signal.SIGKILL)


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def begin(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "sparkray", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def said(*arguments: str, status: int = 0) -> str:
    process = begin(*arguments)
    text, _ = process.communicate(timeout=50)
    assert process.returncode == status, text
    return text


def start_head(port: int) -> str:
    return said("start", "--head", f"--port={port}", "--num-cpus=1", "--once")


def start_node(port: int, *more: str) -> "subprocess.Popen[str]":
    address = f"--address=127.0.0.1:{port}"
    once = ("--wait-for-head", "--once", "--num-cpus=1", "--resources", '{"far": 1}')
    return begin("start", address, *once, *more)


def nodes() -> list[discovery.Node]:
    return discovery.nodes_on_this_host()


def waiting_pid() -> int:
    (node,) = until(discovery.waiting_on_this_host)
    return int(node.pid)


def alive(port: int) -> int:
    shown = json.loads(said("status", "--json", f"--address=127.0.0.1:{port}"))
    return sum(node["alive"] for node in shown["nodes"])


def test_a_node_is_left_waiting_and_joins_when_its_head_appears(
    port: int, temp_dir: Path
) -> None:
    logs = temp_dir / "logs"
    with start_node(port, f"--log-dir={logs}") as command:
        text, _ = command.communicate(timeout=50)
    pid = waiting_pid()
    assert command.returncode == 0
    assert f"process {pid} waits for the head at 127.0.0.1:{port}" in text
    assert f"process {pid} waits" in said("status", status=1)
    log = (logs / f"node-{pid}.log").read_text()
    assert f"waiting for the head: cannot reach 127.0.0.1:{port}" in log
    start_head(port)
    until(lambda: {node.is_head for node in nodes()} == {True, False})
    assert discovery.waiting_on_this_host() == []

    sparkray.init()
    far = sparkray.remote(os.getppid).options(resources={"far": 1})
    assert sparkray.get(far.remote()) != os.getpid()
    for file in logs.iterdir():
        assert TOKEN not in file.read_text()
    assert TOKEN not in Path(f"/proc/{pid}/cmdline").read_text()


def test_a_waiting_node_is_stopped_like_any_other(port: int, temp_dir: Path) -> None:
    start_node(port).communicate(timeout=50)
    assert f"stopped: process {waiting_pid()}" in said("stop")
    assert list(temp_dir.iterdir()) == []


def test_a_killed_waiting_node_leaves_nothing_for_long(
    port: int, temp_dir: Path
) -> None:
    start_node(port).communicate(timeout=50)
    os.kill(waiting_pid(), signal.SIGKILL)
    until(lambda: not discovery.waiting_on_this_host())
    start_head(port)
    until(lambda: not list(temp_dir.glob("waiting-*.json")))


def test_what_is_there_is_not_started_again(port: int) -> None:
    both = [start_node(port), start_node(port)]
    texts = [command.communicate(timeout=50)[0] for command in both]
    assert sum("Nothing to do" in text for text in texts) == 1, texts
    pid = waiting_pid()
    start_head(port)
    until(lambda: len(nodes()) == 2)
    pids = {node.pid for node in nodes()}
    assert pid in pids
    assert "Nothing to do, this head is there" in start_head(port)
    with start_node(port) as command:
        assert "Nothing to do" in command.communicate(timeout=50)[0]
    assert {node.pid for node in nodes()} == pids


def test_a_head_that_takes_the_place_of_a_killed_one_gets_its_nodes(port: int) -> None:
    start_head(port)
    start_node(port).communicate(timeout=50)
    until(lambda: len(nodes()) == 2)
    (head,) = [node for node in nodes() if node.is_head]
    (old,) = [node for node in nodes() if not node.is_head]
    os.kill(head.pid, signal.SIGKILL)
    until(lambda: len(nodes()) == 1)
    start_head(port)
    until(lambda: alive(port) == 2, 40)
    (new,) = [node for node in nodes() if not node.is_head]
    assert new.pid == old.pid and new.cluster_id != old.cluster_id


def test_only_a_node_that_joins_can_wait(port: int) -> None:
    assert "--address" in said("start", "--head", "--wait-for-head", status=2)
