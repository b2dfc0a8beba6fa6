"""Where the calling code runs: ids, resources and names."""

from __future__ import annotations

import json
from typing import Any

from sparkray.api.actor import handle_from
from sparkray.api.cluster_info import nodes
from sparkray.api.placement_group import current_group_id
from sparkray.resources import to_user
from sparkray.runtime import core
from sparkray.runtime.context import captures, running


class RuntimeContext:
    """Facts about the process and the task that asks.  Ids are hexadecimal strings."""

    def __init__(self, runtime: core.Runtime) -> None:
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

    def get_task_function_name(self) -> str | None:
        """Return the same as `get_task_name`."""
        return self.get_task_name()

    @property
    def runtime_env(self) -> dict[str, Any]:
        """The runtime environment of this process, packages by their addresses."""
        text = self.get_runtime_env_string()
        return json.loads(text) if text else {}

    def get_runtime_env_string(self) -> str:
        """Return the runtime environment of this process as JSON, "" for none."""
        return str(self._runtime.shared.runtime_env)

    @property
    def gcs_address(self) -> str:
        """Where the head is, ``host:port``."""
        return str(self._runtime.attached.head)

    def get_actor_id(self) -> str | None:
        """Return the id of the actor that this process is; None outside of actors."""
        return running.actor.actor_id.hex() if running.actor else None

    def get_actor_name(self) -> str | None:
        """Return the actor's name, "" if it has none; None outside of actors."""
        return running.actor.name if running.actor else None

    def get_placement_group_id(self) -> str | None:
        """Return the id of the placement group that this runs in; None outside."""
        return current_group_id().hex() or None

    @property
    def was_current_actor_reconstructed(self) -> bool:
        """Whether this actor was started before and has lost its state."""
        return running.actor is not None and running.actor.incarnation > 1

    @property
    def current_placement_group_id(self) -> str | None:
        """The same as `get_placement_group_id`."""
        return self.get_placement_group_id()

    @property
    def should_capture_child_tasks_in_placement_group(self) -> bool:
        """Whether what is submitted from here runs in this placement group, too."""
        if running.actor is not None:
            return captures(running.actor.strategy) is not None
        return running.task is not None and running.task.captures is not None

    def get_node_labels(self) -> dict[str, str]:
        """Return the labels of this node, as the head knows them."""
        here = self.get_node_id()
        return next(dict(n["Labels"]) for n in nodes() if n["NodeID"] == here)

    def get_assigned_resources(self) -> dict[str, float]:
        """Return what the running task or actor was given, e.g. ``{"CPU": 1.0}``.

        Raises:
            RuntimeError: nothing is assigned outside of tasks.
        """
        if running.actor is not None:
            return to_user(running.actor.resources)
        if running.task is None:
            raise RuntimeError("resources are assigned to tasks; this is not in one")
        return to_user(running.task.resources)

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        """Return the devices of the running task or actor, e.g. ``{"GPU": ["0"]}``.

        They are what ``CUDA_VISIBLE_DEVICES`` holds there.  None outside of tasks.
        """
        return {"GPU": list(running.gpu_ids or [])}

    @property
    def namespace(self) -> str:
        return str(self._runtime.namespace)

    @property
    def current_actor(self) -> Any:
        """The handle of the running actor.

        Raises:
            RuntimeError: not inside an actor.
        """
        if running.actor is None:
            raise RuntimeError("current_actor is known inside actors only")
        return handle_from(running.actor.actor_id, running.actor.handle)

    def get(self) -> dict[str, Any]:
        """Return the ids as a dictionary."""
        return {
            "job_id": self.get_job_id(),
            "node_id": self.get_node_id(),
            "worker_id": self.get_worker_id(),
            "task_id": self.get_task_id(),
            "actor_id": self.get_actor_id(),
        }


def get_runtime_context() -> RuntimeContext:
    """Return facts about the running task, its process, node and job.

    Raises:
        SparkrayError: the process belongs to no cluster.
    """
    return RuntimeContext(core.current())


def get_gpu_ids() -> list[int] | list[str]:
    """Return the GPUs of the running task or actor, none outside of tasks.

    Numbers, unless the node names its devices otherwise (in ``CUDA_VISIBLE_DEVICES``,
    when it was started): then text.

    Raises:
        SparkrayError: the process belongs to no cluster.
    """
    found = get_runtime_context().get_accelerator_ids()["GPU"]
    return [int(id) for id in found] if all(map(str.isdigit, found)) else found
