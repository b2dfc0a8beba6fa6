"""Everything sparkray raises on purpose, split by who must act.

SparkrayError
├── TaskError                    user code raised; the cause is chained
├── TaskCancelledError           `cancel` ended the task
├── GetTimeoutError              not ready yet; asking again may succeed
├── TaskTimeoutError             it ran for longer than its ``timeout_s``
├── UnschedulableError           no node could ever run this: ask for less or add one
├── PlacementGroupRemovedError   the task's placement group is gone: make another
├── ActorAlreadyExistsError      the name is taken (a `ValueError`, too): take another
├── PendingCallsLimitExceeded    the actor's queue is full: wait for some calls first
├── RuntimeEnvSetupError         the runtime environment could not be built
├── ObjectStoreFullError         the store is full of objects that are in use
└── ClusterError                 sparkray, or a machine under it, failed
    ├── WorkerCrashedError       a worker process ended while running the task
    │   ├── NodeDiedError        ... because its whole node is gone
    │   └── OutOfMemoryError     ... because the host was about to run out of memory
    ├── ActorError               an actor could not serve a call
    │   ├── ActorDiedError       ... because it is gone for good
    │   └── ActorUnavailableError  ... for now; a later call may succeed
    ├── ObjectLostError          every copy is gone and it cannot be made again
    │   └── OwnerDiedError       ... because the process that knew it is gone
    ├── StartError               a node did not start
    └── ProtocolError            a peer spoke otherwise, or without proof of the token

NotPicklableError                a value cannot be sent; Python's own kinds of error

Rules: ``args`` holds every field, so an error survives pickling and the wire; times are
seconds and sizes bytes; a message names ids and says what the reader can do.
"""

from __future__ import annotations

import builtins
import contextlib
import pickle
import types
from collections.abc import Callable
from typing import Any

#: Exception groups: Python 3.11 and later.
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", None)
_FIELD_TYPES = (types.MemberDescriptorType, types.GetSetDescriptorType)


class SparkrayError(Exception):
    """Base of all: catching it never hides a `TypeError` of the caller's own."""


class NotPicklableError(TypeError, pickle.PicklingError):
    """A value cannot be sent.  Both of the kinds that picklers raise, since which of
    them it is depends on the value and on the pickler.
    """


class TaskError(SparkrayError):
    """The user's function raised.

    What `get` raises is an instance of this class and, where Python allows it, of the
    class of the user's exception as well, so ``except ValueError`` works as it would
    locally.

    Attributes:
        function_name: the task or method that raised.
        traceback_text: the traceback as the worker printed it.
        cause: the user's own exception; None if it could not be sent.
        where: process id and host name, for messages.
    """

    def __init__(
        self,
        function_name: str,
        traceback_text: str,
        cause: BaseException | None = None,
        where: str = "",
    ) -> None:
        # Not super(): in a dual class that would call the user's constructor.
        Exception.__init__(self, function_name, traceback_text, cause, where)
        self.function_name = function_name
        self.traceback_text = traceback_text
        self.cause = cause
        self.where = where
        self.__cause__ = cause

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        return f"{self.function_name}{place} raised:\n{self.traceback_text}"

    def as_user_error(self) -> TaskError:
        """Return this error as an instance of the user's class too, where possible."""
        made: TaskError = _as_dual(self, TaskError)
        return made

    def _fields(self, cause: Any) -> tuple[Any, ...]:
        return self.function_name, self.traceback_text, cause, self.where


def _as_dual(error: Any, base: type[Exception]) -> Any:
    """Return ``error``, a ``base``, as an instance of its cause's class too."""
    cause = error.cause
    if not isinstance(cause, Exception) or isinstance(cause, base):
        return error
    cls = _dual_class(base, cause)
    if cls is None:
        return error
    dual: Any = _bare(cls, cause)
    base.__init__(dual, *error._fields(cause))
    _copy_fields(cause, dual)
    return dual


_dual_classes: dict[tuple[type, type], type[Exception] | None] = {}


def _dual_class(base: Any, like: Exception) -> type[Exception] | None:
    """Return a class that is both ``base`` and that of ``like``, None if impossible."""
    cause = type(like)
    key = base, cause
    if key not in _dual_classes:
        members: dict[str, Any] = {
            "__init__": base.__init__,
            "__str__": base.__str__,
            "__repr__": BaseException.__repr__,
            "__setattr__": BaseException.__setattr__,  # the user's may be frozen
            "__reduce__": lambda self: _reduce_dual(self, base),
            "__reduce_ex__": lambda self, protocol: _reduce_dual(self, base),
            "__module__": cause.__module__,
            "__doc__": cause.__doc__,
            "__getattr__": _ask_cause,
        }
        try:
            name = f"{base.__name__}({cause.__name__})"
            made: Any = type(name, (base, cause), members)
            _bare(made, like)
        except Exception:  # a layout conflict, a final class, an odd __new__: user code
            _dual_classes[key] = None
        else:
            _dual_classes[key] = made
    return _dual_classes[key]


