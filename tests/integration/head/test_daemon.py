"""Node daemons as real processes: how they start and end, and that nothing is left."""

import json
import os
import platform
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import sparkray
from sparkray.launch import process as launch
from sparkray.protocol import control
from sparkray.transport import auth, client

START_S = 30.0


class Daemon:
    def __init__(
        self, parent: Path, *options: str, before: str = "pass", **environment: str
    ) -> None:
        ready, ready_fd = os.pipe()
        owner_fd, self.owner = os.pipe()
        code = f"{before}; import sys, sparkray.cli.daemon as d; sys.exit(d.main())"
        command = [sys.executable, "-c", code, "--num-cpus=1"]
        command += [f"--temp-dir={parent}", f"--ready-fd={ready_fd}"]
        inherited = {k: v for k, v in os.environ.items() if "SPARKRAY" not in k}
        self.process = subprocess.Popen(
            [*command, f"--owner-fd={owner_fd}", *options],
            pass_fds=(ready_fd, owner_fd),
            env=inherited | environment,
        )
        os.close(ready_fd)
        os.close(owner_fd)
        self._ready, self._parent = ready, parent
        self.about: dict[str, Any] = {}

    def wait_ready(self) -> dict[str, Any]:
        try:
            assert select.select([self._ready], [], [], START_S)[0], "not ready"
            with open(self._ready) as file:
                self.about = json.loads(file.read())
        finally:
            self._ready = -1
        return self.about

    def call(self, method: str, request: Any) -> Any:
        token = auth.read_token(self.about["token_file"])
        return client.call_head(self.about["head"], token, method, request, 10.0)

    def nodes(self) -> list[control.NodeInfo]:
        return list(self.call("ListNodes", control.ListNodes()).nodes)

    @property
    def head_pid(self) -> int:
        entry = self._parent / entry_of(self.about) / "agent.json"
        return int(json.loads(entry.read_text())["head_pid"])

    def let_go(self) -> None:
        """Close the owner's pipe, as the owner's death does."""
        owner, self.owner = self.owner, -1
        if owner >= 0:
            os.close(owner)

    def family(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return list(psutil.Process(self.process.pid).children(recursive=True))
        return []

    def end(self) -> int:
        self.let_go()
        return self.process.wait(20)


Start = Callable[..., Daemon]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Daemon] = []

    def start(*options: str, before: str = "pass", **environment: str) -> Daemon:
        started.append(Daemon(tmp_path, *options, before=before, **environment))
        return started[-1]

    yield start
    for daemon in reversed(started):
        daemon.let_go()
        try:
            daemon.process.wait(20)
        finally:
            daemon.process.kill()
            daemon.process.wait()


def until(true: Callable[[], Any], timeout_s: float = 10.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := true()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.02)
    return found


def entry_of(about: dict[str, Any]) -> str:
    return f"{about['cluster_id']}-{about['node_id'][:8]}"


def left_of(about: dict[str, Any]) -> list[str]:
    paths = [about["session_dir"], f"/dev/shm/sparkray-{entry_of(about)}"]
    return [path for path in paths if os.path.exists(path)]


def test_a_node_says_what_its_discovery_file_says(start: Start, tmp_path: Path) -> None:
    daemon = start("--head")
    about = daemon.wait_ready()
    entry = tmp_path / entry_of(about) / "agent.json"
    assert json.loads(entry.read_text()) == about
    assert about["pid"] == daemon.process.pid and about["is_head"]
    [node] = daemon.nodes()
    assert node.alive and node.is_head and node.total["CPU"] == 10_000
    assert node.agent != about["head"]
    head = psutil.Process(about["head_pid"])
    assert head.ppid() == about["pid"] and "sparkray.head" in " ".join(head.cmdline())


def test_a_private_node_has_its_head_in_the_same_process(start: Start) -> None:
    daemon = start("--head", "--local")
    about = daemon.wait_ready()
    assert about["head_pid"] == about["pid"]
    [node] = daemon.nodes()
    assert node.agent == about["head"]


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "owner", "Shutdown"])
def test_an_orderly_end_leaves_nothing(start: Start, tmp_path: Path, how: str) -> None:
    daemon = start("--head")
    about = daemon.wait_ready()
    family = daemon.family()
    if how == "owner":
        daemon.let_go()
    elif how == "Shutdown":
        daemon.call("Shutdown", control.Shutdown(b"", True))
    else:
        daemon.process.send_signal(getattr(signal, how))
    assert daemon.process.wait(20) == 0
    assert left_of(about) == []
    assert list(tmp_path.iterdir()) == []
    until(lambda: not any(process.is_running() for process in family))


