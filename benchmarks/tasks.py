"""The work that every peer is given.  Importable in all their workers."""

from __future__ import annotations

import os
import time

import numpy as np
import numpy.typing as npt


def empty() -> None:
    """The task whose whole cost is overhead."""


def sleep(seconds: float) -> None:
    """A task of known length that needs no core, so five fit on any machine."""
    time.sleep(seconds)


def process_id(seconds: float) -> int:
    """Hold a worker for a moment and tell which process it is."""
    time.sleep(seconds)
    return os.getpid()


def first_of(array: npt.NDArray[np.float64]) -> float:
    return float(array[0])


class Counter:
    """An actor of the usual kind."""

    def __init__(self) -> None:
        self.value = 0

    def add(self) -> int:
        self.value += 1
        return self.value
