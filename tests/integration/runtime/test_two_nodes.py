"""Tasks and objects on two nodes: where they run, what is copied, what is freed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparkray
from sparkray.exceptions import SparkrayError
from sparkray.util import state
from sparkray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tests.support import Gate, Tally, until

MB = 1 << 20


@sparkray.remote
def node_id() -> str:
    return sparkray.get_runtime_context().get_node_id()


def store_used() -> dict[str, float]:
    """Return how many bytes of each node's store are in use."""
    return {
        row["NodeID"]: row["Resources"]["object_store_memory"] - left
        for row in sparkray.nodes()
        for node in state.list_nodes()
        if node.node_id == row["NodeID"]
        for left in [node.available["object_store_memory"]]
    }


def test_tasks_spread_and_stay_where_they_are_told(
    two_nodes: Any, tmp_path: Path
) -> None:
    both = {row["NodeID"] for row in sparkray.nodes()}
    begun, gate = Tally(tmp_path), Gate(tmp_path)

    @sparkray.remote(scheduling_strategy="SPREAD")
    def spread() -> str:
        begun.add()
        gate.wait()
        return sparkray.get_runtime_context().get_node_id()

    refs = [spread.remote() for _ in range(2)]  # they would fit on either node
    until(lambda: begun.count() == 2)
    gate.open()
    assert set(sparkray.get(refs)) == both
    for one in both:
        here = NodeAffinitySchedulingStrategy(one)
        pinned = node_id.options(scheduling_strategy=here)
        assert set(sparkray.get([pinned.remote() for _ in range(6)])) == {one}
    second = two_nodes.second.node_id
    there = node_id.options(resources={"second": 1})
    assert set(sparkray.get([there.remote() for _ in range(6)])) == {second}

    nowhere = "0" * len(second)
    hard = NodeAffinitySchedulingStrategy(nowhere)
    with pytest.raises(SparkrayError, match=nowhere[:8]):
        sparkray.get(node_id.options(scheduling_strategy=hard).remote(), timeout=30)
    soft = NodeAffinitySchedulingStrategy(nowhere, soft=True)
    ref = node_id.options(scheduling_strategy=soft).remote()
    assert sparkray.get(ref, timeout=30) in both


def test_objects_are_copied_between_nodes_and_freed_on_both(two_nodes: Any) -> None:
    second = two_nodes.second.node_id

    @sparkray.remote(resources={"second": 1})
    def make() -> Any:
        return np.full(10 * MB, 3, dtype=np.uint8)

    @sparkray.remote(resources={"second": 1})
    def total(array: Any, box: list[Any]) -> int:
        return int(array.sum()) + int(sparkray.get(box[0]).sum())

    mine = sparkray.put(np.ones(10 * MB, dtype=np.uint8))
    theirs = make.remote()
    array = sparkray.get(theirs)
    assert array.nbytes == 10 * MB and int(array[-1]) == 3
    assert sparkray.get(total.remote(mine, [mine])) == 20 * MB
    until(lambda: min(store_used().values()) >= 20 * MB)
    (row,) = [r for r in state.list_objects() if r.object_id == mine.hex()]
    assert second in row.nodes and len(row.nodes) == 2

    del array, mine, theirs
    until(lambda: max(store_used().values()) == 0, 20, "objects stay in a store")
    assert state.list_objects() == []
