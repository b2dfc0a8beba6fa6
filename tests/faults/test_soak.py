"""A random graph of tasks, actors and objects with known answers, while workers and
nodes die at random: every answer is right, and nothing is left in the stores.

`SOAK_S` (seconds, environment) makes the ordinary run as long as wanted; `pytest -m
long` soaks for ten minutes.  A failure names the seed; ``-s`` shows the figures.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import sparkray
from sparkray.protocol import control
from sparkray.runtime import core
from sparkray.testing import Cluster, ClusterNode
from sparkray.testing.faults import kill_node, kill_random_worker
from tests.support import until

pytestmark = pytest.mark.faults

SOAK_S = float(os.environ.get("SOAK_S", "18"))
LONG_S = 600.0
#: No wait may take this long, however busy the machine is.
HANG_S = 90.0
#: Values are numbers below this one, or arrays that hold one of them everywhere.
MODULUS = 1_000_003
SIZE = 40_000  #: numbers of an array: more than travels in messages
#: What a process that dies may leave until the job ends: the result that it has stored
#: and not answered with yet.
OBJECT_BYTES = 2 * 8 * SIZE
NODES = 2
SETTLE_S = 8.0
MEAN_S = {"worker": 0.6, "node": 5.0}  #: between kills
FOREVER = {"max_retries": -1}


def number(value: Any) -> int:
    """Return what a value stands for; one that is damaged stands for nothing."""
    if isinstance(value, np.ndarray):
        assert value.shape == (SIZE,) and (value == value[0]).all(), "damaged"
        return int(value[0])
    return int(value)


def combine(salt: int, values: Any) -> int:
    """The arithmetic of all kinds of work: order matters, so that none is mixed up."""
    result = salt
    for value in values:
        result = (result * 31 + number(value)) % MODULUS
    return result


@sparkray.remote(**FOREVER)
def small(salt: int, *values: Any) -> int:
    return combine(salt, values)


@sparkray.remote(**FOREVER)
def large(salt: int, *values: Any) -> Any:
    return np.full(SIZE, combine(salt, values))


@sparkray.remote(**FOREVER)
def nested(salt: int, *values: Any) -> int:
    """Leave the work to tasks of its own; the object between them is its own, too."""
    inner = large.remote(salt, *map(number, values))
    return int(sparkray.get(small.remote(0, inner), timeout=HANG_S))


@sparkray.remote(**FOREVER)
def inside(salt: int, refs: list[Any]) -> int:
    """Get objects itself, by refs that came inside another object."""
    return combine(salt, sparkray.get(refs, timeout=HANG_S))


@sparkray.remote(num_returns=2, **FOREVER)
def both(salt: int, *values: Any) -> tuple[Any, int]:
    result = combine(salt, values)
    return np.full(SIZE, result), result


@sparkray.remote(num_returns="streaming", **FOREVER)
def stream(salt: int, *values: Any) -> Iterator[Any]:
    for k in range(3):
        yield np.full(SIZE, combine(salt + k, values))


@sparkray.remote(num_cpus=0.1, max_restarts=-1, max_task_retries=-1)
class Worker:
    def small(self, salt: int, *values: Any) -> int:
        return combine(salt, values)

    def large(self, salt: int, *values: Any) -> Any:
        return np.full(SIZE, combine(salt, values))


class Graph:
    """Grows at random from what is there; knows what each object has to be."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._actors = [Worker.remote() for _ in range(3)]
        self._known: list[tuple[Any, int]] = []  #: refs, and their right answers
        self.tasks = 0
        self.wrong = 0

    def grow(self) -> None:
        """Add one piece of work, upon up to three objects that are there."""
        chance = self._chance
        salt = chance.randrange(MODULUS)
        picked = chance.sample(self._known, min(len(self._known), chance.randint(0, 3)))
        refs = [ref for ref, _ in picked]
        answer = combine(salt, [right for _, right in picked])
        self.tasks += 1
        kind = chance.choice(self.KINDS)
        kind(self, salt, refs, answer, [right for _, right in picked])

    def _small(self, salt: int, refs: Any, answer: int, _rights: list[int]) -> None:
        self._known.append((small.remote(salt, *refs), answer))

    def _large(self, salt: int, refs: Any, answer: int, _rights: list[int]) -> None:
        self._known.append((large.remote(salt, *refs), answer))

    def _nested(self, salt: int, refs: Any, answer: int, _rights: list[int]) -> None:
        self.tasks += 2
        self._known.append((nested.remote(salt, *refs), answer))

    def _inside(self, salt: int, refs: Any, answer: int, _rights: list[int]) -> None:
        self._known.append((inside.remote(salt, refs), answer))

    def _both(self, salt: int, refs: Any, answer: int, _rights: list[int]) -> None:
        self._known += [(ref, answer) for ref in both.remote(salt, *refs)]

    def _stream(self, salt: int, refs: Any, _answer: int, rights: list[int]) -> None:
        items = list(stream.remote(salt, *refs))
        if len(items) < 3:  # the last one is the error that it ended with
            sparkray.get(items, timeout=HANG_S)
        for k, item in enumerate(items):
            self._known.append((item, combine(salt + k, rights)))

    def _call(self, salt: int, refs: Any, answer: int, _rights: list[int]) -> None:
        actor = self._chance.choice(self._actors)
        method = self._chance.choice([actor.small, actor.large])
        self._known.append((method.remote(salt, *refs), answer))

    def _put(self, salt: int, _refs: Any, _answer: int, _rights: list[int]) -> None:
        self.tasks -= 1
        right = salt % MODULUS
        self._known.append((sparkray.put(np.full(SIZE, right)), right))

    KINDS = (_small, _large, _nested, _inside, _both, _stream, _call, _put)

    def check(self, keep: int) -> None:
        """Compare all objects with what they have to be; keep some to build upon."""
        values = sparkray.get([ref for ref, _ in self._known], timeout=HANG_S)
        rights = [right for _, right in self._known]
        self.wrong += sum(
            number(value) != right for value, right in zip(values, rights, strict=True)
        )
        self._known = self._chance.sample(self._known, min(keep, len(self._known)))


