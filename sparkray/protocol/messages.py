"""Every message one sparkray process may say to another.

Two families travel over channels (framed sockets, see `protocol.framing`):

* **agent channel**: a runtime (driver, UDF or worker process) and the agent of its host,
  over the agent's Unix socket.  The runtime's only control connection: the agent passes
  on what is meant for the head or for another node.
* **task channel**: runtime and runtime, over a Unix socket on one node, TCP between nodes.

The third, between agents, head and command line, travels over gRPC: `protocol.control`.

A docstring gives: sender -> receiver and what is said; if it may be sent twice; the
answer; the errors.  Units live in names (``_s`` seconds, ``_bytes`` bytes).  ``call``
pairs an answer with its request on one connection.  Tags are never reused.
"""

from __future__ import annotations

from typing import Union

import msgspec


class WireError(msgspec.Struct, array_like=True, frozen=True):
    """An error of `sparkray.exceptions` (or a built-in) by class name and ``args``.

    Part of other messages; see `transport.errors`.
    """

    kind: str
    args: list[Union[str, int, float, None]]


class Address(msgspec.Struct, array_like=True, frozen=True):
    """Where a runtime listens.  On its own node use ``path``, elsewhere host and port."""

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
    """Where a task may run.  ``kind``: DEFAULT, SPREAD, or NODE with the rest set."""

    kind: str = "DEFAULT"
    node_id: bytes = b""
    soft: bool = False


class LeaseSpec(msgspec.Struct, array_like=True, frozen=True):
    """The shape of a lease; requests of equal shape are served from one queue."""

    job_id: bytes
    runtime_env: str  #: canonical JSON, "" for the job's own
    resources: dict[str, int]  #: in 1/10,000, see `sparkray.resources`
    strategy: Strategy
    depth: int  #: nesting depth of the tasks; deeper requests are served first


class Lease(msgspec.Struct, array_like=True, frozen=True):
    """A worker lent to a runtime.  Part of `LeasesGranted`."""

    lease_id: bytes
    worker: Address
    gpu_ids: list[str]  #: the devices that come with it


class ObjectSource(msgspec.Struct, array_like=True, frozen=True):
    """Where a stored object can be read: a node and its Flight server."""

    node_id: bytes
    flight: str  #: ``host:port``, "" where the node serves none


# --- agent channel -----------------------------------------------------------------------


