"""Where the calling code runs: ids, resources and names, for users and for nesting."""

from __future__ import annotations

from typing import Any

from sparkray.resources import Vector, to_user
from sparkray.runtime.refs import require_runtime


class RunningTask:
    """The task that this worker process executes now."""

    __slots__ = ("actor_id", "depth", "name", "resources", "task_id")

    def __init__(
        self, task_id: bytes, name: str, depth: int, resources: Vector
    ) -> None:
        self.task_id = task_id
        self.name = name
        self.depth = depth
        self.resources = resources
        self.actor_id = b""


class _Running:
    """Set by the executor around user code; read by whoever submits from inside it."""

    task: RunningTask | None = None


running = _Running()


class RuntimeContext:
    """Facts about the process and the task that asks.  Ids are hexadecimal strings."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime

    def get_job_id(self) -> str:
        return str(self._runtime.job_id.hex())

    def get_node_id(self) -> str:
        return str(self._runtime.node_id.hex())

    def get_worker_id(self) -> str:
        """Return the id of this process."""
        return str(self._runtime.worker_id.hex())

    def get_task_id(self) -> str | None:
        """Return the id of the running task; None in a driver."""
        return running.task.task_id.hex() if running.task else None

    def get_task_name(self) -> str | None:
        return running.task.name if running.task else None

    def get_actor_id(self) -> str | None:
        """Return the id of the actor that runs; None outside of actors."""
        return running.task.actor_id.hex() or None if running.task else None

    def get_actor_name(self) -> str | None:
        return None

    def get_assigned_resources(self) -> dict[str, float]:
        """Return what the running task was given, e.g. ``{"CPU": 1.0}``.

        Raises:
            RuntimeError: nothing is assigned outside of tasks.
        """
        if running.task is None:
            raise RuntimeError("resources are assigned to tasks; this is not in one")
        return to_user(running.task.resources)

    @property
    def namespace(self) -> str:
        return str(self._runtime.namespace)

    @property
    def current_actor(self) -> Any:
        """The handle of the running actor.

        Raises:
            RuntimeError: not inside an actor.
        """
        raise RuntimeError("current_actor is known inside actors only")

    def get(self) -> dict[str, Any]:
        """Return the ids as a dictionary."""
        return {
            "job_id": self.get_job_id(),
            "node_id": self.get_node_id(),
            "worker_id": self.get_worker_id(),
            "task_id": self.get_task_id(),
        }


def get_runtime_context() -> RuntimeContext:
    """Return facts about the running task, its process, node and job.

    Raises:
        SparkrayError: the process belongs to no cluster.
    """
    return RuntimeContext(require_runtime())