def _bare(cls: type[Exception], like: Any) -> Exception:
    """Return an instance made by no code of the user's; a group has its members."""
    is_group = _GROUP is not None and isinstance(like, _GROUP)
    arguments = (like.message, like.exceptions) if is_group else ()
    for base in cls.__mro__:
        new = vars(base).get("__new__")
        if isinstance(new, types.BuiltinMethodType):
            with contextlib.suppress(TypeError):  # not the one of this class's layout
                made: Exception = new(cls, *arguments)
                return made
    raise TypeError(f"{cls.__name__} cannot be made")


def _copy_fields(cause: Exception, error: Exception) -> None:
    """Copy what the user's error holds: its dictionary, its slots, and what built-in
    classes keep in C (``args``, the ``errno`` of an `OSError`)."""
    for name, value in vars(cause).items():
        error.__dict__.setdefault(name, value)
    for cls in type(cause).__mro__:
        for name, field in vars(cls).items():
            if isinstance(field, _FIELD_TYPES) and not name.startswith("__"):
                with contextlib.suppress(AttributeError, TypeError):
                    setattr(error, name, getattr(cause, name))


def _reduce_dual(self: Any, base: type[Exception]) -> tuple[Any, ...]:
    cause: Any = self.cause
    if not _travels(cause):
        cause = PortableCause.of(cause, _travels)
    return _make_dual, (base, *self._fields(cause))


def _make_dual(base: Any, *fields: Any) -> Any:
    return base(*fields).as_user_error()


def _ask_cause(self: Any, name: str) -> Any:
    cause = self.__dict__.get("cause")
    if cause is None or name.startswith("__"):
        raise AttributeError(name)
    return getattr(cause, name)


def _travels(value: Any) -> bool:
    """Whether plain pickle can take ``value`` there and back."""
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:  # whatever classes of users raise
        return False
    return True


class PortableCause:
    """Stands for an exception that cannot be pickled, or not unpickled, as it is.

    Unpickling gives an exception of the same class, made without its constructor; what
    cannot travel of its arguments and attributes is left out or given as text.
    """

    def __init__(
        self, cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]
    ) -> None:
        self.fields = (cls, args, state)

    @classmethod
    def of(cls, cause: BaseException, travels: Callable[[Any], bool]) -> PortableCause:
        """Return what stands for ``cause``; ``travels`` says what of it can be sent."""
        args = tuple(_portable_argument(arg, travels) for arg in cause.args)
        state = {key: value for key, value in vars(cause).items() if travels(value)}
        return cls(type(cause), args, state)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_cause, self.fields


def _portable_argument(value: Any, travels: Callable[[Any], bool]) -> Any:
    if travels(value):
        return value
    if isinstance(value, BaseException):
        return PortableCause.of(value, travels)
    if type(value) in (list, tuple):  # the members of an exception group
        return type(value)(_portable_argument(item, travels) for item in value)
    return repr(value)


def _rebuild_cause(
    cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]
) -> BaseException:
    try:
        error = cls.__new__(cls, *args)
    except Exception:  # the user's own, which wants other arguments
        error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class TaskCancelledError(SparkrayError):
    """The task was cancelled, so its result will never exist.

    Attributes:
        task: name and id of the task.
    """

    def __init__(self, task: str = "") -> None:
        super().__init__(task)
        self.task = task

    def __str__(self) -> str:
        return (
            f"task {self.task} was cancelled" if self.task else "the task was cancelled"
        )


class GetTimeoutError(SparkrayError, TimeoutError):
    """`get` stopped waiting.  Nothing was cancelled: the same `get` may succeed later.

    Attributes:
        timeout_s: how long the caller was willing to wait, in seconds.
        pending: how many objects were not ready, and what they wait for.
    """

    def __init__(self, timeout_s: float, pending: str) -> None:
        super().__init__(timeout_s, pending)
        self.timeout_s, self.pending = timeout_s, pending

    def __str__(self) -> str:
        return f"not ready after {self.timeout_s:g} s: {self.pending}"


class TaskTimeoutError(SparkrayError, TimeoutError):
    """The task ran for longer than its ``timeout_s`` and was stopped.

    Attributes:
        task: name and id of the task.
        timeout_s: how long it was allowed to run, in seconds.
        where: process id and host.
    """

    def __init__(self, task: str, timeout_s: float, where: str = "") -> None:
        # Not super(): OSError would take them for errno, text and a file's name.
        Exception.__init__(self, task, timeout_s, where)
        self.task, self.timeout_s, self.where = task, timeout_s, where

    def __str__(self) -> str:
        place = f" in {self.where}" if self.where else ""
        return (
            f"{self.task} was stopped{place}: it ran for longer than its"
            f" timeout_s={self.timeout_s:g}"
        )


