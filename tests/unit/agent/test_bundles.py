"""Bundles of placement groups on one node: little nodes with leases of their own."""

from __future__ import annotations

from typing import Any

import pytest

from sparkray.agent.state import events as e
from sparkray.agent.state.bundles import Bundles
from sparkray.agent.state.nodes import Node
from sparkray.protocol.messages import LeaseSpec, Strategy
from sparkray.protocol.placement import GroupRow
from sparkray.resources import Vector, from_user
from tests.unit.agent.test_leases import HOLD_S, INFEASIBLE_S, JOB, Desk

GROUP = b"group"
HERE, THERE = b"here", b"there"


def inside(index: int = -1) -> Strategy:
    return Strategy("GROUP", group_id=GROUP, bundle=index)


def vectors(*cpus: float) -> list[Vector]:
    return [from_user({"CPU": amount}) for amount in cpus]


class GroupDesk(Desk):
    """A scheduler that is told of one group."""

    version = 0

    def reserve(self, attempt: int = 1, **cpus: float) -> bool:
        bundles = {
            int(name[1:]): from_user({"CPU": amount}) for name, amount in cpus.items()
        }
        return self.table.bundles.reserve(GROUP, attempt, bundles)

    def tell(
        self,
        nodes: list[bytes],
        cpus: list[float],
        state: str = "CREATED",
        gpus: float = 0,
    ) -> None:
        self.version += 1
        row = GroupRow(
            group_id=GROUP,
            version=self.version,
            state=state,
            name="",
            namespace="",
            strategy="PACK",
            bundles=[from_user({"CPU": cpu, "GPU": gpus}) for cpu in cpus],
            nodes=nodes,
            detached=False,
            job_id=JOB,
        )
        self.feed(e.GroupsChanged([row]))

    def free(self) -> float:
        return self.table.available["CPU"] / 10_000

    def _perform(self, effect: e.Effect) -> None:
        if isinstance(effect, e.EndWorker):
            self.to_end.append(effect.worker_id)
        else:
            super()._perform(effect)


@pytest.fixture
def desk() -> Any:
    return GroupDesk(cpus=4)


def test_a_reservation_is_all_or_nothing_and_counts_as_taken(desk: GroupDesk) -> None:
    assert not desk.reserve(_0=3, _1=2) and desk.free() == 4
    assert desk.reserve(_0=1, _1=2) and desk.free() == 1
    assert desk.reserve(_0=1, _1=2) and desk.free() == 1  # said again


def test_an_attempt_that_was_returned_is_not_reserved_any_more(
    desk: GroupDesk,
) -> None:
    desk.feed(e.BundlesReturned(GROUP, 3, [0], "test"))
    assert not desk.reserve(attempt=3, _0=1)
    assert desk.reserve(attempt=4, _0=1)
    desk.feed(e.BundlesReturned(GROUP, 3, [0], "late"))
    assert desk.free() == 3


def test_a_bundle_that_is_reserved_again_survives_the_return_of_the_first_time(
    desk: GroupDesk,
) -> None:
    assert desk.reserve(attempt=1, _0=1) and desk.reserve(attempt=2, _0=1)
    desk.feed(e.BundlesReturned(GROUP, 1, [0], "late"))
    assert desk.free() == 3


def test_gpus_of_a_process_that_is_to_end_outlive_its_bundle() -> None:
    desk = GroupDesk(cpus=1, GPU=1)
    assert desk.table.bundles.reserve(GROUP, 1, {0: from_user({"CPU": 1, "GPU": 1})})
    desk.tell([HERE], [1], gpus=1)
    desk.request(1, strategy=inside(0), GPU=1)
    desk.give_back(1, reusable=False)
    desk.feed(e.BundlesReturned(GROUP, 1, [0], "removed"))
    desk.request(2, GPU=1)
    assert 2 not in desk.granted
    desk.die(1)
    assert 2 in desk.granted


