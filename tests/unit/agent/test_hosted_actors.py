"""What an agent makes of a head that died before it could say all."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from sparkray.agent import actors
from sparkray.exceptions import ClusterError
from sparkray.protocol import actors as p
from sparkray.protocol.messages import Address, Lease

ADDRESS = Address(b"w1", b"n", "", "h", 1)


class Agent:
    """An actor desk, with one worker whose lease is ``held``."""

    def __init__(self) -> None:
        channel = SimpleNamespace(send=lambda message: None)
        members: Any = {b"w1": SimpleNamespace(channel=channel)}
        nothing: Any = None
        self.held = {b"l1": b"w1"}
        self.given_back: list[bytes] = []
        self.desk = actors.ActorDesk(
            members,
            nothing,
            nothing,
            nothing,
            lambda worker_id: None,
            worker_of=self.held.get,
            give_back=self.given_back.append,
        )

    def become(self, incarnation: int = 1, lease_id: bytes = b"l1") -> None:
        self.desk.become(p.BecomeActor(b"w1", b"a", incarnation, b"", lease_id))

    def learn(self, state: str, incarnation: int) -> None:
        row = p.ActorRow(
            b"a", 9, state, incarnation, None, "", b"", "", "", "A", False, b"j"
        )
        self.desk.learn([row])


def test_a_worker_that_never_becomes_an_actor_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(actors, "UNCLAIMED_S", 0.0)

    async def main(becomes: bool) -> list[bytes]:
        agent = Agent()
        agent.desk.lent([Lease(b"l1", ADDRESS, None)])
        if becomes:
            agent.become()
        await asyncio.sleep(0.01)
        return agent.given_back

    assert asyncio.run(main(becomes=False)) == [b"l1"]
    assert asyncio.run(main(becomes=True)) == []


def test_a_worker_whose_lease_has_ended_becomes_no_actor() -> None:
    agent = Agent()
    with pytest.raises(ClusterError, match="lease"):
        agent.become(lease_id=b"l0")
    agent.become()
    agent.become()  # said again by the next head
    with pytest.raises(ClusterError, match="another"):
        agent.become(incarnation=2)


@pytest.mark.parametrize(
    ("state", "incarnation", "stray"),
    [("ALIVE", 1, False), ("DEAD", 1, True), ("RESTARTING", 2, True)],
)
def test_actors_that_the_head_has_given_up_are_found(
    state: str, incarnation: int, stray: bool
) -> None:
    agent = Agent()
    agent.become()
    agent.learn(state, incarnation)
    assert agent.desk.strays() == ([b"w1"] if stray else [])
