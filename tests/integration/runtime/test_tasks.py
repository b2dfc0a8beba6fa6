"""Tasks on a real cluster: what they return, where and when they run."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import sparkray
from sparkray.exceptions import SparkrayError
from sparkray.launch import discovery
from sparkray.protocol import control
from sparkray.runtime import core
from tests.support import Gate, Tally, quiet, run_driver, until

pytestmark = pytest.mark.usefixtures("shared")
MB = 1 << 20


@sparkray.remote
def identity(value: Any) -> Any:
    return value


# --- several returns ---


def test_a_dynamic_task_returns_refs_of_all_it_yielded() -> None:
    @sparkray.remote(num_returns="dynamic")
    def blocks(count: int) -> Any:
        for index in range(count):
            yield np.full(50_000, index)  # larger than what travels in a message

    refs = sparkray.get(blocks.remote(4))
    assert len(refs) == 4
    assert [int(sparkray.get(ref)[-1]) for ref in refs] == [0, 1, 2, 3]
    assert len(sparkray.get(blocks.remote(0))) == 0


def test_an_error_in_a_dynamic_task_is_that_of_its_one_ref() -> None:
    @sparkray.remote(num_returns="dynamic")
    def broken() -> Any:
        yield 1
        raise ValueError("broke off")

    with pytest.raises(ValueError, match="broke off"):
        sparkray.get(broken.remote())


def test_a_stream_stays_ahead_of_its_consumer_by_the_limit_only(tmp_path: Path) -> None:
    made = Tally(tmp_path)

    @sparkray.remote(num_returns="streaming", generator_backpressure_num_objects=3)
    def numbers() -> Any:
        for index in range(10):
            made.add()
            yield index

    stream = numbers.remote()
    until(lambda: made.count() == 3)
    assert quiet(lambda: made.count() == 3)
    assert sparkray.get(next(stream)) == 0
    until(lambda: made.count() == 4)
    assert quiet(lambda: made.count() == 4)
    assert sparkray.get(list(stream)) == list(range(1, 10))


def test_a_task_held_back_by_its_consumer_lends_its_cpu(tmp_path: Path) -> None:
    @sparkray.remote(
        num_cpus=4,
        num_returns="streaming",
        generator_backpressure_num_objects=1,
    )
    def numbers() -> Any:
        yield from range(3)

    stream = numbers.remote()
    assert sparkray.get(next(stream), timeout=20) == 0
    whole = identity.options(num_cpus=4).remote("meanwhile")
    assert sparkray.get(whole, timeout=20) == "meanwhile"
    assert sparkray.get(list(stream)) == [1, 2]


def test_a_stream_that_nobody_reads_on_ends(tmp_path: Path) -> None:
    ended = Tally(tmp_path)

    @sparkray.remote(num_returns="streaming", generator_backpressure_num_objects=1)
    def numbers() -> Any:
        yield from range(5)
        ended.add()

    stream = numbers.remote()
    next(stream)
    del stream
    until(ended.count)


@pytest.mark.parametrize(
    ("returned", "found"), [((1, 2), "2 values"), (7, "one int"), ((), "0 values")]
)
def test_a_wrong_number_of_returns_is_an_error_with_both_counts(
    returned: Any, found: str
) -> None:
    @sparkray.remote(num_returns=3)
    def wrong() -> Any:
        return returned

    for ref in wrong.remote():
        with pytest.raises(ValueError, match="num_returns=3") as caught:
            sparkray.get(ref)
        assert found in str(caught.value)


def test_one_of_three_returns_may_be_large_and_one_a_ref() -> None:
    @sparkray.remote(num_returns=3)
    def mixed() -> Any:
        return "small", np.zeros(MB), [sparkray.put(5)]

    small, large, boxed = mixed.remote()
    assert sparkray.get(small) == "small" and sparkray.get(large).nbytes == 8 * MB
    assert sparkray.get(sparkray.get(boxed)[0]) == 5


def test_a_task_without_returns_runs_and_its_error_harms_nobody(tmp_path: Path) -> None:
    ran = Tally(tmp_path)

    @sparkray.remote(num_returns=0)
    def silent() -> None:
        ran.add()
        raise ValueError("nobody asked")

    assert silent.remote() is None
    until(ran.count)
    assert sparkray.get(identity.remote(1)) == 1


@pytest.mark.parametrize("bad", [-1, 1.5, "some", True])
def test_other_counts_of_returns_are_refused_at_once(bad: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="num_returns"):
        identity.options(num_returns=bad)


# --- arguments and functions ---


def test_one_ref_may_be_given_twice() -> None:
    @sparkray.remote
    def same(first: Any, second: Any, *, third: Any) -> bool:
        return bool((first == second).all() and (first == third).all())

    large = sparkray.put(np.arange(MB))
    assert sparkray.get(same.remote(large, large, third=large))
    pending = identity.remote(np.arange(10))
    assert sparkray.get(same.remote(pending, pending, third=pending))


def test_large_arguments_arrive_by_value() -> None:
    data = np.arange(5 * MB)  # 40 MB

    @sparkray.remote
    def total(values: Any, *, more: Any) -> int:
        return int(values.sum()) + len(more)

    expected = int(data.sum()) + 3 * MB
    assert sparkray.get(total.remote(data, more=bytes(3 * MB))) == expected


def test_a_function_that_closes_over_much_data_works() -> None:
    table = np.arange(2 * MB)  # 16 MB

    @sparkray.remote
    def at(index: int) -> int:
        return int(table[index])

    indices = [0, 5, 2 * MB - 1]
    assert sparkray.get([at.remote(index) for index in indices]) == indices


def test_a_function_that_is_too_large_to_send_names_the_variable_and_its_size() -> None:
    enormous = np.zeros(40 * MB, dtype=np.uint8)
    small = 5

    @sparkray.remote
    def length() -> int:
        return len(enormous) + small

    try:
        answer = sparkray.get(length.remote(), timeout=40)
    except (ValueError, SparkrayError) as error:
        text = str(error)
        assert "length" in text and "'enormous'" in text and str(40 * MB)[:2] in text
        assert "put" in text and "'small'" not in text
    else:
        assert answer == 40 * MB + 5


def test_a_redefined_function_runs_its_new_code() -> None:
    answers = []
    for version in range(3):
        scope: dict[str, Any] = {"sparkray": sparkray}
        source = f"@sparkray.remote\ndef f():\n    return {version}\n"
        exec(source, scope)
        answers.append(sparkray.get(scope["f"].remote()))
    assert answers == [0, 1, 2]


def test_a_name_shows_in_context_and_errors() -> None:
    @sparkray.remote(name="nightly report")
    def named(fail: bool) -> str | None:
        if fail:
            raise ValueError("no data")
        return sparkray.get_runtime_context().get_task_name()

    assert sparkray.get(named.remote(False)) == "nightly report"
    with pytest.raises(ValueError, match=r"nightly report .*pid="):
        sparkray.get(named.remote(True))
    other = named.options(name="other")
    assert sparkray.get(other.remote(False)) == "other"


def test_a_worker_is_replaced_after_its_last_call() -> None:
    @sparkray.remote(max_calls=2)
    def pid() -> int:
        return os.getpid()

    pids = [sparkray.get(pid.remote()) for _ in range(6)]
    assert all(pids.count(one) <= 2 for one in pids) and len(set(pids)) >= 3
    for _ in range(5):
        pids += [sparkray.get(pid.remote()) for _ in range(3)]
        together = sparkray.get([pid.remote() for _ in range(12)])
        assert all(together.count(one) <= 2 for one in together)
    until(lambda: not any(map(psutil.pid_exists, {*pids, *together[:-8]})))


# --- scheduling ---


def test_a_burst_runs_though_nobody_asks_for_it(tmp_path: Path) -> None:
    ran = Tally(tmp_path)

    @sparkray.remote
    def note(index: int) -> None:
        ran.add(index)

    refs = [note.remote(index) for index in range(100)]
    until(lambda: ran.count() == 100)
    for index in range(100, 200):
        note.remote(index)  # nobody keeps the ref either
    until(lambda: ran.count() == 200)
    assert sorted(map(int, ran.lines())) == list(range(200)) and len(refs) == 100


def test_a_long_task_holds_up_no_short_one(tmp_path: Path) -> None:
    gate = Gate(tmp_path)

    @sparkray.remote
    def work(index: int) -> int:
        if index == 37:
            gate.wait()
        return index

    refs = [work.remote(index) for index in range(200)]
    long = refs.pop(37)
    ready, waiting = sparkray.wait(refs, num_returns=199, timeout=20)
    assert len(ready) == 199 and not waiting
    assert sparkray.wait([long], timeout=0) == ([], [long])
    gate.open()
    assert sparkray.get(long) == 37


def test_half_a_cpu_is_half_a_cpu(tmp_path: Path) -> None:
    gate, begun = Gate(tmp_path), Tally(tmp_path)

    @sparkray.remote(num_cpus=0.5, resources={"gadget": 0.25})
    def half() -> dict[str, float]:
        begun.add()
        gate.wait()
        return sparkray.get_runtime_context().get_assigned_resources()

    refs = [half.remote() for _ in range(12)]
    until(lambda: begun.count() == 8)
    assert quiet(lambda: begun.count() == 8)
    gate.open()
    assert sparkray.get(refs) == [{"CPU": 0.5, "gadget": 0.25}] * 12


def test_tasks_nested_twelve_deep_run_on_one_cpu() -> None:
    code = """