def test_requests_use_their_bundle_and_nothing_else(desk: GroupDesk) -> None:
    desk.reserve(_0=1, _1=2)
    desk.tell([HERE, HERE], [1, 2])
    desk.request(1, strategy=inside(0))
    desk.request(2, strategy=inside(0))
    assert 1 in desk.granted and 2 not in desk.granted
    desk.request(3, strategy=inside())
    desk.request(6, strategy=inside())
    assert {3, 6} <= set(desk.granted)
    desk.request(4)  # outside: the one CPU that is left
    desk.request(5)
    assert 4 in desk.granted and 5 not in desk.granted
    desk.give_back(1)
    assert 2 in desk.granted and 5 not in desk.granted


def test_a_request_without_resources_runs_in_a_full_bundle(desk: GroupDesk) -> None:
    desk.reserve(_0=1)
    desk.tell([HERE], [1])
    desk.request(1, strategy=inside())
    desk.feed(e.Requested(2, b"driver", LeaseSpec(JOB, "", {}, inside(), 0), 1))
    assert {1, 2} <= set(desk.granted)


def test_a_blocked_worker_lends_its_cpu_within_its_bundle(desk: GroupDesk) -> None:
    desk.reserve(_0=1)
    desk.tell([HERE], [1])
    desk.request(1, strategy=inside())
    desk.block(1)
    assert desk.free() == 3
    desk.request(2, strategy=inside(), depth=1)
    assert 2 in desk.granted


def test_own_requests_wait_for_the_heads_word_and_those_of_peers_do_not(
    desk: GroupDesk,
) -> None:
    desk.reserve(_0=1)
    desk.request(2, strategy=inside(), foreign=True)
    assert len(desk.granted[2]) == 1
    desk.give_back(2)
    desk.request(1, strategy=inside())
    assert 1 not in desk.granted
    desk.tell([HERE], [1])
    assert len(desk.granted[1]) == 1


def test_a_peer_that_asks_for_a_bundle_that_is_not_here_goes_away_empty(
    desk: GroupDesk,
) -> None:
    desk.request(1, strategy=inside(), foreign=True)
    assert desk.granted[1] == []
    desk.reserve(_0=1)
    desk.request(2, strategy=inside(), foreign=True)
    desk.request(3, strategy=inside(), foreign=True)
    desk.feed(e.BundlesReturned(GROUP, 1, [0], "removed"))
    assert desk.granted[3] == []


def test_a_return_ends_what_runs_inside_and_frees_it_once_it_has_ended(
    desk: GroupDesk,
) -> None:
    desk.reserve(_0=2)
    desk.tell([HERE], [2])
    desk.request(1, strategy=inside())
    worker = desk.worker(1)
    effects = desk.table.handle(e.BundlesReturned(GROUP, 1, [0], "gone"), desk.now)
    assert effects == [e.EndWorker(worker, "gone")]
    assert desk.free() == 3  # its worker still has one
    desk.feed(e.WorkerGone(worker))
    assert desk.free() == 4


def test_requests_fail_when_their_group_is_removed_or_was_never_there(
    desk: GroupDesk,
) -> None:
    desk.request(1, strategy=inside())
    desk.now += INFEASIBLE_S + 1
    desk.feed(e.Tick())
    assert "there is no placement group" in desk.failed[1].args[2]
    desk.tell([b""], [1], "PENDING")
    desk.request(2, strategy=inside())
    desk.now += 10 * INFEASIBLE_S
    desk.feed(e.Tick())
    assert 2 not in desk.failed  # it waits as long as its group does
    desk.tell([b""], [1], "REMOVED")
    assert desk.failed[2].kind == "PlacementGroupRemovedError"


def test_a_request_that_no_bundle_can_hold_fails_at_once(desk: GroupDesk) -> None:
    desk.tell([HERE, THERE], [1, 2])
    desk.request(1, strategy=inside(0), CPU=2)
    assert "large enough" in desk.failed[1].args[2]
    desk.request(2, strategy=inside(), CPU=2)
    assert 2 not in desk.failed


