"""Errors keep their type, their fields and their story over pickling and the wire."""

import builtins
import copy
import dataclasses
import enum
import inspect
import pickle
import threading
from typing import Any

import pytest

from sparkray import exceptions
from sparkray.exceptions import SparkrayError, TaskError

#: One instance of every error, with all its fields set.
SAMPLES: list[SparkrayError] = [
    exceptions.SparkrayError("why"),
    exceptions.StartError("why"),
    exceptions.ActorError("why"),
    exceptions.TaskError("f", "Traceback", ValueError("no"), "pid=1, host"),
    exceptions.TaskCancelledError("f 0a"),
    exceptions.GetTimeoutError(1.5, "1 object"),
    exceptions.TaskTimeoutError("f 0a", 1.5, "process 1 on host"),
    exceptions.UnschedulableError("{CPU: 64}", "n1 {CPU: 4}", "add a node"),
    exceptions.PlacementGroupRemovedError("why"),
    exceptions.ActorAlreadyExistsError("why"),
    exceptions.PendingCallsLimitExceeded("why"),
    exceptions.RuntimeEnvSetupError("why"),
    exceptions.ObjectStoreFullError(10, 5, "2 objects"),
    exceptions.ClusterError("why"),
    exceptions.WorkerCrashedError("f", "SIGKILL", "last words"),
    exceptions.NodeDiedError("f", "gone", "last words"),
    exceptions.OutOfMemoryError("f", "memory", "last words"),
    exceptions.ActorDiedError("why"),
    exceptions.ActorUnavailableError("why"),
    exceptions.ObjectLostError("0a", "why"),
    exceptions.OwnerDiedError("0a", "why"),
    exceptions.ProtocolError("why"),
]
KINDS = [
    kind
    for kind in vars(exceptions).values()
    if inspect.isclass(kind) and issubclass(kind, SparkrayError)
]


def _error_of(cause: BaseException | None) -> TaskError:
    return TaskError("work", "Traceback: ...", cause, "pid=1, host").as_user_error()


def _over_the_wire(error: BaseException) -> Any:
    return pickle.loads(pickle.dumps(error))


def test_there_is_a_sample_of_every_error() -> None:
    assert {type(sample) for sample in SAMPLES} == set(KINDS)


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_every_error_survives_pickling_with_all_fields(error: SparkrayError) -> None:
    arrived = _over_the_wire(error)
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert {k: str(v) for k, v in vars(arrived).items()} == {
        k: str(v) for k, v in vars(error).items()
    }


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_every_message_tells_all_its_fields(error: SparkrayError) -> None:
    for value in vars(error).values():
        if value is not None and not isinstance(value, BaseException):
            assert (
                f"{value:g}" if isinstance(value, float) else str(value) in str(error)
            )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_is_in_the_tree_of_the_modules_docstring(kind: type) -> None:
    assert kind.__name__ in (exceptions.__doc__ or "")


def test_a_get_that_times_out_is_a_timeout_error_of_python_too() -> None:
    assert issubclass(exceptions.GetTimeoutError, TimeoutError)


def test_a_protocol_error_is_a_connection_error_of_python_too() -> None:
    assert issubclass(exceptions.ProtocolError, ConnectionError)


# --- what a user's exception becomes --------------------------------------------------


#: Exception groups: Python 3.11 and later.
GROUP: Any = getattr(builtins, "ExceptionGroup", None)


class Plain(Exception):
    pass


class Unusual(Exception):
    """Takes what pickling does not know of: no message, keywords only."""

    def __init__(self, code: int, *, hint: str) -> None:
        super().__init__()
        self.code, self.hint = code, hint

    def __str__(self) -> str:
        return f"{self.code}: {self.hint}"

    def __reduce__(self) -> Any:
        return _make_unusual, (self.code, self.hint)


def _make_unusual(code: int, hint: str) -> Unusual:
    return Unusual(code, hint=hint)


class Final(Exception):
    def __init_subclass__(cls) -> None:
        raise TypeError("may not be derived from")


class OddNew(Exception):
    def __new__(cls, must: int) -> "OddNew":
        return super().__new__(cls)

    def __init__(self, must: int) -> None:
        super().__init__(must)


class Hostile(Exception):
    def __init_subclass__(cls) -> None:
        raise RuntimeError("no")


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


class OwnReduce(Exception):
    def __reduce_ex__(self, protocol: Any) -> Any:
        return OwnReduce, (*self.args,)


class WithSlots(Exception):
    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class WithMeta(type):
    pass


class OfMeta(Exception, metaclass=WithMeta):
    pass


class WithProperty(Exception):
    @property
    def answer(self) -> int:
        return 42

    def ask(self) -> str:
        return f"asked {self.args[0]}"


