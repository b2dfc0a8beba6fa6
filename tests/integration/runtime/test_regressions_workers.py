"""What once broke workers: interrupts at a bad moment, children, odd exceptions."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sparkray.exceptions import TaskCancelledError
from tests.support import Gate, quiet


def test_a_cancelled_stream_loses_nothing_of_the_next_task(local: ModuleType) -> None:
    """The interrupt used to come in the midst of sending, and the rest was lost."""

    @local.remote(num_returns="streaming")
    def items(count: int) -> Any:
        for number in range(count):
            yield [local.put(number)]

    for _ in range(25):
        stream = items.remote(300)
        local.get(next(stream), timeout=10)
        local.cancel(stream)
        following = [local.get(ref, timeout=10) for ref in items.remote(20)]
        assert len(following) == 20


def test_a_cancelled_task_finishes_the_import_that_it_is_at(
    fresh: ModuleType, tmp_path: Path
) -> None:
    """Broken off, it left modules half made for the next task of the process."""
    fresh.init(num_cpus=1)
    began, goes_on = Gate(tmp_path), Gate(tmp_path)

    def module_of(gates: tuple[Gate, Gate]) -> ModuleType:
        import builtins
        import importlib

        builtins.__dict__["_gates"] = gates
        (tmp_path / "slow_to_import.py").write_text(
            "import builtins\n"
            "began, goes_on = builtins._gates\n"
            "began.open()\n"
            "goes_on.wait()\n"
            "whole = True\n"
        )
        sys.path.insert(0, str(tmp_path))
        return importlib.import_module("slow_to_import")

    @fresh.remote
    def imports() -> None:
        module_of((began, goes_on))
        time.sleep(60)

    @fresh.remote
    def is_whole() -> bool:
        return bool(sys.modules["slow_to_import"].whole)

    ref = imports.remote()
    began.wait()
    fresh.cancel(ref)
    following = is_whole.remote()
    assert quiet(lambda: fresh.wait([ref], timeout=0)[1] == [ref])
    goes_on.open()
    with pytest.raises(TaskCancelledError):
        fresh.get(ref, timeout=10)
    assert fresh.get(following, timeout=10)


def test_a_task_may_turn_the_interrupt_signal_off_for_itself_only(
    fresh: ModuleType, tmp_path: Path
) -> None:
    fresh.init(num_cpus=1)
    began = Gate(tmp_path)

    @fresh.remote
    def ignores() -> int:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return os.getpid()

    @fresh.remote
    def naps() -> None:
        began.open()
        time.sleep(30)

    fresh.get(ignores.remote())
    ref = naps.remote()
    began.wait()
    fresh.cancel(ref)
    with pytest.raises(fresh.exceptions.TaskCancelledError):
        fresh.get(ref, timeout=10)


def test_a_task_that_closes_the_output_harms_no_other(fresh: ModuleType) -> None:
    fresh.init(num_cpus=1)

    @fresh.remote
    def closes() -> int:
        os.close(1)
        os.close(2)
        return os.getpid()

    @fresh.remote(max_retries=0)
    def other() -> int:
        return os.getpid()

    assert fresh.get(closes.remote()) == fresh.get(other.remote(), timeout=20)


CHILD_ENDS = {
    "return": (lambda: None, 0),
    "sys.exit": (lambda: sys.exit(3), 3),
    "sys.exit of nothing": (lambda: sys.exit(), 0),
    "raise": (lambda: 1 // 0, 1),
}


@pytest.mark.parametrize("how", CHILD_ENDS)
def test_a_forked_child_that_returns_from_the_task_is_not_the_worker(
    local: ModuleType, how: str
) -> None:
    """It used to answer as well, into the worker's connection."""
    end, code = CHILD_ENDS[how]

    @local.remote(max_retries=0)
    def forks() -> int:
        child = os.fork()
        if not child:
            end()
            return -1
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    @local.remote
    def same(value: int) -> int:
        return value

    assert local.get([forks.remote() for _ in range(4)], timeout=20) == [code] * 4
    refs = [same.remote(number) for number in range(50)]
    assert local.get(refs, timeout=20) == list(range(50))


def _interrupting() -> None:
    raise KeyboardInterrupt


class Interrupting(Exception):
    """Its unpickling raises what is no `Exception`."""

    def __reduce__(self) -> Any:
        return _interrupting, ()


class Frozen(Exception):
    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


@pytest.mark.parametrize("kind", [Interrupting, Frozen])
def test_no_exception_class_ends_the_worker(
    local: ModuleType, kind: type[Exception]
) -> None:
    @local.remote(max_retries=0)
    def fails() -> None:
        raise kind("why")

    with pytest.raises(local.exceptions.TaskError, match=kind.__name__):
        local.get(fails.remote(), timeout=20)
