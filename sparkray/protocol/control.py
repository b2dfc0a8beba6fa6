"""Control messages over gRPC: agent <-> head, agent <-> agent, command line -> head.

Bodies are MessagePack maps (`msgspec`), so that a field can be added without a new
protocol.  The docstrings follow the form of `protocol.messages`.
"""

from __future__ import annotations

import msgspec

from sparkray.protocol import actors, draining, modules, placement, stacks
from sparkray.protocol.actors import ActorRow
from sparkray.protocol.messages import (
    Address,
    JobConfig,
    Lease,
    LeaseSpec,
    ObjectRow,
)
from sparkray.protocol.placement import GroupRow


class NodeInfo(msgspec.Struct, frozen=True):
    """A node as the head knows it.  Part of other messages."""

    node_id: bytes
    host: str  #: address that other nodes use
    host_name: str
    agent: str  #: ``host:port`` of the agent's gRPC server
    flight: str  #: ``host:port`` of its Flight server, "" if none
    agent_socket: str  #: the agent's Unix socket, of use on its own host only
    total: dict[str, int]
    available: dict[str, int]
    labels: dict[str, str]
    alive: bool
    is_head: bool
    reason: str  #: why it is dead, "" while it lives
    pid: int
    version: str
    lent: dict[str, int] = {}  #: what leases have that may be asked back


class RegisterNode(msgspec.Struct):
    """Agent -> head: take this node into the cluster.

    Repeatable: the same node id updates its row.
    Answer: `NodeRegistered`.
    Errors: ProtocolError (versions differ; node was declared dead; it belongs to the
    cluster of an earlier head).
    """

    node: NodeInfo
    python: str
    sparkray: str
    cluster_id: bytes = b""  #: the one that it belongs to, b"" for any


class NodeRegistered(msgspec.Struct):
    """Head -> agent: you are in.

    Repeatable.
    Answer: none.
    Errors: none.
    """

    cluster_id: bytes
    warnings: list[str]
    report_interval_s: float  #: report at least so often


class NodeReport(msgspec.Struct):
    """Agent -> head, on its stream: heartbeat and what is free.

    Repeatable: the newest holds.
    Answer: none.
    Errors: none.
    """

    node_id: bytes
    available: dict[str, int]
    demand: list[tuple[dict[str, int], int]]  #: waiting lease requests: shape, count
    workers: int
    lent: dict[str, int] = {}  #: what leases have that may be asked back
    needed_by: str = ""  #: who needs this node; "" if nobody does


class LogBatch(msgspec.Struct):
    """Agent -> head -> the agent of the job's driver: lines that workers printed.

    Not repeatable.
    Answer: none.
    Errors: none.
    """

    job_id: bytes
    name: str
    pid: int
    host: str
    lines: list[str]
    is_stderr: bool


class ClusterView(msgspec.Struct):
    """Head -> agent, on its stream: all living nodes; newest first to last wins.

    Repeatable.
    Answer: none.
    Errors: none.
    """

    nodes: list[NodeInfo]


class NodeGone(msgspec.Struct):
    """Head -> agent, on its stream: a node is held dead (perhaps the reader's own).

    Repeatable.
    Answer: none.
    Errors: none.
    """

    node_id: bytes
    reason: str


class JobEnded(msgspec.Struct):
    """Head -> agent, on its stream; agent -> head as a call: clean up after this job.

    Repeatable.
    Answer: `Ok` to the call.
    Errors: none.
    """

    job_id: bytes


class JobInfo(msgspec.Struct, frozen=True):
    """A job as the head knows it.  Part of other messages."""

    job_id: bytes
    config: JobConfig
    driver_node: bytes
    driver_pid: int
    alive: bool
    start_unix_s: float
    end_unix_s: float


class AddJob(msgspec.Struct):
    """Agent -> head: a driver attached.

    Repeatable: the same job id updates its row.
    Answer: `Ok`.
    Errors: none.
    """

    job: JobInfo


class GetJob(msgspec.Struct):
    """Agent -> head: what is this job's configuration?

    Repeatable.
    Answer: `JobInfo`.
    Errors: KeyError (no such job).
    """

    job_id: bytes


class ListNodes(msgspec.Struct):
    """Anyone -> head: all nodes, dead ones too.

    Repeatable.
    Answer: `NodeList`.
    Errors: none.
    """


class NodeList(msgspec.Struct):
    """Head -> anyone.

    Repeatable.
    Answer: none.
    Errors: none.
    """

    nodes: list[NodeInfo]


