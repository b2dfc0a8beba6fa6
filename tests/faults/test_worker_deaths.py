"""Workers that die in the midst of work."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import sparkray
from sparkray.exceptions import TaskCancelledError, WorkerCrashedError
from tests.support import Tally, until

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("shared")]


def by_signal() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def by_exit() -> None:
    os._exit(7)


def by_fault() -> None:
    ctypes.string_at(8)


def by_sys_exit() -> None:
    sys.exit(7)


#: How it ends -> what the error says, how often it runs with no and with one retry.
ENDS: dict[str, tuple[Callable[[], None], str, tuple[int, int]]] = {
    "SIGKILL": (by_signal, "SIGKILL", (1, 2)),
    "os._exit": (by_exit, "exited with code 7", (1, 2)),
    "segfault": (by_fault, "SIGSEGV", (1, 2)),
    "sys.exit": (by_sys_exit, "sys.exit(7)", (1, 1)),
}


@sparkray.remote
def identity(value: Any) -> Any:
    return value


@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("end", ENDS)
def test_a_worker_that_ends_is_explained_and_its_task_runs_as_often_as_said(
    end: str, retries: int, tmp_path: Path
) -> None:
    die, text, counts = ENDS[end]
    runs = Tally(tmp_path)

    @sparkray.remote(max_retries=retries)
    def doomed() -> None:
        runs.add(os.getpid())
        print("the last line it printed", flush=True)
        die()

    with pytest.raises(WorkerCrashedError) as caught:
        sparkray.get(doomed.remote(), timeout=30)
    assert runs.count() == counts[retries]
    message = str(caught.value)
    assert "doomed" in message and text in message
    if end != "sys.exit":  # that worker goes on
        assert f"process {runs.lines()[-1]} on {os.uname().nodename}" in message
        assert "the last line it printed" in message
    assert sparkray.get(identity.remote(5), timeout=20) == 5


def test_a_task_that_survives_its_second_run_is_fine(tmp_path: Path) -> None:
    runs = Tally(tmp_path)

    @sparkray.remote(max_retries=1)
    def second_time_lucky(value: int) -> int:
        runs.add()
        if runs.count() == 1:
            os._exit(1)
        return value

    assert sparkray.get(second_time_lucky.remote(sparkray.put(3)), timeout=30) == 3


def test_force_ends_a_task_that_hears_nothing(tmp_path: Path) -> None:
    begun = Tally(tmp_path)

    @sparkray.remote(max_retries=5)
    def deaf() -> None:
        begun.add(os.getpid())
        while True:
            try:
                time.sleep(60)
            except KeyboardInterrupt:
                begun.add("interrupted")

    ref = deaf.remote()
    until(begun.count)
    sparkray.cancel(ref)
    until(lambda: "interrupted" in begun.lines())
    sparkray.cancel(ref, force=True)
    with pytest.raises(TaskCancelledError, match="deaf"):
        sparkray.get(ref, timeout=20)
    pid = int(begun.lines()[0])
    until(lambda: not psutil.pid_exists(pid))
    assert sparkray.get(identity.remote(1), timeout=20) == 1
    assert (
        begun.lines().count(str(pid))
        == 1
        == len([line for line in begun.lines() if line != "interrupted"])
    )


def test_what_a_task_started_ends_with_its_worker(tmp_path: Path) -> None:
    started = Tally(tmp_path)

    @sparkray.remote(max_retries=0)
    def starts_and_dies() -> None:
        child = subprocess.Popen(["sleep", "300"])
        started.add(child.pid)
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(WorkerCrashedError):
        sparkray.get(starts_and_dies.remote(), timeout=20)
    pid = int(started.lines()[0])
    until(lambda: not psutil.pid_exists(pid))


def test_a_killed_parent_takes_its_children_along(tmp_path: Path) -> None:
    begun = Tally(tmp_path)

    @sparkray.remote(max_retries=0)
    def child() -> None:
        begun.add(f"child {os.getpid()}")
        time.sleep(300)

    @sparkray.remote(max_retries=0)
    def parent() -> None:
        begun.add(f"parent {os.getpid()}")
        sparkray.get([child.remote(), child.remote()])

    ref = parent.remote()
    until(lambda: begun.count() == 3)
    (pid,) = [int(line.split()[1]) for line in begun.lines() if line[0] == "p"]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerCrashedError):
        sparkray.get(ref, timeout=20)
    whole = identity.options(num_cpus=4).remote("free again")
    assert sparkray.get(whole, timeout=20) == "free again"
