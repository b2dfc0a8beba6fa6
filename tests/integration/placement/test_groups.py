"""Placement groups on real nodes: where bundles lie, what runs inside, what ends."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import sparkray
from sparkray.exceptions import (
    ActorDiedError,
    GetTimeoutError,
    PlacementGroupRemovedError,
    TaskError,
)
from sparkray.util.placement_group import (
    get_current_placement_group,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from sparkray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from tests.support import Gate, Tally, quiet, run_driver, until


def inside(group: Any, index: int = -1, capture: bool = False) -> Any:
    return PlacementGroupSchedulingStrategy(group, index, capture)


def where(group: Any) -> list[str]:
    return list(placement_group_table(group)["bundles_to_node_id"].values())


def free(name: str = "CPU") -> float:
    return sparkray.available_resources().get(name, 0)


@sparkray.remote
def node_id() -> str:
    return sparkray.get_runtime_context().get_node_id()


@sparkray.remote(num_cpus=1)
class Member:
    def node_id(self) -> str:
        return sparkray.get_runtime_context().get_node_id()

    def group_id(self) -> str | None:
        return sparkray.get_runtime_context().get_placement_group_id()

    def pid(self) -> int:
        return os.getpid()

    def child_group(self) -> Any:
        return sparkray.get(group_here.remote())


@sparkray.remote(num_cpus=0)
def group_here() -> str | None:
    group = get_current_placement_group()
    return None if group is None else group.id.hex()


@sparkray.remote(num_cpus=0)
def child_group(explicit: bool = False) -> Any:
    outside = group_here.options(scheduling_strategy="DEFAULT")
    return sparkray.get((outside if explicit else group_here).remote())


def test_strategies_choose_nodes_and_tasks_run_in_their_bundles(
    two_nodes: Any,
) -> None:
    both = {row["NodeID"] for row in sparkray.nodes()}
    for strategy, count in [
        ("STRICT_PACK", 1),
        ("PACK", 1),
        ("SPREAD", 2),
        ("STRICT_SPREAD", 2),
    ]:
        group = placement_group([{"CPU": 1}, {"CPU": 1}], strategy=strategy)
        assert sparkray.get(group.ready(), timeout=30) == group
        nodes = where(group)
        assert len(set(nodes)) == count and set(nodes) <= both
        for index, node in enumerate(nodes):
            task = node_id.options(scheduling_strategy=inside(group, index))
            assert sparkray.get([task.remote() for _ in range(3)]) == [node] * 3
            member = Member.options(scheduling_strategy=inside(group, index)).remote()
            assert sparkray.get(member.node_id.remote(), timeout=30) == node
            del member
        remove_placement_group(group)
        until(lambda: free() == 4)


def test_tasks_for_any_bundle_use_those_of_both_nodes(
    two_nodes: Any, tmp_path: Path
) -> None:
    group = placement_group([{"CPU": 2}, {"CPU": 2}], strategy="STRICT_SPREAD")
    begun, gate = Tally(tmp_path), Gate(tmp_path)

    @sparkray.remote(scheduling_strategy=inside(group))
    def task() -> str:
        begun.add()
        gate.wait()
        return sparkray.get_runtime_context().get_node_id()

    refs = [task.remote() for _ in range(5)]
    until(lambda: begun.count() == 4)
    assert quiet(lambda: begun.count() == 4)
    assert free() == 0
    gate.open()
    assert set(sparkray.get(refs, timeout=30)) == set(where(group))
    remove_placement_group(group)
    until(lambda: free() == 4)


def test_a_group_that_does_not_fit_waits_for_room_and_for_nodes(
    two_nodes: Any,
) -> None:
    first = placement_group([{"CPU": 2}, {"CPU": 2}], strategy="SPREAD")
    assert first.wait(20)
    second = placement_group([{"CPU": 2}])
    third = placement_group([{"CPU": 1, "late": 1}])
    assert not second.wait(0.2) and not third.wait(0)
    remove_placement_group(first)
    assert second.wait(20)
    two_nodes.add_node(num_cpus=1, resources={"late": 1})
    assert third.wait(30)
    assert placement_group_table(first)["state"] == "REMOVED"
    assert not first.wait(5)
    table = placement_group_table()
    assert {table[g.id.hex()]["state"] for g in (second, third)} == {"CREATED"}


def test_removal_ends_what_runs_inside_and_frees_everything(
    two_nodes: Any, tmp_path: Path
) -> None:
    group = placement_group([{"CPU": 1}, {"CPU": 1}], strategy="STRICT_SPREAD")
    begun = Tally(tmp_path)

    @sparkray.remote(scheduling_strategy=inside(group, 0))
    def endless() -> None:
        begun.add()
        Gate(tmp_path).wait()

    member = Member.options(
        scheduling_strategy=inside(group, 1), max_restarts=-1
    ).remote()
    pid = sparkray.get(member.pid.remote(), timeout=30)
    running, queued = endless.remote(), endless.remote()
    until(lambda: begun.count() == 1)
    remove_placement_group(group)
    remove_placement_group(group)
    with pytest.raises(ActorDiedError, match="placement group was removed"):
        sparkray.get(member.pid.remote(), timeout=30)
    for ref in (running, queued):
        with pytest.raises(PlacementGroupRemovedError, match=group.id.hex()):
            sparkray.get(ref, timeout=30)
    until(lambda: free() == 4)
    until(lambda: not os.path.exists(f"/proc/{pid}"))
    late = Member.options(scheduling_strategy=inside(group)).remote()
    with pytest.raises(ActorDiedError, match="placement group was removed"):
        sparkray.get(late.pid.remote(), timeout=30)
    with pytest.raises(PlacementGroupRemovedError):
        sparkray.get(group.ready(), timeout=30)


def test_bundles_of_a_dead_node_move_and_their_actors_with_them(
    start_cluster: Any,
) -> None:
    cluster = start_cluster(num_cpus=2)
    second = cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    sparkray.init(address=cluster.address)
    group = placement_group([{"CPU": 1}, {"CPU": 1}], strategy="STRICT_SPREAD")
    assert group.wait(20)
    nodes = where(group)
    lost = nodes.index(second.node_id)
    members = [
        Member.options(
            scheduling_strategy=inside(group, index),
            max_restarts=1,
            max_task_retries=-1,
        ).remote()
        for index in range(2)
    ]
    assert [sparkray.get(m.node_id.remote(), timeout=30) for m in members] == nodes
    cluster.remove_node(second, allow_graceful=False)
    until(lambda: placement_group_table(group)["state"] == "RESCHEDULING")
    moved = members[lost].node_id.remote()
    task = node_id.options(scheduling_strategy=inside(group, lost)).remote()
    staying = members[1 - lost].node_id.remote()
    assert sparkray.get(staying, timeout=30) == nodes[1 - lost]
    third = cluster.add_node(num_cpus=2)
    assert sparkray.get(moved, timeout=40) == third.node_id
    assert group.wait(20) and where(group)[lost] == third.node_id
    sparkray.kill(members[lost])
    assert sparkray.get(task, timeout=40) == third.node_id


@sparkray.remote(num_cpus=0)
def captures() -> tuple[bool, str | None]:
    context = sparkray.get_runtime_context()
    captured = context.should_capture_child_tasks_in_placement_group
    return captured, context.current_placement_group_id


@pytest.mark.parametrize("capture", [True, False])
def test_a_task_knows_whether_its_children_are_captured(
    local: ModuleType, capture: bool
) -> None:
    group = placement_group([{"CPU": 1}])
    task = captures.options(scheduling_strategy=inside(group, capture=capture))
    assert sparkray.get(task.remote(), timeout=30) == (capture, group.id.hex())
    assert sparkray.get(captures.remote()) == (False, None)


def test_child_tasks_are_captured_when_asked(local: ModuleType) -> None:
    group = placement_group([{"CPU": 2}])
    own = group.id.hex()
    captured = child_group.options(scheduling_strategy=inside(group, capture=True))
    plain = child_group.options(scheduling_strategy=inside(group))
    assert sparkray.get(captured.remote(), timeout=30) == own
    assert sparkray.get(plain.remote(), timeout=30) is None
    assert sparkray.get(captured.remote(explicit=True), timeout=30) is None
    assert sparkray.get(child_group.remote(), timeout=30) is None
    for capture, expected in [(True, own), (False, None)]:
        strategy = inside(group, capture=capture)
        member = Member.options(scheduling_strategy=strategy).remote()
        assert sparkray.get(member.group_id.remote(), timeout=30) == own
        assert sparkray.get(member.child_group.remote(), timeout=30) == expected
    remove_placement_group(group)


def test_nested_tasks_in_a_full_group_take_their_parents_cpu(
    local: ModuleType,
) -> None:
    group = placement_group([{"CPU": 1}])

    @sparkray.remote
    def fib(n: int) -> int:
        if n < 2:
            return n
        return sum(sparkray.get([fib.remote(n - 1), fib.remote(n - 2)]))

    strategy = inside(group, capture=True)
    assert sparkray.get(fib.options(scheduling_strategy=strategy).remote(4)) == 3
    assert free() == 3
    remove_placement_group(group)
    until(lambda: free() == 4)


def test_captured_children_that_fit_no_bundle_fail(local: ModuleType) -> None:
    group = placement_group([{"CPU": 1}])

    @sparkray.remote(scheduling_strategy=inside(group, capture=True))
    def parent() -> Any:
        return sparkray.get(node_id.options(num_cpus=2).remote())

    with pytest.raises(TaskError, match="no bundle of its placement group"):
        sparkray.get(parent.remote(), timeout=30)


def test_a_worker_that_dies_gives_its_bundle_back(
    local: ModuleType, tmp_path: Path
) -> None:
    group = placement_group([{"CPU": 1, "tok": 1}])
    tries = Tally(tmp_path)

    @sparkray.remote(resources={"tok": 1}, scheduling_strategy=inside(group))
    def suicide() -> str:
        tries.add()
        if tries.count() < 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return "done"

    assert sparkray.get(suicide.remote(), timeout=30) == "done"
    assert free("tok") == 3
    remove_placement_group(group)
    until(lambda: free("tok") == 4 and free() == 4)


def test_who_waits_for_a_group_in_vain_is_told_what_for(local: ModuleType) -> None:
    group = placement_group([{"CPU": 99}])
    inside_of_it = node_id.options(scheduling_strategy=inside(group)).remote()
    for ref in (group.ready(), inside_of_it):
        with pytest.raises(GetTimeoutError, match=f"group {group.id.hex()}"):
            sparkray.get(ref, timeout=0.2)


def test_a_group_of_an_ended_session_is_refused_at_once(fresh: ModuleType) -> None:
    sparkray.init(address="local", num_cpus=1)
    group = placement_group([{"CPU": 1}])
    sparkray.get(group.ready())
    sparkray.shutdown()
    sparkray.init(address="local", num_cpus=1)
    strategy = inside(pickle.loads(pickle.dumps(group)))
    for use in (
        group.ready,
        group.wait,
        lambda: remove_placement_group(group),
        node_id.options(scheduling_strategy=strategy).remote,
        Member.options(scheduling_strategy=strategy).remote,
    ):
        with pytest.raises(PlacementGroupRemovedError, match=group.id.hex()):
            use()


def test_names_belong_to_one_living_group(local: ModuleType) -> None:
    group = placement_group([{"CPU": 1}], name="mine")
    with pytest.raises(ValueError, match="mine"):
        placement_group([{"CPU": 1}], name="mine")
    found = get_placement_group("mine")
    assert found == group and found.bundle_specs == [{"CPU": 1}]
    remove_placement_group(group)
    with pytest.raises(ValueError, match="namespace"):
        get_placement_group("mine")
    again = placement_group([{"CPU": 1}], name="mine")
    assert get_placement_group("mine") == again != group


def test_groups_travel(local: ModuleType) -> None:
    group = placement_group([{"CPU": 1}, {"tok": 2}])

    @sparkray.remote(num_cpus=0)
    def use(group: Any) -> Any:
        assert group.wait(20)
        task = group_here.options(scheduling_strategy=inside(group, 1))
        return group, sparkray.get(task.remote())

    assert sparkray.get(use.remote(group), timeout=30) == (group, group.id.hex())


def test_a_group_ends_with_its_job_unless_it_is_detached(start_cluster: Any) -> None:
    cluster = start_cluster(num_cpus=4)
    code = f"""
import sparkray
from sparkray.util.placement_group import placement_group
sparkray.init(address={cluster.address!r}, namespace="shared")
for name, lifetime in (("stays", "detached"), ("goes", None)):
    assert placement_group([{{"CPU": 1}}], name=name, lifetime=lifetime).wait(20)
"""
    done = run_driver(code)
    assert done.returncode == 0, done.stderr
    sparkray.init(address=cluster.address, namespace="shared")
    until(lambda: free() == 3)
    states = {row["name"]: row["state"] for row in placement_group_table().values()}
    assert states == {"stays": "CREATED", "goes": "REMOVED"}
    group = get_placement_group("stays")
    task = group_here.options(num_cpus=1, scheduling_strategy=inside(group))
    assert sparkray.get(task.remote(), timeout=30) == group.id.hex()
    remove_placement_group(group)
    until(lambda: free() == 4)
