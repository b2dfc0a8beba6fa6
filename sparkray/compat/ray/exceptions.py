"""Ray's exceptions by Ray's names.  Each is one of ours, so ``except`` catches it."""

from sparkray.exceptions import (
    ActorAlreadyExistsError,
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
    ProtocolError,
    RuntimeEnvSetupError,
    SparkrayError,
    TaskCancelledError,
    TaskError,
    UnschedulableError,
    WorkerCrashedError,
)

__all__ = [
    "ActorAlreadyExistsError",
    "ActorDiedError",
    "ActorHandleNotFoundError",
    "ActorPlacementGroupRemoved",
    "ActorUnavailableError",
    "ActorUnschedulableError",
    "AuthenticationError",
    "GetTimeoutError",
    "LocalRayletDiedError",
    "NodeDiedError",
    "ObjectFetchTimedOutError",
    "ObjectFreedError",
    "ObjectLostError",
    "ObjectReconstructionFailedError",
    "ObjectReconstructionFailedLineageEvictedError",
    "ObjectReconstructionFailedMaxAttemptsExceededError",
    "ObjectRefStreamEndOfStreamError",
    "ObjectStoreFullError",
    "OufOfBandObjectRefSerializationException",
    "OutOfDiskError",
    "OutOfMemoryError",
    "OwnerDiedError",
    "PendingCallsLimitExceeded",
    "PlasmaObjectNotAvailable",
    "RayActorError",
    "RayCgraphCapacityExceeded",
    "RayChannelError",
    "RayChannelTimeoutError",
    "RayDirectTransportError",
    "RayError",
    "RaySystemError",
    "RayTaskError",
    "ReferenceCountingAssertionError",
    "RpcError",
    "RuntimeEnvSetupError",
    "StreamingGeneratorReplayInconsistentError",
    "TaskCancelledError",
    "TaskPlacementGroupRemoved",
    "TaskUnschedulableError",
    "UnserializableException",
    "UserCodeException",
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
ActorHandleNotFoundError = ActorDiedError
AuthenticationError = ProtocolError
ReferenceCountingAssertionError = ObjectLostError
RpcError = ClusterError
UnserializableException = TaskError
UserCodeException = TaskError

# Nothing raises these: an alias would catch what it does not mean.


class ObjectRefStreamEndOfStreamError(SparkrayError):
    """Never raised: generators end with StopIteration."""


class OufOfBandObjectRefSerializationException(SparkrayError):
    """Never raised: refs may be pickled by other ways, too."""


class StreamingGeneratorReplayInconsistentError(ClusterError):
    """Never raised: a generator that runs again goes on where it was."""


class RayChannelError(ClusterError):
    """Never raised: there are no compiled graphs."""


class RayChannelTimeoutError(RayChannelError, TimeoutError):
    """Never raised: there are no compiled graphs."""


class RayCgraphCapacityExceeded(ClusterError):
    """Never raised: there are no compiled graphs."""


class RayDirectTransportError(ClusterError):
    """Never raised: tensors travel as other objects do."""
