import inspect
from typing import Any

import pytest

import sparkray
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
        ({"object_store_memory": 10**15}, ValueError),
        ({"resources": {"object_store_memory": 5}}, ValueError),
        ({"resources": {"node:10.0.0.1": 5}}, ValueError),
        ({"runtime_env": {"env_vars": {"A": "\ud800"}}}, ValueError),
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


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("num_cpu", "no argument 'num_cpu': did you mean 'num_cpus'?"),
        ("num_nodes", "'num_nodes': that is an option of sparkray.spark.start_cluster"),
        ("num_node", "did you mean 'num_nodes', an option of sparkray.spark.start_clu"),
        ("hold_slots", "start_cluster"),
        ("qqq", r"no argument 'qqq' \(it has address, ignore_reinit_error"),
    ],
)
def test_an_unknown_argument_of_init_is_named_with_the_nearest_that_exists(
    name: str, said: str
) -> None:
    with pytest.raises(TypeError, match=said):
        sparkray.init(**{name: 1})


def test_the_signature_of_init_is_there_to_be_looked_up() -> None:
    assert "runtime_env" in inspect.signature(sparkray.init).parameters
    assert (sparkray.init.__doc__ or "").startswith("Join a running cluster")


@pytest.mark.parametrize("name", ["log_to_driver", "ignore_reinit_error"])
def test_a_switch_is_true_or_false_and_nothing_else(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} must be True or False, not 'yes'"):
        sparkray.init(**{name: "yes"})


def test_a_wrong_token_is_refused_and_not_shown() -> None:
    with pytest.raises(TypeError, match=r"must be text, not bytes$"):
        sparkray.init(token=b"secret")
