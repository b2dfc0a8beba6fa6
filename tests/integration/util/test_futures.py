import concurrent.futures
import functools
import gc
import os
import pickle
import sys
import threading
import time
import weakref
from concurrent.futures import BrokenExecutor
from typing import Any

import pytest

import sparkray
from sparkray.util.futures import Executor
from tests.support import Gate, Tally, run_driver, until

pytestmark = pytest.mark.usefixtures("shared")


def sleep_and_return(seconds: float, value: Any) -> Any:
    time.sleep(seconds)
    return value


def test_submit_takes_any_arguments() -> None:
    def show(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    with Executor() as executor:
        assert executor.submit(pow, 2, 8).result(timeout=30) == 256
        got = executor.submit(show, 1, self=2, fn=3).result(timeout=30)
        assert got == ((1,), {"self": 2, "fn": 3})
        assert executor.submit(os.getpid).result() != os.getpid()


def test_errors_are_kept_in_the_future() -> None:
    with Executor(2) as executor:
        future = executor.submit(divmod, 1, 0)
        assert isinstance(future.exception(timeout=30), ZeroDivisionError)
        with pytest.raises(ZeroDivisionError):
            future.result()
        unsent = executor.submit(len, threading.Lock())  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="lock"):
            unsent.result(timeout=30)
        assert executor.submit(int, "5").result(timeout=30) == 5


@pytest.mark.parametrize("chunksize", [1, 3, 50])
def test_map_keeps_order(chunksize: int) -> None:
    with Executor() as executor:
        got = executor.map(pow, range(10), [2] * 10, chunksize=chunksize)
        assert list(got) == [i * i for i in range(10)]
        with pytest.raises(ValueError, match="chunksize"):
            executor.map(pow, [1], chunksize=0)


def test_map_raises_when_the_failed_item_comes_or_time_is_up(tmp_path: Any) -> None:
    gate = Gate(tmp_path)
    with Executor() as executor:
        results = executor.map(divmod, [1, 1, 1], [1, 0, 1])
        assert next(results) == (1, 0)
        with pytest.raises(ZeroDivisionError):
            next(results)
        late = executor.map(
            lambda wait: gate.wait() if wait else 7, [False, True], timeout=1.5
        )
        assert next(late) == 7
        with pytest.raises((TimeoutError, concurrent.futures.TimeoutError)):
            next(late)
        gate.open()


def test_only_so_many_run_and_what_waits_can_be_cancelled(tmp_path: Any) -> None:
    gate, tally = Gate(tmp_path), Tally(tmp_path)

    def work(name: str) -> str:
        tally.add(name)
        gate.wait()
        return name

    with Executor(max_workers=1) as executor:
        first, second, third = (executor.submit(work, name) for name in "abc")
        until(lambda: tally.lines() == ["a"])
        assert first.running() and not first.cancel()
        assert not second.running() and second.cancel() and second.cancelled()
        gate.open()
        assert third.result(timeout=30) == "c"
        with pytest.raises(concurrent.futures.CancelledError):
            second.result()
    assert tally.lines() == ["a", "c"]


def test_shutdown_waits_or_cancels(tmp_path: Any) -> None:
    gate = Gate(tmp_path)
    executor = Executor(max_workers=1)
    running = executor.submit(gate.wait)
    waiting = [executor.submit(pow, 2, 3) for _ in range(3)]
    executor.shutdown(wait=False, cancel_futures=True)
    assert all(future.cancelled() for future in waiting) and not running.cancelled()
    with pytest.raises(RuntimeError, match="shutdown"):
        executor.submit(pow, 2, 3)
    gate.open()
    executor.shutdown()
    assert running.done()
    patient = Executor(max_workers=1)
    futures = [patient.submit(sleep_and_return, 0.05, i) for i in range(3)]
    patient.shutdown()
    assert [future.result(timeout=0) for future in futures] == [0, 1, 2]


def test_the_waiting_functions_of_the_standard_library_work(tmp_path: Any) -> None:
    gate = Gate(tmp_path)
    with Executor() as executor:
        slow, quick = executor.submit(gate.wait), executor.submit(pow, 2, 2)
        done, pending = concurrent.futures.wait(
            [slow, quick], return_when=concurrent.futures.FIRST_COMPLETED, timeout=30
        )
        assert done == {quick} and pending == {slow}
        gate.open()
        completed = concurrent.futures.as_completed([slow, quick], timeout=30)
        assert {*completed} == {slow, quick}


