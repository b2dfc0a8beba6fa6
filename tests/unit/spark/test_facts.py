"""What a driver learns of its Spark application, also where Spark refuses to tell."""

from types import SimpleNamespace
from typing import Any

import pytest

from sparkray.spark.launch import SparkFacts
from sparkray.spark.sizing import Occupancy


class Info:
    """What Spark's tracker tells of one executor; None: it refuses to."""

    def __init__(self, running: int | None) -> None:
        self._running = running

    def numRunningTasks(self) -> int:
        if self._running is None:
            raise RuntimeError("the gateway is guarded")
        return self._running


def facts_of(settings: dict[str, str], *running: int | None) -> SparkFacts:
    """Facts of an application whose tracker lists a driver, then executors."""
    infos = [Info(number) for number in running]
    tracker = SimpleNamespace(getExecutorInfos=lambda: infos)
    scala: Any = SimpleNamespace(statusTracker=lambda: tracker)
    context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: scala))
    conf = SimpleNamespace(get=lambda name, default: settings.get(name, default))
    return SparkFacts(SimpleNamespace(conf=conf, sparkContext=context))


CLUSTER = {"spark.master": "spark://host:7077", "spark.executor.cores": "2"}


@pytest.mark.parametrize(
    ("settings", "running", "executors", "occupancy"),
    [
        (CLUSTER, (0, 1, 2), 2, Occupancy(2, 3, 4)),
        ({"spark.master": "local[4]"}, (3,), 1, Occupancy(1, 3, 4)),
        ({"spark.master": "yarn"}, (0, 1), 1, Occupancy(1, 1)),
    ],
)
def test_executors_are_counted_without_the_driver(
    settings: dict[str, str],
    running: tuple[int, ...],
    executors: int,
    occupancy: Occupancy,
) -> None:
    facts = facts_of(settings, *running)
    assert facts.executors() == executors
    assert facts.occupancy() == occupancy


def test_a_start_goes_on_where_spark_refuses_to_tell_of_tasks() -> None:
    occupancy = facts_of(CLUSTER, 0, None).occupancy()
    assert occupancy.running_tasks is None
    assert str(occupancy) == "Spark has 1 executor"


@pytest.mark.parametrize(
    ("master", "most"), [("spark://host:7077", 2), ("yarn", None), ("k8s://a:1", None)]
)
def test_cores_max_limits_executors_only_where_spark_heeds_it(
    master: str, most: int | None
) -> None:
    settings = {"spark.cores.max": "4", "spark.executor.cores": "2"}
    limit = facts_of({"spark.master": master, **settings}).limit
    assert (limit and limit.executors) == most
