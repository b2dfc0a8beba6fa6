"""What this process runs at the moment: for nesting, and for who asks."""

from __future__ import annotations

import contextvars

from sparkray.protocol.records import Strategy
from sparkray.resources import Vector

_ANYWHERE = Strategy()


class ActorIdentity:
    """The actor that this process is."""

    __slots__ = (
        "actor_id",
        "handle",
        "incarnation",
        "name",
        "resources",
        "strategy",
    )

    def __init__(
        self,
        actor_id: bytes,
        name: str,
        incarnation: int,
        resources: Vector,
        handle: bytes,
        strategy: Strategy = _ANYWHERE,
    ) -> None:
        self.actor_id = actor_id
        self.name = name
        self.incarnation = incarnation
        self.resources = resources
        self.handle = handle  #: data to make a handle from
        self.strategy = strategy


class RunningTask:
    """A task, or a call of an actor's method, that this process executes now."""

    __slots__ = ("captures", "depth", "group_id", "name", "resources", "task_id")

    def __init__(
        self,
        task_id: bytes,
        name: str,
        depth: int,
        resources: Vector,
        group_id: bytes = b"",
        captures: Strategy | None = None,
    ) -> None:
        self.task_id = task_id
        self.name = name
        self.depth = depth
        self.resources = resources
        self.group_id = group_id  #: the placement group that it runs in, or b""
        self.captures = captures  #: what it submits runs so, unless that says otherwise


def captures(strategy: Strategy) -> Strategy | None:
    """Return the strategy that tasks inside of one with ``strategy`` inherit."""
    if not (strategy.group_id and strategy.capture):
        return None
    return Strategy("GROUP", group_id=strategy.group_id, capture=True)


_of_thread: contextvars.ContextVar[RunningTask | None] = contextvars.ContextVar(
    "sparkray_task", default=None
)


class _Running:
    """What runs here; set by the executor, read by whoever submits from inside it.

    A plain task runs on the main thread, and threads that it starts belong to it.
    Calls of concurrent actors each have their own, by thread or coroutine.
    """

    __slots__ = ("actor", "gpu_ids", "main")

    def __init__(self) -> None:
        self.main: RunningTask | None = None
        self.actor: ActorIdentity | None = None
        #: The devices of the lease of this worker; None where the node has none.
        self.gpu_ids: list[str] | None = None

    @property
    def task(self) -> RunningTask | None:
        return _of_thread.get() or self.main

    def set_here(self, task: RunningTask | None) -> None:
        """Set what this thread or coroutine runs."""
        _of_thread.set(task)


running = _Running()
