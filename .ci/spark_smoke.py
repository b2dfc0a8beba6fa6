"""The least that has to work on every supported Spark, from an installed wheel."""

import importlib.metadata
import os
import sys
import tempfile
import warnings

import numpy as np
import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.functions import pandas_udf

import sparkray


class Unheard(Exception):
    pass


@sparkray.remote
def square(x):
    return x * x


@sparkray.remote
def branch(n):
    return sum(sparkray.get([square.remote(i) for i in range(n)]))


@sparkray.remote
def fails():
    raise Unheard("at the bottom")


def start_spark():
    """Start Spark with two executors; what it says goes into a file."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    warnings.simplefilter("ignore")
    return (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .config("spark.task.maxFailures", "1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )


def check_udfs(spark):
    table = sparkray.put(np.arange(100_000))
    two = spark.range(2, numPartitions=2)

    def grouped(rows):
        rows["x"] = sparkray.get(branch.remote(10)) + sparkray.get(table)[-1]
        return rows

    found = two.groupBy("id").applyInPandas(grouped, "id long, x long").toPandas()
    assert list(found["x"]) == [285 + 99_999] * 2, found

    def batches(given):
        for batch in given:
            assert sparkray.get(square.remote(3)) == 9
            yield batch

    assert two.mapInArrow(batches, "id long").count() == 2

    @pandas_udf("long")
    def scalar(ids: pd.Series) -> pd.Series:
        return pd.Series(sparkray.get([square.remote(int(i)) for i in ids]))

    assert [row[0] for row in two.select(scalar("id")).collect()] == [0, 1]

    def failing(rows):
        return sparkray.get(fails.remote())

    try:
        two.groupBy("id").applyInPandas(failing, "id long").collect()
    except Exception as error:
        assert "Unheard" in str(error) and "in fails" in str(error), error
    else:
        raise AssertionError("the task's error did not arrive")


def main():
    os.chdir(tempfile.mkdtemp())
    spark = start_spark()
    sparkray.init(spark, logging_level="WARNING")
    assert len(sparkray.nodes()) == 3
    assert sparkray.get(branch.remote(10)) == 285
    check_udfs(spark)
    sparkray.shutdown()
    spark.stop()
    versions = [
        f"{name} {importlib.metadata.version(name)}" for name in ("pyspark", "pandas")
    ]
    print(
        "works on Python", ".".join(map(str, sys.version_info[:3])), "with", *versions
    )


if __name__ == "__main__":
    main()