class ListJobs(msgspec.Struct):
    """Anyone -> head: all jobs, ended ones too.

    Repeatable.
    Answer: `JobList`.
    Errors: none.
    """


class JobList(msgspec.Struct):
    """Head -> anyone.

    Repeatable.
    Answer: none.
    Errors: none.
    """

    jobs: list[JobInfo]


class ClusterStatus(msgspec.Struct):
    """Anyone -> head: one page about the cluster.

    Repeatable.
    Answer: `StatusReport`.
    Errors: none.
    """


class StatusReport(msgspec.Struct):
    """Head -> anyone.

    Repeatable.
    Answer: none.
    Errors: none.
    """

    cluster_id: bytes
    version: str
    head: str
    uptime_s: float
    nodes: list[NodeInfo]
    jobs: list[JobInfo]
    demand: list[tuple[dict[str, int], int]]
    idle_s: dict[bytes, float] = {}  #: nodes that nobody needs: for how long
    apart: int = 0  #: so many nodes a placement group waits for, a bundle on each


class KVPut(msgspec.Struct):
    """Anyone -> head: store a value under (namespace, key).

    Repeatable.
    Answer: `KVReply`; ``value`` is what was there before.
    Errors: none.
    """

    namespace: str
    key: bytes
    value: bytes
    overwrite: bool


class KVGet(msgspec.Struct):
    """Anyone -> head: read a value.

    Repeatable.
    Answer: `KVReply`; ``value`` is None if there is none.
    Errors: none.
    """

    namespace: str
    key: bytes


class KVDelete(msgspec.Struct):
    """Anyone -> head: forget a value.

    Repeatable.
    Answer: `KVReply`; ``value`` is what was there before.
    Errors: none.
    """

    namespace: str
    key: bytes


class KVKeys(msgspec.Struct):
    """Anyone -> head: the keys with a prefix.

    Repeatable.
    Answer: `KVKeyList`.
    Errors: none.
    """

    namespace: str
    prefix: bytes


class KVReply(msgspec.Struct):
    """Head -> anyone.

    Repeatable.
    Answer: none.
    Errors: none.
    """

    value: bytes | None


class KVKeyList(msgspec.Struct):
    """Head -> anyone.

    Repeatable.
    Answer: none.
    Errors: none.
    """

    keys: list[bytes]


class ListObjects(msgspec.Struct):
    """Anyone -> head -> all agents -> all runtimes: the objects that exist.

    Repeatable.
    Answer: `ObjectList`.
    Errors: none; nodes that do not answer are left out and named.
    """


class ObjectList(msgspec.Struct):
    """Agent -> head -> anyone.

    Repeatable.
    Answer: none.
    Errors: none.
    """

    rows: list[ObjectRow]
    store_used_bytes: dict[str, int]  #: by node id in hexadecimal
    missing: list[str]


class Shutdown(msgspec.Struct):
    """Command line -> head: end the whole cluster (``node_id`` empty) or one node.

    Repeatable.
    Answer: `Ok`, before anything ends.
    Errors: none.
    """

    node_id: bytes
    graceful: bool


class Ok(msgspec.Struct):
    """Any -> any: done, nothing to tell.

    Repeatable.
    Answer: none.
    Errors: none.
    """


class LeaseFromPeer(msgspec.Struct):
    """Agent -> another agent: spillback; lend one of my runtimes some of your workers.

    Repeatable: a known ``request_id`` gets its first answer again.
    Answer: `PeerLeases`; empty when none can be granted within ``wait_s``.
    Errors: UnschedulableError, RuntimeEnvSetupError.
    """

    request_id: bytes
    spec: LeaseSpec
    count: int
    holder: Address
    wait_s: float


class PeerLeases(msgspec.Struct):
    """Agent -> another agent.

    Repeatable.
    Answer: none.
    Errors: none.
    """

    leases: list[Lease]


class ReturnPeerLease(msgspec.Struct):
    """Agent -> another agent: the lease is over.

    Repeatable: an unknown lease is ignored.
    Answer: `Ok`.
    Errors: none.
    """

    lease_id: bytes
    reusable: bool


class KillPeerWorker(msgspec.Struct):
    """Agent or head -> agent: end this worker now.

    ``gently``: it may first run, for a moment, what it was told to run at its end; the
    answer comes when it has ended.

    Repeatable.
    Answer: `Ok`.
    Errors: none.
    """

    worker_id: bytes
    reason: str
    gently: bool = False