def test_an_owner_that_ends_during_the_start_ends_the_node(
    start: Start, tmp_path: Path
) -> None:
    daemon = start("--head")
    daemon.let_go()
    assert daemon.process.wait(20) == 0
    assert list(tmp_path.iterdir()) == []


def test_logs_are_kept_where_they_were_asked_for(start: Start, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    daemon = start("--head", f"--log-dir={logs}")
    daemon.wait_ready()
    assert daemon.end() == 0
    assert list(tmp_path.iterdir()) == [logs]
    assert "joined" in next(logs.glob("head-*.log")).read_text()


def test_the_token_is_in_no_command_line_and_no_log(start: Start) -> None:
    secret = "5ec12e7" * 9 + "0"
    daemon = start("--head", SPARKRAY_TOKEN=secret)
    about = daemon.wait_ready()
    assert Path(about["token_file"]).read_text() == secret
    for process in (psutil.Process(daemon.process.pid), *daemon.family()):
        assert secret not in " ".join(process.cmdline())
    for log in (Path(about["session_dir"]) / "logs").iterdir():
        assert secret not in log.read_text()


def test_a_dead_head_is_named_and_nothing_is_left(start: Start, tmp_path: Path) -> None:
    daemon = start(
        "--address=127.0.0.1:1", SPARKRAY_TOKEN="00" * 32, SPARKRAY_START_TIMEOUT_S="1"
    )
    about = daemon.wait_ready()
    assert about["kind"] == "ConnectionError" and "127.0.0.1:1" in about["error"]
    assert daemon.process.wait(20) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_node_waits_for_a_head_that_is_not_there_yet(start: Start) -> None:
    token = "07" * 32
    probe = start("--head", SPARKRAY_TOKEN=token)
    port = probe.wait_ready()["head"].rpartition(":")[2]
    assert probe.end() == 0
    node = start(f"--address=127.0.0.1:{port}", SPARKRAY_TOKEN=token)
    head = start("--head", f"--port={port}", SPARKRAY_TOKEN=token)
    head.wait_ready()
    assert node.wait_ready()["cluster_id"] == head.about["cluster_id"]


def test_a_wrong_token_or_none_is_said_at_once(start: Start, tmp_path: Path) -> None:
    head = start("--head")
    address = f"--address={head.wait_ready()['head']}"
    wrong = start(address, SPARKRAY_TOKEN="00" * 32).wait_ready()
    assert wrong["kind"] == "ProtocolError" and "token" in wrong["error"]
    none = start(address, f"--temp-dir={tmp_path / 'other'}").wait_ready()
    assert none["kind"] == "ValueError" and "SPARKRAY_TOKEN_FILE" in none["error"]


def test_a_second_head_on_a_port_is_refused_by_name(start: Start) -> None:
    head = start("--head")
    address = head.wait_ready()["head"]
    second = start("--head", f"--port={address.rpartition(':')[2]}")
    about = second.wait_ready()
    assert about["kind"] == "OSError" and address in about["error"]
    assert second.process.wait(20) == 1
    assert head.nodes()


def test_a_node_joins_and_ends_with_its_cluster(start: Start, tmp_path: Path) -> None:
    head = start("--head")
    address = head.wait_ready()["head"]
    node = start(f"--address={address}")  # the token is found through the head's file
    about = node.wait_ready()
    assert about["cluster_id"] == head.about["cluster_id"] and not about["is_head"]
    until(lambda: sum(n.alive for n in head.nodes()) == 2)
    head.process.terminate()
    assert head.process.wait(20) == 0
    assert node.process.wait(20) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_that_ends_takes_a_node_along_that_has_just_joined(
    start: Start,
) -> None:
    head = start("--head")
    node = start(f"--address={head.wait_ready()['head']}")
    node.wait_ready()  # its stream may not be open yet
    head.process.terminate()
    assert head.process.wait(20) == 0
    assert node.process.wait(20) == 0


def test_one_node_is_ended_and_the_other_goes_on(start: Start) -> None:
    head = start("--head")
    node = start(f"--address={head.wait_ready()['head']}")
    node_id = bytes.fromhex(node.wait_ready()["node_id"])
    head.call("Shutdown", control.Shutdown(node_id, True))
    assert node.process.wait(20) == 0
    until(lambda: [n.node_id for n in head.nodes() if not n.alive] == [node_id])


def test_a_killed_node_is_dead_soon_and_swept_by_the_next(
    start: Start, tmp_path: Path
) -> None:
    head = start("--head")
    node = start(f"--address={head.wait_ready()['head']}")
    about = node.wait_ready()
    node.process.kill()
    killed_s = time.monotonic()
    until(lambda: sum(n.alive for n in head.nodes()) == 1, 5.0)
    assert time.monotonic() - killed_s < 3.0
    third = start("--head")
    third.wait_ready()
    living = {entry_of(head.about), entry_of(third.about)}
    until(lambda: {path.name for path in tmp_path.iterdir()} == living)
    until(lambda: not left_of(about))
    assert head.nodes()[0].alive


def test_a_frozen_node_is_dead_after_the_timeout_and_starts_anew(start: Start) -> None:
    head = start("--head", SPARKRAY_NODE_TIMEOUT_S="1")
    node = start(f"--address={head.wait_ready()['head']}")
    old = bytes.fromhex(node.wait_ready()["node_id"])
    until(lambda: sum(n.alive for n in head.nodes()) == 2)
    node.process.send_signal(signal.SIGSTOP)
    try:
        until(lambda: sum(n.alive for n in head.nodes()) == 1)
    finally:
        node.process.send_signal(signal.SIGCONT)
    alive = until(lambda: [n for n in head.nodes() if n.alive and not n.is_head], 20)
    assert alive[0].node_id != old and alive[0].pid == node.process.pid
    assert left_of(node.about) == []


def test_a_head_that_stood_still_blames_no_node(start: Start) -> None:
    head = start("--head", SPARKRAY_NODE_TIMEOUT_S="1")
    node = start(f"--address={head.wait_ready()['head']}", SPARKRAY_NODE_TIMEOUT_S="1")
    node.wait_ready()
    until(lambda: sum(n.alive for n in head.nodes()) == 2)
    before = {n.node_id for n in head.nodes()}
    os.kill(head.about["head_pid"], signal.SIGSTOP)
    try:
        time.sleep(2.5)  # longer than the timeout: nothing here says that it is over
    finally:
        os.kill(head.about["head_pid"], signal.SIGCONT)
    third = start(f"--address={head.about['head']}")
    before.add(bytes.fromhex(third.wait_ready()["node_id"]))
    assert {n.node_id for n in head.nodes() if n.alive} == before
    assert head.process.poll() is None and node.process.poll() is None


def test_an_interrupted_start_is_not_told_as_one_that_took_too_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deaf = "import signal; signal.signal(15, signal.SIG_IGN); print(1, flush=True)"
    command = [sys.executable, "-c", f"{deaf}; signal.pause()"]
    monkeypatch.setattr(launch, "_END_S", 0.1)
    ready, ready_write = os.pipe()
    cancel, cancel_write = os.pipe()
    os.write(cancel_write, b"!")
    node = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert node.stdout is not None and node.stdout.readline()
        with (
            (tmp_path / "log").open("w+b") as log,
            pytest.raises(launch.StartError, match="interrupted before"),
        ):
            launch._await_ready(node, ready, cancel, log.fileno(), START_S)
    finally:
        node.kill()
        node.communicate()
        for fd in (ready, ready_write, cancel, cancel_write):
            os.close(fd)


def test_bad_options_are_told_to_whoever_waits(start: Start) -> None:
    about = start("--head", SPARKRAY_NODE_TIMEOUT_S="soon").wait_ready()
    assert about["kind"] == "ValueError" and "NODE_TIMEOUT_S" in about["error"]


@pytest.mark.parametrize(
    ("before", "other"),
    [
        ("import platform; platform.python_version = '3.2.7'.strip", "Python 3.2.7"),
        ("import sparkray; sparkray.__version__ = '9.9'", "sparkray 9.9"),
    ],
)
def test_a_node_of_other_versions_is_refused_with_both(
    start: Start, before: str, other: str
) -> None:
    head = start("--head")
    address = f"--address={head.wait_ready()['head']}"
    for waits in ([], ["--patient"]):
        node = start(address, *waits, before=before)
        about = node.wait_ready()
        assert about["kind"] == "ProtocolError" and other in about["error"]
        ours = f"Python {platform.python_version()} and sparkray {sparkray.__version__}"
        assert ours in about["error"] and socket.gethostname() in about["error"]
        assert node.process.wait(20) == 1
    assert len(head.nodes()) == 1


def test_a_node_of_another_patch_release_joins_with_one_warning(start: Start) -> None:
    head = start("--head")
    address = f"--address={head.wait_ready()['head']}"
    patch = ".".join([*platform.python_version().split(".")[:2], "99"])
    before = f"import platform; platform.python_version = '{patch}'.strip"
    (warning,) = start(address, before=before).wait_ready()["warnings"]
    assert patch in warning and platform.python_version() in warning
    assert len(head.nodes()) == 2


def killed_head(daemon: Daemon) -> int:
    """Kill the head's process; return that of the next, once that is there."""
    pid = daemon.head_pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: daemon.head_pid != pid)
    return daemon.head_pid


