from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkray.head.state import nodes as n
from sparkray.head.state.nodes import NodeMachine, NodeState, NodeTable
from sparkray.protocol.control import NodeInfo, NodeReport


def info(node_id: bytes = b"n1", **given: Any) -> NodeInfo:
    values: dict[str, Any] = {
        "node_id": node_id, "host": "10.0.0.1", "host_name": "one", "flight": "",
        "agent": "10.0.0.1:1", "agent_socket": "/s", "total": {"CPU": 20_000},
        "available": {"CPU": 20_000}, "labels": {}, "alive": True, "is_head": False,
        "reason": "", "pid": 1, "version": "0",
    }  # fmt: skip
    return NodeInfo(**(values | given))


def report(cpus: int = 2, demand: Any = (), needed_by: str = "") -> NodeReport:
    free = {"CPU": cpus * 10_000}
    return NodeReport(b"n1", free, list(demand), 0, needed_by=needed_by)


EVENTS = {
    n.Registered: n.Registered(info(), 0.0),
    n.StreamOpened: n.StreamOpened(1, 0.0),
    n.Reported: n.Reported(report(), 0.0),
    n.StreamBroken: n.StreamBroken(1, 0.0),
    n.Gone: n.Gone("it ended"),
    n.Kept: n.Kept(0.0),
    n.Tick: n.Tick(0.0),
}
#: A dead node is refused before its machine is asked; reports come by a stream only.
IMPOSSIBLE = {
    (NodeState.DEAD, n.Registered),
    (NodeState.JOINING, n.Reported),
    (NodeState.EXPECTED, n.Reported),
}
PATHS: dict[NodeState, list[type]] = {
    NodeState.JOINING: [],
    NodeState.CONNECTED: [n.StreamOpened],
    NodeState.AWAY: [n.StreamOpened, n.StreamBroken],
    NodeState.DEAD: [n.Gone],
}


def expected() -> NodeTable:
    nodes = NodeTable(node_timeout_s=10.0, reconnect_s=2.0)
    nodes.restore([info(), info(b"n2", alive=False, reason="it fell")], 0.0)
    return nodes


def machine_in(state: NodeState) -> NodeMachine:
    if state is NodeState.EXPECTED:
        return expected()._nodes[b"n1"]
    machine = NodeMachine(info(), 0.0, node_timeout_s=10.0, reconnect_s=2.0)
    for kind in PATHS[state]:
        machine.handle(EVENTS[kind])
    assert machine.state is state
    return machine


@pytest.mark.parametrize(("state", "kind"), [*product(NodeState, EVENTS)])
def test_each_event_has_a_rule_or_is_impossible(state: NodeState, kind: type) -> None:
    machine = machine_in(state)
    if (state, kind) not in IMPOSSIBLE:
        machine.handle(EVENTS[kind])
        return
    with pytest.raises(n.InvalidTransition, match=state.name):
        machine.handle(EVENTS[kind])
    assert machine.state is state


def table() -> NodeTable:
    nodes = NodeTable(node_timeout_s=10.0, reconnect_s=2.0)
    nodes.register(info(), 0.0)
    nodes.handle(b"n1", n.StreamOpened(1, 0.0))
    return nodes


def test_a_silent_node_dies_after_the_timeout_and_not_before() -> None:
    nodes = table()
    nodes.handle(b"n1", n.Reported(report(), 5.0))
    assert nodes.tick(14.9) == []
    effects = nodes.tick(15.1)
    assert effects == [n.DeclareDead(b"n1", "no report for 10.1 s"), n.ViewChanged()]
    assert nodes.alive() == []
    [dead] = nodes.all()
    assert not dead.alive and dead.reason == "no report for 10.1 s"
    assert nodes.tick(100.0) == []


def test_a_pause_of_the_head_itself_is_no_silence_of_the_nodes() -> None:
    nodes = table()
    nodes.handle(b"n1", n.Reported(report(), 5.0))
    assert nodes.tick(14.0) == []
    assert nodes.tick(1000.0, paused_s=985.5) == []
    assert nodes.tick(1000.6) != []  # 10.1 s of silence while the head listened


def test_a_broken_stream_leaves_time_to_come_back() -> None:
    nodes = table()
    nodes.handle(b"n1", n.StreamBroken(1, 5.0))
    assert nodes.tick(6.9) == []
    nodes.handle(b"n1", n.StreamOpened(2, 6.9))
    assert nodes.tick(9.0) == []
    nodes.handle(b"n1", n.StreamBroken(2, 9.0))
    assert nodes.tick(11.1)[0] == n.DeclareDead(
        b"n1", "its connection broke and did not come back"
    )


def test_the_end_of_a_replaced_stream_means_nothing() -> None:
    nodes = table()
    nodes.handle(b"n1", n.StreamOpened(2, 1.0))
    nodes.handle(b"n1", n.StreamBroken(1, 1.0))
    assert nodes.state(b"n1") is NodeState.CONNECTED


