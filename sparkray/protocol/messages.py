"""Every message that one sparkray process may say to another over a channel.

Two families travel over channels (framed sockets, see `protocol.framing`):

* **agent channel**: a runtime (driver, UDF or worker process) and the agent of its
  host, over the agent's Unix socket.  It is the runtime's only control connection: the
  agent passes on what is meant for the head or for another node.
* **task channel**: runtime and runtime, over a Unix socket on one node, TCP between
  nodes.

The third, between agents, head and command line, goes over gRPC: `protocol.control`.

A docstring gives: sender -> receiver and what is said; if it may be sent twice; the
answer; the errors.  Units live in names (``_s`` seconds, ``_bytes`` bytes).  ``call``
pairs an answer with its request on one connection.  Tags are never reused.
"""

from __future__ import annotations

from sparkray.protocol.agent_channel import (
    AbortObject,
    AgentMessage,
    AskDeath,
    Attach,
    Attached,
    Blocked,
    CallFailed,
    CreateObject,
    Death,
    Done,
    DumpObjects,
    Exit,
    FreeObjects,
    HeadCall,
    HeadReply,
    KillWorker,
    LeasesGranted,
    LeaseWanted,
    LogLines,
    NodeDied,
    ObjectCreated,
    ObjectPinned,
    ObjectsDumped,
    PinObject,
    RequestLeases,
    ReturnLease,
    SealObject,
    Unblocked,
    UnpinObjects,
    WithdrawRequest,
)
from sparkray.protocol.records import (
    Address,
    JobConfig,
    Lease,
    LeaseSpec,
    ObjectRow,
    ObjectSource,
    Strategy,
    WireError,
)
from sparkray.protocol.task_channel import (
    AddBorrower,
    Argument,
    CancelObject,
    CancelTask,
    CopyMade,
    DefineTask,
    GetObject,
    Hello,
    ObjectReady,
    PushTask,
    ReclaimTasks,
    RemoveBorrower,
    Retiring,
    ReturnValue,
    StreamConsumed,
    StreamItem,
    TaskDone,
    TaskMessage,
    TaskReplied,
    TasksReclaimed,
    YieldLease,
)

ChannelMessage = AgentMessage | TaskMessage

__all__ = [
    "AbortObject",
    "AddBorrower",
    "Address",
    "AgentMessage",
    "Argument",
    "AskDeath",
    "Attach",
    "Attached",
    "Blocked",
    "CallFailed",
    "CancelObject",
    "CancelTask",
    "ChannelMessage",
    "CopyMade",
    "CreateObject",
    "Death",
    "DefineTask",
    "Done",
    "DumpObjects",
    "Exit",
    "FreeObjects",
    "GetObject",
    "HeadCall",
    "HeadReply",
    "Hello",
    "JobConfig",
    "KillWorker",
    "Lease",
    "LeaseSpec",
    "LeaseWanted",
    "LeasesGranted",
    "LogLines",
    "NodeDied",
    "ObjectCreated",
    "ObjectPinned",
    "ObjectReady",
    "ObjectRow",
    "ObjectSource",
    "ObjectsDumped",
    "PinObject",
    "PushTask",
    "ReclaimTasks",
    "RemoveBorrower",
    "RequestLeases",
    "Retiring",
    "ReturnLease",
    "ReturnValue",
    "SealObject",
    "Strategy",
    "StreamConsumed",
    "StreamItem",
    "TaskDone",
    "TaskMessage",
    "TaskReplied",
    "TasksReclaimed",
    "Unblocked",
    "UnpinObjects",
    "WireError",
    "WithdrawRequest",
    "YieldLease",
]
