"""Lends workers: does what the scheduler (`state.leases`) decides.

Leases of this node's workers are held in the scheduler's table; those that runtimes of
this node hold on workers of other nodes are in `LeaseDesk.foreign`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec

from sparkray.agent.fleet import Fleet
from sparkray.agent.members import Member
from sparkray.agent.options import AgentOptions, labels_of
from sparkray.agent.processes import environment_of
from sparkray.agent.state import events as e
from sparkray.agent.state.devices import Devices
from sparkray.agent.state.leases import LeaseTable
from sparkray.agent.state.nodes import ClusterMap, Node
from sparkray.agent.state.rotation import Held
from sparkray.agent.state.workers import PoolKey, Worker
from sparkray.config import Settings
from sparkray.exceptions import ClusterError, RuntimeEnvSetupError, SparkrayError
from sparkray.ids import new_lease_id
from sparkray.protocol import control, placement
from sparkray.protocol.messages import (
    CallFailed,
    Lease,
    LeasesGranted,
    LeaseSpec,
    LeaseWanted,
    RequestLeases,
    WireError,
)
from sparkray.resources import GPU, Vector
from sparkray.transport.errors import from_wire

_log = logging.getLogger(__name__)

#: How often waiting requests are looked at again.
TICK_S = 0.1
#: Idle workers are asked for their leases no more often than this.
ASK_IDLE_S = 0.01
#: How long a peer may keep a request that has other places to go, or has none.
SPILL_WAIT_S, PATIENT_SPILL_WAIT_S = 2.0, 10.0
#: A call to a peer may take so much longer than what it waits for.
PEER_CALL_S = 10.0
#: How often a peer is asked, if its answers do not arrive.
SPILL_ATTEMPTS = 3
#: How long the answer to a peer's request is kept, in case it asks again.
REMEMBER_ANSWER_S = 60.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the desk needs of the rest of the agent."""

    members: dict[bytes, Member]
    call_peer: Callable[..., Coroutine[Any, Any, Any]]  #: (node id, method, request, s)
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    changed: Callable[[], None]  #: what is free changed
    tell: Callable[[bytes, str], None]  #: a line for the driver of a job


@dataclass(frozen=True, slots=True)
class _Caller:
    """A runtime of this node that waits for the answer to a `RequestLeases`."""

    member: Member
    call: int
    spec: LeaseSpec


@dataclass(frozen=True, slots=True)
class _Foreign:
    """A lease on a worker of another node."""

    node_id: bytes
    holder: bytes


