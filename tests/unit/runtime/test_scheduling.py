"""Which task goes to which worker: pure decisions over plain data."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkray.protocol.messages import Address, Lease, LeaseSpec, Strategy
from sparkray.runtime.state.objects import Entry
from sparkray.runtime.state.scheduling import (
    LONG_S,
    MAX_REQUESTED,
    KeyQueue,
    LeasedWorker,
    Task,
    TemplateState,
)

SPEC = LeaseSpec(b"job", "", {"CPU": 10_000}, Strategy(), 0)


def key_with(workers: int, *, ahead: int = 100) -> KeyQueue:
    key = KeyQueue(SPEC, work_ahead_s=0.002, max_ahead=ahead)
    for number in range(workers):
        add_worker(key, number)
    return key


def add_worker(key: KeyQueue, number: int) -> LeasedWorker:
    channel = SimpleNamespace(peer=SimpleNamespace(known_templates=set()))
    address = Address(bytes([number]) * 16, b"n" * 28, "", "", 0)
    worker = LeasedWorker(Lease(b"l", address, []), key, channel, now=0.0)
    key.workers.append(worker)
    return worker


def queue_tasks(key: KeyQueue, count: int, run_s: float | None) -> list[Task]:
    template = TemplateState(1, "f", key, 0)
    template.run_s = run_s
    tasks = [Task(n, template, b"", Entry(bytes([n % 256])), 0) for n in range(count)]
    key.queue.extend(tasks)
    return tasks


def pushed(key: KeyQueue) -> list[int]:
    """Assign once; return how many tasks each worker holds then."""
    for _ in key.assign():
        pass
    return [len(worker.in_flight) for worker in key.workers]


@pytest.mark.parametrize("run_s", [None, LONG_S * 2, 3600.0])
def test_long_and_unknown_tasks_go_one_to_a_worker(run_s: float | None) -> None:
    key = key_with(3)
    queue_tasks(key, 10, run_s)
    assert pushed(key) == [1, 1, 1]
    assert pushed(key) == [1, 1, 1], "none waits behind a busy worker"


def test_short_tasks_are_pushed_ahead_about_two_milliseconds() -> None:
    key = key_with(1)
    queue_tasks(key, 1000, run_s=0.0001)
    assert pushed(key) == [21]


def test_few_tasks_are_spread_over_the_workers() -> None:
    key = key_with(4)
    queue_tasks(key, 8, run_s=0.00001)
    assert pushed(key) == [2, 2, 2, 2]


def test_a_task_that_may_have_crashed_its_worker_is_pushed_alone() -> None:
    key = key_with(1)
    for task in queue_tasks(key, 5, run_s=0.00001):
        task.solo = True
    assert pushed(key) == [1]


def test_a_long_task_never_waits_behind_short_ones() -> None:
    key = key_with(1)
    queue_tasks(key, 2, run_s=0.00001)
    queue_tasks(key, 1, run_s=10.0)
    assert pushed(key) == [2]


@pytest.mark.parametrize("state", ["leaving", "blocked"])
def test_workers_that_leave_or_wait_get_nothing(state: str) -> None:
    key = key_with(2)
    setattr(key.workers[0], state, True)
    queue_tasks(key, 4, run_s=None)
    assert pushed(key) == [0, 1]


def test_as_many_leases_are_asked_for_as_tasks_wait() -> None:
    key = key_with(0)
    queue_tasks(key, 5, run_s=None)
    assert key.leases_to_request() == 5
    key.requests[1] = 5
    assert key.leases_to_request() == 0


def test_a_growing_queue_asks_again_only_for_twice_as_much() -> None:
    key = key_with(0)
    queue_tasks(key, 5, run_s=None)
    key.requests[1] = 3
    assert key.leases_to_request() == 0
    queue_tasks(key, 5, run_s=None)
    assert key.leases_to_request() == 7


def test_requests_have_a_ceiling() -> None:
    key = key_with(0)
    queue_tasks(key, 10_000, run_s=None)
    assert key.leases_to_request() == MAX_REQUESTED


def test_waiting_tasks_are_reclaimed_for_an_idle_worker() -> None:
    key = key_with(1)
    queue_tasks(key, 9, run_s=0.0001)
    pushed(key)
    add_worker(key, 2)
    found = key.reclaim_for_idle()
    assert found is not None
    worker, numbers = found
    assert worker is key.workers[0] and numbers == [5, 6, 7, 8]
    assert key.reclaim_for_idle() is None, "one request at a time"


def test_nothing_is_reclaimed_while_tasks_queue_or_all_are_busy() -> None:
    key = key_with(2)
    queue_tasks(key, 50, run_s=0.0001)
    assert key.reclaim_for_idle() is None
    pushed(key)
    assert key.reclaim_for_idle() is None


def test_tasks_put_back_are_first_and_in_order() -> None:
    key = key_with(1)
    tasks = queue_tasks(key, 4, run_s=0.00001)
    for _, taken in key.assign():
        key.workers[0].in_flight.clear()
        key.put_back(taken[1:])
    assert list(key.queue) == tasks[1:]
    assert all(task.worker is None for task in key.queue)


@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    run_s=st.one_of(st.none(), st.floats(1e-6, 0.1)),
    workers=st.integers(0, 6),
)
def test_every_task_is_in_exactly_one_place(
    counts: list[int], run_s: float | None, workers: int
) -> None:
    key = key_with(workers)
    total = 0
    for count in counts:
        template_tasks = queue_tasks(key, count, run_s)
        for offset, task in enumerate(template_tasks):
            task.number = total + offset
        total += count
        pushed(key)
    places = [t.number for t in key.queue]
    places += [number for worker in key.workers for number in worker.in_flight]
    assert sorted(places) == list(range(total))


def test_the_run_time_is_a_moving_average() -> None:
    template = TemplateState(1, "f", key_with(0), 0)
    template.note_run(1.0)
    template.note_run(2.0)
    assert template.run_s == pytest.approx(1.1)


def test_what_waits_behind_a_task_that_runs_long_is_taken_back() -> None:
    key = key_with(2)
    queue_tasks(key, 7, run_s=0.00001)
    assert pushed(key) == [4, 3]
    first, second = key.workers
    assert key.reclaim_from_stalled() == []
    second.in_flight.pop(4)  # it goes on
    assert key.reclaim_from_stalled() == [(first, [1, 2, 3])]
    assert key.reclaim_from_stalled() == [(second, [6])], "and each is asked once"
    queue_tasks(key, 1, run_s=0.00001)
    assert pushed(key) == [4, 2], "nothing more behind a stalled one"
