"""A sparkray cluster on a Spark application: started, kept whole, ended.

    driver process                      executors
      SparkCluster ── head daemon         one node each
        keeper thread ── Crew               started by a Spark job of its own
          as many as there should be?  ->   (`launch`, `executor`, `guard`)

`start_on_spark` starts the head beside the driver; `SparkCluster.wait_for_nodes` comes
back when the first nodes are there; from then on the keeper looks after them: `Crew`.
"""

from __future__ import annotations

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
from sparkray.protocol.control import NodeInfo
from sparkray.protocol.versions import own_versions
from sparkray.spark import sizing
from sparkray.spark.crew import Crew
from sparkray.spark.discovery import SLOTS_LABEL
from sparkray.spark.executor import NodeTask
from sparkray.spark.launch import Launcher, SparkFacts
from sparkray.spark.options import ClusterOptions
from sparkray.spark.scaling import Limits, Scaler
from sparkray.spark.telling import tell

_log = logging.getLogger("sparkray")
#: An application whose number of executors did not change for so long has them all.
SETTLED_S = 1.5
#: Pauses between looks at the cluster: while starting, and later.
LOOK_S = (0.03, 2.0)
#: And later where the number of nodes follows the demand.
LOOK_ELASTIC_S = 0.5
#: How long the Spark jobs of nodes may take to end by themselves at shutdown.
END_TIMEOUT_S = 3.0
#: How often a start that takes long says what it waits for.
SAY_S = 10.0


def start_on_spark(
    spark: Any,
    *,
    num_cpus: float | None = None,
    resources: Mapping[str, float] | None = None,
    object_store_memory: int | None = None,
    token: str | None = None,
) -> SparkCluster:
    """Start a head beside the driver and begin to start nodes on executors.

    Args:
        spark: a SparkSession, or `OnSpark`, one with more to say.
        num_cpus, resources, object_store_memory: of each node; see
            `sparkray.spark.start_cluster`.
        token: the cluster's secret, where the environment does not give it.

    Raises:
        SparkrayError: the head did not start, or Spark can never grant so many nodes.
        ValueError: the session is stopped.
    """
    options = spark.options if isinstance(spark, OnSpark) else ClusterOptions()
    facts = _facts_of(spark.spark if isinstance(spark, OnSpark) else spark)
    least = options.count.least
    if facts.limit is not None and facts.limit.executors < least:
        raise SparkrayError(sizing.too_few_allowed(least, facts.limit))
    timeout_s = options.start_timeout_s
    timeout_s = timeout_s or Settings.from_environment().spark_start_timeout_s
    deadline_s = time.monotonic() + timeout_s
    head = _start_head(facts.driver_address(), options, token, timeout_s)
    memory = {} if options.memory is None else {"memory": options.memory}
    try:
        task = NodeTask(
            address=head.node.head,
            token=head.node.token().hex(),
            app_id=facts.app_id,
            timeout_s=timeout_s,
            versions=own_versions(),
            waits=facts.dynamic,
            cores=facts.cores,
            task_cpus=facts.task_cpus,
            gpus=facts.gpus,
            task_gpus=facts.task_gpus,
            hold_slots=options.holds(dynamic=facts.dynamic),
            num_cpus=num_cpus,
            object_store_memory=object_store_memory,
            resources={**memory, **(resources or {})},
            spill_dirs=facts.conf("spark.local.dir"),
            worker_port_min=options.worker_port_min,
            worker_port_max=options.worker_port_max,
        )
        launcher = Launcher(facts, task, head.node.cluster_id)
        return SparkCluster(facts, head, launcher, options, deadline_s)
    except BaseException:
        head.stop()
        raise


def _start_head(
    host: str, options: ClusterOptions, token: str | None, timeout_s: float
) -> NodeProcess:
    secret = {} if token is None else {"SPARKRAY_TOKEN": token}
    return start_node(
        NodeOptions(
            head=True,
            host=host,
            port=options.head_port,
            num_cpus=options.driver_cpus,
            num_gpus=0,  # the executors' own, where they share this host
            resources={"memory": _memory_of_head(options.driver_cpus)},
            worker_port_min=options.worker_port_min,
            worker_port_max=options.worker_port_max,
            environment={**sizing.default_settings(os.environ), **secret},
        ),
        timeout_s=timeout_s,
    )


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


