#!/usr/bin/env python3
"""Measure DataFrame exchange with Spark beside Spark's own ways; print the table.

    python benchmarks/dataframes.py [--rows 1000000] [--rounds 3]

A frame of 20 columns (8 doubles, 8 longs, 4 texts) goes out of Spark by
`from_dataframe`, beside `toPandas` (with Arrow) and `toArrow`, and into Spark by
`to_dataframe`, beside `createDataFrame` of pandas data (with Arrow); each is then
computed into Spark's "noop" sink.  Two executors of one core each on this machine, all
ways in turn, medians.  Besides: how many bytes of results came to the driver.

Wants pyspark, pandas and a Java runtime in the Python that runs it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import cloudpickle
from pyspark.sql import SparkSession

import sparkray
from sparkray.spark import dataframes, from_dataframe, to_dataframe

PARTITIONS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = start_spark()
    try:
        sparkray.init(spark)
        measure(spark, options.rows, options.rounds)
    finally:
        sparkray.shutdown()
        spark.stop()


def start_spark() -> SparkSession:
    return (
        SparkSession.builder.master("local-cluster[2,1,2048]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.memory", "3g")
        .config("spark.driver.maxResultSize", "0")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .getOrCreate()
    )


def measure(spark: Any, rows: int, rounds: int) -> None:
    columns = [f"rand({n}) as d{n}" for n in range(8)]
    columns += [f"id * {n + 1} as l{n}" for n in range(8)]
    columns += [f"concat('text ', id % {10 ** (n + 2)}) as s{n}" for n in range(4)]
    frame = spark.range(0, rows, 1, PARTITIONS).selectExpr(*columns).cache()
    frame.count()
    pandas = frame.toPandas()
    refs = from_dataframe(frame)
    size_bytes = sum(table.nbytes for table in sparkray.get(refs))

    ways: dict[str, Callable[[], Any]] = {
        "from_dataframe": lambda: from_dataframe(frame),
        "toPandas": frame.toPandas,
        "to_dataframe": lambda: consume(to_dataframe(refs, spark)),
        "createDataFrame": lambda: consume(spark.createDataFrame(pandas)),
    }
    if hasattr(frame, "toArrow"):
        ways["toArrow"] = frame.toArrow
    times: dict[str, list[float]] = {name: [] for name in ways}
    results: dict[str, int] = {}
    for _ in range(rounds):
        for name, way in ways.items():
            before, begin = result_bytes(spark), time.perf_counter()
            way()
            times[name].append(time.perf_counter() - begin)
            results[name] = result_bytes(spark) - before
    results["to_dataframe"] += len(cloudpickle.dumps(reader_of(refs)))
    results["createDataFrame"] += int(pandas.memory_usage(index=False).sum())
    report(rows, size_bytes, times, results)


def consume(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def reader_of(refs: Any) -> Any:
    """Return what `to_dataframe` sends to executors."""
    schema = dataframes.read_schema(sparkray.get(refs[0]))
    groups = tuple(cloudpickle.dumps([dataframes.Loan(ref)]) for ref in refs)
    return dataframes.PartitionReader(groups, schema, explicit=False)


def result_bytes(spark: Any) -> int:
    """Return how large the results of all Spark tasks were that came to the driver."""
    context = spark.sparkContext
    nothing = context._gateway.new_array(context._jvm.double, 0)
    tasks = context._jvm.java.util.ArrayList()
    store = context._jsc.sc().statusStore()
    stages = store.stageList(None, False, False, nothing, tasks)
    return sum(stages.apply(n).resultSize() for n in range(stages.size()))


def report(
    rows: int,
    size_bytes: int,
    times: dict[str, list[float]],
    results: dict[str, int],
) -> None:
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"\n{rows:,} rows x 20 columns, {size_bytes / 1e6:.0f} MB; load {load}")
    print(f"{'':16} {'s':>7} {'MB/s':>7} {'bytes by the driver':>20}")
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    for name, median in medians.items():
        rate = size_bytes / 1e6 / median
        print(f"{name:16} {median:7.2f} {rate:7.0f} {results[name]:20,}")
    for one, other in (
        ("toPandas", "from_dataframe"),
        ("toArrow", "from_dataframe"),
        ("createDataFrame", "to_dataframe"),
    ):
        if one in medians:
            print(f"{one} / {other}: {medians[one] / medians[other]:.1f}")


if __name__ == "__main__":
    main()
