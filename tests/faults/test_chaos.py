"""Many kinds of work at once while processes die: every wait ends, every answer is
right, and nothing is left.

`CHAOS_S` (seconds, environment) makes it as long as wanted; a failure names the seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import sparkray
from sparkray.exceptions import (
    ActorUnavailableError,
    GetTimeoutError,
    SparkrayError,
    TaskCancelledError,
    WorkerCrashedError,
)
from sparkray.testing.faults import kill_random_worker
from sparkray.util import state
from sparkray.util.placement_group import placement_group, remove_placement_group
from sparkray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from tests.support import until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(0)]

CHAOS_S = float(os.environ.get("CHAOS_S", "10"))
#: No wait may take this long, however busy the machine is.
HANG_S = 60.0


@sparkray.remote
def same(value: Any) -> Any:
    return value


@sparkray.remote
def total(*arrays: Any) -> float:
    return sum(float(array.sum()) for array in arrays)


@sparkray.remote
def leaves(width: int, depth: int) -> int:
    """Count the leaves of a tree of tasks."""
    if not depth:
        return 1
    parts = [leaves.remote(width, depth - 1) for _ in range(width)]
    return sum(sparkray.get(parts, timeout=HANG_S))


@sparkray.remote(max_retries=-1)
def nap(seconds: float) -> int:
    time.sleep(seconds)
    return 1


@sparkray.remote(max_retries=3)
def crash_sometimes() -> int:
    if random.random() < 0.2:
        os._exit(3)
    return 1


@sparkray.remote(num_returns="streaming")
def count(n: int) -> Iterator[int]:
    yield from range(n)


@sparkray.remote(max_retries=1)
def leave_orphans(refs: list[sparkray.ObjectRef]) -> None:
    """Die as the owner of tasks and of an actor, and as a borrower."""
    orphans: list[Any] = [same.remote(i) for i in range(10)]
    orphans.append(Tree.remote())
    os._exit(1)


@sparkray.remote(max_restarts=-1, max_task_retries=-1)
class Tree:
    def __init__(self) -> None:
        self.n = 0

    def add(self) -> int:
        self.n += 1
        return self.n

    def pid(self) -> int:
        return os.getpid()

    @sparkray.method(max_task_retries=0)
    def die(self) -> None:
        os._exit(1)

    def grow(self, width: int) -> int:
        self.children = [Tree.remote() for _ in range(width)]
        calls = [child.add.remote() for child in self.children]
        return sum(sparkray.get(calls, timeout=HANG_S))


@sparkray.remote(max_restarts=-1, max_task_retries=-1)
class Async:
    async def later(self, k: int) -> int:
        await asyncio.sleep(0.001 * k)
        return k


def get(refs: Any) -> Any:
    return sparkray.get(refs, timeout=HANG_S)


def may_fail(ref: Any, *errors: type[BaseException]) -> None:
    with contextlib.suppress(*errors):
        get(ref)


class Works:
    """Each method does one kind of work and checks its answers."""

    def __init__(self, random: random.Random) -> None:
        self._random = random

    def nested_tasks(self) -> None:
        assert get(leaves.remote(3, 2)) == 9

    def short_tasks_after_a_time_out(self) -> None:
        with contextlib.suppress(GetTimeoutError):
            sparkray.get(nap.remote(0.2), timeout=self._random.random() * 0.2)
        assert get([same.remote(i) for i in range(300)]) == list(range(300))

    def crashing_tasks(self) -> None:
        for ref in [crash_sometimes.remote() for _ in range(10)]:
            may_fail(ref, WorkerCrashedError)

    def orphans(self) -> None:
        may_fail(leave_orphans.remote([sparkray.put(1)]), WorkerCrashedError)

    def killed_workers(self) -> None:
        refs = [nap.remote(0.05) for _ in range(20)]
        kill_random_worker(self._random)
        assert get(refs) == [1] * 20

    def cancelled_tasks(self) -> None:
        refs = [nap.remote(self._random.random() * 0.3) for _ in range(8)]
        for ref in refs[::2]:
            sparkray.cancel(ref, force=self._random.random() < 0.3)
        for ref in refs[::2]:
            may_fail(ref, TaskCancelledError, WorkerCrashedError)
        assert get(refs[1::2]) == [1] * 4

    def dropped_streams(self) -> None:
        end = self._random.randrange(1, 200)
        for i, ref in enumerate(count.remote(150)):
            assert get(ref) == i
            if i == end:
                break

    def shared_arrays(self) -> None:
        refs = [sparkray.put(np.ones(200_000)) for _ in range(5)]
        assert get([total.remote(*refs) for _ in range(4)]) == [1e6] * 4

    def dying_actors(self) -> None:
        actor = Tree.remote()
        counts = get([actor.add.remote() for _ in range(50)])
        starts = [i for i, n in enumerate(counts) if n == 1]  # others may kill it, too
        assert counts == [i - max(s for s in starts if s <= i) + 1 for i in range(50)]
        may_fail(actor.die.remote(), ActorUnavailableError)
        assert get(actor.add.remote()) == 1

    def killed_actors(self) -> None:
        actor = Tree.remote()
        pid = get(actor.pid.remote())
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        until(lambda: get(actor.pid.remote()) != pid)
        if self._random.random() < 0.5:
            sparkray.kill(actor)

    def trees_of_actors(self) -> None:
        assert get(Tree.remote().grow.remote(3)) == 3

    def async_actors(self) -> None:
        actor = Async.remote()
        assert get([actor.later.remote(k) for k in range(20)]) == list(range(20))

    def removed_groups(self) -> None:
        group = placement_group([{"CPU": 1}, {"CPU": 1}])
        get(group.ready())
        inside = {"scheduling_strategy": PlacementGroupSchedulingStrategy(group)}
        refs = [same.options(**inside).remote(i) for i in range(6)]
        actor = Tree.options(num_cpus=1, **inside).remote()
        assert get(actor.add.remote()) == 1
        if self._random.random() < 0.5:
            assert get(refs) == list(range(6))
        remove_placement_group(group)
        for ref in refs:
            may_fail(ref, SparkrayError)


def at_once(works: list[Callable[[], None]]) -> list[str]:
    """Do all of it in threads; return the failures."""
    failures: list[str] = []

    def do(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException:
            failures.append(f"{work.__name__}: {traceback.format_exc()}")

    threads = [threading.Thread(target=do, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


@pytest.mark.parametrize("seed", [1, 2])
def test_all_kinds_of_work_at_once_end_well(local: ModuleType, seed: int) -> None:
    chance = random.Random(seed)
    works = Works(chance)
    kinds = [getattr(works, name) for name in vars(Works) if not name.startswith("_")]
    end = time.monotonic() + CHAOS_S
    rounds = 0
    while time.monotonic() < end:
        rounds += 1
        chosen = [chance.choice(kinds) for _ in range(chance.choice([1, 1, 3]))]
        failures = at_once(chosen)
        assert not failures, f"seed {seed}, round {rounds}:\n" + "\n".join(failures)
    cpus = local.cluster_resources()["CPU"]
    until(lambda: not state.list_objects(), what="objects are left")
    until(lambda: local.available_resources().get("CPU") == cpus, what="CPUs are held")
