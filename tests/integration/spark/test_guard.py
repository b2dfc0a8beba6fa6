"""The guard between an executor and its node; the executor is played by `sleep`."""

import dataclasses
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from sparkray.launch import discovery
from sparkray.launch.process import NodeOptions, NodeProcess, start_node
from sparkray.protocol.versions import own_versions
from sparkray.spark import executor, guard
from sparkray.spark.guard import Order

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="srg-", dir="/tmp"))
    monkeypatch.setenv("SPARKRAY_TEMP_DIR", str(path))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def head(folder: Path) -> Iterator[NodeProcess]:
    node = start_node(NodeOptions(head=True, host="127.0.0.1", num_cpus=0))
    yield node
    node.stop()


@pytest.fixture
def jvm() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.fixture
def order(head: NodeProcess, jvm: subprocess.Popen[bytes]) -> Order:
    return order_for(head, jvm.pid, hold=False)


def order_for(head: NodeProcess, executor_pid: int, *, hold: bool) -> Order:
    return Order(
        token=head.node.token().hex(),
        address=head.node.head,
        executor_pid=executor_pid,
        executor_started_s=psutil.Process(executor_pid).create_time(),
        app_id="app-1",
        hold=hold,
        timeout_s=60,
        num_cpus=1,
        host="127.0.0.1",
        labels={"spark.executor": "0"},
    )


def nodes_of(order: Order) -> list[discovery.Node]:
    return discovery.nodes_on_this_host(guard.executor_folder(order.executor_pid))


def guards_of(order: Order) -> list[psutil.Process]:
    nodes = [psutil.Process(node.pid) for node in nodes_of(order)]
    return [parent for node in nodes if (parent := node.parent()) is not None]


def wait_until(true: Callable[[], object], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "did not come to be in time"
        time.sleep(0.05)


def test_the_node_ends_with_its_executor_and_leaves_nothing(
    order: Order, jvm: subprocess.Popen[bytes]
) -> None:
    assert executor._run_guard(order)["state"] == "started"
    (node,) = nodes_of(order)
    assert node.head == order.address
    jvm.kill()
    jvm.wait()
    wait_until(lambda: not psutil.pid_exists(node.pid))
    wait_until(lambda: not guard.executor_folder(order.executor_pid).exists())


def test_an_executor_gets_one_node_however_often_it_is_asked(order: Order) -> None:
    said: list[str] = []
    threads = [
        threading.Thread(
            target=lambda: said.append(executor._run_guard(order)["state"])
        )
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(said) == ["started", "taken", "taken"]
    assert len(nodes_of(order)) == 1


def test_the_node_ends_when_the_head_ends_the_cluster(
    order: Order, head: NodeProcess
) -> None:
    executor._run_guard(order)
    (node,) = nodes_of(order)
    head.stop()
    wait_until(lambda: not psutil.pid_exists(node.pid))
    wait_until(lambda: not guard.executor_folder(order.executor_pid).exists())


def test_the_node_ends_when_its_guard_is_killed_and_the_next_guard_starts_another(
    order: Order,
) -> None:
    executor._run_guard(order)
    (node,), (process,) = nodes_of(order), guards_of(order)
    process.kill()
    wait_until(lambda: not psutil.pid_exists(node.pid))
    assert executor._run_guard(order)["state"] == "started"


def test_a_held_node_ends_with_the_spark_task(
    head: NodeProcess, jvm: subprocess.Popen[bytes]
) -> None:
    order = order_for(head, jvm.pid, hold=True)
    task = os.fork()
    if task == 0:
        executor._run_guard(order)
        os._exit(0)
    wait_until(lambda: nodes_of(order))
    (node,) = nodes_of(order)
    os.kill(task, signal.SIGKILL)
    os.waitpid(task, 0)
    wait_until(lambda: not psutil.pid_exists(node.pid))


def test_a_held_task_ends_with_its_node(
    head: NodeProcess, jvm: subprocess.Popen[bytes]
) -> None:
    order = order_for(head, jvm.pid, hold=True)
    said: list[dict[str, str]] = []
    task = threading.Thread(target=lambda: said.append(executor._run_guard(order)))
    task.start()
    wait_until(lambda: nodes_of(order))
    head.stop()
    task.join(20)
    assert said == [{"state": "ended", "detail": "exit code 0"}]


def test_a_node_that_cannot_start_is_told_with_the_reason(
    order: Order, jvm: subprocess.Popen[bytes]
) -> None:
    wrong = dataclasses.replace(order, token="00" * 32, timeout_s=20)
    said = executor._run_guard(wrong)
    assert said["state"] == "failed"
    assert "token" in said["detail"]
    wait_until(lambda: not guard.executor_folder(jvm.pid).exists())


def test_a_node_that_is_starting_is_given_up_with_the_spark_task(
    order: Order, head: NodeProcess
) -> None:
    head.kill()  # the node would wait for it
    task = os.fork()
    if task == 0:
        executor._run_guard(order)
        os._exit(0)
    folder = guard.executor_folder(order.executor_pid)
    wait_until(lambda: list(folder.glob("starting-*")))
    os.kill(task, signal.SIGKILL)
    os.waitpid(task, 0)
    wait_until(lambda: not folder.exists())


def test_what_a_dead_executors_killed_guard_left_is_swept_by_the_next(
    order: Order, folder: Path
) -> None:
    with subprocess.Popen(["true"]) as gone:
        pass
    left = guard.executor_folder(gone.pid)
    left.mkdir()
    (left / "0.lock").touch()
    executor._run_guard(order)
    assert not left.exists()


def test_a_head_that_is_away_for_long_is_lost_and_one_that_comes_back_is_not() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        watch = guard._HeadWatch(address, now_s=0.0)
        assert not watch.is_lost(guard.HEAD_LOST_S + 1)
        assert guard.await_head(address, 0.0)
    later_s = guard.HEAD_LOST_S + 1 + guard.LOOK_AT_HEAD_S
    assert not watch.is_lost(later_s)
    assert watch.is_lost(later_s + guard.HEAD_LOST_S)
    assert not guard.await_head(address, 0.0)


def test_a_job_that_finds_a_node_keeps_its_slot_until_the_cluster_ends(
    order: Order, head: NodeProcess
) -> None:
    task = executor.NodeTask(
        order.address,
        order.token,
        order.app_id,
        timeout_s=60,
        versions=own_versions(),
    )
    waiting = threading.Thread(target=task._fill_slot)
    waiting.start()
    waiting.join(2 * guard.LOOK_S)
    assert waiting.is_alive()
    head.stop()
    waiting.join(20)
    assert not waiting.is_alive()
