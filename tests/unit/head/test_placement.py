"""Placement groups at the head: where bundles go, and the life of a group."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkray.head import placement
from sparkray.head.placement import PlacementDesk
from sparkray.head.state import placement as s
from sparkray.head.state.placement import GroupState, GroupTable, Room, plan
from sparkray.protocol import placement as p
from sparkray.protocol.control import NodeInfo
from sparkray.resources import Vector, fits, from_user, take

_ids = itertools.count(1)


def request(
    bundles: list[Vector], strategy: str = "PACK", **more: Any
) -> p.CreatePlacementGroup:
    values: dict[str, Any] = {
        "group_id": b"%016d" % next(_ids),
        "job_id": b"job1",
        "name": "",
        "namespace": "space",
        "detached": False,
    }
    return p.CreatePlacementGroup(
        strategy=strategy, bundles=bundles, **{**values, **more}
    )


def cpus(*amounts: float) -> list[Vector]:
    return [from_user({"CPU": amount}) for amount in amounts]


def rooms(*amounts: float) -> list[Room]:
    return [
        Room(b"n%d" % number, from_user({"CPU": amount}), {})
        for number, amount in enumerate(amounts)
    ]


def group(bundles: list[Vector], strategy: str = "PACK", **more: Any) -> s.Group:
    return GroupTable().create(request(bundles, strategy, **more))[0]


amounts = st.lists(st.integers(1, 4), min_size=1, max_size=6)


@given(
    wanted=amounts,
    have=st.lists(st.integers(0, 6), max_size=5),
    strategy=st.sampled_from(p.STRATEGIES),
    placed=st.lists(st.integers(-1, 4), min_size=6, max_size=6),
)
def test_a_plan_fits_and_keeps_the_strategys_promise(
    wanted: list[int], have: list[int], strategy: str, placed: list[int]
) -> None:
    made = group(cpus(*wanted), strategy)
    if strategy != "STRICT_PACK":
        made.nodes = [b"" if n < 0 else b"n%d" % n for n in placed[: len(wanted)]]
        if strategy == "STRICT_SPREAD":
            seen = Counter(made.nodes)
            made.nodes = [n if seen[n] == 1 else b"" for n in made.nodes]
    places = plan(made, rooms(*have))
    if places is None:
        return
    assert set(places) == set(made.missing())
    left = {room.node_id: dict(room.available) for room in rooms(*have)}
    for index, node_id in places.items():
        take(left[node_id], made.request.bundles[index])
    assert all(units >= 0 for room in left.values() for units in room.values())
    nodes = [places.get(index, node) for index, node in enumerate(made.nodes)]
    if strategy == "STRICT_PACK":
        assert len(set(nodes)) == 1
    if strategy == "STRICT_SPREAD":
        assert len(set(nodes)) == len(nodes)


@given(wanted=amounts, have=st.lists(st.integers(0, 6), min_size=1, max_size=5))
def test_strict_strategies_find_a_plan_wherever_there_is_one(
    wanted: list[int], have: list[int]
) -> None:
    packed = plan(group(cpus(*wanted), "STRICT_PACK"), rooms(*have))
    assert (packed is not None) == (sum(wanted) <= max(have))
    spread = plan(group(cpus(*wanted), "STRICT_SPREAD"), rooms(*have))
    best = zip(sorted(wanted, reverse=True), sorted(have, reverse=True), strict=False)
    possible = len(wanted) <= len(have) and all(need <= has for need, has in best)
    assert (spread is not None) == possible


zones = st.sampled_from("abc")


@given(
    bundles=st.lists(st.tuples(st.integers(1, 3), zones), min_size=1, max_size=4),
    nodes=st.lists(st.tuples(st.integers(0, 6), zones), max_size=4),
    strategy=st.sampled_from(p.STRATEGIES),
    negated=st.booleans(),
)
def test_bundles_go_where_their_selectors_say_wherever_there_is_room(
    bundles: list[tuple[int, str]],
    nodes: list[tuple[int, str]],
    strategy: str,
    negated: bool,
) -> None:
    """One bundle alone finds a node whenever one of those that match has room."""
    mark = "!" if negated else ""
    selectors = [(("zone", mark + zone),) for _, zone in bundles]
    wanted = cpus(*(amount for amount, _ in bundles))
    there = [
        room._replace(labels={"zone": zone})
        for room, (_, zone) in zip(rooms(*(n for n, _ in nodes)), nodes, strict=True)
    ]
    labels = {room.node_id: room.labels["zone"] for room in there}
    places = plan(group(wanted, strategy, selectors=selectors), there)
    for index, node_id in (places or {}).items():
        assert (labels[node_id] == bundles[index][1]) is not negated
    alone = plan(group(wanted[:1], strategy, selectors=selectors[:1]), there)
    (amount, zone), *_ = bundles
    assert (alone is not None) is any(
        has >= amount and (own == zone) is not negated for has, own in nodes
    )


@given(wanted=amounts, have=st.lists(st.integers(1, 20), min_size=1, max_size=5))
def test_pack_takes_one_node_where_one_has_room(
    wanted: list[int], have: list[int]
) -> None:
    places = plan(group(cpus(*wanted), "PACK"), rooms(*have))
    if sum(wanted) <= max(have):
        assert places is not None and len(set(places.values())) == 1


def test_spread_takes_as_many_nodes_as_it_can() -> None:
    places = plan(group(cpus(1, 1, 1), "SPREAD"), rooms(8, 1, 8))
    assert places is not None and len(set(places.values())) == 3
    places = plan(group(cpus(1, 1, 1), "SPREAD"), rooms(8, 8))
    assert places is not None and sorted(Counter(places.values()).values()) == [1, 2]


def test_pack_goes_where_the_rest_of_its_group_is() -> None:
    made = group(cpus(1, 1))
    made.nodes = [b"n1", b""]
    assert plan(made, rooms(4, 4, 4)) == {1: b"n1"}


def test_custom_resources_decide_too() -> None:
    made = group([from_user({"tok": 1})], "STRICT_SPREAD")
    nodes = [
        Room(b"a", from_user({"CPU": 9}), {}),
        Room(b"b", from_user({"tok": 1}), {}),
    ]
    assert plan(made, nodes) == {0: b"b"}
    assert not fits(made.request.bundles[0], nodes[0].available)


def kinds(effects: list[s.Effect]) -> list[type]:
    return [type(effect) for effect in effects]


def test_a_group_is_created_once_and_its_name_is_free_after_removal() -> None:
    table = GroupTable()
    asked = request(cpus(1), name="x")
    made, effects = table.create(asked)
    assert kinds(effects) == [s.Tell] and table.create(asked) == (made, [])
    with pytest.raises(ValueError, match="already"):
        table.create(request(cpus(1), name="x"))
    table.create(request(cpus(1), name="x", namespace="other"))
    assert table.find("x", "space") is made
    table.remove(asked.group_id, "test")
    assert table.remove(asked.group_id, "again") == []
    with pytest.raises(ValueError, match="space"):
        table.find("x", "space")
    assert table.get(asked.group_id).state is GroupState.REMOVED


def test_a_removed_group_returns_what_was_reserved_and_ends_its_actors() -> None:
    table = GroupTable()
    made, _ = table.create(request(cpus(1, 1, 1)))
    places = {0: b"a", 1: b"b", 2: b"a"}
    table.placed(made, table.next_attempt(), places, {b"a", b"b"})
    assert made.state is GroupState.CREATED
    effects = table.remove(made.request.group_id, "test")
    assert kinds(effects) == [s.Tell, s.EndActors, s.Return, s.Return]
    returned = {e.node_id: e.indexes for e in effects if isinstance(e, s.Return)}
    assert returned == {b"a": (0, 2), b"b": (1,)}


def test_a_reservation_for_a_group_that_was_removed_meanwhile_is_undone() -> None:
    table = GroupTable()
    made, _ = table.create(request(cpus(1)))
    attempt = table.next_attempt()
    table.remove(made.request.group_id, "test")
    (effect,) = table.placed(made, attempt, {0: b"a"}, {b"a"})
    assert isinstance(effect, s.Return) and effect.attempt == attempt
    assert made.state is GroupState.REMOVED


def test_a_reservation_on_a_node_that_died_meanwhile_is_undone() -> None:
    table = GroupTable()
    made, _ = table.create(request(cpus(1, 1)))
    attempt = table.next_attempt()
    effects = table.placed(made, attempt, {0: b"a", 1: b"b"}, {b"a"})
    assert kinds(effects) == [s.Return, s.Return] and made.is_waiting


def test_only_the_bundles_of_a_dead_node_are_placed_anew() -> None:
    table = GroupTable()
    made, _ = table.create(request(cpus(1, 1), "STRICT_SPREAD"))
    table.placed(made, table.next_attempt(), {0: b"n0", 1: b"n1"}, {b"n0", b"n1"})
    assert kinds(table.node_gone(b"n1")) == [s.Tell]
    assert table.node_gone(b"n1") == []
    assert made.state is GroupState.RESCHEDULING and made.nodes == [b"n0", b""]
    assert plan(made, rooms(4)) is None
    places = plan(made, rooms(4, 0, 4))
    assert places == {1: b"n2"}
    table.placed(made, table.next_attempt(), places, {b"n0", b"n2"})
    assert made.state is GroupState.CREATED and made.attempts == [1, 2]


def test_groups_that_lost_bundles_come_before_new_ones() -> None:
    table = GroupTable()
    first, _ = table.create(request(cpus(1)))
    lost, _ = table.create(request(cpus(1, 2)))
    table.placed(lost, table.next_attempt(), {0: b"a", 1: b"b"}, {b"a", b"b"})
    table.node_gone(b"a")
    assert table.waiting() == [lost, first]
    assert table.demand() == [(from_user({"CPU": 1}), 2)]


def test_a_job_takes_its_groups_along_but_not_the_detached() -> None:
    table = GroupTable()
    mine, _ = table.create(request(cpus(1)))
    stays, _ = table.create(request(cpus(1), detached=True))
    others, _ = table.create(request(cpus(1), job_id=b"job2"))
    table.job_ended(b"job1")
    states = [made.state.name for made in (mine, stays, others)]
    assert states == ["REMOVED", "PENDING", "PENDING"]


def test_versions_grow_and_only_the_last_removed_are_kept() -> None:
    table = GroupTable()
    for _ in range(s.MAX_REMOVED + 10):
        made, _ = table.create(request(cpus(1)))
        before = made.row().version
        table.remove(made.request.group_id, "test")
        assert made.row().version > before
    assert len(table.groups) == s.MAX_REMOVED


def test_room_is_claimed_where_agents_keep_refusing_what_seems_free() -> None:
    """Halves of two GPUs look like a whole one."""
    gpu = from_user({"GPU": 1})
    node = NodeInfo(
        b"n", "", "", "", "", "", gpu, gpu, {}, True, False, "", 0, "", lent=gpu
    )

    async def run() -> None:
        tasks, asked = set[asyncio.Task[None]](), list[float]()

        async def call(
            node_id: bytes, method: str, request: Any, seconds: float
        ) -> Any:
            if method == "ReserveBundles":
                asked.append(request.wait_s)
                return p.BundlesReserved(bool(request.wait_s))

        desk = PlacementDesk(
            GroupTable(),
            save=lambda: None,
            alive=lambda: [node],
            call_agent=call,
            tell=lambda rows: None,
            tell_driver=lambda lines: None,
            spawn=lambda work: tasks.add(asyncio.ensure_future(work)),
            end_actors=lambda group_id, reason: None,
        )
        wanted = request([gpu])
        desk.create(wanted)
        row = await desk.wait(p.WaitPlacementGroup(wanted.group_id, 20.0))
        assert row.state == "CREATED"
        assert not any(asked[:-1]) and asked[-1] > 0 and len(asked) > 1
        await asyncio.gather(*tasks)

    asyncio.run(run())


@pytest.mark.parametrize(("cpus_free", "told"), [(0, False), (4, True)])
def test_the_driver_hears_of_a_group_that_no_nodes_could_hold(
    cpus_free: float, told: bool, monkeypatch: Any
) -> None:
    """But not of one that only waits for what others use."""
    monkeypatch.setattr(placement, "SAY_AFTER_S", 0.0)
    has, free = from_user({"CPU": 4, "node:a": 1}), from_user({"CPU": cpus_free})
    node = NodeInfo(b"n", "", "host", "", "", "", has, free, {}, True, False, "", 0, "")
    lines: list[tuple[bytes, list[str]]] = []

    async def run() -> None:
        tasks = set[asyncio.Task[None]]()
        desk = PlacementDesk(
            GroupTable(),
            save=lambda: None,
            alive=lambda: [node],
            call_agent=lambda *args: pytest.fail("nothing fits"),
            tell=lambda rows: None,
            tell_driver=lambda batch: lines.append((batch.job_id, batch.lines)),
            spawn=lambda work: tasks.add(asyncio.ensure_future(work)),
            end_actors=lambda group_id, reason: None,
        )
        wanted = request(cpus(99 if told else 3), name="big")
        desk.create(wanted)
        desk.wake()
        await desk.wait(p.WaitPlacementGroup(wanted.group_id, 0.01))
        desk.remove(wanted.group_id)
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert bool(lines) is told
    for job_id, (line,) in lines:
        assert job_id == b"job1" and "node:a" not in line
        for word in ("'big'", "{CPU: 99}", "PACK", "the largest has {CPU: 4} (host)"):
            assert word in line


def test_groups_whose_bundles_share_no_node_tell_how_many_they_wait_for() -> None:
    table = GroupTable()
    assert table.apart() == 0
    table.create(request(cpus(1, 1, 1, 1)))
    strict, _ = table.create(request(cpus(1, 1, 1), "STRICT_SPREAD"))
    assert table.apart() == 3
    places = {0: b"a", 1: b"b", 2: b"c"}
    table.placed(strict, table.next_attempt(), places, {b"a", b"b", b"c"})
    assert table.apart() == 0
