"""Methods that are generators: items as they come, errors, back-pressure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

import sparkray
from tests.support import quiet, until

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
