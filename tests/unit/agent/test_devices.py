"""GPUs of a node: whole ones are exclusive, fractions share one, nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkray.agent.state.devices import Devices, Share
from sparkray.resources import UNIT

HALF = UNIT // 2

amounts = st.one_of(
    st.integers(1, 3).map(lambda whole: whole * UNIT),
    st.integers(1, UNIT - 1),
    st.sampled_from([HALF, UNIT // 4, UNIT + HALF]),
)


@given(
    count=st.integers(0, 4),
    steps=st.lists(st.one_of(amounts, st.integers(-10, -1)), max_size=40),
)
def test_whatever_is_taken_and_given_back_no_device_is_lent_more_than_once(
    count: int, steps: list[int]
) -> None:
    """A negative step gives one of the earlier shares back."""
    devices, held = Devices.of_node(count * UNIT), list[Share]()
    for step in steps:
        if step < 0:
            if held:
                devices.give_back(held.pop(step % len(held)))
        elif devices.fits(step):
            share = devices.take(step)
            assert sum(share.values()) == step
            whole, rest = divmod(step, UNIT)
            assert sorted(share.values()) == sorted(
                [UNIT] * whole + [rest] * bool(rest)
            )
            held.append(share)
        else:
            before = dict(devices.free)
            with pytest.raises(ValueError):
                devices.take(step)
            assert devices.free == before
        for name, free in devices.free.items():
            assert free + sum(share.get(name, 0) for share in held) == UNIT
            assert free >= 0
    for share in held:
        devices.give_back(share)
    assert devices.free == {str(n): UNIT for n in range(count)}


@given(free=st.dictionaries(st.text(max_size=2), st.integers(0, UNIT)))
def test_the_largest_amount_fits_and_one_device_more_does_not(
    free: dict[str, int],
) -> None:
    devices = Devices(free)
    largest = devices.largest()
    assert devices.fits(largest)
    assert not devices.fits(largest + UNIT)


@given(free=st.dictionaries(st.text(max_size=2), st.integers(0, UNIT)), units=amounts)
def test_an_amount_fits_where_it_is_no_more_than_free_in_whole_devices_and_one_part(
    free: dict[str, int], units: int
) -> None:
    whole, rest = divmod(units, UNIT)
    wholes = sum(value == UNIT for value in free.values())
    parts = [value for value in free.values() if rest <= value < UNIT]
    expected = wholes >= whole and (not rest or bool(parts) or wholes > whole)
    assert Devices(free).fits(units) is expected


def test_halves_share_a_device_and_a_whole_one_is_left() -> None:
    devices = Devices.of_node(2 * UNIT)
    assert devices.take(HALF) == {"0": HALF} and devices.take(HALF) == {"0": HALF}
    assert devices.take(UNIT) == {"1": UNIT} and not devices.fits(1)


def test_a_fraction_goes_where_the_least_is_left_over() -> None:
    devices = Devices({"a": UNIT, "b": 7000, "c": 4000})
    assert devices.take(3000) == {"c": 3000}
    assert devices.take(3000) == {"b": 3000}
    assert devices.take(6000) == {"a": 6000}


def test_two_halves_of_different_devices_are_no_whole_one() -> None:
    devices = Devices({"0": HALF, "1": HALF})
    assert not devices.fits(UNIT) and devices.largest() == HALF


@pytest.mark.parametrize(
    ("units", "ids", "expected"),
    [
        (2 * UNIT, ["4", "5"], ["4", "5"]),
        (1 * UNIT, ["4", "5"], ["4"]),
        (3 * UNIT, ["4", "5"], ["0", "1", "2"]),
        (2 * UNIT, [], ["0", "1"]),
        (0, ["4"], []),
    ],
)
def test_devices_have_the_names_of_the_host_or_are_counted(
    units: int, ids: list[str], expected: list[str]
) -> None:
    assert list(Devices.of_node(units, ids).free) == expected


def test_half_a_gpu_is_half_of_a_device() -> None:
    assert Devices.of_node(UNIT + HALF).free == {"0": UNIT, "1": HALF}


def test_parts_that_are_not_free_cannot_be_removed() -> None:
    devices = Devices({"0": HALF})
    for share in ({"0": UNIT}, {"1": 1}):
        with pytest.raises(ValueError, match="not free"):
            devices.remove(share)