def test_a_head_that_dies_is_there_again_with_all_that_it_knew(start: Start) -> None:
    head = start("--head")
    node = start(f"--address={head.wait_ready()['head']}")
    node.wait_ready()
    until(lambda: len(head.nodes()) == 2)
    head.call("KVPut", control.KVPut("ns", b"k", b"v", True))
    before = {n.node_id for n in head.nodes()}
    for _ in range(2):
        killed_head(head)
        assert {n.node_id for n in head.nodes() if n.alive} == before
        assert head.call("KVGet", control.KVGet("ns", b"k")).value == b"v"
        status = head.call("Status", control.ClusterStatus())
        assert status.cluster_id.hex() == head.about["cluster_id"]
        until(lambda: all(n.available for n in head.nodes()))  # they report again
    assert head.end() == 0
    assert node.process.wait(20) == 0


def test_a_node_that_was_killed_with_the_head_is_found_dead(start: Start) -> None:
    head = start("--head")
    node = start(f"--address={head.wait_ready()['head']}")
    node_id = bytes.fromhex(node.wait_ready()["node_id"])
    until(lambda: len(head.nodes()) == 2)
    os.kill(head.about["head_pid"], signal.SIGSTOP)  # it must not see the node's end
    node.process.kill()
    node.process.wait()
    killed_head(head)
    dead = until(lambda: [n for n in head.nodes() if not n.alive])
    assert [n.node_id for n in dead] == [node_id] and "process ended" in dead[0].reason
    killed_head(head)
    assert [n.node_id for n in head.nodes() if not n.alive] == [node_id]


