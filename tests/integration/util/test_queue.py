import asyncio
import queue
from typing import Any

import pytest

import sparkray
from sparkray.exceptions import ActorDiedError, TaskCancelledError
from sparkray.util.queue import Empty, Full, Queue
from tests.support import Gate, until

pytestmark = pytest.mark.usefixtures("shared")


@pytest.fixture(scope="module")
def kept(shared: Any) -> Queue:
    return Queue()


@sparkray.remote
def consume(items: Queue, count: int) -> list[Any]:
    return [items.get(timeout=40) for _ in range(count)]


@sparkray.remote
def produce(items: Queue, values: list[Any]) -> None:
    for value in values:
        items.put(value)


def test_items_come_out_in_order_and_are_counted(kept: Queue) -> None:
    for value in range(5):
        kept.put(value)
    assert kept.qsize() == kept.size() == len(kept) == 5
    assert not kept.empty() and not kept.full()
    assert [kept.get() for _ in range(5)] == list(range(5))
    assert kept.empty() and bool(kept)


def test_a_full_queue_refuses_or_waits() -> None:
    small = Queue(maxsize=1)
    small.put("a")
    assert small.full()
    for refused in (
        lambda: small.put_nowait("b"),
        lambda: small.put("b", block=False),
        lambda: small.put("b", timeout=0),
        lambda: small.put("b", timeout=0.05),
    ):
        with pytest.raises(Full):
            refused()
    ref = produce.remote(small, ["b"])
    assert sparkray.wait([ref], timeout=0.2)[0] == []
    assert small.get() == "a" and small.get(timeout=20) == "b"
    sparkray.get(ref)
    small.shutdown()
    with pytest.raises(ActorDiedError):
        small.put("c")
    small.shutdown()


def test_an_empty_queue_refuses_or_waits(kept: Queue) -> None:
    for refused in (
        kept.get_nowait,
        lambda: kept.get(block=False),
        lambda: kept.get(timeout=0),
        lambda: kept.get(timeout=0.05),
    ):
        with pytest.raises(Empty) as caught:
            refused()
        assert isinstance(caught.value, queue.Empty)
    with pytest.raises(ValueError, match="timeout"):
        kept.get(timeout=-1)
    with pytest.raises(ValueError, match="timeout"):
        kept.put(1, timeout=-1)


@pytest.mark.parametrize(
    ("timeout", "error"),
    [(-1, ValueError), (float("nan"), ValueError), ("x", TypeError), (True, TypeError)],
)
def test_a_timeout_that_is_none_is_refused_at_the_call(
    kept: Queue, timeout: Any, error: type[Exception]
) -> None:
    for use in (
        lambda: kept.put(1, timeout=timeout),
        lambda: kept.get(timeout=timeout),
    ):
        with pytest.raises(error, match="timeout must be"):
            use()


def test_a_batch_is_taken_whole_or_not_at_all() -> None:
    five = Queue(maxsize=5)
    five.put_nowait_batch([1, 2, 3])
    with pytest.raises(Full, match="3 of 5"):
        five.put_nowait_batch([4, 5, 6])
    with pytest.raises(Empty, match="3 items, not 4"):
        five.get_nowait_batch(4)
    assert five.get_nowait_batch(2) == [1, 2] and five.get_nowait_batch(0) == []
    five.put_nowait_batch(value for value in (4, 5, 6, 7))
    assert five.full() and five.get_nowait_batch(5) == [3, 4, 5, 6, 7]
    with pytest.raises(TypeError):
        five.put_nowait_batch(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        five.get_nowait_batch("1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_items"):
        five.get_nowait_batch(-1)
    five.shutdown(force=True)


def test_a_consumer_that_waits_holds_up_nobody(kept: Queue) -> None:
    waiting = [consume.remote(kept, 1) for _ in range(3)]
    assert sparkray.wait(waiting, timeout=0.3)[0] == []
    other = Queue()
    other.put(kept)  # a queue travels, in another queue too
    sparkray.get(produce.remote(other.get(), ["x", "y", "z"]))
    assert sorted(sparkray.get(waiting)) == [["x"], ["y"], ["z"]]
    assert kept.empty()


def test_async_calls_do_not_stop_the_loop(kept: Queue) -> None:
    async def both() -> Any:
        taker = asyncio.ensure_future(kept.get_async(timeout=20))
        await asyncio.sleep(0)
        await kept.put_async("item")
        with pytest.raises(Empty):
            await kept.get_async(block=False)
        return await taker

    assert asyncio.run(both()) == "item"


def test_a_cancelled_consumer_takes_no_item_with_it(kept: Queue, tmp_path: Any) -> None:
    async def give_up() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(kept.get_async(), 0.2)

    asyncio.run(give_up())
    begun = Gate(tmp_path)

    @sparkray.remote
    def take(items: Queue) -> Any:
        begun.open()
        return items.get()

    ref = take.remote(kept)
    begun.wait()
    sparkray.wait([ref], timeout=0.3)
    sparkray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        sparkray.get(ref)
    kept.put("kept")
    until(lambda: kept.qsize() == 1, 5)
    assert kept.get(timeout=5) == "kept"


def test_a_consumer_that_dies_takes_no_item_with_it(kept: Queue) -> None:
    @sparkray.remote
    class Consumer:
        def take(self, items: Queue) -> Any:
            return items.get()

    consumer = Consumer.remote()
    taken = consumer.take.remote(kept)
    until(lambda: _waiting(kept) == 1)
    sparkray.kill(consumer)
    with pytest.raises(ActorDiedError):
        sparkray.get(taken, timeout=20)
    until(lambda: _waiting(kept) == 0)
    kept.put("still there")
    assert kept.get(timeout=20) == "still there"


def _waiting(items: Queue) -> int:
    """How many consumers wait for an item."""

    def count(actor: Any) -> int:
        return sum(not getter.done() for getter in actor._queue._getters)

    return sparkray.get(items.actor.__ray_call__.remote(count), timeout=20)


def test_options_reach_the_actor() -> None:
    named = Queue(actor_options={"name": "a queue", "num_cpus": 0.5})
    assert "a queue" in sparkray.util.list_named_actors()
    named.shutdown()
    with pytest.raises(ValueError, match="no_such"):
        Queue(actor_options={"no_such": 1})
    with pytest.raises(TypeError, match="maxsize"):
        Queue("3")  # type: ignore[arg-type]
