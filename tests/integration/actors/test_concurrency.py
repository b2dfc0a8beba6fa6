"""Threads, coroutines, groups, cancellation and limits of actors."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import sparkray
from sparkray.exceptions import (
    ActorDiedError,
    PendingCallsLimitExceeded,
    TaskCancelledError,
    WorkerCrashedError,
)
from tests.support import Gate, Tally, until

pytestmark = pytest.mark.usefixtures("shared")


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


@sparkray.remote
class Threaded:
    def __init__(self) -> None:
        self.inside, self.most = 0, 0
        self.lock = threading.Lock()

    def meet(self, gate: Gate) -> int:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        gate.wait()
        with self.lock:
            self.inside -= 1
        return self.most

    def count(self) -> int:
        return self.inside

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@sparkray.remote
class Mixed:
    """Blocking and async methods side by side."""

    def __init__(self) -> None:
        self.inside = 0

    def block(self, gate: Gate) -> str:
        gate.wait()
        return threading.current_thread().name

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def hello(self) -> str:
        return "hello"

    async def count(self) -> int:
        return self.inside

    async def meet(self, gate: Gate) -> int:
        self.inside += 1
        while not os.path.exists(gate._path):
            await asyncio.sleep(0.01)
        return self.inside

    async def forever(self, tally: Tally) -> None:
        self.inside += 1
        try:
            await asyncio.sleep(1000)
        finally:
            tally.add("ended")
            self.inside -= 1

    async def read(self, refs: list[Any]) -> list[Any]:
        first = await refs[0]
        return [first, *await asyncio.gather(*refs[1:])]

    async def plus(self, a: int, b: int) -> int:
        return a + b

    async def fail(self) -> None:
        raise LookupError("async failure")

    async def leave(self) -> None:
        from sparkray.actor import exit_actor

        exit_actor()


# --- threads ---


def test_calls_run_one_at_a_time_unless_the_actor_says_otherwise(gate: Gate) -> None:
    actor = Threaded.remote()
    refs = [actor.meet.remote(gate) for _ in range(3)]
    assert sparkray.wait(refs, timeout=0.3)[0] == []
    gate.open()
    assert sparkray.get(refs, timeout=20) == [1, 1, 1]


def test_as_many_threads_as_asked_for_and_no_more(gate: Gate) -> None:
    actor = Threaded.options(max_concurrency=4).remote()
    refs = [actor.meet.remote(gate) for _ in range(6)]
    assert sparkray.wait(refs, timeout=0.5)[0] == []
    gate.open()
    assert max(sparkray.get(refs, timeout=20)) == 4


@pytest.mark.parametrize("cls", [Threaded, Mixed])
def test_blocking_calls_share_the_concurrency_with_or_without_async_methods(
    cls: Any,
) -> None:
    actor = cls.options(max_concurrency=3).remote()
    sparkray.get(actor.count.remote(), timeout=20)
    started = time.monotonic()
    sparkray.get([actor.sleep.remote(1) for _ in range(3)], timeout=20)
    assert time.monotonic() - started < 2.5


def test_a_blocking_method_never_stops_the_event_loop(gate: Gate) -> None:
    actor = Mixed.remote()
    blocking = actor.block.remote(gate)
    assert sparkray.get(actor.hello.remote(), timeout=20) == "hello"
    gate.open()
    assert "sparkray" in sparkray.get(blocking, timeout=20)


# --- coroutines ---


def test_a_thousand_coroutines_run_at_a_time_by_default(gate: Gate) -> None:
    actor = Mixed.remote()
    refs = [actor.meet.remote(gate) for _ in range(1100)]
    count = actor.count
    # The thousand hold every place, so the question for their number has to wait.
    assert sparkray.wait([count.remote()], timeout=0.5)[0] == []
    gate.open()
    assert max(sparkray.get(refs, timeout=40)) >= 1000


def test_coroutines_keep_to_a_limit(gate: Gate) -> None:
    actor = Mixed.options(max_concurrency=2).remote()
    assert sparkray.get(actor.hello.remote(), timeout=20) == "hello"
    refs = [actor.meet.remote(gate) for _ in range(4)]
    assert sparkray.wait(refs, timeout=0.5)[0] == []
    gate.open()
    assert sparkray.get(refs[0], timeout=20) == 2


def test_refs_are_awaited_inside_of_coroutines() -> None:
    @sparkray.remote
    def slow(x: int) -> int:
        return x * x

    actor = Mixed.remote()
    refs = [slow.remote(n) for n in range(4)]
    assert sparkray.get(actor.read.remote(refs), timeout=20) == [0, 1, 4, 9]


def test_ref_arguments_of_coroutines_are_values() -> None:
    actor = Mixed.remote()
    first = actor.plus.remote(1, 2)
    assert sparkray.get(actor.plus.remote(first, sparkray.put(10)), timeout=20) == 13


class Shelf:
    """Keeps refs that its calls bring."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def keep(self, box: list[Any], begun: Tally, gate: Gate) -> None:
        self.kept += box
        begun.add()
        gate.wait()

    def hello(self) -> str:
        return "hello"

    def read(self) -> list[int]:
        return [len(value) for value in sparkray.get(self.kept, timeout=20)]


