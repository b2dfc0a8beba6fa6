"""The event loop of async actors: its constructor runs there, background tasks too."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import sparkray
from sparkray.exceptions import ActorDiedError
from tests.support import until

pytestmark = pytest.mark.usefixtures("shared")


@sparkray.remote(num_cpus=0)
class Background:
    """Starts a task of its event loop in the constructor."""

    def __init__(self, how: str) -> None:
        self.ticks = 0
        if how == "create_task":
            self.task: Any = asyncio.create_task(self._tick())
        elif how == "get_event_loop":
            self.task = asyncio.get_event_loop().create_task(self._tick())
        else:
            self.task = asyncio.ensure_future(self._tick())
        self.loop = asyncio.get_running_loop()
        self.queue: asyncio.Queue[int] = asyncio.Queue()

    async def _tick(self) -> None:
        while True:
            self.ticks += 1
            await self.queue.put(self.ticks)
            await asyncio.sleep(0.001)

    async def seen(self) -> list[int]:
        return [await self.queue.get() for _ in range(3)]

    async def same_loop(self) -> bool:
        return asyncio.get_running_loop() is self.loop

    async def spoil(self, kind: type[BaseException]) -> None:
        async def spoil() -> None:
            raise kind("in the background")

        self.spoiled = asyncio.create_task(spoil())


@pytest.mark.parametrize("how", ["create_task", "get_event_loop", "ensure_future"])
def test_the_constructor_of_an_async_actor_runs_on_its_event_loop(how: str) -> None:
    actor = Background.remote(how)
    assert sparkray.get(actor.seen.remote(), timeout=20) == [1, 2, 3]
    assert sparkray.get(actor.same_loop.remote(), timeout=20)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit, ValueError])
def test_a_background_task_that_raises_leaves_the_loop_running(
    kind: type[BaseException],
) -> None:
    actor = Background.remote("create_task")
    sparkray.get(actor.spoil.remote(kind), timeout=20)
    assert sparkray.get(actor.seen.remote(), timeout=20) == [1, 2, 3]


def test_a_background_task_may_end_the_actor() -> None:
    actor = Background.remote("create_task")
    actor.spoil.remote(SystemExit)

    def ended() -> bool:
        try:
            sparkray.get(actor.same_loop.remote(), timeout=20)
        except ActorDiedError as error:
            return "sys.exit" in str(error)
        return False

    until(ended)


def test_a_constructor_that_waits_for_a_task_lends_its_cpu() -> None:
    @sparkray.remote(resources={"tok": 0.1})
    def number() -> int:
        return 5

    class Patient:
        def __init__(self) -> None:
            self.value = sparkray.get(number.options(num_cpus=4).remote())

        def get(self) -> int:
            return self.value

    class AsyncPatient(Patient):
        async def later(self) -> int:
            return self.value

    for cls in (Patient, AsyncPatient):
        actor = sparkray.remote(cls).options(num_cpus=1).remote()
        assert sparkray.get(actor.get.remote(), timeout=20) == 5
        del actor
