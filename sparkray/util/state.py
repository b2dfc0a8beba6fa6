"""What exists in the cluster right now: nodes, jobs, objects.

Rows are snapshots, gathered from all processes for one call: good for looking and for
tests, too costly for a loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sparkray
from sparkray.protocol import control
from sparkray.resources import to_user
from sparkray.runtime import core

__all__ = [
    "JobState",
    "NodeState",
    "ObjectState",
    "list_jobs",
    "list_nodes",
    "list_objects",
]


@dataclass(frozen=True)
class ObjectState:
    """An object, as its owner sees it."""

    object_id: str  #: in hexadecimal
    size_bytes: int  #: 0 while pending
    state: str  #: "pending", "inline", "stored", "failed" or "freed"
    owner_pid: int
    owner_worker_id: str
    local_refs: int  #: refs in the owner itself
    borrowers: int  #: other processes that hold refs
    task_pins: int  #: tasks in flight that use it
    nodes: tuple[str, ...]  #: nodes that hold a copy
    task_name: str  #: the task that makes it; "" for `put`


@dataclass(frozen=True)
class NodeState:
    """A node, dead or alive."""

    node_id: str
    alive: bool
    address: str
    host_name: str
    is_head: bool
    resources: dict[str, float]
    available: dict[str, float]
    labels: dict[str, str]
    death_reason: str


@dataclass(frozen=True)
class JobState:
    """A driver and all that it started."""

    job_id: str
    alive: bool
    entrypoint: str
    namespace: str
    driver_node_id: str
    driver_pid: int
    start_unix_s: float
    end_unix_s: float  #: 0 while it runs


def list_objects() -> list[ObjectState]:
    """Return all objects that some process of the cluster owns.

    Processes that do not answer in time are left out as well.
    """
    reply = _ask("ListObjects", control.ListObjects())
    return [
        ObjectState(
            object_id=row.object_id.hex(),
            size_bytes=row.size_bytes,
            state=row.state,
            owner_pid=row.owner_pid,
            owner_worker_id=row.owner_worker_id.hex(),
            local_refs=row.local_refs,
            borrowers=row.borrowers,
            task_pins=row.task_pins,
            nodes=tuple(node.hex() for node in row.nodes),
            task_name=row.task_name,
        )
        for row in reply.rows
    ]


def list_nodes() -> list[NodeState]:
    """Return all nodes, dead ones too."""
    return [
        NodeState(
            node_id=node.node_id.hex(),
            alive=node.alive,
            address=node.host,
            host_name=node.host_name,
            is_head=node.is_head,
            resources=to_user(node.total),
            available=to_user(node.available),
            labels=dict(node.labels),
            death_reason=node.reason,
        )
        for node in _ask("ListNodes", control.ListNodes()).nodes
    ]


def list_jobs() -> list[JobState]:
    """Return all jobs, ended ones too."""
    return [
        JobState(
            job_id=job.job_id.hex(),
            alive=job.alive,
            entrypoint=job.config.entrypoint,
            namespace=job.config.namespace,
            driver_node_id=job.driver_node.hex(),
            driver_pid=job.driver_pid,
            start_unix_s=job.start_unix_s,
            end_unix_s=job.end_unix_s,
        )
        for job in _ask("ListJobs", control.ListJobs()).jobs
    ]


def _ask(method: str, request: Any) -> Any:
    if not sparkray.is_initialized():
        sparkray.init()
    return core.current().head_call(method, request)