class AsyncShelf(Shelf):
    async def keep(self, box: list[Any], begun: Tally, gate: Gate) -> None:  # type: ignore[override]
        self.kept += box
        begun.add()
        while not gate.is_open():
            await asyncio.sleep(0.01)

    async def hello(self) -> str:  # type: ignore[override]
        return "hello"


@pytest.mark.parametrize("shelf", [Shelf, AsyncShelf])
def test_refs_that_one_call_brings_are_kept_though_another_call_ends_first(
    shelf: Any, gate: Gate, tmp_path: Path
) -> None:
    """Who brought a ref is who has to hear that the actor holds it now."""

    @sparkray.remote
    def another_caller(actor: Any) -> str:
        return str(sparkray.get(actor.hello.remote(), timeout=20))

    actor = sparkray.remote(max_concurrency=4)(shelf).remote()
    begun = Tally(tmp_path)
    box = [sparkray.put(bytes(10)), sparkray.put(bytes(500_000))]
    call = actor.keep.remote(box, begun, gate)
    until(begun.count)
    assert sparkray.get(another_caller.remote(actor), timeout=20) == "hello"
    gate.open()
    sparkray.get(call, timeout=20)
    del box
    until(lambda: sparkray.get(actor.hello.remote()))  # the drop is told before
    assert sparkray.get(actor.read.remote(), timeout=20) == [10, 500_000]


def test_errors_and_exits_of_coroutines() -> None:
    actor = Mixed.remote()
    with pytest.raises(LookupError, match="async failure"):
        sparkray.get(actor.fail.remote(), timeout=20)
    assert sparkray.get(actor.hello.remote(), timeout=20) == "hello"
    with pytest.raises(ActorDiedError, match="exit_actor"):
        sparkray.get(actor.leave.remote(), timeout=20)


def test_async_actors_restart() -> None:
    @sparkray.remote(max_restarts=1, max_task_retries=1)
    class Fragile:
        def __init__(self) -> None:
            self.calls = 0

        async def crash(self, tally: Tally) -> int:
            tally.add()
            if tally.count() == 1:
                os._exit(1)
            return tally.count()

        async def hello(self) -> str:
            return "hello"

    with tempfile.TemporaryDirectory() as directory:
        actor = Fragile.remote()
        assert sparkray.get(actor.crash.remote(Tally(Path(directory))), timeout=30) == 2
        assert sparkray.get(actor.hello.remote(), timeout=20) == "hello"


# --- groups ---


@sparkray.remote(concurrency_groups={"io": 2, "compute": 1})
class Grouped:
    def __init__(self) -> None:
        self.inside = 0

    @sparkray.method(concurrency_group="io")
    async def read(self, gate: Gate) -> int:
        self.inside += 1
        inside = self.inside
        while not os.path.exists(gate._path):
            await asyncio.sleep(0.01)
        self.inside -= 1
        return inside

    @sparkray.method(concurrency_group="compute")
    def compute(self, gate: Gate) -> str:
        gate.wait()
        return threading.current_thread().name

    async def free(self) -> str:
        return "free"


def test_groups_have_places_of_their_own(gate: Gate) -> None:
    actor = Grouped.remote()
    reads = [actor.read.remote(gate) for _ in range(5)]
    computes = [actor.compute.remote(gate) for _ in range(2)]
    assert sparkray.get(actor.free.remote(), timeout=20) == "free"
    assert sparkray.wait([*reads, *computes], timeout=0.3)[0] == []
    gate.open()
    assert max(sparkray.get(reads, timeout=20)) == 2
    assert len(set(sparkray.get(computes, timeout=20))) == 1


