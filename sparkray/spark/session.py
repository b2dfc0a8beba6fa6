"""A sparkray cluster on a Spark application: started, kept whole, ended.

    driver process                      executors
      SparkCluster ── head daemon         one node each
        keeper thread                       started by a Spark job of its own
          executors without a node?  ->     (`launch`, `executor`, `guard`)

`start_on_spark` starts the head beside the driver; `SparkCluster.wait_for_nodes` comes
back when the executors have their nodes; from then on the keeper gives one to every
executor that Spark brings up later.
"""

from __future__ import annotations

import inspect
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sparkray.config import Settings
from sparkray.exceptions import SparkrayError
from sparkray.launch.discovery import Node
from sparkray.launch.process import NodeOptions, NodeProcess, start_node
from sparkray.protocol.control import ListNodes, NodeList
from sparkray.spark import sizing
from sparkray.spark.discovery import EXECUTOR_LABEL, SLOTS_LABEL
from sparkray.spark.executor import NodeTask
from sparkray.spark.launch import Launcher, SparkFacts
from sparkray.spark.telling import tell

_log = logging.getLogger("sparkray")
#: An application whose number of executors did not change for so long has them all.
SETTLED_S = 1.5
#: Pauses between looks at the cluster: while starting, and later.
LOOK_S = (0.03, 2.0)
#: How long the Spark jobs of nodes may take to end by themselves at shutdown.
END_TIMEOUT_S = 3.0
#: How often a start that takes long says what it waits for.
SAY_S = 10.0


def start_on_spark(
    spark: Any,
    *,
    num_nodes: int | None = None,
    min_nodes: int | None = None,
    max_nodes: int | None = None,
    num_cpus: float | None = None,
    resources: Mapping[str, float] | None = None,
    object_store_memory: int | None = None,
    driver_cpus: float = 0,
    hold_slots: bool | None = None,
    head_port: int | None = None,
    worker_port_min: int | None = None,
    worker_port_max: int | None = None,
    token: str | None = None,
    start_timeout_s: float | None = None,
) -> SparkCluster:
    """Start a head beside the driver and begin to start a node on each executor.

    Args:
        spark: a SparkSession; one of Spark Connect does not tell how many executors
            there are.
        num_nodes: how many executors shall carry a node: these, no more.  Default: all.
        min_nodes, max_nodes: the same as a range; later executors count too.
        num_cpus, resources: of each node; default: the executor's cores.
        object_store_memory: bytes of each node; default: the executor's share of 30 %.
        driver_cpus: CPUs for tasks on the driver's host.
        hold_slots: whether each node holds one Spark slot of its executor for as long
            as it lives.  Default: where it has more than one.
        head_port, worker_port_min, worker_port_max: ports; default: any that is free.
        token: the cluster's secret, where the environment does not give it.
        start_timeout_s: how long starting may take; default: the setting
            ``spark_start_timeout_s``.

    Raises:
        SparkrayError: the head did not start, or Spark can never grant so many nodes.
        TypeError, ValueError: a wrong argument; the session is stopped.
    """
    if isinstance(spark, OnSpark):
        given = {
            "num_cpus": num_cpus,
            "resources": resources,
            "object_store_memory": object_store_memory,
            "token": token,
        }
        return start_on_spark(spark.spark, **{**given, **spark.options})
    count = sizing.count_nodes(num_nodes, min_nodes, max_nodes)
    facts = _facts_of(spark)
    if facts.limit is not None and facts.limit.executors < count.least:
        raise SparkrayError(sizing.too_few_allowed(count.least, facts.limit))
    timeout_s = start_timeout_s or Settings.from_environment().spark_start_timeout_s
    deadline_s = time.monotonic() + timeout_s
    head = start_node(
        NodeOptions(
            head=True,
            host=facts.driver_address(),
            port=head_port,
            num_cpus=driver_cpus,
            num_gpus=0,  # the executors' own, where they share this host
            resources={"memory": _memory_of_head(driver_cpus)},
            worker_port_min=worker_port_min,
            worker_port_max=worker_port_max,
            environment={} if token is None else {"SPARKRAY_TOKEN": token},
        ),
        timeout_s=timeout_s,
    )
    try:
        task = NodeTask(
            address=head.node.head,
            token=head.node.token().hex(),
            app_id=facts.app_id,
            timeout_s=timeout_s,
            cores=facts.cores,
            task_cpus=facts.task_cpus,
            gpus=facts.gpus,
            task_gpus=facts.task_gpus,
            hold_slots=hold_slots,
            num_cpus=num_cpus,
            object_store_memory=object_store_memory,
            resources=dict(resources or {}),
            spill_dirs=facts.conf("spark.local.dir"),
            worker_port_min=worker_port_min,
            worker_port_max=worker_port_max,
        )
        launcher = Launcher(facts, task, head.node.cluster_id)
        return SparkCluster(facts, head, launcher, count, hold_slots, deadline_s)
    except BaseException:
        head.stop()
        raise


def _memory_of_head(driver_cpus: float) -> int:
    import psutil

    total = psutil.virtual_memory().total
    return sizing.memory_of_head(driver_cpus, os.cpu_count() or 1, total)


def _facts_of(spark: Any) -> SparkFacts:
    """Read a session's settings.

    Raises:
        ValueError: it is stopped.
    """
    facts = SparkFacts(spark)
    if facts.is_stopped():
        raise ValueError(
            "this SparkSession is stopped: make another with"
            " SparkSession.builder.getOrCreate(), and give init that one"
        )
    return facts


def launch_options() -> frozenset[str]:
    """Return the options that only a cluster on Spark has."""
    names = inspect.signature(start_on_spark).parameters.keys()
    general = {"spark", "num_cpus", "resources", "object_store_memory", "token"}
    return frozenset(names - general)


