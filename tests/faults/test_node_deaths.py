"""Agents, zygotes, drivers and whole nodes that die in the midst of work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import sparkray
from sparkray.exceptions import SparkrayError, WorkerCrashedError
from sparkray.launch import discovery
from sparkray.testing import Cluster
from sparkray.util import state
from sparkray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from sparkray.worker.results import Answers
from tests import leaks
from tests.support import Gate, Tally, driver_environment, until

pytestmark = pytest.mark.faults


@sparkray.remote
def identity(value: Any) -> Any:
    return value


@pytest.mark.parametrize("retries", [0, 1])
def test_tasks_that_share_a_worker_with_a_crash_all_succeed(
    fresh: Any, tmp_path: Path, retries: int
) -> None:
    """One worker, short tasks pushed ahead.  A crash may take unsent answers along, so
    that the culprit is sure only when it runs alone: one more run than said, at most.
    Without retries nothing is pushed ahead."""
    fresh.init(num_cpus=1)
    runs = Tally(tmp_path)
    culprits = (13, 33, 53)

    @sparkray.remote(max_retries=retries)
    def work(index: int) -> int:
        runs.add(index)
        if index in culprits:
            os._exit(1)
        return index

    sparkray.get([work.remote(0) for _ in range(30)])  # known to be short
    refs = [work.remote(index) for index in range(60)]
    for index, ref in enumerate(refs):
        if index in culprits:
            with pytest.raises(WorkerCrashedError):
                sparkray.get(ref, timeout=50)
        else:
            assert sparkray.get(ref, timeout=50) == index
    counts = Counter(map(int, runs.lines()))
    for index in range(1, 60):
        if retries == 0:
            assert counts[index] == 1, index
        elif index in culprits:
            assert 2 <= counts[index] <= 3, index


def test_when_the_agent_is_killed_all_calls_raise_and_nothing_is_left(
    fresh: Any, cluster_root: Path, tmp_path: Path
) -> None:
    fresh.init(num_cpus=2)
    begun = Tally(tmp_path)

    @sparkray.remote
    def nap() -> None:
        begun.add()
        time.sleep(300)

    running, waiting = [nap.remote() for _ in range(2)], nap.remote()
    large = sparkray.put(bytes(1 << 20))
    until(lambda: begun.count() == 2)
    (node,) = discovery.nodes_on_this_host(cluster_root)
    os.kill(node.pid, signal.SIGKILL)
    died = time.monotonic()
    calls: list[Callable[[], Any]] = [
        lambda: sparkray.get(running),
        lambda: sparkray.get(waiting),
        lambda: sparkray.get(large),
        lambda: sparkray.put(bytes(1 << 20)),
        lambda: sparkray.get(nap.remote()),
        sparkray.nodes,
    ]
    for call in calls:
        with pytest.raises(SparkrayError, match="agent"):
            call()
    assert sparkray.wait([waiting], timeout=5)[0] == [waiting]
    assert time.monotonic() - died < 10
    sparkray.shutdown()
    until(lambda: not leaks.Footprint.now(cluster_root).things & _of_node(node), 20)
    sparkray.init(num_cpus=1)
    assert sparkray.get(identity.remote("a new one")) == "a new one"


def _of_node(node: discovery.Node) -> set[str]:
    return {f"session directory {node.session_dir}", f"directory {node.session_dir}"}


def test_a_killed_zygote_takes_only_its_workers_and_another_follows(
    fresh: Any, cluster_root: Path, tmp_path: Path
) -> None:
    fresh.init(num_cpus=2)
    begun = Tally(tmp_path)

    @sparkray.remote(max_retries=1)
    def once_more() -> str:
        begun.add()
        if begun.count() == 1:
            time.sleep(300)
        return "done"

    ref = once_more.remote()
    until(begun.count)
    (node,) = discovery.nodes_on_this_host(cluster_root)
    for process in psutil.Process(node.pid).children():
        process.kill()
    assert sparkray.get(ref, timeout=30) == "done"


DRIVER = """
import time
import numpy as np
import sparkray
sparkray.init(num_cpus=2)

@sparkray.remote
def child():
    time.sleep(300)

@sparkray.remote
def parent():
    return sparkray.get(child.remote())

@sparkray.remote(runtime_env={"env_vars": {"OTHER": "1"}})
def large():
    return np.zeros(1 << 20)

