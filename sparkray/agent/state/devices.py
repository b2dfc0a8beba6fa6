"""Which GPUs of a node are free, and who gets which.  Pure.

An amount of GPU is so many whole devices, which nobody else uses meanwhile, and perhaps
a fraction of one more, which others may share up to one in all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from sparkray.resources import UNIT

#: Device -> what is taken of it, in 1/10,000.
Share: TypeAlias = dict[str, int]


class Devices:
    """What is free of each device of a node, or of one of its bundles.

    Args:
        free: device -> amount in 1/10,000, at most one; in order of preference.
    """

    __slots__ = ("free",)

    def __init__(self, free: Mapping[str, int]) -> None:
        self.free = dict(free)

    @classmethod
    def of_node(cls, units: int, ids: Sequence[str] = ()) -> Devices:
        """Return the devices of a node that lends ``units`` of GPU, all of them free.

        Args:
            ids: those that the host has; where they are too few, devices are counted
                from 0 instead.
        """
        count = -(-units // UNIT)
        names = ids[:count] if count <= len(ids) else [str(i) for i in range(count)]
        return cls(
            {name: min(UNIT, units - at * UNIT) for at, name in enumerate(names)}
        )

    def copy(self) -> Devices:
        return Devices(self.free)

    def fits(self, units: int) -> bool:
        return self._choose(units) is not None

    def largest(self) -> int:
        """Return the largest amount that would fit, if not made of several parts."""
        wholes = sum(units >= UNIT for units in self.free.values())
        return wholes * UNIT or max(self.free.values(), default=0)

    def take(self, units: int) -> Share:
        """Take an amount; return which devices it is made of.

        Raises:
            ValueError: it does not fit.
        """
        share = self._choose(units)
        if share is None:
            raise ValueError(f"{units} units of GPU do not fit {self.free}")
        self.remove(share)
        return share

    def remove(self, share: Share) -> None:
        """Take exactly these parts.

        Raises:
            ValueError: one is not free.
        """
        if any(self.free.get(name, 0) < units for name, units in share.items()):
            raise ValueError(f"{share} is not free in {self.free}")
        for name, units in share.items():
            self.free[name] -= units

    def give_back(self, share: Share) -> None:
        for name, units in share.items():
            self.free[name] = self.free.get(name, 0) + units

    def _choose(self, units: int) -> Share | None:
        """Whole devices in order; a fraction where the least is left over."""
        whole, rest = divmod(units, UNIT)
        wholes = [name for name, free in self.free.items() if free >= UNIT]
        if len(wholes) < whole:
            return None
        share = dict.fromkeys(wholes[:whole], UNIT)
        if rest:
            others = [
                name
                for name, free in self.free.items()
                if free >= rest and name not in share
            ]
            if not others:
                return None
            share[min(others, key=lambda name: self.free[name])] = rest
        return share
