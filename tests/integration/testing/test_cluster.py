from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import sparkray
from sparkray.testing import Cluster
from sparkray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(head_node_args={"num_cpus": 1}) as cluster:
        yield cluster
        sparkray.shutdown()
    assert not Path(cluster._temp_dir).exists()


def runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_nodes_come_and_go(cluster: Cluster) -> None:
    second = cluster.add_node(num_cpus=2, resources={"second": 4}, labels={"a": "b"})
    cluster.wait_for_nodes()
    context = sparkray.init(address=cluster.address)
    assert context.node_id == cluster.head_node.node_id
    rows = {row["NodeID"]: row for row in sparkray.nodes()}
    assert rows[second.node_id]["Labels"]["a"] == "b"
    assert sparkray.cluster_resources()["second"] == 4

    segments = f"sparkray-*-{second.node_id[:8]}"
    assert list(Path("/dev/shm").glob(segments))
    processes = psutil.Process(second.pid).children(recursive=True)
    cluster.remove_node(second, allow_graceful=False)
    assert not [process for process in processes if runs(process)]
    cluster.wait_for_nodes()
    assert not second.is_alive
    assert not list(Path("/dev/shm").glob(segments))
    assert not Path(second.session_dir).exists()
    assert "second" not in sparkray.cluster_resources()
    (dead,) = [row for row in sparkray.nodes() if not row["Alive"]]
    assert dead["NodeID"] == second.node_id and dead["DeathReason"]

    third = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    cluster.remove_node(third)
    cluster.wait_for_nodes()
    with pytest.raises(ValueError, match="not in this cluster"):
        cluster.remove_node(third)


def test_tasks_run_on_the_node_that_they_are_meant_for(cluster: Cluster) -> None:
    second = cluster.add_node(num_cpus=1, resources={"second": 1})
    cluster.wait_for_nodes()
    sparkray.init(address=cluster.address)

    @sparkray.remote
    def where() -> str:
        return sparkray.get_runtime_context().get_node_id()

    for node in cluster.nodes:
        pinned = where.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id)
        )
        assert sparkray.get(pinned.remote(), timeout=30) == node.node_id
    there = where.options(resources={"second": 1}).remote()
    assert sparkray.get(there, timeout=30) == second.node_id


def test_waiting_for_nodes_that_do_not_come_is_a_time_out(cluster: Cluster) -> None:
    second = cluster.add_node()
    cluster.wait_for_nodes()
    second.stop()
    with pytest.raises(TimeoutError, match=second.node_id[:8]):
        cluster.wait_for_nodes(timeout=0.5)


def test_a_cluster_without_a_head_says_so() -> None:
    with Cluster(initialize_head=False) as cluster:
        with pytest.raises(ValueError, match="no head"):
            print(cluster.address)
        assert cluster.add_node(num_cpus=1).is_head
