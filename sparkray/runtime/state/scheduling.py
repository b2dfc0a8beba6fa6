"""Which task goes to which leased worker, and when to ask for more workers.  Pure.

For each scheduling key there is a queue of tasks that are ready to run and the workers
leased for it.  How many tasks a worker may hold follows the measured run time of the
function: about ``work_ahead_s`` of work beyond the running task; just one task for long
or unknown functions.  What a busy worker has not started is reclaimed when another
falls idle, and when the task that runs takes much longer than those before it.

Plain fields and plain functions: a task passes through here on the hot path.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any, Final, Protocol

import msgspec

from sparkray.protocol.messages import Lease, LeaseSpec
from sparkray.runtime.state.objects import PENDING, Entry
from sparkray.runtime.state.streams import Stream

#: A function that runs longer than this gets one task at a time.
LONG_S: Final = 0.005
#: No further lease request while one for so many workers is out.
MAX_REQUESTED: Final = 64


class SchedulingKey(Protocol):
    """Where tasks queue that may run in the same places: see `KeyQueue`; an actor's
    calls and the making of actors have queues of their own (`state.actor`)."""

    @property
    def ordered(self) -> bool: ...  #: a task that is not ready holds up the next

    queue: collections.deque[Any]
    workers: list[LeasedWorker]
    requests: dict[int, int]
    saturated: bool

    def assign(self) -> Iterator[tuple[LeasedWorker, list[Any]]]: ...
    def leases_to_request(self) -> int: ...
    def put_back(self, tasks: list[Any]) -> None: ...


class Again(msgspec.Struct, eq=False, gc=False):
    """For which lost objects a task runs once more.

    Those found lost while it runs come behind the others: what it has made of them is
    gone by, so it may have to run yet again.
    """

    entries: list[Any]
    begun: int = 0  #: so many were lost before it began; 0: its first run is not over

    def take_missing(self) -> tuple[list[Any], list[Any]]:
        """Return those not made at the task's end: lost before it began, and since."""
        pending = [i for i, e in enumerate(self.entries) if e.state == PENDING]
        before = [self.entries[i] for i in pending if i < self.begun]
        since = [self.entries[i] for i in pending if i >= self.begun]
        self.entries = []
        return before, since


class Task(msgspec.Struct, eq=False, gc=False):
    """One submitted task, from `.remote()` until its answer.  In form like `Entry`."""

    number: int
    template: Any  #: its `TemplateState`
    args: bytes
    entry: Entry  #: of the first return value
    retries_left: int
    parent: bytes = b""  #: id of the task that submitted this one, b"" for none
    attempt: int = 1
    entries: list[Any] | None = None  #: of all return values, if several
    refs: list[tuple[Any, Any]] | None = None  #: top-level ref arguments
    pinned: list[Any] | None = None  #: entries kept until the answer
    stored_args: Entry | None = None  #: arguments too large for a message
    waiting: int = 0  #: arguments that do not exist yet
    worker: Any = None  #: the `LeasedWorker` it was pushed to
    cancelled: bool = False
    solo: bool = False  #: pushed alone: its worker died last time with tasks in flight
    died_on: list[bytes] | None = None  #: nodes where workers died that had it
    overran: str = ""  #: its process, ended because the task did not stop in time
    stream: Stream | None = None
    again: Again | None = None  #: it runs once more, for objects that were lost


class TemplateState:
    """What all calls of one remote function with one set of options share here."""

    __slots__ = (
        "batch",
        "captured",
        "define",
        "depth",
        "function",
        "key",
        "max_retries",
        "name",
        "num_returns",
        "retry_exceptions",
        "run_s",
        "template_id",
    )

    def __init__(
        self, template_id: int, name: str, key: SchedulingKey, depth: int
    ) -> None:
        self.template_id = template_id
        self.depth = depth  #: of its tasks; the driver's have 0
        self.name = name
        self.key = key
        self.run_s: float | None = None  #: moving average; None until the first answer
        self.num_returns = 1
        self.max_retries = 0
        self.retry_exceptions: bool | tuple[type[BaseException], ...] = False
        self.batch = True  #: several may be in flight to a worker
        self.captured: Any = None  #: the strategy that its tasks' parents hand on
        self.define: Any = None  #: the DefineTask message
        self.function: Any = None  #: its pickle, and the refs that this needs

    def note_run(self, run_s: float) -> None:
        known = self.run_s
        self.run_s = run_s if known is None else 0.9 * known + 0.1 * run_s


