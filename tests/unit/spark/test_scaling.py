"""Decisions on the size of an elastic cluster."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkray.resources import UNIT, Vector, fits, from_user
from sparkray.spark.scaling import (
    GROW_AFTER_S,
    PRESS_FOR_S,
    REST_S,
    Limits,
    Look,
    NodeUse,
    Pressure,
    Scaler,
    nodes_for,
)

IDLE_S = 60.0
SHAPE = from_user({"CPU": 4, "memory": 1000})
ONE_CPU = from_user({"CPU": 1})


def node(name: bytes, free: float = 4, idle_s: float | None = None) -> NodeUse:
    return NodeUse(name, SHAPE, {**SHAPE, "CPU": int(free * UNIT)}, idle_s)


def full(number: int) -> list[NodeUse]:
    return [node(b"%d" % index, free=0) for index in range(number)]


def scaler(least: int = 1, most: int | None = 5) -> Scaler:
    return Scaler(Limits(least, most, IDLE_S))


def seen_for(
    scaling: Scaler, nodes: Sequence[NodeUse], waits: int, *, from_s: float = 0.0
) -> int:
    """Show the same for long enough to be acted on; return the target."""
    demand = [(ONE_CPU, waits)] if waits else []
    scaling.look(Look(from_s, nodes, demand=demand))
    step = scaling.look(Look(from_s + GROW_AFTER_S, nodes, demand=demand))
    return step.target


def test_a_cluster_begins_with_its_least_number_of_nodes() -> None:
    assert scaler(least=2).look(Look(0.0, [])).target == 2


@pytest.mark.parametrize(
    ("most", "to_come"), [(5, 3), (2, 0), (1, 0), (None, 4), (100, 4)]
)
def test_a_cluster_tells_by_how_many_nodes_it_could_grow(
    most: int | None, to_come: int
) -> None:
    assert scaler(most=most).to_come(2) == to_come


def test_it_grows_by_as_many_nodes_as_the_waiting_requests_fill() -> None:
    assert seen_for(scaler(), full(1), waits=4) == 2
    assert seen_for(scaler(), full(1), waits=5) == 3
    assert seen_for(scaler(), full(1), waits=500) == 5
    assert seen_for(scaler(most=None), full(1), waits=400) == 101


def test_demand_that_is_soon_met_starts_nothing() -> None:
    scaling, demand = scaler(), [(ONE_CPU, 8)]
    scaling.look(Look(0.0, full(1), demand=demand))
    step = scaling.look(Look(GROW_AFTER_S / 2, full(1), demand=demand))
    assert step.target == 1
    scaling.look(Look(GROW_AFTER_S * 0.8, full(1)))
    step = scaling.look(Look(GROW_AFTER_S * 1.2, full(1), demand=demand))
    assert step.target == 1


def test_what_is_free_or_on_its_way_is_filled_first() -> None:
    assert seen_for(scaler(), [node(b"a", free=3)], waits=3) == 1
    scaling = scaler()
    for now_s in (0.0, GROW_AFTER_S, 2 * GROW_AFTER_S):
        look = Look(now_s, full(1), starting=1, demand=[(ONE_CPU, 4)])
        step = scaling.look(look)
    assert step.target == 1  # the one that starts will do


def test_what_no_node_could_serve_starts_none() -> None:
    scaling, huge = scaler(), [(from_user({"CPU": 64}), 3), (from_user({"tpu": 1}), 1)]
    for now_s in (0.0, GROW_AFTER_S):
        step = scaling.look(Look(now_s, full(1), demand=huge))
    assert step.target == 1


def test_bundles_that_share_no_node_ask_for_one_each() -> None:
    scaling = scaler()
    for now_s in (0.0, GROW_AFTER_S):
        step = scaling.look(Look(now_s, [node(b"a")], apart=3))
    assert step.target == 3


def test_executors_with_stages_of_sparks_own_get_a_node_each() -> None:
    scaling = scaler(most=3)
    assert scaling.look(Look(0.0, [node(b"a")], with_stages=2)).target == 1
    assert scaling.look(Look(1.0, [node(b"a")], with_stages=2)).target == 2
    assert scaling.look(Look(2.0, [node(b"a")], with_stages=9)).target == 3


def test_the_longest_idle_nodes_leave_down_to_the_least_number() -> None:
    nodes = [
        node(b"a", idle_s=IDLE_S),
        node(b"b", idle_s=IDLE_S + 9),
        node(b"c", idle_s=IDLE_S - 1),
        node(b"d"),
    ]
    assert scaler(least=1).look(Look(0.0, nodes)).drain == (b"b", b"a")
    assert scaler(least=3).look(Look(0.0, nodes)).drain == (b"b",)
    assert scaler(least=4).look(Look(0.0, nodes)).drain == ()


@pytest.mark.parametrize(
    "more",
    [
        {"demand": [(ONE_CPU, 99)]},
        {"demand": [(ONE_CPU, 1)]},  # it is about to find its way
        {"starting": 1},
        {"with_stages": 2},
        {"apart": 2},
    ],
)
def test_nobody_leaves_while_there_is_something_to_do(more: dict[str, int]) -> None:
    nodes = [node(b"a", idle_s=IDLE_S), node(b"b", idle_s=IDLE_S)]
    assert scaler().look(Look(0.0, nodes, **more)).drain == ()


def test_a_node_that_left_is_not_replaced_and_one_that_was_lost_is() -> None:
    scaling = scaler()
    assert seen_for(scaling, full(2), waits=4) == 3
    three = [node(b"%d" % index, idle_s=IDLE_S) for index in range(3)]
    step = scaling.look(Look(70.0, three))
    assert step.drain == (b"0", b"1")
    scaling.left(b"0")
    assert scaling.look(Look(70.5, three[1:])).target == 2
    assert scaling.look(Look(71.0, three[2:])).target == 2  # lost


def test_nodes_that_spark_has_no_executor_for_are_not_wanted_for_ever() -> None:
    scaling = scaler()
    assert seen_for(scaling, full(1), waits=8) == 3
    quiet = Look(2.0, full(1), starting=2)
    assert scaling.look(quiet).target == 3
    quiet = Look(1.0 + IDLE_S, full(1), starting=2)
    assert scaling.look(quiet).target == 1


def test_jobs_press_harder_until_a_node_comes_and_rest_where_none_does() -> None:
    pressure = Pressure()
    assert [pressure.jobs(2, 1, 9, float(s)) for s in range(4)] == [2, 4, 8, 11]
    assert pressure.jobs(1, 2, 9, 4.0) == 1
    assert pressure.jobs(0, 3, 9, 5.0) == 0
    assert pressure.jobs(1, 3, 9, 6.0) == 1
    assert pressure.jobs(1, 3, 9, 6.1 + PRESS_FOR_S) == 0
    assert pressure.jobs(1, 3, 9, 6.1 + PRESS_FOR_S + REST_S) > 0
    alone = Pressure()
    late_s = PRESS_FOR_S + 1
    assert [alone.jobs(1, 1, 3, s, others=False) for s in (0.0, late_s)] == [1, 2]
    assert Pressure().jobs(2, 0, 0, 100.0) == 2  # nothing to leave to Spark


SMALL = st.fixed_dictionaries(
    {"CPU": st.integers(0, 5)}, optional={"memory": st.integers(0, 1200)}
)
DEMAND = st.lists(st.tuples(SMALL.map(from_user), st.integers(1, 20)), max_size=4)
ROOMS = st.lists(
    st.integers(0, 4).map(lambda cpus: from_user({"CPU": cpus, "memory": 500})),
    max_size=3,
)


@given(DEMAND, ROOMS)
def test_new_nodes_are_enough_and_none_is_empty(
    demand: list[tuple[Vector, int]], rooms: list[Vector]
) -> None:
    new = nodes_for(demand, rooms, SHAPE)
    servable = [(needs, count) for needs, count in demand if fits(needs, SHAPE)]
    assert new <= sum(count for _, count in servable)
    for name in SHAPE:
        wanted = sum(needs.get(name, 0) * count for needs, count in servable)
        free = sum(room.get(name, 0) for room in rooms) + new * SHAPE[name]
        assert wanted <= free
    more_room = [*rooms, *(dict(SHAPE) for _ in range(sum(c for _, c in demand)))]
    assert nodes_for(demand, more_room, SHAPE) == 0


LOOKS = st.lists(
    st.tuples(
        st.integers(0, 7),  # nodes
        st.integers(0, 3),  # starting
        st.integers(0, 30),  # waiting
        st.lists(st.one_of(st.none(), st.floats(0, 200)), min_size=7, max_size=7),
        st.floats(0, 40),  # seconds passed
        st.integers(0, 6),  # executors with stages
    ),
    max_size=12,
)


@given(st.integers(1, 3), st.one_of(st.none(), st.integers(3, 6)), LOOKS)
def test_whatever_happens_the_limits_hold_and_only_idle_nodes_leave(
    least: int, most: int | None, looks: list[tuple[int, int, int, list, float, int]]
) -> None:
    scaling, now_s = scaler(least, most), 0.0
    for count, starting, waiting, idle, passed_s, stages in looks:
        now_s += passed_s
        nodes = [node(b"%d" % i, idle_s=idle[i]) for i in range(count)]
        demand = [(ONE_CPU, waiting)] if waiting else []
        step = scaling.look(Look(now_s, nodes, starting, demand, 0, stages))
        assert least <= step.target <= (most or 1000)
        known = {n.node_id: n.idle_s or 0.0 for n in nodes}
        assert all(known[node_id] >= IDLE_S for node_id in step.drain)
        assert len(set(step.drain)) == len(step.drain) <= max(0, count - least)
        for node_id in step.drain:
            scaling.left(node_id)
        assert scaling.target >= least


@given(st.integers(0, 60), st.integers(1, 8))
def test_a_steady_demand_is_met_and_then_all_is_given_back(
    waiting: int, most: int
) -> None:
    scaling, nodes, now_s = scaler(1, most), 1, 0.0
    for _ in range(6):
        now_s += GROW_AFTER_S
        left = max(0, waiting - 4 * nodes)
        demand = [(ONE_CPU, left)] if left else []
        nodes = scaling.look(Look(now_s, full(nodes), demand=demand)).target
    assert nodes == min(most, max(1, -(-waiting // 4)))
    for _ in range(2):
        now_s += IDLE_S
        idle = [node(b"%d" % index, idle_s=IDLE_S) for index in range(nodes)]
        step = scaling.look(Look(now_s, idle))
        for node_id in step.drain:
            scaling.left(node_id)
        nodes -= len(step.drain)
    assert nodes == scaling.target == 1