def test_a_call_may_choose_its_group(gate: Gate) -> None:
    actor = Grouped.remote()
    blocked = [actor.compute.remote(gate)]
    other = actor.compute.options(concurrency_group="io").remote(gate)
    gate.open()
    assert "io" in sparkray.get(other, timeout=20)
    sparkray.get(blocked, timeout=20)


def test_a_group_that_does_not_exist_is_refused_where_it_is_named() -> None:
    with pytest.raises(ValueError, match="concurrency_groups does not list"):

        @sparkray.remote
        class Wrong:
            @sparkray.method(concurrency_group="nowhere")
            def call(self) -> None: ...

    actor = Grouped.remote()
    with pytest.raises(ValueError, match="nowhere"):
        actor.free.options(concurrency_group="nowhere").remote()


def test_an_async_method_in_a_group_of_blocking_ones_is_refused_where_it_is_put() -> (
    None
):
    with pytest.raises(ValueError, match=r"Both\.later is async.*'io'.*now"):

        @sparkray.remote(concurrency_groups={"io": 1})
        class Both:
            @sparkray.method(concurrency_group="io")
            def now(self) -> None: ...

            @sparkray.method(concurrency_group="io")
            async def later(self) -> None: ...

    actor = Grouped.remote()
    with pytest.raises(ValueError, match=r"Grouped\.free is async.*'compute'"):
        actor.free.options(concurrency_group="compute").remote()


# --- cancel ---


def test_a_running_coroutine_is_cancelled_inside(tmp_path: Path) -> None:
    tally, actor = Tally(tmp_path), Mixed.remote()
    ref = actor.forever.remote(tally)
    until(lambda: sparkray.get(actor.count.remote(), timeout=20) == 1)
    sparkray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        sparkray.get(ref, timeout=20)
    assert tally.lines() == ["ended"]
    assert sparkray.get(actor.count.remote(), timeout=20) == 0


@pytest.mark.parametrize("cls", ["plain", "threaded", "async"])
def test_a_call_that_has_not_begun_is_cancelled(cls: str, gate: Gate) -> None:
    made: Any = {
        "plain": Threaded,
        "threaded": Threaded.options(max_concurrency=2),
        "async": Mixed.options(max_concurrency=1),
    }[cls]
    actor = made.remote()
    running = [actor.meet.remote(gate) for _ in range(1 + (cls == "threaded"))]
    waiting = actor.meet.remote(gate)
    sparkray.wait(running, timeout=0.3)
    sparkray.cancel(waiting)
    with pytest.raises(TaskCancelledError):
        sparkray.get(waiting, timeout=20)
    gate.open()
    assert max(sparkray.get(running, timeout=20)) <= 2


def test_force_is_refused_for_calls_of_actors(gate: Gate) -> None:
    actor = Threaded.remote()
    ref = actor.meet.remote(gate)
    with pytest.raises(ValueError, match=r"sparkray\.kill"):
        sparkray.cancel(ref, force=True)
    gate.open()
    sparkray.get(ref, timeout=20)


def test_coroutines_of_a_caller_that_died_are_cancelled(tmp_path: Path) -> None:
    tally, actor = Tally(tmp_path), Mixed.remote()

    @sparkray.remote(max_retries=0)
    def die(actor: Any) -> None:
        actor.forever.remote(tally)
        until(lambda: sparkray.get(actor.count.remote()) == 2)
        os.kill(os.getpid(), signal.SIGKILL)

    own = actor.forever.remote(tally)
    with pytest.raises(WorkerCrashedError):
        sparkray.get(die.remote(actor), timeout=40)
    until(lambda: sparkray.get(actor.count.remote(), timeout=20) == 1)
    assert tally.lines() == ["ended"]
    sparkray.cancel(own)


def test_what_a_cancelled_call_has_started_is_cancelled_too(tmp_path: Path) -> None:
    tally = Tally(tmp_path)

    @sparkray.remote
    def child(tally: Tally) -> None:
        tally.add("begun")
        try:
            time.sleep(1000)
        finally:
            tally.add("ended")

    @sparkray.remote
    class Parent:
        async def call(self, tally: Tally) -> None:
            await child.remote(tally)

    actor = Parent.remote()
    ref = actor.call.remote(tally)
    until(tally.count)
    sparkray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        sparkray.get(ref, timeout=20)
    until(lambda: tally.lines() == ["begun", "ended"])


# --- limits and order ---


