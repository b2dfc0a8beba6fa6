"""Methods that are generators: items as they come, errors, back-pressure."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import sparkray
from sparkray.exceptions import TaskCancelledError, WorkerCrashedError
from tests.support import Tally, quiet, until

pytestmark = pytest.mark.usefixtures("shared")


@sparkray.remote
class Streams:
    def __init__(self) -> None:
        self.made = 0

    def numbers(self, n: int) -> Iterator[int]:
        for i in range(n):
            self.made += 1
            yield i

    async def later(self, n: int) -> AsyncIterator[int]:
        for i in range(n):
            self.made += 1
            yield i
            await asyncio.sleep(0)

    async def fails(self) -> AsyncIterator[int]:
        yield 1
        raise LookupError("half way")

    async def how_many(self) -> int:
        return self.made


@sparkray.remote
class Plain:
    def numbers(self, n: int) -> Iterator[int]:
        yield from range(n)

    def endless(self, tally: Tally) -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            tally.add("ended")

    def ready(self) -> bool:
        return True


@pytest.mark.parametrize("method", ["numbers", "later"])
def test_generators_of_actors_stream(method: str) -> None:
    actor = Streams.remote()
    stream = getattr(actor, method).remote(5)
    assert [sparkray.get(ref, timeout=20) for ref in stream] == list(range(5))


def test_generators_of_plain_and_threaded_actors_stream() -> None:
    for actor in (Plain.remote(), Plain.options(max_concurrency=2).remote()):
        stream = actor.numbers.remote(5)
        assert [sparkray.get(ref, timeout=20) for ref in stream] == list(range(5))


def test_an_async_generator_that_fails_gives_its_items_first() -> None:
    stream = Streams.remote().fails.remote()
    assert sparkray.get(next(stream), timeout=20) == 1
    with pytest.raises(LookupError, match="half way"):
        sparkray.get(next(stream), timeout=20)


@pytest.mark.parametrize("backpressure", [0, 2])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_running_generator_of_an_actor_is_cancelled_where_it_yields(
    tmp_path: Path, threads: int, backpressure: int
) -> None:
    tally, actor = Tally(tmp_path), Plain.options(max_concurrency=threads).remote()
    options = {"generator_backpressure_num_objects": backpressure}
    endless = actor.endless.options(**(options if backpressure else {}))
    stream = endless.remote(tally)
    next(stream)
    sparkray.cancel(stream)
    with pytest.raises(TaskCancelledError):
        for ref in stream:
            sparkray.get(ref, timeout=20)
    assert sparkray.get(actor.ready.remote(), timeout=20)
    assert tally.lines() == ["ended"]


def test_an_endless_generator_of_a_caller_that_died_frees_the_actor(
    tmp_path: Path,
) -> None:
    tally, actor = Tally(tmp_path), Plain.remote()

    @sparkray.remote(max_retries=0)
    def die() -> None:
        stream = actor.endless.remote(tally)
        next(stream)
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(WorkerCrashedError):
        sparkray.get(die.remote(), timeout=40)
    assert sparkray.get(actor.ready.remote(), timeout=20)
    assert tally.lines() == ["ended"]


@pytest.mark.parametrize("method", ["numbers", "later"])
def test_a_generator_waits_for_its_consumer_with_back_pressure(method: str) -> None:
    actor = Streams.remote()
    made = getattr(actor, method).options(generator_backpressure_num_objects=3)
    stream = made.remote(20)
    next(stream)
    until(lambda: sparkray.get(actor.how_many.remote(), timeout=20) >= 3)
    assert quiet(lambda: sparkray.get(actor.how_many.remote(), timeout=20) <= 5, 0.4)
    rest = [sparkray.get(ref, timeout=20) for ref in stream]
    assert rest == list(range(1, 20))
