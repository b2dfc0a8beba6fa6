"""Actors beyond one driver: detached ones, and handles of sessions that have ended."""

from __future__ import annotations

import atexit
import pickle
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import sparkray
from sparkray.exceptions import (
    ActorDiedError,
    OwnerDiedError,
    PlacementGroupRemovedError,
    SparkrayError,
)
from sparkray.util.placement_group import placement_group, placement_group_table
from sparkray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from tests.support import Tally, run_driver, until


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


def test_what_workers_gave_to_atexit_runs_when_the_session_ends(
    fresh: ModuleType, tmp_path: Path
) -> None:
    tally = Tally(tmp_path)

    @fresh.remote
    def task() -> None:
        atexit.register(tally.add, "task")

    @fresh.remote(num_cpus=1)
    class Actor:
        def __init__(self) -> None:
            atexit.register(tally.add, "actor")

    fresh.init(num_cpus=2)
    actor = Actor.remote()
    fresh.get([task.remote(), actor.__ray_ready__.remote()])
    fresh.shutdown()
    assert sorted(tally.lines()) == ["actor", "task"]


def test_a_handle_of_a_session_that_has_ended_is_refused(fresh: ModuleType) -> None:
    fresh.init(num_cpus=1, address="local")
    kept = Named.options(name="kept").remote()
    by_name = fresh.get_actor("kept")
    fresh.get([kept.add.remote(), by_name.add.remote()], timeout=20)
    pickled = [pickle.dumps(handle) for handle in (kept, by_name)]
    fresh.shutdown()
    for handle in (kept, by_name):
        for use in (handle.add.remote, lambda: fresh.kill(handle)):  # noqa: B023
            with pytest.raises(ActorDiedError, match="that this process has left"):
                use()
    assert not fresh.is_initialized()
    fresh.init(num_cpus=1, address="local")
    for handle in (kept, by_name, *map(pickle.loads, pickled)):
        with pytest.raises(ActorDiedError, match="cluster that this process has left"):
            handle.add.remote()
        with pytest.raises(ActorDiedError, match="cluster that this process has left"):
            fresh.kill(handle)
    assert fresh.get(Named.remote().add.remote(), timeout=20) == 1


SEND = """
import pickle, sys, sparkray
sparkray.init(address={address!r})

@sparkray.remote
class Kept:
    def add(self): return 1

kept = Kept.options(lifetime="detached").remote()
sparkray.get(kept.add.remote())
open({path!r}, "wb").write(pickle.dumps(kept))
"""


def test_a_handle_works_in_all_drivers_of_its_cluster_and_in_no_others(
    start_cluster: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "handle"
    own, other = start_cluster(num_cpus=1), start_cluster(num_cpus=1)
    sent = run_driver(SEND.format(address=own.address, path=str(path)))
    assert sent.returncode == 0, sent.stderr
    sparkray.init(address=other.address)
    with pytest.raises(ActorDiedError, match="never belonged to"):
        pickle.loads(path.read_bytes()).add.remote()
    sparkray.shutdown()
    sparkray.init(address=own.address)
    handle = pickle.loads(path.read_bytes())
    assert sparkray.get(handle.add.remote(), timeout=20) == 1
    sparkray.kill(handle)


def test_a_group_of_a_session_that_has_ended_is_refused(fresh: ModuleType) -> None:
    fresh.init(num_cpus=1, address="local")
    group = placement_group([{"CPU": 1}])
    assert group.wait(20)
    pickled = pickle.dumps(group)
    fresh.shutdown()
    fresh.init(num_cpus=1, address="local")
    for each in (group, pickle.loads(pickled)):
        inside = PlacementGroupSchedulingStrategy(each)
        with pytest.raises(ValueError, match="no placement group"):
            placement_group_table(each)
        with pytest.raises(PlacementGroupRemovedError, match="has left"):
            Named.options(scheduling_strategy=inside).remote()
        with pytest.raises(PlacementGroupRemovedError, match="has left"):
            fresh.remote(abs).options(scheduling_strategy=inside).remote(-1)


MAKE_KEEPER = """
import os, sparkray
sparkray.init(address={address!r}, namespace="space")

@sparkray.remote
class Keeper:
    def __init__(self, *args): self.args = args
    def sizes(self): return [len(a) for a in self.args]
    def crash(self): os._exit(1)
    def read(self): return sparkray.get(self.args[0][0], timeout=20)

@sparkray.remote
def make(n): return bytes(n)

for name, args in {{
    "inline": [sparkray.put(b"abc"), b"de", make.remote(10)],
    "passed": [bytes(3_000_000)],
    "put": [sparkray.put(bytes(3_000_000))],
    "computed": [make.remote(3_000_000)],
    "nested": [[sparkray.put(b"abc")]],
}}.items():
    kept = Keeper.options(name=name, lifetime="detached", max_restarts=2).remote(*args)
    print(sparkray.get(kept.sizes.remote()))
"""


@pytest.mark.timeout(120)
def test_what_a_detached_actor_was_made_from_after_its_driver_has_ended(
    start_cluster: Callable[..., Any],
) -> None:
    address = start_cluster(num_cpus=2).address
    first = run_driver(MAKE_KEEPER.format(address=address))
    assert first.stdout.count("[") == 5, first.stderr
    sparkray.init(address=address, namespace="space")

    def restarted(name: str) -> Any:
        actor = sparkray.get_actor(name)
        with pytest.raises(SparkrayError):
            sparkray.get(actor.crash.remote(), timeout=20)
        return actor

    actor = restarted("inline")
    assert sparkray.get(actor.sizes.remote(), timeout=30) == [3, 2, 10]
    for name in ("passed", "put", "computed"):
        actor = restarted(name)
        with pytest.raises(ActorDiedError, match="went with the process that owned it"):
            sparkray.get(actor.sizes.remote(), timeout=30)
    actor = restarted("nested")
    assert sparkray.get(actor.sizes.remote(), timeout=30) == [1]
    with pytest.raises(OwnerDiedError):
        sparkray.get(actor.read.remote(), timeout=30)
