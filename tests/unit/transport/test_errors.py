import asyncio
import inspect
import subprocess
import sys

import msgspec
import pytest

from sparkray import exceptions
from sparkray.protocol import codec
from sparkray.protocol.messages import WireError
from sparkray.transport import errors

STATUSES = {
    "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED",
    "UNAVAILABLE", "DATA_LOSS",
}  # fmt: skip

EXAMPLES: list[Exception] = [
    exceptions.SparkrayError("no runtime"),
    exceptions.TaskError("f", "Traceback ...", None, "pid 1, host"),
    exceptions.TaskCancelledError("f 00ff"),
    exceptions.GetTimeoutError(1.5, "one object of f"),
    exceptions.TaskTimeoutError("f", 1.5, "process 1 on host"),
    exceptions.UnschedulableError("{CPU: 64}", "{CPU: 4}", "add a node"),
    exceptions.PlacementGroupRemovedError("group 00ff"),
    exceptions.ActorAlreadyExistsError("a"),
    exceptions.StartError("no node"),
    exceptions.PendingCallsLimitExceeded("10 calls wait"),
    exceptions.RuntimeEnvSetupError("pip failed"),
    exceptions.ObjectStoreFullError(10, 5, "objects in use"),
    exceptions.ClusterError("head away"),
    exceptions.WorkerCrashedError("f", "signal 9", "last words"),
    exceptions.NodeDiedError("f", "node gone"),
    exceptions.OutOfMemoryError("f", "95 %"),
    exceptions.ActorError("A"),
    exceptions.ActorDiedError("A"),
    exceptions.ActorUnavailableError("A"),
    exceptions.ObjectLostError("00ff", "evicted"),
    exceptions.OwnerDiedError("00ff", "driver ended"),
    exceptions.ProtocolError("version 2"),
    KeyError("job 00ff"),
    ValueError("bad", 3, None, 0.5),
    TypeError("not a number"),
    PermissionError("not yours"),
    TimeoutError("late"),
    ConnectionError("refused"),
]


def test_every_error_of_sparkray_is_mapped_and_has_an_example() -> None:
    defined = {
        cls
        for cls in vars(exceptions).values()
        if inspect.isclass(cls) and issubclass(cls, exceptions.SparkrayError)
    }
    assert defined <= set(errors.KINDS)
    assert {type(error) for error in EXAMPLES} == set(errors.KINDS)
    assert set(errors.KINDS.values()) <= STATUSES


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_crosses_whole(error: Exception) -> None:
    body = codec.encode(errors.to_wire(error))
    wire = msgspec.msgpack.decode(body, type=WireError)
    for arrived in (
        errors.from_wire(wire),
        errors.from_status(
            errors.status_of(error), "", errors.to_trailer(error), "host:1"
        ),
    ):
        assert type(arrived) is type(error)
        assert arrived.args == error.args
        assert str(arrived) == str(error)


def test_a_subclass_crosses_as_the_nearest_class_that_is_known() -> None:
    arrived = errors.from_wire(errors.to_wire(ConnectionResetError(104, "reset")))
    assert type(arrived) is ConnectionError
    assert (
        type(errors.from_wire(errors.to_wire(asyncio.TimeoutError()))) is TimeoutError
    )


def test_an_error_that_is_not_ours_crosses_without_its_text() -> None:
    error = RuntimeError("secret path")
    assert errors.status_of(error) == "INTERNAL"
    assert "secret" not in errors.text_of(error)
    assert b"secret" not in errors.to_trailer(error)
    arrived = errors.from_wire(errors.to_wire(error))
    assert type(arrived) is exceptions.ClusterError


def test_an_unknown_or_changed_error_still_arrives() -> None:
    for wire in (
        WireError("NewError", ["what"]),
        WireError("SystemExit", ["what"]),
        WireError("ObjectLostError", ["a", "b", "what"]),
    ):
        arrived = errors.from_wire(wire)
        assert type(arrived) is exceptions.ClusterError
        assert "what" in str(arrived)


def test_arguments_that_are_not_plain_become_text() -> None:
    wire = errors.to_wire(ValueError(b"\xff", True, 2**70, [1], OSError("x")))
    assert wire.args == ["ff", 1, str(2**70), "[1]", None]
    msgspec.msgpack.decode(codec.encode(wire), type=WireError)


def test_a_long_text_is_cut_to_what_metadata_may_hold() -> None:
    error = exceptions.TaskError("f", "first " + "x" * 100_000 + " last")
    body = errors.to_trailer(error)
    assert len(body) <= errors.MAX_TRAILER_BYTES
    text = str(errors.from_status("UNKNOWN", "", body, "host:1"))
    assert "first" in text and text.endswith("last")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("UNAVAILABLE", ConnectionError),
        ("DEADLINE_EXCEEDED", TimeoutError),
        ("UNAUTHENTICATED", exceptions.ProtocolError),
        ("UNIMPLEMENTED", exceptions.ProtocolError),
        ("INVALID_ARGUMENT", exceptions.ProtocolError),
        ("INTERNAL", exceptions.ClusterError),
    ],
)
def test_what_grpc_itself_reports_names_the_peer(status: str, kind: type) -> None:
    error = errors.from_status(status, "details", None, "10.0.0.1:6379")
    assert type(error) is kind
    assert "10.0.0.1:6379" in str(error)


def test_mapping_errors_does_not_load_grpc() -> None:
    code = "import sys, sparkray.transport.errors; sys.exit('grpc' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
