"""Nested tasks, several results, generators, refs in refs, and limits by `wait`."""
# mypy: ignore-errors

import time

import numpy as np
import ray


@ray.remote
def leaf(number):
    return number * number


@ray.remote
def tree(depth):
    if depth == 0:
        return 1
    return sum(ray.get([tree.remote(depth - 1) for _ in range(2)]))


@ray.remote(num_returns=3)
def three():
    return 1, 2, 3


@ray.remote(num_returns="streaming")
def stream(count):
    for number in range(count):
        yield np.full(10, number)


@ray.remote(num_returns="dynamic")
def dynamic(count):
    yield from range(count)


@ray.remote
def look(ref_in_list):
    return ray.get(ref_in_list[0]).sum()


@ray.remote
def later(seconds):
    time.sleep(seconds)
    return seconds


@ray.remote(num_cpus=0.5, max_retries=2)
def quicksort(numbers):
    if len(numbers) < 50:
        return sorted(numbers)
    pivot = numbers[0]
    less = quicksort.remote([n for n in numbers[1:] if n < pivot])
    more = quicksort.remote([n for n in numbers[1:] if n >= pivot])
    return [*ray.get(less), pivot, *ray.get(more)]


ray.init(num_cpus=4)
assert ray.get([leaf.remote(n) for n in range(5)]) == [0, 1, 4, 9, 16]
assert ray.get(tree.remote(4)) == 16
assert ray.get(list(three.remote())) == [1, 2, 3]
assert ray.get(three.options(num_returns=1).remote()) == (1, 2, 3)
assert [int(ray.get(ref)[0]) for ref in stream.remote(4)] == [0, 1, 2, 3]
assert [ray.get(ref) for ref in ray.get(dynamic.remote(3))] == [0, 1, 2]
big = ray.put(np.ones(1_000_000))
assert ray.get(look.remote([big])) == 1_000_000
numbers = [37 * n % 101 for n in range(101)]
assert ray.get(quicksort.remote(numbers)) == list(range(101))

running, done = [], []
for number in range(20):
    if len(running) >= 5:
        ready, running = ray.wait(running, num_returns=1)
        done += ray.get(ready)
    running.append(leaf.remote(number))
assert sorted(done + ray.get(running)) == [n * n for n in range(20)]

refs = [later.remote(seconds) for seconds in (1.5, 0)]
assert next(iter(ray.util.as_completed(refs, chunk_size=1))) == 0
squares = ray.util.map_unordered(leaf, range(10), backpressure_size=3)
assert sorted(squares) == [n * n for n in range(10)]
try:
    leaf(3)
    raise AssertionError("a remote function was called directly")
except TypeError:
    pass
print("done")
