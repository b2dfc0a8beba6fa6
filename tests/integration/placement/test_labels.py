"""Label selectors on a cluster of three labelled nodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sparkray
from sparkray.exceptions import ActorDiedError, UnschedulableError
from sparkray.util.placement_group import (
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from sparkray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tests.support import Gate, Tally, quiet, until

LABELS = {
    "head": {"zone": "a", "disk": "ssd"},
    "second": {"zone": "b", "disk": "nvme", "tier": "spot"},
    "third": {"zone": "b", "disk": "hdd"},
}
INFEASIBLE = {"SPARKRAY_INFEASIBLE_TIMEOUT_S": "0.5"}


@pytest.fixture
def three(start_cluster: Callable[..., Any]) -> dict[str, str]:
    """Return the names of three nodes by their ids; the driver's is "head"."""
    cluster = start_cluster(num_cpus=2, labels=LABELS["head"], environment=INFEASIBLE)
    for name in ("second", "third"):
        cluster.add_node(num_cpus=2, labels=LABELS[name], environment=INFEASIBLE)
    cluster.wait_for_nodes()
    sparkray.init(cluster.address, token=Path(cluster.token_file).read_text().strip())
    return {
        node.node_id: name for node, name in zip(cluster.nodes, LABELS, strict=True)
    }


@sparkray.remote
def where() -> str:
    return sparkray.get_runtime_context().get_node_id()


@sparkray.remote
def hold(gate: Gate, begun: Tally) -> str:
    node_id = sparkray.get_runtime_context().get_node_id()
    begun.add(node_id)
    gate.wait()
    return node_id


@sparkray.remote(num_cpus=1)
class Member:
    def where(self) -> str:
        return sparkray.get_runtime_context().get_node_id()


def result(ref: Any) -> Any:
    return sparkray.get(ref, timeout=30)


def test_tasks_and_actors_run_where_the_labels_match(three: dict[str, str]) -> None:
    cases: list[tuple[dict[str, str], set[str]]] = [
        ({"zone": "a"}, {"head"}),
        ({"zone": "!a", "tier": "!spot"}, {"third"}),
        ({"disk": "in(nvme, tape)"}, {"second"}),
        ({"disk": "!in(nvme, hdd)"}, {"head"}),
        ({"tier": "spot"}, {"second"}),
    ]
    for selector, expected in cases:
        task = where.options(label_selector=selector)
        nodes = result([task.remote() for _ in range(4)])
        assert {three[node] for node in nodes} == expected, selector
        member = Member.options(label_selector=selector).remote()
        assert {three[result(member.where.remote())]} == expected, selector
        del member


def test_what_has_no_room_waits_for_a_node_that_matches(
    three: dict[str, str], tmp_path: Path
) -> None:
    """Others are free all the time, the driver's own among them."""
    gate, begun = Gate(tmp_path), Tally(tmp_path)
    there = hold.options(label_selector={"zone": "b"})
    refs = [there.remote(gate, begun) for _ in range(5)]
    until(lambda: begun.count() == 4)
    assert quiet(lambda: begun.count() == 4)
    gate.open()
    names = [three[node] for node in result(refs)]
    assert names.count("second") >= 2 and names.count("third") >= 2
    assert "head" not in names


def test_spreading_is_among_those_that_match(
    three: dict[str, str], tmp_path: Path
) -> None:
    gate, begun = Gate(tmp_path), Tally(tmp_path)
    spread = hold.options(scheduling_strategy="SPREAD", label_selector={"zone": "b"})
    refs = [spread.remote(gate, begun) for _ in range(2)]
    until(lambda: begun.count() == 2)
    gate.open()
    assert {three[node] for node in result(refs)} == {"second", "third"}


