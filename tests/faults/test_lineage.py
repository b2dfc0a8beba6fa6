"""Objects whose only copy was on a node that died: their tasks run again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparkray
from sparkray.exceptions import GetTimeoutError, ObjectLostError
from sparkray.testing import Cluster
from sparkray.util import state
from sparkray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tests.support import Gate, Tally, until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]
SIZE = 50_000  #: numbers of an array that lies in a store


class Place:
    """A cluster whose driver's node runs no tasks, with one node that runs them all."""

    def __init__(self, cluster: Cluster, tmp_path: Path) -> None:
        self.cluster = cluster
        self.runs = Tally(tmp_path)
        self._counted = 0
        self.node = cluster.add_node(num_cpus=2)

    def lose(self) -> None:
        """Kill the node, and start another."""
        lost, self.node = self.node, self.cluster.add_node(num_cpus=2)
        self.cluster.remove_node(lost, allow_graceful=False)
        self.cluster.wait_for_nodes()
        until(lambda: lost.node_id not in {n for r in rows() for n in r.nodes})

    def made(self) -> list[str]:
        """Return what was made until now, and begin to count anew."""
        lines = self.runs.lines()
        before, self._counted = self._counted, len(lines)
        return sorted(lines[before:])


def rows() -> list[Any]:
    return [row for row in state.list_objects() if row.state == "stored"]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with Cluster(head_node_args={"num_cpus": 0}) as cluster:
        sparkray.init(address=cluster.address)
        yield Place(cluster, tmp_path)
        sparkray.shutdown()


@pytest.fixture
def array(place: Place) -> Any:
    """A remote function: what its argument adds to a range of numbers."""
    runs = place.runs

    @sparkray.remote
    def array(base: Any, name: str = "array") -> Any:
        runs.add(name)
        return np.arange(SIZE) + base

    return array


@sparkray.remote
def total(values: Any) -> int:
    if isinstance(values, list):
        (values,) = sparkray.get(values)
    return int(values.sum())


def expected(base: int) -> int:
    return SIZE * (SIZE - 1) // 2 + base * SIZE


def read_here(ref: Any) -> int:
    return int(sparkray.get(ref, timeout=60).sum())


def read_by_a_task(ref: Any) -> int:
    return int(sparkray.get(total.remote(ref), timeout=60))


def read_inside_a_task(ref: Any) -> int:
    return int(sparkray.get(total.remote([ref]), timeout=60))


@pytest.mark.parametrize("read", [read_here, read_by_a_task, read_inside_a_task])
def test_a_lost_object_is_made_again_when_it_is_read(
    place: Place, array: Any, read: Callable[[Any], int]
) -> None:
    ref = array.remote(3)
    sparkray.wait([ref])
    place.lose()
    assert place.made() == ["array"]
    assert read(ref) == expected(3)
    assert read(ref) == expected(3)
    assert place.made() == ["array"]


def test_what_it_is_made_of_is_made_again_too_though_nobody_holds_it(
    place: Place, array: Any
) -> None:
    small = sparkray.remote(lambda: 1).remote()
    first = array.remote(small, "first")
    second = array.remote(first, "second")
    last = array.remote(second, "last")
    other = array.remote(second, "other")
    sparkray.wait([last, other], num_returns=2)
    del small, first, second
    until(lambda: len(rows()) == 2)
    place.lose()
    place.made()
    want = sum(3 * i for i in range(SIZE)) + SIZE
    assert read_here(last) == want
    assert place.made() == ["first", "last", "second"]
    until(lambda: len(rows()) == 2)
    assert read_here(other) == want
    assert place.made() == ["first", "other", "second"]
    del last, other
    until(lambda: not rows())


def test_refs_inside_of_arguments_are_kept_as_well(place: Place, array: Any) -> None:
    runs = place.runs

    @sparkray.remote
    def outer(refs: list[Any]) -> Any:
        runs.add("outer")
        return sparkray.get(refs[0]) + 1

    inner = array.remote(1, "inner")
    ref = outer.remote([inner])
    sparkray.wait([ref])
    del inner
    until(lambda: len(rows()) == 1)
    place.lose()
    place.made()
    assert read_here(ref) == expected(2)
    assert place.made() == ["inner", "outer"]