CAUSES: list[Exception] = [
    ValueError("no"),
    KeyError("key"),
    OSError(2, "No such file", "name"),
    StopIteration(3),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    ZeroDivisionError("division by zero"),
    Plain("one", 2),
    Unusual(7, hint="turn it off"),
    WithProperty("me"),
    WithSlots(5),
    OwnReduce("x"),
    OfMeta("x"),
    ImportError("no module", name="m", path="p"),
    SyntaxError("bad", ("file", 1, 2, "text")),
    MemoryError(),
    *([GROUP("two", [ValueError("a"), KeyError("b")])] if GROUP is not None else []),
]


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: type(cause).__name__)
def test_a_users_error_is_caught_by_its_own_type_and_as_a_task_error(
    cause: Exception,
) -> None:
    for error in (_error_of(cause), _over_the_wire(_error_of(cause))):
        with pytest.raises(type(cause)):
            raise error
        assert isinstance(error, TaskError)
        assert type(error.cause) is type(cause)
        assert error.__cause__ is error.cause
        assert "work" in str(error)
        assert "Traceback: ..." in str(error)


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: type(cause).__name__)
def test_a_users_error_keeps_its_attributes(cause: Exception) -> None:
    for error in (_error_of(cause), _over_the_wire(_error_of(cause))):
        for name, value in vars(cause).items():
            assert getattr(error, name) == value


def test_attributes_held_by_the_type_itself_are_kept_too() -> None:
    error: Any = _over_the_wire(_error_of(OSError(2, "No such file", "name")))
    assert (error.errno, error.filename) == (2, "name")
    assert error.strerror == "No such file"
    assert error.args == (2, "No such file")


def test_slots_properties_and_methods_of_the_users_class_work() -> None:
    slotted: Any = _error_of(WithSlots(5))
    assert slotted.code == 5
    rich: Any = _error_of(WithProperty("me"))
    assert rich.answer == 42


def test_a_frozen_error_of_a_user_gets_our_fields_all_the_same() -> None:
    error: Any = _error_of(Frozen(5))
    assert isinstance(error, Frozen)
    assert (error.code, error.function_name) == (5, "work")


def test_errors_of_one_class_share_one_dual_class() -> None:
    assert type(_error_of(Plain(1))) is type(_error_of(Plain(2)))


def test_pickling_twice_and_copying_change_nothing() -> None:
    error = _error_of(Unusual(7, hint="turn it off"))
    twice = _over_the_wire(_over_the_wire(error))
    assert isinstance(twice, Unusual)
    assert str(twice) == str(error) == str(copy.copy(error))


@pytest.mark.parametrize(
    "cause", [Final("x"), OddNew(1), Hostile()], ids=["final", "odd-new", "hostile"]
)
def test_a_class_that_cannot_be_derived_from_leaves_a_task_error_with_its_cause(
    cause: Exception,
) -> None:
    error = _error_of(cause)
    assert isinstance(error, TaskError)
    assert error.__cause__ is cause


@pytest.mark.parametrize("cause", [None, KeyboardInterrupt(), SystemExit(1)])
def test_what_is_no_exception_of_a_user_stays_a_task_error(
    cause: BaseException | None,
) -> None:
    assert type(_error_of(cause)) is TaskError


def test_an_error_of_sparkray_is_not_wrapped_a_second_time() -> None:
    inner = _error_of(ValueError("no"))
    outer = TaskError("outer", "Traceback", inner).as_user_error()
    assert type(outer) is TaskError
    assert outer.cause is inner


def test_a_missing_attribute_is_an_attribute_error_and_not_endless() -> None:
    error = _error_of(Plain("x"))
    with pytest.raises(AttributeError):
        error.nothing_of_this_name  # noqa: B018
    blank = type(error).__new__(type(error))
    with pytest.raises(AttributeError):
        blank.nothing_of_this_name  # type: ignore[attr-defined]  # noqa: B018


def test_an_enum_as_attribute_and_a_long_text_survive() -> None:
    cause = Plain("x" * 100_000)
    cause.level = Level.HIGH  # type: ignore[attr-defined]
    arrived = _over_the_wire(_error_of(cause))
    assert arrived.level is Level.HIGH
    assert len(arrived.cause.args[0]) == 100_000


class Level(enum.Enum):
    HIGH = 1


def test_many_threads_may_make_the_first_dual_class_at_once() -> None:
    class Fresh(Exception):
        pass

    errors: list[TaskError] = []
    threads = [
        threading.Thread(target=lambda: errors.append(_error_of(Fresh())))
        for _ in "12345"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(isinstance(error, Fresh) for error in errors)
    assert len(errors) == 5
