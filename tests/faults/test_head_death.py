"""The head is killed: all that runs goes on, and all that it knew is there again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import sparkray
from sparkray.exceptions import ActorDiedError, GetTimeoutError
from sparkray.protocol import control
from sparkray.protocol.actors import ListActors
from sparkray.runtime import core
from sparkray.testing import Cluster
from sparkray.util import state
from sparkray.util.placement_group import get_placement_group, placement_group
from tests.support import Gate, Tally, driver_environment, run_driver, until

pytestmark = pytest.mark.faults

TASKS = 10_000


@sparkray.remote
class Counting:
    def __init__(self, made: Tally | None = None) -> None:
        self.count = 0
        if made is not None:
            made.add(os.getpid())

    def add(self) -> int:
        self.count += 1
        return self.count

    def pid(self) -> int:
        return os.getpid()


def head_is_back(cluster: Cluster, killed: int) -> float:
    """Wait for the head that follows the killed one; return how long it took."""
    start = time.monotonic()
    until(lambda: cluster.head_pid != killed, what="no head came back")
    cluster.wait_for_nodes()
    return time.monotonic() - start


@contextmanager
def head_away(cluster: Cluster) -> Iterator[None]:
    """Keep the head from serving, as its death does, for as long as the block takes."""
    pid = cluster.head_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        head_is_back(cluster, pid)


def states_of_actors() -> set[str]:
    listed = core.current().head_call("ListActors", ListActors())
    return {row.state for row in listed.actors}


OTHER_DRIVER = """
import sparkray
sparkray.init()
kept, own = sparkray.get_actor("kept", "all"), sparkray.get_actor("own", "all")
print(sparkray.get([kept.pid.remote(), kept.add.remote()]), end=" ")
print(sparkray.get([own.pid.remote(), own.add.remote()]), end=" ")

@sparkray.remote
def square(x):
    return x * x

