"""Which node a UDF joins: its own executor's, never another application's.

    <temp_dir>/x<pid of executor>/<cluster>-<node>/agent.json    sparkray.init(spark)
    <temp_dir>/<cluster>-<node>/agent.json                       the init script

pyspark is only ever looked up among the modules that are loaded: whoever has not loaded
it does not run inside one of its Python workers.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sparkray.launch import discovery
from sparkray.launch.discovery import Node
from sparkray.spark import guard, sizing

#: The Spark local property that tells tasks which cluster their driver is in.
ADDRESS_PROPERTY = "sparkray.address"
#: And this one which job.
JOB_PROPERTY = "sparkray.job"
#: A UDF waits for so long for the node of an executor that is new.
WAIT_FOR_NODE_S = 20.0
_LOOK_S = 0.1
#: Labels of the nodes that Spark tasks started.
EXECUTOR_LABEL = "spark.executor"
APP_LABEL = "spark.app"
SLOTS_LABEL = "spark.slots"
LAUNCH_LABEL = "spark.launch"


def in_spark_task() -> bool:
    """Tell whether this process is (forked from) a Python worker of Spark."""
    return _task_context() is not None


def executor_process() -> Any:
    """Return the executor's JVM as a `psutil.Process`; None if none is above us."""
    import psutil

    for parent in psutil.Process().parents():
        if parent.name() == "java":
            return parent
    return None


def find_agent_for_udf() -> dict[str, Any] | None:
    """Return the discovery file of the node that a UDF in this process shall join.

    Looks for a node of the own executor, then of another executor of the same Spark
    application on this host, then for the one shared cluster of this host (the init
    script's).  Where several clusters qualify, the Spark local property
    ``sparkray.address`` of the driver's thread decides, then ``SPARKRAY_ADDRESS``, then
    age: the newest.  Where the driver has a cluster, the node of an executor that is
    new may be on its way: waits for it.

    Returns:
        the content of its ``agent.json``; None if this host has no such node.
    """
    context, deadline_s = _task_context(), time.monotonic() + WAIT_FOR_NODE_S
    comes = context is not None and context.getLocalProperty(ADDRESS_PROPERTY)
    while True:
        found = _find_agent()
        if found is not None or not comes or time.monotonic() > deadline_s:
            return found
        time.sleep(_LOOK_S)


def _find_agent() -> dict[str, Any] | None:
    address = _wanted_address()
    for nodes in (_own_executors(), _same_application(), _shared()):
        fitting = discovery.with_head(nodes, address) if address else nodes
        if fitting:
            return dataclasses.asdict(fitting[-1])
    return None


def no_agent_message() -> str:
    """Say why a UDF found no node, and what to do."""
    address = _wanted_address()
    of = f" of the cluster at {address}" if address else ""
    return (
        f"no sparkray node{of} runs on this executor's host {os.uname().nodename}, and"
        " a Spark worker never starts a cluster of its own: call sparkray.init(spark)"
        " on the driver before the action that runs this function, or install the init"
        " script"
    )


def _task_context() -> Any:
    module = sys.modules.get("pyspark.taskcontext")
    return None if module is None else module.TaskContext.get()


def _wanted_address() -> str:
    context = _task_context()
    told = context.getLocalProperty(ADDRESS_PROPERTY) if context is not None else None
    return told or os.environ.get("SPARKRAY_ADDRESS", "")


def _own_executors() -> list[Node]:
    jvm = executor_process()
    return [] if jvm is None else _in_folders([guard.executor_folder(jvm.pid)])


def _same_application() -> list[Node]:
    jvm = executor_process()
    app_id = sizing.read_executor_command(jvm.cmdline()).app_id if jvm else ""
    if not app_id:
        return []
    return _in_folders(
        folder for folder in guard.executor_folders() if _app_of(folder) == app_id
    )


def _shared() -> list[Node]:
    clusters = discovery.shared_clusters(discovery.nodes_on_this_host())
    return clusters if len(clusters) == 1 or _wanted_address() else []


def _in_folders(folders: Iterable[Path]) -> list[Node]:
    found = [
        node for folder in folders for node in discovery.nodes_on_this_host(folder)
    ]
    return sorted(found, key=_written_unix_s)


def _app_of(folder: Path) -> str:
    try:
        return (folder / guard.APP_FILE).read_text()
    except OSError:
        return ""


def _written_unix_s(node: Node) -> float:
    try:
        return os.stat(node.token_file).st_mtime
    except OSError:
        return 0.0
