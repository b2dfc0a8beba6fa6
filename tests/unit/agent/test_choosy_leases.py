"""The scheduler of one node: requests for certain nodes, and for devices."""

from __future__ import annotations

import pytest

from sparkray.agent.state import events as e
from sparkray.agent.state.fairness import STARVING_AFTER_S
from sparkray.agent.state.nodes import Node
from sparkray.protocol.messages import Strategy
from sparkray.resources import UNIT
from tests.unit.agent.desk import HOLD_S, INFEASIBLE_S, Desk, peer

# --- labels ---------------------------------------------------------------------------


def labelled(name: bytes, zone: str, cpus: float = 4, free: float = 4) -> Node:
    node = peer(name, cpus, free)
    return Node(name, name.decode(), node.total, node.available, {"zone": zone})


def zone(value: str, kind: str = "DEFAULT", node_id: bytes = b"") -> Strategy:
    return Strategy(kind, node_id, labels=(("zone", value),))


def test_a_selector_sends_a_request_past_free_nodes_to_one_that_matches() -> None:
    desk = Desk(cpus=4)
    desk.see(labelled(b"p1", "a"), labelled(b"p2", "b", free=1), labelled(b"p3", "c"))
    desk.request(1, strategy=zone("b"))
    assert desk.spills == [e.Spill(1, b"p2", 1, True)]
    desk.request(2, strategy=zone("b"))  # it is full by now: it may queue there
    assert desk.spills[1:] == [e.Spill(2, b"p2", 1, True)]
    desk.request(3, strategy=zone("in(a, c)", "SPREAD"), count=2)
    desk.request(4, strategy=zone("!in(a, b, c)"))
    assert desk.spills[2].node_id in (b"p1", b"p3") and 4 in desk.granted


def test_a_selector_holds_for_the_node_that_was_asked_too() -> None:
    desk = Desk(cpus=1)
    desk.cluster.own.labels = {"zone": "a"}
    desk.see(labelled(b"p1", "b"))
    desk.request(1, strategy=zone("a"))
    desk.request(2, strategy=zone("a"))
    assert 1 in desk.granted and not desk.spills
    desk.tick(INFEASIBLE_S + 1)
    desk.give_back(1)
    assert 2 in desk.granted
    desk.request(3, strategy=zone("b"), foreign=True)  # its agent has looked
    desk.give_back(2)
    assert 3 in desk.granted


def test_what_waits_for_another_node_neither_starves_nor_asks_back_here() -> None:
    desk = Desk(cpus=2)
    desk.see(labelled(b"p1", "b"))
    desk.request(1, holder=b"other", count=2)
    desk.request(2, strategy=zone("b"))
    desk.feed(e.SpillAnswered(2, b"p1", False))
    desk.tick(STARVING_AFTER_S + HOLD_S)
    assert desk.asked == []
    desk.give_back(1)
    desk.request(3)
    assert 3 in desk.granted


@pytest.mark.parametrize("kind", ["DEFAULT", "SPREAD", "NODE"])
def test_a_selector_that_nothing_matches_fails_with_the_labels_there_are(
    kind: str,
) -> None:
    desk = Desk(cpus=4)
    desk.see(labelled(b"p1", "b"))
    desk.request(1, strategy=zone("c", kind, b"p1"))
    desk.tick(INFEASIBLE_S - 1)
    assert not desk.failed and not desk.spills
    desk.tick(1)
    request, _, hint = desk.failed[1].args
    assert request == "{CPU: 1} where label_selector is {zone: c}"
    assert "matches none of the nodes" in hint and "has {zone: b}" in hint


def test_a_node_that_joins_with_the_labels_saves_a_request() -> None:
    desk = Desk(cpus=4)
    desk.request(1, strategy=zone("b"))
    desk.tick(10)
    desk.see(labelled(b"new", "b"))
    assert [spill.node_id for spill in desk.spills] == [b"new"]


# --- devices --------------------------------------------------------------------------


def devices_of(desk: Desk, number: int) -> list[str]:
    held = desk.table.lease_of(desk.worker(number))
    assert held is not None
    return list(held.gpus)


def test_a_whole_device_waits_for_halves_of_one_not_of_two() -> None:
    desk = Desk(cpus=8, GPU=2)
    for number in range(1, 5):
        desk.request(number, CPU=1, GPU=0.5)
    assert [devices_of(desk, n) for n in range(1, 5)] == [["0"], ["0"], ["1"], ["1"]]
    desk.request(5, CPU=1, GPU=1)
    desk.give_back(1)
    desk.give_back(3)
    assert 5 not in desk.granted and desk.table.available["GPU"] == UNIT
    desk.give_back(4)
    assert devices_of(desk, 5) == ["1"]


def test_halves_that_come_again_and_again_do_not_starve_a_whole_device() -> None:
    desk = Desk(cpus=8, GPU=2)
    for number in range(1, 4):
        desk.request(number, holder=b"small", CPU=1, GPU=0.5)
    desk.request(100, holder=b"large", CPU=1, GPU=2)
    held = [1, 2, 3]
    for number in range(4, 204):
        desk.tick(STARVING_AFTER_S / 10)
        desk.request(number, holder=b"small", CPU=1, GPU=0.5)
        if 100 in desk.granted:
            break
        held += [n for n in desk.order if n < 100 and n not in held]
        gone = next((n for n in held if desk.granted.get(n)), None)
        if gone is not None:
            desk.give_back(gone)
            desk.granted[gone] = []
    assert devices_of(desk, 100) == ["0", "1"]


def test_who_holds_a_half_is_asked_for_it_when_a_whole_device_is_wanted() -> None:
    desk = Desk(cpus=8, GPU=2)
    for number in range(1, 4):
        desk.request(number, holder=b"small", CPU=1, GPU=0.5)
    desk.give_back(1)  # a half of each is taken: one device in sum, none whole
    desk.request(5, holder=b"large", CPU=1, GPU=1)
    desk.tick(2 * HOLD_S)
    assert set(desk.asked) <= {desk.worker(2), desk.worker(3)} and desk.asked


def test_a_device_is_free_again_after_its_worker_or_holder_died() -> None:
    desk = Desk(cpus=8, GPU=1)
    desk.request(1, CPU=1, GPU=1)
    desk.block(1)  # it waits for others, and keeps its device
    desk.request(2, holder=b"other", CPU=1, GPU=1)
    assert 2 not in desk.granted
    desk.die(1)
    assert devices_of(desk, 2) == ["0"]
    desk.request(3, CPU=1, GPU=1)
    desk.feed(e.HolderGone(b"other"))
    assert devices_of(desk, 3) == ["0"]


def test_places_kept_for_workers_that_start_keep_their_devices() -> None:
    desk = Desk(cpus=8, GPU=2)
    desk.at_once = False
    desk.request(1, CPU=1, GPU=1)
    desk.request(2, CPU=1, GPU=1, holder=b"other")
    assert len(desk.starting) == 2
    desk.at_once = True
    desk.start_workers()
    assert {*devices_of(desk, 1), *devices_of(desk, 2)} == {"0", "1"}
