"""Streams as their consumers use them: event loops, handles that are dropped."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sparkray
from sparkray.util import state
from tests.support import until

pytestmark = pytest.mark.usefixtures("shared", "no_garbage")


@sparkray.remote(num_cpus=0)
def after(gate: str, items: int) -> Iterator[int]:
    while not os.path.exists(gate):
        time.sleep(0.01)
    yield from range(items)


@sparkray.remote
def endless() -> Iterator[int]:
    while True:
        yield 1


@sparkray.remote(num_cpus=0, generator_backpressure_num_objects=1)
def marking(mark: str, items: int) -> Iterator[int]:
    try:
        yield from range(items)
        Path(mark + ".whole").touch()
    finally:
        Path(mark).touch()


def nothing_runs() -> bool:
    whole = sparkray.cluster_resources()["CPU"]
    free: float = sparkray.available_resources().get("CPU", 0)
    return free == whole and not state.list_objects()


def test_a_wait_for_the_next_item_that_is_cancelled_takes_none(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def main() -> list[int]:
        stream = after.remote(str(gate), 3)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(stream.__anext__(), 0.1)
        gate.touch()
        return [await ref async for ref in stream]

    assert asyncio.run(main()) == [0, 1, 2]


def test_an_event_loop_ends_while_a_stream_is_silent(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    stream = after.remote(str(gate), 1)

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(stream.__anext__(), 0.1)

    asyncio.run(main())
    assert not gate.exists()
    gate.touch()
    assert sparkray.get(next(stream), timeout=20) == 0


def test_many_silent_streams_do_not_hold_up_another(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def main() -> Any:
        # One task: more waits than the event loop's pool has threads.
        silent = after.remote(str(gate), 1)
        waits = [asyncio.ensure_future(silent.__anext__()) for _ in range(50)]
        await asyncio.sleep(0)
        ready = tmp_path / "ready"
        ready.touch()
        ref = await after.remote(str(ready), 1).__anext__()
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        return await ref

    assert asyncio.run(main()) == 0
    gate.touch()


def test_ctrl_c_ends_an_async_loop_over_a_silent_stream(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    stream = after.remote(str(gate), 1)

    async def main() -> None:
        asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGINT)
        async for _ in stream:
            pass

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert not gate.exists()
    gate.touch()
    assert sparkray.get(next(stream), timeout=20) == 0


@pytest.mark.parametrize("backpressure", [None, 4])
def test_an_endless_stream_that_is_dropped_ends(backpressure: int | None) -> None:
    options = {"generator_backpressure_num_objects": backpressure}
    made = endless.options(**(options if backpressure else {}))
    stream = made.remote()
    assert sparkray.get(next(stream), timeout=20) == 1
    del stream
    until(nothing_runs)


def test_a_dropped_stream_is_closed_as_python_closes_a_generator(
    tmp_path: Path,
) -> None:
    mark = tmp_path / "mark"
    stream = marking.remote(str(mark), 10**9)
    next(stream)
    del stream
    until(mark.exists)
    assert not mark.with_suffix(".whole").exists()


def test_a_dropped_stream_goes_on_while_its_end_is_waited_for(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    stream = marking.remote(str(mark), 300)
    next(stream)
    ended = stream.completed()
    del stream
    assert sparkray.get(ended, timeout=30) is None
    assert mark.with_suffix(".whole").exists()


def test_a_short_stream_that_nobody_ever_read_runs_to_its_end(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    marking.remote(str(mark), 5)
    until(mark.with_suffix(".whole").exists)


def test_an_endless_stream_of_an_actor_that_is_dropped_lets_it_go_on() -> None:
    @sparkray.remote
    class Source:
        def __init__(self) -> None:
            self.closed = 0

        async def endless(self) -> Any:
            try:
                while True:
                    yield 1
                    await asyncio.sleep(0)
            finally:
                self.closed += 1

        async def how_many(self) -> int:
            return self.closed

    source = Source.remote()
    stream = source.endless.remote()
    assert sparkray.get(next(stream), timeout=20) == 1
    del stream
    until(lambda: sparkray.get(source.how_many.remote(), timeout=20) == 1)


def test_an_endless_stream_that_is_cancelled_ends() -> None:
    stream = endless.remote()
    assert sparkray.get(next(stream), timeout=20) == 1
    sparkray.cancel(stream)
    with pytest.raises(sparkray.exceptions.TaskCancelledError):
        sparkray.get(stream.completed(), timeout=20)
    del stream
    until(nothing_runs)
