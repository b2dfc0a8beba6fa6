"""Remote functions on their way to workers: pickled once, known by hash."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import sys
from collections.abc import Callable
from typing import Any, Final

from sparkray.exceptions import NotPicklableError
from sparkray.protocol.messages import Strategy
from sparkray.resources import Vector
from sparkray.runtime.refs import ObjectRef, collecting
from sparkray.store.code import dump_function
from sparkray.store.explain import explain_unpicklable

log = logging.getLogger(__name__)

STREAMING: Final = -1
DYNAMIC: Final = -2
#: A function that drags more than this along must get it as an argument instead.
MAX_FUNCTION_BYTES: Final = 256 * 1024 * 1024
#: One that drags more than this along is slow to send to every node: a warning.
LARGE_FUNCTION_BYTES: Final = 10 * 1024 * 1024


class TaskTemplate:
    """A function with its options: what all its calls have in common.

    Immutable once used; `RemoteFunction` makes one for each set of options.

    Args:
        function: what workers call.
        name: shown in errors, logs and state.
        num_returns: 0 or more, `STREAMING` or `DYNAMIC`.
        resources: what a call takes while it runs.
        runtime_env: canonical JSON, "" for that of the job.
        max_retries: further runs when the worker dies or, with ``retry_exceptions``,
            the function raises; -1 without limit.
        retry_exceptions: retry on any exception, or on these classes.
        max_calls: the worker ends after so many calls; 0 without limit.
        backpressure: streaming: how many items may wait unconsumed; 0 without limit.
        inherits: whether a placement group that captures child tasks captures it.
        timeout_s: how long one run may take; 0 without limit.
    """

    __slots__ = (
        "backpressure",
        "function",
        "inherits",
        "max_calls",
        "max_retries",
        "name",
        "num_returns",
        "resources",
        "retry_exceptions",
        "runtime",
        "runtime_env",
        "state",
        "states",
        "strategy",
        "timeout_s",
    )

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str,
        num_returns: int,
        resources: Vector,
        runtime_env: str,
        strategy: Strategy,
        max_retries: int,
        retry_exceptions: bool | tuple[type[BaseException], ...],
        max_calls: int,
        backpressure: int,
        inherits: bool = False,
        timeout_s: float = 0.0,
    ) -> None:
        self.function = function
        self.name = name
        self.num_returns = num_returns
        self.resources = resources
        self.runtime_env = runtime_env
        self.strategy = strategy
        self.max_retries = max_retries
        self.retry_exceptions = retry_exceptions
        self.max_calls = max_calls
        self.backpressure = backpressure
        self.runtime: Any = None  #: the runtime that `state` belongs to
        self.state: Any = None  #: the one used last
        self.inherits = inherits
        self.timeout_s = timeout_s
        self.states: dict[Any, Any] = {}  #: by nesting depth and inherited strategy


class MethodTemplate:
    """An actor's method with its options: what all its calls have in common."""

    __slots__ = (
        "backpressure",
        "group",
        "max_retries",
        "method",
        "name",
        "num_returns",
        "retry_exceptions",
        "timeout_s",
    )

    def __init__(
        self,
        name: str,
        method: str,
        *,
        num_returns: int,
        max_retries: int,
        retry_exceptions: bool | tuple[type[BaseException], ...],
        group: str,
        backpressure: int,
        timeout_s: float = 0.0,
    ) -> None:
        self.name = name
        self.method = method
        self.num_returns = num_returns
        self.max_retries = max_retries
        self.retry_exceptions = retry_exceptions
        self.group = group
        self.backpressure = backpressure
        self.timeout_s = timeout_s


class ActorTemplate:
    """A class with its options: what all its actors have in common.

    Args:
        cls: what is instantiated; None where only calls are made.
        handle: data from which handles are made elsewhere.
        max_concurrency: 0 for the default.
        max_pending: limit of calls that wait, -1 without limit.
    """

    def __init__(
        self,
        cls: type | None,
        *,
        class_name: str,
        handle: bytes = b"",
        name: str = "",
        namespace: str = "",
        detached: bool = False,
        get_if_exists: bool = False,
        resources: Vector | None = None,
        runtime_env: str = "",
        strategy: Strategy | None = None,
        max_restarts: int = 0,
        max_concurrency: int = 0,
        groups: dict[str, int] | None = None,
        method_groups: dict[str, str] | None = None,
        max_pending: int = -1,
        in_order: bool = True,
        inherits: bool = False,
    ) -> None:
        self.cls = cls
        self.class_name = class_name
        self.handle = handle
        self.name = name
        self.namespace = namespace
        self.detached = detached
        self.get_if_exists = get_if_exists
        self.resources = resources or {}
        self.runtime_env = runtime_env
        self.strategy = strategy or Strategy()
        self.max_restarts = max_restarts
        self.max_concurrency = max_concurrency
        self.groups = groups or {}
        self.method_groups = method_groups or {}
        self.max_pending = max_pending
        self.in_order = in_order
        self.inherits = inherits
        self._pickled: tuple[bytes, list[ObjectRef]] | None = None

    def pickled(self) -> tuple[bytes, list[ObjectRef]]:
        """Return the class as bytes, and the refs that it refers to."""
        if self._pickled is None:
            assert self.cls is not None
            _, data, refs = pickle_function(self.cls, self.class_name)
            self._pickled = data, refs
        return self._pickled


def pickle_function(
    function: Callable[..., Any], name: str
) -> tuple[bytes, bytes, list[ObjectRef]]:
    """Return hash, bytes, and the refs that the function's closure holds.

    Raises:
        TypeError: something the function refers to cannot be pickled; names the chain.
        ValueError: it drags too much data along; names the largest variable.
    """
    with collecting() as refs:
        try:
            data = dump_function(function)
        except Exception as error:
            chain = explain_unpicklable(function, name)
            raise NotPicklableError(
                f"cannot send {name} to workers: {chain}"
            ) from error
    if len(data) > MAX_FUNCTION_BYTES:
        raise ValueError(_too_large(function, name, len(data)))
    if len(data) > LARGE_FUNCTION_BYTES:
        log.warning("%s", _too_large(function, name, len(data)))
    return hashlib.blake2b(data, digest_size=16).digest(), data, refs


def _too_large(function: Callable[..., Any], name: str, size: int) -> str:
    sizes = {variable: _rough_size(v) for variable, v in _captured(function).items()}
    largest = max(sizes, key=lambda variable: sizes[variable], default="")
    culprit = f", of which {largest!r} is about {sizes[largest]}" if largest else ""
    return (
        f"{name} drags {size} bytes along to every node{culprit} (limit"
        f" {MAX_FUNCTION_BYTES}): put large data with sparkray.put, and pass the ref"
        " as an argument"
    )


def _captured(function: Callable[..., Any]) -> dict[str, Any]:
    """Return what a function takes along: its closure, and globals that it names."""
    code = getattr(function, "__code__", None)
    if code is None:
        return {}
    names = getattr(function, "__globals__", {})
    captured = {name: names[name] for name in code.co_names if name in names}
    cells = getattr(function, "__closure__", None) or ()
    for variable, cell in zip(code.co_freevars, cells, strict=False):
        with contextlib.suppress(ValueError):  # not assigned yet
            captured[variable] = cell.cell_contents
    return captured


def _rough_size(value: Any) -> int:
    size = getattr(value, "nbytes", None)
    return size if isinstance(size, int) else sys.getsizeof(value, 0)