import sparkray
sparkray.init(num_cpus=1)

@sparkray.remote
def down(depth):
    return depth if depth == 12 else sparkray.get(down.remote(depth + 1))

print(sparkray.get(down.remote(1), timeout=50))
"""
    run = run_driver(code)
    assert run.stdout.split() == ["12"], run.stderr


def test_threads_of_a_task_that_wait_lend_its_cpu_too() -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
import sparkray
sparkray.init(num_cpus=1)

@sparkray.remote
def child(i):
    return i

@sparkray.remote
def parent():
    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(lambda i: sparkray.get(child.remote(i)), range(6)))

print(sparkray.get([parent.remote() for _ in range(2)], timeout=30))
print(sparkray.get(child.remote("after"), timeout=10))
"""
    run = run_driver(code)
    assert run.stdout.splitlines() == [str([list(range(6))] * 2), "after"], run.stderr


def workers() -> int:
    """Count the workers of this session's only node."""
    (node,) = discovery.nodes_on_this_host(Path(os.environ["SPARKRAY_TEMP_DIR"]))
    zygotes = psutil.Process(node.pid).children()
    return sum(len(zygote.children()) for zygote in zygotes)


def test_two_hundred_blocked_parents_stay_below_the_cap_on_processes() -> None:
    cap = 64 + 16 * 4  # docs/configuration.md, max_workers

    @sparkray.remote
    def child(index: int) -> int:
        return index

    @sparkray.remote
    def parent(first: int) -> int:
        return sum(sparkray.get([child.remote(first + i) for i in range(5)]))

    refs = [parent.remote(index) for index in range(200)]
    left, most = refs, 0
    deadline = time.monotonic() + 55
    while left:
        _, left = sparkray.wait(left, num_returns=len(left), timeout=0.5)
        most = max(most, workers())
        assert time.monotonic() < deadline, f"{len(left)} parents left, {most} workers"
    assert sparkray.get(refs) == [5 * index + 10 for index in range(200)]
    assert 0 < most <= cap


