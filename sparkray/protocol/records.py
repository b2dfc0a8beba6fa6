"""Records that messages are made of: addresses, jobs, leases, objects.  Pure."""

from __future__ import annotations

import msgspec


class WireError(msgspec.Struct, array_like=True, frozen=True):
    """An error of `sparkray.exceptions` (or a built-in) by class name and ``args``.

    Part of other messages; see `transport.errors`.
    """

    kind: str
    args: list[str | int | float | None]


class Address(msgspec.Struct, array_like=True, frozen=True):
    """Where a runtime listens: ``path`` on its own node, host and port elsewhere."""

    worker_id: bytes
    node_id: bytes
    path: str
    host: str
    port: int


class JobConfig(msgspec.Struct, array_like=True, frozen=True):
    """What a driver says of its job; workers of the job are set up from it."""

    namespace: str
    sys_path: list[str]  #: directories that imports in tasks shall find, in this order
    runtime_env: str  #: canonical JSON of the job-wide runtime environment, "" for none
    log_to_driver: bool
    entrypoint: str  #: what the driver runs, for people
    preload: list[str]  #: modules worth importing before workers are forked


class Strategy(msgspec.Struct, array_like=True, frozen=True):
    """Where a task may run.

    ``kind``: DEFAULT, SPREAD, NODE with ``node_id`` and ``soft``, GROUP, or ACTOR for
    leases that last as long as an actor.  Whatever has a ``group_id`` runs inside that
    placement group.
    """

    kind: str = "DEFAULT"
    node_id: bytes = b""
    soft: bool = False
    group_id: bytes = b""
    bundle: int = -1  #: index in the group; -1 for any
    capture: bool = False  #: what a task inside submits runs in the group as well
    labels: tuple[tuple[str, str], ...] = ()  #: what nodes must match: see `labels`


class LeaseSpec(msgspec.Struct, array_like=True, frozen=True):
    """The shape of a lease; requests of equal shape are served from one queue."""

    job_id: bytes
    runtime_env: str  #: canonical JSON, "" for the job's own
    resources: dict[str, int]  #: in 1/10,000, see `sparkray.resources`
    strategy: Strategy
    depth: int  #: nesting depth of the tasks; deeper requests are served first
    retriable: bool = True  #: what runs may run again: it goes first if memory is short


class Lease(msgspec.Struct, array_like=True, frozen=True):
    """A worker lent to a runtime.  Part of `LeasesGranted`."""

    lease_id: bytes
    worker: Address
    #: The devices that come with it; None where the node has none at all.
    gpu_ids: list[str] | None


class ObjectSource(msgspec.Struct, array_like=True, frozen=True):
    """Where a stored object can be read: a node and its Flight server."""

    node_id: bytes
    flight: str  #: ``host:port``, "" where the node serves none


class ObjectRow(msgspec.Struct, array_like=True, frozen=True):
    """One object in an owner's table.  Part of `ObjectsDumped`."""

    object_id: bytes
    size_bytes: int
    state: str  #: "pending", "inline", "stored", "failed" or "freed"
    local_refs: int
    borrowers: int
    task_pins: int
    nodes: list[bytes]
    owner_pid: int
    owner_worker_id: bytes
    task_name: str