class Attach(msgspec.Struct, array_like=True, tag=1):
    """Runtime -> its agent, first message after the handshake: here I am.

    Not repeatable.  ``kind`` is "driver", "udf" or "worker".  A driver leaves ``job_id``
    empty and gets a new job; a UDF process may name the job it belongs to; a worker
    sends what its zygote was told.
    Answer: `Attached`.
    Errors: `CallFailed` with ProtocolError (versions differ), and the channel is closed.
    """

    kind: str
    worker_id: bytes
    pid: int
    job_id: bytes
    path: str
    host: str  #: "" lets the agent fill in its own
    port: int
    config: Union[JobConfig, None]
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
    settings: dict[str, float]  #: numeric settings of `config.Settings` that runtimes share


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

    Repeatable.  ``nodes`` are other nodes with copies, told by the agent.
    Answer: none.
    Errors: none.
    """

    object_ids: list[bytes]
    nodes: list[bytes]


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
    """Agent -> driver: what workers of its job printed.

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

    Repeatable.  The worker passes it on as `YieldLease`.
    Answer: none.
    Errors: none.
    """


class Exit(msgspec.Struct, array_like=True, tag=26):
    """Agent -> worker: end in good order once nothing runs and nobody needs your objects.

    Repeatable.
    Answer: the end of the channel.
    Errors: none.
    """

    force: bool  #: end now, whatever runs


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


class ObjectsDumped(msgspec.Struct, array_like=True, tag=29):
    """Runtime -> its agent: the objects that it owns.

    Repeatable.
    Answer: none.
    Errors: none.
    """

    call: int
    rows: list[ObjectRow]


# --- task channel ------------------------------------------------------------------------


class Hello(msgspec.Struct, array_like=True, tag=40):
    """Runtime that connected -> runtime that listens, first frame: who I am.

    Not repeatable.
    Answer: none.
    Errors: the channel is closed if the cluster differs.
    """

    cluster_id: bytes
    address: Address


class DefineTask(msgspec.Struct, array_like=True, tag=41):
    """Owner -> worker: what all tasks with this template number have in common.

    Repeatable.  ``function`` is None if this function hash went over the connection
    before.
    Answer: none.
    Errors: none; a function that cannot be loaded fails its tasks.
    """

    template: int
    function_hash: bytes
    function: Union[bytes, None]
    name: str
    num_returns: int  #: -1 streaming, -2 dynamic
    resources: dict[str, int]
    runtime_env: str
    max_calls: int  #: 0 for no limit
    batch: bool  #: answers may be held back briefly to travel together
    backpressure: int  #: streaming: how many items may wait unconsumed; 0 for no limit
    depth: int


class Argument(msgspec.Struct, array_like=True):
    """A top-level `ObjectRef` argument, resolved by the worker before the call.

    ``where`` is a position or a keyword.  Either ``value`` holds the serialized value, or
    the object is stored and ``sources`` say where.
    """

    where: Union[int, str]
    object_id: bytes
    owner: Union[Address, None]
    value: Union[bytes, None]
    sources: list[ObjectSource]


class PushTask(msgspec.Struct, array_like=True, tag=42):
    """Owner -> worker: run this task.

    Repeatable with a higher ``attempt`` only.
    Answer: `TaskDone`, or `TaskReplied` for what does not fit that form.
    Errors: in the answer.
    """

    number: int  #: the owner's; with the owner's worker id it is the task id
    template: int
    attempt: int
    args: bytes  #: pickled ``(args, kwargs)``; b"" for none
    refs: Union[list[Argument], None] = None
    stored_args: Union[Argument, None] = None  #: set when ``args`` were too large for a frame


class TaskDone(msgspec.Struct, array_like=True, tag=43):
    """Worker -> owner: one return value, small, no refs in it.  The hot path.

    Repeatable: the owner ignores attempts it gave up.
    Answer: none.
    Errors: none.
    """

    number: int
    attempt: int
    run_s: float
    value: bytes


class ReturnValue(msgspec.Struct, array_like=True):
    """One return value.  Small ones travel in ``value``; others lie in the store."""

    index: int
    value: Union[bytes, None]
    size_bytes: int
    sources: list[ObjectSource]
    contains: list[tuple[bytes, Address]]  #: refs inside it, each with its owner


class TaskReplied(msgspec.Struct, array_like=True, tag=44):
    """Worker -> owner: the task ended, in any form that `TaskDone` cannot tell.

    Repeatable: the owner ignores attempts it gave up.
    ``outcome``: "ok", "error" (``error`` is a serialized `TaskError`), "cancelled",
    "exit" (user code called sys.exit) or "lost" (an argument could not be had).
    Answer: none.
    Errors: none.
    """

    number: int
    attempt: int
    run_s: float
    outcome: str
    values: list[ReturnValue]
    error: bytes
    kept: list[bytes]  #: objects of the arguments that the worker still refers to
    items: int  #: streaming: how many items were sent


class StreamItem(msgspec.Struct, array_like=True, tag=45):
    """Worker -> owner: one more item of a streaming task.

    Repeatable: the owner keeps the first item of an index.
    Answer: `StreamConsumed` where back-pressure is on.
    Errors: none.
    """

    number: int
    attempt: int
    value: ReturnValue


class StreamConsumed(msgspec.Struct, array_like=True, tag=46):
    """Owner -> worker: the consumer has taken this many items.

    Repeatable: the highest count holds.  -1: nobody will take any more; run on unheld.
    Answer: none.
    Errors: none.
    """

    number: int
    items: int


class CancelTask(msgspec.Struct, array_like=True, tag=47):
    """Owner -> worker: stop this task if it has not ended, and its children.

    Repeatable.
    Answer: the task's own answer.
    Errors: none.
    """

    number: int
    recursive: bool


class ReclaimTasks(msgspec.Struct, array_like=True, tag=48):
    """Owner -> worker: give back those of these tasks that you have not started.

    Repeatable.
    Answer: `TasksReclaimed`.
    Errors: none.
    """

    numbers: list[int]


class TasksReclaimed(msgspec.Struct, array_like=True, tag=49):
    """Worker -> owner: these will not run here.

    Not repeatable.  Also sent unasked when the running task begins to wait for others:
    then ``blocked`` is true, and tasks behind it would wait with it.
    Answer: none.
    Errors: none.
    """

    numbers: list[int]
    blocked: bool = False


class YieldLease(msgspec.Struct, array_like=True, tag=50):
    """Worker -> lease holder: others wait; return my lease as soon as you can.

    Repeatable.
    Answer: none.
    Errors: none.
    """


class Retiring(msgspec.Struct, array_like=True, tag=51):
    """Worker -> lease holder: I take no further task (``max_calls`` reached).

    Repeatable.
    Answer: none.
    Errors: none.
    """


class GetObject(msgspec.Struct, array_like=True, tag=52):
    """Borrower -> owner: tell me when this object is there, and what it is.

    Repeatable.
    Answer: `ObjectReady`.
    Errors: in the answer.
    """

    object_id: bytes


class ObjectReady(msgspec.Struct, array_like=True, tag=53):
    """Owner -> borrower: the value, where it lies, or why it never will.

    Repeatable.  The borrower was registered for each of ``contains``.
    Answer: none.
    Errors: none.
    """

    object_id: bytes
    value: Union[bytes, None]
    size_bytes: int
    sources: list[ObjectSource]
    error: bytes  #: a serialized error, b"" for none
    contains: list[tuple[bytes, Address]]


class AddBorrower(msgspec.Struct, array_like=True, tag=54):
    """Any holder of a ref -> its owner: this process holds it now too.

    Not repeatable: each counts one.
    Answer: none.
    Errors: none.
    """

    object_id: bytes
    borrower: Address


class RemoveBorrower(msgspec.Struct, array_like=True, tag=55):
    """Borrower -> owner: I hold it no longer.

    Not repeatable: ``count`` says how many `AddBorrower` this takes back.
    Answer: none.
    Errors: none.
    """

    object_id: bytes
    count: int


class CancelObject(msgspec.Struct, array_like=True, tag=56):
    """Borrower -> owner: cancel the task that makes this object.

    Repeatable.
    Answer: none; the object becomes a `TaskCancelledError`.
    Errors: none; a task that has ended is left alone.
    """

    object_id: bytes
    force: bool
    recursive: bool


AgentMessage = Union[
    Attach, Attached, CallFailed, Done, RequestLeases, LeasesGranted, WithdrawRequest,
    ReturnLease, Blocked, Unblocked, KillWorker, AskDeath, Death, CreateObject,
    ObjectCreated, SealObject, AbortObject, PinObject, ObjectPinned, UnpinObjects,
    FreeObjects, HeadCall, HeadReply, LogLines, LeaseWanted, Exit, NodeDied, DumpObjects,
    ObjectsDumped,
]  # fmt: skip

TaskMessage = Union[
    Hello, DefineTask, PushTask, TaskDone, TaskReplied, StreamItem, StreamConsumed,
    CancelTask, ReclaimTasks, TasksReclaimed, YieldLease, Retiring, GetObject, ObjectReady,
    AddBorrower, RemoveBorrower, CancelObject,
]  # fmt: skip

ChannelMessage = Union[AgentMessage, TaskMessage]