refs = [sparkray.put(np.zeros(1 << 20)), large.remote()]
sparkray.wait(refs, num_returns=2)
refs += [parent.remote() for _ in range(4)]
time.sleep(0.5)
print("ready", flush=True)
time.sleep(300)
"""


def test_a_killed_driver_leaves_no_process_file_or_segment(cluster_root: Path) -> None:
    with (
        leaks.no_leaks(cluster_root, timeout_s=30),
        subprocess.Popen(
            [sys.executable, "-c", DRIVER],
            env=driver_environment(),
            stdout=subprocess.PIPE,
            text=True,
        ) as driver,
    ):
        assert driver.stdout is not None and driver.stdout.readline() == "ready\n"
        driver.kill()


def test_a_driver_that_dies_leaves_a_shared_cluster_clean(
    start_cluster: Callable[..., Any],
) -> None:
    cluster = start_cluster(num_cpus=2)
    code = DRIVER.replace("num_cpus=2", f'address="{cluster.address}"')
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=driver_environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as driver:
        assert driver.stdout is not None and driver.stdout.readline() == "ready\n"
        sparkray.init(address=cluster.address)
        driver.kill()

    def clean() -> bool:
        free = sparkray.available_resources()
        total = sparkray.cluster_resources()
        return free == total and not state.list_objects()

    until(clean, 30, "resources or objects of a dead driver are left")
    assert sparkray.get(identity.options(num_cpus=2).remote(1), timeout=20) == 1


def test_a_node_that_dies_is_named_and_its_retriable_tasks_run_elsewhere(
    two_nodes: Any, tmp_path: Path
) -> None:
    begun, begun_there = Tally(tmp_path), Tally(tmp_path)
    second = two_nodes.second
    second_id = second.node_id

    @sparkray.remote(resources={"second": 1})
    def there() -> None:
        begun_there.add()
        time.sleep(300)

    @sparkray.remote(scheduling_strategy="SPREAD", max_retries=2)
    def anywhere() -> str:
        begun.add()
        where = sparkray.get_runtime_context().get_node_id()
        if where == second_id:
            time.sleep(300)
        return where

    lost = there.options(max_retries=0).remote()
    moved = [anywhere.remote() for _ in range(3)]
    until(lambda: begun_there.count() == 1 and begun.count() >= 2)
    two_nodes.remove_node(second, allow_graceful=False)
    died = time.monotonic()
    with pytest.raises(WorkerCrashedError):
        sparkray.get(lost, timeout=30)
    here = two_nodes.head_node.node_id
    assert sparkray.get(moved, timeout=30) == [here] * 3
    until(
        lambda: (
            [n["Alive"] for n in sparkray.nodes() if n["NodeID"] == second_id]
            == [False]
        ),
        30,
    )
    assert time.monotonic() - died < 30


def test_tasks_and_calls_that_wait_on_a_node_that_ends_in_order_run_again(
    tmp_path: Path,
) -> None:
    begun, gate = Tally(tmp_path), Gate(tmp_path)
    with Cluster(head_node_args={"num_cpus": 1}) as cluster:
        node = cluster.add_node(num_cpus=8, resources={"there": 8})
        cluster.wait_for_nodes()
        sparkray.init(cluster.address)

        @sparkray.remote
        def held() -> int:
            gate.wait()
            return 1

        @sparkray.remote(resources={"there": 1}, max_retries=1)
        def task(refs: list[Any]) -> Any:
            begun.add()
            return sparkray.get(refs[0])

        @sparkray.remote(resources={"there": 1}, max_restarts=1, max_task_retries=1)
        class Actor:
            def call(self, refs: list[Any]) -> Any:
                begun.add()
                return sparkray.get(refs[0])

        ref = held.remote()
        waiting = [task.remote([ref]) for _ in range(4)]
        actors = [Actor.remote() for _ in range(3)]
        waiting += [actor.call.remote([ref]) for actor in actors]
        until(lambda: begun.count() == 7)
        cluster.remove_node(node)
        cluster.add_node(num_cpus=8, resources={"there": 8})
        until(lambda: begun.count() == 14)
        gate.open()
        assert sparkray.get(waiting, timeout=30) == [1] * 7
        sparkray.shutdown()


def used_on(node: Any) -> float:
    """Return how much of a node's store is in use, in bytes."""
    (row,) = [row for row in state.list_nodes() if row.node_id == node.node_id]
    name = "object_store_memory"
    return row.resources[name] - row.available[name]


@pytest.mark.parametrize("retries", [0, 1])
def test_what_a_worker_stored_and_could_not_tell_of_is_freed(
    tmp_path: Path, retries: int
) -> None:
    """It dies between storing its result and answering; the retry runs elsewhere."""
    with Cluster(head_node_args={"num_cpus": 0}) as cluster:
        first = cluster.add_node(num_cpus=1)
        sparkray.init(address=cluster.address)
        runs, die, end = Tally(tmp_path), Gate(tmp_path), Gate(tmp_path)

        @sparkray.remote(max_retries=retries)
        def make() -> Any:
            runs.add()
            if runs.count() == 1:
                Answers.add = lambda *_, **__: (die.wait(), os._exit(7))  # type: ignore[method-assign,assign]
            return np.ones(1_000_000)

        ref = make.remote()
        until(lambda: used_on(first) > 0)
        second = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        there = NodeAffinitySchedulingStrategy(first.node_id, soft=False)
        fills = sparkray.remote(end.wait).options(scheduling_strategy=there).remote()
        die.open()
        if retries:
            assert sparkray.get(ref, timeout=60)[-1] == 1
            assert used_on(second) > 0
        else:
            with pytest.raises(WorkerCrashedError):
                sparkray.get(ref, timeout=60)
        until(lambda: used_on(first) == 0)
        end.open()
        sparkray.get(fills, timeout=60)
        sparkray.shutdown()