@dataclass(frozen=True)
class OnSpark:
    """A Spark session with options for `start_on_spark`; `init` takes it as one."""

    spark: Any
    options: Mapping[str, Any]

    @property
    def sparkContext(self) -> Any:
        """By this name `init` knows a session."""
        return getattr(self.spark, "sparkContext", None)


class SparkCluster:
    """The nodes of one Spark application, from the driver's side.

    Attributes:
        node: the node beside the driver, with the head.
    """

    def __init__(
        self,
        facts: SparkFacts,
        head: NodeProcess,
        launcher: Launcher,
        count: sizing.NodeCount,
        hold_slots: bool | None,
        deadline_s: float,
    ) -> None:
        self.node: Node = head.node
        self._facts = facts
        self._head = head
        self._launcher = launcher
        self._count = count
        self._hold_slots = hold_slots
        self._deadline_s = deadline_s
        self._head_call: Callable[[str, Any], Any] | None = None
        self._stopping = threading.Event()
        self._keeper = threading.Thread(
            target=self._keep, name="sparkray-keeper", daemon=True
        )
        for _ in range(count.wanted(facts.executors() or facts.expected or 1)):
            launcher.launch()

    def wait_for_nodes(self, job_id: str, head_call: Callable[[str, Any], Any]) -> None:
        """Wait until the executors have their nodes; then UDFs can join.

        The driver's runtime is connected by now.

        Args:
            job_id: the driver's job, which UDFs join, in hexadecimal.
            head_call: asks the head, by name of the call and request.

        Raises:
            SparkrayError: fewer than asked for; says how many, and why.
        """
        tell(self._facts.spark, self.node.head, job_id)
        # bound to this session: `sparkray.nodes` would begin another after its end
        self._head_call = head_call
        nodes = self._await()
        for warning in sorted({self._warning(labels) for labels in nodes} - {""}):
            _log.warning("%s", warning)
        _log.info("%d nodes on Spark executors", len(nodes))
        self._keeper.start()

    def stop(self) -> None:
        """End all nodes and their Spark jobs.  Repeatable."""
        self._stopping.set()
        tell(self._facts.spark, None, None)
        self._head.stop()
        self._launcher.stop(END_TIMEOUT_S)
        if self._keeper.ident is not None:
            self._keeper.join(END_TIMEOUT_S)

    def let_go(self) -> None:
        """Let the cluster live without this process, a forked child.  Repeatable."""
        self._stopping.set()
        self._head.let_go()

    def _await(self) -> list[dict[str, str]]:
        seen, changed_s, pause_s = -1, time.monotonic(), LOOK_S[0]
        said_s = changed_s
        while True:
            now_s = time.monotonic()
            executors = self._facts.executors() or 0
            if executors != seen:
                seen, changed_s = executors, now_s
            nodes = self._fill(executors)
            settled = executors == self._facts.expected or now_s > changed_s + SETTLED_S
            if settled and len(nodes) >= self._count.wanted(executors):
                return nodes
            self._check(nodes, executors, settled, now_s)
            if now_s > self._deadline_s:
                _log.warning("not waiting longer: %s", self._waiting(nodes, executors))
                return nodes
            if now_s > said_s + SAY_S:
                said_s = now_s
                _log.info("waiting: %s", self._waiting(nodes, executors))
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.2, 0.2)

    def _check(
        self, nodes: list[dict[str, str]], executors: int, settled: bool, now_s: float
    ) -> None:
        """Give up where waiting is of no use.

        Raises:
            SparkrayError: fewer nodes than asked for.
        """
        failure, hopeless = self._launcher.failure()
        least = self._count.least
        fixed = not self._facts.dynamic and executors == self._facts.expected
        late = now_s > self._deadline_s
        short = len(nodes) < least and (late or hopeless)
        if short or (fixed and settled and executors < least):
            text = sizing.too_few(
                least, executors, len(nodes), dynamic=self._facts.dynamic
            )
            if late:
                text = f"{text}; {self._waiting(nodes, executors)}"
            raise SparkrayError(f"{text}; {failure}" if failure else text)

    def _waiting(self, nodes: list[dict[str, str]], executors: int) -> str:
        """Say what is waited for: how many nodes are up, what Spark does."""
        wanted = self._count.wanted(executors)
        return sizing.waiting_for(wanted, len(nodes), self._facts.occupancy())

    def _fill(self, executors: int) -> list[dict[str, str]]:
        """Start what is missing; return the labels of the nodes that are there."""
        nodes = self._nodes()
        starting = self._launcher.running - self._holding(nodes)
        missing = self._count.wanted(executors) - len(nodes) - max(0, starting)
        for _ in range(missing):
            self._launcher.launch()
        return nodes

    def _holding(self, nodes: list[dict[str, str]]) -> int:
        slots = [int(labels[SLOTS_LABEL]) for labels in nodes]
        return sum(sizing.holds_slot(self._hold_slots, number) for number in slots)

    def _nodes(self) -> list[dict[str, str]]:
        assert self._head_call is not None
        answer: NodeList = self._head_call("ListNodes", ListNodes())
        return [
            node.labels
            for node in answer.nodes
            if node.alive and EXECUTOR_LABEL in node.labels
        ]

    def _warning(self, labels: dict[str, str]) -> str:
        return sizing.holding_warning(
            self._hold_slots, int(labels[SLOTS_LABEL]), dynamic=self._facts.dynamic
        )

    def _keep(self) -> None:
        while not self._stopping.wait(LOOK_S[1]):
            try:
                self._fill(self._facts.executors() or 0)
            except (SparkrayError, OSError, RuntimeError) as error:
                _log.debug("cannot look after the nodes now: %s", error)