def test_a_node_that_was_declared_dead_is_told_so_by_the_next_head(
    start: Start,
) -> None:
    head = start("--head", SPARKRAY_NODE_TIMEOUT_S="1")
    node = start(f"--address={head.wait_ready()['head']}")
    old = bytes.fromhex(node.wait_ready()["node_id"])
    until(lambda: sum(n.alive for n in head.nodes()) == 2)
    node.process.send_signal(signal.SIGSTOP)
    try:
        until(lambda: sum(n.alive for n in head.nodes()) == 1)
        killed_head(head)
    finally:
        node.process.send_signal(signal.SIGCONT)
    alive = until(lambda: [n for n in head.nodes() if n.alive and not n.is_head], 20)
    assert alive[0].node_id != old and alive[0].pid == node.process.pid


def test_a_head_whose_daemon_is_killed_ends_and_takes_no_node_along(
    start: Start,
) -> None:
    head = start("--head")
    node = start(f"--address={head.wait_ready()['head']}")
    node.wait_ready()
    child = psutil.Process(head.about["head_pid"])
    head.process.kill()
    head.process.wait()
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    assert node.process.poll() is None


def test_a_head_that_dies_again_and_again_ends_its_node(
    start: Start, tmp_path: Path
) -> None:
    head = start("--head", f"--log-dir={tmp_path / 'logs'}")
    about = head.wait_ready()
    state = Path(about["session_dir"]) / "head.db"
    os.kill(about["head_pid"], signal.SIGSTOP)
    for name in (state, Path(f"{state}-wal")):
        name.unlink(missing_ok=True)
    state.mkdir()  # now no head can start any more
    os.kill(about["head_pid"], signal.SIGKILL)
    assert head.process.wait(40) == 0
    assert left_of(about) == []
    (log,) = (tmp_path / "logs").glob("node-*.log")
    assert "given up" in log.read_text()


def test_a_damaged_state_is_set_aside_and_the_nodes_come_back_all_the_same(
    start: Start,
) -> None:
    head = start("--head")
    node = start(f"--address={head.wait_ready()['head']}")
    node.wait_ready()
    head.call("KVPut", control.KVPut("ns", b"k", b"v", True))
    before = {n.node_id for n in head.nodes()}
    os.kill(head.head_pid, signal.SIGSTOP)
    state = Path(head.about["session_dir"]) / "head.db"
    Path(f"{state}-wal").unlink()
    state.write_bytes(b"no database" * 1000)
    killed_head(head)
    until(lambda: {n.node_id for n in head.nodes() if n.alive} == before)
    assert head.call("KVGet", control.KVGet("ns", b"k")).value is None
    (aside,) = state.parent.glob("head.db.set-aside-*")
    assert aside.read_bytes() == b"no database" * 1000
    log = state.parent / "logs" / f"head-{head.head_pid}.log"
    assert str(state) in log.read_text() and str(aside) in log.read_text()
