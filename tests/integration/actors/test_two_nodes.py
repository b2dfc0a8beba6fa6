"""Actors on several nodes: where they go, and what becomes of them when one dies."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

import sparkray
from sparkray.exceptions import ActorDiedError, ActorUnavailableError, SparkrayError
from sparkray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tests.support import until

pytestmark = pytest.mark.timeout(120)


@sparkray.remote
class Placed:
    def node(self) -> str:
        return sparkray.get_runtime_context().get_node_id()

    def pid(self) -> int:
        return os.getpid()

    def make(self) -> Any:
        self.child = Placed.options(resources={"first": 1}).remote()
        return self.child


def on(node_id: str, *, soft: bool = False) -> dict[str, Any]:
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=soft)}


def nodes_of(actors: list[Any]) -> list[str]:
    return list(sparkray.get([actor.node.remote() for actor in actors], timeout=40))


def test_resources_affinity_and_spread_decide_where_an_actor_goes(
    two_nodes: Any,
) -> None:
    second = two_nodes.second.node_id
    here = sparkray.get_runtime_context().get_node_id()
    by_resource = Placed.options(resources={"second": 1}).remote()
    by_id = Placed.options(**on(second)).remote()
    home = Placed.options(**on(here)).remote()
    assert nodes_of([by_resource, by_id, home]) == [second, second, here]
    spread = [
        Placed.options(scheduling_strategy="SPREAD", num_cpus=1).remote()
        for _ in range(2)
    ]
    assert set(nodes_of(spread)) == {here, second}


def test_when_its_node_dies_an_actor_starts_again_on_another(two_nodes: Any) -> None:
    second = two_nodes.second.node_id
    options = on(second, soft=True)
    again = Placed.options(max_restarts=1, max_task_retries=1, **options).remote()
    once = Placed.options(**options).remote()
    assert nodes_of([again, once]) == [second, second]
    two_nodes.remove_node(two_nodes.second, allow_graceful=False)

    def node() -> str:
        try:
            return str(sparkray.get(again.node.remote(), timeout=60))
        except ActorUnavailableError:
            return second

    until(lambda: node() != second, 60)
    with pytest.raises(ActorDiedError, match="node died"):
        sparkray.get(once.node.remote(), timeout=60)


def test_actors_end_when_the_node_of_their_maker_dies(
    start_cluster: Callable[..., Any],
) -> None:
    cluster = start_cluster(num_cpus=1, resources={"first": 1})
    second = cluster.add_node(num_cpus=1, resources={"second": 1})
    cluster.wait_for_nodes()
    sparkray.init(address=cluster.address)
    maker = Placed.options(resources={"second": 1}).remote()
    child = sparkray.get(maker.make.remote(), timeout=40)
    assert sparkray.get(child.node.remote(), timeout=40) != second.node_id
    cluster.remove_node(second, allow_graceful=False)

    def dead() -> bool:
        try:
            sparkray.get(child.node.remote(), timeout=5)
        except ActorDiedError:
            return True
        return False

    until(dead, 60)


def test_an_actor_that_fits_nowhere_is_reported_with_what_it_lacks(
    fresh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKRAY_INFEASIBLE_TIMEOUT_S", "1")
    fresh.init(num_cpus=1, address="local")
    actor = Placed.options(resources={"unobtainium": 1}, name="nowhere").remote()
    with pytest.raises(SparkrayError, match="unobtainium"):
        fresh.get(actor.node.remote(), timeout=20)
    with pytest.raises(ValueError, match="nowhere"):
        fresh.get_actor("nowhere")


def test_an_actor_that_is_bound_to_no_node_fails_at_once(fresh: Any) -> None:
    fresh.init(num_cpus=1, address="local")
    node_id = "0" * len(fresh.get_runtime_context().get_node_id())
    actor = Placed.options(**on(node_id)).remote()
    with pytest.raises(SparkrayError, match=f"bound to node {node_id}, dead or unkn"):
        fresh.get(actor.node.remote(), timeout=10)


def test_an_actor_that_fits_nowhere_yet_waits_for_a_node(
    start_cluster: Callable[..., Any],
) -> None:
    cluster = start_cluster(num_cpus=1)
    sparkray.init(address=cluster.address)
    actor = Placed.options(resources={"second": 1}).remote()
    call = actor.node.remote()
    assert sparkray.wait([call], timeout=0.5)[0] == []
    second = cluster.add_node(num_cpus=1, resources={"second": 1})
    assert sparkray.get(call, timeout=40) == second.node_id
