"""Reserves the bundles of placement groups and frees them: does what `state.placement`
decides.

One group is tried at a time, in two phases: every agent concerned reserves its bundles,
then the group is created and all agents hear where its bundles are; if one of them
refuses, the others give theirs back and the group waits for a change.

A group for which there is room only once leases have come back claims that room for a
while, so that a stream of tasks does not starve it; one group does so at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from sparkray import labels
from sparkray.exceptions import SparkrayError
from sparkray.head.state import placement as state
from sparkray.head.state.placement import Group, GroupState, GroupTable, Room
from sparkray.protocol import placement as p
from sparkray.protocol.control import LogBatch, NodeInfo
from sparkray.resources import describe, total

_log = logging.getLogger(__name__)

#: How long an agent may take to reserve or to return.
CALL_S: Final = 5.0
#: Groups that wait are tried again after this time even if no change was seen.
RETRY_S: Final = 0.25
#: A refusal means that the view was old; the next report is soon there.
REFUSED_S: Final = 0.05
#: After so many refusals the view is right but too coarse: what is free is in
#: parts, of several GPUs say.
CLAIM_AFTER_REFUSALS: Final = 3
#: A group that waits for longer is mentioned in the log.
SAY_AFTER_S: Final = 5.0
#: The longest that a call may wait for a group.
MAX_WAIT_S: Final = 20.0
#: For so long a group claims room; longer each time, and it pauses as long, because
#: what is claimed lies idle until all of it is there.
CLAIM_S, MAX_CLAIM_S = 2.0, 20.0
RETURN_PAUSES_S: Final = (0.1, 0.5, 2.0, 5.0)

CallAgent = Callable[[bytes, str, Any, float], Coroutine[Any, Any, Any]]


class PlacementDesk:
    """All placement groups.

    Args:
        table: of what an earlier head knew.
        save: writes what has changed; before anybody is told.
        alive: the living nodes.
        call_agent: (node id, method, request, seconds) -> answer.
        tell: sends rows to all agents.
        tell_driver: sends lines to the driver of their job.
        spawn: runs a coroutine beside everything else.
        end_actors: (group id, reason) ends the actors inside a group.
    """

    def __init__(
        self,
        table: GroupTable,
        *,
        save: Callable[[], None],
        alive: Callable[[], list[NodeInfo]],
        call_agent: CallAgent,
        tell: Callable[[list[p.GroupRow]], None],
        tell_driver: Callable[[LogBatch], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        end_actors: Callable[[bytes, str], None],
    ) -> None:
        self.table, self._save = table, save
        self._alive, self._call_agent = alive, call_agent
        self._tell, self._tell_driver = tell, tell_driver
        self._spawn, self._end_actors = spawn, end_actors
        self._wake = asyncio.Event()
        self._changed: dict[bytes, asyncio.Event] = {}
        self._scheduling = False
        #: Group id -> since when it finds no room; None once that was said.
        self._without_room: dict[bytes, float | None] = {}
        self._refusals: dict[bytes, int] = {}  #: since its last change, by group id
        self._claiming: Group | None = None
        self._claimed: dict[int, bytes] = {}  #: where: node by bundle
        #: Group id -> when it may claim room again, and for how long.
        self._next_claim: dict[bytes, tuple[float, float]] = {}

    def create(self, request: p.CreatePlacementGroup) -> p.GroupRow:
        """Take a group in; its bundles are reserved soon.

        Raises:
            ValueError: another group has the name.
        """
        group, effects = self.table.create(request)
        self.perform(effects)
        self.wake()
        return group.row()

    def get(self, request: p.GetPlacementGroup) -> p.GroupRow:
        """Raises ValueError if there is no such group."""
        if request.group_id:
            return self.table.get(request.group_id).row()
        return self.table.find(request.name, request.namespace).row()

    async def wait(self, request: p.WaitPlacementGroup) -> p.GroupRow:
        """Raises ValueError if there is no such group."""
        group = self.table.get(request.group_id)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(request.wait_s, MAX_WAIT_S)
        while group.is_waiting and (left_s := deadline - loop.time()) > 0:
            changed = self._changed.setdefault(request.group_id, asyncio.Event())
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(changed.wait(), left_s)
        return group.row()

    def remove(self, group_id: bytes) -> None:
        self.perform(self.table.remove(group_id, "its placement group was removed"))

    def rows(self) -> list[p.GroupRow]:
        return [group.row() for group in self.table.groups.values()]

    def wake(self) -> None:
        """Something changed: groups that wait may fit now."""
        self._wake.set()
        if not self._scheduling and self.table.waiting():
            self._scheduling = True
            self._spawn(self._schedule())

    def perform(self, effects: Iterable[state.Effect]) -> None:
        self._save()
        rows: list[p.GroupRow] = []
        for effect in effects:
            if isinstance(effect, state.Tell):
                rows.append(effect.group.row())
                self._note(effect.group)
            elif isinstance(effect, state.EndActors):
                self._end_actors(effect.group_id, effect.reason)
            else:
                self._spawn(self._return(effect))
        if rows:
            self._tell(rows)

    def _note(self, group: Group) -> None:
        """Wake who waits for a change of this group."""
        self._without_room.pop(group.request.group_id, None)
        self._next_claim.pop(group.request.group_id, None)
        self._refusals.pop(group.request.group_id, None)
        if group is self._claiming and group.state is GroupState.REMOVED:
            attempt = self.table.next_attempt()  # later than its claim's
            self.perform(state.undo(group, attempt, self._claimed, "it was removed"))
        changed = self._changed.pop(group.request.group_id, None)
        if changed is not None:
            changed.set()

    # --- reserving --------------------------------------------------------------------

    async def _schedule(self) -> None:
        """Try the groups that wait, again and again, until none is left."""
        pause_s = REFUSED_S
        try:
            while waiting := self.table.waiting():
                self._wake.clear()
                refused = False
                for group in waiting:
                    if group is not self._claiming:
                        refused |= not await self._try(group)
                if refused:
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, RETRY_S)
                    continue
                pause_s = REFUSED_S
                if self.table.waiting():
                    with contextlib.suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(self._wake.wait(), RETRY_S)
        finally:
            self._scheduling = False

    async def _try(self, group: Group) -> bool:
        """Reserve what a group misses, if it fits; False if an agent refused."""
        if not group.is_waiting:
            return True
        rooms = [
            Room(node.node_id, node.available, node.labels) for node in self._alive()
        ]
        places = state.plan(group, rooms)
        if places is None:
            self._say_what_waits(group)
            self._claim_in_turn(group)
            return True
        if await self._reserve_all(group, places, 0.0):
            return True
        if group.is_waiting:
            self._was_refused(group)
        return False

    def _was_refused(self, group: Group) -> None:
        """If agents keep refusing what should fit, have them make room."""
        group_id = group.request.group_id
        self._refusals[group_id] = self._refusals.get(group_id, 0) + 1
        if self._refusals[group_id] >= CLAIM_AFTER_REFUSALS:
            self._say_what_waits(group)
            self._claim_in_turn(group)

    def _claim_in_turn(self, group: Group) -> None:
        """Claim room for a group if leases have it."""
        now = asyncio.get_running_loop().time()
        from_s, hold_s = self._next_claim.get(group.request.group_id, (now, CLAIM_S))
        if self._claiming is not None or now < from_s:
            return
        rooms = [
            Room(node.node_id, total([node.available, node.lent]), node.labels)
            for node in self._alive()
        ]
        places = state.plan(group, rooms)
        if places is not None:
            self._claiming, self._claimed = group, places
            self._spawn(self._claim(group, places, hold_s))

    async def _claim(
        self, group: Group, places: dict[int, bytes], hold_s: float
    ) -> None:
        group_id = group.request.group_id
        try:
            await self._reserve_all(group, places, hold_s)
        finally:
            self._claiming = None
            if group.is_waiting:
                again = asyncio.get_running_loop().time() + hold_s
                self._next_claim[group_id] = again, min(2 * hold_s, MAX_CLAIM_S)
            self._wake.set()

    async def _reserve_all(
        self, group: Group, places: dict[int, bytes], wait_s: float
    ) -> bool:
        """Reserve a group's bundles where they are to be; False if an agent refused."""
        attempt = self.table.next_attempt()
        bundles = group.request.bundles
        answers = await asyncio.gather(
            *(
                self._reserve(
                    node_id,
                    p.ReserveBundles(
                        group.request.group_id,
                        attempt,
                        {index: bundles[index] for index in indexes},
                        wait_s,
                    ),
                )
                for node_id, indexes in state.by_node(places).items()
            )
        )
        if not all(answers):
            reason = "another part of its group found no room"
            self.perform(state.undo(group, attempt, places, reason))
            return False
        alive = {node.node_id for node in self._alive()}
        self.perform(self.table.placed(group, attempt, places, alive))
        return not group.is_waiting

    def _say_what_waits(self, group: Group) -> None:
        """Log once that a group has found no room for a while; its driver hears of it
        if there would be none even with nothing else on the nodes."""
        now = asyncio.get_running_loop().time()
        since = self._without_room.setdefault(group.request.group_id, now)
        if since is not None and now - since >= SAY_AFTER_S:
            self._without_room[group.request.group_id] = None
            text = _what_waits(group)
            _log.warning("%s", text)
            nodes = self._alive()
            rooms = [Room(node.node_id, node.total, node.labels) for node in nodes]
            if state.plan(group, rooms) is None:
                text += f": too much for all nodes; the largest has {_largest(nodes)}"
                job_id = group.request.job_id
                self._tell_driver(LogBatch(job_id, "", 0, "", [text], True))

    async def _reserve(self, node_id: bytes, request: p.ReserveBundles) -> bool:
        try:
            answer: p.BundlesReserved = await self._call_agent(
                node_id, "ReserveBundles", request, request.wait_s + CALL_S
            )
        except (SparkrayError, ConnectionError, TimeoutError) as error:
            _log.info("node %s reserves nothing: %s", node_id.hex()[:8], error)
            return False
        return answer.reserved

    async def _return(self, effect: state.Return) -> None:
        """Free bundles; a node that does not answer is tried until it is dead."""
        request = p.ReturnBundles(
            effect.group_id, effect.attempt, list(effect.indexes), effect.reason
        )
        pauses = iter(RETURN_PAUSES_S)
        while effect.node_id in {node.node_id for node in self._alive()}:
            try:
                await self._call_agent(effect.node_id, "ReturnBundles", request, CALL_S)
                return
            except (SparkrayError, ConnectionError, TimeoutError) as error:
                _log.info("bundles not returned yet: %s", error)
            await asyncio.sleep(next(pauses, RETURN_PAUSES_S[-1]))


def _what_waits(group: Group) -> str:
    request = group.request
    name = f"{request.name!r} " if request.name else ""
    bundles = ", ".join(_in_words(group, index) for index in group.missing()[:10])
    return (
        f"placement group {name}{request.group_id.hex()} waits for nodes with room for"
        f" {bundles} ({request.strategy})"
    )


def _largest(nodes: list[NodeInfo]) -> str:
    if not nodes:
        return "nothing, as there is none"
    node = max(nodes, key=lambda node: node.total.get("CPU", 0))
    shown = {n: u for n, u in node.total.items() if not n.startswith("node:")}
    return f"{describe(shown)} ({node.host_name})"


def _in_words(group: Group, index: int) -> str:
    selector, bundle = group.selector(index), describe(group.request.bundles[index])
    return f"{bundle} where {labels.describe(selector)}" if selector else bundle