def test_of_several_returns_those_that_are_lost_come_back(place: Place) -> None:
    runs = place.runs

    @sparkray.remote(num_returns=4)
    def several() -> Any:
        runs.add("several")
        return 1, np.arange(SIZE), np.arange(SIZE) + 1, "small"

    refs = several.remote()
    sparkray.wait(refs, num_returns=4)
    first_sum = int(sparkray.get(refs[1]).sum())  # there is a copy on this node now
    place.lose()
    assert sparkray.get([refs[0], refs[3]]) == [1, "small"]
    assert read_here(refs[1]) == first_sum
    assert place.made() == ["several"]
    del refs[1]
    assert read_here(refs[1]) == expected(1)
    assert place.made() == ["several"]
    del refs
    until(lambda: not rows())


@pytest.mark.parametrize("num_returns", ["dynamic", "streaming"])
def test_items_of_generators_come_back(place: Place, num_returns: str) -> None:
    runs = place.runs
    given: dict[str, Any] = {"num_returns": num_returns}
    if num_returns == "streaming":
        given["_generator_backpressure_num_objects"] = 1

    @sparkray.remote(**given)
    def items() -> Iterator[Any]:
        runs.add("items")
        for index in range(4):
            yield np.arange(SIZE) + index

    made = items.remote()
    refs = list(sparkray.get(made) if num_returns == "dynamic" else made)
    assert len(refs) == 4
    del refs[1]
    place.lose()
    place.made()
    assert [read_here(ref) for ref in refs] == [expected(base) for base in (0, 2, 3)]
    assert len(place.made()) <= 3
    del refs, made
    until(lambda: not rows())


def test_an_actor_that_may_repeat_calls_makes_its_objects_again(place: Place) -> None:
    @sparkray.remote(num_cpus=1, max_restarts=-1, max_task_retries=2)
    class Maker:
        def make(self) -> Any:
            return np.arange(SIZE)

    maker = Maker.remote()
    ref = maker.make.remote()
    once = maker.make.options(max_task_retries=0).remote()
    sparkray.wait([ref, once], num_returns=2)
    place.lose()
    assert read_here(ref) == expected(0)
    with pytest.raises(ObjectLostError, match=r"again: an actor .* max_task_retries"):
        sparkray.get(once)


def test_calls_of_an_actor_that_need_each_other_are_made_again(place: Place) -> None:
    @sparkray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)
    class Maker:
        def load(self) -> Any:
            return np.arange(SIZE)

        def step(self, values: Any) -> Any:
            return values + 1

    maker = Maker.remote()
    loaded = maker.load.remote()
    stepped = maker.step.remote(loaded)
    sparkray.wait([stepped])
    place.lose()
    assert read_here(stepped) == expected(1)
    del loaded
    assert read_here(maker.step.remote(stepped)) == expected(2)


def test_an_argument_that_had_failed_fails_again(place: Place) -> None:
    @sparkray.remote
    def bad() -> None:
        raise KeyError("bad")

    @sparkray.remote
    def tolerant(refs: list[Any]) -> Any:
        try:
            sparkray.get(refs[0])
        except KeyError:
            return np.arange(SIZE)
        return "no error"

    failed = bad.remote()
    ref = tolerant.remote([failed])
    sparkray.wait([ref])
    del failed
    place.lose()
    assert read_here(ref) == expected(0)


def test_a_stream_that_is_held_back_goes_on_on_another_node(
    place: Place, tmp_path: Path
) -> None:
    @sparkray.remote(num_returns="streaming", _generator_backpressure_num_objects=2)
    def items() -> Iterator[Any]:
        for index in range(8):
            yield np.arange(SIZE) + index

    stream = items.remote()
    taken = [next(stream) for _ in range(3)]
    place.lose()
    assert read_here(taken[0]) == expected(0)  # the others: when they are made again
    taken += list(stream)
    assert [read_here(ref) for ref in taken] == [expected(base) for base in range(8)]
    del taken, stream
    until(lambda: not rows())


