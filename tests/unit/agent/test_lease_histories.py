"""The scheduler held to its rules by random histories."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sparkray.agent.state import events as e
from sparkray.agent.state import workers as w
from sparkray.agent.state.leases import LeaseTable
from sparkray.agent.state.nodes import ClusterMap, Node
from sparkray.agent.state.workers import WorkerState, WorkerTable
from sparkray.protocol.messages import LeaseSpec, Strategy
from sparkray.protocol.placement import GroupRow
from sparkray.resources import UNIT, Vector, from_user, give_back

TOTAL = from_user({"CPU": 3, "tok": 1, "GPU": 2})
SHAPES: list[Vector] = [
    from_user(shape)
    for shape in (
        {"CPU": 1},
        {"CPU": 0.5},
        {"CPU": 3},
        {},
        {"CPU": 1, "tok": 1},
        {"GPU": 1},
        {"CPU": 0.5, "GPU": 0.5},
        {"CPU": 0.5, "GPU": 0.3},
    )
]
HOLDERS = [b"a", b"b", b"c"]
JOBS = [b"job1", b"job2"]
GROUP = b"group"
BUNDLES = [
    from_user({"CPU": 1, "GPU": 0.5}),
    from_user({"CPU": 1, "tok": 1, "GPU": 1}),
]
STRATEGIES = [
    Strategy(),
    Strategy("GROUP", group_id=GROUP, bundle=0),
    Strategy("GROUP", group_id=GROUP),
]


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.ids = itertools.count(1)
        self.workers = WorkerTable(8, lambda: b"%06d" % next(self.ids))
        self.available = dict(TOTAL)
        own = Node(b"here", "here", TOTAL, self.available)
        self.table = LeaseTable(
            ClusterMap(own),
            self.workers,
            infeasible_timeout_s=5.0,
            min_hold_s=0.1,
            new_id=lambda: b"%06d" % next(self.ids),
            on_grant=self.on_grant,
            on_return=lambda worker, reusable, now: self.tell(
                w.Returned(worker, reusable)
            ),
            on_make_room=self.make_room,
        )
        self.waiting: set[int] = set()
        self.failed: set[int] = set()
        self.held: dict[bytes, bytes] = {}
        self.starting: list[bytes] = []
        self.events: list[e.Event] = []
        self.attempt = 0
        self.version = 0
        self.to_end: list[bytes] = []

    def on_grant(self, worker_id: bytes, now: float) -> None:
        assert self.workers.workers[worker_id].state is WorkerState.IDLE
        self.tell(w.Granted(worker_id))

    def tell(self, event: w.Event) -> None:
        self.workers.handle(event, self.now)

    def feed(self, event: e.Event) -> None:
        """As the agent does: what an effect causes comes after the other effects."""
        self.events.append(event)
        if len(self.events) > 1:
            return
        while self.events:
            for effect in self.table.handle(self.events[0], self.now):
                self.perform(effect)
            self.events.pop(0)
        while self.to_end:
            self.end_worker(self.to_end.pop())

    def make_room(self, worker_id: bytes) -> None:
        assert self.workers.workers[worker_id].state is WorkerState.IDLE
        self.tell(w.Retired(worker_id))
        self.to_end.append(worker_id)

    def perform(self, effect: e.Effect) -> None:
        if isinstance(effect, e.Grant):
            self.waiting.remove(effect.request_id)
            for lease_id, worker_id in effect.leases:
                assert worker_id not in self.held.values(), "lent twice"
                self.held[lease_id] = worker_id
        elif isinstance(effect, e.Fail):
            self.waiting.remove(effect.request_id)
        elif isinstance(effect, e.StartWorkers):
            for _ in range(effect.count):
                (start,) = self.workers.handle(w.StartWanted(effect.key), self.now)
                self.starting.append(start.worker_id)
        elif isinstance(effect, e.EndWorker):
            self.to_end.append(effect.worker_id)

    def end_worker(self, worker_id: bytes) -> None:
        if worker_id not in self.workers.workers:
            return
        self.tell(w.Killed(worker_id, "exit", "test"))
        self.tell(w.Gone(worker_id))
        self.held = {k: v for k, v in self.held.items() if v != worker_id}
        self.starting = [x for x in self.starting if x != worker_id]
        self.feed(e.WorkerGone(worker_id))

    @rule(
        job=st.sampled_from(JOBS),
        holder=st.sampled_from(HOLDERS),
        shape=st.sampled_from(SHAPES),
        depth=st.integers(0, 2),
        count=st.integers(1, 4),
        strategy=st.sampled_from(STRATEGIES),
    )
    def request(
        self,
        job: bytes,
        holder: bytes,
        shape: Vector,
        depth: int,
        count: int,
        strategy: Strategy,
    ) -> None:
        number = next(self.ids)
        self.waiting.add(number)
        spec = LeaseSpec(job, "", shape, strategy, depth)
        self.feed(e.Requested(number, holder, spec, count))

    @rule(indexes=st.sampled_from([(0,), (1,), (0, 1)]))
    def reserve(self, indexes: tuple[int, ...]) -> None:
        self.attempt += 1
        bundles = {index: BUNDLES[index] for index in indexes}
        if self.table.bundles.reserve(GROUP, self.attempt, bundles):
            self.tell_row()

    @rule(indexes=st.sampled_from([[0], [1], [0, 1]]), age=st.integers(0, 2))
    def return_bundles(self, indexes: list[int], age: int) -> None:
        attempt = self.attempt - age
        self.feed(e.BundlesReturned(GROUP, attempt, indexes, "test"))
        self.tell_row()

    def tell_row(self) -> None:
        self.version += 1
        here = {index for _, index in self.table.bundles.here}
        nodes = [b"here" if index in here else b"" for index in range(2)]
        row = GroupRow(
            group_id=GROUP,
            version=self.version,
            state="CREATED" if all(nodes) else "RESCHEDULING",
            name="",
            namespace="",
            strategy="PACK",
            bundles=BUNDLES,
            nodes=nodes,
            detached=False,
            job_id=b"job1",
        )
        self.feed(e.GroupsChanged([row]))

    @rule()
    def start_one(self) -> None:
        if self.starting:
            self.tell(w.Attached(self.starting.pop(0), 7))
            self.feed(e.WorkerReady())

    @rule()
    def start_all(self) -> None:
        while self.starting:
            self.start_one()

    @rule(index=st.integers(0, 20), reusable=st.booleans())
    def give_back(self, index: int, reusable: bool) -> None:
        if self.held:
            lease_id = sorted(self.held)[index % len(self.held)]
            del self.held[lease_id]
            self.feed(e.LeaseReturned(lease_id, reusable))

    @rule(index=st.integers(0, 20), blocked=st.booleans())
    def block(self, index: int, blocked: bool) -> None:
        if self.held:
            worker_id = sorted(self.held.values())[index % len(self.held)]
            self.workers.workers[worker_id].blocked = blocked
            self.feed(e.WorkerBlocked(worker_id, blocked))

    @rule(index=st.integers(0, 20))
    def crash(self, index: int) -> None:
        if self.workers.workers:
            ids = sorted(self.workers.workers)
            self.end_worker(ids[index % len(ids)])

    @rule(holder=st.sampled_from(HOLDERS))
    def holder_dies(self, holder: bytes) -> None:
        gone = {
            held.lease_id for held in self.table.held.values() if held.holder == holder
        }
        self.held = {k: v for k, v in self.held.items() if k not in gone}
        mine = {r.request_id for r in self.table.waiting if r.holder == holder}
        self.waiting -= mine
        self.feed(e.HolderGone(holder))

    @rule(seconds=st.sampled_from([0.05, 0.5, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.feed(e.Tick())

    @invariant()
    def what_is_lent_and_what_is_free_make_the_total(self) -> None:
        room = dict(self.available)
        bundles = self.table.bundles.here
        rooms = {key: dict(bundle.available) for key, bundle in bundles.items()}
        for held in self.table.held.values():
            where = room if held.bundle is None else rooms[held.bundle.key]
            for name, units in held.resources.items():
                if not (held.blocked and name == "CPU"):
                    where[name] += units
        for held in self.table.leaving.values():
            where = room if held.bundle is None else rooms[held.bundle.key]
            where["GPU"] += held.resources["GPU"]
        for key, bundle in bundles.items():
            assert rooms[key] == bundle.total == BUNDLES[key[1]]
            give_back(room, bundle.total)
        assert room == TOTAL

    @invariant()
    def no_device_is_lent_twice_and_none_is_lost(self) -> None:
        room = self.table.devices.copy()
        bundles = self.table.bundles.here
        rooms = {key: bundle.devices.copy() for key, bundle in bundles.items()}
        for held in self.table.held.values():
            assert sum(held.gpus.values()) == held.resources.get("GPU", 0)
            assert sum(units < UNIT for units in held.gpus.values()) <= 1
            where = room if held.bundle is None else rooms[held.bundle.key]
            where.give_back(held.gpus)
        for held in self.table.leaving.values():
            where = room if held.bundle is None else rooms[held.bundle.key]
            where.give_back(held.gpus)
        for key, bundle in bundles.items():
            assert sum(rooms[key].free.values()) == bundle.total.get("GPU", 0)
            assert sum(bundle.devices.free.values()) == bundle.available.get("GPU", 0)
            room.give_back(rooms[key].free)
        assert room.free == {"0": UNIT, "1": UNIT}
        assert sum(self.table.devices.free.values()) == self.available["GPU"]

    @invariant()
    def both_tables_agree_on_who_is_lent(self) -> None:
        leased = {
            worker.worker_id
            for worker in self.workers.workers.values()
            if worker.state is WorkerState.LEASED
        }
        assert leased == set(self.held.values())
        assert {held.lease_id for held in self.table.held.values()} == set(self.held)

    @invariant()
    def there_are_never_more_processes_than_allowed(self) -> None:
        assert len(self.workers.workers) <= 8

    @invariant()
    def nothing_waits_that_could_be_served(self) -> None:
        assert {request.request_id for request in self.table.waiting} == self.waiting
        if self.table.fairness.starving(self.now) is not None or self.starting:
            return
        for request in self.table.waiting:
            if request.capped_since is not None:
                continue
            if not request.group:
                assert not self.table.fairness._fits_now(request)
            for bundle in self.table.bundles.of(request):
                assert not bundle.fits(request.resources)

    def teardown(self) -> None:
        """Once everything runs and is returned, nobody waits any more."""
        self.feed(e.BundlesReturned(GROUP, self.attempt, [0, 1], "the end"))
        self.tell_row()
        self.drain(lambda: all(request.group for request in self.table.waiting))
        self.attempt += 1
        assert self.table.bundles.reserve(GROUP, self.attempt, dict(enumerate(BUNDLES)))
        self.tell_row()
        self.drain(lambda: not self.waiting)
        assert not self.waiting

    def drain(self, done: Callable[[], bool]) -> None:
        for _ in range(500):
            there = self.held or self.starting or self.table.leaving
            if done() and not there:
                break
            while self.starting:
                self.start_one()
            for lease_id in list(self.held):
                if lease_id in self.held:
                    del self.held[lease_id]
                    self.feed(e.LeaseReturned(lease_id, True))
            retiring = [
                worker.worker_id
                for worker in self.workers.workers.values()
                if worker.state is WorkerState.RETIRING
            ]
            for worker_id in retiring:
                self.end_worker(worker_id)
            self.time_passes(0.05)


Histories.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None
)
TestHistories = Histories.TestCase