def test_the_label_of_its_id_names_a_node(three: dict[str, str]) -> None:
    for node in sparkray.nodes():
        assert node["Labels"]["sparkray.io/node-id"] == node["NodeID"]
        for label in ("sparkray.io/node-id", "ray.io/node-id"):
            task = where.options(label_selector={label: node["NodeID"]})
            assert result(task.remote()) == node["NodeID"]


def test_a_selector_that_nothing_matches_is_an_error_that_shows_the_labels(
    three: dict[str, str],
) -> None:
    selector = {"zone": "in(c, d)", "disk": "ssd"}
    words = ["{disk: ssd, zone: in(c, d)}", "{disk: hdd, zone: b}"]
    with pytest.raises(UnschedulableError) as of_task:
        result(where.options(label_selector=selector).remote())
    for text in words:
        assert text in str(of_task.value)
    member = Member.options(label_selector=selector).remote()
    with pytest.raises((UnschedulableError, ActorDiedError)) as of_actor:
        result(member.where.remote())
    for text in words:
        assert text in str(of_actor.value)


def test_a_match_that_is_too_small_is_an_error_that_shows_its_resources(
    three: dict[str, str],
) -> None:
    task = where.options(label_selector={"zone": "a"}, num_cpus=3)
    with pytest.raises(UnschedulableError, match=r"zone: a.*CPU: 2.*ask for less"):
        result(task.remote())


def test_a_node_that_is_named_must_match_as_well(three: dict[str, str]) -> None:
    second = next(node for node, name in three.items() if name == "second")
    there = NodeAffinitySchedulingStrategy(second)
    task = where.options(scheduling_strategy=there, label_selector={"zone": "b"})
    assert result(task.remote()) == second
    task = where.options(scheduling_strategy=there, label_selector={"zone": "a"})
    with pytest.raises(UnschedulableError, match="bound to"):
        result(task.remote())
    soft = NodeAffinitySchedulingStrategy(second, soft=True)
    task = where.options(scheduling_strategy=soft, label_selector={"zone": "a"})
    assert three[result(task.remote())] == "head"


def test_bundles_lie_where_their_selectors_say(three: dict[str, str]) -> None:
    for strategy in ("PACK", "SPREAD", "STRICT_SPREAD"):
        group = placement_group(
            [{"CPU": 1}, {"CPU": 1}, {"CPU": 1}],
            strategy=strategy,
            bundle_label_selector=[{"zone": "a"}, {"tier": "spot"}, {"disk": "hdd"}],
        )
        result(group.ready())
        places = placement_group_table(group)["bundles_to_node_id"].values()
        assert [three[node] for node in places] == ["head", "second", "third"]
        remove_placement_group(group)
    together = placement_group(
        [{"CPU": 1}, {"CPU": 1}],
        strategy="STRICT_PACK",
        bundle_label_selector=[{"zone": "b"}, {"tier": "!spot"}],
    )
    result(together.ready())
    places = placement_group_table(together)["bundles_to_node_id"].values()
    assert [three[node] for node in places] == ["third", "third"]
    nowhere = placement_group([{"CPU": 1}], bundle_label_selector=[{"zone": "c"}])
    assert not nowhere.wait(timeout_seconds=0.5)


def test_wrong_selectors_are_refused_at_the_call(local: Any) -> None:
    with pytest.raises(ValueError, match=r"label_selector\['zone'\]"):
        where.options(label_selector={"zone": "in(a"}).remote()
    with pytest.raises(TypeError, match="label_selector"):
        Member.options(label_selector={"zone": 1}).remote()
    one = [{"CPU": 1}]
    with pytest.raises(ValueError, match="each of 1 bundles"):
        placement_group(one, bundle_label_selector=[])
    with pytest.raises(ValueError, match=r"bundle_label_selector\[0\]\['zone'\]"):
        placement_group(one, bundle_label_selector=[{"zone": ""}])
    with pytest.raises(TypeError, match="bundle_label_selector"):
        placement_group(one, bundle_label_selector={"zone": "a"})  # type: ignore[arg-type]
