import dataclasses
import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sparkray
from sparkray.api import join
from sparkray.launch.discovery import Node


@pytest.fixture
def temp_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARKRAY_TEMP_DIR", str(tmp_path))
    monkeypatch.delenv(join.ADDRESS_VARIABLE, raising=False)
    return tmp_path


@pytest.fixture
def pid() -> Iterator[int]:
    """The process id of something that looks like a node daemon."""
    code = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "sparkray.cli.daemon"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid


def announce(temp_dir: Path, name: str, pid: int, port: int, **changed: object) -> None:
    directory = temp_dir / name
    directory.mkdir()
    fields = {
        "cluster_id": name.partition("-")[0],
        "node_id": "ab",
        "host": "127.0.0.1",
        "head": f"127.0.0.1:{port}",
        "agent_socket": str(directory / "agent.sock"),
        "pid": pid,
        "host_name": socket.gethostname(),
        "version": "0",
        "is_head": True,
        "token_file": "",
        "session_dir": str(directory),
        **changed,
    }
    (directory / "agent.json").write_text(json.dumps(fields))


def choose(address: str | None = None, *own: str) -> join.Start | join.Join:
    return join.choose(address, own_resources=own)


def test_with_nothing_running_a_private_cluster_is_started(temp_dir: Path) -> None:
    assert isinstance(choose(), join.Start)
    assert isinstance(choose("local"), join.Start)
    with pytest.raises(ConnectionError, match="sparkray start --head"):
        choose("auto")


def test_the_one_shared_cluster_is_joined(temp_dir: Path, pid: int) -> None:
    announce(temp_dir, "c1-a", pid, 7001, is_head=False)
    announce(temp_dir, "c1-b", pid, 7001)
    announce(temp_dir, "c2-a", pid, 7002, local=True)
    for address in (None, "auto", "127.0.0.1:7001", "localhost:7001"):
        choice = choose(address)
        assert isinstance(choice, join.Join)
        assert choice.node.is_head and choice.node.head == "127.0.0.1:7001"
    assert isinstance(choose(None, "num_cpus"), join.Start)
    assert isinstance(choose("local"), join.Start)


def test_a_cluster_that_ends_with_another_program_is_joined_only_when_asked_for(
    temp_dir: Path, pid: int
) -> None:
    announce(temp_dir, "c1-a", pid, 7001, owned=True)
    assert isinstance(choose(), join.Start)
    assert isinstance(choose("auto"), join.Join)
    assert isinstance(choose("127.0.0.1:7001"), join.Join)


def test_between_two_shared_clusters_nobody_chooses(temp_dir: Path, pid: int) -> None:
    announce(temp_dir, "c1-a", pid, 7001)
    announce(temp_dir, "c2-a", pid, 7002)
    assert isinstance(choose(), join.Start)
    with pytest.raises(ConnectionError, match=r"7001, .*7002"):
        choose("auto")


def test_the_variable_counts_as_an_address(
    temp_dir: Path, pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce(temp_dir, "c1-a", pid, 7001)
    announce(temp_dir, "c2-a", pid, 7002)
    monkeypatch.setitem(os.environ, join.ADDRESS_VARIABLE, "127.0.0.1:7002")
    choice = choose()
    assert isinstance(choice, join.Join) and choice.node.head.endswith("7002")


def test_resources_for_a_cluster_that_runs_are_a_contradiction(temp_dir: Path) -> None:
    with pytest.raises(ValueError, match=r"num_cpus.*leave them out"):
        choose("127.0.0.1:7001", "num_cpus")


def test_a_dead_address_is_named(temp_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConnectionError, match=f"{port}.*no node of that cluster"):
            choose(f"127.0.0.1:{port}")
    with pytest.raises(ConnectionError, match=f"no sparkray cluster at .*:{port}"):
        choose(f"127.0.0.1:{port}")


def test_an_address_must_be_one(temp_dir: Path) -> None:
    with pytest.raises(ValueError, match="host:port"):
        choose("somewhere")


def test_a_node_that_waits_for_its_head_is_told_when_a_private_cluster_starts(
    temp_dir: Path, pid: int
) -> None:
    announce(temp_dir, "aa-1", pid, 7001)
    (temp_dir / "aa-1" / "agent.json").rename(temp_dir / "waiting-aa.json")
    choice = choose()
    assert isinstance(choice, join.Start) and "127.0.0.1:7001" in choice.why


@pytest.fixture
def node(temp_dir: Path, pid: int) -> Node:
    ours = {"python": platform.python_version(), "version": sparkray.__version__}
    announce(temp_dir, "aa-1", pid, 7001, **ours)
    choice = choose()
    assert isinstance(choice, join.Join)
    return choice.node


def test_a_node_of_the_same_versions_is_nothing_to_tell(node: Node) -> None:
    assert join.version_warnings(node) == []


def test_a_node_of_another_patch_release_is_one_warning(node: Node) -> None:
    patch = ".".join([*platform.python_version().split(".")[:2], "99"])
    (warning,) = join.version_warnings(dataclasses.replace(node, python=patch))
    assert patch in warning and platform.python_version() in warning


@pytest.mark.parametrize("other", [{"python": "3.2.1"}, {"version": "9.9"}])
def test_a_node_of_other_versions_is_refused_with_both(
    node: Node, other: dict[str, str]
) -> None:
    with pytest.raises(ConnectionError) as caught:
        join.version_warnings(dataclasses.replace(node, **other))
    for text in (*other.values(), platform.python_version(), sparkray.__version__):
        assert text in str(caught.value)
