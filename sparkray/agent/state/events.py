"""What can happen to the scheduler of a node, and what it can cause.  Pure."""

from __future__ import annotations

from dataclasses import dataclass

from sparkray.agent.state.nodes import Node
from sparkray.agent.state.workers import PoolKey
from sparkray.protocol.messages import LeaseSpec
from sparkray.protocol.placement import GroupRow
from sparkray.resources import Vector


@dataclass(frozen=True, slots=True)
class Requested:
    request_id: int
    holder: bytes
    spec: LeaseSpec  #: its ``runtime_env`` is the effective one
    count: int
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class Withdrawn:
    request_id: int


@dataclass(frozen=True, slots=True)
class LeaseReturned:
    lease_id: bytes
    reusable: bool


@dataclass(frozen=True, slots=True)
class HolderGone:
    holder: bytes


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker attached and is idle."""


@dataclass(frozen=True, slots=True)
class WorkerGone:
    worker_id: bytes


@dataclass(frozen=True, slots=True)
class WorkerBlocked:
    worker_id: bytes
    blocked: bool


@dataclass(frozen=True, slots=True)
class ViewChanged:
    peers: list[Node]


@dataclass(frozen=True, slots=True)
class NodeLost:
    node_id: bytes


@dataclass(frozen=True, slots=True)
class SpillAnswered:
    """A peer answered; ``granted`` is False when it had nothing."""

    request_id: int
    node_id: bytes
    granted: bool


@dataclass(frozen=True, slots=True)
class PoolBroken:
    """No worker of this pool can be started."""

    key: PoolKey
    reason: str


@dataclass(frozen=True, slots=True)
class BundlesReturned:
    """Bundles are not wanted any more; what runs in them ends."""

    group_id: bytes
    attempt: int
    indexes: list[int]
    reason: str


@dataclass(frozen=True, slots=True)
class GroupsChanged:
    """The head says what became of placement groups."""

    rows: list[GroupRow]


@dataclass(frozen=True, slots=True)
class Claimed:
    """A placement group waits for room here: what comes free is kept for it."""

    group_id: bytes
    attempt: int
    bundles: dict[int, Vector]


@dataclass(frozen=True, slots=True)
class ClaimEnded:
    """It does not wait here any more."""

    group_id: bytes


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = (
    Requested | Withdrawn | LeaseReturned | HolderGone | WorkerReady | WorkerGone
    | WorkerBlocked | ViewChanged | NodeLost | SpillAnswered | PoolBroken
    | BundlesReturned | GroupsChanged | Claimed | ClaimEnded | Tick
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Grant:
    request_id: int
    holder: bytes
    leases: list[tuple[bytes, bytes]]  #: lease id, worker id


@dataclass(frozen=True, slots=True)
class Fail:
    request_id: int
    kind: str  #: class name in `sparkray.exceptions`
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tell:
    """A line for the driver of a job."""

    job_id: bytes
    text: str


@dataclass(frozen=True, slots=True)
class Spill:
    request_id: int
    node_id: bytes
    count: int
    patient: bool  #: the request has nowhere else to go: it may queue there


@dataclass(frozen=True, slots=True)
class StartWorkers:
    key: PoolKey
    count: int


@dataclass(frozen=True, slots=True)
class AskBack:
    worker_id: bytes


@dataclass(frozen=True, slots=True)
class EndWorker:
    worker_id: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class Reserved:
    """What was claimed is reserved now."""

    group_id: bytes
    attempt: int


Effect = (
    Grant | Fail | Tell | Spill | StartWorkers | AskBack | EndWorker | Reserved
)  # fmt: skip
