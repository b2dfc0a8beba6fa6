import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

import sparkray
from sparkray.launch import discovery
from tests.support import ROOT, run_driver, until


def command(*arguments: str, timeout_s: float = 50) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sparkray", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


@pytest.fixture(autouse=True)
def temp_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temp dir of the test's own; every node in it is stopped at the end."""
    for name in ("SPARKRAY_ADDRESS", "SPARKRAY_TOKEN", "SPARKRAY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    with tempfile.TemporaryDirectory(prefix="sr-", dir="/tmp") as name:
        monkeypatch.setenv("SPARKRAY_TEMP_DIR", name)
        yield Path(name)
        sparkray.shutdown()
        for node in discovery.nodes_on_this_host(deep=True):
            os.kill(node.pid, signal.SIGKILL)


def start_head(*arguments: str) -> discovery.Node:
    known = {node.pid for node in discovery.nodes_on_this_host()}
    run = command("start", "--head", "--port", "0", *arguments)
    assert run.returncode == 0, run.stderr
    new = [n for n in discovery.nodes_on_this_host() if n.pid not in known]
    assert len(new) == 1 and new[0].head in run.stdout
    return new[0]


def test_a_cluster_is_started_joined_looked_at_and_stopped(temp_dir: Path) -> None:
    head = start_head("--num-cpus", "2", "--resources", '{"tok": 3}')
    joined = command("start", "--address", head.head, "--num-cpus", "1")
    assert joined.returncode == 0, joined.stderr

    context = sparkray.init()
    assert context.address == head.head
    assert sparkray.cluster_resources()["CPU"] == 3
    sees = json.loads(command("status", "--json").stdout)
    assert sees["address"] == head.head and sees["total"]["tok"] == 3
    assert [node["alive"] for node in sees["nodes"]] == [True, True]
    assert [job["alive"] for job in sees["jobs"]] == [True]
    shown = command("status", "--address", head.head).stdout
    assert "CPU: 0 / 3" in shown and str(os.getpid()) in shown
    sparkray.shutdown()

    logs = list(Path(head.session_dir, "logs").iterdir())
    assert logs
    stopped = command("stop")
    assert stopped.returncode == 0 and stopped.stdout.count("stopped") == 2
    assert not list(temp_dir.iterdir())
    assert "no cluster" in command("stop").stdout
    assert command("status").returncode == 1


def test_stop_ends_only_the_cluster_that_is_named(temp_dir: Path) -> None:
    first, second = start_head("--num-cpus", "1"), start_head("--num-cpus", "1")
    for name in ("stop", "status"):
        unclear = command(name)
        assert unclear.returncode == 2
        assert first.head in unclear.stderr and second.head in unclear.stderr
    assert command("stop", "--address", first.head).returncode == 0
    assert [n.pid for n in discovery.nodes_on_this_host()] == [second.pid]
    assert command("stop", "--address", first.head).returncode == 1
    assert command("status").returncode == 0


def test_stop_leaves_a_drivers_private_cluster_alone() -> None:
    sparkray.init(num_cpus=1)
    assert "no cluster" in command("stop").stdout
    assert sparkray.cluster_resources()["CPU"] == 1


def test_force_ends_a_node_that_does_not_answer(temp_dir: Path) -> None:
    head = start_head("--num-cpus", "1")
    os.kill(head.pid, signal.SIGSTOP)
    patient = command("stop", "--timeout", "0.5")
    assert patient.returncode == 1 and "--force" in patient.stderr
    assert command("stop", "--timeout", "0.5", "--force").returncode == 0
    assert not discovery.nodes_on_this_host()


def test_the_token_is_never_shown(temp_dir: Path) -> None:
    token = "ab" * 32
    file = temp_dir / "my-token"
    file.write_text(token)
    run = command("start", "--head", "--port=0", f"--token-file={file}", "--num-cpus=1")
    (head,) = discovery.nodes_on_this_host()
    shown = command("status").stdout + command("status", "--json").stdout
    listed = Path(f"/proc/{head.pid}/cmdline").read_text()
    assert head.token() == bytes.fromhex(token)
    assert token not in run.stdout + run.stderr + shown + listed


@contextmanager
def starting(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run ``sparkray start`` with ``arguments``; its node's process is there."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sparkray", "start", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "SPARKRAY_TOKEN": "ab" * 32},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            until(psutil.Process(process.pid).children)
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


HEAD = ("--head", "--port=0", "--num-cpus=1")
NOWHERE = ("--address=127.0.0.1:1", "--num-cpus=1")
END_SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


@END_SIGNALS
def test_a_blocking_start_ends_with_its_command(
    number: signal.Signals, temp_dir: Path
) -> None:
    with starting(*HEAD, "--block") as process:
        until(discovery.nodes_on_this_host)
        process.send_signal(number)
        assert process.wait(30) == 0
    assert not list(temp_dir.iterdir())


@END_SIGNALS
def test_a_node_that_the_command_has_not_heard_of_yet_ends_in_good_order(
    number: signal.Signals, temp_dir: Path
) -> None:
    with starting(*HEAD, "--block") as process:
        process.send_signal(signal.SIGSTOP)
        until(discovery.nodes_on_this_host)
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        assert process.wait(30) == 0
    assert not list(temp_dir.iterdir())


@END_SIGNALS
@pytest.mark.parametrize("arguments", [NOWHERE, (*NOWHERE, "--block")])
def test_a_start_that_is_interrupted_leaves_nothing(
    arguments: tuple[str, ...], number: signal.Signals, temp_dir: Path
) -> None:
    with starting(*arguments) as process:
        daemon = psutil.Process(process.pid).children()[0]
        process.send_signal(number)
        assert process.wait(30) == 1
        assert process.stderr is not None
        said = process.stderr.read()
    assert "interrupted before the node was ready" in said and "Trace" not in said
    assert not daemon.is_running()
    assert not list(temp_dir.iterdir())


def test_a_start_without_block_that_is_interrupted_leaves_no_node(
    temp_dir: Path,
) -> None:
    with starting(*HEAD) as process:
        process.send_signal(signal.SIGSTOP)
        until(discovery.nodes_on_this_host)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        assert process.wait(30) == 1
    assert not list(temp_dir.iterdir())


def test_a_second_signal_does_not_disturb_the_end(temp_dir: Path) -> None:
    with starting(*HEAD, "--block") as process:
        until(discovery.nodes_on_this_host)
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.001)
        assert process.wait() == 0
    assert not list(temp_dir.iterdir())


def test_a_blocking_start_ends_when_its_node_is_stopped(temp_dir: Path) -> None:
    with starting(*HEAD, "--block") as process:
        (node,) = until(discovery.nodes_on_this_host)
        assert command("stop", "--address", node.head).returncode == 0
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("start",),
        ("start", "--head", "--address", "127.0.0.1:1"),
        ("start", "--address", "nowhere"),
        ("start", "--head", "--resources", "[1]"),
        ("start", "--head", "--resources", "{"),
        ("start", "--head", "--worker-port-min", "5"),
        ("start", "--head", "--worker-port-min", "9", "--worker-port-max", "8"),
        ("start", "--address", "127.0.0.1:1", "--port", "3"),
        ("stop", "--address", "x"),
    ],
)
def test_wrong_usage_exits_with_2_and_starts_nothing(
    arguments: tuple[str, ...], temp_dir: Path
) -> None:
    run = command(*arguments)
    assert run.returncode == 2 and "Error" in run.stderr
    assert not list(temp_dir.iterdir())


