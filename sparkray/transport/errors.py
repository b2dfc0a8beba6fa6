"""Errors <-> what travels: the one place that maps them, both ways.

An error crosses whole: class name and plain ``args`` in a `WireError`.  Over gRPC that
stands in the trailing metadata beside a status for people and tools; statuses are
plain names here, so that a runtime, which never loads grpc, can use this module too.
What is not in `KINDS` is a bug of ours: the other side learns that there is one, not
what it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from sparkray import exceptions
from sparkray.exceptions import ClusterError, ProtocolError
from sparkray.protocol.codec import decode_as
from sparkray.protocol.messages import WireError

#: Key of the error in a call's trailing metadata.
TRAILER: Final = "sparkray-error-bin"
#: gRPC allows 8 KiB of metadata; longer texts are cut in their middle.
MAX_TRAILER_BYTES: Final = 6_000

_INTERNAL: Final = "INTERNAL"
_INTERNAL_TEXT: Final = "internal error; the log of the process that answered has more"

#: Class -> gRPC status.  Only these cross as themselves; a subclass crosses as the
#: nearest class that is listed.
KINDS: Final[Mapping[type[BaseException], str]] = {
    exceptions.SparkrayError: "UNKNOWN",
    exceptions.TaskError: "UNKNOWN",
    exceptions.TaskCancelledError: "CANCELLED",
    exceptions.GetTimeoutError: "DEADLINE_EXCEEDED",
    exceptions.TaskTimeoutError: "DEADLINE_EXCEEDED",
    exceptions.UnschedulableError: "FAILED_PRECONDITION",
    exceptions.PlacementGroupRemovedError: "FAILED_PRECONDITION",
    exceptions.PendingCallsLimitExceeded: "RESOURCE_EXHAUSTED",
    exceptions.RuntimeEnvSetupError: "FAILED_PRECONDITION",
    exceptions.ActorAlreadyExistsError: "INVALID_ARGUMENT",
    exceptions.ObjectStoreFullError: "RESOURCE_EXHAUSTED",
    exceptions.ClusterError: "UNKNOWN",
    exceptions.StartError: "UNKNOWN",
    exceptions.WorkerCrashedError: "ABORTED",
    exceptions.NodeDiedError: "ABORTED",
    exceptions.OutOfMemoryError: "ABORTED",
    exceptions.ActorError: "UNKNOWN",
    exceptions.ActorDiedError: "FAILED_PRECONDITION",
    exceptions.ActorUnavailableError: "UNAVAILABLE",
    exceptions.ObjectLostError: "DATA_LOSS",
    exceptions.OwnerDiedError: "DATA_LOSS",
    exceptions.ProtocolError: "FAILED_PRECONDITION",
    KeyError: "NOT_FOUND",
    ValueError: "INVALID_ARGUMENT",
    TypeError: "INVALID_ARGUMENT",
    PermissionError: "PERMISSION_DENIED",
    TimeoutError: "DEADLINE_EXCEEDED",
    ConnectionError: "UNAVAILABLE",
}
_BY_NAME: Final = {cls.__name__: cls for cls in KINDS}


def to_wire(error: BaseException) -> WireError:
    """Return ``error`` as it travels; what is not in `KINDS` becomes a `ClusterError`
    without its text."""
    kind = kind_of(error)
    if kind is None:
        return WireError("ClusterError", [_INTERNAL_TEXT])
    return WireError(kind.__name__, [_plain(value) for value in error.args])


def from_wire(wire: WireError) -> Exception:
    """Return the error that `to_wire` was given; a `ClusterError` if unknown here."""
    kind = _BY_NAME.get(wire.kind)
    try:
        error = kind(*wire.args) if kind else None
    except TypeError:  # another version's fields
        error = None
    if isinstance(error, Exception):
        return error
    return ClusterError(f"{wire.kind}: " + ", ".join(map(str, wire.args)))


def kind_of(error: BaseException) -> type[BaseException] | None:
    """Return the class as which ``error`` crosses, None if it must not."""
    for cls in type(error).__mro__:
        if cls in KINDS:
            return cls
        if cls.__name__ == "TimeoutError":  # asyncio's own, before Python 3.11
            return TimeoutError
    return None


def status_of(error: BaseException) -> str:
    """Return the name of the gRPC status that goes with ``error``."""
    kind = kind_of(error)
    return KINDS[kind] if kind is not None else _INTERNAL


def text_of(error: BaseException) -> str:
    """Return the details that go with the status, for people."""
    if kind_of(error) is None:
        return _INTERNAL_TEXT
    return _cut(str(error), 500).encode("ascii", "backslashreplace").decode()


def to_trailer(error: BaseException) -> bytes:
    """Return the value of the `TRAILER` entry for ``error``."""
    wire = to_wire(error)
    limit = MAX_TRAILER_BYTES
    while len(body := msgspec.msgpack.encode(wire)) > MAX_TRAILER_BYTES and limit > 8:
        limit //= 2
        args = [_cut(arg, limit) if isinstance(arg, str) else arg for arg in wire.args]
        wire = WireError(wire.kind, args)
    return body


def from_status(
    status: str, details: str, trailer: bytes | None, peer: str
) -> Exception:
    """Return the error for a gRPC call to ``peer`` that failed.

    Args:
        status: name of the status, e.g. ``"UNAVAILABLE"``.
        details: the text that came with it.
        trailer: the `TRAILER` entry, None if there was none: grpc itself failed.
        peer: ``host:port``, for the message.
    """
    if trailer is not None:
        try:
            return from_wire(decode_as(WireError, trailer))
        except ProtocolError:
            return ProtocolError(f"{peer} answered {status} with an unreadable error")
    if status == "UNAVAILABLE" or status == "CANCELLED":
        return ConnectionError(f"cannot reach {peer}: {details}")
    if status == "DEADLINE_EXCEEDED":
        return TimeoutError(f"{peer} did not answer in time")
    if status == "UNAUTHENTICATED":
        return ProtocolError(f"{peer} refused the token: is it that cluster's token?")
    if status in ("INVALID_ARGUMENT", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED"):
        return ProtocolError(f"{peer} refused the call: {details}")
    return ClusterError(f"{peer} failed ({status}): {details}")


def _plain(value: object) -> str | int | float | None:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return str(value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, BaseException):
        return None  # the cause of a `TaskError` travels in the task's own answer
    return value.hex() if isinstance(value, bytes) else str(value)


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]} ... {text[-limit // 2 :]}"
