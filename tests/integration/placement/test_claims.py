"""Placement groups beside tasks that never end: they get their turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

import sparkray
from sparkray.util.placement_group import placement_group, remove_placement_group
from tests.support import Gate, until


@sparkray.remote
def work(seconds: float) -> None:
    time.sleep(seconds)


@sparkray.remote
def hold(gate: Gate) -> None:
    gate.wait()


@contextmanager
def stream(seconds: float, ahead: int, **options: float) -> Iterator[Callable[[], int]]:
    """Keep so many tasks waiting; gives how many are done."""
    task = work.options(**options)
    over, done = threading.Event(), [0]

    def feed() -> None:
        refs = [task.remote(seconds) for _ in range(ahead)]
        while not over.is_set():
            ready, refs = sparkray.wait(refs, timeout=5)
            done[0] += len(ready)
            refs += [task.remote(seconds) for _ in ready]
        for ref in refs:
            sparkray.cancel(ref)

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield lambda: done[0]
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.3])
@pytest.mark.usefixtures("local")
def test_a_stream_of_tasks_does_not_starve_a_group(seconds: float) -> None:
    with stream(seconds, 200) as done:
        until(lambda: done() > 20)
        group = placement_group([{"CPU": 2}, {"CPU": 2}])
        assert sparkray.get(group.ready(), timeout=40)
        remove_placement_group(group)
        before = done()
        until(lambda: done() > before + 20)


@pytest.mark.usefixtures("local")
def test_a_group_that_is_removed_while_it_waits_gives_tasks_their_room(
    tmp_path: Path,
) -> None:
    gate = Gate(tmp_path)
    blocker = hold.remote(gate)
    with stream(0.02, 50) as done:
        until(lambda: done() > 20)
        group = placement_group([{"CPU": 4}])
        assert not group.wait(1)
        remove_placement_group(group)
        before = done()
        until(lambda: done() > before + 20)
    gate.open()
    sparkray.get(blocker, timeout=20)


@pytest.mark.usefixtures("local")
def test_a_long_task_in_the_way_of_a_group_does_not_stop_the_others(
    tmp_path: Path,
) -> None:
    gate = Gate(tmp_path)
    blocker = hold.remote(gate)
    with stream(0.02, 50) as done:
        until(lambda: done() > 20)
        group = placement_group([{"CPU": 4}])
        for _ in range(2):
            before = done()
            until(lambda before=before: done() > before + 20)
        gate.open()
        assert sparkray.get(group.ready(), timeout=40)
        remove_placement_group(group)
    sparkray.get(blocker, timeout=20)


@pytest.mark.usefixtures("two_nodes")
def test_a_group_over_two_nodes_gets_its_turn() -> None:
    with stream(0.05, 100) as done:
        until(lambda: done() > 50)
        group = placement_group([{"CPU": 2}, {"CPU": 2}], strategy="STRICT_SPREAD")
        assert sparkray.get(group.ready(), timeout=40)
        remove_placement_group(group)
        before = done()
        until(lambda: done() > before + 50)


def test_a_group_gets_a_whole_gpu_beside_tasks_that_use_parts_of_all(
    fresh: ModuleType,
) -> None:
    sparkray.init(num_cpus=3, num_gpus=3)
    parts = {"num_cpus": 1, "num_gpus": 0.6, "max_calls": 0}
    with stream(0.05, 50, **parts) as done:  # 1.2 are free, and none is whole
        until(lambda: done() > 20)
        group = placement_group([{"GPU": 1}])
        assert sparkray.get(group.ready(), timeout=40)
        before = done()
        until(lambda: done() > before + 20)
        remove_placement_group(group)
