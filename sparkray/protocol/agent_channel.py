"""Messages between a runtime and the agent of its host; see `protocol.messages`."""

from __future__ import annotations

import msgspec

from sparkray.protocol.modules import FindModule, ModuleFound
from sparkray.protocol.records import (
    Address,
    JobConfig,
    Lease,
    LeaseSpec,
    ObjectRow,
    ObjectSource,
    WireError,
)
from sparkray.protocol.stacks import DumpStacks, StacksDumped


class Attach(msgspec.Struct, array_like=True, tag=1):
    """Runtime -> its agent, first message after the handshake: here I am.

    Not repeatable.  ``kind`` is "driver", "udf" or "worker".  A driver leaves
    ``job_id`` empty and gets a new job; a UDF process may name the job it belongs to; a
    worker sends what its zygote was told.
    Answer: `Attached`.
    Errors: `CallFailed` with ProtocolError (versions differ); the channel is closed.
    """

    kind: str
    worker_id: bytes
    pid: int
    job_id: bytes
    path: str
    host: str  #: "" lets the agent fill in its own
    port: int
    config: JobConfig | None
    versions: dict[str, str]  #: "python", "sparkray"


class Attached(msgspec.Struct, array_like=True, tag=2):
    """Agent -> runtime: you belong to this node and job.

    Not repeatable.  The ``config`` is the job's, as the driver gave it.
    Answer: none.
    Errors: none.
    """

    cluster_id: bytes
    node_id: bytes
    job_id: bytes
    address: Address
    head: str  #: ``host:port`` of the head
    flight: str  #: ``host:port`` of this node's Flight server, "" if none
    session_dir: str
    config: JobConfig
    settings: dict[str, float]  #: the shared numeric ones of `config.Settings`


class CallFailed(msgspec.Struct, array_like=True, tag=3):
    """Either end of an agent channel -> the other: the call could not be done.

    Not repeatable.
    Answer: none.
    Errors: none.
    """

    call: int
    error: WireError


class Done(msgspec.Struct, array_like=True, tag=4):
    """Either end of an agent channel -> the other: a call without a result is done.

    Not repeatable.
    Answer: none.
    Errors: none.
    """

    call: int


class RequestLeases(msgspec.Struct, array_like=True, tag=5):
    """Runtime -> its agent: lend me up to ``count`` workers of this shape.

    Not repeatable.  Held until one can be granted; withdrawn by `WithdrawRequest` or by
    the end of the channel.  More leases need another request.
    Answer: `LeasesGranted` with one to ``count`` leases.
    Errors: `CallFailed` with UnschedulableError, RuntimeEnvSetupError.
    """

    call: int
    spec: LeaseSpec
    count: int


class LeasesGranted(msgspec.Struct, array_like=True, tag=6):
    """Agent -> runtime: these workers are yours until you return them or they die.

    Not repeatable.  Empty if the request was withdrawn.
    Answer: none.
    Errors: none.
    """

    call: int
    leases: list[Lease]


class WithdrawRequest(msgspec.Struct, array_like=True, tag=7):
    """Runtime -> its agent: the lease request ``call`` is no longer wanted.

    Repeatable: an unknown call is ignored.
    Answer: `LeasesGranted` to the request, empty unless grants were on their way.
    Errors: none.
    """

    call: int


class ReturnLease(msgspec.Struct, array_like=True, tag=8):
    """Runtime -> its agent: the worker is yours again.

    Repeatable: an unknown lease is ignored.  ``reusable`` is false when the worker is
    broken, retiring or to be ended.
    Answer: none.
    Errors: none.
    """

    lease_id: bytes
    reusable: bool


class Blocked(msgspec.Struct, array_like=True, tag=9):
    """Worker -> its agent: all that I run waits in `get` or `wait`; lend my CPU on.

    Not repeatable: alternates with `Unblocked`.
    Answer: none.
    Errors: none.
    """


class Unblocked(msgspec.Struct, array_like=True, tag=10):
    """Worker -> its agent: I run again and take my CPU back.

    Not repeatable: alternates with `Blocked`.
    Answer: none.
    Errors: none.
    """


class WorkerSpent(msgspec.Struct, array_like=True, tag=39):
    """Worker -> its agent: I take no further task (``max_calls`` reached).

    Repeatable.  Sent before the last answer, so that nobody leases the worker again.
    Answer: `Exit`, once the lease has ended.
    Errors: none.
    """


