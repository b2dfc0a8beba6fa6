"""What this process runs at the moment: for nesting, and for who asks."""

from __future__ import annotations

import contextvars

from sparkray.resources import Vector


class ActorIdentity:
    """The actor that this process is."""

    __slots__ = ("actor_id", "handle", "incarnation", "name", "resources")

    def __init__(
        self,
        actor_id: bytes,
        name: str,
        incarnation: int,
        resources: Vector,
        handle: bytes,
    ) -> None:
        self.actor_id = actor_id
        self.name = name
        self.incarnation = incarnation
        self.resources = resources
        self.handle = handle  #: data to make a handle from


class RunningTask:
    """A task, or a call of an actor's method, that this process executes now."""

    __slots__ = ("depth", "name", "resources", "task_id")

    def __init__(
        self, task_id: bytes, name: str, depth: int, resources: Vector
    ) -> None:
        self.task_id = task_id
        self.name = name
        self.depth = depth
        self.resources = resources


_of_thread: contextvars.ContextVar[RunningTask | None] = contextvars.ContextVar(
    "sparkray_task", default=None
)


class _Running:
    """What runs here; set by the executor, read by whoever submits from inside it.

    A plain task runs on the main thread, and threads that it starts belong to it.
    Calls of concurrent actors each have their own, by thread or coroutine.
    """

    __slots__ = ("actor", "main")

    def __init__(self) -> None:
        self.main: RunningTask | None = None
        self.actor: ActorIdentity | None = None

    @property
    def task(self) -> RunningTask | None:
        return _of_thread.get() or self.main

    def set_here(self, task: RunningTask | None) -> None:
        """Set what this thread or coroutine runs."""
        _of_thread.set(task)


running = _Running()
