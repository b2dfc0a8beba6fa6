"""The two-level scheduler of one node.  Pure.

Requests wait until this node has the resources and a worker process (`WorkerTable`), or
until another node has room for them (`ClusterMap`, "spillback").  Whoever holds leases
while others wait is asked to give some back, so leases rotate.

Each call of `handle` serves what can be served: it walks the waiting requests in the
order of their turns (`WaitingRoom`) and takes from a copy of what is free.  A request
that gets its turn before its worker process has started holds its place in that copy,
in this and every later walk, so nobody overtakes it meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sparkray.agent.state.bundles import Bundle, Bundles
from sparkray.agent.state.claims import Claims, lent
from sparkray.agent.state.devices import Devices, Share
from sparkray.agent.state.events import (
    BundlesReturned,
    Claimed,
    ClaimEnded,
    Effect,
    EndWorker,
    Event,
    Fail,
    Grant,
    GroupsChanged,
    HolderGone,
    LeaseReturned,
    NodeLost,
    PoolBroken,
    Requested,
    Spill,
    SpillAnswered,
    StartWorkers,
    Tick,
    ViewChanged,
    Withdrawn,
    WorkerBlocked,
    WorkerGone,
    WorkerReady,
)
from sparkray.agent.state.fairness import Fairness
from sparkray.agent.state.hopeless import Judge
from sparkray.agent.state.nodes import ClusterMap, Node
from sparkray.agent.state.queues import Request, ShapeQueue, WaitingRoom
from sparkray.agent.state.rotation import LEFT_WITHIN_S, Held
from sparkray.agent.state.walk import Walk
from sparkray.agent.state.workers import PoolKey, WorkerTable
from sparkray.labels import matches
from sparkray.protocol.actors import ACTOR
from sparkray.resources import CPU, GPU, Vector, fits, give_back, take

#: A worker that was told to make room and has not by then: another is told, too.
LEAVE_WITHIN_S: Final = 0.5
#: A request that another node refused goes to none for this time.
SPILL_AGAIN_AFTER_S: Final = 0.25


class LeaseTable:
    """Who waits for what, who holds what.

    Args:
        cluster: this node's totals and its peers.
        workers: this node's processes; asked for idle ones, changed by the two calls.
        infeasible_timeout_s: how long a request waits for a node that could serve it.
        min_hold_s: how long a lease is left alone.
        new_id: makes lease ids.
        on_grant: called with worker id and time when a worker is lent.
        on_return: called with worker id, "reusable" and time when its lease ends.
        on_make_room: called with an idle worker that is to end: the cap on processes
            leaves no room for another pool.
        devices: the GPUs of this node; without, they are counted from 0.
    """

    def __init__(
        self,
        cluster: ClusterMap,
        workers: WorkerTable,
        *,
        infeasible_timeout_s: float,
        min_hold_s: float,
        new_id: Callable[[], bytes],
        on_grant: Callable[[bytes, float], None],
        on_return: Callable[[bytes, bool, float], None],
        on_make_room: Callable[[bytes], None],
        devices: Devices | None = None,
    ) -> None:
        self.cluster, self.workers = cluster, workers
        self.available = cluster.own.available
        if devices is None:
            devices = Devices.of_node(cluster.own.total.get(GPU, 0))
        self.devices = devices
        self.bundles = Bundles(cluster.own.node_id, self.available, devices)
        self.claims = Claims(self.bundles)
        self.waiting = WaitingRoom()
        self.held: dict[bytes, Held] = {}
        self.leaving: dict[bytes, Held] = {}  #: by worker: ended, but for its GPUs
        self._by_worker: dict[bytes, Held] = {}
        self._judge = Judge(cluster, self.bundles, workers, infeasible_timeout_s)
        self.fairness = Fairness(
            cluster, self.bundles, devices, self.waiting, self.held, min_hold_s
        )
        self._min_hold_s = min_hold_s
        self._new_id = new_id
        self._on_grant, self._on_return = on_grant, on_return
        self._on_make_room = on_make_room
        self._moved = 0.0  # when anything last moved, for the cap on processes

    # --- events -----------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event; return what is to be done, in order."""
        effects = _HANDLERS[type(event)](self, event, now)
        return effects + self._serve(now)

    def _requested(self, event: Requested, now: float) -> list[Effect]:
        request = Request(
            event.request_id, event.holder, event.spec, event.count, now, event.foreign
        )
        if request.foreign and request.group and not self.bundles.of(request):
            return [Grant(request.request_id, request.holder, [])]  # they moved on
        failure = self._judge.hopeless(request, now, self._moved)
        if failure is not None:
            return [failure]
        self.waiting.add(request)
        return []

    def _withdrawn(self, event: Withdrawn, now: float) -> list[Effect]:
        request = self.waiting.get(event.request_id)
        if request is None:
            return []
        self.waiting.remove(request)
        return [Grant(request.request_id, request.holder, [])]

    def _returned(self, event: LeaseReturned, now: float) -> list[Effect]:
        held = self.held.get(event.lease_id)
        if held is not None:
            self._end(held, event.reusable, now)
        return []

    def _holder_gone(self, event: HolderGone, now: float) -> list[Effect]:
        for request in self.waiting:
            if request.holder == event.holder:
                self.waiting.remove(request)
        for held in list(self.held.values()):
            if held.holder == event.holder:
                self._end(held, True, now)
        return []

    def _worker_gone(self, event: WorkerGone, now: float) -> list[Effect]:
        held = self._by_worker.get(event.worker_id)
        if held is not None:
            self._end(held, False, now)
        if event.worker_id not in self.workers.workers:  # not its channel alone
            self._free_devices(self.leaving.pop(event.worker_id, None))
        self._moved = now
        return []

    def _worker_blocked(self, event: WorkerBlocked, now: float) -> list[Effect]:
        held = self._by_worker.get(event.worker_id)
        if held is None or held.blocked == event.blocked:
            return []
        held.blocked = event.blocked
        change = give_back if event.blocked else take
        change(self._room_of(held), _cpu_part(held.resources))
        self._moved = now
        return []

    def _worker_ready(self, event: WorkerReady, now: float) -> list[Effect]:
        self._moved = now
        return []

    def _view_changed(self, event: ViewChanged, now: float) -> list[Effect]:
        return self._send_back(self.cluster.update(event.peers))

    def _send_back(self, joined: list[Node]) -> list[Effect]:
        """Other nodes' requests that a new node has room for need not wait here: their
        agents choose again."""
        effects: list[Effect] = []
        for request in self.waiting if joined else ():
            moves = request.foreign and not request.group and not request.is_bound
            if moves and not fits(request.resources, self.available):
                needs, labels = request.resources, request.spec.strategy.labels
                if any(node.has_room(needs, labels) for node in joined):
                    self.waiting.remove(request)
                    effects.append(Grant(request.request_id, request.holder, []))
        return effects

    def _node_lost(self, event: NodeLost, now: float) -> list[Effect]:
        self.cluster.forget(event.node_id)
        return self._give_up(now)

    def _spill_answered(self, event: SpillAnswered, now: float) -> list[Effect]:
        request = self.waiting.get(event.request_id)
        if not event.granted and (request is None or not request.group):
            self.cluster.refused(event.node_id)
        if request is not None:
            request.spilled = False
            if event.granted:
                self.waiting.remove(request)
            else:
                request.stay_until = now + SPILL_AGAIN_AFTER_S
        return []

    def _pool_broken(self, event: PoolBroken, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for request in self.waiting:
            if _pool(request) == event.key:
                self.waiting.remove(request)
                reason = (event.reason,)
                effects.append(Fail(request.request_id, "RuntimeEnvSetupError", reason))
        return effects

    def _groups_changed(self, event: GroupsChanged, now: float) -> list[Effect]:
        self.bundles.learn(event.rows)
        return self._give_up(now)

    def _bundles_returned(self, event: BundlesReturned, now: float) -> list[Effect]:
        gone = self.bundles.give_up(event.group_id, event.attempt, event.indexes)
        effects: list[Effect] = []
        for held in self.held.values():
            if held.bundle in gone:
                held.bundle = None  # what it has goes back to the node
                effects.append(EndWorker(held.worker_id, event.reason))
        for held in self.leaving.values():
            if held.bundle in gone:
                held.bundle = None
        for request in self.waiting:
            if request.foreign and request.group and not self.bundles.of(request):
                self.waiting.remove(request)
                effects.append(Grant(request.request_id, request.holder, []))
        return effects

    def _claimed(self, event: Claimed, now: float) -> list[Effect]:
        self.claims.add(event)
        return []

    def _claim_ended(self, event: ClaimEnded, now: float) -> list[Effect]:
        self.claims.drop(event.group_id)
        return []

    def _tick(self, event: Tick, now: float) -> list[Effect]:
        for worker_id, held in list(self.leaving.items()):
            if now - held.left_at >= LEFT_WITHIN_S:
                self._free_devices(self.leaving.pop(worker_id))
        claimed = self.claims.ask_back(
            self.held.values(), self.available, self._min_hold_s, now
        )
        return [*self._give_up(now), *claimed, *self.fairness.ask_back(now)]

    def _give_up(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for request in self.waiting:
            failure = self._judge.hopeless(request, now, self._moved)
            if failure is not None:
                self.waiting.remove(request)
                effects.append(failure)
            elif (tell := self._judge.worth_telling(request, now)) is not None:
                effects.append(tell)
        return effects

    def _end(self, held: Held, reusable: bool, now: float) -> None:
        """End a lease; the GPUs of a process that is to end stay with it until then."""
        del self.held[held.lease_id]
        del self._by_worker[held.worker_id]
        kept = {CPU, GPU} if held.blocked else {GPU}
        back = {
            name: units for name, units in held.resources.items() if name not in kept
        }
        give_back(self._room_of(held), back)
        self._on_return(held.worker_id, reusable, now)
        if held.gpus and self.workers.is_leaving(held.worker_id):
            held.left_at = now
            self.leaving[held.worker_id] = held
        else:
            self._free_devices(held)
        self._moved = now

    def _free_devices(self, held: Held | None) -> None:
        if held is not None and held.gpus:
            give_back(self._room_of(held), {GPU: held.resources[GPU]})
            self._devices_of(held).give_back(held.gpus)

    def _room_of(self, held: Held) -> Vector:
        return self.available if held.bundle is None else held.bundle.available

    def _devices_of(self, held: Held) -> Devices:
        return self.devices if held.bundle is None else held.bundle.devices

    # --- serving ----------------------------------------------------------------------

    def _serve(self, now: float) -> list[Effect]:
        reserved = self.claims.serve()
        if not self.waiting:
            return [*reserved]
        walk = Walk(dict(self.available), self.devices, effects=[*reserved])
        self.claims.hold_back(walk.room)
        starving = self.fairness.starving(now)
        if starving is not None:  # first in line, and its place is kept
            self._place(starving, walk, now)
            take(walk.room, starving.resources)
        self._walk(walk, now)
        for request_id, leases in walk.grants.items():
            request = self.waiting.get(request_id)
            assert request is not None
            self.waiting.remove(request)
            walk.effects.append(Grant(request_id, request.holder, leases))
        for key, wanted in walk.starts.items():
            if wanted > self.workers.starting(key):
                missing = wanted - self.workers.starting(key)
                walk.effects.append(StartWorkers(key, missing))
        return walk.effects

    def _walk(self, walk: Walk, now: float) -> None:
        """Give one place at a time: a turn for each job, until nothing more fits."""
        lines = self.waiting.jobs()
        while lines:
            lines = [line for line in lines if self._turn(line, walk, now)]

    def _turn(self, line: list[ShapeQueue], walk: Walk, now: float) -> bool:
        """Give one place to a job; False if there is none for any of its queues."""
        while line:
            queue = line.pop(0)
            if self._serve_queue(queue, walk, now):
                depth = queue.shape.depth
                behind = sum(other.shape.depth >= depth for other in line)
                line.insert(behind, queue)  # after its equals, before the shallower
                return True
        return False

    def _serve_queue(self, queue: ShapeQueue, walk: Walk, now: float) -> bool:
        """Give a place to the request whose turn it is; False if none can be given."""
        for line in list(queue.holders.values()):
            for request in line:
                placed = walk.placed.get(request.request_id, 0)
                if request.spilled or placed >= self._most_here(request):
                    continue
                return self._place(request, walk, now)
        return False

    def _most_here(self, request: Request) -> int:
        """Return how many places a request may get at a time on one node."""
        if request.spec.strategy.kind != "SPREAD" or request.foreign:
            return request.count
        nodes = self.cluster.feasible_count(request.resources, request.labels)
        return -(-request.count // max(1, nodes))

    def _place(self, request: Request, walk: Walk, now: float) -> bool:
        if request.group:
            return self._place_in_group(request, walk, now)
        where = self._where(request, walk)
        if where is not None and where is not self.cluster.own:
            if walk.placed.get(request.request_id):
                return False  # part of it is served here
            if now < request.stay_until:
                return False
            self._spill(request, where, walk)
            return True
        if where is None or not walk.fits(request.resources):
            return False
        return self._place_here(request, walk, now)

    def _place_in_group(self, request: Request, walk: Walk, now: float) -> bool:
        """Give a place in a bundle of this node, or ask a node with another one."""
        for bundle in self.bundles.of(request):
            if walk.fits(request.resources, bundle):
                return self._place_here(request, walk, now, bundle)
        if request.foreign or walk.placed.get(request.request_id):
            return False
        others = self.bundles.elsewhere(request)
        others = [node_id for node_id in others if node_id in self.cluster.peers]
        if not others or now < request.stay_until:
            return False
        count = self.bundles.how_many(request, others[0])
        request.spilled, request.sent = True, count
        self.waiting.took_turn(request.shape, request.holder)
        patient = len(others) == 1 and not self.bundles.of(request)
        walk.effects.append(Spill(request.request_id, others[0], count, patient))
        return True

    def _place_here(
        self, request: Request, walk: Walk, now: float, bundle: Bundle | None = None
    ) -> bool:
        key = _pool(request)
        worker_id = self.workers.next_idle(key)
        if worker_id is None:
            wanted = walk.starts.get(key, 0) + 1
            if wanted > self.workers.starting(key):
                if walk.new_processes >= self.workers.room:
                    return self._capped(request, walk, now)
                walk.new_processes += 1
            walk.starts[key] = wanted
        gpus = walk.take(request.resources, bundle)
        if worker_id is not None:
            self._grant(request, worker_id, walk, now, bundle, gpus)
        request.capped_since = None
        walk.placed[request.request_id] = walk.placed.get(request.request_id, 0) + 1
        return True

    def _capped(self, request: Request, walk: Walk, now: float) -> bool:
        """No process may be started: make room if another pool has an idle one."""
        if not self.workers.just_leaving(now, LEAVE_WITHIN_S):
            idle = self.workers.longest_idle(but=_pool(request))
            if idle is not None:
                self._on_make_room(idle)
        if request.capped_since is None:
            request.capped_since = now
        return False

    def _grant(
        self,
        request: Request,
        worker_id: bytes,
        walk: Walk,
        now: float,
        bundle: Bundle | None,
        gpus: Share,
    ) -> None:
        lease_id = self._new_id()
        self._on_grant(worker_id, now)
        held = Held(
            lease_id,
            worker_id,
            request.holder,
            request.shape,
            request.resources,
            now,
            bundle,
            gpus,
        )
        self.held[lease_id] = self._by_worker[worker_id] = held
        take(self._room_of(held), request.resources)
        if gpus:
            self._devices_of(held).remove(gpus)
        walk.grants.setdefault(request.request_id, []).append((lease_id, worker_id))
        self.waiting.took_turn(request.shape, request.holder)
        self._moved = now

    # --- where ------------------------------------------------------------------------

    def _where(self, request: Request, walk: Walk) -> Node | None:
        """Return the node that shall serve a request now; None to keep it waiting."""
        own, needs, labels = self.cluster.own, request.resources, request.labels
        strategy = request.spec.strategy
        if request.foreign:
            return own
        if strategy.kind == "NODE":
            named = self.cluster.get(strategy.node_id)
            if named is not None and matches(labels, named.labels):
                return named
            if not strategy.soft:
                return None
        first = self.cluster.peers and not walk.placed.get(request.request_id)
        if strategy.kind == "SPREAD" and first:
            return self.cluster.spread(needs, labels)
        here = self.fairness.could_be_here(request)
        if here and (walk.fits(needs) or not self.cluster.peers):
            return own
        free = self.cluster.free_peer(needs, labels)
        if free is not None or here:
            return free or own
        return self.cluster.possible_peer(needs, labels)

    def _spill(self, request: Request, node: Node, walk: Walk) -> None:
        needs = request.resources
        count = self.cluster.how_many(node, needs, self._most_here(request))
        self.cluster.sent(node, needs, count)
        request.spilled, request.sent = True, count
        self.waiting.took_turn(request.shape, request.holder)
        patient = not self.fairness.could_be_here(request)
        patient = patient or request.spec.strategy.kind == "NODE"
        walk.effects.append(Spill(request.request_id, node.node_id, count, patient))

    # --- what others ask --------------------------------------------------------------

    def demand(self) -> list[tuple[Vector, int]]:
        """Return what waits here, by resources."""
        return self.waiting.demand()

    def lent(self) -> list[bytes]:
        """Return the workers whose leases may be asked back."""
        return [
            held.worker_id
            for held in self.held.values()
            if not held.blocked and held.shape.strategy[0] != ACTOR
        ]

    def reclaimable(self) -> Vector:
        """Return what would be free if all these leases came back."""
        return lent(self.held.values())

    def lease_of(self, worker_id: bytes) -> Held | None:
        return self._by_worker.get(worker_id)


def _pool(request: Request) -> PoolKey:
    return PoolKey(request.spec.job_id, request.spec.runtime_env)


def _cpu_part(resources: Vector) -> Vector:
    return {CPU: resources[CPU]} if CPU in resources else {}


_HANDLERS: Final[dict[type, Callable[..., list[Effect]]]] = {
    Requested: LeaseTable._requested,
    Withdrawn: LeaseTable._withdrawn,
    LeaseReturned: LeaseTable._returned,
    HolderGone: LeaseTable._holder_gone,
    WorkerReady: LeaseTable._worker_ready,
    WorkerGone: LeaseTable._worker_gone,
    WorkerBlocked: LeaseTable._worker_blocked,
    ViewChanged: LeaseTable._view_changed,
    NodeLost: LeaseTable._node_lost,
    SpillAnswered: LeaseTable._spill_answered,
    PoolBroken: LeaseTable._pool_broken,
    BundlesReturned: LeaseTable._bundles_returned,
    GroupsChanged: LeaseTable._groups_changed,
    Claimed: LeaseTable._claimed,
    ClaimEnded: LeaseTable._claim_ended,
    Tick: LeaseTable._tick,
}
