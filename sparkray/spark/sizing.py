"""How many nodes, how large, and whether they may hold a Spark slot.  Pure.

Words: an *executor* has cores; a Spark task takes ``spark.task.cpus`` of them, so an
executor has ``cores // task_cpus`` *slots*.  A sparkray node on an executor either
holds one slot (its Spark task runs as long as the node does) or none (the task starts
the node and ends; the node is tied to the executor's process).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparkray.words import counted

#: Of the memory that is a node's share of its host, so much is for objects.
OBJECT_STORE_FRACTION = 0.3
#: And of what is free in /dev/shm at most so much.
SHM_FRACTION = 0.8

#: How long a task waits for a node that could run it, where Spark may have to bring up
#: an executor first: longer than elsewhere.
INFEASIBLE_TIMEOUT_S = 60.0
_INFEASIBLE = "SPARKRAY_INFEASIBLE_TIMEOUT_S"

#: The setting that limits dynamic allocation.
MAX_EXECUTORS = "spark.dynamicAllocation.maxExecutors"

_LOCAL = re.compile(r"local(?:\[(?P<cores>[0-9]+|\*)(?:,[0-9]+)?\])?$")
_LOCAL_CLUSTER = re.compile(
    r"local-cluster\[\s*(?P<workers>[0-9]+)\s*,\s*(?P<cores>[0-9]+)\s*,\s*[0-9]+\s*\]$"
)


@dataclass(frozen=True)
class Master:
    """What the master's address alone says of executors; None where it is silent."""

    executors: int | None
    cores: int | None


def read_master(address: str, host_cpus: int) -> Master:
    """Read ``local[4]`` and ``local-cluster[2,1,1024]``; others say nothing."""
    if found := _LOCAL_CLUSTER.match(address):
        return Master(int(found["workers"]), int(found["cores"]))
    if found := _LOCAL.match(address):
        cores = found["cores"] or "1"
        return Master(1, host_cpus if cores == "*" else int(cores))
    return Master(None, None)


@dataclass(frozen=True)
class ExecutorCommand:
    """What an executor's own command line tells, on every cluster manager alike."""

    executor_id: str = "driver"
    host: str = ""
    cores: int | None = None
    app_id: str = ""


def read_executor_command(arguments: Sequence[str]) -> ExecutorCommand:
    """Read the command line of an executor's JVM.

    A JVM without these arguments is the driver's own, as in local mode.
    """
    given = dict(itertools.pairwise(arguments))
    cores = given.get("--cores", "")
    return ExecutorCommand(
        executor_id=given.get("--executor-id", "driver"),
        host=given.get("--hostname", ""),
        cores=int(cores) if cores.isdecimal() else None,
        app_id=given.get("--app-id", ""),
    )


def cores_of_executor(arguments: Sequence[str]) -> int:
    """Return the cores of the executor with this command line; 0 if it is none."""
    if not any(name.endswith("ExecutorBackend") for name in arguments):
        return 0
    return read_executor_command(arguments).cores or 1


def memory_of_head(driver_cpus: float, host_cpus: int, memory_bytes: int) -> int:
    """Return what the driver's host lends to tasks: the part that its CPUs are."""
    part = min(1.0, driver_cpus / max(1, host_cpus))
    return int(memory_bytes * (1 - OBJECT_STORE_FRACTION) * part)


@dataclass(frozen=True)
class NodeCount:
    """How many executors shall carry a node."""

    least: int  #: `init` waits for so many, and fails without
    most: int | None  #: None: every executor, later ones too

    def wanted(self, executors: int) -> int:
        """Return how many there should be now that Spark has so many executors."""
        wanted = max(executors, self.least)
        return wanted if self.most is None else min(wanted, self.most)


def count_nodes(
    num_nodes: int | None, min_nodes: int | None, max_nodes: int | None
) -> NodeCount:
    """Turn the options as given into one count.

    Raises:
        TypeError: a number that is none.
        ValueError: not positive, or at odds with one another.
    """
    for name, value in (
        ("num_nodes", num_nodes),
        ("min_nodes", min_nodes),
        ("max_nodes", max_nodes),
    ):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be an integer, not {value!r}")
        if value < 1:
            raise ValueError(f"{name} must be 1 or more, not {value}")
    if num_nodes is not None:
        if min_nodes is not None or max_nodes is not None:
            raise ValueError("give num_nodes, or min_nodes and max_nodes, not both")
        return NodeCount(num_nodes, num_nodes)
    if min_nodes is not None and max_nodes is not None and min_nodes > max_nodes:
        raise ValueError(f"min_nodes={min_nodes} is more than max_nodes={max_nodes}")
    return NodeCount(min_nodes or 1, max_nodes)


@dataclass(frozen=True)
class Limit:
    """How many executors an application can ever have, and by which setting."""

    executors: int
    setting: str