# --- what cannot run ---


def test_what_no_node_has_fails_and_leaves_no_demand() -> None:
    code = """
import sparkray
from sparkray.exceptions import UnschedulableError
from sparkray.protocol import control
from sparkray.runtime import core
sparkray.init(num_cpus=2, resources={"a": 1})
refs = [sparkray.remote(num_cpus=64, resources={"b": 2})(abs).remote(i) for i in "12"]
for ref in refs:
    try:
        sparkray.get(ref, timeout=30)
    except UnschedulableError as error:
        print(error)
print(sparkray.get(sparkray.remote(abs).remote(-5)))
import time
deadline = time.monotonic() + 10
while True:
    demand = core.current().head_call("Status", control.ClusterStatus()).demand
    if not demand or time.monotonic() > deadline:
        break
    time.sleep(0.1)
print(demand)
"""
    run = run_driver(code, SPARKRAY_INFEASIBLE_TIMEOUT_S="0.5")
    first, second, value, demand = run.stdout.splitlines()
    assert first == second and value == "5" and demand == "[]", run.stderr
    for part in ("CPU: 64", "b: 2", "largest node", "CPU: 2", "a: 1"):
        assert part in first


def demand() -> list[Any]:
    return core.current().head_call("Status", control.ClusterStatus()).demand


def test_demand_shows_while_tasks_wait_and_goes_with_them(tmp_path: Path) -> None:
    gate = Gate(tmp_path)

    @sparkray.remote(num_cpus=4)
    def all_cpus() -> None:
        gate.wait()

    refs = [all_cpus.remote() for _ in range(3)]
    until(demand)
    gate.open()
    sparkray.get(refs)
    until(lambda: not demand())


def test_a_cancelled_request_leaves_no_demand() -> None:
    ref = identity.options(num_cpus=64).remote(1)
    until(demand)
    sparkray.cancel(ref)
    with pytest.raises(SparkrayError):
        sparkray.get(ref, timeout=10)
    until(lambda: not demand())
