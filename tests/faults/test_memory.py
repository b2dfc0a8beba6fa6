"""Memory that runs short: of the store, and of the host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import sparkray
from sparkray.exceptions import ObjectStoreFullError, OutOfMemoryError
from tests.support import Gate, Tally, until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]
MB = 1_000_000
STORE = 200 * MB


@pytest.fixture
def small_store(fresh: Any) -> Any:
    fresh.init(num_cpus=2, object_store_memory=STORE)
    return fresh


def used_bytes() -> float:
    total = sparkray.cluster_resources()["object_store_memory"]
    return float(total - sparkray.available_resources()["object_store_memory"])


@sparkray.remote
def double(array: Any) -> Any:
    return array * 2


def test_fifty_rounds_of_large_objects_stay_within_three_rounds_worth(
    small_store: Any,
) -> None:
    most = 0.0
    for number in range(50):
        ref = sparkray.put(np.full(50 * MB // 8, number))
        result = sparkray.get(double.remote(ref))
        assert result[0] == result[-1] == 2 * number
        del ref, result
        most = max(most, used_bytes())
    assert most <= 3 * 2 * 50 * MB
    until(lambda: used_bytes() < MB)


def test_more_than_the_store_can_be_kept_and_read_back_in_any_order(
    small_store: Any,
) -> None:
    count, numbers = 12, 50 * MB // 8
    refs = [sparkray.put(np.full(numbers, n)) for n in range(count)]
    for n in [*range(count), *reversed(range(count))]:
        array = sparkray.get(refs[n])
        assert array[0] == array[-1] == n
        del array


def test_a_task_that_returns_more_than_the_store_says_so_and_the_rest_goes_on(
    small_store: Any,
) -> None:
    large = sparkray.remote(max_retries=0)(lambda: np.zeros(2 * STORE // 8))
    with pytest.raises(ObjectStoreFullError, match="larger than the store"):
        sparkray.get(large.remote())
    assert sparkray.get(double.remote(np.ones(MB)))[-1] == 2


def test_host_memory_that_runs_short_takes_what_can_run_again_first(
    fresh: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A threshold that every host is above all the time: one worker goes a second."""
    monkeypatch.setenv("SPARKRAY_MEMORY_THRESHOLD", "0.0001")
    fresh.init(num_cpus=2)
    begun, runs, gate = Tally(tmp_path), Tally(tmp_path), Gate(tmp_path)

    @sparkray.remote(max_retries=0)
    def precious() -> None:
        begun.add(os.getpid())
        gate.wait()

    @sparkray.remote(max_retries=1)
    def again() -> None:
        runs.add(os.getpid())
        gate.wait()

    ended = again.remote()
    until(runs.count)
    kept = precious.remote()
    until(begun.count)
    with pytest.raises(OutOfMemoryError, match="may run again"):
        sparkray.get(ended, timeout=60)
    assert runs.count() == 2
    assert psutil.pid_exists(int(begun.lines()[0]))
    with pytest.raises(OutOfMemoryError, match="cannot run again"):
        sparkray.get(kept, timeout=60)
    assert begun.count() == 1
