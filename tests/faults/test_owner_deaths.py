"""Objects of workers that end while others hold refs to them."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest

import sparkray
from sparkray.exceptions import ObjectLostError, OwnerDiedError
from sparkray.testing import Cluster
from sparkray.util import state
from tests.support import until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]
SIZE = 50_000  #: numbers of an array that lies in a store


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(head_node_args={"num_cpus": 0}) as made:
        made.add_node(num_cpus=2)
        sparkray.init(address=made.address)
        yield made
        sparkray.shutdown()


@sparkray.remote(max_retries=0)
def hand_over(kinds: list[str]) -> tuple[int, Any]:
    """Put objects; return refs to them, in each of several ways."""
    made = {
        "small": sparkray.put("a text"),
        "large": sparkray.put(np.arange(SIZE)),
        "again": sparkray.remote(lambda: np.arange(SIZE)).remote(),
    }
    sparkray.wait(list(made.values()), num_returns=len(made))
    return os.getpid(), [made[kind] for kind in kinds]


@sparkray.remote(max_retries=0)
def pickled_by_hand() -> tuple[int, bytes]:
    refs = [sparkray.put("a text"), sparkray.put(np.arange(SIZE))]
    return os.getpid(), pickle.dumps(refs)


@sparkray.remote(max_retries=0, num_returns="streaming")
def stream() -> Any:
    yield os.getpid()
    yield [sparkray.put("a text"), sparkray.put(np.arange(SIZE))]


def end(pid: int) -> None:
    """Kill a worker, and wait until all know."""
    process = psutil.Process(pid)
    process.send_signal(signal.SIGKILL)
    until(lambda: not psutil.pid_exists(pid))
    until(lambda: pid not in {row.owner_pid for row in state.list_objects()})


@sparkray.remote
def summed(values: Any) -> Any:
    return [
        value if isinstance(value, str) else int(value.sum())
        for value in sparkray.get(values)
    ]


EXPECTED = {"small": "a text", "large": SIZE * (SIZE - 1) // 2}


@pytest.mark.parametrize("way", ["returned", "pickled", "streamed"])
def test_what_a_task_has_put_and_handed_on_outlives_its_process(
    cluster: Cluster, way: str
) -> None:
    if way == "returned":
        pid, refs = sparkray.get(hand_over.remote(["small", "large"]), timeout=60)
    elif way == "pickled":
        pid, text = sparkray.get(pickled_by_hand.remote(), timeout=60)
        refs = pickle.loads(text)
    else:
        pid, refs = sparkray.get(list(stream.remote()), timeout=60)
    end(pid)
    assert sparkray.get(refs[0], timeout=30) == EXPECTED["small"]
    assert int(sparkray.get(refs[1], timeout=30).sum()) == EXPECTED["large"]
    handed_on = sparkray.get(summed.remote(refs), timeout=30)
    assert handed_on == list(EXPECTED.values())


def test_what_was_made_by_a_task_on_the_same_node_outlives_it_too(
    cluster: Cluster,
) -> None:
    pid, (ref,) = sparkray.get(hand_over.remote(["again"]), timeout=60)
    end(pid)
    assert int(sparkray.get(ref, timeout=30).sum()) == EXPECTED["large"]


def test_when_its_node_is_gone_too_the_reader_is_told_why_it_is_lost() -> None:
    with Cluster(head_node_args={"num_cpus": 0}) as cluster:
        node = cluster.add_node(num_cpus=2)
        sparkray.init(address=cluster.address)
        _, refs = sparkray.get(hand_over.remote(["small", "large"]), timeout=60)
        cluster.remove_node(node, allow_graceful=False)
        until(lambda: sum(n["Alive"] for n in sparkray.nodes()) == 1)
        assert sparkray.get(refs[0], timeout=30) == EXPECTED["small"]
        with pytest.raises(
            ObjectLostError, match="the process that owned it has ended"
        ):
            sparkray.get(refs[1], timeout=30)
        sparkray.shutdown()


def test_what_is_not_there_yet_is_lost_with_its_owner(cluster: Cluster) -> None:
    @sparkray.remote(max_retries=0)
    def unfinished() -> Any:
        never = sparkray.remote(signal.pause).options(num_cpus=0)
        return os.getpid(), [never.remote()]

    pid, (ref,) = sparkray.get(unfinished.remote(), timeout=60)
    end(pid)
    with pytest.raises(OwnerDiedError):
        sparkray.get(ref, timeout=30)


def test_it_is_freed_by_its_owner_as_before_and_with_the_job_at_the_latest(
    cluster: Cluster,
) -> None:
    def stored() -> int:
        return sum(row.state == "stored" for row in state.list_objects())

    def in_stores() -> float:
        lent = sparkray.available_resources()["object_store_memory"]
        return sparkray.cluster_resources()["object_store_memory"] - lent

    _, refs = sparkray.get(hand_over.remote(["large"]), timeout=60)
    assert stored()
    del refs
    until(lambda: not stored())
    pid, refs = sparkray.get(hand_over.remote(["large"]), timeout=60)
    end(pid)
    assert int(sparkray.get(refs[0], timeout=30).sum()) == EXPECTED["large"]
    until(lambda: in_stores() > 0)
    del refs
    sparkray.shutdown()
    sparkray.init(address=cluster.address)
    until(lambda: in_stores() == 0)