def test_why_an_object_cannot_be_made_again_is_said(place: Place, array: Any) -> None:
    once = array.options(max_retries=1).remote(0)
    never = array.options(max_retries=0).remote(0)
    large = array.remote(np.arange(SIZE))

    @sparkray.remote(num_cpus=1)
    class Holder:
        def __init__(self) -> None:
            self.ref = sparkray.put(np.arange(SIZE))

        def give(self) -> Any:
            return [self.ref]

    holder = Holder.remote()
    (put,) = sparkray.get(holder.give.remote())
    user = total.remote(put)
    refs = [once, never, large, user]
    sparkray.wait(refs, num_returns=4)
    place.lose()
    with pytest.raises(ObjectLostError, match="max_retries=0"):
        sparkray.get(never, timeout=60)
    with pytest.raises(ObjectLostError, match="too large to be kept"):
        sparkray.get(total.remote(large), timeout=60)
    with pytest.raises(ObjectLostError):  # its owner died with the node
        sparkray.get(put, timeout=60)
    assert read_here(once) == expected(0)
    place.lose()
    value = sparkray.get(user, timeout=60)
    assert value == expected(0), "small values live with their owner"


def test_each_loss_costs_a_retry(place: Place, array: Any) -> None:
    ref = array.options(max_retries=1).remote(0)
    user = total.remote(ref)
    assert sparkray.get(user) == expected(0)
    place.lose()
    assert read_by_a_task(ref) == expected(0)
    place.lose()
    with pytest.raises(ObjectLostError, match="no retries left"):
        read_by_a_task(ref)
    with pytest.raises(ObjectLostError, match="no retries left"):
        sparkray.get(ref, timeout=60)


