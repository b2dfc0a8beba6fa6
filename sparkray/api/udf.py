"""Which cluster and job a Spark Python worker belongs to, from task to task.

The driver tells its Spark tasks where it is (`sparkray.spark.discovery`).  Spark gives
its Python workers to other tasks later on, of another notebook perhaps: the session of
such a process is left as soon as its present task was told another place.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from sparkray.api import join
from sparkray.launch.discovery import Node, same_address


@dataclass(frozen=True)
class Told:
    """Where the driver of a Spark task is, as it told; "" where it did not."""

    address: str
    job: str


def task() -> Any:
    """Return Spark's context of the task that runs here; None outside its workers."""
    module = sys.modules.get("pyspark.taskcontext")
    return module.TaskContext.get() if module is not None else None


def told() -> Told:
    """Return what the task that runs here was told."""
    context = task()
    if context is None:
        return Told("", "")
    from sparkray.spark import discovery

    address = context.getLocalProperty(discovery.ADDRESS_PROPERTY) or ""
    return Told(address, context.getLocalProperty(discovery.JOB_PROPERTY) or "")


class Membership:
    """That this process has joined where a Spark task of it was told to.

    Asked at each use of sparkray: what a task was told is read once.
    """

    def __init__(self) -> None:
        self.told = told()
        self._attempt = _attempt()

    def is_outdated(self) -> bool:
        """Tell whether the present task belongs elsewhere than the one that joined.

        One that was told nothing takes the cluster that is there.
        """
        attempt = _attempt()
        if attempt == self._attempt:
            return False
        now = told()
        if now.address and now != self.told:
            return True
        self._attempt = attempt
        return False


def _attempt() -> int | None:
    """Return the number of the task that runs here, as no other of its application."""
    context = task()
    return None if context is None else context.taskAttemptId()


def find(address: str | None) -> tuple[Node, bytes]:
    """Return the node that a UDF joins, and the job; b"" for one of its own.

    It never starts a node.

    Raises:
        ConnectionError: there is none.
    """
    from sparkray.spark import discovery

    if address in (None, "auto", "local"):
        found = discovery.find_agent_for_udf()
        if found is None:
            raise ConnectionError(discovery.no_agent_message())
        node = Node(**found)
    else:
        node = join.named(address, "address").node
    driver = told()
    known = bool(driver.address) and same_address(node.head, driver.address)
    return node, bytes.fromhex(driver.job) if known else b""


def tell_spark(address: str, job: str) -> Any:
    """Tell the tasks of this driver's Spark session, if it has one, and return that."""
    if "pyspark" not in sys.modules:
        return None
    from sparkray.spark import telling

    spark = telling.running_session()
    if spark is not None:
        telling.tell(spark, address, job)
    return spark


def untell_spark(spark: Any) -> None:
    """Take back what `tell_spark` told; ``spark`` is what it returned."""
    if spark is not None:
        from sparkray.spark import telling

        telling.tell(spark, None, None)
