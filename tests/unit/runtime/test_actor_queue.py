"""The calls of one actor in one caller: their order, and what holds them up."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from sparkray.protocol.messages import Address, Lease
from sparkray.runtime.state.actor import WINDOW, ActorClient, ActorQueue, CreationQueue
from sparkray.runtime.state.objects import Entry
from sparkray.runtime.state.scheduling import LeasedWorker, Task, TemplateState


def client(*, in_order: bool = True) -> ActorClient:
    return ActorClient(b"a", "C", in_order=in_order, max_pending=-1)


def connect(queue: ActorQueue) -> LeasedWorker:
    channel = SimpleNamespace(peer=SimpleNamespace(known_templates=set()))
    address = Address(b"w" * 16, b"n" * 28, "", "", 0)
    worker = LeasedWorker(Lease(b"", address, []), queue, channel, 0.0)  # type: ignore[arg-type]
    queue.workers = [worker]
    return worker


def calls(queue: ActorQueue, count: int, first: int = 0) -> list[Task]:
    template = TemplateState(1, "C.m", queue, 0)  # type: ignore[arg-type]
    made = []
    for number in range(first, first + count):
        task = Task(number, template, b"", Entry(number.to_bytes(4, "big")), 0)
        task.entry.task = task
        made.append(task)
    queue.queue.extend(made)
    return made


def sent(queue: ActorQueue) -> list[int]:
    return [task.number for _, tasks in queue.assign() for task in tasks]


def test_nothing_is_sent_before_the_actor_lives() -> None:
    queue = client().queue
    calls(queue, 3)
    assert sent(queue) == [] and queue.pending() == 3
    connect(queue)
    assert sent(queue) == [0, 1, 2] and queue.pending() == 3


def test_calls_go_in_the_order_of_submission() -> None:
    queue = client().queue
    worker = connect(queue)
    calls(queue, 5)
    assert sent(queue) == [0, 1, 2, 3, 4] == list(worker.in_flight)
    calls(queue, 2, first=5)
    assert sent(queue) == [5, 6]


def test_a_call_whose_arguments_are_missing_holds_up_those_behind_it() -> None:
    queue = client().queue
    connect(queue)
    tasks = calls(queue, 4)
    tasks[1].waiting = 1
    assert sent(queue) == [0]
    assert sent(queue) == []
    tasks[1].waiting = 0
    assert sent(queue) == [1, 2, 3]


def test_a_call_that_failed_in_the_queue_is_skipped() -> None:
    queue = client().queue
    connect(queue)
    tasks = calls(queue, 3)
    tasks[0].waiting, tasks[0].entry.task = 1, None  # its argument failed
    tasks[2].entry.task = None  # cancelled
    assert sent(queue) == [1]
    assert not queue.queue


def test_no_more_than_a_window_of_calls_is_under_way() -> None:
    queue = client().queue
    worker = connect(queue)
    calls(queue, WINDOW + 10)
    assert len(sent(queue)) == WINDOW
    assert sent(queue) == []
    del worker.in_flight[0], worker.in_flight[1]
    assert sent(queue) == [WINDOW, WINDOW + 1]


def test_calls_put_back_are_the_first_again_in_their_order() -> None:
    queue = client().queue
    worker = connect(queue)
    tasks = calls(queue, 4)
    assert sent(queue) == [0, 1, 2, 3]
    calls(queue, 1, first=9)
    worker.in_flight.clear()
    queue.put_back(tasks[1:])
    assert all(task.worker is None for task in tasks[1:])
    assert sent(queue) == [1, 2, 3, 9]


def test_an_actor_needs_no_lease() -> None:
    queue = client().queue
    calls(queue, 3)
    assert queue.leases_to_request() == 0


def test_out_of_order_actors_take_ready_calls_first() -> None:
    assert client(in_order=True).queue.ordered
    assert not client(in_order=False).queue.ordered, "their calls queue when ready"


@given(st.lists(st.sampled_from(["call", "fail", "send", "answer", "lose"])))
def test_whatever_happens_no_call_overtakes_another(events: list[str]) -> None:
    queue = client().queue
    worker = connect(queue)
    number, failed, answered = 0, set(), []
    for event in events:
        if event == "call":
            calls(queue, 1, first=number)
            number += 1
        elif event == "fail" and queue.queue:
            queue.queue[-1].entry.task = None
            failed.add(queue.queue[-1].number)
        elif event == "send":
            sent(queue)
        elif event == "answer" and worker.in_flight:
            answered.append(next(iter(worker.in_flight)))
            del worker.in_flight[answered[-1]]
        elif event == "lose":
            lost = list(worker.in_flight.values())
            queue.put_back(lost)
            worker = connect(queue)
    sent(queue)
    answered += list(worker.in_flight)
    assert answered == sorted(set(range(number)) - failed)


def test_creations_are_sent_once_each() -> None:
    made: list[Task] = []
    queue = CreationQueue(made.append)
    template = TemplateState(0, "creation", queue, 0)  # type: ignore[arg-type]
    task = Task(1, template, b"", Entry(b"e"), 0)
    queue.queue.append(task)
    assert list(queue.assign()) == [] and made == [task]
    assert list(queue.assign()) == [] and made == [task]
