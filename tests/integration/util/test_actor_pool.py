import time
from typing import Any

import pytest

import sparkray
from sparkray.util.actor_pool import ActorPool
from tests.support import Gate

pytestmark = pytest.mark.usefixtures("shared")


@sparkray.remote
class Worker:
    def double(self, x: int) -> int:
        return 2 * x

    def nap_then(self, x: int, seconds: float) -> int:
        time.sleep(seconds)
        return x

    def through(self, gate: Gate, x: int) -> int:
        gate.wait()
        return x

    def fails_for(self, bad: int, x: int) -> int:
        if x == bad:
            raise KeyError(x)
        return x


@pytest.fixture(scope="module")
def two(shared: Any) -> list[Any]:
    return [Worker.remote() for _ in range(2)]


def test_map_yields_in_the_order_of_the_values(two: list[Any]) -> None:
    pool = ActorPool(two)
    delays = [0.1, 0.0, 0.05, 0.0]
    got = pool.map(lambda a, i: a.nap_then.remote(i, delays[i]), range(4))
    assert list(got) == [0, 1, 2, 3]
    assert list(pool.map(lambda a, v: a.double.remote(v), [])) == []


def test_map_unordered_yields_what_is_there(two: list[Any], tmp_path: Any) -> None:
    pool, gate = ActorPool(two), Gate(tmp_path)
    calls = [lambda a: a.through.remote(gate, 0), *[_double(i) for i in range(1, 5)]]
    got = pool.map_unordered(lambda a, call: call(a), calls)
    assert sorted(next(got) for _ in range(4)) == [2, 4, 6, 8]
    gate.open()
    assert list(got) == [0]


def _double(i: int) -> Any:
    return lambda a: a.double.remote(i)


def test_short_calls_do_not_queue_behind_a_long_one(
    two: list[Any], tmp_path: Any
) -> None:
    pool, gate = ActorPool(two), Gate(tmp_path)
    pool.submit(lambda a, v: a.through.remote(gate, v), 0)
    for value in range(1, 6):
        pool.submit(lambda a, v: a.double.remote(v), value)
    with pytest.raises(TimeoutError):
        pool.get_next(timeout=1.0)
    assert not pool._waiting
    gate.open()
    assert [pool.get_next() for _ in range(6)] == [0, 2, 4, 6, 8, 10]
    with pytest.raises(StopIteration):
        pool.get_next()


def test_a_result_that_is_late_can_be_given_up(two: list[Any], tmp_path: Any) -> None:
    pool, gate = ActorPool(two), Gate(tmp_path)
    pool.submit(lambda a, v: a.through.remote(gate, v), 7)
    pool.submit(lambda a, v: a.double.remote(v), 4)
    with pytest.raises(TimeoutError):
        pool.get_next(timeout=0.05, ignore_if_timedout=True)
    assert pool.get_next(timeout=10) == 8
    assert not pool.has_next() and pool.has_free()
    gate.open()


def test_an_error_reaches_the_caller_and_the_pool_goes_on(two: list[Any]) -> None:
    pool = ActorPool(two)
    for value in range(4):
        pool.submit(lambda a, v: a.fails_for.remote(1, v), value)
    assert pool.get_next() == 0
    with pytest.raises(KeyError):
        pool.get_next()
    assert [pool.get_next(), pool.get_next()] == [2, 3]


def test_order_cannot_be_asked_for_after_it_was_given_up(two: list[Any]) -> None:
    pool = ActorPool(two)
    for value in range(3):
        pool.submit(lambda a, v: a.double.remote(v), value)
    pool.get_next_unordered()
    with pytest.raises(ValueError, match="order"):
        pool.get_next()
    pool.get_next_unordered()
    pool.get_next_unordered()
    pool.submit(lambda a, v: a.double.remote(v), 9)
    assert pool.get_next() == 18


def test_actors_come_and_go(two: list[Any]) -> None:
    pool = ActorPool([two[0]])
    with pytest.raises(ValueError, match="already"):
        pool.push(two[0])
    assert pool.pop_idle() == two[0]
    assert pool.pop_idle() is None and not pool.has_free()
    pool.submit(lambda a, v: a.double.remote(v), 1)
    with pytest.raises(ValueError, match="no actors"):
        pool.get_next()
    pool.push(two[1])
    assert pool.get_next() == 2


def test_a_function_that_returns_no_ref_is_refused(two: list[Any]) -> None:
    pool = ActorPool(two)
    with pytest.raises(TypeError, match="must return a ref"):
        pool.submit(lambda a, v: v, 1)
    assert pool.has_free() and not pool.has_next()
