"""What a node agent is started with.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sparkray.labels import NODE_ID
from sparkray.resources import CPU, GPU, MEMORY, OBJECT_STORE_MEMORY, Vector, from_user

#: The part of a host's memory that may be lent to tasks.
MEMORY_FRACTION = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """One node.  Directories exist already, but for ``segment_dir``."""

    cluster_id: bytes
    node_id: bytes
    host: str  #: address that other nodes use
    session_dir: str
    segment_dir: str
    log_dir: str
    token_file: str
    num_cpus: float | None = None  #: None: as many as this process may run on
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    gpu_ids: Sequence[str] = ()  #: the devices of the host that this node may use
    is_head: bool = False
    local: bool = False  #: one node for one driver: no Flight server until it has peers


def total_resources(
    options: AgentOptions, *, cpus: int, memory_bytes: int, store_bytes: int
) -> Vector:
    """Return all that a node has to lend.

    Args:
        cpus: CPUs that the agent's process may run on.
        memory_bytes: memory of the host, or what its control group allows.
        store_bytes: limit of the object store.

    Raises:
        ValueError: a resource that was given is negative or too fine.
    """
    amounts: dict[str, float] = {
        CPU: cpus if options.num_cpus is None else options.num_cpus,
        GPU: len(options.gpu_ids),
        MEMORY: int(memory_bytes * MEMORY_FRACTION),
        OBJECT_STORE_MEMORY: store_bytes,
        f"node:{options.host}": 1,
    }
    return from_user({**amounts, **options.resources})


def labels_of(options: AgentOptions) -> dict[str, str]:
    """Return the labels of a node: its own, and what it was given."""
    return {**options.labels, NODE_ID: options.node_id.hex()}
