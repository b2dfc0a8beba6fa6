"""What errors of tasks show: the user's frames, not ours; which task, and where."""

from __future__ import annotations

import os
import platform
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import sparkray
from sparkray.exceptions import WorkerCrashedError
from tests.support import run_driver

pytestmark = pytest.mark.usefixtures("shared")

OURS = str(Path(sparkray.__file__).parent)


@sparkray.remote(num_returns=3)
def too_few() -> Any:
    return 1, 2


@sparkray.remote(num_returns=2)
def no_items() -> Any:
    return 7


@sparkray.remote
def a_lock() -> Any:
    return threading.Lock()


@sparkray.remote(num_returns=2)
def locks() -> Any:
    return [threading.Lock(), threading.Lock()]


@sparkray.remote
def a_generator() -> Any:
    return (number for number in range(3))


@sparkray.remote
class Counter:
    def lock(self) -> Any:
        return threading.Lock()


@pytest.mark.parametrize("function", [too_few, no_items, a_lock, locks, a_generator])
def test_an_error_about_a_result_shows_no_frames_of_ours(function: Any) -> None:
    refs = function.remote()
    with pytest.raises(sparkray.exceptions.TaskError) as caught:
        sparkray.get(refs if isinstance(refs, list) else [refs])
    assert OURS not in str(caught.value)


def test_a_result_that_the_store_has_no_room_for_shows_no_frames_of_ours() -> None:
    code = """
import sparkray
sparkray.init(address="local", num_cpus=1, object_store_memory=80 << 20)

@sparkray.remote
def too_large():
    return bytes(100 << 20)

try:
    sparkray.get(too_large.remote())
except sparkray.exceptions.ObjectStoreFullError as error:
    print(error)
"""
    done = run_driver(code)
    assert "too_large" in done.stdout and OURS not in done.stdout, done.stderr


def test_an_error_about_the_result_of_a_method_shows_no_frames_of_ours() -> None:
    with pytest.raises(TypeError, match=r"the result of Counter\.lock") as caught:
        sparkray.get(Counter.remote().lock.remote())
    assert OURS not in str(caught.value)


def test_sys_exit_names_the_task_the_process_and_the_host() -> None:
    @sparkray.remote
    def leaves() -> None:
        sys.exit(3)

    ref = leaves.remote()
    with pytest.raises(WorkerCrashedError) as caught:
        sparkray.get(ref)
    assert caught.value.task.endswith(f"leaves ({ref.task_id().hex()})")
    assert platform.node() in caught.value.reason and "exit(3)" in caught.value.reason
    assert f"process {os.getpid()} " not in caught.value.reason
