"""The scheduler of one node: who gets a worker, who waits, who is asked to give."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest

from sparkray.agent.state import events as e
from sparkray.agent.state import workers as w
from sparkray.agent.state.fairness import STARVING_AFTER_S
from sparkray.agent.state.hopeless import NEWS_S
from sparkray.agent.state.rotation import LEFT_WITHIN_S
from sparkray.agent.state.workers import PoolKey, WorkerState
from sparkray.protocol.messages import Strategy
from sparkray.resources import UNIT, remember
from tests.unit.agent.desk import HOLD_S, INFEASIBLE_S, JOB, OTHER_JOB, Desk, peer


def test_a_request_gets_as_many_workers_as_fit_and_are_wanted() -> None:
    desk = Desk(cpus=3)
    desk.at_once = False
    desk.request(1, count=2)
    assert len(desk.starting) == 2
    desk.start_workers()
    assert len(desk.granted[1]) == 1  # answered as soon as one is there
    desk.request(2, count=5)
    assert len(desk.granted[2]) == 1
    assert desk.free_cpus == 1


def test_more_than_fits_waits_until_a_lease_is_returned() -> None:
    desk = Desk(cpus=1)
    desk.request(1)
    desk.request(2)
    assert 2 not in desk.granted
    desk.give_back(1)
    assert desk.worker(2) == desk.worker(1)


def test_resources_of_ten_tenths_are_exactly_one() -> None:
    desk = Desk(cpus=1)
    for number in range(11):
        desk.request(number, CPU=0.1)
    assert len(desk.granted) == 10
    assert desk.free_cpus == 0


def test_a_request_without_resources_is_served_on_a_full_node() -> None:
    desk = Desk(cpus=1)
    desk.request(1)
    desk.request(2, CPU=0)
    assert 2 in desk.granted


def test_a_blocked_worker_lends_its_cpu_but_nothing_else() -> None:
    desk = Desk(cpus=1, tok=1)
    desk.request(1, CPU=1, tok=1)
    desk.request(2, CPU=1, depth=1)
    desk.request(3, tok=1)
    desk.block(1)
    assert 2 in desk.granted and 3 not in desk.granted
    desk.block(1, False)
    assert desk.free_cpus == -1
    desk.give_back(2)
    assert desk.free_cpus == 0


def test_a_lease_that_ends_while_blocked_gives_its_cpu_back_once() -> None:
    desk = Desk(cpus=2)
    desk.request(1)
    desk.block(1)
    desk.give_back(1)
    assert desk.free_cpus == 2


def test_nesting_far_deeper_than_the_cores_goes_on() -> None:
    desk = Desk(cpus=1, max_workers=64)
    for depth in range(30):
        desk.request(depth, holder=b"h%d" % depth, depth=depth)
        desk.block(depth)
    assert len(desk.granted) == 30


def test_within_a_job_the_deepest_request_is_served_first() -> None:
    desk = Desk(cpus=1)
    desk.request(1)
    desk.request(2, depth=0)
    desk.request(3, holder=b"w", depth=2)
    desk.request(4, holder=b"v", depth=1)
    for number in (1, 3, 4):
        desk.give_back(number)
    assert desk.order == [1, 3, 4, 2]


def test_jobs_take_turns_whatever_their_depth() -> None:
    desk = Desk(cpus=1)
    desk.request(0)
    for number in range(1, 5):
        desk.request(number, depth=3)
    for number in range(5, 9):
        desk.request(number, holder=b"d2", job=OTHER_JOB)
    for _ in range(8):
        desk.give_back(desk.order[-1])
    kinds = ["A" if number < 5 else "B" for number in desk.order[1:]]
    assert Counter(kinds) == {"A": 4, "B": 4}
    assert all(a != b for a, b in itertools.pairwise(kinds))


def test_shapes_and_holders_of_a_job_take_turns_in_one_walk() -> None:
    desk = Desk(cpus=4, tok=9)
    desk.request(0, CPU=4)
    desk.request(1, count=4, CPU=1)
    desk.request(2, count=4, CPU=1, tok=1)
    desk.give_back(0)
    desk.tick()
    assert len(desk.granted.get(1, [])) <= 2
    assert 1 in desk.granted and 2 in desk.granted


def test_holders_of_one_shape_take_turns() -> None:
    desk = Desk(cpus=1)
    desk.request(0, holder=b"z")
    for number in range(1, 4):
        desk.request(number, holder=b"a")
    for number in range(4, 7):
        desk.request(number, holder=b"b")
    for _ in range(6):
        desk.give_back(desk.order[-1])
    holders = ["a" if number < 4 else "b" for number in desk.order[1:]]
    assert all(x != y for x, y in itertools.pairwise(holders))


def test_a_withdrawn_request_is_answered_empty_and_takes_nothing() -> None:
    desk = Desk(cpus=1)
    desk.request(1)
    desk.request(2)
    desk.feed(e.Withdrawn(2))
    desk.give_back(1)
    assert desk.granted[2] == []
    assert desk.free_cpus == 1
    desk.feed(e.Withdrawn(2))  # late: ignored


def test_a_dead_holder_loses_its_requests_and_leases() -> None:
    desk = Desk(cpus=2)
    for number in range(3):
        desk.request(number, holder=b"dead")
    desk.request(3, holder=b"alive")
    desk.feed(e.HolderGone(b"dead"))
    assert 3 in desk.granted and 2 not in desk.granted
    assert desk.free_cpus == 1


def test_a_dead_worker_gives_its_resources_back() -> None:
    desk = Desk(cpus=1)
    desk.request(1)
    worker = desk.worker(1)
    desk._tell(w.Killed(worker, "oom", "memory"))
    desk._tell(w.Gone(worker))
    desk.feed(e.WorkerGone(worker))
    assert desk.free_cpus == 1
    desk.request(2)
    assert desk.worker(2) != worker


def test_a_lease_returned_twice_counts_once() -> None:
    desk = Desk(cpus=1)
    desk.request(1)
    desk.give_back(1)
    desk.give_back(1)
    assert desk.free_cpus == 1


def test_others_that_wait_get_leases_back_after_the_shortest_hold() -> None:
    desk = Desk(cpus=2)
    desk.request(1, holder=b"greedy")
    desk.request(2, holder=b"greedy")
    desk.request(3, holder=b"poor", job=OTHER_JOB)
    desk.tick()
    assert desk.asked == []
    desk.tick(HOLD_S)
    assert len(desk.asked) == 1
    desk.tick(0.1)
    assert len(desk.asked) == 1  # what was asked for will do
    desk.tick(0.5)
    assert len(desk.asked) == 2  # the first does not come: it runs something long


def test_a_holder_is_not_asked_for_the_same_shape_that_it_waits_for() -> None:
    desk = Desk(cpus=1)
    desk.request(1)
    desk.request(2)
    desk.tick(10)
    assert desk.asked == []


def test_equal_shares_are_left_alone() -> None:
    desk = Desk(cpus=2)
    desk.request(1, holder=b"a")
    desk.request(2, holder=b"b", job=OTHER_JOB)
    desk.request(3, holder=b"a")
    desk.request(4, holder=b"b", job=OTHER_JOB)
    desk.tick(1)
    assert desk.asked == []


def test_a_large_request_is_not_starved_by_small_ones() -> None:
    desk = Desk(cpus=4)
    for number in range(4):
        desk.request(number, holder=b"small")
    desk.request(100, holder=b"large", CPU=4)
    number = 3
    for _ in range(200):
        desk.tick(STARVING_AFTER_S / 10)
        if 100 in desk.granted:
            break
        number += 1
        desk.request(number, holder=b"small")
        desk.give_back(desk.order[0])
        del desk.order[0]
    assert 100 in desk.granted


def test_an_infeasible_request_fails_with_the_largest_node_named() -> None:
    desk = Desk(cpus=2)
    desk.see(peer(b"big", cpus=8, free=8))
    desk.request(1, CPU=64)
    desk.tick(INFEASIBLE_S - 1)
    assert 1 not in desk.failed
    desk.tick(1)
    failure = desk.failed[1]
    assert failure.kind == "UnschedulableError"
    assert failure.args[0] == "{CPU: 64}"
    assert "CPU: 8" in failure.args[1] and "big" in failure.args[1]


def test_an_infeasible_request_is_told_of_while_it_waits_once_a_shape() -> None:
    desk = Desk(cpus=2)
    desk.request(1, CPU=64)
    desk.request(2, CPU=64)
    desk.tick(4)
    assert not desk.told
    desk.tick(1)
    assert desk.told == [
        "a request for {CPU: 64} waits: no node can satisfy it, the largest has"
        " {CPU: 2} (here); it fails in 10 s unless a node that can joins"
    ]
    desk.tick(1)
    desk.request(3, tok=1)
    desk.tick(6)
    assert len(desk.told) == 2 and "{tok: 1}" in desk.told[1]


def test_a_selector_that_no_node_matches_is_told_of_with_the_labels_there_are() -> None:
    desk = Desk(cpus=2)
    desk.request(1, strategy=Strategy(labels=(("zone", "a"),)))
    desk.tick(5)
    (line,) = desk.told
    assert "matches none of the nodes" in line and "the largest" not in line


def test_what_was_told_is_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkray.resources.MAX_TOLD", 2)
    told: dict[int, None] = {}
    for number in range(5):
        remember(told, number)
    assert list(told) == [3, 4]


def test_the_gpus_of_a_process_that_is_to_end_are_lent_only_once_it_has() -> None:
    desk = Desk(cpus=1, GPU=1)
    desk.request(1, CPU=1, GPU=1)
    desk.request(2, CPU=1, GPU=1)
    first = desk.worker(1)
    desk.give_back(1, reusable=False)
    assert desk.free_cpus == 1 and 2 not in desk.granted
    desk.feed(e.WorkerGone(first))  # its channel closed; the process lives
    assert 2 not in desk.granted
    desk.die(1)
    assert 2 in desk.granted and not desk.table.leaving


def test_the_gpus_of_a_process_whose_channel_closed_are_lent_once_it_has_ended() -> (
    None
):
    desk = Desk(cpus=1, GPU=1)
    desk.request(1, CPU=1, GPU=1)
    desk.request(2, CPU=1, GPU=1)
    first = desk.worker(1)
    desk.workers.handle(w.Retired(first), desk.now)
    desk.feed(e.WorkerGone(first))
    assert desk.free_cpus == 1 and 2 not in desk.granted
    desk.die(1)
    assert 2 in desk.granted


def test_a_process_that_does_not_end_keeps_its_gpus_for_a_while_only() -> None:
    desk = Desk(cpus=1, GPU=1)
    desk.request(1, CPU=1, GPU=1)
    desk.request(2, CPU=1, GPU=1)
    desk.give_back(1, reusable=False)
    desk.tick(LEFT_WITHIN_S - 1)
    assert 2 not in desk.granted
    desk.tick(1)
    assert 2 in desk.granted


def test_a_node_that_joins_in_time_saves_an_infeasible_request() -> None:
    desk = Desk(cpus=2)
    desk.request(1, CPU=4)
    desk.tick(10)
    desk.see(peer(b"new", cpus=4, free=4))
    assert [spill.node_id for spill in desk.spills] == [b"new"]
    desk.tick(10)
    assert 1 not in desk.failed


def test_what_does_not_fit_here_now_goes_where_there_is_room() -> None:
    desk = Desk(cpus=1)
    desk.see(peer(b"full", 4, 0), peer(b"free", 4, 3))
    desk.request(1)
    assert 1 in desk.granted and not desk.spills  # local first
    desk.request(2, count=8)
    assert desk.spills == [e.Spill(2, b"free", 3, False)]


def test_what_fits_nowhere_now_waits_here() -> None:
    desk = Desk(cpus=1)
    desk.see(peer(b"full", 4, 0))
    desk.request(1)
    desk.request(2)
    assert not desk.spills
    desk.give_back(1)
    assert 2 in desk.granted


def test_a_refused_request_stays_for_a_while_and_is_served_here_too() -> None:
    desk = Desk(cpus=1)
    desk.see(peer(b"free", 4, 4))
    desk.request(1)
    desk.request(2)
    desk.feed(e.SpillAnswered(2, b"free", False))
    assert len(desk.spills) == 1
    desk.give_back(1)
    assert 2 in desk.granted


def test_a_request_granted_elsewhere_is_done_here() -> None:
    desk = Desk(cpus=1)
    desk.see(peer(b"free", 4, 4))
    desk.request(1)
    desk.request(2)
    desk.feed(e.SpillAnswered(2, b"free", True))
    desk.give_back(1)
    assert 2 not in desk.granted and desk.free_cpus == 1


def test_requests_of_other_agents_are_not_sent_on() -> None:
    desk = Desk(cpus=1)
    desk.see(peer(b"free", 4, 4))
    desk.request(1)
    desk.request(2, foreign=True)
    assert not desk.spills


def test_spread_goes_round_the_nodes() -> None:
    desk = Desk(cpus=4)
    desk.see(peer(b"p1", 4, 4), peer(b"p2", 4, 4))
    for number in range(6):
        desk.request(number, strategy=Strategy("SPREAD"))
    where = Counter(spill.node_id for spill in desk.spills)
    assert where == {b"p1": 2, b"p2": 2} and len(desk.granted) == 2


def test_a_spread_request_for_many_takes_its_share_of_a_node_only() -> None:
    desk = Desk(cpus=4)
    desk.see(peer(b"p1", 4, 4))
    desk.request(1, count=4, strategy=Strategy("SPREAD"))
    placed = len(desk.granted.get(1, [])) + sum(s.count for s in desk.spills)
    assert 1 <= placed <= 2


def test_node_affinity_goes_to_the_node_even_when_it_is_full() -> None:
    desk = Desk(cpus=4)
    desk.see(peer(b"p1", 4, 0))
    desk.request(1, strategy=Strategy("NODE", b"p1"))
    assert desk.spills == [e.Spill(1, b"p1", 1, True)]
    desk.request(2, strategy=Strategy("NODE", b"here"))
    assert 2 in desk.granted


def test_hard_affinity_to_an_unknown_node_fails_when_no_news_of_it_come() -> None:
    desk = Desk()
    desk.request(1, strategy=Strategy("NODE", b"gone"))
    assert 1 not in desk.failed
    desk.tick(NEWS_S)
    assert desk.failed[1].kind == "UnschedulableError"
    assert b"gone".hex() in desk.failed[1].args[2]


def test_hard_affinity_to_a_node_that_is_told_of_in_a_moment_goes_there() -> None:
    desk = Desk()
    desk.request(1, strategy=Strategy("NODE", b"p1"))
    desk.see(peer(b"p1", 4, 4))
    assert desk.spills == [e.Spill(1, b"p1", 1, True)]
    desk.tick(NEWS_S)
    assert 1 not in desk.failed


def test_hard_affinity_to_a_node_that_died_fails_at_once() -> None:
    desk = Desk()
    desk.see(peer(b"p1", 4, 0))
    desk.feed(e.NodeLost(b"p1"))
    desk.request(1, strategy=Strategy("NODE", b"p1"))
    assert 1 in desk.failed


def test_hard_affinity_to_a_node_that_dies_meanwhile_fails() -> None:
    desk = Desk()
    desk.see(peer(b"p1", 4, 0))
    desk.request(1, strategy=Strategy("NODE", b"p1"))
    desk.feed(e.NodeLost(b"p1"))
    desk.feed(e.SpillAnswered(1, b"p1", False))
    assert 1 in desk.failed


def test_soft_affinity_to_a_dead_node_runs_anywhere() -> None:
    desk = Desk()
    desk.request(1, strategy=Strategy("NODE", b"gone", True))
    assert 1 in desk.granted


def test_the_cap_on_processes_ends_an_idle_worker_of_another_pool() -> None:
    desk = Desk(cpus=4, max_workers=2)
    desk.request(1)
    desk.request(2)
    desk.give_back(1)
    desk.request(3, env='{"env_vars":{"A":"1"}}')
    assert 3 in desk.granted
    assert len(desk.workers.workers) == 2


def test_the_cap_on_processes_is_never_exceeded() -> None:
    desk = Desk(cpus=100, max_workers=5)
    desk.at_once = False
    desk.request(1, count=50)
    desk.request(2, count=50, holder=b"h2")
    assert len(desk.workers.workers) == 5


def test_when_all_workers_at_the_cap_are_blocked_the_error_names_the_setting() -> None:
    desk = Desk(cpus=1, max_workers=3)
    for depth in range(3):
        desk.request(depth, holder=b"h%d" % depth, depth=depth)
        desk.block(depth)
    desk.request(3, holder=b"h3", depth=3)
    desk.tick(INFEASIBLE_S - 1)
    assert not desk.failed
    desk.tick(2)
    assert "SPARKRAY_MAX_WORKERS" in " ".join(desk.failed[3].args)


def test_at_the_cap_a_request_waits_as_long_as_something_runs() -> None:
    desk = Desk(cpus=2, max_workers=2)
    desk.request(1)
    desk.request(2, holder=b"h2", depth=1)
    desk.block(1)
    desk.request(3, holder=b"h3", depth=2)
    desk.tick(2 * INFEASIBLE_S)
    desk.tick(2 * INFEASIBLE_S)
    assert not desk.failed
    desk.give_back(2)
    assert 3 in desk.granted


def test_a_pool_that_cannot_start_fails_its_requests_only() -> None:
    desk = Desk(cpus=4)
    desk.at_once = False
    desk.request(1, env="bad")
    desk.request(2)
    desk.feed(e.PoolBroken(PoolKey(JOB, "bad"), "no such thing"))
    assert desk.failed[1].kind == "RuntimeEnvSetupError"
    assert 2 not in desk.failed


def test_nobody_overtakes_a_request_whose_worker_is_starting() -> None:
    desk = Desk(cpus=1)
    desk.request(1)
    desk.give_back(1)  # the pool of JOB has an idle worker
    desk.at_once = False
    desk.request(2, holder=b"o", job=OTHER_JOB)
    desk.request(3)
    assert 3 not in desk.granted
    desk.start_workers()
    assert 2 in desk.granted and 3 not in desk.granted


def test_a_worker_that_is_not_reusable_is_not_lent_again() -> None:
    desk = Desk(cpus=1)
    desk.request(1)
    worker = desk.worker(1)
    desk.give_back(1, reusable=False)
    assert desk.workers.workers[worker].state is WorkerState.RETIRING
    desk.request(2)
    assert desk.worker(2) != worker


def test_demand_counts_what_waits_by_shape() -> None:
    desk = Desk(cpus=1)
    desk.request(1)
    desk.request(2, count=3)
    desk.request(3, holder=b"x", count=2)
    assert desk.table.demand() == [({"CPU": UNIT}, 5)]


def test_demand_is_told_where_it_waits_and_not_of_what_is_bound_to_a_node() -> None:
    desk = Desk(cpus=0)
    desk.see(peer(b"there", cpus=2, free=2))
    desk.request(1, count=5)
    assert desk.spills[0].count == 2
    assert desk.table.demand() == [({"CPU": UNIT}, 3)]
    desk.see(peer(b"there", cpus=2, free=0))
    desk.request(2, strategy=Strategy("NODE", b"there"))
    assert desk.table.demand() == [({"CPU": UNIT}, 3)]


def test_requests_of_others_go_back_when_a_node_joins_that_has_room() -> None:
    desk = Desk(cpus=1)
    desk.see(peer(b"old", cpus=1, free=0))
    desk.request(1)
    bound = Strategy("NODE", b"here")
    desk.request(2, holder=b"x", foreign=True)
    desk.request(3, holder=b"x", foreign=True, strategy=bound)
    desk.see(peer(b"old", cpus=1, free=1))  # seen before: what it has free changes fast
    desk.see(peer(b"old", cpus=1, free=0), peer(b"full", cpus=1, free=0))
    assert not desk.granted.keys() & {2, 3}
    desk.see(peer(b"old", cpus=1, free=0), peer(b"new", cpus=1, free=1))
    assert desk.granted[2] == [] and 3 not in desk.granted
    desk.give_back(1)
    assert len(desk.granted[3]) == 1


@pytest.mark.parametrize("kind", ["DEFAULT", "SPREAD"])
def test_an_event_about_something_unknown_is_ignored(kind: str) -> None:
    desk = Desk()
    unknown: list[Any] = [
        e.Withdrawn(99),
        e.LeaseReturned(b"?", True),
        e.HolderGone(b"?"),
        e.WorkerGone(b"?"),
        e.WorkerBlocked(b"?", True),
        e.NodeLost(b"?"),
        e.SpillAnswered(99, b"?", True),
    ]
    for event in unknown:
        desk.feed(event)
    desk.request(1, strategy=Strategy(kind))
    assert 1 in desk.granted
