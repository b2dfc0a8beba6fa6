"""Messages between two runtimes; see `protocol.messages`."""

from __future__ import annotations

from typing import Final

import msgspec

from sparkray.protocol.records import (
    Address,
    ObjectSource,
    Strategy,
)


class Hello(msgspec.Struct, array_like=True, tag=40):
    """Runtime that connected -> runtime that listens, first frame: who I am.

    Not repeatable.
    Answer: none.
    Errors: the channel is closed if the cluster differs.
    """

    cluster_id: bytes
    address: Address


class Argument(msgspec.Struct, array_like=True):
    """A top-level `ObjectRef` argument, resolved by the worker before the call.

    ``where`` is a position or a keyword.  Either ``value`` holds the serialized value,
    or the object is stored and ``sources`` say where.
    """

    where: int | str
    object_id: bytes
    owner: Address | None
    value: bytes | None
    sources: list[ObjectSource]


class DefineTask(msgspec.Struct, array_like=True, tag=41):
    """Owner -> worker: what all tasks with this template number have in common.

    Repeatable.  ``function`` is None if this function hash went over the connection
    before, and if it is so large that it lies in the store.
    Answer: none.
    Errors: none; a function that cannot be loaded fails its tasks.
    """

    template: int
    function_hash: bytes
    function: bytes | None
    name: str
    num_returns: int  #: -1 streaming, -2 dynamic
    resources: dict[str, int]
    runtime_env: str
    max_calls: int  #: 0 for no limit
    batch: bool  #: answers may be held back briefly to travel together
    backpressure: int  #: streaming: how many items may wait unconsumed; 0 for no limit
    depth: int
    method: str = ""  #: of an actor, instead of a function
    group: str = ""  #: its concurrency group, "" for the default one
    strategy: Strategy = Strategy()
    stored_function: Argument | None = None
    timeout_s: float = 0.0  #: how long one may run; 0 for no limit


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
    refs: list[Argument] | None = None
    stored_args: Argument | None = None  #: set when ``args`` were too large for a frame


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
    value: bytes | None
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


#: Nobody will take any more, but somebody waits for the end: the task is not held back.
UNREAD: Final = -1
#: Nobody waits for the end either: the task is to end soon.
UNWANTED: Final = -2


class StreamConsumed(msgspec.Struct, array_like=True, tag=46):
    """Owner -> worker: the consumer has taken this many items.

    Repeatable: the highest count holds, or one of the two below.
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

    Repeatable.  With a reason it says that the copies it knows cannot be read.
    Answer: `ObjectReady`.
    Errors: in the answer.
    """

    object_id: bytes
    tried: list[bytes] = []  #: nodes without a copy
    reason: str = ""  #: what was tried, and what came of it


class ObjectReady(msgspec.Struct, array_like=True, tag=53):
    """Owner -> borrower: the value, where it lies, or why it never will.

    Repeatable.  The borrower was registered for each of ``contains``.
    Answer: none.
    Errors: none.
    """

    object_id: bytes
    value: bytes | None
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


class CopyMade(msgspec.Struct, array_like=True, tag=57):
    """Reader -> owner: the store of my node holds a copy of this object now.

    Repeatable.
    Answer: none; an owner that has freed the object frees the copy.
    Errors: none.
    """

    object_id: bytes
    source: ObjectSource


class UseDevices(msgspec.Struct, array_like=True, tag=58):
    """Owner -> worker that it leases: your tasks of this lease have these GPUs.

    Repeatable.  Comes before the first task of a lease; only on nodes with GPUs.
    Answer: none.
    Errors: none.
    """

    gpu_ids: list[str]


class LimitBegun(msgspec.Struct, array_like=True, tag=59):
    """Worker -> owner: this task begins now, and may run as long as its limit says.

    Repeatable.  Only for tasks with a ``timeout_s``: the owner ends a worker that does
    not stop by itself.
    Answer: none.
    Errors: none.
    """

    number: int
    attempt: int
    where: str  #: process id and host, for the error


TaskMessage = (
    Hello
    | DefineTask
    | PushTask
    | TaskDone
    | TaskReplied
    | StreamItem
    | StreamConsumed
    | CancelTask
    | ReclaimTasks
    | TasksReclaimed
    | YieldLease
    | Retiring
    | GetObject
    | ObjectReady
    | AddBorrower
    | RemoveBorrower
    | CancelObject
    | CopyMade
    | UseDevices
    | LimitBegun
)
