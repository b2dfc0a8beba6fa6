"""The life cycles of worker processes."""

from __future__ import annotations

import itertools

import pytest

from sparkray.agent.state import workers as w
from sparkray.agent.state.workers import PoolKey, WorkerState, WorkerTable

KEY, OTHER = PoolKey(b"job", ""), PoolKey(b"job", "env")
S = WorkerState

#: What brings a new worker into each state.
PATHS: dict[WorkerState, list[type]] = {
    S.STARTING: [],
    S.IDLE: [w.Attached],
    S.LEASED: [w.Attached, w.Granted],
    S.RETIRING: [w.Attached, w.Retired],
    S.ENDING: [w.Attached, w.Killed],
}
#: What cannot happen: only the table lends, and a process attaches once.
IMPOSSIBLE = {
    (S.STARTING, w.Granted),
    (S.STARTING, w.Returned),
    (S.STARTING, w.Spent),
    (S.IDLE, w.Attached),
    (S.IDLE, w.Returned),
    (S.LEASED, w.Attached),
    (S.LEASED, w.Granted),
    (S.RETIRING, w.Attached),
    (S.RETIRING, w.Granted),
    (S.ENDING, w.Granted),
}


def event(kind: type, worker_id: bytes) -> w.Event:
    more: dict[type, tuple[object, ...]] = {
        w.Attached: (1,),
        w.Returned: (True,),
        w.Killed: ("signal", "why"),
    }
    made: w.Event = kind(worker_id, *more.get(kind, ()))
    return made


def table_with(state: WorkerState, max_workers: int = 9) -> tuple[WorkerTable, bytes]:
    ids = itertools.count(1)
    table = WorkerTable(max_workers, lambda: b"w%d" % next(ids))
    (start,) = table.handle(w.StartWanted(KEY), 0.0)
    for kind in PATHS[state]:
        table.handle(event(kind, start.worker_id), 1.0)
    assert table.workers[start.worker_id].state is state
    return table, start.worker_id


@pytest.mark.parametrize("state", PATHS)
@pytest.mark.parametrize(
    "kind",
    [w.Attached, w.Granted, w.Returned, w.Spent, w.Retired, w.Killed, w.Gone],
)
def test_every_event_in_every_state_has_an_answer(
    state: WorkerState, kind: type
) -> None:
    table, worker_id = table_with(state)
    if (state, kind) in IMPOSSIBLE:
        with pytest.raises(ValueError, match=kind.__name__):
            table.handle(event(kind, worker_id), 2.0)
        return
    table.handle(event(kind, worker_id), 2.0)
    assert (worker_id in table.workers) == (kind is not w.Gone)
    idle = worker_id in table.workers and table.workers[worker_id].state is S.IDLE
    assert (table.next_idle(KEY) == worker_id) == idle
    starting = worker_id in table.workers and state is S.STARTING
    starting = starting and table.workers[worker_id].state is S.STARTING
    assert table.starting(KEY) == int(starting)


def test_news_of_a_worker_that_is_gone_are_ignored() -> None:
    table, worker_id = table_with(S.IDLE)
    table.handle(w.Gone(worker_id), 2.0)
    assert table.handle(w.Killed(worker_id, "oom", "late"), 3.0) == []


def test_the_first_reason_of_a_kill_is_kept() -> None:
    table, worker_id = table_with(S.LEASED)
    table.handle(w.Killed(worker_id, "oom", "first"), 2.0)
    table.handle(w.Killed(worker_id, "signal", "second"), 3.0)
    worker = table.workers[worker_id]
    assert (worker.kill_kind, worker.kill_reason) == ("oom", "first")


def test_the_worker_used_last_is_lent_first() -> None:
    table = WorkerTable(9, iter([b"a", b"b"]).__next__)
    for worker_id in (b"a", b"b"):
        table.handle(w.StartWanted(KEY), 0.0)
        table.handle(w.Attached(worker_id, 1), 1.0)
    assert table.next_idle(KEY) == b"b"
    table.handle(w.Granted(b"a"), 2.0)
    table.handle(w.Returned(b"a", True), 3.0)
    assert table.next_idle(KEY) == b"a"
    assert table.longest_idle(but=OTHER) == b"b"
    assert table.longest_idle(but=KEY) is None


def test_a_worker_that_is_spent_ends_with_its_lease() -> None:
    table, worker_id = table_with(S.LEASED)
    assert table.handle(w.Spent(worker_id), 1.0) == []
    effects = table.handle(w.Returned(worker_id, True), 2.0)  # its holder did not know
    assert effects == [w.AskToEnd(worker_id)]
    table, worker_id = table_with(S.IDLE)
    assert table.handle(w.Spent(worker_id), 1.0) == [w.AskToEnd(worker_id)]


def test_only_spare_workers_end_for_being_idle() -> None:
    table = WorkerTable(9, iter([b"a", b"b", b"c"]).__next__)
    for at, worker_id in enumerate((b"a", b"b", b"c")):
        table.handle(w.StartWanted(KEY), 0.0)
        table.handle(w.Attached(worker_id, 1), float(at))
    assert table.idle_too_long(keep=2, idle_s=30, now=20.0) == []
    assert table.idle_too_long(keep=2, idle_s=30, now=60.0) == [b"a"]
    assert table.idle_too_long(keep=0, idle_s=59, now=60.0) == [b"a", b"b"]


def test_nothing_moves_when_all_leased_workers_are_blocked() -> None:
    table, worker_id = table_with(S.LEASED)
    assert not table.nothing_moves()
    table.workers[worker_id].blocked = True
    assert table.nothing_moves()
    table.handle(w.StartWanted(KEY), 2.0)
    assert not table.nothing_moves()
