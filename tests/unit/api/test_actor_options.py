"""Options of actors and methods: what is taken, what is refused, and how."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sparkray.api.actor_options import CHECKS, METHOD_CHECKS, check, resolve

GOOD: dict[str, list[Any]] = {
    "num_cpus": [0, 1, 0.5],
    "num_gpus": [0, 1],
    "memory": [1 << 20],
    "resources": [{"gadget": 1}],
    "name": ["n"],
    "namespace": ["space"],
    "lifetime": ["detached", "non_detached"],
    "get_if_exists": [True, False],
    "max_restarts": [-1, 0, 7],
    "max_task_retries": [-1, 0, 7],
    "max_concurrency": [1, 1000],
    "max_pending_calls": [-1, 1],
    "concurrency_groups": [{}, {"io": 2}],
    "allow_out_of_order_execution": [True, False],
    "runtime_env": [{"env_vars": {"A": "b"}}],
    "scheduling_strategy": ["DEFAULT", "SPREAD"],
    "label_selector": [{}, {"zone": "!in(a, b)"}],
}
BAD: list[tuple[str, Any]] = [
    ("num_cpus", -1),
    ("num_cpus", math.nan),
    ("num_cpus", math.inf),
    ("num_cpus", "two"),
    ("resources", {"gadget": -1}),
    ("resources", ["gadget"]),
    ("name", ""),
    ("name", 5),
    ("namespace", ""),
    ("lifetime", "for ever"),
    ("lifetime", True),
    ("get_if_exists", 1),
    ("max_restarts", -2),
    ("max_restarts", 1.5),
    ("max_restarts", True),
    ("max_task_retries", -2),
    ("max_concurrency", 0),
    ("max_concurrency", "many"),
    ("max_pending_calls", -2),
    ("concurrency_groups", {"io": 0}),
    ("concurrency_groups", {"io": -1}),
    ("concurrency_groups", {"": 1}),
    ("concurrency_groups", {5: 1}),
    ("concurrency_groups", ["io"]),
    ("allow_out_of_order_execution", "yes"),
    ("scheduling_strategy", "NEAR"),
    ("num_gpus", 2.5),
    ("label_selector", {"zone": "!"}),
    ("label_selector", ["zone"]),
]


def test_there_are_samples_of_every_option() -> None:
    assert set(GOOD) == set(CHECKS)


@pytest.mark.parametrize("option", sorted(GOOD))
def test_good_values_are_taken(option: str) -> None:
    for value in GOOD[option]:
        assert check({option: value}, CHECKS) == {option: value}


@pytest.mark.parametrize(("option", "value"), BAD)
def test_wrong_values_are_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=option):
        check({option: value}, CHECKS)


def test_none_means_the_default() -> None:
    assert check(dict.fromkeys(CHECKS), CHECKS) == {}


@pytest.mark.parametrize(
    ("wrong", "right"), [("max_restart", "max_restarts"), ("nam", "name")]
)
def test_an_unknown_option_names_the_one_that_is_near(wrong: str, right: str) -> None:
    with pytest.raises(ValueError, match=f"did you mean '{right}'"):
        check({wrong: 1}, CHECKS)
    with pytest.raises(ValueError, match=wrong):
        check({wrong: 1}, METHOD_CHECKS)


def test_options_of_tasks_only_are_unknown_to_actors() -> None:
    with pytest.raises(ValueError, match="max_calls"):
        check({"max_calls": 1}, CHECKS)


def test_an_actor_takes_no_cpu_unless_it_says_so() -> None:
    assert resolve({}).resources.get("CPU", 0) == 0
    assert resolve({"num_cpus": 0.5}).resources["CPU"] == 5_000


def test_get_if_exists_needs_a_name() -> None:
    with pytest.raises(ValueError, match="give a name"):
        resolve({"get_if_exists": True})


def test_what_options_mean() -> None:
    chosen = resolve(
        {"lifetime": "detached", "allow_out_of_order_execution": True, "name": "n"}
    )
    assert chosen.detached and not chosen.in_order and chosen.name == "n"
    assert not resolve({"lifetime": "non_detached"}).detached
    assert resolve({}).max_pending_calls == -1


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("num_returns", -1),
        ("num_returns", "many"),
        ("max_task_retries", -2),
        ("retry_exceptions", 5),
        ("retry_exceptions", [int]),
        ("concurrency_group", ""),
        ("generator_backpressure_num_objects", -1),
    ],
)
def test_wrong_options_of_methods_are_refused(option: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=option):
        check({option: value}, METHOD_CHECKS)
