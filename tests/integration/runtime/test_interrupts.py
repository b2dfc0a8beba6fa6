"""Ctrl-C while sparkray waits: it comes through at once, and all goes on after it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support import driver_environment

BEGIN = """
import os, signal, sys, time
import numpy as np
import sparkray
from sparkray.util import state
sparkray.init(num_cpus=1, object_store_memory=60 << 20)

@sparkray.remote
def nap(seconds):
    time.sleep(seconds)
    return seconds

@sparkray.remote
def slow_items():
    time.sleep(60)
    yield 1

@sparkray.remote
def add(a, b):
    return a + b

sparkray.get(add.remote(1, 1))
"""

#: What is interrupted -> before it, itself, and what must hold afterwards.
WAITS = {
    "get": ("ref = nap.remote(60)", "sparkray.get(ref)", "sparkray.cancel(ref)"),
    "get of many": (
        "refs = [nap.remote(60) for _ in range(50)]",
        "sparkray.get(refs)",
        "[sparkray.cancel(ref) for ref in refs]",
    ),
    "wait": ("ref = nap.remote(60)", "sparkray.wait([ref])", "sparkray.cancel(ref)"),
    "next": (
        "stream = slow_items.remote()",
        "next(stream)",
        "sparkray.cancel(stream.completed())",
    ),
    "put": (
        "held = [sparkray.get(sparkray.put(np.zeros(50 << 20, np.uint8)))]",
        "sparkray.put(np.zeros(40 << 20, np.uint8))",
        "held.clear(); sparkray.put(np.zeros(40 << 20, np.uint8))",
    ),
    "future": (
        "future = nap.remote(60).future()",
        "future.result()",
        "sparkray.cancel(add.remote(1, 1))",
    ),
}
AROUND = """
{before}
print("waiting", flush=True)
try:
    {wait}
except KeyboardInterrupt:
    print("interrupted", flush=True)
{after}
print(sparkray.get(add.options(num_cpus=0).remote(20, 22), timeout=20), flush=True)
"""


@contextmanager
def driver(code: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", BEGIN + code],
        env=driver_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("what", WAITS)
def test_ctrl_c_ends_the_wait_within_two_seconds_and_all_goes_on(what: str) -> None:
    before, wait, after = WAITS[what]
    code = AROUND.format(before=before, wait=wait, after=after)
    with driver(code) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "waiting\n", process.stderr.read()
        time.sleep(0.3)  # it says so just before it waits
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert time.monotonic() - began < 2.0
        rest, errors = process.stdout.read(), process.stderr.read()
        assert rest == "42\n", errors


def test_ctrl_c_of_a_terminal_ends_the_driver_and_leaves_nothing() -> None:
    """A terminal signals the whole process group: the cluster must not mind."""
    code = """
print(sparkray.init(ignore_reinit_error=True).session_dir, flush=True)
try:
    sparkray.get(nap.remote(60))
except KeyboardInterrupt:
    print(sparkray.get(add.options(num_cpus=0).remote(20, 22), timeout=20))
    raise
"""
    with driver(code) as process:
        assert process.stdout is not None and process.stderr is not None
        directory = process.stdout.readline().strip()
        time.sleep(0.3)
        os.killpg(process.pid, signal.SIGINT)
        rest, errors = process.stdout.read(), process.stderr.read()
        assert rest == "42\n" and "KeyboardInterrupt" in errors
        assert process.wait() != 0 and directory and not os.path.exists(directory)


@pytest.mark.timeout(120)
def test_ctrl_c_at_any_moment_of_a_busy_driver_leaves_it_usable() -> None:
    code = """
import random, threading

def interrupt():
    chooser = random.Random(5)
    for _ in range(30):
        time.sleep(chooser.uniform(0.005, 0.05))
        armed.wait()
        handled.clear()
        os.kill(os.getpid(), signal.SIGINT)
        handled.wait(10)

armed, handled = threading.Event(), threading.Event()
thread = threading.Thread(target=interrupt, daemon=True)
thread.start()
hits = 0
big = np.ones(1 << 18)
while thread.is_alive():
    try:
        armed.set()
        while thread.is_alive():
            refs = [add.remote(1, 2) for _ in range(20)]
            refs.append(add.remote(big, sparkray.put(big)))
            sparkray.get(refs)
            sparkray.wait(refs, num_returns=3)
            del refs
    except KeyboardInterrupt:
        armed.clear()
        hits += 1
        handled.set()
        assert sparkray.get(add.remote(20, 22), timeout=10) == 42
    finally:
        armed.clear()
deadline = time.monotonic() + 10
refs = None
while state.list_objects() and time.monotonic() < deadline:
    time.sleep(0.05)
print(hits > 10, state.list_objects())
"""
    with driver(code) as process:
        out, errors = process.communicate(timeout=100)
    assert out == "True []\n", errors