def test_callbacks_may_submit_more() -> None:
    got: list[int] = []
    done = threading.Event()

    with Executor(max_workers=1) as executor:

        def add_another(future: Any) -> None:
            got.append(future.result())
            if len(got) == 4:
                done.set()
            else:
                executor.submit(pow, 2, len(got)).add_done_callback(add_another)

        executor.submit(pow, 2, 0).add_done_callback(add_another)
        assert done.wait(30)
    assert got == [1, 2, 4, 8]


def test_the_initializer_runs_once_a_process(tmp_path: Any) -> None:
    tally = Tally(tmp_path)

    def setup(tag: str) -> None:
        os.environ["EXECUTOR_TAG"] = tag
        tally.add(os.getpid())

    with Executor(2, setup, ("ready",)) as executor:
        got = list(executor.map(lambda _: os.environ["EXECUTOR_TAG"], range(8)))
    assert got == ["ready"] * 8
    assert len(set(tally.lines())) == len(tally.lines()) >= 1


def test_an_initializer_that_raises_breaks_the_executor() -> None:
    def setup() -> None:
        raise ValueError("no licence")

    with Executor(1, setup) as executor:
        futures = [executor.submit(pow, 2, 2) for _ in range(3)]
        for future in futures:
            with pytest.raises(BrokenExecutor, match="no licence"):
                future.result(timeout=30)
        with pytest.raises(BrokenExecutor):
            executor.submit(pow, 2, 2)


def test_executors_nest_beyond_the_number_of_cpus() -> None:
    def outer(n: int) -> int:
        with Executor(2) as inner:
            return sum(inner.map(pow, range(n), [2] * n))

    with Executor(max_workers=8) as executor:
        assert list(executor.map(outer, [3] * 8)) == [5] * 8


def test_wrong_arguments_are_refused() -> None:
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="max_workers"):
            Executor(wrong)
    with pytest.raises(TypeError, match="initializer"):
        Executor(1, initializer=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no_such"):
        Executor(1, task_options={"no_such": 1})


def test_a_forgotten_executor_finishes_its_work_and_ends_its_thread() -> None:
    executor = Executor(1)
    futures = [executor.submit(sleep_and_return, 0.05, i) for i in range(3)]
    thread = executor._pump._thread
    gone = weakref.ref(executor)
    del executor
    gc.collect()
    assert gone() is None and thread is not None
    assert [future.result(timeout=30) for future in futures] == [0, 1, 2]
    thread.join(10)
    assert not thread.is_alive()


def test_a_program_that_ends_lets_its_calls_end(tmp_path: Any) -> None:
    run = run_driver(
        "import sparkray, time\n"
        "from sparkray.util.futures import Executor\n"
        "sparkray.init(address='local', num_cpus=1)\n"
        "def say(n):\n"
        "    time.sleep(0.1)\n"
        f"    open({str(tmp_path / 'said')!r}, 'a').write(str(n))\n"
        "executor = Executor(1)\n"
        "for n in range(3): executor.submit(say, n)\n"
    )
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "said").read_text() == "012"


def test_futures_fail_when_the_cluster_is_left() -> None:
    run = run_driver(
        "import sparkray, time\n"
        "from sparkray.util.futures import Executor\n"
        "sparkray.init(address='local', num_cpus=1)\n"
        "executor = Executor(1)\n"
        "futures = [executor.submit(time.sleep, 60) for _ in range(3)]\n"
        "sparkray.shutdown()\n"
        "for future in futures:\n"
        "    print(type(future.exception(timeout=20)).__name__)\n"
    )
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.split()) == 3, run.stdout


def test_a_killed_worker_fails_the_call_only(shared: Any) -> None:
    with Executor(2, task_options={"max_retries": 0}) as executor:
        with pytest.raises(sparkray.exceptions.WorkerCrashedError):
            executor.submit(os._exit, 3).result(timeout=30)
        assert executor.submit(pow, 2, 2).result(timeout=30) == 4


class Thing:
    def method(self) -> None:
        return None


