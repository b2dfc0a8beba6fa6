"""A crew between a head and a launcher that only take notes."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from sparkray.protocol.control import ClusterStatus, NodeInfo, StatusReport
from sparkray.protocol.draining import Drained, DrainNode
from sparkray.resources import from_user
from sparkray.spark import crew as crew_
from sparkray.spark.crew import Crew
from sparkray.spark.scaling import Limits, Scaler
from sparkray.spark.sizing import NodeCount, Occupancy

CPUS = from_user({"CPU": 2})
IDLE_S = 60.0


class Stage:
    """What the crew sees, and what it does."""

    def __init__(self, *, slots: int = 1, running_tasks: int | None = None) -> None:
        self.slots = slots
        self.nodes: dict[int, NodeInfo] = {}
        self.demand: list[tuple[dict[str, int], int]] = []
        self.idle_s: dict[bytes, float] = {}
        self.needed: dict[bytes, str] = {}
        self.running: frozenset[int] = frozenset()
        self.taken = False
        self.joined_: set[int] = set()
        self.pausing = False
        self.cancelled: set[int] = set()
        self.facts: Any = SimpleNamespace(
            dynamic=True,
            occupancy=lambda: Occupancy(2, running_tasks),
            active_jobs=lambda: None,
        )

    def add(self, job: int, *, held: bool = True) -> None:
        """A job's node joins."""
        labels = {
            "spark.executor": str(job),
            "spark.slots": str(self.slots),
            "spark.launch": str(job),
        }
        free = {} if not self.idle_s else CPUS
        self.nodes[job] = NodeInfo(
            b"%d" % job,
            "h",
            "h",
            "",
            "",
            "",
            CPUS,
            free,
            labels,
            True,
            False,
            "",
            1,
            "",
        )
        self.running = self.running | {job} if held else self.running - {job}

    def head_call(self, method: str, request: Any) -> Any:
        if isinstance(request, ClusterStatus):
            nodes = list(self.nodes.values())
            return StatusReport(b"c", "", "", 1.0, nodes, [], self.demand, self.idle_s)
        assert isinstance(request, DrainNode)
        return Drained(self.needed.get(request.node_id, ""))

    def launch(self) -> None:
        self.running |= {max(self.running | self.nodes.keys(), default=0) + 1}

    def cancel(self, numbers: frozenset[int]) -> None:
        self.cancelled |= numbers

    def close(self) -> None:
        self.launch = lambda: None  # type: ignore[method-assign]

    def joined(self, numbers: Iterable[int]) -> None:
        self.joined_ |= set(numbers)

    def may_launch(self) -> bool:
        return not self.pausing

    def found_taken(self, within_s: float) -> bool:
        return self.taken

    def crew(self, count: NodeCount, scaler: Scaler | None = None, **more: Any) -> Crew:
        given = {"hold_slots": True, "waits": True, **more}
        launcher: Any = self
        return Crew(self.head_call, self.facts, launcher, count, scaler, **given)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    clock = SimpleNamespace(now_s=1000.0)
    monkeypatch.setattr(crew_.time, "monotonic", lambda: clock.now_s)
    return clock


def elastic(least: int = 1, most: int = 4) -> tuple[NodeCount, Scaler]:
    return NodeCount(least, most), Scaler(Limits(least, most, IDLE_S))


def test_as_many_jobs_are_started_as_nodes_are_missing() -> None:
    stage = Stage()
    crew = stage.crew(NodeCount(3, 3))
    crew.look(3)
    assert stage.running == {1, 2, 3}
    stage.add(1)
    crew.look(3)
    assert stage.running == {1, 2, 3} and not stage.cancelled


def test_nothing_is_started_in_the_pause_after_a_failure() -> None:
    stage = Stage()
    crew = stage.crew(NodeCount(2, 2))
    stage.add(1)
    stage.pausing = True
    crew.look(2)
    assert stage.running == {1} == stage.joined_ and crew.starting == 0
    stage.pausing = False
    crew.look(2)
    assert stage.running == {1, 2} and crew.starting == 1


