"""One caller's view of one actor: its calls in order, and where the actor is.  Pure.

queue    calls not sent yet, in the order of `.remote()`; one whose arguments do not
         exist yet holds up those behind it
worker   the connection to the actor's process, while it is ALIVE
unsure   calls that were sent to a process that is gone: the head's next word decides
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any, Final

from sparkray.protocol.actors import ActorRow, CreateActor
from sparkray.runtime.state.objects import Entry
from sparkray.runtime.state.scheduling import LeasedWorker, Task, TemplateState

#: So many calls are under way to one actor; more wait here.
WINDOW: Final = 2_000


class ActorQueue:
    """The scheduling key of one actor: there is one worker, and it is not leased.

    Args:
        in_order: calls run in the order of submission (per caller).
    """

    ordered: bool

    def __init__(self, client: ActorClient, *, in_order: bool) -> None:
        self.client = client
        self.ordered = in_order
        self.queue: collections.deque[Task] = collections.deque()
        self.workers: list[LeasedWorker] = []
        self.requests: dict[int, int] = {}
        self.saturated = False

    def assign(self) -> Iterator[tuple[LeasedWorker, list[Task]]]:
        """Hand out calls in order, as long as their arguments exist."""
        if not self.workers:
            return
        worker, queue = self.workers[0], self.queue
        tasks: list[Task] = []
        room = WINDOW - len(worker.in_flight)
        while queue and room > 0:
            task = queue[0]
            if task.entry.task is not task:  # failed or cancelled meanwhile
                queue.popleft()
                continue
            if task.waiting:
                break
            queue.popleft()
            task.worker = worker
            worker.in_flight[task.number] = task
            tasks.append(task)
            room -= 1
        if tasks:
            yield worker, tasks

    def leases_to_request(self) -> int:
        return 0

    def put_back(self, tasks: list[Task]) -> None:
        for task in reversed(tasks):
            task.worker = None
            self.queue.appendleft(task)

    def pending(self) -> int:
        return len(self.queue) + sum(len(worker.in_flight) for worker in self.workers)


class CreationQueue:
    """The scheduling key of actor creations: sent once their arguments exist."""

    ordered = False

    def __init__(self, send: Callable[[Task], None]) -> None:
        self.queue: collections.deque[Task] = collections.deque()
        self.workers: list[LeasedWorker] = []
        self.requests: dict[int, int] = {}
        self.saturated = False
        self._send = send

    def assign(self) -> Iterator[tuple[LeasedWorker, list[Task]]]:
        while self.queue:
            self._send(self.queue.popleft())
        return iter(())

    def leases_to_request(self) -> int:
        return 0

    def put_back(self, tasks: list[Task]) -> None:
        raise AssertionError("creations are never pushed to a worker")


class ActorClient:
    """What a process knows of an actor that it has a handle of."""

    __slots__ = (
        "actor_id",
        "class_name",
        "end_reason",
        "kept",
        "known",
        "max_pending",
        "owned",
        "queue",
        "row",
        "states",
        "task",
        "unsent",
        "unsure",
        "watching",
    )

    def __init__(
        self,
        actor_id: bytes,
        class_name: str,
        *,
        in_order: bool,
        max_pending: int,
    ) -> None:
        self.actor_id = actor_id
        self.class_name = class_name
        self.max_pending = max_pending  #: -1 without limit
        self.queue = ActorQueue(self, in_order=in_order)
        self.row: ActorRow | None = None
        self.states: dict[Any, TemplateState] = {}  #: by method and options
        self.task: Task | None = None  #: creator only: until the actor is alive
        self.kept: list[Entry] = []  #: creator only: arguments, for restarts
        self.unsure: list[Task] = []
        self.watching = False
        self.unsent: CreateActor | None = None  #: creator only: waits for arguments
        self.known = False  #: creator only: the head has taken it in
        self.end_reason = ""  #: creator only: why it is to end
        self.owned = False  #: we made it, and it ends with its last handle

    def describe(self) -> str:
        return f"{self.class_name} ({self.actor_id.hex()})"
