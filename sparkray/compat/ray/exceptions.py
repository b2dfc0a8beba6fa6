"""Ray's exceptions by Ray's names.  Each is one of ours, so ``except`` catches it."""

from sparkray.exceptions import (
    ActorDiedError,
    ActorError,
    ActorUnavailableError,
    ClusterError,
    GetTimeoutError,
    NodeDiedError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfMemoryError,
    OwnerDiedError,
    PendingCallsLimitExceeded,
    PlacementGroupRemovedError,
    RuntimeEnvSetupError,
    SparkrayError,
    TaskCancelledError,
    TaskError,
    UnschedulableError,
    WorkerCrashedError,
)

__all__ = [
    "ActorDiedError",
    "ActorPlacementGroupRemoved",
    "ActorUnavailableError",
    "ActorUnschedulableError",
    "GetTimeoutError",
    "LocalRayletDiedError",
    "NodeDiedError",
    "ObjectFetchTimedOutError",
    "ObjectFreedError",
    "ObjectLostError",
    "ObjectReconstructionFailedError",
    "ObjectReconstructionFailedLineageEvictedError",
    "ObjectReconstructionFailedMaxAttemptsExceededError",
    "ObjectStoreFullError",
    "OutOfDiskError",
    "OutOfMemoryError",
    "OwnerDiedError",
    "PendingCallsLimitExceeded",
    "PlasmaObjectNotAvailable",
    "RayActorError",
    "RayError",
    "RaySystemError",
    "RayTaskError",
    "RuntimeEnvSetupError",
    "TaskCancelledError",
    "TaskPlacementGroupRemoved",
    "TaskUnschedulableError",
    "WorkerCrashedError",
]

RayError = SparkrayError
RayTaskError = TaskError
RayActorError = ActorError
RaySystemError = ClusterError
LocalRayletDiedError = NodeDiedError
ActorUnschedulableError = UnschedulableError
TaskUnschedulableError = UnschedulableError
ObjectFetchTimedOutError = ObjectLostError
ObjectFreedError = ObjectLostError
ObjectReconstructionFailedError = ObjectLostError
ObjectReconstructionFailedLineageEvictedError = ObjectLostError
ObjectReconstructionFailedMaxAttemptsExceededError = ObjectLostError
PlasmaObjectNotAvailable = ObjectLostError
ActorPlacementGroupRemoved = PlacementGroupRemovedError
TaskPlacementGroupRemoved = PlacementGroupRemovedError
OutOfDiskError = ObjectStoreFullError
