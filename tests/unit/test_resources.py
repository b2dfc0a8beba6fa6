import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkray import resources
from sparkray.api import options

vectors = st.dictionaries(
    st.sampled_from(["CPU", "GPU", "memory", "tok"]), st.integers(1, 10**12)
)


def test_ten_times_a_tenth_is_exactly_one() -> None:
    room = resources.from_user({"CPU": 1})
    for _ in range(10):
        assert resources.fits(resources.from_user({"CPU": 0.1}), room)
        resources.take(room, resources.from_user({"CPU": 0.1}))
    assert room == {"CPU": 0}


@given(st.dictionaries(st.text(min_size=1), st.integers(1, 10**9)))
def test_what_a_user_wrote_comes_back(amounts: dict[str, int]) -> None:
    written = {name: units / resources.UNIT for name, units in amounts.items()}
    assert resources.from_user(written) == amounts
    assert resources.to_user(resources.from_user(written)) == written


def test_zeros_are_left_out_so_that_equal_requests_are_equal() -> None:
    assert resources.from_user({"CPU": 0, "tok": 1}) == resources.from_user(
        {"tok": 1.0}
    )


@pytest.mark.parametrize("amount", [True, "1", None, [1], 1j])
def test_an_amount_that_is_no_number_is_a_type_error(amount: Any) -> None:
    with pytest.raises(TypeError, match="'CPU' must be a number"):
        resources.from_user({"CPU": amount})


@pytest.mark.parametrize(
    "amount", [-1, -0.5, float("nan"), float("inf"), 0.00001, 1 / 3]
)
def test_an_amount_that_cannot_be_counted_is_a_value_error(amount: float) -> None:
    with pytest.raises(ValueError, match="'CPU'"):
        resources.from_user({"CPU": amount})


@given(vectors, vectors)
def test_what_is_taken_and_given_back_balances(
    room: resources.Vector, request: resources.Vector
) -> None:
    before = dict(room)
    resources.take(room, request)
    resources.give_back(room, request)
    assert {name: units for name, units in room.items() if units} == before


@given(vectors, vectors)
def test_a_request_fits_exactly_when_taking_it_leaves_no_debt(
    room: resources.Vector, request: resources.Vector
) -> None:
    fits = resources.fits(request, room)
    resources.take(room, request)
    assert fits == all(units >= 0 for units in room.values())


def test_an_empty_request_fits_everywhere() -> None:
    assert resources.fits({}, {})
    assert resources.fits({}, {"CPU": -1})


@given(st.lists(vectors, max_size=4))
def test_a_total_is_the_sum_of_each_resource(parts: list[resources.Vector]) -> None:
    total = resources.total(parts)
    for name in {name for part in parts for name in part}:
        assert total[name] == sum(part.get(name, 0) for part in parts)


def test_a_vector_is_described_in_the_users_units_and_in_a_fixed_order() -> None:
    vector = resources.from_user({"tok": 0.5, "CPU": 2})
    assert resources.describe(vector) == "{CPU: 2, tok: 0.5}"


@pytest.mark.parametrize("amount", [1e30, math.inf, 10**18, 10**400])
def test_what_is_too_large_is_called_so(amount: float) -> None:
    with pytest.raises(ValueError, match=r"'CPU' is too large: .*; 1e\+14 at most"):
        resources.from_user({"CPU": amount})
    with pytest.raises(ValueError, match=r"^num_cpus is too large"):
        options.check({"num_cpus": amount})