def test_a_node_that_registers_and_never_connects_dies() -> None:
    nodes = NodeTable(node_timeout_s=10.0, reconnect_s=2.0)
    nodes.register(info(), 0.0)
    assert nodes.tick(1.9) == []
    assert nodes.tick(2.0) != []


def test_a_dead_node_may_not_come_back() -> None:
    nodes = table()
    nodes.handle(b"n1", n.Gone("its process ended"))
    with pytest.raises(ValueError, match="its process ended"):
        nodes.register(info(), 1.0)


def test_only_a_report_with_news_changes_the_view() -> None:
    nodes = table()
    assert nodes.handle(b"n1", n.Reported(report(2), 1.0)) == []
    assert nodes.handle(b"n1", n.Reported(report(1), 1.0)) == [n.ViewChanged()]
    assert nodes.alive()[0].available == {"CPU": 10_000}


def test_a_node_is_idle_from_the_first_report_that_nobody_needs_it() -> None:
    nodes = table()
    nodes.handle(b"n1", n.StreamOpened(1, 0.0))
    assert nodes.idle_s(1.0) == {}
    nodes.handle(b"n1", n.Reported(report(needed_by="a task"), 1.0))
    assert nodes.idle_s(1.0) == {}
    for now_s in (2.0, 3.0):
        nodes.handle(b"n1", n.Reported(report(), now_s))
    assert nodes.idle_s(5.0) == {b"n1": 3.0}
    nodes.handle(b"n1", n.Kept(5.0))
    assert nodes.idle_s(6.0) == {b"n1": 1.0}
    nodes.handle(b"n1", n.StreamBroken(1, 6.0))
    assert nodes.idle_s(6.5) == {}


def test_demand_of_equal_shape_is_added_up_over_living_nodes() -> None:
    nodes = table()
    nodes.register(info(b"n2"), 0.0)
    nodes.handle(b"n2", n.StreamOpened(2, 0.0))
    cpu, gpu = {"CPU": 10_000}, {"GPU": 10_000}
    nodes.handle(b"n1", n.Reported(report(demand=[(cpu, 2), (gpu, 1)]), 1.0))
    nodes.handle(b"n2", n.Reported(report(demand=[(cpu, 3)]), 1.0))
    assert nodes.demand() == [(cpu, 5), (gpu, 1)]
    nodes.handle(b"n2", n.Gone("ended"))
    assert nodes.demand() == [(cpu, 2), (gpu, 1)]


def test_only_so_many_dead_nodes_are_remembered() -> None:
    nodes = NodeTable(node_timeout_s=10.0, reconnect_s=2.0)
    for number in range(n.MAX_DEAD + 10):
        nodes.register(info(b"%d" % number), 0.0)
        nodes.handle(b"%d" % number, n.Gone("ended"))
    nodes.register(info(b"last"), 0.0)
    assert len(nodes.all()) == n.MAX_DEAD + 1
    assert nodes.get(b"0") is None
    assert [node.node_id for node in nodes.alive()] == [b"last"]


_steps = st.lists(
    st.tuples(
        st.sampled_from(["open", "break", "report", "tick", "gone"]), st.floats(0, 5)
    )
)


@given(_steps)
def test_a_node_dies_at_most_once_whatever_happens(
    steps: list[tuple[str, float]],
) -> None:
    nodes, now_s, stream, deaths = table(), 0.0, 1, 0
    for what, wait_s in steps:
        now_s += wait_s
        stream += what == "open"
        events = {
            "open": n.StreamOpened(stream, now_s),
            "break": n.StreamBroken(stream, now_s),
            "report": n.Reported(report(), now_s),
            "tick": n.Tick(now_s),
            "gone": n.Gone("ended"),
        }
        effects = nodes.handle(b"n1", events[what])
        deaths += sum(isinstance(effect, n.DeclareDead) for effect in effects)
    assert deaths == (nodes.state(b"n1") is NodeState.DEAD)
    assert bool(nodes.alive()) != bool(deaths)


def test_after_the_heads_death_nodes_have_the_timeout_to_come_back() -> None:
    nodes = expected()
    assert [node.node_id for node in nodes.alive()] == [b"n1"]
    assert nodes.alive()[0].available == {}
    assert nodes.tick(9.9) == []
    nodes.register(info(), 9.9)
    assert nodes.state(b"n1") is NodeState.JOINING and nodes.alive()[0].available
    late = expected()
    effects = late.tick(10.1)
    assert effects[0] == n.DeclareDead(b"n1", "it did not come back when the head did")
    assert late.changed == {b"n1"}


def test_a_node_that_died_under_an_earlier_head_stays_dead() -> None:
    with pytest.raises(ValueError, match="it fell"):
        expected().register(info(b"n2"), 1.0)
