"""sparkray on Spark: ``sparkray.init(spark)``, joining from inside a UDF, DataFrames.

The only part that knows pyspark, and it imports that where it is used: an extra.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkray import Context
    from sparkray.spark.batching import map_batches as map_batches
    from sparkray.spark.dataframes import from_dataframe as from_dataframe
    from sparkray.spark.dataframes import release as release
    from sparkray.spark.dataframes import to_dataframe as to_dataframe

#: Names that are loaded on first use, and where they live.
_HOMES = {
    "from_dataframe": "sparkray.spark.dataframes",
    "map_batches": "sparkray.spark.batching",
    "release": "sparkray.spark.dataframes",
    "to_dataframe": "sparkray.spark.dataframes",
}

__all__ = [
    "from_dataframe",
    "map_batches",
    "release",
    "start_cluster",
    "stop_cluster",
    "to_dataframe",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sparkray.spark' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def start_cluster(
    spark: Any,
    min_nodes: int | None = None,
    max_nodes: int | None = None,
    cpus_per_node: float | None = None,
    memory: int | None = None,
    object_store_memory: int | None = None,
    *,
    num_nodes: int | None = None,
    resources: Mapping[str, float] | None = None,
    idle_timeout_s: float = 60.0,
    hold_slots: bool | None = None,
    driver_cpus: float = 0,
    head_port: int | None = None,
    worker_port_min: int | None = None,
    worker_port_max: int | None = None,
    start_timeout_s: float | None = None,
    namespace: str | None = None,
    runtime_env: Mapping[str, Any] | None = None,
    log_to_driver: bool = True,
    ignore_reinit_error: bool = False,
    logging_level: int | str = logging.INFO,
    token: str | None = None,
) -> Context:
    """Start a cluster on Spark's executors and join it.

    A head starts beside the driver, and nodes on executors, each by a Spark job of its
    own; returns when ``min_nodes`` of them are ready.  The number of nodes then follows
    the work: more while tasks, actors or bundles wait, as many as ``max_nodes``; nodes
    that nobody needs for ``idle_timeout_s`` leave, and Spark may take their executors
    back.  A node that is lost is replaced.  All ends with `stop_cluster`, with this
    process, and with the Spark application.

    Args:
        spark: a `SparkSession`, classic or of Spark Connect; the latter does not tell
            how many executors there are, so give numbers of nodes with it.
        min_nodes: so many at least; default 1.
        max_nodes: so many at most.  Default: with dynamic allocation as many as Spark
            gives; without it every executor carries a node all the time.
        cpus_per_node: CPUs that tasks may take on each node; default: the executor's
            cores.
        memory: bytes that tasks may ask for on each node (``memory=``); default: the
            executor's share of its host.
        object_store_memory: bytes for objects on each node; default: 30 % of the
            executor's share of its host.
        num_nodes: so many nodes all the time, no more and no fewer; not together with
            ``min_nodes`` or ``max_nodes``.
        resources: custom resources of each node.
        idle_timeout_s: how long nobody needs a node before it leaves, in seconds.
            Needed is one with a lease, an actor, a bundle, an attached UDF, or an
            object that would be lost.
        hold_slots: whether each node holds one Spark slot of its executor for as long
            as it lives.  Default: with dynamic allocation and a number of nodes, yes;
            else where the executor has more than one.
        driver_cpus: CPUs for tasks on the driver's host.
        head_port, worker_port_min, worker_port_max: ports, for firewalls; default: any
            that is free.
        start_timeout_s: how long starting may take; default: the setting
            ``spark_start_timeout_s``.
        namespace, runtime_env, log_to_driver, ignore_reinit_error, logging_level,
            token: as for `sparkray.init`.

    Raises:
        SparkrayError: fewer nodes than asked for; says how many, and why.
        RuntimeError: a session with other arguments is running.
        TypeError, ValueError: a wrong option, or the Spark session is stopped.
    """
    import sparkray
    from sparkray.spark.options import ClusterOptions
    from sparkray.spark.session import OnSpark

    options = ClusterOptions(
        num_nodes=num_nodes,
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        memory=memory,
        idle_timeout_s=idle_timeout_s,
        hold_slots=hold_slots,
        driver_cpus=driver_cpus,
        head_port=head_port,
        worker_port_min=worker_port_min,
        worker_port_max=worker_port_max,
        start_timeout_s=start_timeout_s,
    )
    return sparkray.init(
        OnSpark(spark, options),
        num_cpus=cpus_per_node,
        resources=resources,
        object_store_memory=object_store_memory,
        namespace=namespace,
        runtime_env=runtime_env,
        log_to_driver=log_to_driver,
        ignore_reinit_error=ignore_reinit_error,
        logging_level=logging_level,
        token=token,
    )


def stop_cluster() -> None:
    """End the cluster that `start_cluster`, or ``sparkray.init(spark)``, has started.

    Its nodes and their Spark jobs end, and all slots are free.  Same as
    `sparkray.shutdown`; harmless when there is none.
    """
    import sparkray

    sparkray.shutdown()


def own_options() -> frozenset[str]:
    """Return the options that only `start_cluster` has, `sparkray.init` has not."""
    import sparkray

    mine = inspect.signature(start_cluster).parameters.keys()
    return frozenset(mine - inspect.signature(sparkray.init).parameters.keys())
