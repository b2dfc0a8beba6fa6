"""The life cycles of this node's worker processes.  Pure.

                 Attached          Granted
    STARTING ─────────────▶ IDLE ◀─────────▶ LEASED
        │                    │    Returned     │
        │ Killed             │ Retired         │ Killed, Returned(reusable=False)
        ▼                    ▼                 ▼
      ENDING ◀─────────── RETIRING ·········▶ (Gone from any state) DEAD

A worker is dedicated to one (job, runtime environment): its pool.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple


class PoolKey(NamedTuple):
    """Whom a worker may work for."""

    job_id: bytes
    runtime_env: str


class WorkerState(enum.Enum):
    STARTING = "starting"
    """Asked of a zygote; the process has not attached yet."""
    IDLE = "idle"
    """Attached, lent to nobody."""
    LEASED = "leased"
    """Lent to a runtime."""
    RETIRING = "retiring"
    """Told to end once nobody needs its objects; gets no lease any more."""
    ENDING = "ending"
    """Killed; its end is not known yet."""
    DEAD = "dead"
    """Ended."""


@dataclass(slots=True)
class Worker:
    worker_id: bytes
    key: PoolKey
    state: WorkerState
    since: float  #: when it came into this state
    pid: int = 0
    blocked: bool = False
    spent: bool = False  #: has made its last call; nobody may lease it again
    kill_kind: str = ""  #: why it was killed, as in `messages.Death.kind`
    kill_reason: str = ""


@dataclass(frozen=True, slots=True)
class StartWanted:
    key: PoolKey


@dataclass(frozen=True, slots=True)
class Attached:
    worker_id: bytes
    pid: int


@dataclass(frozen=True, slots=True)
class Granted:
    worker_id: bytes


@dataclass(frozen=True, slots=True)
class Returned:
    worker_id: bytes
    reusable: bool


@dataclass(frozen=True, slots=True)
class Spent:
    """It runs no further task."""

    worker_id: bytes


@dataclass(frozen=True, slots=True)
class Retired:
    """It shall end in good order."""

    worker_id: bytes


@dataclass(frozen=True, slots=True)
class Killed:
    worker_id: bytes
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class Gone:
    worker_id: bytes


Event = StartWanted | Attached | Granted | Returned | Spent | Retired | Killed | Gone


@dataclass(frozen=True, slots=True)
class Start:
    """Effect: ask a zygote for this process."""

    worker_id: bytes
    key: PoolKey


@dataclass(frozen=True, slots=True)
class AskToEnd:
    """Effect: tell it to end in good order."""

    worker_id: bytes


@dataclass(frozen=True, slots=True)
class Kill:
    """Effect: end it now."""

    worker_id: bytes


Effect = Start | AskToEnd | Kill

_S: Final = WorkerState
_TRANSITIONS: Final[dict[tuple[WorkerState, type], WorkerState]] = {
    (_S.STARTING, Attached): _S.IDLE,
    (_S.STARTING, Retired): _S.ENDING,
    (_S.STARTING, Killed): _S.ENDING,
    (_S.IDLE, Granted): _S.LEASED,
    (_S.IDLE, Spent): _S.RETIRING,
    (_S.IDLE, Retired): _S.RETIRING,
    (_S.IDLE, Killed): _S.ENDING,
    (_S.LEASED, Returned): _S.IDLE,
    (_S.LEASED, Spent): _S.LEASED,
    (_S.LEASED, Retired): _S.RETIRING,
    (_S.LEASED, Killed): _S.ENDING,
    (_S.RETIRING, Returned): _S.RETIRING,
    (_S.RETIRING, Spent): _S.RETIRING,
    (_S.RETIRING, Retired): _S.RETIRING,
    (_S.RETIRING, Killed): _S.ENDING,
    (_S.ENDING, Attached): _S.ENDING,
    (_S.ENDING, Returned): _S.ENDING,
    (_S.ENDING, Spent): _S.ENDING,
    (_S.ENDING, Retired): _S.ENDING,
    (_S.ENDING, Killed): _S.ENDING,
}


class WorkerTable:
    """All worker processes of a node.

    Args:
        max_workers: how many processes there may be at a time.
        new_id: makes worker ids.
    """

    def __init__(self, max_workers: int, new_id: Callable[[], bytes]) -> None:
        self.max_workers = max_workers
        self.workers: dict[bytes, Worker] = {}
        self._new_id = new_id
        self._idle: dict[PoolKey, dict[bytes, None]] = {}  # last in, first out
        self._starting: dict[PoolKey, int] = {}

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event; return what is to be done.

        Raises:
            ValueError: the event cannot happen in the worker's state.
        """
        if isinstance(event, StartWanted):
            return [self._start(event.key, now)]
        worker = self.workers.get(event.worker_id)
        if worker is None:  # gone meanwhile: late messages are normal
            return []
        if isinstance(event, Gone):
            self._move(worker, WorkerState.DEAD, now)
            del self.workers[worker.worker_id]
            return []
        target = _TRANSITIONS.get((worker.state, type(event)))
        if target is None:
            raise ValueError(f"{event} while {worker}")
        before = worker.state
        self._move(worker, target, now)
        return self._effects(worker, before, event)

    def _effects(
        self, worker: Worker, before: WorkerState, event: Event
    ) -> list[Effect]:
        if isinstance(event, Attached):
            worker.pid = event.pid
            return [Kill(worker.worker_id)] if worker.state is _S.ENDING else []
        if isinstance(event, Killed):
            if before is not _S.ENDING:
                worker.kill_kind, worker.kill_reason = event.kind, event.reason
            return [Kill(worker.worker_id)]
        if isinstance(event, Returned):
            worker.blocked = False
            if (worker.spent or not event.reusable) and worker.state is _S.IDLE:
                self._move(worker, _S.RETIRING, worker.since)
                return [AskToEnd(worker.worker_id)]
        if isinstance(event, Spent):
            worker.spent = True
            return [AskToEnd(worker.worker_id)] if before is _S.IDLE else []
        if isinstance(event, Retired):
            if before is _S.STARTING:
                worker.kill_reason = worker.kill_reason or "no longer needed"
                return [Kill(worker.worker_id)]
            return [AskToEnd(worker.worker_id)] if before is not _S.ENDING else []
        return []

    def _start(self, key: PoolKey, now: float) -> Start:
        worker = Worker(self._new_id(), key, _S.STARTING, now)
        self.workers[worker.worker_id] = worker
        self._starting[key] = self._starting.get(key, 0) + 1
        return Start(worker.worker_id, key)

    def _move(self, worker: Worker, state: WorkerState, now: float) -> None:
        if worker.state is _S.STARTING and state is not _S.STARTING:
            self._starting[worker.key] -= 1
            if not self._starting[worker.key]:
                del self._starting[worker.key]
        if worker.state is _S.IDLE:
            pool = self._idle[worker.key]
            del pool[worker.worker_id]
            if not pool:
                del self._idle[worker.key]
        if state is _S.IDLE:
            self._idle.setdefault(worker.key, {})[worker.worker_id] = None
        if state is not worker.state:
            worker.since = now
        worker.state = state

    # --- what the scheduler asks ------------------------------------------------------

    def next_idle(self, key: PoolKey) -> bytes | None:
        """Return the idle worker of a pool that was used last."""
        pool = self._idle.get(key)
        return next(reversed(pool)) if pool else None

    def is_leaving(self, worker_id: bytes) -> bool:
        """Tell if a process is to end, and has not yet."""
        worker = self.workers.get(worker_id)
        return worker is not None and worker.state in (_S.RETIRING, _S.ENDING)

    def starting(self, key: PoolKey) -> int:
        return self._starting.get(key, 0)

    @property
    def starting_total(self) -> int:
        return sum(self._starting.values())

    @property
    def room(self) -> int:
        """How many processes may still be started."""
        return max(0, self.max_workers - len(self.workers))

    def longest_idle(self, *, but: PoolKey) -> bytes | None:
        """Return the idle worker of other pools that has been idle longest."""
        firsts = [next(iter(p)) for key, p in self._idle.items() if key != but]
        return min(firsts, key=lambda w: self.workers[w].since, default=None)

    def just_leaving(self, now: float, within_s: float) -> int:
        """Return how many processes were told to end no longer than that ago."""
        return sum(
            worker.state in (_S.RETIRING, _S.ENDING) and now - worker.since < within_s
            for worker in self.workers.values()
        )

    def nothing_moves(self) -> bool:
        """Tell if every process waits for something that another has to do."""
        return all(
            worker.state in (_S.RETIRING, _S.ENDING)
            or (worker.state is _S.LEASED and worker.blocked)
            for worker in self.workers.values()
        )

    def idle_too_long(self, keep: int, idle_s: float, now: float) -> list[bytes]:
        """Return workers to end: idle for ``idle_s``, beyond ``keep`` idle ones."""
        idle = [
            self.workers[worker_id]
            for pool in self._idle.values()
            for worker_id in pool
        ]
        spare = sorted(idle, key=lambda w: w.since)[: max(0, len(idle) - keep)]
        return [w.worker_id for w in spare if now - w.since >= idle_s]

    def of_job(self, job_id: bytes) -> list[bytes]:
        return [w.worker_id for w in self.workers.values() if w.key.job_id == job_id]
