"""Futures that are pending when the main thread, or the session, ends."""

from __future__ import annotations

import pytest

import sparkray
from tests.support import run_driver

BEGIN = """
import threading, time
import sparkray

@sparkray.remote
def slow(seconds):
    time.sleep(seconds)
    return seconds

sparkray.init(address="local", num_cpus=1, logging_level="ERROR")
"""


def test_a_program_ends_quietly_with_a_pending_future() -> None:
    done = run_driver(BEGIN + "future = slow.remote(100).future()\n")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_thread_that_outlives_the_main_thread_gets_its_future() -> None:
    thread = """
future = slow.remote(0.5).future()
def wait():
    threading.main_thread().join()
    print(future.result())
threading.Thread(target=wait).start()
"""
    done = run_driver(BEGIN + thread)
    assert (done.returncode, done.stdout) == (0, "0.5\n"), done.stderr


@pytest.mark.usefixtures("cluster_root")
def test_a_session_that_ends_fails_all_pending_futures() -> None:
    @sparkray.remote
    def never() -> None:
        import time

        time.sleep(100)

    with sparkray.init(address="local", num_cpus=1):
        futures = [never.remote().future() for _ in range(20)]
    for future in futures:
        with pytest.raises(sparkray.exceptions.SparkrayError):
            future.result(timeout=20)
