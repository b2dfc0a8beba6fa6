from typing import Any

import pytest

from sparkray.api.arguments import InitArguments


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"address": 5}, TypeError),
        ({"namespace": ["x"]}, TypeError),
        ({"num_cpus": "2"}, TypeError),
        ({"num_cpus": -1}, ValueError),
        ({"resources": {"CPU": 1}}, ValueError),
        ({"object_store_memory": 1.5}, TypeError),
        ({"object_store_memory": 3}, ValueError),
        ({"labels": {"a": 1}}, TypeError),
        ({"runtime_env": {"env_vars": 1}}, TypeError),
        ({"runtime_env": {"unknown": 1}}, ValueError),
    ],
)
def test_a_wrong_argument_of_init_is_refused(
    given: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        InitArguments(**given).check()


def test_only_what_is_asked_for_differently_is_a_difference() -> None:
    first = InitArguments(num_cpus=2, resources={"tok": 1}, namespace="a")
    assert InitArguments().differences(first) == []
    assert InitArguments(num_cpus=2, resources={"tok": 1}).differences(first) == []
    assert InitArguments(num_cpus=3, labels={"x": "y"}).differences(first) == [
        "num_cpus=3 (running with 2)",
        "labels={'x': 'y'} (running with None)",
    ]


def test_a_number_of_cpus_differs_from_the_default_even_if_that_is_the_same() -> None:
    assert InitArguments(num_cpus=2).differences(InitArguments())


def test_gpus_are_a_resource_of_the_node() -> None:
    given = InitArguments(num_gpus=1, resources={"tok": 2})
    assert given.node_resources() == {"tok": 2, "GPU": 1}
    assert given.own_resources() == ["num_gpus", "resources"]
