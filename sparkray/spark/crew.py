"""The nodes on Spark's executors: compares how many there are with how many there
should be, and starts or lets go what differs.

Who is there the head says, who is on the way the `Launcher`; `scaling` decides.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from sparkray.protocol.control import ClusterStatus, NodeInfo, StatusReport
from sparkray.protocol.draining import Drained, DrainNode
from sparkray.spark import sizing
from sparkray.spark.discovery import EXECUTOR_LABEL, LAUNCH_LABEL, SLOTS_LABEL
from sparkray.spark.launch import Launcher, SparkFacts
from sparkray.spark.scaling import Look, NodeUse, Pressure, Scaler

_log = logging.getLogger("sparkray")
#: Where Spark put a job onto an executor with a node, the next follows after this time.
TAKEN_PAUSE_S = 2.0
#: The Spark job of a node that left ends by itself within this time.
LEFT_WITHIN_S = 15.0


class Crew:
    """All nodes on executors.

    Args:
        head_call: asks the head, by name of the call and request.
        facts: what Spark tells.
        launcher: starts nodes.
        count: how many there should be; within it ``scaler`` decides if there is one.
        hold_slots: as given.
        waits: jobs that find a node on their executor keep the slot and wait.
    """

    def __init__(
        self,
        head_call: Callable[[str, Any], Any],
        facts: SparkFacts,
        launcher: Launcher,
        count: sizing.NodeCount,
        scaler: Scaler | None,
        *,
        hold_slots: bool | None,
        waits: bool,
    ) -> None:
        self._head_call, self._facts, self._launcher = head_call, facts, launcher
        self._count, self._scaler = count, scaler
        self._hold_slots, self._waits = hold_slots, waits
        self._pressure = Pressure()
        self._left: dict[int, float] = {}  #: jobs whose node leaves: since when
        self.patient = False  #: nobody waits for these nodes to come up
        self.nodes: list[NodeInfo] = []  #: that were there at the last look

    def wanted(self, executors: int) -> int:
        """Return how many nodes there should be, as far as is known now."""
        if self._scaler is not None:
            return self._scaler.target
        return self._count.wanted(executors)

    def look(self, executors: int) -> None:
        """Take one look and do what follows from it.

        Raises:
            SparkrayError: the head does not answer.
        """
        status: StatusReport = self._head_call("Status", ClusterStatus())
        self.nodes = [
            node
            for node in status.nodes
            if node.alive and EXECUTOR_LABEL in node.labels
        ]
        self._launcher.joined(_job(node) for node in self.nodes)
        waiting = self._waiting()
        target = self._count.wanted(executors)
        if self._scaler is not None:
            target = self._scale(self._scaler, status, executors, len(waiting))
        self._match(target, waiting)

    def close(self) -> None:
        """Start nothing any more, and end the jobs that are not nodes."""
        self._launcher.close()
        self._launcher.cancel(self._waiting())

    @property
    def starting(self) -> int:
        """How many jobs are on their way to be a node."""
        return len(self._waiting())

    def _waiting(self) -> frozenset[int]:
        """Return the jobs that are no node: not yet, or Spark runs them again."""
        late_s = time.monotonic() - LEFT_WITHIN_S
        self._left = {job: s for job, s in self._left.items() if s > late_s}
        there = {_job(node) for node in self.nodes}
        return self._launcher.running - there - self._left.keys()

    def _match(self, target: int, waiting: frozenset[int]) -> None:
        missing = target - len(self.nodes)
        slots = sum(_slots(node) - 1 for node in self.nodes) if self._waits else 0
        now_s = time.monotonic()
        others = missing > 0 and self._has_other_jobs()
        wanted = self._pressure.jobs(
            missing, len(self.nodes), slots, now_s, others=others
        )
        if wanted == 0:
            self._launcher.cancel(waiting)
        elif self._launcher.may_launch() and not (
            self.patient and self._launcher.found_taken(TAKEN_PAUSE_S)
        ):
            for _ in range(wanted - len(waiting)):
                self._launcher.launch()

    def _scale(
        self, scaler: Scaler, status: StatusReport, executors: int, waiting: int
    ) -> int:
        missing = max(0, scaler.target - len(self.nodes))
        step = scaler.look(
            Look(
                now_s=time.monotonic(),
                nodes=[_use(node, status) for node in self.nodes],
                starting=min(waiting, missing),
                demand=status.demand,
                apart=status.apart,
                with_stages=self._with_stages(executors),
            )
        )
        for node_id in step.drain:
            self._drain(scaler, node_id)
        if executors and not self._facts.dynamic:
            return min(scaler.target, max(executors, self._count.least))
        return scaler.target

    def _drain(self, scaler: Scaler, node_id: bytes) -> None:
        answer: Drained = self._head_call("DrainNode", DrainNode(node_id))
        if answer.needed_by:
            _log.debug("node %s stays: %s", node_id.hex()[:8], answer.needed_by)
            return
        scaler.left(node_id)
        for node in self.nodes:
            if node.node_id == node_id:
                self._left[_job(node)] = time.monotonic()
        self.nodes = [node for node in self.nodes if node.node_id != node_id]
        _log.info("a node left Spark: nobody needed it; %d remain", len(self.nodes))

    def _has_other_jobs(self) -> bool:
        active = self._facts.active_jobs()
        return active is None or active > len(self._launcher.running)

    def _with_stages(self, executors: int) -> int:
        """Return how many executors may run UDFs that look for a node of theirs.

        A node that holds the only slot of its executor shares it with no stage.
        """
        if any(
            _slots(node) == 1 and sizing.holds_slot(self._hold_slots, 1)
            for node in self.nodes
        ):
            return 0
        running = self._facts.occupancy().running_tasks or 0
        return executors if running > len(self._launcher.running) else 0


def _job(node: NodeInfo) -> int:
    return int(node.labels[LAUNCH_LABEL])


def _slots(node: NodeInfo) -> int:
    return int(node.labels[SLOTS_LABEL])


def _use(node: NodeInfo, status: StatusReport) -> NodeUse:
    idle_s = status.idle_s.get(node.node_id)
    return NodeUse(node.node_id, node.total, node.available, idle_s)
