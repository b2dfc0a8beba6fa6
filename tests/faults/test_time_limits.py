"""Tasks and calls that run for longer than their ``timeout_s``."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

import sparkray
from sparkray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    SparkrayError,
    TaskTimeoutError,
)
from tests.support import Tally, until

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("quick")]

STOP_S = 0.4


@pytest.fixture(scope="module", autouse=True)
def quick(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """A cluster that is not patient with tasks that do not stop."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARKRAY_TASK_STOP_S", str(STOP_S))
        yield request.getfixturevalue("shared")


def deaf(seconds: float = 60.0) -> None:
    """Hear no interrupt."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(60)


@sparkray.remote
def identity(value: Any) -> Any:
    return value


def test_a_task_in_time_is_not_stopped_and_each_has_its_own_time() -> None:
    nap = sparkray.remote(timeout_s=2.0)(time.sleep)
    assert sparkray.get([nap.remote(0.4) for _ in range(12)], timeout=20) == [None] * 12


def test_one_that_takes_too_long_is_interrupted_and_its_worker_goes_on(
    tmp_path: Path,
) -> None:
    runs = Tally(tmp_path)

    @sparkray.remote(timeout_s=0.6, max_retries=3)
    def slow() -> None:
        runs.add(os.getpid())
        time.sleep(60)

    start = time.monotonic()
    with pytest.raises(TaskTimeoutError) as caught:
        sparkray.get(slow.remote(), timeout=20)
    assert time.monotonic() - start < 5
    (pid,) = runs.lines()  # a time-out is not retried unless that is asked for
    message = str(caught.value)
    assert "slow" in message and "timeout_s=0.6" in message
    assert f"process {pid} on {os.uname().nodename}" in message
    assert isinstance(caught.value, (SparkrayError, TimeoutError))
    assert caught.value.timeout_s == 0.6
    assert psutil.pid_exists(int(pid))


@pytest.mark.parametrize("allowed", [True, [TaskTimeoutError], [TimeoutError]])
def test_it_runs_again_where_retry_exceptions_says_so(
    allowed: Any, tmp_path: Path
) -> None:
    runs = Tally(tmp_path)

    @sparkray.remote(timeout_s=0.5, max_retries=2, retry_exceptions=allowed)
    def third_time_quick() -> int:
        runs.add()
        if runs.count() < 3:
            time.sleep(60)
        return runs.count()

    assert sparkray.get(third_time_quick.remote(), timeout=20) == 3


def test_retries_of_other_errors_are_none_of_a_time_out(tmp_path: Path) -> None:
    runs = Tally(tmp_path)

    @sparkray.remote(timeout_s=0.5, retry_exceptions=[ValueError])
    def slow() -> None:
        runs.add()
        time.sleep(60)

    with pytest.raises(TaskTimeoutError):
        sparkray.get(slow.remote(), timeout=20)
    assert runs.count() == 1


@pytest.mark.parametrize(("retry", "count"), [(False, 1), (True, 2)])
def test_one_that_does_not_stop_costs_its_worker(
    retry: bool, count: int, tmp_path: Path
) -> None:
    runs = Tally(tmp_path)

    @sparkray.remote(timeout_s=0.8, max_retries=1, retry_exceptions=retry)
    def hears_nothing() -> None:
        runs.add(os.getpid())
        deaf()

    with pytest.raises(TaskTimeoutError) as caught:
        sparkray.get(hears_nothing.remote(), timeout=20)
    assert runs.count() == count
    pid = runs.lines()[-1]
    assert f"process {pid} on" in str(caught.value)
    until(lambda: not psutil.pid_exists(int(pid)))
    assert sparkray.get(identity.options(num_cpus=4).remote(1), timeout=20) == 1


def freeze() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def hold_the_interpreter() -> None:
    ctypes.PyDLL(None).sleep(60)


@pytest.mark.parametrize("stuck", [freeze, hold_the_interpreter])
def test_a_worker_without_a_say_in_it_is_ended_too(stuck: Any) -> None:
    with pytest.raises(TaskTimeoutError, match=stuck.__name__):
        sparkray.get(sparkray.remote(timeout_s=0.2)(stuck).remote(), timeout=20)


def test_what_it_called_is_stopped_with_it(tmp_path: Path) -> None:
    ended = Tally(tmp_path)

    @sparkray.remote(max_retries=0)
    def child() -> None:
        ended.add("begun")
        try:
            time.sleep(60)
        finally:
            ended.add("stopped")

    @sparkray.remote(timeout_s=1.0)
    def parent() -> None:
        sparkray.get(child.remote())

    with pytest.raises(TaskTimeoutError, match="parent"):
        sparkray.get(parent.remote(), timeout=20)
    until(lambda: ended.lines() == ["begun", "stopped"])


def test_a_value_that_comes_all_the_same_counts() -> None:
    @sparkray.remote(timeout_s=0.6)
    def tidy() -> str:
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            return "tidied up"
        return "slept well"

    assert sparkray.get(tidy.remote(), timeout=20) == "tidied up"


def test_tasks_that_wait_behind_it_run_once_each(tmp_path: Path) -> None:
    runs = Tally(tmp_path)

    @sparkray.remote(num_cpus=4, max_retries=3)
    def work(k: int, seconds: float) -> int:
        runs.add(k)
        deaf(seconds) if seconds else None
        return k

    warm = work.options(timeout_s=0.5)
    assert sparkray.get([warm.remote(-1, 0) for _ in range(50)], timeout=20)
    refs = [warm.remote(k, 60.0 if k == 3 else 0) for k in range(30)]
    for k, ref in enumerate(refs):
        if k == 3:
            with pytest.raises(TaskTimeoutError):
                sparkray.get(ref, timeout=20)
        else:
            assert sparkray.get(ref, timeout=20) == k
    assert sorted(runs.lines()[50:], key=int) == [str(k) for k in range(30)]


def test_a_stream_that_takes_too_long_gives_what_it_made_and_then_the_error() -> None:
    @sparkray.remote(timeout_s=1.0, num_returns="streaming")
    def items() -> Iterator[int]:
        yield 1
        yield 2
        time.sleep(60)
        yield 3

    got: list[int] = []
    with pytest.raises(TaskTimeoutError, match="items"):
        for ref in items.remote():
            got.append(sparkray.get(ref, timeout=20))
    assert got == [1, 2]


@sparkray.remote(max_restarts=1)
class Sleeper:
    def __init__(self) -> None:
        self.calls = 0

    def pid(self) -> int:
        return os.getpid()

    @sparkray.method(timeout_s=0.2)
    def sleep(self) -> None:
        time.sleep(60)

    def deaf(self) -> None:
        deaf()

    def count(self) -> int:
        self.calls += 1
        return self.calls


def test_a_call_that_takes_too_long_fails_and_its_actor_goes_on() -> None:
    actor = Sleeper.remote()
    assert sparkray.get(actor.count.remote(), timeout=20) == 1
    with pytest.raises(TaskTimeoutError, match=r"Sleeper\.sleep"):
        sparkray.get(actor.sleep.remote(), timeout=20)
    assert sparkray.get(actor.count.remote(), timeout=20) == 2


def test_a_call_that_does_not_stop_costs_its_actor_which_restarts_as_allowed() -> None:
    actor = Sleeper.remote()
    assert sparkray.get(actor.count.remote(), timeout=20) == 1
    call = actor.deaf.options(timeout_s=0.2)
    with pytest.raises(TaskTimeoutError, match=r"Sleeper\.deaf"):
        sparkray.get(call.remote(), timeout=20)
    assert sparkray.get(actor.count.remote(), timeout=20) == 1
    with pytest.raises(TaskTimeoutError, match=r"Sleeper\.deaf"):
        sparkray.get(call.remote(), timeout=20)
    with pytest.raises(ActorDiedError, match="did not stop when its time was up"):
        sparkray.get(actor.count.remote(), timeout=20)


def test_calls_behind_one_that_does_not_stop_fail_as_at_any_restart() -> None:
    actor = Sleeper.remote()
    stuck = actor.deaf.options(timeout_s=0.3).remote()
    behind = actor.count.remote()
    with pytest.raises(TaskTimeoutError):
        sparkray.get(stuck, timeout=20)
    with pytest.raises(ActorUnavailableError):
        sparkray.get(behind, timeout=20)


@sparkray.remote(max_restarts=1)
class Async:
    async def later(self, seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    def blocks(self) -> None:
        time.sleep(60)


def test_a_coroutine_is_cancelled_and_the_others_go_on() -> None:
    actor = Async.remote()
    other = actor.later.remote(1.0)
    with pytest.raises(TaskTimeoutError, match=r"Async\.later"):
        sparkray.get(actor.later.options(timeout_s=0.2).remote(60), timeout=20)
    assert sparkray.get(other, timeout=20) == 1.0


def test_a_thread_of_an_actor_cannot_be_stopped_but_with_it() -> None:
    actor = Async.remote()
    with pytest.raises(TaskTimeoutError, match=r"Async\.blocks"):
        sparkray.get(actor.blocks.options(timeout_s=0.2).remote(), timeout=20)
    assert sparkray.get(actor.later.remote(0.0), timeout=20) == 0.0


def test_a_handle_takes_the_time_limits_of_its_class_along() -> None:
    @sparkray.remote
    def call(actor: Any) -> str:
        try:
            sparkray.get(actor.sleep.remote())
        except TaskTimeoutError as error:
            return str(error)
        return ""

    assert "timeout_s=0.2" in sparkray.get(call.remote(Sleeper.remote()), timeout=20)
