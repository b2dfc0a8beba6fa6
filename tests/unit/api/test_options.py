import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkray.api import options
from sparkray.api.placement_handle import PlacementGroup
from sparkray.api.strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)
from sparkray.ids import NODE_ID_BYTES
from sparkray.protocol.messages import Strategy
from sparkray.resources import UNIT

NODE = "ab" * NODE_ID_BYTES

GOOD: list[tuple[str, Any]] = [
    ("num_cpus", 0),
    ("num_cpus", 0.25),
    ("num_gpus", 1),
    ("memory", 500 << 20),
    ("resources", {"tok": 1, "gadget": 0.5}),
    ("num_returns", 0),
    ("num_returns", 7),
    ("num_returns", "dynamic"),
    ("max_retries", -1),
    ("max_retries", 0),
    ("retry_exceptions", True),
    ("retry_exceptions", [KeyError, OSError]),
    ("retry_exceptions", (KeyError,)),
    ("max_calls", 0),
    ("name", "a name"),
    ("runtime_env", {}),
    ("runtime_env", {"env_vars": {"A": "1"}}),
    ("scheduling_strategy", "SPREAD"),
    ("scheduling_strategy", NodeAffinitySchedulingStrategy(NODE)),
    ("label_selector", {"zone": "a", "tier": "!spot", "disk": "in(ssd, nvme)"}),
    ("generator_backpressure_num_objects", 1),
    ("timeout_s", 1.5),
]
WRONG_TYPE: list[tuple[str, Any]] = [
    ("num_cpus", "2"),
    ("num_cpus", True),
    ("num_gpus", [1]),
    ("memory", "1g"),
    ("resources", ["tok"]),
    ("resources", {1: 1}),
    ("resources", {"tok": "1"}),
    ("num_returns", 1.5),
    ("num_returns", True),
    ("max_retries", "3"),
    ("max_retries", 1.0),
    ("retry_exceptions", KeyError),
    ("retry_exceptions", [KeyError()]),
    ("retry_exceptions", [int]),
    ("max_calls", None.__class__),
    ("name", 5),
    ("runtime_env", "not a dict"),
    ("runtime_env", {"env_vars": ["A"]}),
    ("runtime_env", {"env_vars": {"A": 1}}),
    ("scheduling_strategy", 3),
    ("label_selector", "zone=a"),
    ("label_selector", {"zone": 1}),
    ("label_selector", {"zone": ["a", "b"]}),
    ("generator_backpressure_num_objects", "2"),
    ("timeout_s", "2"),
    ("timeout_s", True),
]
WRONG_VALUE: list[tuple[str, Any]] = [
    ("num_cpus", -1),
    ("num_cpus", math.nan),
    ("num_cpus", math.inf),
    ("num_cpus", 0.00001),
    ("num_cpus", 1e300),
    ("memory", 10**400),
    ("memory", -1),
    ("resources", {"CPU": 1}),
    ("resources", {"GPU": 1}),
    ("resources", {"memory": 1}),
    ("resources", {"": 1}),
    ("resources", {"tok": -1}),
    ("resources", {"tok": math.nan}),
    ("num_returns", -1),
    ("num_returns", "stream"),
    ("max_retries", -2),
    ("max_calls", -1),
    ("runtime_env", {"env_vras": {}}),
    ("runtime_env", {"env_vars": {"A=B": "1"}}),
    ("scheduling_strategy", "SPRAED"),
    ("num_gpus", 1.5),
    ("label_selector", {"zone": "in(a"}),
    ("label_selector", {"": "a"}),
    ("generator_backpressure_num_objects", 0),
    ("timeout_s", 0),
    ("timeout_s", -1.0),
    ("timeout_s", math.inf),
    ("timeout_s", math.nan),
]


@pytest.mark.parametrize(("option", "value"), GOOD)
def test_a_good_option_is_kept_as_given(option: str, value: Any) -> None:
    assert options.check({option: value}) == {option: value}


@pytest.mark.parametrize(("option", "value"), WRONG_TYPE)
def test_a_mistake_of_type_is_a_type_error_that_names_the_option(
    option: str, value: Any
) -> None:
    with pytest.raises(TypeError, match=r"option|resource|" + option):
        options.check({option: value})


@pytest.mark.parametrize(("option", "value"), WRONG_VALUE)
def test_a_mistake_of_value_is_a_value_error(option: str, value: Any) -> None:
    with pytest.raises(ValueError):
        options.check({option: value})


def test_the_samples_cover_every_option_in_each_way_it_can_be_wrong() -> None:
    anything_goes = {"name", "retry_exceptions"}
    assert {option for option, _ in GOOD} == set(options.CHECKS)
    assert {option for option, _ in WRONG_TYPE} == set(options.CHECKS)
    wrong = {option for option, _ in WRONG_VALUE} | anything_goes
    assert wrong == set(options.CHECKS)


def test_an_unknown_option_is_named_with_the_nearest_known_one() -> None:
    with pytest.raises(ValueError, match=r"'num_cpu'; did you mean 'num_cpus'"):
        options.check({"num_cpu": 1})
    with pytest.raises(ValueError, match=r"'zzz' \(known: .*num_returns"):
        options.check({"zzz": 1})


