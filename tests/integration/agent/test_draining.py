"""A node is asked to leave: it does if nobody needs it, and says who does if not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sparkray
from sparkray.protocol.control import ClusterStatus, StatusReport
from sparkray.protocol.draining import DrainNode
from sparkray.runtime import core
from sparkray.util.placement_group import placement_group, remove_placement_group
from sparkray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tests.support import Gate, until

MB = 1 << 20


def drain(node: Any) -> str:
    """Return why the node stays, "" if it leaves."""
    request = DrainNode(bytes.fromhex(node.node_id))
    needed_by: str = core.current().head_call("DrainNode", request).needed_by
    return needed_by


def leaves(node: Any) -> bool:
    """Wait until nobody needs the node; tell whether its process then ends well."""
    until(lambda: not drain(node))
    until(lambda: not node.is_alive)
    return bool(node._started.poll() == 0)


def row(node: Any) -> dict[str, Any]:
    return next(r for r in sparkray.nodes() if r["NodeID"] == node.node_id)


def idle_s(node: Any) -> float | None:
    report: StatusReport = core.current().head_call("Status", ClusterStatus())
    return report.idle_s.get(bytes.fromhex(node.node_id))


@sparkray.remote(resources={"second": 1})
def there(begun: Gate | None = None, end: Gate | None = None) -> str:
    if begun is not None and end is not None:
        begun.open()
        end.wait()
    return sparkray.get_runtime_context().get_node_id()


@sparkray.remote
def anywhere() -> str:
    return sparkray.get_runtime_context().get_node_id()


def test_a_node_that_nobody_needs_leaves_in_good_order(two_nodes: Any) -> None:
    assert sparkray.get(there.remote(), timeout=30) == two_nodes.second.node_id
    until(lambda: idle_s(two_nodes.second) is not None)
    assert leaves(two_nodes.second)
    until(lambda: not row(two_nodes.second)["Alive"])
    assert "nobody needed it" in row(two_nodes.second)["DeathReason"]
    assert idle_s(two_nodes.second) is None
    assert not Path(two_nodes.second.session_dir).exists()
    places = sparkray.get([anywhere.remote() for _ in range(20)], timeout=30)
    assert set(places) == {two_nodes.head_node.node_id}
    with pytest.raises(KeyError):
        drain(two_nodes.second)


def test_a_node_stays_while_a_task_runs_there(two_nodes: Any, tmp_path: Path) -> None:
    begun, end = Gate(tmp_path), Gate(tmp_path)
    ref = there.remote(begun, end)
    begun.wait()
    assert drain(two_nodes.second) == "1 lease"
    until(lambda: idle_s(two_nodes.second) is None)
    end.open()
    assert sparkray.get(ref, timeout=30) == two_nodes.second.node_id
    assert leaves(two_nodes.second)


def _stored(cluster: Any) -> tuple[Any, str]:
    @sparkray.remote(resources={"second": 1})
    def make() -> bytes:
        return bytes(MB)

    ref = make.remote()
    sparkray.wait([ref], timeout=30)
    return ref, "objects in its store"


def _owned(cluster: Any) -> tuple[Any, str]:
    @sparkray.remote(resources={"second": 1})
    def make() -> list[Any]:
        return [sparkray.put("small, so it lives in its owner's memory")]

    return sparkray.get(make.remote(), timeout=30)[0], "1 object of its workers"


def _actor(cluster: Any) -> tuple[Any, str]:
    @sparkray.remote(resources={"second": 1}, num_cpus=0)
    class Counter:
        def ping(self) -> int:
            return 1

    counter = Counter.remote()
    assert sparkray.get(counter.ping.remote(), timeout=30) == 1
    return counter, "actors"


def _actor_made_there(cluster: Any) -> tuple[Any, str]:
    @sparkray.remote(num_cpus=0)
    class Counter:
        def ping(self) -> int:
            return 1

    @sparkray.remote(resources={"second": 1})
    def make(home: str) -> Any:
        at = NodeAffinitySchedulingStrategy(home, soft=False)
        return Counter.options(scheduling_strategy=at).remote()

    counter = sparkray.get(make.remote(cluster.head_node.node_id), timeout=30)
    assert sparkray.get(counter.ping.remote(), timeout=30) == 1
    return counter, "actors"


def _group(cluster: Any) -> tuple[Any, str]:
    group = placement_group([{"second": 1}])
    assert group.wait(30)
    return group, "a placement group"


NEEDS: dict[Callable[[Any], tuple[Any, str]], Callable[[Any], Any]] = {
    _stored: lambda ref: sparkray.get(ref, timeout=30),
    _owned: lambda ref: sparkray.get(ref, timeout=30),
    _actor: sparkray.kill,
    _actor_made_there: sparkray.kill,
    _group: remove_placement_group,
}


def test_a_node_stays_for_what_would_be_lost_with_it(two_nodes: Any) -> None:
    for need, end in NEEDS.items():
        held, reason = need(two_nodes)
        until(lambda reason=reason: drain(two_nodes.second) == reason, what=reason)
        assert row(two_nodes.second)["Alive"]
        end(held)
        del held
    assert leaves(two_nodes.second)


def test_the_heads_own_node_stays(two_nodes: Any) -> None:
    assert drain(two_nodes.head_node) == "the head"
