"""Actors beyond one driver: detached ones, and handles of sessions that have ended."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

import sparkray
from sparkray.exceptions import SparkrayError
from tests.support import run_driver, until


@sparkray.remote
class Named:
    def __init__(self, value: int = 0) -> None:
        self.value = value

    def add(self) -> int:
        self.value += 1
        return self.value


MAKE = """
import sparkray
sparkray.init(address={address!r}, namespace="space")

@sparkray.remote
class Counter:
    def __init__(self, ref): self.n = ref
    def add(self):
        self.n += 1
        return self.n

kept = Counter.options(name="kept", lifetime="detached", max_restarts=1).remote(40)
mine = Counter.options(name="mine").remote(0)
print(sparkray.get([kept.add.remote(), mine.add.remote()]))
"""
USE = """
import sparkray
sparkray.init(address={address!r}, namespace="space")
kept = sparkray.get_actor("kept")
print(sparkray.get(kept.add.remote()))
print(sparkray.util.list_named_actors())
sparkray.kill(kept)
"""


@pytest.mark.timeout(120)
def test_detached_actors_outlive_their_driver_and_the_others_do_not(
    start_cluster: Callable[..., Any],
) -> None:
    address = start_cluster(num_cpus=2).address
    first = run_driver(MAKE.format(address=address))
    assert "[41, 1]" in first.stdout, first.stderr
    sparkray.init(address=address, namespace="space")

    def names() -> list[Any]:
        return list(sparkray.util.list_named_actors())

    until(lambda: names() == ["kept"], 10)
    second = run_driver(USE.format(address=address))
    assert "42" in second.stdout and "['kept']" in second.stdout, second.stderr
    until(lambda: names() == [], 5)


def test_a_handle_of_a_session_that_has_ended_is_refused(fresh: ModuleType) -> None:
    fresh.init(num_cpus=1, address="local")
    kept = Named.options(name="kept").remote()
    by_name = fresh.get_actor("kept")
    fresh.get([kept.add.remote(), by_name.add.remote()], timeout=20)
    fresh.shutdown()
    fresh.init(num_cpus=1, address="local")
    for handle in (kept, by_name):
        with pytest.raises(SparkrayError):
            fresh.get(handle.add.remote(), timeout=5)
