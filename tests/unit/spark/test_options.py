import inspect
from typing import Any

import pytest

import sparkray
from sparkray.spark import own_options, start_cluster
from sparkray.spark.options import IDLE_TIMEOUT_S, ClusterOptions


def test_the_number_of_nodes_follows_the_demand_within_limits_or_as_spark_does() -> (
    None
):
    everything = ClusterOptions()
    assert everything.is_elastic(dynamic=True)
    assert not everything.is_elastic(dynamic=False)
    ranged = ClusterOptions(min_nodes=1, max_nodes=3)
    assert ranged.is_elastic(dynamic=True) and ranged.is_elastic(dynamic=False)
    assert not ClusterOptions(num_nodes=2).is_elastic(dynamic=True)


def test_promised_nodes_hold_slots_where_spark_takes_idle_executors_away() -> None:
    assert ClusterOptions(max_nodes=3).holds(dynamic=True) is True
    assert ClusterOptions(num_nodes=3).holds(dynamic=True) is True
    assert ClusterOptions(num_nodes=3).holds(dynamic=False) is None
    assert ClusterOptions().holds(dynamic=True) is None
    assert ClusterOptions(max_nodes=3, hold_slots=False).holds(dynamic=True) is False


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"min_nodes": 3, "max_nodes": 2}, ValueError, "more than max_nodes=2"),
        ({"idle_timeout_s": 0}, ValueError, "idle_timeout_s must be more than 0"),
        ({"idle_timeout_s": "60"}, TypeError, "idle_timeout_s must be a number"),
        ({"memory": -1}, ValueError, "memory must be more than 0"),
        ({"start_timeout_s": float("inf")}, ValueError, "start_timeout_s"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    given: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        ClusterOptions(**given)


def test_start_cluster_takes_all_options_and_those_of_init() -> None:
    parameters = inspect.signature(start_cluster).parameters
    assert set(inspect.signature(ClusterOptions).parameters) <= set(parameters)
    assert parameters["idle_timeout_s"].default == IDLE_TIMEOUT_S
    of_init = set(inspect.signature(sparkray.init).parameters)
    assert of_init - set(parameters) == {"address", "num_cpus", "num_gpus", "labels"}
    assert {"cpus_per_node", "max_nodes", "idle_timeout_s"} <= own_options()
    assert "namespace" not in own_options()


def test_init_names_start_cluster_for_options_that_it_does_not_have() -> None:
    with pytest.raises(TypeError, match="start_cluster"):
        sparkray.init(max_nodes=2)  # type: ignore[call-arg]