print(sum(sparkray.get([square.remote(i) for i in range(10)])))
"""


def test_tasks_and_actors_go_on_and_everything_is_known_again(
    two_nodes: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster: Cluster = two_nodes
    runs, made = Tally(tmp_path), Tally(tmp_path)

    @sparkray.remote(max_retries=0, num_cpus=0.5)
    def work(index: int) -> int:
        runs.add(index)
        time.sleep(0.005)  # so that there is work left when the head is back
        return index

    few = Counting.options(num_cpus=0)
    kept = few.options(name="kept", namespace="all", lifetime="detached").remote(made)
    own = few.options(name="own", namespace="all").remote(made)
    pids = sparkray.get([kept.pid.remote(), own.pid.remote()])
    assert sparkray.get([kept.add.remote(), own.add.remote()]) == [1, 1]
    group = placement_group([{"second": 1}], name="group")
    assert group.wait(20)
    head_call = core.current().head_call
    head_call("KVPut", control.KVPut("ns", b"k", b"v", True))

    refs = [work.remote(index) for index in range(TASKS)]
    until(lambda: runs.count() > 500)
    took = []
    for _ in range(2):
        took.append(head_is_back(cluster, cluster.kill_head()))
    done = runs.count()
    assert sparkray.get(refs, timeout=120) == list(range(TASKS))
    counts = Counter(map(int, runs.lines()))
    assert len(counts) == TASKS and set(counts.values()) == {1}

    assert sparkray.get([kept.pid.remote(), own.pid.remote()]) == pids
    assert sparkray.get([kept.add.remote(), own.add.remote()]) == [2, 2]
    assert made.count() == 2
    assert head_call("KVGet", control.KVGet("ns", b"k")).value == b"v"
    again = get_placement_group("group")
    assert again.id == group.id and again.wait(10)
    address = cluster.address
    files = {"SPARKRAY_TOKEN_FILE": cluster.token_file, "SPARKRAY_ADDRESS": address}
    other = run_driver(OTHER_DRIVER, **files)
    assert other.returncode == 0, other.stderr
    expected = f"[{pids[0]}, 3] [{pids[1]}, 3] 285"
    assert other.stdout.splitlines()[-1] == expected, other.stdout
    with capsys.disabled():
        times = ", ".join(f"{each:.2f} s" for each in took)
        print(f"\nhead back with {TASKS - done} of {TASKS} tasks to run: {times}")


def test_calls_wait_for_the_head_that_is_away(two_nodes: Any) -> None:
    cluster: Cluster = two_nodes
    until(lambda: sparkray.cluster_resources()["second"] == 4)
    make = Counting.options(name="named", get_if_exists=True, num_cpus=0).remote
    first = make()
    for _ in range(3):
        killed = cluster.kill_head()
        named = make()
        assert sparkray.get(named.add.remote(), timeout=30) > 0
        assert len(sparkray.nodes()) == 2
        head_is_back(cluster, killed)
    assert sparkray.get(first.add.remote()) == 4


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.03, 0.1, 0.3])
def test_actors_that_are_being_made_come_up_once(
    two_nodes: Any, tmp_path: Path, delay_s: float
) -> None:
    """Where the head is killed depends on the delay; what comes of it must not."""
    cluster: Cluster = two_nodes
    made = Tally(tmp_path)
    actors = [Counting.options(num_cpus=0).remote(made) for _ in range(8)]
    time.sleep(delay_s)  # chooses the moment; nothing waits for it
    killed = cluster.kill_head()
    more = [Counting.options(num_cpus=0).remote(made) for _ in range(2)]
    actors += more
    pids = sparkray.get([actor.pid.remote() for actor in actors], timeout=60)
    assert sparkray.get([actor.add.remote() for actor in actors]) == [1] * 10
    assert sorted(map(int, made.lines())) == sorted(pids)
    assert len(set(pids)) == 10
    head_is_back(cluster, killed)
    assert states_of_actors() == {"ALIVE"}


def test_an_actor_whose_worker_dies_meanwhile_is_restarted(two_nodes: Any) -> None:
    cluster: Cluster = two_nodes
    again = Counting.options(max_restarts=1, max_task_retries=1, num_cpus=0).remote()
    once = Counting.options(num_cpus=0).remote()
    pids = sparkray.get([again.pid.remote(), once.pid.remote()])
    with head_away(cluster):
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        ref = again.add.remote()
        with pytest.raises(GetTimeoutError):
            sparkray.get(ref, timeout=0.5)
    assert sparkray.get(ref, timeout=30) == 1
    assert sparkray.get(again.pid.remote()) != pids[0]
    with pytest.raises(ActorDiedError):
        sparkray.get(once.add.remote(), timeout=30)


def test_a_node_that_dies_meanwhile_is_found_dead_and_its_actor_moves(
    start_cluster: Callable[..., Any],
) -> None:
    cluster = start_cluster(num_cpus=2)
    second = cluster.add_node(num_cpus=2, resources={"second": 1})
    cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    sparkray.init(address=cluster.address)
    until(lambda: len(sparkray.nodes()) == 3)
    actor = Counting.options(
        max_restarts=1, max_task_retries=1, resources={"second": 1}
    ).remote()
    home = sparkray.get(actor.pid.remote())
    with head_away(cluster):
        cluster.remove_node(second, allow_graceful=False)
    dead = [row["NodeID"] for row in sparkray.nodes() if not row["Alive"]]
    assert dead == [second.node_id]
    cluster.add_node(num_cpus=1, resources={"second": 1})
    assert sparkray.get(actor.pid.remote(), timeout=60) != home


def test_the_job_of_a_driver_that_ends_meanwhile_ends(
    two_nodes: Any, tmp_path: Path
) -> None:
    cluster: Cluster = two_nodes
    gate = Gate(tmp_path)
    code = f"""
import sparkray, sys
sparkray.init()

@sparkray.remote(num_cpus=0)
class Own:
    def one(self):
        return 1

own = Own.options(name="others", namespace="all").remote()
sparkray.get(own.one.remote())
open({gate._path!r}, "w").close()
import time
time.sleep(300)
"""
    files = {
        "SPARKRAY_TOKEN_FILE": cluster.token_file,
        "SPARKRAY_ADDRESS": cluster.address,
    }
    driver = subprocess.Popen(
        [sys.executable, "-c", code], env=driver_environment(**files)
    )
    try:
        gate.wait()
        with head_away(cluster):
            driver.kill()
            driver.wait()
        until(lambda: states_of_actors() == {"DEAD"})
    finally:
        driver.kill()
        driver.wait()
    until(
        lambda: sorted(job.alive for job in state.list_jobs()) == [False, True],
        what="the job of the driver that was killed goes on",
    )