def complaint(run: subprocess.CompletedProcess[str]) -> str:
    """Return the one line that a command ended with."""
    assert run.returncode == 1 and not run.stdout
    (line,) = run.stderr.splitlines()
    return line


def test_a_port_in_use_is_told_and_exits_with_1(temp_dir: Path) -> None:
    head = start_head("--num-cpus", "1")
    port = head.head.rpartition(":")[2]
    said = complaint(command("start", "--head", "--port", port))
    assert f"cannot listen on {head.head}: the port is in use" in said
    assert "--port" in said and "sparkray status" in said
    assert [n.pid for n in discovery.nodes_on_this_host()] == [head.pid]


def test_an_address_of_another_host_is_told(temp_dir: Path) -> None:
    said = complaint(command("start", "--head", "--port=6380", "--host=192.0.2.1"))
    assert "cannot listen on 192.0.2.1:6380: Cannot assign" in said


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SPARKRAY_TOKEN_FILE", "/nowhere/token"),
        ("SPARKRAY_TOKEN_FILE", "/dev/null"),
        ("SPARKRAY_TOKEN_FILE", "/tmp"),
        ("SPARKRAY_TEMP_DIR", "/proc/nowhere"),
        ("SPARKRAY_TEMP_DIR", "/dev/null"),
        ("SPARKRAY_LOG_DIR", "/dev/null"),
        ("SPARKRAY_MAX_WORKERS", "many"),
        ("SPARKRAY_NODE_TIMEOUT_S", "-1"),
        ("SPARKRAY_TLS_CA", "/nowhere/ca"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named_in_one_line(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    run = command("start", "--head", "--port=0")
    if run.returncode == 2:  # click looks at options itself
        assert value in run.stderr and "Traceback" not in run.stderr
    else:
        said = complaint(run)
        assert variable in said or (variable[:12] == "SPARKRAY_TLS" and "TLS" in said)
    with pytest.raises((ValueError, sparkray.exceptions.ClusterError)) as caught:
        sparkray.init(num_cpus=1)
    monkeypatch.delenv(variable)
    text = str(caught.value)
    assert "\n" not in text and (variable in text or "SPARKRAY_TLS" in text)


def test_an_unknown_variable_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKRAY_MAX_WORKER", "8")
    run = command("stop")
    assert run.returncode == 0
    assert run.stderr == (
        "Warning: ignored, unknown: SPARKRAY_MAX_WORKER"
        " (did you mean SPARKRAY_MAX_WORKERS?)\n"
    )
    twice = "import sparkray as s; s.init(num_cpus=1); s.shutdown(); s.init(num_cpus=1)"
    driver = run_driver(twice)
    assert driver.returncode == 0
    assert driver.stderr.count("SPARKRAY_MAX_WORKER (") == 1


def test_the_stacks_of_all_processes_are_shown(temp_dir: Path) -> None:
    head = start_head("--num-cpus", "2")
    sparkray.init(head.head)

    @sparkray.remote
    def unmistakable_name(gate: str) -> None:
        until(lambda: os.path.exists(gate), 60)

    gate = temp_dir / "gate"
    ref = unmistakable_name.remote(str(gate))
    frame = ", in " + "unmistakable_name"  # no line of this file is such a text

    def shown() -> str:
        done = command("stack")
        assert done.returncode == 0, done.stderr
        return done.stdout

    text = until(lambda: frame in (text := shown()) and text)
    assert f"node {head.pid} on " in text and f"driver {os.getpid()} on " in text
    assert "worker " in text and "no answer" not in text
    gate.touch()
    sparkray.get(ref)