def most_executors(
    master: str,
    known: int | None,
    *,
    dynamic: bool,
    dynamic_max: int | None,
    cores_max: int | None,
    executor_cores: int | None,
) -> Limit | None:
    """Return the smallest limit of the application's executors; None if nothing tells.

    Args:
        master: its address; ``known`` is the number of executors that it says.
        dynamic: whether dynamic allocation is on; ``dynamic_max`` is its limit.
        cores_max: of the whole application, with ``executor_cores`` for each.  Only
            Spark's own cluster manager (``spark://``) heeds it.
    """
    limits: list[Limit] = []
    if known is not None:
        limits.append(Limit(known, f"spark.master={master}"))
    if dynamic and dynamic_max is not None:
        limits.append(Limit(dynamic_max, MAX_EXECUTORS))
    if master.startswith("spark://") and cores_max and executor_cores:
        text = f"spark.cores.max={cores_max} with spark.executor.cores={executor_cores}"
        limits.append(Limit(cores_max // executor_cores, text))
    return min(limits, key=lambda limit: limit.executors, default=None)


@dataclass(frozen=True)
class Occupancy:
    """What Spark does now, as far as it tells."""

    executors: int
    running_tasks: int | None = None
    slots: int | None = None  #: of all executors together

    def __str__(self) -> str:
        executors = counted(self.executors, "executor")
        if self.running_tasks is None:
            return f"Spark has {executors}"
        if self.slots is None:
            return (
                f"Spark has {executors} and runs {counted(self.running_tasks, 'task')}"
            )
        free = max(0, self.slots - self.running_tasks)
        return f"Spark has {executors}, and {free} of {self.slots} slots are free"


def waiting_for(wanted: int, nodes: int, spark: Occupancy) -> str:
    """Say what a start waits for."""
    return f"{nodes} of {wanted} nodes on Spark executors are up; {spark}"


def too_few_allowed(least: int, limit: Limit) -> str:
    """Say why there can never be as many nodes as were asked for, and what to do."""
    fewer = f"ask for at most {limit.executors}, or " if limit.executors else ""
    return (
        f"asked for {counted(least, 'node')}, but Spark's settings allow"
        f" {counted(limit.executors, 'executor')} to carry one each ({limit.setting}):"
        f" {fewer}change that setting"
    )


def too_few(least: int, executors: int, nodes: int, *, dynamic: bool) -> str:
    """Say why fewer nodes came up than were asked for, and what to do."""
    if executors < least:
        more = MAX_EXECUTORS if dynamic else "spark.executor.instances"
        return (
            f"asked for {counted(least, 'node')}, but Spark has"
            f" {counted(executors, 'executor')} to carry one"
            f" each: ask for at most {executors}, or give Spark more executors ({more})"
        )
    return (
        f"asked for {counted(least, 'node')}, and only {nodes} came up on Spark's"
        f" {counted(executors, 'executor')}: other Spark stages may occupy all"
        " slots, or Python starts slowly there (start_timeout_s, or"
        " SPARKRAY_SPARK_START_TIMEOUT_S)"
    )


def slots_of(cores: int, task_cpus: int, gpus: float = 0, task_gpus: float = 0) -> int:
    """Return how many Spark tasks an executor runs at a time.

    Args:
        gpus, task_gpus: what an executor has of them and a task takes; 0: unknown.
    """
    slots = cores // max(1, task_cpus)
    if gpus and task_gpus:
        slots = min(slots, int(gpus / task_gpus))
    return max(1, slots)


def holds_slot(asked: bool | None, slots: int) -> bool:
    """Decide if a node's Spark task runs as long as the node.

    By default it does where another slot is left for Spark's own stages, and does not
    where it would take the only one.
    """
    return slots > 1 if asked is None else asked


def holding_warning(asked: bool | None, slots: int, *, dynamic: bool) -> str:
    """Say what to know of a node that holds a slot, or none; "" if nothing."""
    hold = holds_slot(asked, slots)
    if hold and slots == 1 and not dynamic:
        return (
            "hold_slots=True takes the only slot of an executor: Spark stages, UDFs"
            " too, will wait until sparkray is shut down"
        )
    if dynamic and not hold:
        return (
            "the nodes hold no Spark slot, and dynamic allocation takes executors away"
            " that run no Spark task for spark.dynamicAllocation.executorIdleTimeout:"
            " hold_slots=True keeps them"
        )
    return ""


def default_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of settings whose defaults are others on Spark."""
    if _INFEASIBLE in environment:
        return {}
    return {_INFEASIBLE: str(INFEASIBLE_TIMEOUT_S)}


@dataclass(frozen=True)
class Share:
    """A node's part of its host."""

    memory_bytes: int
    object_store_bytes: int


def share_of_host(
    cores: float,
    host_cpus: int,
    host_memory_bytes: int,
    shm_free_bytes: int,
    *,
    neighbours: float = 0,
    with_head: bool = False,
) -> Share:
    """Give an executor's node the part of memory that it has of the processors.

    All nodes of a host together so have no more than the host.

    Args:
        neighbours: cores of the other executors on the host, who may together have
            more than it has processors.
        with_head: whether the head's node is on the host too, with its object store.
    """
    part = cores / max(1, host_cpus, cores + neighbours)
    if with_head:
        part *= 1 - OBJECT_STORE_FRACTION
    memory = int(host_memory_bytes * part)
    objects = int(memory * OBJECT_STORE_FRACTION)
    room = int(shm_free_bytes * part * SHM_FRACTION)
    return Share(memory - objects, min(objects, room) if room else objects)