class LeasedWorker:
    """A worker that we may push tasks to."""

    __slots__ = (
        "blocked",
        "channel",
        "idle_since",
        "in_flight",
        "key",
        "known",
        "lease",
        "leaving",
        "reclaiming",
        "watched",
    )

    def __init__(
        self, lease: Lease, key: SchedulingKey, channel: Any, now: float
    ) -> None:
        self.lease = lease
        self.key = key
        self.channel = channel
        self.in_flight: dict[int, Task] = {}  #: in the order of pushing
        self.idle_since = now
        self.known: set[int] = channel.peer.known_templates
        self.leaving = False  #: gets no more tasks: wanted by others, or retiring
        self.blocked = False  #: its task waits or runs long; gets no tasks meanwhile
        self.reclaiming = False  #: asked to give tasks back, not answered yet
        self.watched = -1  #: number of the task that ran at the last look


class KeyQueue:
    """One scheduling key: ready tasks, leased workers, leases asked for."""

    ordered = False  #: tasks run whenever they are ready

    def __init__(self, spec: LeaseSpec, work_ahead_s: float, max_ahead: int) -> None:
        self.spec = spec
        self.queue: collections.deque[Task] = collections.deque()
        self.workers: list[LeasedWorker] = []
        self.requests: dict[int, int] = {}  #: call -> leases asked for
        #: All workers are busy and more are asked for: a new task may wait for company,
        #: because the next answer or grant hands out the queue anyway.
        self.saturated = False
        self._work_ahead_s = work_ahead_s
        self._max_ahead = max_ahead

    def depth(self, task: Task) -> int:
        """How many tasks like this one a worker may hold."""
        template = task.template
        run_s = template.run_s
        if run_s is None or run_s > LONG_S or task.solo or not template.batch:
            return 1
        ahead = int(self._work_ahead_s / max(run_s, 1e-6))
        return 1 + max(1, min(ahead, self._max_ahead))

    def assign(self) -> Iterator[tuple[LeasedWorker, list[Task]]]:
        """Hand out ready tasks, evenly; a busy worker is refilled in batches."""
        queue = self.queue
        if not queue:
            return
        depth = self.depth(queue[0])
        workers = self.workers
        share = max(1, -(-len(queue) // len(workers))) if workers else 1
        for worker in workers:
            if not queue:
                return
            if worker.leaving or worker.blocked:
                continue
            in_flight = len(worker.in_flight)
            room = depth - in_flight
            if room <= 0 or (in_flight and room < depth // 2 and len(queue) > depth):
                continue
            tasks = self._take(worker, min(room, share))
            if tasks:
                yield worker, tasks
        self.saturated = bool(workers) and bool(self.requests)

    def _take(self, worker: LeasedWorker, count: int) -> list[Task]:
        queue, in_flight = self.queue, worker.in_flight
        tasks: list[Task] = []
        while queue and len(tasks) < count:
            task = queue[0]
            if (tasks or in_flight) and self.depth(task) == 1:
                break  # long, unknown or to be alone: not behind others
            queue.popleft()
            task.worker = worker
            in_flight[task.number] = task
            tasks.append(task)
        return tasks

    def leases_to_request(self) -> int:
        """How many leases to ask for now; 0 for none."""
        requested = sum(self.requests.values())
        if requested >= MAX_REQUESTED:
            return 0
        idle = sum(not w.in_flight and not w.leaving for w in self.workers)
        missing = len(self.queue) - idle - requested
        # Ask again only for twice as much, so that a growing queue costs few requests.
        if missing <= 0 or (self.requests and missing < requested):
            return 0
        return min(missing, MAX_REQUESTED - requested)

    def reclaim_for_idle(self) -> tuple[LeasedWorker, list[int]] | None:
        """Return a busy worker and the tasks it should give back to an idle one."""
        if self.queue or not any(
            not w.in_flight and not w.leaving and not w.blocked for w in self.workers
        ):
            return None
        busiest: LeasedWorker | None = None
        for worker in self.workers:
            waiting = len(worker.in_flight) - 1
            most = len(busiest.in_flight) - 1 if busiest is not None else 0
            if waiting > most and not worker.reclaiming:
                busiest = worker
        if busiest is None:
            return None
        numbers = list(busiest.in_flight)[1:]
        busiest.reclaiming = True
        return busiest, numbers[len(numbers) // 2 :]

    def reclaim_from_stalled(self) -> list[tuple[LeasedWorker, list[int]]]:
        """Return workers whose task ran at the last call already, with those behind it.

        They wait in the queue from then on, for any worker but a stalled one.
        """
        stalled = []
        for worker in self.workers:
            if len(worker.in_flight) < 2:
                continue
            running, *behind = worker.in_flight
            if worker.watched == running and not worker.reclaiming:
                worker.blocked = worker.reclaiming = True
                stalled.append((worker, behind))
            worker.watched = running
        return stalled

    def has_tasks_behind_others(self) -> bool:
        return any(len(worker.in_flight) > 1 for worker in self.workers)

    def put_back(self, tasks: list[Task]) -> None:
        """Queue tasks again, in front and in order: they were first before."""
        for task in reversed(tasks):
            task.worker = None
            self.queue.appendleft(task)