class KillWorker(msgspec.Struct, array_like=True, tag=11):
    """Runtime -> its agent: end this worker now (SIGKILL), wherever it is.

    Repeatable.  Only for workers that the runtime leases.
    Answer: `Done`.
    Errors: none; a worker that is gone is done.
    """

    call: int
    worker_id: bytes
    node_id: bytes
    reason: str


class AskDeath(msgspec.Struct, array_like=True, tag=12):
    """Runtime -> its agent: my channel to this worker broke; what became of it?

    Repeatable.
    Answer: `Death`, as soon as the process is known to have ended, within 5 s.
    Errors: none.
    """

    call: int
    worker_id: bytes
    node_id: bytes


class Death(msgspec.Struct, array_like=True, tag=13):
    """Agent -> runtime: how a worker ended.

    Repeatable.
    Answer: none.
    Errors: none.
    """

    call: int
    kind: str  #: "exit", "signal", "oom", "node" or "unknown"
    reason: str  #: for people: signal or exit code, process id, host
    log_tail: str


class CreateObject(msgspec.Struct, array_like=True, tag=14):
    """Runtime -> its agent: give me room for an object that I will write now.

    Repeatable: the same object gets the same room.  Waits while the store is full.
    Answer: `ObjectCreated`.
    Errors: `CallFailed` with ObjectStoreFullError.
    """

    call: int
    object_id: bytes
    size_bytes: int


class ObjectCreated(msgspec.Struct, array_like=True, tag=15):
    """Agent -> runtime: write into this segment, then send `SealObject`.

    Repeatable.
    Answer: none.
    Errors: none.
    """

    call: int
    path: str
    capacity_bytes: int


class SealObject(msgspec.Struct, array_like=True, tag=16):
    """Runtime -> its agent: the object is written and may be read.

    Repeatable.  ``owner`` is the worker id of the object's owner.
    Answer: none.
    Errors: none.
    """

    object_id: bytes
    owner: bytes


class AbortObject(msgspec.Struct, array_like=True, tag=17):
    """Runtime -> its agent: writing failed; take the room back.

    Repeatable.
    Answer: none.
    Errors: none.
    """

    object_id: bytes


class PinObject(msgspec.Struct, array_like=True, tag=18):
    """Runtime -> its agent: I want to map this object; bring it here if need be.

    Not repeatable: each answered pin wants one unpin.
    Answer: `ObjectPinned`.
    Errors: `CallFailed` with ObjectLostError, ObjectStoreFullError.
    """

    call: int
    object_id: bytes
    sources: list[ObjectSource]


class ObjectPinned(msgspec.Struct, array_like=True, tag=19):
    """Agent -> runtime: the object lies here, and stays until `UnpinObjects`.

    Not repeatable.
    Answer: none.
    Errors: none.
    """

    call: int
    path: str
    size_bytes: int


class UnpinObjects(msgspec.Struct, array_like=True, tag=20):
    """Runtime -> its agent: one pin less on each of these.

    Not repeatable.
    Answer: none.
    Errors: none.
    """

    object_ids: list[bytes]


class FreeObjects(msgspec.Struct, array_like=True, tag=21):
    """Owner -> its agent: nobody needs these any more; free all copies.

    Repeatable.  ``nodes`` are other nodes with copies, told by the agent; ``here`` is
    whether its own node is meant, too.
    Answer: none.
    Errors: none.
    """

    object_ids: list[bytes]
    nodes: list[bytes]
    here: bool = True


class KeepObjects(msgspec.Struct, array_like=True, tag=102):
    """Owner -> its agent: keep these for the rest of the job, though I may end.

    Repeatable.  The owner can free them as before.
    Answer: none.
    Errors: none.
    """

    object_ids: list[bytes]


class CloseInbox(msgspec.Struct, array_like=True, tag=38):
    """Owner -> its agent: free what was made in this inbox of mine, all but ``keep``.

    Repeatable.  Agents pass it on to all nodes; what is still written there under the
    prefix is dropped when it is complete, now and later.
    Answer: none.
    Errors: none.
    """

    prefix: bytes  #: the task id that the ids of these objects begin with
    keep: list[bytes]


class HeadCall(msgspec.Struct, array_like=True, tag=22):
    """Runtime -> its agent: pass this call on to the head (see `protocol.control`).

    Repeatable as the method is.
    Answer: `HeadReply`.
    Errors: `CallFailed` with the head's error; ClusterError while it is away.
    """

    call: int
    method: str
    body: bytes


class HeadReply(msgspec.Struct, array_like=True, tag=23):
    """Agent -> runtime: what the head answered.

    Repeatable.
    Answer: none.
    Errors: none.
    """

    call: int
    body: bytes