class LeaseDesk:
    """Requests in, grants out."""

    def __init__(
        self,
        options: AgentOptions,
        total: Vector,
        fleet: Fleet,
        settings: Settings,
        around: Surroundings,
    ) -> None:
        self._fleet, self._around = fleet, around
        self.cluster = ClusterMap(
            Node(
                options.node_id,
                socket.gethostname(),
                total,
                dict(total),
                labels_of(options),
            )
        )
        self.table = LeaseTable(
            self.cluster,
            fleet.table,
            infeasible_timeout_s=settings.infeasible_timeout_s,
            min_hold_s=settings.lease_min_hold_s,
            new_id=new_lease_id,
            on_grant=fleet.granted,
            on_return=fleet.returned,
            on_make_room=fleet.retire,
            devices=Devices.of_node(total.get(GPU, 0), options.gpu_ids),
        )
        self.closed = False  #: other nodes get nothing any more: this one may leave
        self._numbers = itertools.count(1)
        self._callers: dict[int, _Caller] = {}
        self._by_call: dict[tuple[bytes, int], int] = {}
        self._peers_waiting: dict[int, asyncio.Future[list[Lease]]] = {}
        self._peer_answers: dict[bytes, asyncio.Future[list[Lease]]] = {}
        self._claims: dict[bytes, asyncio.Future[bool]] = {}  #: by placement group
        self._homes: dict[bytes, bytes] = {}  #: lease id -> node of its foreign holder
        self._guests: dict[bytes, tuple[bytes, bytes]] = {}
        self.foreign: dict[bytes, _Foreign] = {}
        self._events: deque[e.Event] = deque()  #: the first is being handled
        self._ticking: asyncio.TimerHandle | None = None
        self._asking: asyncio.TimerHandle | None = None

    # --- runtimes of this node --------------------------------------------------------

    def request(self, member: Member, message: RequestLeases, runtime_env: str) -> None:
        """Serve `RequestLeases`; ``runtime_env`` is the one that holds for the job."""
        spec = message.spec
        if not spec.runtime_env and runtime_env:
            spec = msgspec.structs.replace(spec, runtime_env=runtime_env)
        try:
            environment_of(spec.runtime_env, {}, "")
        except SparkrayError as error:
            member.channel.fail(message.call, error)
            return
        number = next(self._numbers)
        self._callers[number] = _Caller(member, message.call, spec)
        self._by_call[member.worker_id, message.call] = number
        self.feed(e.Requested(number, member.worker_id, spec, max(1, message.count)))
        if number in self._callers:
            self._ask_idle()

    def withdraw(self, member: Member, call: int) -> None:
        number = self._by_call.get((member.worker_id, call))
        if number is not None:
            self.feed(e.Withdrawn(number))

    def give_back(self, lease_id: bytes, reusable: bool) -> None:
        foreign = self.foreign.pop(lease_id, None)
        if foreign is None:
            self._homes.pop(lease_id, None)
            held = self.table.held.get(lease_id)
            if held is not None and self._fleet.is_spent(held.worker_id):
                reusable = False  # its holder had not heard of it
            self.feed(e.LeaseReturned(lease_id, reusable))
        else:
            self._around.spawn(self._return_to(foreign.node_id, lease_id, reusable))

    def member_gone(self, member: Member) -> None:
        """A runtime ended: its requests and leases end everywhere."""
        holder = member.worker_id
        for number, caller in list(self._callers.items()):
            if caller.member is member:
                self._forget_caller(number)
        self.feed(e.HolderGone(holder))
        for lease_id, foreign in list(self.foreign.items()):
            if foreign.holder == holder:
                self.give_back(lease_id, True)

    def guests_gone(self, *, node_id: bytes = b"", job_id: bytes = b"") -> list[bytes]:
        """Forget runtimes of other nodes that held leases here; return their ids.

        What they owned here is to be freed.
        """
        gone = [
            guest
            for guest, (home, job) in self._guests.items()
            if home == node_id or job == job_id
        ]
        for guest in gone:
            del self._guests[guest]
        return gone

    def node_gone(self, node_id: bytes) -> None:
        """Another node died: its workers, and what its runtimes held here."""
        for lease_id, foreign in list(self.foreign.items()):
            if foreign.node_id == node_id:
                del self.foreign[lease_id]
        for lease_id, home in list(self._homes.items()):
            if home == node_id:
                self.give_back(lease_id, True)
        self.feed(e.NodeLost(node_id))

    # --- other agents -----------------------------------------------------------------

    async def lend_to_peer(self, request: control.LeaseFromPeer) -> list[Lease]:
        """Serve `LeaseFromPeer`.

        Raises:
            SparkrayError: what the scheduler says.
        """
        answer = self._peer_answers.get(request.request_id)
        if answer is None:
            answer = asyncio.ensure_future(self._lend(request))
            self._peer_answers[request.request_id] = answer
            forget = _popper(self._peer_answers, request.request_id)
            asyncio.get_running_loop().call_later(REMEMBER_ANSWER_S, forget)
        return await asyncio.shield(answer)

    async def _lend(self, request: control.LeaseFromPeer) -> list[Lease]:
        environment_of(request.spec.runtime_env, {}, "")
        if self.closed:
            return []
        number = next(self._numbers)
        waiting = asyncio.get_running_loop().create_future()
        self._peers_waiting[number] = waiting
        holder = request.holder
        self._guests[holder.worker_id] = (holder.node_id, request.spec.job_id)
        self.feed(
            e.Requested(number, holder.worker_id, request.spec, request.count, True)
        )
        if not waiting.done():
            self._ask_idle()
        try:
            await asyncio.wait({waiting}, timeout=request.wait_s)
            if not waiting.done():
                self.feed(e.Withdrawn(number))
            leases = waiting.result() if waiting.done() else []
        finally:
            self._peers_waiting.pop(number, None)
        for lease in leases:
            self._homes[lease.lease_id] = holder.node_id
        return leases

    def _ask_idle(self) -> None:
        """Somebody waits: leases of workers that run nothing shall come back at once.

        Only the worker knows whether it runs something.
        """
        if self._asking is None:
            loop = asyncio.get_running_loop()
            self._asking = loop.call_later(ASK_IDLE_S, self._asked_idle)
            self._tell_idle()

    def _asked_idle(self) -> None:
        """Requests that came meanwhile wait still: ask again."""
        self._asking = None
        if self.table.waiting or self.table.claims:
            self._tell_idle()

    def _tell_idle(self) -> None:
        for worker_id in self.table.lent():
            member = self._around.members.get(worker_id)
            if member is not None:
                member.channel.send(LeaseWanted(if_idle=True))

    async def _spill(self, effect: e.Spill, caller: _Caller) -> None:
        wait_s = PATIENT_SPILL_WAIT_S if effect.patient else SPILL_WAIT_S
        request = control.LeaseFromPeer(
            request_id=os.urandom(16),
            spec=caller.spec,
            count=effect.count,
            holder=caller.member.address,
            wait_s=wait_s,
        )
        leases: list[Lease] = []
        for _ in range(SPILL_ATTEMPTS):  # asking again is safe, and finds lost answers
            try:
                answer = await self._around.call_peer(
                    effect.node_id, "Lease", request, wait_s + PEER_CALL_S
                )
                leases = answer.leases
                break
            except (ConnectionError, TimeoutError) as error:
                _log.info("node %s: %s", effect.node_id.hex()[:8], error)
            except RuntimeEnvSetupError as error:  # it would fail everywhere
                self._refuse(effect.request_id, error)
                return
            except SparkrayError as error:
                _log.info("node %s refuses: %s", effect.node_id.hex()[:8], error)
                break
            if effect.node_id not in self.cluster.peers:
                break
        self._spill_answered(effect, caller, leases)

    def _refuse(self, number: int, error: Exception) -> None:
        caller = self._forget_caller(number)
        if caller is not None:
            caller.member.channel.fail(caller.call, error)
        self.feed(e.Withdrawn(number))

    def _spill_answered(
        self, effect: e.Spill, caller: _Caller, leases: list[Lease]
    ) -> None:
        wanted = effect.request_id in self._callers
        if leases and not wanted:
            for lease in leases:
                back = self._return_to(effect.node_id, lease.lease_id, True)
                self._around.spawn(back)
        elif leases:
            holder = caller.member.worker_id
            for lease in leases:
                self.foreign[lease.lease_id] = _Foreign(effect.node_id, holder)
            self._forget_caller(effect.request_id)
            caller.member.channel.send(LeasesGranted(caller.call, leases))
        granted = bool(leases)
        self.feed(e.SpillAnswered(effect.request_id, effect.node_id, granted))

    async def _return_to(self, node_id: bytes, lease_id: bytes, reusable: bool) -> None:
        request = control.ReturnPeerLease(lease_id, reusable)
        for pause_s in (0.2, 1.0, 5.0, 0.0):
            try:
                await self._around.call_peer(
                    node_id, "ReturnLease", request, PEER_CALL_S
                )
                return
            except (ClusterError, ConnectionError, TimeoutError) as error:
                _log.info("lease %s not returned yet: %s", lease_id.hex(), error)
            if node_id not in self.cluster.peers:
                return
            await asyncio.sleep(pause_s)

    # --- placement groups -------------------------------------------------------------

    async def reserve(self, request: placement.ReserveBundles) -> bool:
        """Set bundles aside, all or none; False if they do not fit in time."""
        if self.closed:
            return False
        bundles = self.table.bundles
        done = bundles.reserve(request.group_id, request.attempt, request.bundles)
        if not done and request.wait_s:
            done = await self._claim(request)
        self._around.changed()
        return done

    async def _claim(self, request: placement.ReserveBundles) -> bool:
        """Wait until leases that end, or come back, leave enough room."""
        waiting = asyncio.get_running_loop().create_future()
        self._claims[request.group_id] = waiting
        self.feed(e.Claimed(request.group_id, request.attempt, request.bundles))
        self._ask_idle()
        try:
            await asyncio.wait({waiting}, timeout=request.wait_s)
        finally:  # the head may have hung up
            if self._claims.get(request.group_id) is waiting:
                del self._claims[request.group_id]
                self.feed(e.ClaimEnded(request.group_id))
        return waiting.done() and waiting.result()

    def _end_claim(self, group_id: bytes, *, reserved: bool) -> None:
        waiting = self._claims.pop(group_id, None)
        if waiting is not None:
            waiting.set_result(reserved)

    def return_bundles(self, request: placement.ReturnBundles) -> None:
        if self.table.claims.attempt(request.group_id) <= request.attempt:
            self._end_claim(request.group_id, reserved=False)
            self.feed(e.ClaimEnded(request.group_id))
        self.feed(
            e.BundlesReturned(
                request.group_id, request.attempt, request.indexes, request.reason
            )
        )

    def return_strays(self) -> None:
        """Free bundles whose group has no use for them: the head died before it could
        tell."""
        for (group_id, index), attempt in self.table.bundles.strays():
            reason = "its placement group was removed, or is elsewhere"
            self.feed(e.BundlesReturned(group_id, attempt, [index], reason))

    def learn_groups(self, rows: list[placement.GroupRow]) -> None:
        self.feed(e.GroupsChanged(rows))

    # --- the node's own news ----------------------------------------------------------

    def worker_gone(self, worker_id: bytes) -> None:
        held = self.table.lease_of(worker_id)
        if held is not None:
            self._homes.pop(held.lease_id, None)
        self.feed(e.WorkerGone(worker_id))

    def pool_broken(self, key: PoolKey, reason: str) -> None:
        self.feed(e.PoolBroken(key, reason))

    def blocked(self, worker_id: bytes, blocked: bool) -> None:
        self._fleet.blocked(worker_id, blocked)
        self.feed(e.WorkerBlocked(worker_id, blocked))

    def feed(self, event: e.Event) -> None:
        """Give the scheduler an event and do what it says.

        What an effect causes comes after the other effects, which were decided before.
        """
        self._events.append(event)
        if len(self._events) > 1:
            return  # called by an effect
        while self._events:
            for effect in self.table.handle(self._events[0], time.monotonic()):
                self._perform(effect)
            self._events.popleft()
        if self._ticking is None and (
            self.table.waiting or self.table.claims or self.table.leaving
        ):
            loop = asyncio.get_running_loop()
            self._ticking = loop.call_later(TICK_S, self._tick)
        self._around.changed()

    def stop(self) -> None:
        for timer in (self._ticking, self._asking):
            if timer is not None:
                timer.cancel()

    def _tick(self) -> None:
        self._ticking = None
        self.feed(e.Tick())

    def _perform(self, effect: e.Effect) -> None:
        if isinstance(effect, e.Grant):
            self._granted(effect)
        elif isinstance(effect, e.Fail):
            self._failed(effect)
        elif isinstance(effect, e.Tell):
            self._around.tell(effect.job_id, effect.text)
        elif isinstance(effect, e.Spill):
            caller = self._callers.get(effect.request_id)
            if caller is not None:
                self._around.spawn(self._spill(effect, caller))
        elif isinstance(effect, e.StartWorkers):
            self._fleet.start(effect.key, effect.count)
        elif isinstance(effect, e.Reserved):
            self._end_claim(effect.group_id, reserved=True)
        elif isinstance(effect, e.EndWorker):
            self._fleet.kill(effect.worker_id, "signal", effect.reason)
        else:
            member = self._around.members.get(effect.worker_id)
            if member is not None:
                member.channel.send(LeaseWanted())

    def _granted(self, effect: e.Grant) -> None:
        leases = [
            Lease(
                lease_id,
                self._around.members[worker_id].address,
                self.gpu_ids(worker_id),
            )
            for lease_id, worker_id in effect.leases
        ]
        waiting = self._peers_waiting.get(effect.request_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(leases)
            return
        caller = self._forget_caller(effect.request_id)
        if caller is not None:
            caller.member.channel.send(LeasesGranted(caller.call, leases))

    def _failed(self, effect: e.Fail) -> None:
        error = WireError(effect.kind, list(effect.args))
        waiting = self._peers_waiting.get(effect.request_id)
        if waiting is not None and not waiting.done():
            waiting.set_exception(from_wire(error))
            return
        caller = self._forget_caller(effect.request_id)
        if caller is not None:
            caller.member.channel.send(CallFailed(caller.call, error))

    def _forget_caller(self, number: int) -> _Caller | None:
        caller = self._callers.pop(number, None)
        if caller is not None:
            self._by_call.pop((caller.member.worker_id, caller.call), None)
        return caller

    def worker_of(self, lease_id: bytes) -> bytes | None:
        held = self.table.held.get(lease_id)
        return None if held is None else held.worker_id

    def gpu_ids(self, worker_id: bytes) -> list[str] | None:
        """Return the devices that a leased worker has; None if this node has none."""
        if not self.table.cluster.own.total.get(GPU):
            return None
        held = self.table.lease_of(worker_id)
        return [] if held is None else list(held.gpus)

    def leased(self) -> list[tuple[Held, Worker]]:
        """Return the workers that are lent, with their leases."""
        workers = self._fleet.table.workers
        return [
            (held, workers[held.worker_id])
            for held in self.table.held.values()
            if held.worker_id in workers
        ]


def _popper(mapping: dict[bytes, Any], key: bytes) -> Callable[[], None]:
    def pop() -> None:
        with contextlib.suppress(KeyError):
            del mapping[key]

    return pop