@dataclass(frozen=True)
class OnSpark:
    """A Spark session with options for `start_on_spark`; `init` takes it as one."""

    spark: Any
    options: ClusterOptions

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
        options: ClusterOptions,
        deadline_s: float,
    ) -> None:
        self.node: Node = head.node
        self._facts = facts
        self._head = head
        self._launcher = launcher
        self._count = options.count
        self._hold_slots = options.holds(dynamic=facts.dynamic)
        self._scaler = _scaler(options, facts)
        self._deadline_s = deadline_s
        self._crew: Crew | None = None
        self._stopping = threading.Event()
        self._keeper = threading.Thread(
            target=self._keep, name="sparkray-keeper", daemon=True
        )
        executors = facts.executors() or facts.expected or 1
        at_first = self._count.wanted(executors)
        for _ in range(self._scaler.target if self._scaler else at_first):
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
        crew = self._crew = Crew(
            head_call,  # of this session: `sparkray.nodes` would begin another
            self._facts,
            self._launcher,
            self._count,
            self._scaler,
            hold_slots=self._hold_slots,
            waits=self._facts.dynamic,
        )
        self._await(crew)
        crew.patient = True
        for warning in sorted({self._warning(node) for node in crew.nodes} - {""}):
            _log.warning("%s", warning)
        _log.info("%d nodes on Spark executors", len(crew.nodes))
        self._keeper.start()
        _running.add(self)

    def nodes_to_come(self) -> int:
        """Return by how many nodes the cluster could grow from what it has now."""
        if self._scaler is None or self._crew is None:
            return 0
        return self._scaler.to_come(len(self._crew.nodes))

    def stop(self) -> None:
        """End all nodes and their Spark jobs.  Repeatable."""
        self._stopping.set()
        _running.discard(self)
        tell(self._facts.spark, None, None)
        if self._crew is not None:
            self._crew.close()
        self._head.stop()
        self._launcher.stop(END_TIMEOUT_S)
        if self._keeper.ident is not None:
            self._keeper.join(END_TIMEOUT_S)

    def let_go(self) -> None:
        """Let the cluster live without this process, a forked child.  Repeatable."""
        self._stopping.set()
        _running.discard(self)
        self._head.let_go()

    def _await(self, crew: Crew) -> None:
        seen, changed_s, pause_s = -1, time.monotonic(), LOOK_S[0]
        said_s = changed_s
        while True:
            now_s = time.monotonic()
            executors = self._facts.executors() or 0
            if executors != seen:
                seen, changed_s = executors, now_s
            crew.look(executors)
            settled = self._scaler is not None or executors == self._facts.expected
            settled = settled or now_s > changed_s + SETTLED_S
            if settled and len(crew.nodes) >= crew.wanted(executors):
                return
            self._check(crew, executors, settled, now_s)
            failure, hopeless = self._launcher.failure()
            in_vain = settled and hopeless and not crew.starting
            if now_s > self._deadline_s or in_vain:
                text = self._waiting(crew, executors)
                text = f"{text}; {failure}" if failure else text
                _log.warning("not waiting longer: %s", text)
                return
            if now_s > said_s + SAY_S:
                said_s = now_s
                _log.info("waiting: %s", self._waiting(crew, executors))
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.2, 0.2)

    def _check(self, crew: Crew, executors: int, settled: bool, now_s: float) -> None:
        """Give up where waiting is of no use.

        Raises:
            SparkrayError: fewer nodes than asked for.
        """
        failure, hopeless = self._launcher.failure()
        nodes, least = len(crew.nodes), self._count.least
        fixed = not self._facts.dynamic and executors == self._facts.expected
        late = now_s > self._deadline_s
        short = nodes < least and (late or (hopeless and not crew.starting))
        if short or (fixed and settled and executors < least):
            text = sizing.too_few(least, executors, nodes, dynamic=self._facts.dynamic)
            if late:
                text = f"{text}; {self._waiting(crew, executors)}"
            raise SparkrayError(f"{text}; {failure}" if failure else text)

    def _waiting(self, crew: Crew, executors: int) -> str:
        """Say what is waited for: how many nodes are up, what Spark does."""
        wanted, occupancy = crew.wanted(executors), self._facts.occupancy()
        return sizing.waiting_for(wanted, len(crew.nodes), occupancy)

    def _warning(self, node: NodeInfo) -> str:
        return sizing.holding_warning(
            self._hold_slots,
            int(node.labels[SLOTS_LABEL]),
            dynamic=self._facts.dynamic,
        )

    def _keep(self) -> None:
        pause_s = LOOK_S[1] if self._scaler is None else LOOK_ELASTIC_S
        assert self._crew is not None
        while not self._stopping.wait(pause_s):
            try:
                self._crew.look(self._facts.executors() or 0)
            except (SparkrayError, OSError, KeyError, RuntimeError) as error:
                _log.debug("cannot look after the nodes now: %s", error)


#: The clusters that this process keeps, as a rule one.
_running: set[SparkCluster] = set()


def nodes_to_come() -> int:
    """Return by how many nodes the cluster of this process, if it is one that follows
    the demand, could grow from what it has now."""
    return sum(cluster.nodes_to_come() for cluster in list(_running))


def _scaler(options: ClusterOptions, facts: SparkFacts) -> Scaler | None:
    """Return who decides on the number of nodes, None if Spark's executors do."""
    if not options.is_elastic(dynamic=facts.dynamic):
        return None
    most = options.max_nodes
    if facts.limit is not None:
        most = (
            facts.limit.executors if most is None else min(most, facts.limit.executors)
        )
    return Scaler(Limits(options.count.least, most, options.idle_timeout_s))
