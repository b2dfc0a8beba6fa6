"""A scheduler of one node for tests: requests in, grants noted."""

from __future__ import annotations

import itertools

from sparkray.agent.state import events as e
from sparkray.agent.state import workers as w
from sparkray.agent.state.leases import LeaseTable
from sparkray.agent.state.nodes import ClusterMap, Node
from sparkray.agent.state.workers import WorkerTable
from sparkray.protocol.messages import LeaseSpec, Strategy
from sparkray.resources import UNIT, Vector, from_user

JOB, OTHER_JOB = b"job1", b"job2"
INFEASIBLE_S, HOLD_S = 15.0, 0.125


class Desk:
    """A scheduler whose workers start when `start_workers` is called."""

    def __init__(self, cpus: float = 2, max_workers: int = 64, **more: float) -> None:
        total = from_user({"CPU": cpus, **more})
        self.now = 100.0
        self.ids = itertools.count(1)
        self.workers = WorkerTable(max_workers, self._new_id)
        self.cluster = ClusterMap(Node(b"here", "here", total, dict(total)))
        self.table = LeaseTable(
            self.cluster,
            self.workers,
            infeasible_timeout_s=INFEASIBLE_S,
            min_hold_s=HOLD_S,
            new_id=self._new_id,
            on_grant=lambda worker, now: self._tell(w.Granted(worker)),
            on_return=lambda worker, reusable, now: self._tell(
                w.Returned(worker, reusable)
            ),
            on_make_room=self._make_room,
        )
        self.granted: dict[int, list[tuple[bytes, bytes]]] = {}
        self.failed: dict[int, e.Fail] = {}
        self.told: list[str] = []
        self.spills: list[e.Spill] = []
        self.asked: list[bytes] = []
        self.order: list[int] = []
        self.starting: list[bytes] = []
        self.at_once = True
        self.to_end: list[bytes] = []

    def _new_id(self) -> bytes:
        return b"%08d" % next(self.ids)

    def _tell(self, event: w.Event) -> None:
        self.workers.handle(event, self.now)

    def feed(self, event: e.Event) -> None:
        for effect in self.table.handle(event, self.now):
            self._perform(effect)
        while self.to_end:
            self._tell(w.Gone(self.to_end[0]))
            self.feed(e.WorkerGone(self.to_end.pop(0)))
        if self.at_once and self.starting:
            self.start_workers()

    def _make_room(self, worker_id: bytes) -> None:
        self._tell(w.Retired(worker_id))
        self.to_end.append(worker_id)

    def _perform(self, effect: e.Effect) -> None:
        if isinstance(effect, e.Grant):
            self.granted[effect.request_id] = effect.leases
            self.order.append(effect.request_id)
        elif isinstance(effect, e.Fail):
            self.failed[effect.request_id] = effect
        elif isinstance(effect, e.Tell):
            self.told.append(effect.text)
        elif isinstance(effect, e.Spill):
            self.spills.append(effect)
        elif isinstance(effect, e.AskBack):
            self.asked.append(effect.worker_id)
        else:
            for _ in range(effect.count):
                for start in self.workers.handle(w.StartWanted(effect.key), self.now):
                    assert isinstance(start, w.Start)
                    self.starting.append(start.worker_id)

    def start_workers(self) -> None:
        while self.starting:
            self._tell(w.Attached(self.starting.pop(0), 1))
            self.feed(e.WorkerReady())

    def request(
        self,
        number: int,
        holder: bytes = b"driver",
        count: int = 1,
        job: bytes = JOB,
        depth: int = 0,
        strategy: Strategy | None = None,
        env: str = "",
        foreign: bool = False,
        **resources: float,
    ) -> None:
        needs = from_user(resources or {"CPU": 1})
        spec = LeaseSpec(job, env, needs, strategy or Strategy(), depth)
        self.feed(e.Requested(number, holder, spec, count, foreign))

    def give_back(self, number: int, index: int = 0, reusable: bool = True) -> None:
        self.feed(e.LeaseReturned(self.granted[number][index][0], reusable))

    def die(self, number: int) -> None:
        """The process of a lease ends."""
        worker_id = self.worker(number)
        self._tell(w.Gone(worker_id))
        self.feed(e.WorkerGone(worker_id))

    def worker(self, number: int, index: int = 0) -> bytes:
        return self.granted[number][index][1]

    def block(self, number: int, blocked: bool = True) -> None:
        worker_id = self.worker(number)
        if worker_id in self.workers.workers:
            self.workers.workers[worker_id].blocked = blocked
        self.feed(e.WorkerBlocked(worker_id, blocked))

    def tick(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.feed(e.Tick())

    def see(self, *peers: Node) -> None:
        self.feed(e.ViewChanged(list(peers)))

    @property
    def free_cpus(self) -> float:
        return self.table.available["CPU"] / UNIT


def peer(name: bytes, cpus: float, free: float, **more: float) -> Node:
    total = from_user({"CPU": cpus, **more})
    available: Vector = {**total, "CPU": int(free * UNIT)}
    return Node(name, name.decode(), total, available)