def test_requests_go_to_the_nodes_of_their_bundles(desk: GroupDesk) -> None:
    other = Node(THERE, "there", from_user({"CPU": 2}), {})
    third = Node(b"third", "third", from_user({"CPU": 2}), {})
    desk.feed(e.ViewChanged([other, third]))
    desk.reserve(_0=1)
    desk.tell([HERE, THERE, THERE], [1, 1, 1])
    desk.request(1, strategy=inside(1), count=5)
    assert [(spill.node_id, spill.count) for spill in desk.spills] == [(THERE, 1)]
    desk.request(2, strategy=inside(), count=5)
    assert len(desk.granted[2]) == 1  # here first
    desk.request(3, strategy=inside(), count=5)
    assert (desk.spills[-1].node_id, desk.spills[-1].count) == (THERE, 2)
    desk.feed(e.SpillAnswered(3, THERE, False))
    desk.give_back(2)
    assert len(desk.granted[3]) == 1  # a bundle here fell free first


def test_leases_rotate_within_a_bundle_only(desk: GroupDesk) -> None:
    desk.reserve(_0=1)
    desk.tell([HERE], [1])
    desk.request(1, strategy=inside())
    desk.request(2, count=3)
    desk.request(3, holder=b"other", strategy=inside())
    desk.now += 2 * HOLD_S
    desk.feed(e.Tick())
    assert desk.asked == [desk.worker(1)]


def test_old_rows_change_nothing() -> None:
    bundles = Bundles(HERE, {})
    new, old = (
        GroupRow(GROUP, version, state, "", "", "PACK", [{}], [b""], False, JOB)
        for version, state in ((2, "CREATED"), (1, "PENDING"))
    )
    bundles.learn([new])
    bundles.learn([old])
    assert bundles.rows[GROUP] is new


def test_bundles_have_devices_of_their_own_until_they_are_returned() -> None:
    desk = GroupDesk(cpus=8, GPU=2)
    bundles = desk.table.bundles
    asked = {0: from_user({"GPU": 0.5}), 1: from_user({"GPU": 1})}
    assert bundles.reserve(GROUP, 1, asked)
    assert bundles.reserve(GROUP, 1, asked)  # said again
    assert {key[1]: list(b.devices.free) for key, b in bundles.here.items()} == {
        0: ["1"],
        1: ["0"],
    }
    assert not bundles.reserve(b"other", 2, {0: from_user({"GPU": 1})})
    desk.tell([HERE, HERE], [0, 0])
    desk.request(1, CPU=0, GPU=0.5)
    held = desk.table.lease_of(desk.worker(1))
    assert held is not None and list(held.gpus) == ["1"]
    desk.feed(e.BundlesReturned(GROUP, 1, [0, 1], "removed"))
    assert desk.table.devices.free == {"0": 10_000, "1": 5_000}
    desk.give_back(1)
    assert desk.table.devices.free == {"0": 10_000, "1": 10_000}


def test_a_reservation_that_only_fits_in_parts_of_devices_is_refused() -> None:
    desk = GroupDesk(cpus=8, GPU=2)
    for number in range(1, 5):
        desk.request(number, CPU=1, GPU=0.5)
    desk.give_back(1)
    desk.give_back(3)
    bundles = desk.table.bundles
    assert not bundles.reserve(GROUP, 1, {0: from_user({"GPU": 1})})
    halves = {0: from_user({"GPU": 0.5}), 1: from_user({"GPU": 0.5})}
    assert bundles.reserve(GROUP, 1, halves) and not desk.table.devices.fits(1)


def test_bundles_that_the_head_has_no_use_for_are_found() -> None:
    bundles = Bundles(HERE, from_user({"CPU": 9}))
    for group_id in (b"removed", b"moved", b"mine", b"waits", b"unknown"):
        assert bundles.reserve(group_id, 3, {0: from_user({"CPU": 1})})
    for group_id, state, node in (
        (b"removed", "REMOVED", b""),
        (b"moved", "CREATED", THERE),
        (b"mine", "CREATED", HERE),
        (b"waits", "PENDING", b""),
    ):
        row = GroupRow(group_id, 1, state, "", "", "PACK", [{}], [node], False, JOB)
        bundles.learn([row])
    assert bundles.strays() == [((b"removed", 0), 3), ((b"moved", 0), 3)]
