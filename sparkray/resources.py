"""Resource vectors: what a node has, what a request takes.  Pure.

Amounts are integers in units of 1/10,000, so that ten times 0.1 CPU is exactly one CPU
and what is taken and given back always balances.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias, TypeVar

UNIT: Final = 10_000
#: The largest amount that travels: in units, the sum over many nodes fits 64 bits.
LARGEST: Final = 10.0**14
#: A request that no node can satisfy is told to its driver after this time.
TELL_INFEASIBLE_AFTER_S: Final = 5.0
#: So many requests are remembered as told.
MAX_TOLD: Final = 1_000
CPU: Final = "CPU"
GPU: Final = "GPU"
MEMORY: Final = "memory"
OBJECT_STORE_MEMORY: Final = "object_store_memory"

#: Resource name -> amount in 1/10,000.  Holds no zero, so equal requests are equal.
Vector: TypeAlias = dict[str, int]
_Told = TypeVar("_Told")


def check_amount(what: str, amount: float) -> None:
    """Raise ValueError unless it is an amount that nodes can tell each other."""
    if not amount >= 0:  # NaN neither
        raise ValueError(f"{what} must be 0 or more, not {amount!s:.40}")
    if amount > LARGEST:
        raise ValueError(f"{what} is too large: {amount!s:.40}; {LARGEST:g} at most")


def from_user(amounts: Mapping[str, float]) -> Vector:
    """Turn amounts as users write them into a vector; zeros are left out.

    Raises:
        TypeError: an amount is not a number.
        ValueError: an amount is negative, NaN, too large, or finer than 1/10,000.
    """
    vector: Vector = {}
    for name, amount in amounts.items():
        if isinstance(amount, bool) or not isinstance(amount, (int, float)):
            raise TypeError(f"resource {name!r} must be a number, not {amount!r}")
        check_amount(f"resource {name!r}", amount)
        units = round(amount * UNIT)
        if amount and abs(units - amount * UNIT) > 1e-6 * max(1.0, units):
            raise ValueError(f"resource {name!r} is finer than 1/{UNIT}: {amount!r}")
        if units:
            vector[name] = units
    return vector


def to_user(vector: Mapping[str, int]) -> dict[str, float]:
    return {name: units / UNIT for name, units in vector.items()}


def fits(request: Mapping[str, int], room: Mapping[str, int]) -> bool:
    for name, units in request.items():  # noqa: SIM110 - on the path of every lease
        if room.get(name, 0) < units:
            return False
    return True


def take(room: Vector, request: Mapping[str, int]) -> None:
    """Subtract in place.  May go below zero: a resumed worker takes its CPU back at
    once, whoever has it meanwhile."""
    for name, units in request.items():
        room[name] = room.get(name, 0) - units


def give_back(room: Vector, request: Mapping[str, int]) -> None:
    for name, units in request.items():
        room[name] = room.get(name, 0) + units


def total(vectors: Iterable[Mapping[str, int]]) -> Vector:
    out: Vector = {}
    for vector in vectors:
        give_back(out, vector)
    return out


def describe(vector: Mapping[str, int]) -> str:
    """Return e.g. ``{CPU: 2, tok: 0.5}``, for messages."""
    parts = (f"{name}: {units / UNIT:g}" for name, units in sorted(vector.items()))
    return "{" + ", ".join(parts) + "}"


def infeasible_text(request: str, largest_node: str, hint: str, left_s: float) -> str:
    """Return the line for a user whose request waits for a node that is not there.

    Args:
        hint: what is in the way, if it is not the size of the nodes.
    """
    why = f": {hint}" if hint else f", the largest has {largest_node}"
    return (
        f"a request for {request} waits: no node can satisfy it{why}; it fails in"
        f" {left_s:.0f} s unless a node that can joins"
    )


def remember(told: dict[_Told, None], what: _Told) -> None:
    """Note what a user was told; the oldest is forgotten once there are too many."""
    told[what] = None
    if len(told) > MAX_TOLD:
        del told[next(iter(told))]
