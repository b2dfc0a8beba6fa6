"""Ray's exceptions by Ray's names.  Each is one of ours, so ``except`` catches it."""

from sparkray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    ClusterError,
    GetTimeoutError,
    NodeDiedError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfMemoryError,
    OwnerDiedError,
    PendingCallsLimitExceeded,
    RuntimeEnvSetupError,
    SparkrayError,
    TaskCancelledError,
    TaskError,
    UnschedulableError,
    WorkerCrashedError,
)

__all__ = [
    "ActorDiedError",
    "ActorUnavailableError",
    "ActorUnschedulableError",
    "GetTimeoutError",
    "NodeDiedError",
    "ObjectFetchTimedOutError",
    "ObjectFreedError",
    "ObjectLostError",
    "ObjectReconstructionFailedError",
    "ObjectStoreFullError",
    "OutOfDiskError",
    "OutOfMemoryError",
    "OwnerDiedError",
    "PendingCallsLimitExceeded",
    "RayActorError",
    "RayError",
    "RaySystemError",
    "RayTaskError",
    "RuntimeEnvSetupError",
    "TaskCancelledError",
    "TaskUnschedulableError",
    "WorkerCrashedError",
]

RayError = SparkrayError
RayTaskError = TaskError
#: Both kinds: a tuple serves ``except`` and `isinstance` as a common base would.
RayActorError = (ActorDiedError, ActorUnavailableError)
RaySystemError = ClusterError
ActorUnschedulableError = UnschedulableError
TaskUnschedulableError = UnschedulableError
ObjectFetchTimedOutError = ObjectLostError
ObjectFreedError = ObjectLostError
ObjectReconstructionFailedError = ObjectLostError
OutOfDiskError = ObjectStoreFullError
