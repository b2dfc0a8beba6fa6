"""What `sparkray.testing.faults` gives to users: it fails what it says, and no more."""

from __future__ import annotations

import os
import pickle
import random
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

import sparkray
from sparkray.exceptions import (
    ActorDiedError,
    TaskCancelledError,
    TaskError,
    WorkerCrashedError,
)
from sparkray.testing import faults
from tests.support import Tally, until

pytestmark = pytest.mark.faults


@sparkray.remote(max_restarts=1, max_task_retries=-1)
class Actor:
    def pid(self) -> int:
        return os.getpid()


@sparkray.remote(max_retries=0)
def fail(how: faults.How) -> None:
    faults.crash(how)


@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        ("exit", WorkerCrashedError, r"sys\.exit\(7\)"),
        ("os._exit", WorkerCrashedError, "exited with code 7"),
        ("SIGKILL", WorkerCrashedError, "SIGKILL"),
        ("segfault", WorkerCrashedError, "SIGSEGV"),
        ("memory", TaskError, "MemoryError"),
    ],
)
@pytest.mark.usefixtures("shared")
def test_crash_ends_a_task_in_each_way(how: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        sparkray.get(fail.remote(how), timeout=30)


@pytest.mark.usefixtures("shared")
def test_a_hang_can_be_cancelled() -> None:
    ref = fail.remote("hang")
    time.sleep(0.2)
    sparkray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        sparkray.get(ref, timeout=30)


def test_another_way_to_crash_is_a_mistake_and_not_a_crash() -> None:
    with pytest.raises(ValueError, match="segfault"):
        faults.crash("sigkill")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="probability"), faults.flaky(1.5):
        pass


def test_the_limit_on_memory_is_lifted_again() -> None:
    with pytest.raises(MemoryError):
        faults.crash("memory")
    assert len(bytearray(4 * faults.MEMORY_BYTES)) == 4 * faults.MEMORY_BYTES


@pytest.mark.usefixtures("shared")
def test_a_flaky_point_crashes_some_calls_and_retries_hide_it() -> None:
    with faults.flaky(0.3, seed=1) as point:

        @sparkray.remote(max_retries=-1)
        def square(x: int) -> int:
            point()
            return x * x

        refs = [square.remote(x) for x in range(40)]
        assert sparkray.get(refs, timeout=50) == [x * x for x in range(40)]
        assert 0 < point.crashes < point.calls
        assert point.calls - point.crashes >= 40


def test_a_flaky_point_crashes_the_same_calls_for_the_same_seed() -> None:
    def crashes(seed: int) -> list[bool]:
        found = []
        with faults.flaky(0.5, seed=seed, how="exit") as point:
            for _ in range(32):
                try:
                    pickle.loads(pickle.dumps(point))()
                    found.append(False)
                except SystemExit:
                    found.append(True)
            assert (point.calls, point.crashes) == (32, sum(found))
        return found

    assert crashes(1) == crashes(1) != crashes(2)


@pytest.mark.usefixtures("shared")
def test_kill_worker_ends_an_actor_which_restarts_as_allowed() -> None:
    actor = Actor.remote()
    pid = sparkray.get(actor.pid.remote(), timeout=20)
    faults.kill_worker(actor)
    assert sparkray.get(actor.pid.remote(), timeout=20) != pid
    faults.kill_worker(actor)
    with pytest.raises(ActorDiedError, match="kill_worker was called"):
        sparkray.get(actor.pid.remote(), timeout=20)
    with pytest.raises(TimeoutError, match="no process"):
        faults.kill_worker(actor, timeout_s=0.1)


@pytest.mark.usefixtures("shared")
def test_kill_worker_ends_the_worker_of_a_task(tmp_path: Path) -> None:
    runs = Tally(tmp_path)

    @sparkray.remote(max_retries=1)
    def slow_once() -> int:
        runs.add()
        if runs.count() == 1:
            time.sleep(60)
        return runs.count()

    ref = slow_once.remote()
    until(runs.count)
    faults.kill_worker(ref)
    assert sparkray.get(ref, timeout=20) == 2
    with pytest.raises(TimeoutError):
        faults.kill_worker(ref, timeout_s=0.1)
    with pytest.raises(TypeError, match="handle or a ref"):
        faults.kill_worker("an actor")


@pytest.mark.usefixtures("shared")
def test_a_random_worker_is_one_of_this_cluster() -> None:
    sparkray.get(Actor.remote().pid.remote(), timeout=20)
    pids = faults.worker_pids()
    assert pids and all(psutil.pid_exists(pid) for pid in pids)
    pid = faults.kill_random_worker(random.Random(1))
    assert pid in pids
    until(lambda: pid not in faults.worker_pids())


def test_without_a_cluster_there_is_nobody_to_kill(fresh: ModuleType) -> None:
    assert faults.worker_pids() == []
    assert faults.kill_random_worker(seed=1) is None


@pytest.mark.usefixtures("shared")
def test_work_that_may_be_retried_survives_a_killer() -> None:
    @sparkray.remote(max_retries=-1)
    def nap(k: int) -> int:
        time.sleep(0.05)
        return k

    with faults.killing_workers(every_s=0.2, seed=1) as killer:
        while killer.kills < 3:
            refs = [nap.remote(k) for k in range(20)]
            assert sparkray.get(refs, timeout=50) == list(range(20))
    kills = killer.kills
    time.sleep(0.5)
    assert killer.kills == kills


def test_kill_node_takes_all_of_a_node(start_cluster: Any) -> None:
    cluster = start_cluster(num_cpus=1)
    second = cluster.add_node(num_cpus=1)
    first = cluster.add_node(num_cpus=1)
    assert faults.kill_node(cluster) is first
    assert faults.kill_node(cluster, second) is second
    assert not first.is_alive and not second.is_alive
    assert cluster.nodes == [cluster.head_node]
    with pytest.raises(ValueError, match="head node"):
        faults.kill_node(cluster)
