"""Room that a placement group waits for: what comes free is kept for it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from sparkray.agent.leasing import LeaseDesk
from sparkray.agent.options import AgentOptions
from sparkray.agent.state import events as e
from sparkray.agent.state.workers import WorkerTable
from sparkray.config import Settings
from sparkray.protocol import placement as p
from sparkray.protocol.messages import Strategy
from sparkray.resources import from_user
from tests.unit.agent.test_bundles import GROUP, GroupDesk
from tests.unit.agent.test_leases import HOLD_S


class ClaimDesk(GroupDesk):
    """A scheduler with claims of one group."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.reserved: list[int] = []

    def claim(self, *cpus: float, attempt: int = 1) -> None:
        bundles = {at: from_user({"CPU": cpu}) for at, cpu in enumerate(cpus)}
        self.feed(e.Claimed(GROUP, attempt, bundles))

    def _perform(self, effect: e.Effect) -> None:
        if isinstance(effect, e.Reserved):
            self.reserved.append(effect.attempt)
        else:
            super()._perform(effect)


@pytest.fixture
def desk() -> Any:
    return ClaimDesk(cpus=2)


def test_a_claim_that_fits_is_reserved_at_once(desk: ClaimDesk) -> None:
    desk.claim(1, 1)
    assert desk.reserved == [1] and desk.free() == 0


def test_what_comes_free_goes_to_the_claim_before_tasks(desk: ClaimDesk) -> None:
    desk.request(1)
    desk.request(2)
    desk.claim(1, 1)
    desk.request(3)
    desk.give_back(1)
    assert 3 not in desk.granted and not desk.reserved
    desk.give_back(2)
    assert 3 not in desk.granted and desk.reserved == [1]
    desk.feed(e.BundlesReturned(GROUP, 1, [0, 1], "removed"))
    assert 3 in desk.granted


def test_leases_are_asked_back_once_and_no_more_than_it_takes(
    desk: ClaimDesk,
) -> None:
    desk.request(1)
    desk.request(2)
    desk.claim(1)
    desk.tick()
    assert not desk.asked  # too young
    for _ in range(3):
        desk.tick(HOLD_S)
    assert desk.asked == [desk.worker(1)]


def test_actors_and_workers_that_wait_are_not_asked(desk: ClaimDesk) -> None:
    desk.request(1, strategy=Strategy("ACTOR"))
    desk.request(2)
    desk.block(2)
    desk.claim(2)
    desk.tick(HOLD_S)
    assert not desk.asked


def test_only_leases_of_what_is_missing_are_asked_back() -> None:
    desk = ClaimDesk(cpus=1, tok=1)
    desk.request(1, CPU=0, tok=1)
    desk.request(2, CPU=1)
    desk.claim(1)
    desk.tick(HOLD_S)
    assert desk.asked == [desk.worker(2)]


def test_halves_of_two_gpus_are_asked_back_for_a_whole_one() -> None:
    desk = ClaimDesk(cpus=4, GPU=2)
    for number in range(4):
        desk.request(number, GPU=0.5)
    assert len(desk.granted) == 4
    desk.give_back(0)
    desk.give_back(2)  # now a half of each is free, together as much as one
    desk.feed(e.Claimed(GROUP, 1, {0: from_user({"GPU": 1})}))
    desk.request(4, GPU=0.5)
    desk.tick(HOLD_S)
    assert desk.asked == [desk.worker(1)] and 4 not in desk.granted
    desk.give_back(1)
    assert desk.reserved == [1] and 4 in desk.granted


def test_tasks_go_on_when_the_claim_ends(desk: ClaimDesk) -> None:
    desk.request(1)
    desk.claim(2)
    desk.request(2)
    assert 2 not in desk.granted
    desk.feed(e.ClaimEnded(GROUP))
    assert 2 in desk.granted and not desk.reserved


def test_a_claim_that_was_returned_meanwhile_reserves_nothing(
    desk: ClaimDesk,
) -> None:
    desk.request(1)
    desk.claim(2, attempt=3)
    desk.feed(e.BundlesReturned(GROUP, 4, [0], "removed"))
    desk.give_back(1)
    assert not desk.reserved and desk.free() == 2


def test_what_leases_have_is_told_apart_from_what_actors_have(desk: ClaimDesk) -> None:
    desk.request(1, strategy=Strategy("ACTOR"))
    desk.request(2)
    assert desk.table.reclaimable() == from_user({"CPU": 1})
    desk.give_back(2)
    assert not desk.table.reclaimable().get("CPU")


class Agent:
    """What an agent does with the claims of the head; all its one CPU is taken."""

    def __init__(self) -> None:
        options = AgentOptions(
            cluster_id=b"c",
            node_id=b"here",
            host="here",
            session_dir="",
            segment_dir="",
            log_dir="",
            token_file="",
        )
        fleet: Any = SimpleNamespace(
            table=WorkerTable(1, lambda: b"w"),
            granted=Mock(),
            returned=Mock(),
            retire=Mock(),
        )
        total, around = from_user({"CPU": 1}), Mock(members={})
        self.desk = LeaseDesk(options, total, fleet, Settings(), around)
        assert self.desk.table.bundles.reserve(b"another", 1, {0: dict(total)})

    async def claim(self, attempt: int) -> asyncio.Task[bool]:
        bundles = {0: from_user({"CPU": 1})}
        request = p.ReserveBundles(GROUP, attempt, bundles, 30.0)
        task = asyncio.ensure_future(self.desk.reserve(request))
        await asyncio.sleep(0)
        assert len(self.desk.table.claims) == 1
        return task

    def give_back(self, group_id: bytes, attempt: int) -> None:
        self.desk.return_bundles(p.ReturnBundles(group_id, attempt, [0], "test"))


def test_a_claim_ends_when_the_head_hangs_up() -> None:
    async def run() -> None:
        agent = Agent()
        task = await agent.claim(1)
        task.cancel()
        await asyncio.wait({task})
        assert not len(agent.desk.table.claims)
        agent.desk.stop()

    asyncio.run(run())


def test_what_an_earlier_attempt_gives_back_late_does_not_end_a_claim() -> None:
    async def run() -> None:
        agent = Agent()
        task = await agent.claim(2)
        agent.give_back(GROUP, 1)
        assert len(agent.desk.table.claims) == 1
        agent.give_back(b"another", 1)
        assert await task
        agent.desk.stop()

    asyncio.run(run())


def test_a_claim_ends_when_its_own_attempt_is_given_back() -> None:
    async def run() -> None:
        agent = Agent()
        task = await agent.claim(2)
        agent.give_back(GROUP, 2)
        assert not await task and not len(agent.desk.table.claims)
        agent.desk.stop()

    asyncio.run(run())