def test_none_means_the_default() -> None:
    assert options.check(dict.fromkeys(options.CHECKS)) == {}


def test_defaults_are_one_cpu_one_return_three_retries() -> None:
    got = options.resolve({}, is_generator=False)
    assert got.resources == {"CPU": UNIT}
    assert (got.num_returns, got.max_retries, got.max_calls) == (1, 3, 0)
    assert got.retry_exceptions is False and got.strategy == Strategy("DEFAULT")
    assert got.runtime_env == got.name == ""


def test_all_resources_meet_in_one_vector_without_zeros() -> None:
    given = {"num_cpus": 0, "num_gpus": 0.5, "memory": 3, "resources": {"tok": 2}}
    got = options.resolve(given, is_generator=False).resources
    assert got == {"GPU": UNIT // 2, "memory": 3 * UNIT, "tok": 2 * UNIT}


@pytest.mark.parametrize(
    ("asked", "is_generator", "expected"),
    [
        (None, False, 1),
        (None, True, options.STREAMING),
        ("streaming", True, options.STREAMING),
        ("dynamic", False, options.DYNAMIC),
        ("dynamic", True, options.DYNAMIC),
        (3, True, 3),
        (0, False, 0),
    ],
)
def test_generator_functions_stream_unless_told_otherwise(
    asked: Any, is_generator: bool, expected: int
) -> None:
    given = {} if asked is None else {"num_returns": asked}
    assert options.resolve(given, is_generator=is_generator).num_returns == expected


def test_only_a_generator_can_stream() -> None:
    with pytest.raises(ValueError, match="generator function"):
        options.resolve({"num_returns": "streaming"}, is_generator=False)
    with pytest.raises(ValueError, match="streaming generators only"):
        options.resolve(
            options.check({"_generator_backpressure_num_objects": 2}),
            is_generator=False,
        )


def test_node_affinity_becomes_the_node_itself() -> None:
    wanted = NodeAffinitySchedulingStrategy(NODE, soft=True)
    got = options.resolve({"scheduling_strategy": wanted}, is_generator=False)
    assert got.strategy == Strategy("NODE", bytes.fromhex(NODE), True)


@pytest.mark.parametrize("node_id", ["", "zz", "ab", NODE + "00"])
def test_a_node_affinity_without_a_node_id_is_refused(node_id: str) -> None:
    with pytest.raises(ValueError, match="node id"):
        NodeAffinitySchedulingStrategy(node_id)


_WORDS = st.sampled_from(["", "dynamic", "streaming", "SPREAD", "CPU", "tok"])
_PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), _WORDS)
_ANYTHING = st.one_of(
    _PLAIN,
    st.lists(_PLAIN, max_size=2),
    st.dictionaries(_WORDS, _PLAIN, max_size=2),
)


@given(
    st.dictionaries(st.sampled_from(sorted(options.CHECKS)), _ANYTHING), st.booleans()
)
def test_whatever_is_given_the_answer_is_options_or_a_type_or_value_error(
    given: dict[str, Any], is_generator: bool
) -> None:
    try:
        got = options.resolve(options.check(given), is_generator=is_generator)
    except (TypeError, ValueError):
        return
    assert got.num_returns >= options.DYNAMIC and got.max_retries >= -1
    assert all(units > 0 for units in got.resources.values())


@given(st.floats() | st.integers() | st.booleans())
def test_an_amount_that_passes_is_finite_and_not_negative(amount: float) -> None:
    try:
        checked = options.check({"num_cpus": amount})
    except (TypeError, ValueError):
        return
    assert not isinstance(amount, bool) and 0 <= checked["num_cpus"] < math.inf


def test_a_label_selector_is_part_of_the_strategy_and_no_group_captures_it() -> None:
    asked = {"label_selector": {"zone": "a"}}
    got = options.resolve(asked, is_generator=False)
    assert got.strategy == Strategy(labels=(("zone", "a"),)) and not got.inherits
    got = options.resolve(
        {**asked, "scheduling_strategy": "SPREAD"}, is_generator=False
    )
    assert got.strategy == Strategy("SPREAD", labels=(("zone", "a"),))
    here = NodeAffinitySchedulingStrategy(NODE, soft=True)
    got = options.resolve({**asked, "scheduling_strategy": here}, is_generator=False)
    node = bytes.fromhex(NODE)
    assert got.strategy == Strategy("NODE", node, True, labels=(("zone", "a"),))


def test_a_label_selector_does_not_go_with_a_placement_group() -> None:
    inside = PlacementGroupSchedulingStrategy(PlacementGroup(b"g" * 16, [{"CPU": 1}]))
    asked = {"scheduling_strategy": inside, "label_selector": {"zone": "a"}}
    with pytest.raises(ValueError, match="bundle_label_selector"):
        options.resolve(asked, is_generator=False)


def test_a_worker_runs_one_task_with_gpus_unless_told_otherwise() -> None:
    def max_calls(**given: Any) -> int:
        return options.resolve(given, is_generator=False).max_calls

    assert max_calls() == 0 and max_calls(num_gpus=0) == 0
    assert max_calls(num_gpus=0.5) == 1 and max_calls(num_gpus=2) == 1
    assert max_calls(num_gpus=1, max_calls=0) == 0