def test_a_node_that_holds_no_slot_needs_no_job() -> None:
    stage = Stage()
    crew = stage.crew(NodeCount(1, None))
    stage.add(1, held=False)
    crew.look(1)
    assert not stage.running
    crew.look(2)
    assert stage.running == {2}


def test_a_lost_node_is_replaced_by_the_job_that_spark_runs_again_or_by_another() -> (
    None
):
    stage = Stage()
    crew = stage.crew(NodeCount(2, 2))
    stage.add(1)
    stage.add(2)
    crew.look(2)
    del stage.nodes[2]
    crew.look(2)
    assert stage.running == {1, 2}  # Spark runs job 2 again
    stage.running = frozenset({1})
    crew.look(2)
    assert stage.running == {1, 2}


def test_demand_brings_more_jobs_the_longer_no_node_comes(clock: Any) -> None:
    stage = Stage(slots=4)
    crew = stage.crew(*elastic())
    stage.add(1)
    stage.demand = [(CPUS, 1)]
    seen = []
    for _ in range(5):
        crew.look(1)
        seen.append(len(stage.running) - 1)
        clock.now_s += 1.0
    assert seen == [0, 1, 2, 4, 4]  # one for the node, at most three keep slots
    stage.add(5)
    crew.look(2)
    assert stage.cancelled == {2, 3, 4}


def test_jobs_that_get_no_executor_leave_the_slots_to_spark_now_and_then(
    clock: Any,
) -> None:
    stage = Stage(slots=4)
    crew = stage.crew(*elastic())
    stage.add(1)
    stage.demand = [(CPUS, 1)]
    for _ in range(150):
        crew.look(1)
        clock.now_s += 1.0
    assert stage.cancelled == stage.running - {1} != frozenset()


def test_idle_nodes_are_asked_to_leave_and_their_jobs_end_by_themselves(
    clock: Any,
) -> None:
    stage = Stage()
    crew = stage.crew(*elastic(least=1))
    stage.idle_s = {b"2": IDLE_S, b"3": IDLE_S + 1}
    stage.needed = {b"3": "1 object of its workers"}
    for job in (1, 2, 3):
        stage.add(job)
    crew.look(3)
    assert [node.node_id for node in crew.nodes] == [b"1", b"3"]
    del stage.nodes[2]
    crew.look(3)
    assert not stage.cancelled and stage.running == {1, 2, 3}


def test_a_spark_stage_gets_nodes_on_all_executors_within_the_limit(
    clock: Any,
) -> None:
    stage = Stage(slots=2, running_tasks=9)
    crew = stage.crew(*elastic(most=3))
    stage.add(1)
    crew.look(8)
    clock.now_s += 1.0
    crew.look(8)
    assert crew.wanted(8) == 3
    alone = Stage(slots=1, running_tasks=9)
    crew = alone.crew(*elastic(most=3))
    alone.add(1)
    crew.look(8)
    clock.now_s += 1.0
    crew.look(8)
    assert crew.wanted(8) == 1  # a node there would leave the stage no slot


def test_without_dynamic_allocation_there_is_one_node_an_executor_at_most(
    clock: Any,
) -> None:
    stage = Stage(slots=2)
    stage.facts.dynamic = False
    crew = stage.crew(*elastic(), waits=False)
    stage.add(1)
    stage.demand = [(CPUS, 50)]
    for _ in range(4):
        crew.look(2)
        clock.now_s += 1.0
    assert len(stage.running) == 2
    crew.patient = stage.taken = True
    stage.running = frozenset({1})
    crew.look(2)
    assert stage.running == {1}


def test_a_crew_that_is_closed_starts_nothing_and_ends_what_is_no_node() -> None:
    stage = Stage()
    crew = stage.crew(NodeCount(3, 3))
    crew.look(3)
    stage.add(2)
    crew.look(3)
    crew.close()
    assert stage.cancelled == {1, 3}
