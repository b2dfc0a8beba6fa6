"""A time-out beyond any wait is no limit: every wait takes it and waits."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import sparkray
from sparkray.util import as_completed
from sparkray.util.actor_pool import ActorPool
from sparkray.util.futures import Executor
from sparkray.util.placement_group import placement_group, remove_placement_group
from sparkray.util.queue import Queue

pytestmark = [
    pytest.mark.usefixtures("shared"),
    pytest.mark.parametrize("timeout", [1e12, 1e300, sys.maxsize, 10**400]),
]


@sparkray.remote(num_cpus=0)
def soon() -> int:
    time.sleep(0.1)
    return 7


@sparkray.remote(num_cpus=0)
class Soon:
    def soon(self, value: int) -> int:
        time.sleep(0.1)
        return value


@sparkray.remote(num_cpus=0)
def items() -> Iterator[int]:
    time.sleep(0.1)
    yield 7


def test_get_wait_and_as_completed(timeout: Any) -> None:
    assert sparkray.get(soon.remote(), timeout=timeout) == 7
    ref = soon.remote()
    assert sparkray.wait([ref], timeout=timeout) == ([ref], [])
    ref = soon.remote()
    assert list(as_completed([ref], timeout=timeout)) == [ref]


def test_the_next_item_of_a_stream(timeout: Any) -> None:
    stream = items.remote()
    assert sparkray.get(stream.next_ready(timeout_s=timeout)) == 7


def test_a_placement_group(timeout: Any) -> None:
    group = placement_group([{"CPU": 1}])
    assert group.wait(timeout)
    remove_placement_group(group)


def test_a_pool_and_an_executor(timeout: Any) -> None:
    pool = ActorPool([Soon.remote()])
    pool.submit(lambda actor, value: actor.soon.remote(value), 3)
    pool.submit(lambda actor, value: actor.soon.remote(value), 4)
    assert pool.get_next(timeout=timeout) == 3
    assert pool.get_next_unordered(timeout=timeout) == 4
    with Executor() as executor:
        assert list(executor.map(abs, [-1, 2], timeout=timeout)) == [1, 2]


def test_a_queue(timeout: Any) -> None:
    queue = Queue(maxsize=1)
    queue.put(1, timeout=timeout)
    taking = threading.Timer(0.1, queue.get)
    taking.start()
    queue.put(2, timeout=timeout)
    taking.join()
    assert queue.get(timeout=timeout) == 2
    asyncio.run(queue.put_async(3, timeout=timeout))
    assert asyncio.run(queue.get_async(timeout=timeout)) == 3
    queue.shutdown()
