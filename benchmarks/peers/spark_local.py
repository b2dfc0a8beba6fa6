"""Spark in local mode, one partition a task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import SparkSession

from peers import Basic


class Peer(Basic):
    def start(self, workers: int) -> None:
        self._spark = (
            SparkSession.builder.master(f"local[{workers}]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.log.level", "ERROR")
            .getOrCreate()
        )

    def run(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        partitions = self._spark.sparkContext.parallelize(arguments, len(arguments))
        results: list[Any] = partitions.map(lambda args: function(*args)).collect()
        return results

    def one(self, function: Callable[..., Any], *args: Any) -> Any:
        return self.run(function, [args])[0]

    def stop(self) -> None:
        self._spark.stop()