class LogLines(msgspec.Struct, array_like=True, tag=24):
    """Agent -> driver: what workers of its job printed; with pid 0, the cluster's own
    words.

    Not repeatable.
    Answer: none.
    Errors: none.
    """

    name: str  #: the task or actor that printed
    pid: int
    host: str
    lines: list[str]
    is_stderr: bool


class LeaseWanted(msgspec.Struct, array_like=True, tag=25):
    """Agent -> worker: others wait; tell your lease's holder to return it soon.

    Repeatable.  The worker passes it on as `YieldLease`; with ``if_idle`` only when it
    runs nothing.
    Answer: none.
    Errors: none.
    """

    if_idle: bool = False


class Exit(msgspec.Struct, array_like=True, tag=26):
    """Agent -> worker: end once nothing runs here and nobody needs your objects.

    Repeatable.
    Answer: the end of the channel.
    Errors: none.
    """

    force: bool  #: end now, whatever runs, after what `atexit` was given


class NodeDied(msgspec.Struct, array_like=True, tag=27):
    """Agent -> runtime: the head declared this node dead.

    Repeatable.
    Answer: none.
    Errors: none.
    """

    node_id: bytes
    reason: str


class DumpObjects(msgspec.Struct, array_like=True, tag=28):
    """Agent -> runtime: list the objects that you own (for `sparkray.util.state`).

    Repeatable.
    Answer: `ObjectsDumped`.
    Errors: none.
    """

    call: int


class ObjectsDumped(msgspec.Struct, array_like=True, tag=29):
    """Runtime -> its agent: the objects that it owns.

    Repeatable.
    Answer: none.
    Errors: none.
    """

    call: int
    rows: list[ObjectRow]


class BecomeActor(msgspec.Struct, array_like=True, tag=30):
    """Agent -> worker: from now on you are this actor.

    Repeatable: a worker that is an actor already ignores it.
    Answer: `ActorStarted`, once the constructor has ended.
    Errors: in the answer.
    """

    incarnation: int
    creation: bytes  #: an encoded `protocol.actors.ActorCreation`
    gpu_ids: list[str] | None = None  #: its devices; None where the node has none


class ActorStarted(msgspec.Struct, array_like=True, tag=31):
    """Worker -> its agent: the constructor has ended.

    Not repeatable.
    Answer: none.
    Errors: none.
    """

    error: bytes  #: a serialized `TaskError`, b"" if all is well
    reason: str


class ActorExiting(msgspec.Struct, array_like=True, tag=32):
    """Worker -> its agent: the actor ends itself on purpose; do not restart it.

    Not repeatable.
    Answer: none; the channel closes.
    Errors: none.
    """

    reason: str


class WatchActor(msgspec.Struct, array_like=True, tag=33):
    """Runtime -> its agent: tell me when this actor's row is newer than ``version``.

    Repeatable.
    Answer: `ActorChanged`.
    Errors: none; an unknown actor is waited for.
    """

    call: int
    actor_id: bytes
    version: int


class ActorChanged(msgspec.Struct, array_like=True, tag=34):
    """Agent -> runtime: the actor's row; bytes of an `protocol.actors.ActorRow`.

    Repeatable.
    Answer: none.
    Errors: none.
    """

    call: int
    row: bytes


class FlushLogs(msgspec.Struct, array_like=True, tag=35):
    """Driver -> its agent: send me what workers of this node have printed until now.

    Repeatable.
    Answer: `Done`, after the `LogLines`.
    Errors: none.
    """

    call: int


AgentMessage = (
    Attach
    | Attached
    | CallFailed
    | Done
    | RequestLeases
    | LeasesGranted
    | WithdrawRequest
    | ReturnLease
    | Blocked
    | Unblocked
    | WorkerSpent
    | KillWorker
    | AskDeath
    | Death
    | CreateObject
    | ObjectCreated
    | SealObject
    | AbortObject
    | PinObject
    | ObjectPinned
    | UnpinObjects
    | FreeObjects
    | KeepObjects
    | CloseInbox
    | HeadCall
    | HeadReply
    | LogLines
    | LeaseWanted
    | Exit
    | NodeDied
    | DumpObjects
    | ObjectsDumped
    | BecomeActor
    | ActorStarted
    | ActorExiting
    | WatchActor
    | ActorChanged
    | FlushLogs
    | FindModule
    | ModuleFound
    | DumpStacks
    | StacksDumped
)
