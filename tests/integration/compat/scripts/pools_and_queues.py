"""`ActorPool`, `Queue` between tasks, and an actor that coordinates."""
# mypy: ignore-errors

import asyncio

import ray
from ray.util import ActorPool
from ray.util.queue import Empty, Full, Queue


@ray.remote
class Worker:
    def double(self, value):
        return 2 * value


@ray.remote
def produce(queue, count):
    for number in range(count):
        queue.put(number)


@ray.remote
def consume(queue):
    total = 0
    while True:
        item = queue.get(block=True)
        if item is None:
            return total
        total += item


@ray.remote
class Signal:
    def __init__(self):
        self.ready = asyncio.Event()

    def send(self):
        self.ready.set()

    async def wait(self):
        await self.ready.wait()
        return "sent"


ray.init(num_cpus=4)
pool = ActorPool([Worker.remote() for _ in range(2)])
assert list(pool.map(lambda a, v: a.double.remote(v), [1, 2, 3, 4])) == [2, 4, 6, 8]
unordered = pool.map_unordered(lambda a, v: a.double.remote(v), range(6))
assert sorted(unordered) == [0, 2, 4, 6, 8, 10]
pool.submit(lambda a, v: a.double.remote(v), 21)
assert pool.has_next() and pool.get_next() == 42 and not pool.has_next()
assert pool.pop_idle() is not None

queue = Queue(maxsize=10, actor_options={"num_cpus": 0.5})
consumers = [consume.remote(queue) for _ in range(2)]
ray.get([produce.remote(queue, 20) for _ in range(2)])
for _ in consumers:
    queue.put(None)
assert sum(ray.get(consumers)) == 2 * sum(range(20))
try:
    queue.get(timeout=0.01)
    raise AssertionError("it was not empty")
except Empty:
    pass
queue.put_nowait_batch(list(range(10)))
assert queue.full() and queue.size() == 10
try:
    queue.put_nowait(1)
    raise AssertionError("it was not full")
except Full:
    pass
assert queue.get_nowait_batch(3) == [0, 1, 2]
queue.shutdown()

signal = Signal.remote()
waiting = [signal.wait.remote() for _ in range(3)]
assert ray.wait(waiting, timeout=0.1)[0] == []
ray.get(signal.send.remote())
assert ray.get(waiting) == ["sent"] * 3
print("done")