class Reaper:
    """Kills processes of a cluster until told to end.  All of it on one thread."""

    def __init__(self, cluster: Cluster, chance: random.Random) -> None:
        self._cluster, self._chance = cluster, chance
        #: How each kind of process is killed; a kind more needs its `MEAN_S` only.
        self.ways: dict[str, Callable[[], bool]] = {
            "worker": lambda: kill_random_worker(chance) is not None,
            "node": self._kill_node,
        }
        self.kills = dict.fromkeys(self.ways, 0)
        self.error: BaseException | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Reaper:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            due = {kind: self._next(kind) for kind in self.ways}
            while True:
                kind = min(due, key=lambda kind: due[kind])
                if self._end.wait(max(0.0, due[kind] - time.monotonic())):
                    return
                self.kills[kind] += self.ways[kind]()
                due[kind] = self._next(kind)
        except BaseException as error:  # the test tells of it
            self.error = error

    def _next(self, kind: str) -> float:
        return time.monotonic() + self._chance.uniform(0.2, 1.8) * MEAN_S[kind]

    def _kill_node(self) -> bool:
        """Kill a node once another one has taken its place."""
        others = [node for node in self._cluster.nodes if not node.is_head]
        victim: ClusterNode = self._chance.choice(others)
        self._cluster.add_node(num_cpus=2)
        kill_node(self._cluster, victim)
        return True


def stored_bytes() -> int:
    """Return how much the stores of all nodes hold."""
    answer = core.current().head_call("ListObjects", control.ListObjects())
    return sum(answer.store_used_bytes.values())


def bytes_left(before: int) -> int:
    """Return what the stores hold once they had time to free all that can be."""
    with contextlib.suppress(AssertionError):
        until(lambda: stored_bytes() == before, timeout_s=SETTLE_S)
    return stored_bytes()


def soak(seconds: float, seed: int) -> None:
    chance = random.Random(seed)
    with Cluster(head_node_args={"num_cpus": 0}) as cluster:
        for _ in range(NODES):
            cluster.add_node(num_cpus=2)
        sparkray.init(address=cluster.address, log_to_driver=False)
        try:
            before = stored_bytes()
            reaper = Reaper(cluster, random.Random(seed))
            graph = Graph(chance)
            end = time.monotonic() + seconds
            with reaper:
                while time.monotonic() < end and reaper.error is None:
                    for _ in range(chance.randint(10, 60)):
                        graph.grow()
                    graph.check(keep=20)
            graph.check(keep=0)
            tasks, wrong = graph.tasks, graph.wrong
            del graph
            left = bytes_left(before)
            kills = ", ".join(f"{n} {kind}s" for kind, n in reaper.kills.items())
            print(
                f"\nseed {seed}, {seconds:g} s: {kills} killed; {tasks} tasks done;"
                f" {wrong} wrong answers; bytes in stores {before} -> {left}"
            )
        finally:
            sparkray.shutdown()
    assert reaper.error is None, f"seed {seed}: {reaper.error!r}"
    assert not wrong, f"seed {seed}"
    assert left <= before + OBJECT_BYTES * sum(reaper.kills.values()), f"seed {seed}"
    assert all(reaper.kills.values()), f"seed {seed}: {reaper.kills}"


@pytest.mark.timeout(SOAK_S + 2 * HANG_S + 60)
def test_every_answer_is_right_while_workers_and_nodes_die(fresh: Any) -> None:
    soak(SOAK_S, seed=1)


@pytest.mark.long
@pytest.mark.timeout(LONG_S + 2 * HANG_S + 120)
@pytest.mark.parametrize("seed", [2, 3])
def test_every_answer_is_right_over_ten_minutes(fresh: Any, seed: int) -> None:
    soak(LONG_S, seed)
