"""Finds workers for actors and ends them: does what `state.actors` decides."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

import msgspec

from sparkray import labels
from sparkray.exceptions import SparkrayError, UnschedulableError
from sparkray.head.placement import CallAgent
from sparkray.head.state import actors as state
from sparkray.head.state.actors import Actor, ActorTable
from sparkray.head.state.placement import Group, GroupState
from sparkray.protocol import actors as p
from sparkray.protocol import codec, control
from sparkray.protocol.control import NodeInfo
from sparkray.protocol.messages import Address, LeaseSpec, Strategy
from sparkray.resources import (
    TELL_INFEASIBLE_AFTER_S,
    UNIT,
    describe,
    fits,
    infeasible_text,
    remember,
)
from sparkray.transport.errors import to_wire

_log = logging.getLogger(__name__)

#: How long one agent may look for a worker before others are tried.
LEASE_WAIT_S: Final = 2.0
#: Other bundles of its group may have room for an actor at once.
GROUP_WAIT_S: Final = 0.5
LEASE_CALL_S: Final = 30.0
CALL_S: Final = 10.0
#: How long to pause when nobody can give a worker now.
RETRY_S: Final = 0.1


class ActorDesk:
    """All actors.

    Args:
        table: of what an earlier head knew.
        save: writes what has changed; before anybody is told.
        alive: the living nodes.
        call_agent: (node id, method, request, seconds) -> answer.
        tell: sends rows to all agents.
        tell_driver: sends lines to the driver of their job.
        spawn: runs a coroutine beside everything else.
        infeasible_timeout_s: how long an actor that fits no node waits for a new one.
        group: the placement group of an id, None if there is none.
    """

    def __init__(
        self,
        table: ActorTable,
        *,
        save: Callable[[], None],
        alive: Callable[[], list[NodeInfo]],
        call_agent: CallAgent,
        tell: Callable[[list[p.ActorRow]], None],
        tell_driver: Callable[[control.LogBatch], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        infeasible_timeout_s: float,
        group: Callable[[bytes], Group | None],
    ) -> None:
        self.table, self._save = table, save
        self._turn = itertools.count(1)
        self._turns: dict[bytes, int] = {}  #: when a node last got a spread actor
        self._alive, self._call_agent = alive, call_agent
        self._tell, self._tell_driver, self._spawn = tell, tell_driver, spawn
        self._told: dict[tuple[bytes, str], None] = {}  #: the oldest first
        self._infeasible_timeout_s = infeasible_timeout_s
        self._group = group

    def create(
        self, request: p.CreateActor, when_new: Callable[[], None] = lambda: None
    ) -> p.ActorRow:
        """Take an actor in.

        Args:
            when_new: called before it is saved, unless it, or one of its name that will
                do, is there already.

        Raises:
            ValueError: the name is taken.
        """
        creation = msgspec.msgpack.decode(request.creation, type=p.ActorCreation)
        actor, effects = self.table.create(request, creation.class_name)
        if effects:
            when_new()
        self.perform(effects)
        return actor.row()

    def rows(self) -> list[p.ActorRow]:
        return [actor.row() for actor in self.table.actors.values()]

    def perform(self, effects: Iterable[state.Effect]) -> None:
        self._save()
        rows: list[p.ActorRow] = []
        for effect in effects:
            if isinstance(effect, state.Tell):
                rows.append(effect.actor.row())
            elif isinstance(effect, state.Place):
                self._spawn(self._place(effect.actor, effect.incarnation))
            elif isinstance(effect, state.Begin):
                self._spawn(self._become(effect.actor, effect.incarnation))
            else:
                self._spawn(self._end(effect))
        if rows:
            self._tell(rows)

    async def _place(self, actor: Actor, incarnation: int) -> None:
        """Find a worker and make it the actor."""
        waited_since: float | None = None
        loop = asyncio.get_running_loop()
        while self.table.is_starting(actor, incarnation):
            if self._without_node(actor, incarnation):
                return
            if actor.request.spec.strategy.group_id:
                node, fitting = self._choose_in_group(actor.request), True
                if self._without_group(actor, incarnation):
                    return
            else:
                node, fitting = self._choose(actor.request)
            if node is None and not fitting:
                waited_since = waited_since or loop.time()
                left_s = waited_since + self._infeasible_timeout_s - loop.time()
                if left_s <= 0:
                    self._give_up(actor, incarnation)
                    return
                if loop.time() - waited_since >= TELL_INFEASIBLE_AFTER_S:
                    self._tell_infeasible(actor, left_s)
            else:
                waited_since = None
            if node is not None and await self._try(actor, incarnation, node):
                return
            await asyncio.sleep(RETRY_S)

    async def _try(self, actor: Actor, incarnation: int, node: NodeInfo) -> bool:
        """Ask one node; return whether the actor needs no other attempt."""
        strategy = actor.request.spec.strategy
        request = control.LeaseFromPeer(
            request_id=os.urandom(16),
            spec=_lease_spec(actor.request.spec),
            count=1,
            holder=_holder(actor),
            wait_s=GROUP_WAIT_S if strategy.group_id else LEASE_WAIT_S,
        )
        try:
            answer = await self._call_agent(
                node.node_id, "Lease", request, LEASE_CALL_S
            )
        except (ConnectionError, TimeoutError) as error:
            _log.info("no worker of node %s: %s", node.node_id.hex()[:8], error)
            return False
        except SparkrayError as error:
            effects = self.table.unplaceable(
                actor, incarnation, str(error), _wire(error)
            )
            self.perform(effects)
            return True
        if not answer.leases:
            return False
        lease = answer.leases[0]
        worker_id = lease.worker.worker_id
        effects = self.table.placed(
            actor, incarnation, node.node_id, worker_id, lease.lease_id
        )
        self.perform(effects)
        return True

    async def _become(self, actor: Actor, incarnation: int) -> None:
        """Tell the worker that was found what it is; it may have been told before."""
        if not self.table.is_starting(actor, incarnation):
            return
        request = p.BecomeActor(
            actor.worker_id,
            actor.request.actor_id,
            incarnation,
            actor.request.creation,
            actor.lease_id,
        )
        try:
            await self._call_agent(actor.node_id, "BecomeActor", request, CALL_S)
        except (SparkrayError, KeyError, ConnectionError, TimeoutError) as error:
            self.perform(self.table.not_begun(actor, incarnation, str(error)))

    async def _end(self, effect: state.End) -> None:
        kill = control.KillPeerWorker(effect.worker_id, effect.reason, effect.gently)
        back = control.ReturnPeerLease(effect.lease_id, False)
        try:
            await self._call_agent(effect.node_id, "KillWorker", kill, CALL_S)
            await self._call_agent(effect.node_id, "ReturnLease", back, CALL_S)
        except (SparkrayError, ConnectionError, TimeoutError) as error:
            _log.info("the worker of an actor could not be ended: %s", error)

    def _choose(self, request: p.CreateActor) -> tuple[NodeInfo | None, bool]:
        """Return the node to ask now, and whether any node could ever do."""
        nodes = self._alive()
        strategy = request.spec.strategy
        if strategy.kind == "NODE":
            wanted = [node for node in nodes if node.node_id == strategy.node_id]
            nodes = wanted if wanted or not strategy.soft else nodes
        fitting = [
            node
            for node in nodes
            if fits(request.spec.resources, node.total)
            and labels.matches(strategy.labels, node.labels)
        ]
        if not fitting:
            return None, False
        home = request.creator.node_id
        spread = strategy.kind == "SPREAD"

        def rank(node: NodeInfo) -> tuple[bool, int, float]:
            free = fits(request.spec.resources, node.available)
            load = -node.available.get("CPU", 0) / UNIT
            turn = self._turns.get(node.node_id, 0)
            return not free, turn if spread else int(node.node_id != home), load

        chosen = min(fitting, key=rank)
        if spread:  # what nodes report is a moment old: take them in turn
            self._turns[chosen.node_id] = next(self._turn)
        return chosen, True

    def _choose_in_group(self, request: p.CreateActor) -> NodeInfo | None:
        """Return the node of its bundle; for any bundle, those with room take turns."""
        strategy, needs = request.spec.strategy, request.spec.resources
        group = self._group(strategy.group_id)
        if group is None:
            return None
        places = {
            node_id
            for index, node_id in enumerate(group.nodes)
            if strategy.bundle in (-1, index)
            and fits(needs, group.request.bundles[index])
        }
        nodes = [node for node in self._alive() if node.node_id in places]
        turn = next(self._turn)
        return nodes[turn % len(nodes)] if nodes else None

    def _without_group(self, actor: Actor, incarnation: int) -> bool:
        """End an actor whose placement group is gone; return whether that is so."""
        group = self._group(actor.request.spec.strategy.group_id)
        if group is not None and group.state is not GroupState.REMOVED:
            return False
        reason = "its placement group was removed"
        self.perform(self.table.unplaceable(actor, incarnation, reason, b""))
        return True

    def _without_node(self, actor: Actor, incarnation: int) -> bool:
        """End an actor whose only node is not there; return whether that is so."""
        strategy = actor.request.spec.strategy
        if strategy.kind != "NODE" or strategy.soft:
            return False
        if any(node.node_id == strategy.node_id for node in self._alive()):
            return False
        reason = f"it is bound to node {strategy.node_id.hex()}, dead or unknown"
        self._give_up(actor, incarnation, reason)
        return True

    def _tell_infeasible(self, actor: Actor, left_s: float) -> None:
        """Tell the driver that an actor waits; once for what it wants."""
        wanted, has, hint = self._lacking(actor)
        job_id = actor.request.spec.job_id
        if (job_id, wanted) not in self._told:
            remember(self._told, (job_id, wanted))
            text = infeasible_text(wanted, has, hint, left_s)
            self._tell_driver(control.LogBatch(job_id, "", 0, "", [text], True))

    def _lacking(self, actor: Actor) -> tuple[str, str, str]:
        """Return what an actor wants, what the largest node has, and what to do."""
        spec = actor.request.spec
        wanted, selector = describe(spec.resources), spec.strategy.labels
        nodes, hint = self._alive(), ""
        if selector:
            wanted += f" where label_selector is {labels.describe(selector)}"
            matching = [n for n in nodes if labels.matches(selector, n.labels)]
            if not matching:
                hint = labels.hint(selector, [(n.host_name, n.labels) for n in nodes])
            nodes = matching or nodes
        largest = max(nodes, key=lambda node: node.total.get("CPU", 0), default=None)
        has = describe(largest.total) if largest is not None else "nothing"
        return wanted, has, hint

    def _give_up(self, actor: Actor, incarnation: int, why: str = "") -> None:
        wanted, has, hint = self._lacking(actor)
        error = UnschedulableError(wanted, has, why or hint)
        self.perform(
            self.table.unplaceable(actor, incarnation, str(error), _wire(error))
        )


def _holder(actor: Actor) -> Address:
    """Whom an agent writes down: the actor, and not its creator, with whose end an
    agent takes leases back for others."""
    return Address(actor.request.actor_id, b"", "", "", 0)


def _lease_spec(spec: LeaseSpec) -> LeaseSpec:
    asked = spec.strategy
    strategy = Strategy(p.ACTOR, group_id=asked.group_id, bundle=asked.bundle)
    return msgspec.structs.replace(spec, strategy=strategy)


def _wire(error: Exception) -> bytes:
    """An error that the head made itself: by name, as `transport.errors` writes it."""
    return codec.encode(to_wire(error))