def test_no_reference_to_arguments_or_results_is_kept() -> None:
    gc.collect()
    gc.disable()  # a circle would hide until the next collection
    try:
        with Executor(2) as executor:
            thing = Thing()
            collected = weakref.ref(thing)
            executor.submit(thing.method).result(timeout=30)
            del thing
            until(lambda: collected() is None, 10)
            results = executor.map(lambda _: Thing(), range(4), chunksize=2)
            for result in results:
                seen = weakref.ref(result)
                del result
                until(lambda seen=seen: seen() is None, 5)
    finally:
        gc.enable()


def test_a_call_raises_what_it_would_have_raised_here() -> None:
    def fail() -> None:
        raise LookupError("no", "such")

    with Executor(1) as executor:
        error = executor.submit(fail).exception(timeout=30)
    assert type(error) is LookupError and error.args == ("no", "such")
    assert isinstance(error.__cause__, sparkray.exceptions.TaskError)
    assert 'raise LookupError("no", "such")' in str(error.__cause__)


class Unpicklable:
    def __reduce__(self) -> Any:
        raise pickle.PicklingError("not this one")


class Unloadable:
    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise pickle.UnpicklingError("not here")


class ExitsOnLoad:
    def __reduce__(self) -> Any:
        return os._exit, (3,)


@pytest.mark.parametrize(
    ("call", "argument", "error"),
    [
        (id, Unpicklable(), pickle.PicklingError),
        (id, Unloadable(), pickle.UnpicklingError),
        (id, ExitsOnLoad(), BrokenExecutor),
        (lambda kind: kind(), Unpicklable, pickle.PicklingError),
        (lambda kind: kind(), Unloadable, pickle.UnpicklingError),
        (sys.exit, 1, BrokenExecutor),
        (os._exit, 1, BrokenExecutor),
    ],
)
def test_what_cannot_travel_fails_its_call_and_no_other(
    call: Any, argument: Any, error: type[Exception]
) -> None:
    with Executor(1, task_options={"max_retries": 0}) as executor:
        bad, good = executor.submit(call, argument), executor.submit(pow, 2, 2)
        with pytest.raises(error):
            bad.result(timeout=30)
        assert good.result(timeout=30) == 4


def test_a_failing_initializer_is_told_with_its_cause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Executor(1, lambda: {}["licence"]) as executor:  # type: ignore[misc]
        error = executor.submit(pow, 2, 2).exception(timeout=30)
        assert isinstance(error, BrokenExecutor) and "KeyError" in str(error)
        assert "KeyError: 'licence'" in str(error.__cause__)
    assert "initializer" in caplog.text


def test_a_reader_that_stops_cancels_what_waits(tmp_path: Any) -> None:
    gate, tally = Gate(tmp_path), Tally(tmp_path)

    def work(n: int) -> int:
        tally.add(n)
        if n:
            gate.wait()
        return n

    with Executor(1) as executor:
        results = executor.map(work, range(5))
        assert next(results) == 0
        until(lambda: tally.count() == 2)
        results.close()  # type: ignore[attr-defined]
        gate.open()
    assert tally.lines() == ["0", "1"]


def test_after_the_programs_end_nothing_more_is_taken() -> None:
    run = run_driver(
        "import atexit, sparkray\n"
        "from sparkray.util.futures import Executor\n"
        "def late():\n"
        "    try: executor.submit(id, None)\n"
        "    except RuntimeError as error: print(error)\n"
        "atexit.register(late)\n"
        "sparkray.init(address='local', num_cpus=1)\n"
        "executor = Executor(1)\n"
        "print(executor.submit(pow, 2, 3).result())\n"
    )
    assert run.stdout == "8\ncannot schedule new futures after shutdown\n", run.stderr


def test_a_call_of_a_builtin_function_can_be_aborted(tmp_path: Any) -> None:
    begun = tmp_path / "begun"
    calls = [functools.partial(begun.touch), functools.partial(time.sleep, 600)]
    with Executor(1) as executor:
        # No frame of a user's lies between the executor and what it waits for.
        run = functools.partial.__call__
        results = executor.map(run, calls, chunksize=2)
        until(begun.exists, 30)
        executor.abort()
        with pytest.raises(sparkray.exceptions.TaskCancelledError):
            next(results)
