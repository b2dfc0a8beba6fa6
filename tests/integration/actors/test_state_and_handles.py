"""State, order and handles: what a user may do with one actor and many callers."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

import sparkray
from sparkray.exceptions import ActorDiedError
from tests.support import Gate, Tally, quiet, until

pytestmark = pytest.mark.usefixtures("shared")


@sparkray.remote
class Counter:
    """Keeps what it was told."""

    start = 100

    def __init__(self, value: int = 0) -> None:
        self.value = value
        self.seen: list[Any] = []

    def add(self, by: int = 1) -> int:
        self.value += by
        return self.value

    def note(self, item: Any) -> None:
        self.seen.append(item)

    def notes(self) -> list[Any]:
        return self.seen

    def pid(self) -> int:
        return os.getpid()

    def wait(self, gate: Gate) -> int:
        gate.wait()
        return self.value

    def from_start(self) -> int:
        return self.start + self.value

    @staticmethod
    def double(x: int) -> int:
        return 2 * x

    @classmethod
    def label(cls, x: int) -> str:
        return f"{cls.__name__}{x}"


@sparkray.remote
def add_in_task(counter: Any, count: int) -> int:
    return max(sparkray.get([counter.add.remote() for _ in range(count)]))


@sparkray.remote
def note_in_task(counter: Any, caller: int, count: int) -> None:
    sparkray.get([counter.note.remote((caller, i)) for i in range(count)])


@sparkray.remote
def same(first: Any, second: Any) -> bool:
    return first == second and hash(first) == hash(second) and len({first, second}) == 1


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter while it is read
        return False


def test_an_actor_keeps_its_state_between_calls() -> None:
    counter = Counter.remote(5)
    assert sparkray.get([counter.add.remote() for _ in range(3)]) == [6, 7, 8]


def test_two_actors_of_a_class_share_nothing() -> None:
    first, second = Counter.remote(), Counter.remote(10)
    sparkray.get(first.add.remote())
    assert sparkray.get(second.add.remote()) == 11
    assert sparkray.get(first.pid.remote()) != sparkray.get(second.pid.remote())


def test_static_and_class_methods_and_constants_work() -> None:
    counter = Counter.remote(1)
    assert sparkray.get(counter.double.remote(4)) == 8
    assert sparkray.get(counter.label.remote(4)) == "Counter4"
    assert sparkray.get(counter.from_start.remote()) == 101


def test_the_calls_of_each_thread_run_in_its_order() -> None:
    counter = Counter.remote()

    def call(caller: int) -> None:
        for i in range(100):
            counter.note.remote((caller, i))

    threads = [threading.Thread(target=call, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    notes = sparkray.get(counter.notes.remote())
    for caller in range(4):
        assert [i for c, i in notes if c == caller] == list(range(100))


def test_calls_in_bursts_that_nobody_waits_for_are_sent() -> None:
    counter = Counter.remote()
    sparkray.get([counter.add.remote(0) for _ in range(20)])  # now known as short
    for total in range(25, 1000, 25):
        for _ in range(24):
            counter.add.remote()
        last = counter.add.remote()
        until(lambda last=last: sparkray.wait([last], timeout=0)[0])
        assert sparkray.get(last) == total


def test_the_calls_of_each_task_run_in_its_order() -> None:
    counter = Counter.remote()
    sparkray.get([note_in_task.remote(counter, n, 50) for n in range(3)])
    notes = sparkray.get(counter.notes.remote())
    for caller in range(3):
        assert [i for c, i in notes if c == caller] == list(range(50))


def test_a_call_that_waits_for_its_argument_is_not_overtaken() -> None:
    counter = Counter.remote()
    gate = Gate_()

    @sparkray.remote
    def late(gate: Gate) -> str:
        gate.wait()
        return "late"

    counter.note.remote(late.remote(gate))
    after = counter.note.remote("after")
    assert sparkray.wait([after], timeout=0.2)[0] == []
    gate.open()
    assert sparkray.get(counter.notes.remote()) == ["late", "after"]


def test_a_call_whose_argument_failed_fails_and_the_next_ones_run() -> None:
    counter = Counter.remote()

    @sparkray.remote
    def fail() -> None:
        raise LookupError("no value")

    bad = counter.add.remote(fail.remote())
    good = counter.add.remote(3)
    with pytest.raises(LookupError, match="no value"):
        sparkray.get(bad)
    assert sparkray.get(good) == 3


@pytest.mark.parametrize("how", ["fails", "is cancelled"])
def test_the_next_calls_run_when_the_one_they_waited_behind(how: str) -> None:
    @sparkray.remote
    def late(gate: Gate) -> None:
        gate.wait()
        raise LookupError("no value")

    counter, gate = Counter.remote(), Gate_()
    sparkray.get(counter.add.remote())
    head = counter.add.remote(late.remote(gate))
    behind = counter.add.remote(3)
    assert sparkray.wait([behind], timeout=0.2)[0] == []
    if how == "fails":
        gate.open()
    else:
        sparkray.cancel(head)
    assert sparkray.get(behind, timeout=20) == 4
    gate.open()


def test_handles_work_in_tasks_and_in_other_actors() -> None:
    @sparkray.remote
    class Caller:
        def __init__(self, counter: Any) -> None:
            self.counter = counter

        def call(self) -> int:
            return sparkray.get(self.counter.add.remote(10))

    counter = Counter.remote()
    assert sparkray.get(add_in_task.remote(counter, 5)) == 5
    assert sparkray.get(Caller.remote(counter).call.remote()) == 15


def test_handles_live_in_collections_and_in_the_store() -> None:
    counter = Counter.remote()
    ref = sparkray.put({"deep": [counter, (counter,)]})
    stored = sparkray.get(ref)
    assert stored["deep"][0] == counter == stored["deep"][1][0]
    assert sparkray.get(stored["deep"][0].add.remote()) == 1


def test_handles_of_one_actor_are_equal_wherever_they_come_from() -> None:
    first, second = Counter.remote(), Counter.remote()
    assert first != second and first != "something else"
    assert {first: 1}[first] == 1
    assert sparkray.get(same.remote(first, first))
    assert not sparkray.get(same.remote(first, second))


def test_an_actor_can_be_called_without_being_kept() -> None:
    assert sparkray.get(Counter.remote().add.remote(2)) == 2
    method = Counter.remote(5).add
    assert sparkray.get([method.remote(), method.remote()]) == [6, 7]


def test_an_actor_whose_handle_is_gone_ends_when_its_calls_have_run() -> None:
    counter, gate = Counter.remote(7), Gate_()
    pid = sparkray.get(counter.pid.remote())
    result = counter.wait.remote(gate)
    more = counter.add.remote()
    del counter
    assert quiet(lambda: alive(pid), 0.5), "it must finish its calls"
    gate.open()
    assert sparkray.get([result, more]) == [7, 8]
    until(lambda: not alive(pid), 5, "the actor lives on")


def test_an_actor_that_nobody_ever_called_ends_with_its_handle() -> None:
    before = len(actors_alive())
    counter = Counter.remote()
    until(lambda: len(actors_alive()) == before + 1)
    del counter
    until(lambda: len(actors_alive()) == before, 5)


def actors_alive() -> list[Any]:
    from sparkray.protocol import actors as p
    from sparkray.runtime import core

    rows = core.current().head_call("ListActors", p.ListActors()).actors
    return [row for row in rows if row.state != p.DEAD]


def test_a_borrowed_handle_keeps_the_actor() -> None:
    @sparkray.remote
    class Keeper:
        def keep(self, handles: list[Any]) -> None:
            self.handles = handles

        def call(self) -> int:
            return sparkray.get(self.handles[0].pid.remote())

        def drop(self) -> None:
            self.handles = []

    counter, keeper = Counter.remote(), Keeper.remote()
    pid = sparkray.get(counter.pid.remote())
    sparkray.get(keeper.keep.remote([counter]))
    del counter
    assert quiet(lambda: alive(pid), 0.7)
    assert sparkray.get(keeper.call.remote()) == pid
    sparkray.get(keeper.drop.remote())
    until(lambda: not alive(pid), 5, "nobody has it any more")


def test_a_handle_in_the_store_keeps_the_actor() -> None:
    counter = Counter.remote()
    pid = sparkray.get(counter.pid.remote())
    ref = sparkray.put([counter])
    del counter
    assert quiet(lambda: alive(pid), 0.5)
    del ref
    until(lambda: not alive(pid), 5)


def test_the_death_of_an_actor_frees_its_resources() -> None:
    holder = Counter.options(resources={"gadget": 2}).remote()
    sparkray.get(holder.add.remote())
    until(lambda: sparkray.available_resources().get("gadget", 0) == 0, 5)
    sparkray.kill(holder)
    until(lambda: sparkray.available_resources().get("gadget") == 2, 5)
    again = Counter.options(resources={"gadget": 2}).remote()
    assert sparkray.get(again.add.remote(), timeout=10) == 1
    del again
    until(lambda: sparkray.available_resources().get("gadget") == 2, 5)


def test_an_actor_that_waits_for_resources_starts_when_they_are_free() -> None:
    first = Counter.options(resources={"gadget": 2}).remote()
    sparkray.get(first.add.remote())
    second = Counter.options(resources={"gadget": 1}).remote(5)
    call = second.add.remote()
    assert sparkray.wait([call], timeout=0.5)[0] == []
    del first
    assert sparkray.get(call, timeout=10) == 6


def test_actors_end_with_the_process_that_made_them() -> None:
    @sparkray.remote
    class Parent:
        def make(self) -> Any:
            self.child = Counter.remote()
            return self.child

        def pid(self) -> int:
            return os.getpid()

    parent = Parent.remote()
    child = sparkray.get(parent.make.remote())
    pid = sparkray.get(child.pid.remote())
    sparkray.kill(parent)
    until(lambda: not alive(pid), 10)
    with pytest.raises(ActorDiedError, match="process that made it"):
        sparkray.get(child.add.remote())


def test_large_arguments_and_results_pass_through_the_store() -> None:
    @sparkray.remote
    class Echo:
        def __init__(self, first: bytes) -> None:
            self.first = first

        def size(self) -> int:
            return len(self.first)

        def twice(self, data: bytes) -> bytes:
            return data * 2

    echo = Echo.remote(b"x" * 3_000_000)
    assert sparkray.get(echo.size.remote()) == 3_000_000
    assert len(sparkray.get(echo.twice.remote(b"y" * 2_000_000))) == 4_000_000


def test_refs_inside_of_arguments_are_kept_by_the_instance() -> None:
    @sparkray.remote
    class Holder:
        def __init__(self, refs: list[Any]) -> None:
            self.refs = refs

        def read(self) -> Any:
            return sparkray.get(self.refs[0])

    holder = Holder.remote([sparkray.put("kept")])
    assert [sparkray.get(holder.read.remote()) for _ in range(3)] == ["kept"] * 3


def test_several_returns_and_none_as_the_method_says() -> None:
    @sparkray.remote
    class Several:
        @sparkray.method(num_returns=2)
        def two(self) -> tuple[int, int]:
            return 1, 2

        @sparkray.method(num_returns=0)
        def none(self) -> None: ...

    several = Several.remote()
    first, second = several.two.remote()
    assert sparkray.get([first, second]) == [1, 2]
    assert several.none.remote() is None
    assert sparkray.get(several.two.options(num_returns=1).remote()) == (1, 2)


def test_trees_of_actors_and_tasks() -> None:
    @sparkray.remote
    def leaf(n: int) -> int:
        return n

    @sparkray.remote
    class Node:
        def __init__(self, depth: int) -> None:
            self.children = [Node.remote(depth - 1) for _ in range(2 if depth else 0)]

        def total(self) -> int:
            mine = sparkray.get(leaf.remote(1))
            parts = sparkray.get([child.total.remote() for child in self.children])
            return int(mine + sum(parts))

    assert sparkray.get(Node.remote(2).total.remote(), timeout=50) == 7


def test_an_actor_may_hand_out_its_own_handle() -> None:
    @sparkray.remote
    class Self:
        def me(self) -> Any:
            return sparkray.get_runtime_context().current_actor

        def hello(self) -> str:
            return "hello"

    actor = Self.remote()
    me = sparkray.get(actor.me.remote())
    assert me == actor and sparkray.get(me.hello.remote()) == "hello"


def test_a_pending_call_inside_of_a_cancelled_task_does_no_harm(tmp_path: Any) -> None:
    counter, gate, tally = Counter.remote(), Gate(tmp_path), Tally(tmp_path)

    @sparkray.remote
    def parent(counter: Any, gate: Gate, tally: Tally) -> None:
        waiting = counter.wait.remote(gate)
        tally.add("called")
        sparkray.get(waiting)

    ref = parent.remote(counter, gate, tally)
    until(tally.count)
    sparkray.cancel(ref)
    with pytest.raises(sparkray.exceptions.TaskCancelledError):
        sparkray.get(ref, timeout=20)
    gate.open()
    assert sparkray.get(counter.add.remote(), timeout=20) == 1


def Gate_() -> Gate:
    import tempfile
    from pathlib import Path

    return Gate(Path(tempfile.gettempdir()))


def test_an_argument_may_be_called_self() -> None:
    class Taker:
        def __init__(this, self: int) -> None:
            this.value = self

        def add(this, self: int) -> int:
            return this.value + self

    actor = sparkray.remote(Taker).remote(self=1)
    assert sparkray.get(actor.add.remote(self=2), timeout=20) == 3
    double = sparkray.remote(lambda self: 2 * self)
    assert sparkray.get(double.remote(self=4), timeout=20) == 8


def test_a_handle_lists_the_methods_of_its_actor() -> None:
    assert {"add", "notes", "double"} <= set(dir(Counter.remote()))