class UnschedulableError(SparkrayError):
    """No node of this cluster could satisfy the request, however long it waited.

    Attributes:
        request: what was asked for, e.g. ``{CPU: 64}``.
        largest_node: the node that comes nearest, and what it has.
        hint: what to do.
    """

    def __init__(self, request: str, largest_node: str, hint: str = "") -> None:
        super().__init__(request, largest_node, hint)
        self.request, self.largest_node, self.hint = request, largest_node, hint

    def __str__(self) -> str:
        hint = self.hint or "ask for less or add a larger node"
        return (
            f"no node can satisfy {self.request}; the largest node has"
            f" {self.largest_node}: {hint}"
        )


class PlacementGroupRemovedError(SparkrayError):
    """The placement group that a task was to run in was removed."""


class ActorAlreadyExistsError(SparkrayError, ValueError):
    """Another actor of the namespace has the name."""


class PendingCallsLimitExceeded(SparkrayError):
    """The actor has ``max_pending_calls`` calls waiting already."""


class RuntimeEnvSetupError(SparkrayError):
    """The runtime environment of a task could not be built; the message says why."""


class ObjectStoreFullError(SparkrayError):
    """No room for an object: what is in the store is in use or cannot be spilled.

    Attributes:
        needed_bytes: the size asked for.
        limit_bytes: the size of the store of that node.
        usage: what takes the room.
    """

    def __init__(self, needed_bytes: int, limit_bytes: int, usage: str) -> None:
        super().__init__(needed_bytes, limit_bytes, usage)
        self.needed_bytes, self.limit_bytes, self.usage = (
            needed_bytes,
            limit_bytes,
            usage,
        )

    def __str__(self) -> str:
        return (
            f"no room for {self.needed_bytes} bytes in an object store of"
            f" {self.limit_bytes} bytes: {self.usage}. Drop references, or start with a"
            " larger object_store_memory"
        )


class ClusterError(SparkrayError):
    """sparkray, or a machine under it, failed.  The caller did nothing wrong."""


class StartError(ClusterError):
    """A node did not start; the message carries what it said."""


class WorkerCrashedError(ClusterError):
    """The worker process ended while it ran the task.

    Attributes:
        task: name and id of the task.
        reason: signal or exit code, process id and host.
        log_tail: the last lines that the process printed.
    """

    def __init__(self, task: str, reason: str = "", log_tail: str = "") -> None:
        super().__init__(task, reason, log_tail)
        self.task, self.reason, self.log_tail = task, reason, log_tail

    def __str__(self) -> str:
        tail = f"\nits last output:\n{self.log_tail}" if self.log_tail else ""
        return f"the worker that ran {self.task} ended: {self.reason}{tail}"


class NodeDiedError(WorkerCrashedError):
    """The node that ran the task is gone."""


class OutOfMemoryError(WorkerCrashedError):
    """The worker was ended because its host was about to run out of memory."""


class ActorError(ClusterError):
    """An actor could not serve a call."""


class ActorDiedError(ActorError):
    """The actor is gone for good; the message says why.

    Where its constructor raised, what `get` raises is, if Python allows it, an instance
    of that exception's class as well.

    Attributes:
        reason: what happened, and the constructor's traceback if that was it.
        cause: what the constructor raised; None for other deaths.
    """

    def __init__(self, reason: str = "", cause: BaseException | None = None) -> None:
        # Not super(): in a dual class that would call the user's constructor.
        Exception.__init__(self, *((reason,) if cause is None else (reason, cause)))
        self.reason, self.cause = reason, cause
        self.__cause__ = cause

    def __str__(self) -> str:
        return self.reason

    def as_user_error(self) -> ActorDiedError:
        """Return this error as an instance of the cause's class too, where possible."""
        made: ActorDiedError = _as_dual(self, ActorDiedError)
        return made

    def _fields(self, cause: Any) -> tuple[Any, ...]:
        return self.reason, cause


class ActorUnavailableError(ActorError):
    """The actor cannot be reached at the moment; a later call may succeed."""


class ObjectLostError(ClusterError):
    """Every copy of the object is gone, and it cannot be made again.

    Attributes:
        object_id: in hexadecimal.
        reason: what happened to it, and why it is not made again.
    """

    def __init__(self, object_id: str, reason: str = "") -> None:
        super().__init__(object_id, reason)
        self.object_id, self.reason = object_id, reason

    def __str__(self) -> str:
        return f"object {self.object_id} is lost: {self.reason}"


class OwnerDiedError(ObjectLostError):
    """The process that owned the object is gone, and the object with it."""


class ProtocolError(ClusterError, ConnectionError):
    """A peer sent what is not this protocol, or no proof of the cluster's token."""