def test_waiting_for_what_is_made_again_ends_in_time(
    place: Place, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    runs = place.runs

    @sparkray.remote
    def slow() -> Any:
        runs.add("slow")
        if runs.count() > 1:
            gate.wait()
        return np.arange(SIZE)

    ref = slow.remote()
    sparkray.wait([ref])
    place.lose()
    with pytest.raises(GetTimeoutError, match="slow"):
        sparkray.get(ref, timeout=1)
    assert sparkray.wait([ref], timeout=0)[0] == []
    gate.open()
    assert read_here(ref) == expected(0)


def test_an_error_of_the_second_run_is_the_users(place: Place) -> None:
    runs = place.runs

    @sparkray.remote
    def fragile() -> Any:
        runs.add("fragile")
        if runs.count() > 1:
            raise KeyError("not again")
        return np.arange(SIZE)

    ref = fragile.remote()
    sparkray.wait([ref])
    place.lose()
    with pytest.raises(KeyError, match="not again"):
        sparkray.get(ref, timeout=60)


def test_a_borrower_that_outlives_the_loss_gets_it_from_its_owner(
    place: Place, array: Any
) -> None:
    @sparkray.remote(num_cpus=0)
    class Keeper:
        def keep(self, refs: list[Any]) -> None:
            self.ref = refs[0]

        def read(self) -> int:
            return int(sparkray.get(self.ref).sum())

    here = NodeAffinitySchedulingStrategy(place.cluster.head_node.node_id, soft=False)
    keeper = Keeper.options(scheduling_strategy=here).remote()
    ref = array.remote(5)
    sparkray.get(keeper.keep.remote([ref]))
    sparkray.wait([ref])
    place.lose()
    assert sparkray.get(keeper.read.remote(), timeout=60) == expected(5)
    del ref
    assert sparkray.get(keeper.read.remote(), timeout=60) == expected(5)


def test_an_owner_inside_of_a_task_makes_its_objects_again(
    place: Place, tmp_path: Path
) -> None:
    gate, begun = Gate(tmp_path), Gate(tmp_path)
    here = NodeAffinitySchedulingStrategy(place.cluster.head_node.node_id, soft=False)

    @sparkray.remote
    def child(base: int) -> Any:
        return np.arange(SIZE) + base

    @sparkray.remote(num_cpus=0, scheduling_strategy=here)
    def owner() -> list[int]:
        first = child.remote(1)
        refs = [first, *(total.remote([child.remote(base)]) for base in range(3))]
        sparkray.wait(refs, num_returns=4)
        begun.open()
        gate.wait()
        return [int(sparkray.get(first).sum()), *sparkray.get(refs[1:])]

    result = owner.remote()
    begun.wait()
    place.lose()
    gate.open()
    assert sparkray.get(result, timeout=60) == [expected(1), *map(expected, range(3))]


def test_many_that_are_lost_are_made_again_at_once(place: Place, array: Any) -> None:
    refs = [array.remote(base) for base in range(60)]
    sparkray.wait(refs, num_returns=60)
    place.lose()
    place.made()
    values = sparkray.get(refs, timeout=60)
    assert [int(value.sum()) for value in values] == [expected(b) for b in range(60)]
    assert len(place.made()) == 60


def test_what_is_damaged_on_disk_is_made_again(fresh: Any, cluster_root: Path) -> None:
    fresh.init(num_cpus=1, object_store_memory=8 << 20)

    @sparkray.remote
    def make(base: int) -> Any:
        return np.arange(4 * SIZE) + base

    refs = [make.remote(base) for base in range(12)]
    sparkray.wait(refs, num_returns=12)

    def spilled() -> list[Path]:
        files = list(cluster_root.glob("*/spill/*/*"))
        return [] if any(file.suffix == ".draft" for file in files) else files

    for file in until(spilled):
        file.write_bytes(b"damaged" + file.read_bytes()[7:])
    for base, ref in enumerate(refs):
        value = sparkray.get(ref, timeout=60)
        assert value[0] == base and len(value) == 4 * SIZE


@pytest.mark.parametrize("seed", [1, 2])
def test_a_graph_of_tasks_is_right_though_nodes_die(place: Place, seed: int) -> None:
    chosen = random.Random(seed)

    @sparkray.remote(max_retries=-1)
    def combine(salt: int, *values: Any) -> Any:
        return np.full(SIZE, (sum(int(v[-1]) for v in values) + salt) % 1_000_003)

    @sparkray.remote(max_retries=-1)
    def combine_inside(salt: int, refs: list[Any]) -> Any:
        return sparkray.get(combine.remote(salt, *refs))

    made: list[tuple[Any, int]] = []
    for step in range(120):
        inputs = chosen.sample(made, min(len(made), chosen.randrange(4)))
        refs = [ref for ref, _ in inputs]
        salt = chosen.randrange(1_000_003)
        if chosen.random() < 0.2:
            ref = combine_inside.remote(salt, refs)
        else:
            ref = combine.remote(salt, *refs)
        made.append((ref, (sum(x for _, x in inputs) + salt) % 1_000_003))
        if len(made) > 20:
            made.pop(chosen.randrange(len(made)))  # tasks that need it keep it
        if step % 40 == 39:
            place.lose()
        elif chosen.random() < 0.05:
            ref, x = chosen.choice(made)
            assert sparkray.get(ref, timeout=100)[0] == x
    chosen.shuffle(made)
    for ref, x in made:
        value = sparkray.get(ref, timeout=100)
        assert value[0] == value[-1] == x
    del made, ref, refs, inputs, value
    until(lambda: not rows())


def test_too_many_kept_tasks_are_dropped_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKRAY_LINEAGE_MAX_BYTES", "5000")

    @sparkray.remote
    def make(index: int) -> Any:
        return np.arange(SIZE) + index

    with Cluster(head_node_args={"num_cpus": 0}) as cluster:
        sparkray.init(address=cluster.address)
        place = Place(cluster, tmp_path)
        refs = [make.remote(index) for index in range(20)]
        sparkray.wait(refs, num_returns=20)
        place.lose()
        assert read_here(refs[19]) == expected(19)
        with pytest.raises(ObjectLostError, match="lineage_max_bytes"):
            sparkray.get(refs[0])
        sparkray.shutdown()
