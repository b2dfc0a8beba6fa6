"""Kinds of actors: async, threaded, named, inherited, with groups and trees of them."""
# mypy: ignore-errors

import asyncio
import threading

import ray
from ray.actor import ActorHandle


class Base:
    KIND = "base"

    def __init__(self, name="nobody"):
        self.name = name

    def hello(self):
        return f"{self.KIND} {self.name}"


@ray.remote
class Derived(Base):
    KIND = "derived"

    @ray.method(num_returns=2)
    def pair(self):
        return 1, 2

    @ray.method(num_returns="streaming")
    def count(self, limit):
        yield from range(limit)


@ray.remote(max_concurrency=10)
class Async:
    def __init__(self):
        self.inside = 0

    async def meet(self, others):
        self.inside += 1
        while self.inside < others:
            await asyncio.sleep(0.01)
        return self.inside


@ray.remote(max_concurrency=4)
class Threaded:
    def __init__(self):
        self.barrier = threading.Barrier(3)

    def meet(self):
        return self.barrier.wait(20) >= 0


@ray.remote(concurrency_groups={"io": 2, "compute": 1})
class Grouped:
    @ray.method(concurrency_group="io")
    async def read(self):
        await asyncio.sleep(0)
        return threading.current_thread().name

    @ray.method(concurrency_group="compute")
    async def work(self):
        return "worked"


@ray.remote
class Supervisor:
    def __init__(self, count):
        self.children = [Derived.remote(f"child {n}") for n in range(count)]

    def hello(self):
        return ray.get([child.hello.remote() for child in self.children])


@ray.remote
def call(handle: ActorHandle):
    return ray.get(handle.hello.remote())


ray.init(num_cpus=4)
derived = Derived.remote(name="one")
assert isinstance(derived, ActorHandle)
assert ray.get(derived.hello.remote()) == "derived one"
assert ray.get(derived.pair.remote()) == [1, 2]
assert [ray.get(ref) for ref in derived.count.remote(3)] == [0, 1, 2]
assert ray.get(call.remote(derived)) == "derived one"
meeting = Async.remote()
assert ray.get([meeting.meet.remote(5) for _ in range(5)], timeout=20) == [5] * 5
threaded = Threaded.remote()
assert all(ray.get([threaded.meet.remote() for _ in range(3)], timeout=30))
grouped = Grouped.remote()
assert ray.get(grouped.work.remote()) == "worked"
assert ray.get(grouped.work.options(concurrency_group="io").remote()) == "worked"
supervisor = Supervisor.options(num_cpus=0).remote(2)
assert ray.get(supervisor.hello.remote()) == ["derived child 0", "derived child 1"]
named = Derived.options(name="kept", get_if_exists=True).remote("kept")
again = Derived.options(name="kept", get_if_exists=True).remote("other")
assert ray.get(again.hello.remote()) == "derived kept"
assert named == again


async def gather():
    return await asyncio.gather(derived.hello.remote(), again.hello.remote())


assert asyncio.run(gather()) == ["derived one", "derived kept"]
try:
    Derived()
    raise AssertionError("an actor class was called directly")
except TypeError:
    pass
print("done")