class AskPeerDeath(msgspec.Struct):
    """Agent -> another agent: how did this worker end?

    Repeatable.
    Answer: `PeerDeath`.
    Errors: none.
    """

    worker_id: bytes


class PeerDeath(msgspec.Struct):
    """Agent -> another agent.

    Repeatable.
    Answer: none.
    Errors: none.
    """

    kind: str
    reason: str
    log_tail: str


class FreePeerObjects(msgspec.Struct):
    """Agent -> another agent: free your copies of these.

    Repeatable.  ``owners`` are runtimes that died: all that they owned is freed.
    ``inbox`` is closed, see `CloseInbox`: what it got is freed, all but ``keep``.
    Answer: `Ok`.
    Errors: none.
    """

    object_ids: list[bytes]
    owners: list[bytes] = []
    inbox: bytes = b""
    keep: list[bytes] = []


class UpItem(msgspec.Struct):
    """Agent -> head: one item of the stream; exactly one field is set.

    Not repeatable.
    Answer: none.
    Errors: none.
    """

    report: NodeReport | None = None
    logs: LogBatch | None = None


class DownItem(msgspec.Struct):
    """Head -> agent: one item of the stream; exactly one field is set.

    Not repeatable.
    Answer: none.
    Errors: none.
    """

    view: ClusterView | None = None
    gone: NodeGone | None = None
    job_ended: JobEnded | None = None
    logs: LogBatch | None = None
    shutdown: Shutdown | None = None
    actors: list[ActorRow] | None = None
    groups: list[GroupRow] | None = None


#: Head calls that a runtime or the command line may make: name -> (request, answer).
HEAD_CALLS: dict[str, tuple[type, type]] = {
    "CreateActor": (actors.CreateActor, ActorRow),
    "GetActor": (actors.GetActor, actors.NamedActor),
    "ListActors": (actors.ListActors, actors.ActorList),
    "KillActor": (actors.KillActor, Ok),
    "CreatePlacementGroup": (placement.CreatePlacementGroup, GroupRow),
    "GetPlacementGroup": (placement.GetPlacementGroup, GroupRow),
    "WaitPlacementGroup": (placement.WaitPlacementGroup, GroupRow),
    "ListPlacementGroups": (placement.ListPlacementGroups, placement.GroupList),
    "RemovePlacementGroup": (placement.RemovePlacementGroup, Ok),
    "ListNodes": (ListNodes, NodeList),
    "ListJobs": (ListJobs, JobList),
    "Status": (ClusterStatus, StatusReport),
    "KVPut": (KVPut, KVReply),
    "KVGet": (KVGet, KVReply),
    "KVDelete": (KVDelete, KVReply),
    "KVKeys": (KVKeys, KVKeyList),
    "ListObjects": (ListObjects, ObjectList),
    "ListStacks": (stacks.ListStacks, stacks.StackList),
    "Shutdown": (Shutdown, Ok),
    "DrainNode": (draining.DrainNode, draining.Drained),
}

#: Head calls of agents.
HEAD_AGENT_CALLS: dict[str, tuple[type, type]] = {
    "ActorNews": (actors.ActorNews, Ok),
    "OwnerGone": (actors.OwnerGone, Ok),
    "RegisterNode": (RegisterNode, NodeRegistered),
    "AddJob": (AddJob, Ok),
    "GetJob": (GetJob, JobInfo),
    "EndJob": (JobEnded, Ok),
}

#: Calls between agents (the head makes those that list, too).
AGENT_CALLS: dict[str, tuple[type, type]] = {
    "BecomeActor": (actors.BecomeActor, Ok),
    "ReserveBundles": (placement.ReserveBundles, placement.BundlesReserved),
    "ReturnBundles": (placement.ReturnBundles, Ok),
    "Lease": (LeaseFromPeer, PeerLeases),
    "ReturnLease": (ReturnPeerLease, Ok),
    "KillWorker": (KillPeerWorker, Ok),
    "AskDeath": (AskPeerDeath, PeerDeath),
    "FreeObjects": (FreePeerObjects, Ok),
    "ListObjects": (ListObjects, ObjectList),
    "ListStacks": (stacks.ListStacks, stacks.StackList),
    "Drain": (draining.Drain, draining.Drained),
    "FindModule": (modules.FindPeerModule, modules.PeerModule),
}