def test_no_more_calls_wait_than_the_actor_allows(gate: Gate) -> None:
    actor = Threaded.options(max_pending_calls=3).remote()
    refs = [actor.meet.remote(gate) for _ in range(3)]
    with pytest.raises(PendingCallsLimitExceeded, match="Threaded"):
        actor.meet.remote(gate)
    gate.open()
    sparkray.get(refs, timeout=20)
    assert sparkray.get(actor.count.remote(), timeout=20) == 0


def test_out_of_order_actors_run_what_is_ready(gate: Gate) -> None:
    @sparkray.remote
    def late(gate: Gate) -> str:
        gate.wait()
        return "late"

    @sparkray.remote(allow_out_of_order_execution=True)
    class Notes:
        def __init__(self) -> None:
            self.seen: list[str] = []

        def note(self, text: str) -> list[str]:
            self.seen.append(text)
            return self.seen

    actor = Notes.remote()
    first = actor.note.remote(late.remote(gate))
    assert sparkray.get(actor.note.remote("early"), timeout=20) == ["early"]
    gate.open()
    assert sparkray.get(first, timeout=20) == ["early", "late"]


def test_a_hundred_actors_fit_on_four_cpus() -> None:
    @sparkray.remote
    class Small:
        def number(self, n: int) -> int:
            return n

    actors = [Small.options(num_cpus=0.02 if n % 2 else 0).remote() for n in range(100)]
    refs = [actor.number.remote(n) for n, actor in enumerate(actors)]
    assert sparkray.get(refs, timeout=55) == list(range(100))


# --- forks ---


@sparkray.remote
class Forker:
    def pool(self) -> list[int]:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            return pool.map(abs, [-1, -2])

    def child_uses_sparkray(self, ref: list[Any]) -> int:
        pid = os.fork()
        if not pid:
            try:
                sparkray.get(sparkray.put(5), timeout=5)
                os._exit(0)
            except BaseException:
                os._exit(7)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def hello(self) -> str:
        return "hello"


@pytest.mark.parametrize("threads", [1, 2])
def test_an_actor_may_fork_a_pool(threads: int) -> None:
    actor = Forker.options(max_concurrency=threads).remote()
    assert sparkray.get(actor.pool.remote(), timeout=20) == [1, 2]
    assert sparkray.get(actor.hello.remote(), timeout=10) == "hello"


def test_a_forked_child_of_an_actor_works_or_raises() -> None:
    actor = Forker.remote()
    code = sparkray.get(actor.child_uses_sparkray.remote([]), timeout=20)
    assert code in (0, 7)
    assert sparkray.get(actor.hello.remote(), timeout=10) == "hello"


# --- context ---


def test_an_actor_knows_itself() -> None:
    @sparkray.remote(num_cpus=0.5, resources={"gadget": 1})
    class Who:
        def ids(self) -> dict[str, Any]:
            context = sparkray.get_runtime_context()
            return {
                **context.get(),
                "name": context.get_actor_name(),
                "task_name": context.get_task_name(),
                "resources": context.get_assigned_resources(),
                "again": context.was_current_actor_reconstructed,
            }

        async def later(self) -> str | None:
            return sparkray.get_runtime_context().get_task_name()

    actor = Who.options(name="who").remote()
    ids = sparkray.get(actor.ids.remote(), timeout=20)
    here = sparkray.get_runtime_context()
    assert ids["actor_id"] == actor._actor_id.hex()
    assert ids["job_id"] == here.get_job_id() and ids["node_id"] == here.get_node_id()
    assert ids["worker_id"] != here.get_worker_id()
    assert (ids["name"], ids["task_name"], ids["again"]) == ("who", "Who.ids", False)
    assert ids["resources"] == {"CPU": 0.5, "gadget": 1.0}
    assert sparkray.get(actor.later.remote(), timeout=20) == "Who.later"
    assert here.get_actor_id() is None


def test_a_plain_method_may_set_an_event_that_coroutines_wait_for() -> None:
    @sparkray.remote
    class Signal:
        def __init__(self) -> None:
            self.sent = asyncio.Event()

        def send(self) -> None:
            self.sent.set()

        async def wait(self) -> str:
            await self.sent.wait()
            return "sent"

    signal = Signal.remote()
    waiting = [signal.wait.remote() for _ in range(3)]
    assert sparkray.wait(waiting, timeout=0.2)[0] == []
    sparkray.get(signal.send.remote())
    assert sparkray.get(waiting, timeout=20) == ["sent"] * 3
