"""Typed binary ids.  They nest: an object id begins with its task id, and a task id
with the worker id of its owner, so whoever holds a ref knows whom to ask.

    worker id   16 random bytes: one process that runs a `Runtime` (driver, UDF, worker)
    task id     worker id of the owner + 8 bytes counter, big-endian
    object id   task id + 4 bytes index, big-endian (0: first return or `put` value)

At run time an id is plain ``bytes``: the hot path hashes and compares them in C.
"""

from __future__ import annotations

import os
from typing import NewType

ClusterID = NewType("ClusterID", bytes)
JobID = NewType("JobID", bytes)
NodeID = NewType("NodeID", bytes)
WorkerID = NewType("WorkerID", bytes)
TaskID = NewType("TaskID", bytes)
ObjectID = NewType("ObjectID", bytes)
LeaseID = NewType("LeaseID", bytes)

CLUSTER_ID_BYTES = 8
JOB_ID_BYTES = 4
NODE_ID_BYTES = 28
WORKER_ID_BYTES = 16
TASK_ID_BYTES = WORKER_ID_BYTES + 8
OBJECT_ID_BYTES = TASK_ID_BYTES + 4
LEASE_ID_BYTES = 16
GROUP_ID_BYTES = 16


def new_cluster_id() -> ClusterID:
    return ClusterID(os.urandom(CLUSTER_ID_BYTES))


def new_job_id() -> JobID:
    return JobID(os.urandom(JOB_ID_BYTES))


def new_node_id() -> NodeID:
    return NodeID(os.urandom(NODE_ID_BYTES))


def new_worker_id() -> WorkerID:
    return WorkerID(os.urandom(WORKER_ID_BYTES))


def new_lease_id() -> LeaseID:
    return LeaseID(os.urandom(LEASE_ID_BYTES))


def new_group_id() -> bytes:
    """Return an id for a placement group."""
    return os.urandom(GROUP_ID_BYTES)


def task_id(owner: WorkerID, number: int) -> TaskID:
    return TaskID(owner + number.to_bytes(8, "big"))


def object_id(owner: WorkerID, number: int, index: int = 0) -> ObjectID:
    return ObjectID(owner + number.to_bytes(8, "big") + index.to_bytes(4, "big"))


def owner_of(id_: TaskID | ObjectID) -> WorkerID:
    return WorkerID(id_[:WORKER_ID_BYTES])


def task_of(object_id: ObjectID) -> TaskID:
    return TaskID(object_id[:TASK_ID_BYTES])


def number_of(id_: TaskID | ObjectID) -> int:
    """Return the owner's own number of a task or of the task that makes an object."""
    return int.from_bytes(id_[WORKER_ID_BYTES:TASK_ID_BYTES], "big")


def index_of(object_id: ObjectID) -> int:
    return int.from_bytes(object_id[TASK_ID_BYTES:], "big")
